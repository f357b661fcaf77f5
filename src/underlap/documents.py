"""YAML and JSON that people write: read safely, turned into records, with errors that say where and what to do.

Anchors, aliases and keys given twice are refused: the first can make a small file huge, the second hides a value. Size and
depth are limited, far above what any input of underlap needs.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from underlap.errors import InputError, OptionError, UnreadableError

T = TypeVar("T")

LARGEST_BYTES = 4 * 2**20
DEEPEST = 40
MOST_NODES = 50_000

_PATH = re.compile(r" - at `(?:key` in `)?(\$[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`$")
_INVALID = re.compile(r"Invalid (?:enum )?value ")
_TYPES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\]]*)\]")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest known one, then all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names)
    return f"did you mean {close[0]!r}? Known: {listed}" if close else f"known: {listed}"


def shown(value: object) -> str:
    """A value of the input, short enough for one line."""
    try:
        text = repr(value)
    except ValueError:  # an integer too long for Python to print
        text = "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."


def file_name(path: str | Path) -> str:
    """A path as errors show it: in one line, whatever characters it has."""
    return str(path) if str(path).isprintable() else repr(str(path))


def read_document(path: str | Path, expected: str = "a YAML or JSON file") -> object:
    """The content of a YAML or JSON file. Raises UnreadableError or InputError, which name the file and what was expected."""
    return parse_document(read_text(path, expected), file_name(path))


def read_text(path: str | Path, expected: str) -> str:
    """The text of a short file. Raises UnreadableError or InputError, which name the file and what was expected."""
    file, name = Path(path), file_name(path)
    try:
        folder = file.is_dir()
    except (OSError, ValueError):  # opening it says what is wrong
        folder = False
    if folder:
        raise UnreadableError(f"{name}: is a folder: expected {expected}")
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnreadableError(f"{name}: cannot be read ({reason}): expected {expected}") from None
    if len(content) > LARGEST_BYTES:
        raise InputError(f"{name}: larger than {LARGEST_BYTES // 2**20} MiB: expected {expected}, which is short")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8: expected {expected}") from None


def parse_document(text: str, where: str) -> object:
    """The content of a YAML or JSON text; `where` names it in errors. Raises InputError."""
    try:
        _refuse_bombs(text, where)
        document: object = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader that also refuses keys given twice
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{where}{place}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # control characters, impossible dates, numbers without end
        raise InputError(f"{where}: not YAML: {shown(str(error).splitlines()[0])}") from None
    _refuse_unbounded(document, where, "$")
    return document


def _refuse_unbounded(value: object, where: str, path: str) -> None:
    """No input of underlap is infinite, and comparisons with NaN are all false."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} at {path}: expected a finite number, got {value}: leave it out where it is not known")
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_unbounded(inner, where, f"{path}.{str(key)[:60]}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_unbounded(inner, where, f"{path}[{index}]")


def _refuse_bombs(text: str, where: str) -> None:
    """Walks the events, which cost nothing to expand, before anything is built of them."""
    depth = nodes = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = f"{where}, line {event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{line}: an alias (*{event.anchor}): anchors and aliases are not read; write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise InputError(f"{line}: the tag {shown(tag)}: tags are not read; write the plain value")
        nodes += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise InputError(f"{line}: nested deeper than {DEEPEST} levels: expected a flat document")
        if nodes > MOST_NODES:
            raise InputError(f"{line}: more than {MOST_NODES} values: expected a short document")


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, where YAML would silently take the last; leaves dates the text that they are."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to configure a loader
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key or ())
        return super().construct_mapping(node, deep)


