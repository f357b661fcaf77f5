"""YAML, JSON and TOML as pairs of a path and a text, with limits on size, depth and repetition.

YAML is read as a stream of events, so that a small file cannot unfold into a large one, nor a deep one end the process.
Messages say where, never what: a file may hold secrets.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from underlap.errors import InputError

DEEPEST = 64
MOST_NODES = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A value, and the keys that lead to it. List positions are not part of the path."""

    path: tuple[str, ...]
    text: str
    line: int | None = None
    certain: bool = True
    listed: bool = False
    """Whether it was a list: its words are on lines of their own."""


def pairs_of_json(text: str, file: str | None, *, line: int | None = None, strict: bool = True) -> list[Pair]:
    """The pairs of a JSON text. Raises InputError, or where not `strict` returns none."""
    try:
        # Within a word of a script a part may be unknown, which stands there as a control character.
        tree = json.loads(text, strict=strict)
    except (ValueError, RecursionError) as error:
        if not strict:
            return []
        raise InputError(_broken(file, "JSON", error)) from None
    return list(_walk(tree, file, line))


def pairs_of_toml(text: str, file: str) -> list[Pair]:
    """The pairs of a TOML text. Raises InputError."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(_broken(file, "TOML", error)) from None
    return list(_walk(tree, file, None))


_POSITION = re.compile(r"line (\d+)[ ,]+column (\d+)")


def _broken(file: str | None, kind: str, error: Exception) -> str:
    """Where a text is broken. The parser's own words are left out: they may quote it."""
    if isinstance(error, RecursionError):
        return f"{file} is nested deeper than {DEEPEST} levels: give a configuration of a job."
    where = ""
    if isinstance(error, json.JSONDecodeError):
        where = f" (line {error.lineno}, column {error.colno})"
    elif (found := _POSITION.search(str(error))) is not None:
        where = f" (line {found[1]}, column {found[2]})"
    return f"{file} is no valid {kind}{where}: correct it there, or give the file that the job really reads."


def _walk(tree: Any, file: str | None, line: int | None) -> Iterator[Pair]:
    """All leaves, without recursion."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    seen = 0
    while stack:
        path, value = stack.pop()
        seen += 1
        if seen > MOST_NODES or len(path) > DEEPEST:
            if file is None:
                return
            raise InputError(
                f"{file} has more than {MOST_NODES} values, or is nested deeper than {DEEPEST} levels: give a "
                f"configuration of a job."
            )
        if isinstance(value, dict):
            stack += reversed([((*path, str(key)), item) for key, item in value.items()])
            yield from _present(path, line)
        elif isinstance(value, list):
            yield from _listed(path, value, line)
            stack += reversed([(path, item) for item in value if isinstance(item, dict | list)])
        else:
            yield Pair(path, _text(value), line)


def _present(path: tuple[str, ...], line: int | None) -> Iterator[Pair]:
    if path:
        yield Pair(path, "given", line)


def _listed(path: tuple[str, ...], items: list[Any], line: int | None) -> Iterator[Pair]:
    """A list of words: as one text, and each word as a name that is given (`flags: [overlap_grad_reduce]`)."""
    words = [_text(item) for item in items if not isinstance(item, dict | list)]
    if words:
        yield Pair(path, "\n".join(words), line, listed=True)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclasses.dataclass(slots=True)
class _Open:
    """A mapping or a list whose end has not come."""

    path: tuple[str, ...]
    mapping: bool
    key: str | None = None
    words: list[str] = dataclasses.field(default_factory=list)


def pairs_of_yaml(text: str, file: str) -> list[Pair]:
    """The pairs of a YAML text, with lines. An alias counts as what it stands for. Raises InputError."""
    stream = _Stream(file)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            stream.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError(
            f"{file} is no valid YAML{where}: correct it there, or give the file that the job really reads."
        ) from None
    return stream.pairs


class _Stream:
    """Events in, pairs out. Nothing is built that could grow beyond the limits."""

    def __init__(self, file: str) -> None:
        self.pairs: list[Pair] = []
        self._file = file
        self._seen = 0
        self._stack: list[_Open] = []
        self._anchors: dict[str, list[Pair]] = {}
        self._open_anchors: list[tuple[str, int, int, tuple[str, ...]]] = []

    def take(self, event: Any) -> None:
        """The next event."""
        self._seen += 1
        if self._seen > MOST_NODES or len(self._stack) > DEEPEST or len(self.pairs) > MOST_NODES:
            raise InputError(
                f"{self._file} has more than {MOST_NODES} values, or is nested deeper than {DEEPEST} levels: "
                "give a configuration of a job."
            )
        line = (event.start_mark.line if event.start_mark else 0) + 1
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event, line, mapping=isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close(line)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event.value, line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor or "")

    def _open(self, event: Any, line: int, *, mapping: bool) -> None:
        path = self._path()
        if event.anchor:
            self._open_anchors.append((event.anchor, len(self._stack), len(self.pairs), path))
        if mapping and path:
            self.pairs.append(Pair(path, "given", line))
        self._stack.append(_Open(path, mapping))

    def _close(self, line: int) -> None:
        closed = self._stack.pop()
        if closed.words:
            self.pairs.append(Pair(closed.path, "\n".join(closed.words), line, listed=True))
        while self._open_anchors and self._open_anchors[-1][1] == len(self._stack):
            name, _, start, path = self._open_anchors.pop()
            self._anchors[name] = [dataclasses.replace(pair, path=pair.path[len(path) :]) for pair in self.pairs[start:]]
        self._done()

    def _alias(self, name: str) -> None:
        path = self._path()
        # Below the merge key the pairs belong to the mapping itself.
        base = path[:-1] if path and path[-1] == "<<" else path
        own = self._anchors.get(name, [])
        if len(self.pairs) + len(own) > MOST_NODES:
            raise InputError(f"{self._file} unfolds into more than {MOST_NODES} values: give a configuration of a job.")
        self.pairs += [dataclasses.replace(pair, path=(*base, *pair.path)) for pair in own]
        self._done()

    def _scalar(self, text: str, line: int) -> None:
        if not self._stack:
            return
        top = self._stack[-1]
        if not top.mapping:
            top.words.append(text)
        elif top.key is None:
            top.key = text
        else:
            self.pairs.append(Pair((*top.path, top.key), text, line))
            top.key = None

    def _path(self) -> tuple[str, ...]:
        """The path of the value that comes next."""
        if not self._stack:
            return ()
        top = self._stack[-1]
        return (*top.path, top.key) if top.mapping and top.key is not None else top.path

    def _done(self) -> None:
        """A value ends its key; a mapping or a list that is a key itself names nothing."""
        if self._stack and self._stack[-1].mapping:
            self._stack[-1].key = None if self._stack[-1].key is not None else ""
