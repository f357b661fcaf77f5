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


def pairs_of_json(text: str, file: str | None, *, line: int | None = None, strict: bool = True) -> list[Pair]:
    """The pairs of a JSON text. Raises InputError, or where not `strict` returns none."""
    try:
        tree = json.loads(text)
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
                f"{file} has more than {MOST_NODES} values, or is nested deeper than {DEEPEST} levels: give a configuration of a job."
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
        yield Pair(path, "\n".join(words), line)


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
    key_line: int | None = None
    words: list[str] = dataclasses.field(default_factory=list)


def pairs_of_yaml(text: str, file: str) -> list[Pair]:
    """The pairs of a YAML text, with lines. An alias counts as what it stands for, once. Raises InputError."""
    found: list[Pair] = []
    stack: list[_Open] = []
    anchors: dict[str, list[Pair]] = {}
    open_anchors: list[tuple[str, int, int, tuple[str, ...]]] = []
    seen = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            seen += 1
            if seen > MOST_NODES or len(stack) > DEEPEST or len(found) > MOST_NODES:
                raise InputError(
                    f"{file} has more than {MOST_NODES} values, or is nested deeper than {DEEPEST} levels: "
                    "give a configuration of a job."
                )
            line = (event.start_mark.line if event.start_mark else 0) + 1
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                path = _path(stack)
                if event.anchor:
                    open_anchors.append((event.anchor, len(stack), len(found), path))
                mapping = isinstance(event, yaml.MappingStartEvent)
                if mapping and path:
                    found.append(Pair(path, "given", line))
                stack.append(_Open(path, mapping))
                # As the value of a key it is done with; as a key it names nothing.
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                closed = stack.pop()
                if closed.words:
                    found.append(Pair(closed.path, "\n".join(closed.words), line))
                while open_anchors and open_anchors[-1][1] == len(stack):
                    name, _, start, path = open_anchors.pop()
                    anchors[name] = [
                        dataclasses.replace(pair, path=pair.path[len(path) :]) for pair in found[start:][:MOST_NODES]
                    ]
                _done(stack)
            elif isinstance(event, yaml.ScalarEvent):
                _scalar(event.value, line, stack, found)
            elif isinstance(event, yaml.AliasEvent):
                path = _path(stack)
                # Below the merge key the pairs belong to the mapping itself.
                base = path[:-1] if path and path[-1] == "<<" else path
                own = anchors.get(event.anchor or "", [])
                if len(found) + len(own) > MOST_NODES:
                    raise InputError(f"{file} unfolds into more than {MOST_NODES} values: give a configuration of a job.")
                found += [dataclasses.replace(pair, path=(*base, *pair.path)) for pair in own]
                _done(stack)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError(
            f"{file} is no valid YAML{where}: correct it there, or give the file that the job really reads."
        ) from None
    return found


def _path(stack: list[_Open]) -> tuple[str, ...]:
    """The path of the value that comes next."""
    if not stack:
        return ()
    top = stack[-1]
    return (*top.path, top.key) if top.mapping and top.key is not None else top.path


def _done(stack: list[_Open]) -> None:
    if stack and stack[-1].mapping:
        # A value ends its key; a mapping as a key is no name.
        stack[-1].key = None if stack[-1].key is not None else ""


def _scalar(text: str, line: int, stack: list[_Open], found: list[Pair]) -> None:
    if not stack:
        return
    top = stack[-1]
    if not top.mapping:
        top.words.append(text)
    elif top.key is None:
        top.key, top.key_line = text, line
    else:
        found.append(Pair((*top.path, top.key), text, line))
        top.key = None
