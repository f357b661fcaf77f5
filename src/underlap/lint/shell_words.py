"""The words of a shell script: quotes, continuations, comments, expansions, here-documents. Nothing is run or looked up here.

It reads what bash would read of the forms that launch scripts use, and never fails: what it does not understand becomes a
part that is unknown. Time is linear in the length of the text.
"""

from __future__ import annotations

import dataclasses
from enum import Enum

_SPACE = " \t\r"
_OPERATORS = ("&&", "||", ";;", "|&", "&>", "<<<", ";", "|", "&", "(", ")", "\n")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class Form(Enum):
    """What a part of a word is."""

    TEXT = 0
    VARIABLE = 1
    """`$NAME` or `${NAME...}`; the text is what stands between the braces."""
    ARITHMETIC = 2
    UNKNOWN = 3
    """The output of a command, or anything else that only running would tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word."""

    form: Form
    text: str
    quoted: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """A word, or an operator."""

    parts: tuple[Part, ...]
    line: int
    operator: bool = False
    document: str | None = None
    """The text of a here-document."""
    verbatim: bool = False
    """Whether a here-document's delimiter is quoted, so that nothing in it is expanded."""

    @property
    def plain(self) -> str | None:
        """The text of a word without expansions."""
        return "".join(part.text for part in self.parts) if all(part.form is Form.TEXT for part in self.parts) else None

    @property
    def bare(self) -> str | None:
        """The text of a word without expansions and without quotes."""
        return self.plain if not any(part.quoted for part in self.parts) else None


class Lexer:
    """Words of a text, in order."""

    def __init__(self, text: str, line: int = 1) -> None:
        self._text = text
        self._at = 0
        self._line = line
        self._pending: list[tuple[str, bool, bool]] = []
        self._documents: list[Word] = []

    def words(self) -> list[Word]:
        """All words and operators."""
        found: list[Word] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in _SPACE:
                self._at += 1
            elif char == "\\" and self._text.startswith(("\\\n", "\\\r\n"), self._at):
                self._at = self._text.index("\n", self._at) + 1
                self._line += 1
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char == "<" and not self._text.startswith(("<<<", "<("), self._at):
                self._redirection()
            elif char == ">":
                self._at += 1
                while self._text.startswith((">", "&", "|"), self._at):
                    self._at += 1
            elif (operator := self._operator()) is not None:
                found.append(Word((Part(Form.TEXT, operator, False),), self._line, operator=True))
                self._at += len(operator)
                if operator == "\n":
                    self._line += 1
                    found += self._here_documents()
            else:
                found.append(self._word())
        return found

    def _operator(self) -> str | None:
        return next((operator for operator in _OPERATORS if self._text.startswith(operator, self._at)), None)

    def _redirection(self) -> None:
        if not self._text.startswith("<<", self._at):
            self._at += 1
            return
        self._at += 2
        dash = self._text.startswith("-", self._at)
        self._at += dash
        while self._at < len(self._text) and self._text[self._at] in _SPACE:
            self._at += 1
        if self._at < len(self._text) and self._text[self._at] != "\n":
            word = self._word()
            if word.plain:
                self._pending.append((word.plain, dash, word.bare is None))

    def _here_documents(self) -> list[Word]:
        found = []
        for delimiter, dash, verbatim in self._pending:
            first, lines = self._line, []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                self._line += 1
                if (line.lstrip("\t") if dash else line).rstrip("\r") == delimiter:
                    break
                lines.append(line)
            found.append(Word((), first, operator=True, document="\n".join(lines), verbatim=verbatim))
        self._pending = []
        return found

    def _word(self) -> Word:
        line, start, parts = self._line, self._at, []
        # A bracket ends the word: one that opens an array belongs to whoever reads the assignment.
        while self._at < len(self._text) and (char := self._text[self._at]) not in " \t\r\n;|&<>()":
            parts += self._part(char)
        if self._at == start:
            self._at += 1
        return Word(tuple(parts), line)

    def _part(self, char: str) -> list[Part]:
        text = self._text
        if char == "'":
            end = text.find("'", self._at + 1)
            end = len(text) if end < 0 else end
            return [self._advance(Part(Form.TEXT, text[self._at + 1 : end], True), end + 1)]
        if char == '"':
            return self._double_quoted()
        if char == "\\":
            taken = text[self._at + 1 : self._at + 2]
            if taken == "\n":
                return [self._advance(Part(Form.TEXT, "", False), self._at + 2)]
            return [self._advance(Part(Form.TEXT, taken, True), self._at + 2)]
        if char in "$`":
            return [self._expansion(quoted=False)]
        end = self._at + 1
        while end < len(text) and text[end] not in " \t\r\n;|&<>()'\"\\$`":
            end += 1
        return [self._advance(Part(Form.TEXT, text[self._at : end], False), end)]

    def _advance(self, part: Part, to: int) -> Part:
        self._line += self._text.count("\n", self._at, to)
        self._at = to
        return part

    def _double_quoted(self) -> list[Part]:
        self._at += 1
        parts: list[Part] = [Part(Form.TEXT, "", True)]
        start = self._at
        buffer: list[str] = []
        text = self._text
        while self._at < len(text) and text[self._at] != '"':
            char = text[self._at]
            if char == "\\" and self._at + 1 < len(text):
                following = text[self._at + 1]
                buffer.append("" if following == "\n" else following if following in '"\\$`' else char + following)
                self._line += following == "\n"
                self._at += 2
            elif char in "$`":
                parts.append(Part(Form.TEXT, "".join(buffer), True))
                buffer = []
                parts.append(self._expansion(quoted=True))
            else:
                buffer.append(char)
                self._line += char == "\n"
                self._at += 1
        parts.append(Part(Form.TEXT, "".join(buffer), True))
        assert self._at >= start
        self._at += 1
        return parts

    def _expansion(self, *, quoted: bool) -> Part:
        text, at = self._text, self._at
        if text[at] == "`":
            end = text.find("`", at + 1)
            return self._advance(Part(Form.UNKNOWN, "", quoted), len(text) if end < 0 else end + 1)
        if text.startswith("$(", at):
            end = self._closing(at + 1, "(", ")")
            inner = text[at + 3 : max(at + 3, end - 2)]
            found = Part(Form.ARITHMETIC, inner, quoted) if text.startswith("((", at + 1) else Part(Form.UNKNOWN, "", quoted)
            return self._advance(found, end)
        if text.startswith("${", at):
            end = self._closing(at + 1, "{", "}")
            return self._advance(Part(Form.VARIABLE, text[at + 2 : max(at + 2, end - 1)], quoted), end)
        end = at + 1
        if end < len(text) and text[end] in "@*#?$!-0123456789":
            end += 1
        else:
            while end < len(text) and text[end] in _NAME:
                end += 1
        found = Part(Form.TEXT, "$", quoted) if end == at + 1 else Part(Form.VARIABLE, text[at + 1 : end], quoted)
        return self._advance(found, end)

    def _closing(self, at: int, opening: str, closing: str) -> int:
        """One past the bracket that closes the one at `at`."""
        depth = 0
        for position in range(at, len(self._text)):
            char = self._text[position]
            if char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    return position + 1
        return len(self._text)
