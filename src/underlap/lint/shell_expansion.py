"""Expansion of the words of a shell script: variables, arrays, defaults, arithmetic. What is not known stays marked as such."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from underlap.lint.shell_arithmetic import evaluate
from underlap.lint.shell_words import Form, Lexer, Part, Word

UNKNOWN = "\x00"
"""Stands in a text for what is not known."""
DEEPEST = 5
"""Scripts within words (`bash -c`), variables within defaults."""
LONGEST_VALUE = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """A word after expansion."""

    text: str
    certain: bool
    line: int

    @property
    def unknown(self) -> bool:
        """Whether a part of it is not known."""
        return UNKNOWN in self.text


@dataclasses.dataclass(slots=True)
class Value:
    """A variable: its words. An array has one word per element, anything else one."""

    words: list[Token]
    array: bool = False
    exported: bool = False


@dataclasses.dataclass(slots=True)
class Scope:
    """The variables of a script, while it is followed."""

    variables: dict[str, Value] = dataclasses.field(default_factory=dict)
    unset: dict[str, Token | None] = dataclasses.field(default_factory=dict)
    expanded: set[str] = dataclasses.field(default_factory=set)
    """Names that were used."""


def split(token: Token) -> Iterator[Token]:
    """Its words."""
    for piece in token.text.split():
        yield Token(piece, token.certain, token.line)


def joined(tokens: list[Token], line: int) -> Token:
    """One word of several."""
    text = " ".join(token.text for token in tokens)
    return Token(text[:LONGEST_VALUE], all(token.certain for token in tokens), line)


def expand(word: Word, scope: Scope, *, nested: int, apart: bool = True) -> list[Token]:
    """The words that one word becomes."""
    pieces: list[Token] = []
    current: Token | None = None
    for part in word.parts:
        for position, text in enumerate(_expanded(part, scope, nested=nested)):
            fresh = [Token(text.text, text.certain, text.line or word.line)]
            if part.form is Form.VARIABLE and apart and not part.quoted:
                fresh = list(split(text)) or ([] if not text.text.strip() else fresh)
                fresh = [dataclasses.replace(token, line=text.line if text.line else word.line) for token in fresh]
            for at, token in enumerate(fresh):
                starts = current is None or position > 0 or at > 0
                if starts:
                    if current is not None:
                        pieces.append(current)
                    current = token
                else:
                    assert current is not None
                    current = Token(current.text + token.text, current.certain and token.certain, current.line)
    if current is not None:
        pieces.append(current)
    if not apart:
        return pieces
    return [piece for token in pieces for piece in (split(token) if _is_pair(token.text) else (token,))]


def _is_pair(text: str) -> bool:
    """`--flag value` kept as one element of an array: meant as two words."""
    return text.startswith("--") and " " in text.strip() and "{" not in text


def _expanded(part: Part, scope: Scope, *, nested: int) -> list[Token]:
    if part.form is Form.TEXT:
        return [Token(part.text, True, 0)]
    if part.form is Form.UNKNOWN or nested > DEEPEST:
        return [Token(UNKNOWN, True, 0)]
    if part.form is Form.ARITHMETIC:
        return [Token(_arithmetic(part.text, scope, nested=nested), True, 0)]
    return _variable(part.text, scope, nested=nested)


_REFERENCE = re.compile(r"([A-Za-z_]\w*)(\[[@*\d]+\])?(?::?([-=+])(.*))?", re.DOTALL)


def _variable(text: str, scope: Scope, *, nested: int) -> list[Token]:
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return [Token(UNKNOWN, True, 0)]
    name, index, operator, default = found.groups()
    scope.expanded.add(name)
    value = scope.variables.get(name)
    if value is not None and operator != "+":
        if index and index.strip("[]").isdigit():
            place = int(index.strip("[]"))
            return [value.words[place]] if place < len(value.words) else [Token("", True, 0)]
        return value.words
    if operator in ("-", "="):
        tokens = [
            token
            for word in Lexer(default or "").words()
            if not word.operator
            for token in expand(word, scope, nested=nested + 1)
        ]
        return [joined(tokens, 0)] if tokens else [Token("", True, 0)]
    if name in scope.unset and scope.unset[name] is None and not operator:
        return [Token("", True, 0)]
    return [Token(UNKNOWN, True, 0)]


_IN_DOCUMENT = re.compile(
    r"\\[$`\\]|\$\{[^{}\n]{1,200}\}|\$\(\([^()\n]{1,200}\)\)|\$\([^()\n]{0,500}\)|`[^`\n]{0,500}`"
    r"|\$[A-Za-z_]\w*|\$[0-9@*#?]"
)
_TEXT_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[\w.+\x00-]+', re.DOTALL)
"""Every match takes all that it looks at, so that the time is linear."""


def filled(text: str, scope: Scope) -> str:
    """A here-document with its variables filled in. What is not known stands in quotes, so that JSON stays JSON."""
    if "$" not in text and "`" not in text:
        return text
    room = [LONGEST_VALUE]
    known = _IN_DOCUMENT.sub(lambda found: _in_document(found[0], scope, room), text.replace(UNKNOWN, ""))
    if UNKNOWN not in known:
        return known
    return _TEXT_OR_WORD.sub(lambda found: f'"{UNKNOWN}"' if UNKNOWN in found[0] and found[0][0] != '"' else found[0], known)


def _in_document(text: str, scope: Scope, room: list[int]) -> str:
    if text.startswith("\\"):
        return text[1:]
    if text.startswith("$(("):
        return _arithmetic(text[3:-2], scope, nested=0)
    if not text.startswith("$") or text.startswith("$(") or room[0] < 0:
        return UNKNOWN
    token = joined(_variable(text[1:].strip("{}"), scope, nested=0), 0)
    room[0] -= len(token.text)
    return token.text if token.certain and room[0] >= 0 else UNKNOWN


def _arithmetic(text: str, scope: Scope, *, nested: int) -> str:
    """The value of an expression, or UNKNOWN."""
    value = evaluate(text, lambda name: joined(_variable(name, scope, nested=nested + 1), 0).text)
    return UNKNOWN if value is None else str(value)
