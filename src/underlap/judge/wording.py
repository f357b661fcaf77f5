"""Words that mix hidden with removed, in a claim that is about overlap.

A rule of words, for English. It flags "overlap eliminates the all-reduce", and leaves alone what is right: "hidden, not
removed", "eliminates exposed communication", "taken off the critical path", "FP8 dispatch removes half of the bytes".
"""

from __future__ import annotations

import re

from underlap.claim import Claim
from underlap.judgement import Wording

CORRECT = (
    "Hidden communication still sends the same bytes over the same links; what shrinks is the time it adds to the critical "
    "path, while independent compute outlasts it."
)
CORRECT_REMOVED = "Fewer bytes are removed communication, not hidden: say how many bytes are sent before and after."
CORRECT_SHORTENED = "The same bytes sent faster are shortened communication, not hidden."

_COMMUNICATION = (
    r"(?:comm(?:unication)?s?|traffic|transfers?|collectives?|bytes|all[-_ ]?reduces?|all[-_ ]?gathers?"
    r"|reduce[-_ ]?scatters?|all[-_ ]?to[-_ ]?alls?|a2a|messages)"
)
_ABOUT = re.compile(rf"\b{_COMMUNICATION}\b", re.IGNORECASE)
_REMOVED = re.compile(
    r"\b(?:eliminat(?:e|es|ed|ing|ion)|remov(?:e|es|ed|ing|al)|eras(?:e|es|ed|ing)|abolish(?:es|ed|ing)?"
    r"|g[eo]t(?:s|ting)?\s+rid\s+of|do(?:es|ing)?\s+away\s+with|did\s+away\s+with|vanish(?:es|ed)?|disappear(?:s|ed)?)\b",
    re.IGNORECASE,
)
_FREE = re.compile(
    rf"\b{_COMMUNICATION}[- ]free\b(?!\s+of\b)|\bfree\s+{_COMMUNICATION}\b"
    r"|\b(?:is|are|was|were|be|become|becomes|became|come|comes|comm|communication|made|for|almost|nearly|virtually|effectively"
    r"|essentially|practically|basically|totally|completely)\s+[\"']?free\b(?!\s+(?:of|to|from|SMs?|memory|slots?|cores)\b)"
    rf"|\b(?:no|zero|near-zero)\s+(?:additional\s+|extra\s+)?(?:{_COMMUNICATION}\s+)+(?:cost|overhead|time)s?\b"
    rf"|\b(?:zero|no)[- ](?:cost|overhead)\s+{_COMMUNICATION}\b|\bcosts?\s+nothing\b|\bat\s+no\s+cost\b",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"\b(?:hid(?:e|es|den|ing)|overlapped\s+away)\b", re.IGNORECASE)
_OVERLAP = re.compile(
    r"\b(?:overlap\w*|hid(?:e|es|den|ing)|behind|concurrent\w*|async\w*|prefetch\w*|pipelin\w*)\b", re.IGNORECASE
)
_OF_TIME = re.compile(r"\b(?:exposed|exposure|wait(?:s|ing)?|stalls?|bubbles?|idle|blocking|serialization)\b", re.IGNORECASE)
_OFF_THE_PATH = re.compile(r"\b(?:from|off|out\s+of)\s+(?:the\s+)?(?:critical\s+path|main\s+stream)", re.IGNORECASE)
# "not only hidden but removed" asserts both.
_ASSERTING = re.compile(r"\bnot\s+(?:only|just|merely|simply)\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nothing|neither|nor|without|cannot|hardly|rather\s+than|instead\s+of|far\s+from|anything\s+but"
    r"|fails?\s+to|failed\s+to)\b|n't\b",
    re.IGNORECASE,
)
_NOT_CLAIMED = re.compile(
    r"(?:\b(?:not|never)|n't)\s+(?:claim|say|mean|imply|suggest|assert|conclude|believe)(?:s|ed|ing)?\b", re.IGNORECASE
)
_GAIN = re.compile(r"\b(?:gains?|benefits?|advantages?|speed-?ups?|effects?|wins?|improvements?)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_CLAUSE = re.compile(r"[,;:()]|\s(?:and|but|while|yet|so|which|that|because|although|whereas)\s", re.IGNORECASE)
_ABOUT_HIDING = frozenset({"hidden_share", "exposed_share", "exposed_time", "saved_share", "overlap_efficiency"})


def mixed(claim: Claim) -> list[Wording]:
    """Each wording that does not fit, with the sentence that does."""
    fields = {
        "statement": claim.statement,
        "as_stated.metric": claim.as_stated.metric,
        "source.title": claim.source.title,
    }
    found = []
    for field, text in fields.items():
        for sentence in _SENTENCE.split(text or ""):
            found += _says_removed(claim, field, sentence)
            found += _says_hidden(claim, field, sentence)
    return found


def _says_removed(claim: Claim, field: str, sentence: str) -> list[Wording]:
    if claim.bytes.unchanged is False or "removed" in claim.effect:
        return []  # then it is the right word
    overlap = _OVERLAP.search(sentence) or claim.bytes.unchanged or "hidden" in claim.effect or claim.metric in _ABOUT_HIDING
    if not overlap:
        return []
    words = [*_REMOVED.finditer(sentence), *_FREE.finditer(sentence)]
    for match in sorted(words, key=re.Match.start):
        if _of_communication(sentence, match) and not _negated(sentence, match):
            problem = "says that communication is gone, where it is hidden"
            return [Wording(field=field, words=match.group(), problem=problem, instead=CORRECT)]
    return []


def _of_communication(sentence: str, match: re.Match[str]) -> bool:
    """Whether it is communication that is said to be gone: not exposed time, nor a gain, nor from the critical path."""
    before = _CLAUSE.split(sentence[: match.start()])[-1]
    after = _CLAUSE.split(sentence[match.end() :])[0]
    clause = f"{before} {match.group()} {after}"
    if _OF_TIME.search(clause) or _OFF_THE_PATH.search(after) or _GAIN.search(before):
        return False
    # "is hidden and thus eliminated": a clause that ends with the word has its noun before.
    return _ABOUT.search(clause if after.strip(" .!?") else sentence) is not None


def _says_hidden(claim: Claim, field: str, sentence: str) -> list[Wording]:
    removed = claim.bytes.unchanged is False or "removed" in claim.effect
    if "hidden" in claim.effect or not (removed or "shortened" in claim.effect):
        return []
    for match in _HIDDEN.finditer(sentence):
        if not _negated(sentence, match):
            instead = CORRECT_REMOVED if removed else CORRECT_SHORTENED
            problem = f"says hidden, where communication is {'removed' if removed else 'shortened'}"
            return [Wording(field=field, words=match.group(), problem=problem, instead=instead)]
    return []


def _negated(sentence: str, match: re.Match[str]) -> bool:
    """Whether a word before it in the same clause denies it, or the sentence says that it is not claimed."""
    before = _ASSERTING.sub(" ", sentence[: match.start()])
    # What stands inside the match, as in "no communication cost", is itself what is claimed.
    return _NEGATION.search(_CLAUSE.split(before)[-1]) is not None or _NOT_CLAIMED.search(before) is not None
