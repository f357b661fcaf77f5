"""The four questions that a claim about overlap has to answer, each from the claim's own fields.

A null field gives `unknown`; nothing is inferred from a system's or a paper's name.
"""

from __future__ import annotations

from underlap.claim import METRICS, Claim, listed
from underlap.judgement import NO, UNKNOWN, YES, Answer

MANY_ROWS = 1024
"""Rows of a matrix multiplication from which sources report gains of splitting it: claims tokenweave-latency-1p28 (from 1,024
tokens on) and flux-overlap-efficiency-small-m-h800 (below zero at 64 and 512). A border of what was published, not a law."""
_LONG = frozenset({"train", "forward", "backward", "prefill"})


def ask(claim: Claim) -> list[Answer]:
    """The answers, in the order of the questions."""
    return [workload(claim), axis(claim), same_bytes(claim), contention(claim)]


def workload(claim: Claim) -> Answer:
    """(a) Whether it was measured where compute is long, which favors overlap."""
    given = claim.workload
    phases = listed(given.phase)
    low, high, rows_from = _rows(claim)
    rests_on = ["workload.phase"]
    if low is not None and high is not None:
        rests_on = [*rests_on, *rows_from]
        rows = f"{low}" if low == high else f"{low} to {high}"
        if low >= MANY_ROWS:
            answer, why = YES, f"{rows} rows go through a matrix multiplication at once: long compute, much to hide behind"
        elif high < MANY_ROWS:
            answer, why = NO, f"{rows} rows go through a matrix multiplication at once: short compute, little to hide behind"
        else:
            answer, why = UNKNOWN, f"{rows} rows: the figure spans both sides"
    elif phases and _LONG.issuperset(phases):
        answer, why = YES, f"{_and(phases)}: many rows per matrix multiplication, long compute"
    elif phases == ["decode"]:
        answer, why = NO, "decode: one row per sequence, short compute"
    elif not phases:
        answer, why = UNKNOWN, "the claim names no phase"
    elif "decode" in phases and _LONG.intersection(phases):
        answer, why = UNKNOWN, f"{_and(phases)}: the figure mixes both sides"
    else:
        answer, why = UNKNOWN, f"{_and(phases)}: does not tell how many rows go through at once"
    missing = [name for name in ("model", "batch", "sequence", "precision") if getattr(given, name) is None]
    if missing:
        why += f"; not stated: {', '.join(missing)}"
        rests_on += [f"workload.{name}" for name in missing]
    return Answer(
        question="workload",
        text="Is it the side that favors overlap (training, prefill, many rows), not decode or few rows?",
        answer=answer,
        why=why,
        rests_on=rests_on,
    )


def _rows(claim: Claim) -> tuple[int | None, int | None, list[str]]:
    """The smallest and largest number of rows, and the fields that say so."""
    given = claim.workload
    if isinstance(given.rows, list):
        return given.rows[0], given.rows[1], ["workload.rows"]
    if given.rows is not None:
        return given.rows, given.rows, ["workload.rows"]
    phases = listed(given.phase)
    if phases == ["decode"] and isinstance(given.batch, int):
        return given.batch, given.batch, ["workload.batch"]
    if phases == ["prefill"] and isinstance(given.batch, int) and isinstance(given.sequence, int):
        # At most so many: an engine may cut a prefill into chunks. So it only ever tells that there are few.
        at_most = given.batch * given.sequence
        if at_most < MANY_ROWS:
            return at_most, at_most, ["workload.batch", "workload.sequence"]
    return None, None, []


