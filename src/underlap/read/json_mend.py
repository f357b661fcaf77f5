"""One JSON value out of text that may be damaged: where it ends, and the event in it as far as it can be mended.

Mended is what profilers get wrong: raw control characters, invalid UTF-8, lone surrogates, unescaped quotes, NaN and
Infinity, fields of a wrong type. Numbers keep their digits: nothing here goes through a float.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from underlap.read.json_event import Event

DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
SPACE = b" \t\r\n"

_TRIED_ENDS = 2
# Where one event ends and another begins, and where the last one ends, in text whose brackets and quotes cannot be trusted.
_NEXT = re.compile(rb',\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_LAST = re.compile(rb'\}\s*(?=\]\s*(?:,\s*"[^"\\]{1,64}"\s*:|\}?\s*\Z))')
_BRACE = re.compile(rb"\}(?=\s*[,\]])")
_SPACE = re.compile(rb"[ \t\r\n,]*")
_CLOSING_QUOTE = re.compile(rb'\s*(?:[}\]:]|,\s*["{\[0-9tfnNI-])')
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_NUMBER = 400
_FIRST_LOOK = 2048
# What may stand at the end of text that goes on: the start of a literal, the rest of a number or of a pair of \uXXXX.
_LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity", ".", "e+", "e-", "E+", "E-")
_LONGEST_ESCAPE = 13


def _number(text: str) -> msgspec.Raw | None:
    return msgspec.Raw(text.encode()) if len(text) <= _LONGEST_NUMBER else None


def _float(text: str) -> msgspec.Raw | None:
    # 1e999 is a number in JSON and none for anybody who reads it.
    return _number(text) if abs(float(text)) < float("inf") else None


def _integer(text: str) -> int | None:
    return int(text) if len(text) <= _LONGEST_NUMBER else None


def _nothing(_: str) -> None:
    return None


_EXTENT = json.JSONDecoder(strict=False, parse_float=len, parse_int=len, parse_constant=_nothing).raw_decode
_LOOSE = json.JSONDecoder(strict=False, parse_float=_float, parse_int=_number, parse_constant=_nothing).decode
_METADATA = json.JSONDecoder(strict=False, parse_int=_integer, parse_constant=_nothing).decode


class IncompleteError(Exception):
    """The text ends inside a value."""


class BrokenError(Exception):
    """The text is no JSON value, and more text would not make it one."""


def end_of_value(text: bytes, at: int) -> int:
    """Where the JSON value at `at` ends. Raises IncompleteError or BrokenError."""
    size = _FIRST_LOOK
    while True:
        # Latin-1 maps bytes to characters one to one, and all that structures JSON is ASCII. The look is short at first,
        # as the parser counts the lines up to an error.
        chars = text[at : at + size].decode("latin-1")
        try:
            return at + _extent(chars)
        except IncompleteError:
            if at + size >= len(text):
                raise
            size *= 8


def _extent(chars: str) -> int:
    try:
        _, end = _EXTENT(chars)
    except json.JSONDecodeError as error:
        rest = chars[error.pos :]
        escape = error.msg.startswith("Invalid \\") and len(rest) < _LONGEST_ESCAPE
        if error.msg.startswith("Unterminated string") or escape or any(word.startswith(rest) for word in _LITERALS):
            raise IncompleteError from error
        raise BrokenError(f"{error.msg}, {error.pos} bytes into it") from error
    except RecursionError as error:
        raise BrokenError("brackets nested too deeply") from error
    if end == len(chars) and chars[-1] not in '}]"':
        raise IncompleteError  # a number may go on
    return end


def is_json(text: bytes) -> bool:
    """Whether the text is JSON by the book."""
    try:
        msgspec.json.decode(text)
    except DECODE_ERRORS:
        return False
    return True


def metadata_value(text: bytes) -> Any:
    """The value of a member of the file's object; None where it is none. Strings are valid Unicode."""
    try:
        return _clean(_METADATA(text.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return None


class Mender:
    """Decodes single events."""

    def __init__(self) -> None:
        self.decode: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode

    def whole(self, text: bytes) -> Event:
        """The event in a text that is one JSON value, with what is unusable in it left out. Raises BrokenError."""
        try:
            value = _LOOSE(text.decode("utf-8", "replace"))
            assert isinstance(value, dict)
            fields = {key: _usable(key, item) for key, item in value.items() if key in Event.__struct_fields__}
            return self.decode(msgspec.json.encode(fields))
        except (*DECODE_ERRORS, ValueError, TypeError) as error:
            raise BrokenError(str(error)) from error

    def with_quotes(self, text: bytes, at: int, *, final: bool = True) -> tuple[Event | None, int]:
        """The event at `at` if escaping the quotes inside its strings mends it, and where it, or its ruin, ends.

        Raises IncompleteError where more text could show a better end; with `final` there is none.
        """
        ends = _first_ends(_NEXT, text, at)
        if not final and len(ends) < _TRIED_ENDS:
            raise IncompleteError
        if final:
            ends += _first_ends(_LAST, text, at)
        limit = ends[0] if ends else len(text)
        # What follows may be no event and show no border; then any brace that could close this one is tried.
        for end in (*ends, *_first_ends(_BRACE, text, at, limit)):
            mended = _escape_inner_quotes(text[at:end])
            if len(mended) == end - at:  # without a quote to escape it is as broken as before
                continue
            try:
                return self.decode(mended), end
            except DECODE_ERRORS:
                pass
            try:
                return self.whole(mended), end
            except BrokenError:
                pass
        return None, limit


def _first_ends(border: re.Pattern[bytes], text: bytes, at: int, limit: int | None = None) -> list[int]:
    found = border.finditer(text, at, len(text) if limit is None else limit)
    return [border.start() + border.group().startswith(b"}") for border in itertools.islice(found, _TRIED_ENDS)]


def next_border(text: bytes) -> int:
    """Where an event seems to end in a text whose start is lost, or -1."""
    found = _NEXT.search(text)
    return -1 if found is None else found.start()


def after_space(text: bytes, at: int) -> int:
    """The first byte from `at` on that is neither white space nor a comma."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _usable(field: str, item: Any) -> Any:
    """The value of a field of an event, or None where its type is unusable."""
    if field == "args":
        return _clean(item) if isinstance(item, dict) else None
    if isinstance(item, str):
        return _clean(item)
    return item if isinstance(item, msgspec.Raw) and field not in ("ph", "cat") else None


def _clean(value: Any) -> Any:
    """The value with lone surrogates, which are no Unicode, replaced."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _escape_inner_quotes(text: bytes) -> bytes:
    """Escape the quotes inside strings: those that open none and are not followed by what follows a string."""
    parts = []
    inside, done = False, 0
    for found in re.finditer(rb'\\.|"', text, re.DOTALL):
        at = found.start()
        if found.group() != b'"':
            continue
        if not inside:
            inside = True
        elif _CLOSING_QUOTE.match(text, at + 1):
            inside = False
        else:
            parts.append(text[done:at] + b"\\")
            done = at
    return b"".join(parts) + text[done:]


def shown(text: bytes) -> str:
    """The start of a text, for a message."""
    return ascii(text[:16].decode("latin-1"))
