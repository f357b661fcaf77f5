"""YAML from strangers -> a frozen record, or one error that says what is wrong and where.

Refused before anything is built: large files, deep nesting, aliases (a few lines of them can unfold to gigabytes), keys that
occur twice. Refused after: fields that the record does not have (with the nearest one that it has), wrong types, numbers that
are not finite. JSON is YAML too. It knows nothing of what the fields mean.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from underlap.errors import InputError, UnreadableError

MOST_BYTES = 1 << 20
MOST_DEPTH = 16
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Record = TypeVar("Record", bound=msgspec.Struct)


def read_text(path: Path, what: str, *, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file of at most so many bytes. `what` it should be stands in the error."""
    try:
        folder = path.is_dir()
    except (OSError, ValueError):
        folder = False
    if folder:
        raise UnreadableError(f"{path}: a folder; expected {what}")
    try:
        with open(path, "rb") as stream:
            content = stream.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {getattr(error, 'strerror', None) or error}; expected {what}") from error
    if len(content) > most_bytes:
        raise UnreadableError(f"{path}: larger than {most_bytes >> 20} MiB; expected {what}, which is far smaller")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path}: not UTF-8 text (byte {error.start}); expected {what}") from error


def load(text: str, where: str, what: str) -> dict[str, Any]:
    """The mapping that the text holds, as plain Python values. Raises InputError, which starts with `where`."""
    try:
        _check_events(text, where)
        # _LOADER is the safe one, in C where there is one.
        value = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, chosen above
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: not YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(value, dict):
        kind = "nothing" if value is None else f"`{type(value).__name__}`"
        raise InputError(f"{where}: Expected {what}, a mapping of fields, got {kind} - at `$`")
    return value


def convert(value: dict[str, Any], kind: type[Record], where: str) -> Record:
    """The record of this type. Raises InputError with the path of the field."""
    _check_fields(value, kind, where, "$")
    _check_finite(value, where, "$")
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InputError(f"{where}: {error}") from error


def _check_events(text: str, where: str) -> None:
    """Depth, aliases and repeated keys, from the events alone: nothing is built, so nothing can blow up."""
    keys: list[set[str] | None] = []
    expecting: list[bool] = []  # per open mapping, whether the next node is a key
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            at = _line(event)
            raise InputError(f"{where}: an alias (*{event.anchor}) in {at}; aliases are not accepted: write the value out")
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            keys.pop()
            expecting.pop()
            continue
        if not isinstance(event, yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent):
            continue
        if keys and keys[-1] is not None:
            if expecting[-1] and isinstance(event, yaml.ScalarEvent):
                if event.value in keys[-1]:
                    at = _line(event)
                    raise InputError(f"{where}: the field {event.value[:80]!r} occurs twice in one mapping, again in {at}")
                keys[-1].add(event.value)
            expecting[-1] = not expecting[-1]
        if isinstance(event, yaml.ScalarEvent):
            continue
        keys.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
        expecting.append(True)
        if len(keys) > MOST_DEPTH:
            raise InputError(f"{where}: nested deeper than {MOST_DEPTH} levels in {_line(event)}")


def _line(event: yaml.Event) -> str:
    return "an unknown line" if event.start_mark is None else f"line {event.start_mark.line + 1}"


def _check_fields(value: Any, kind: Any, where: str, path: str) -> None:
    record = _record_of(kind)
    if record is None or not isinstance(value, dict):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(record)}
    for key, inner in value.items():
        if not isinstance(key, str):
            raise InputError(f"{where}: Expected the name of a field, got {key!r} - at `{path}`")
        if key not in fields:
            near = difflib.get_close_matches(key.lower(), fields, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(fields)}"
            raise InputError(f"{where}: there is no field `{key[:80]}`; {hint} - at `{path}`")
        _check_fields(inner, fields[key], where, f"{path}.{key}")


def _record_of(kind: Any) -> type[msgspec.Struct] | None:
    """The record in `Record` or `Record | None`."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    found = [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]
    return found[0] if found else None


def _check_finite(value: Any, where: str, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: Expected a finite number, got {value} - at `{path}`")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_finite(inner, where, f"{path}.{key}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            _check_finite(inner, where, f"{path}[{index}]")