def axis(claim: Claim) -> Answer:
    """(b) Which communication it is, and whether what decides how hard it is to hide is known."""
    axes, collectives = listed(claim.axis), listed(claim.collective)
    deciders = {
        "bytes over the link": claim.bytes.reported is not None and claim.hardware.interconnect is not None,
        "slack before the result is needed": claim.slack is not None,
        "stretch beside compute": claim.contention_included is not None,
    }
    rests_on = ["axis", "collective", "bytes.reported", "hardware.interconnect", "slack", "contention_included"]
    missing = [name for name, known in deciders.items() if not known]
    rule = "no axis is easy or hard by its name: bytes over the link, slack and stretch decide"
    if not axes or not collectives:
        absent = " and ".join(word for word, found in (("axis", axes), ("collective", collectives)) if not found)
        answer, why = UNKNOWN, f"the claim names no {absent.replace(' and ', ' and no ')}; {rule}"
    elif len(axes) > 1:
        answer = NO
        why = f"one figure for several axes ({', '.join(axes)}), which differ in bytes, link and slack"
    elif missing:
        answer, why = UNKNOWN, f"{axes[0]}, {_and(collectives)}; not stated: {', '.join(missing)}; {rule}"
    else:
        answer, why = YES, f"{axes[0]}, {_and(collectives)}, with bytes, link, slack and contention"
    return Answer(
        question="axis",
        text="Is it one axis, with what decides how hard it is to hide: bytes over the link, slack, stretch?",
        answer=answer,
        why=why,
        rests_on=rests_on,
    )


def same_bytes(claim: Claim) -> Answer:
    """(c) Hidden, or removed, shortened, shifted."""
    unchanged, effect = claim.bytes.unchanged, claim.effect
    others = [word for word in effect if word != "hidden"]
    rests_on = ["bytes.unchanged", "effect"]
    if unchanged and "removed" in effect:
        answer, why = UNKNOWN, "the claim contradicts itself: bytes unchanged, and removed"
    elif unchanged is False or "removed" in effect:
        answer = NO
        why = "bytes change, so part of the gain is sending less" + (", beside hiding" if "hidden" in effect else "")
    elif others:
        answer, why = NO, f"{_and(others)}: {'not only ' if 'hidden' in effect else 'nothing is '}hidden"
        if unchanged is None:
            why += "; whether the bytes are the same is not stated"
    elif unchanged:
        answer, why = YES, "the claim says that the bytes are unchanged"
    else:
        said = "the claim calls it hidden, but bytes" if "hidden" in effect else "bytes"
        answer, why = UNKNOWN, f"{said} before and after are not stated; {_cannot_tell(claim)}"
    return Answer(
        question="bytes",
        text="Are exactly the same bytes sent (hidden), rather than removed, shortened or shifted?",
        answer=answer,
        why=why,
        rests_on=rests_on,
    )


def _cannot_tell(claim: Claim) -> str:
    if claim.metric in ("hidden_share", "exposed_share", "exposed_time"):
        return "time covered in the picture can be shifted: without the step time nothing says that it was saved"
    if claim.metric and METRICS[claim.metric].whole:
        return "a whole run gets faster by hiding, removing or shortening alike"
    return "the figure does not tell hiding from the rest"


def contention(claim: Claim) -> Answer:
    """(d) Whether what both sides lose beside each other is inside the figure."""
    rests_on = ["contention_included"]
    whole = claim.metric is not None and METRICS[claim.metric].whole
    if claim.contention_included is not None:
        answer = YES if claim.contention_included else NO
        why = f"contention_included is {str(claim.contention_included).lower()}"
        if claim.contention_included and claim.metric == "hidden_share":
            rests_on.append("metric")
            why += "; but a share hidden does not show how much slower compute became: only the step time does"
    elif whole:
        rests_on.append("metric")
        answer, why = YES, f"not stated, but {claim.metric} is the time of a whole run, slowed compute included"
    else:
        answer, why = UNKNOWN, "not stated: compute beside communication may have become slower by more than was hidden"
    return Answer(
        question="contention",
        text="Is the price of contention inside the figure?",
        answer=answer,
        why=why,
        rests_on=rests_on,
    )


def _and(words: list[str]) -> str:
    return " and ".join(words) if len(words) < 3 else ", ".join(words)
