"""The one-line form of an input: `tp=8,pp=2,sp`. Errors start with the noun and name the part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from underlap.documents import nearest, shown
from underlap.errors import OptionError

T = TypeVar("T")

LONGEST = 10_000


def pairs(text: str, noun: str, known: Iterable[str], flags: Iterable[str] = ()) -> dict[str, str | None]:
    """The parts of a text by key; a flag has no value (None). OptionError: a part is empty, unknown or twice."""
    if len(text) > LONGEST:
        raise OptionError(f"{noun}: {len(text)} characters: expected a short text such as a=1,b=2")
    keys, bare = list(known), set(flags)
    found: dict[str, str | None] = {}
    for part in text.split(",") if text.strip() else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key:
            raise OptionError(f"{noun}: an empty part in {shown(text)}: expected parts such as {keys[0]}=... between commas")
        if key not in keys:
            example = "" if equals else f"; expected parts such as {keys[0]}=..."
            raise OptionError(f"{noun}: unknown part {shown(key)}: {nearest(key, keys)}{example}")
        if key in found:
            raise OptionError(f"{noun}: {key} is given twice: expected it once")
        if key in bare and equals:
            raise OptionError(f"{noun}: {key}={shown(value)}: {key} has no value; write {key} alone, or leave it out")
        if key not in bare and not value:
            raise OptionError(f"{noun}: {key} has no value: expected {key}=...")
        found[key] = value if equals else None
    return found


def whole(value: str, noun: str, key: str) -> int:
    """A whole number written in digits. Raises OptionError."""
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise OptionError(f"{noun}: {key}={shown(value)[1:-1]}: expected a whole number")
    return int(value)


def made(noun: str, make: Callable[[], T]) -> T:
    """What `make` returns; its errors start with the noun."""
    try:
        return make()
    except OptionError as error:
        message = str(error)
        raise OptionError(message if message.startswith(f"{noun}: ") else f"{noun}: {message}") from None