def decode(value: object, kind: type[T] | Any, where: str, at: str = "$") -> T:
    """`value` as a record of type `kind`; `at` is its path in the document `where`. Raises InputError with path and remedy."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(_explained(str(error), value, kind, where, at)) from None


def _explained(message: str, value: object, kind: Any, where: str, at: str) -> str:
    found = _PATH.search(message)
    path = found.group(1) if found else "$"
    problem = message[: found.start()] if found else message
    place = f"{where} at {at}{path[1:]}"
    if unknown := _UNKNOWN.match(problem):
        return f"{place}: unknown field {shown(unknown.group(1))}: {nearest(unknown.group(1), _fields_at(kind, path, value))}"
    if missing := _MISSING.match(problem):
        return f"{place}: the field {missing.group(1)!r} is missing: expected it beside the others"
    got = _value_at(value, path)
    if _INVALID.match(problem):
        return f"{place}: unknown value {shown(got)}: {nearest(str(got), _choices_at(kind, path))}"
    if "at `key` in" in message:
        return f"{place}: the name of a field is no text: expected a mapping with names"
    problem = _TYPES.sub(lambda types: " or ".join(_WORDS.get(word, word) for word in types.group(1).split(" | ")), problem)
    tail = f" ({shown(got)})" if problem.startswith("Expected") and isinstance(got, (str, int, float)) else ""
    return f"{place}: {problem[0].lower()}{problem[1:]}{tail}"


def _steps(path: str) -> list[str]:
    return [name or index for name, index in _STEP.findall(path)]


def _value_at(value: object, path: str) -> object:
    for step in _steps(path):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _fields_at(kind: Any, path: str, value: object) -> list[str]:
    """The fields that the record at `path` may have."""
    types = [msgspec.inspect.type_info(kind)]
    for step in _steps(path):
        types = [inner for outer in types for inner in _inside(outer, step)]
    given = _value_at(value, path)
    records = [inner for outer in types for inner in _alternatives(outer) if isinstance(inner, msgspec.inspect.StructType)]
    if isinstance(given, dict):
        tagged = [record for record in records if record.tag_field and given.get(record.tag_field) == record.tag]
        records = tagged or records
    return sorted({field.encode_name for record in records for field in record.fields})


def _choices_at(kind: Any, path: str) -> list[str]:
    """The values that a choice, or the tag of a record, at `path` may have."""
    *steps, last = _steps(path)
    types = [msgspec.inspect.type_info(kind)]
    for step in steps:
        types = [inner for outer in types for inner in _inside(outer, step)]
    parents = [one for outer in types for one in _alternatives(outer)]
    tags = [str(one.tag) for one in parents if isinstance(one, msgspec.inspect.StructType) and one.tag_field == last]
    inner = [one for outer in types for found in _inside(outer, last) for one in _alternatives(found)]
    return tags + [str(value) for one in inner if isinstance(one, msgspec.inspect.LiteralType) for value in one.values]


def _alternatives(info: Any) -> list[Any]:
    return list(info.types) if isinstance(info, msgspec.inspect.UnionType) else [info]


def _inside(info: Any, step: str) -> list[Any]:
    found: list[Any] = []
    for one in _alternatives(info):
        if isinstance(one, msgspec.inspect.StructType):
            found += [field.type for field in one.fields if field.encode_name == step]
        elif isinstance(one, msgspec.inspect.DictType):
            found.append(one.value_type)
        elif isinstance(one, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)):
            found.append(one.item_type)
    return found


def require(holds: bool, message: str) -> None:
    """What a record asks of its fields. Raises OptionError; a document's path is added by `decode`."""
    if not holds:
        raise OptionError(message)


def require_counts(record: msgspec.Struct, *fields: str, largest: int = 10**12) -> None:
    """The fields are whole numbers from 1 to `largest`; None passes, where the type allows it."""
    for field in fields:
        value = getattr(record, field)
        require(value is None or 1 <= value <= largest, f"{field} is {shown(value)}: expected 1 to {largest}")


def require_choice(record: msgspec.Struct, field: str, choices: Iterable[str]) -> None:
    """The field is one of the choices: msgspec checks it in documents, not where Python makes the record."""
    value = getattr(record, field)
    require(value in list(choices), f"{field}={shown(value)[1:-1]}: {nearest(str(value), choices)}")
