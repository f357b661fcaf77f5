"""Numbers as traces write them, to exact integers: decimal microseconds to nanoseconds, ids of any spelling to int64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, SupportsBytes

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int64
from underlap.timeline import UNKNOWN_NS

_DIGITS, _DOT, _COMMA = 0x30, 0x2E, 0x2C
_FAST_DIGITS = 18
"""So many decimal digits fit int64."""
_MOST_DIGITS = 19
_LONGEST_ID = 66
"""63 binary digits and a prefix."""
LARGEST_NS = (1 << 62) - 1
"""Differences of two such times fit int64."""
_NUMBER = re.compile(rb'\s*"?\s*([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,9}))?\s*"?\s*')


def nanoseconds(texts: Sequence[SupportsBytes | bytes]) -> Int64:
    """Microseconds as JSON text to int64 nanoseconds; digits beyond nanoseconds are cut off.

    `UNKNOWN_NS` where a text is empty, no number, or out of the range of int64. Shape (len(texts),).
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    joined = b",".join(texts)  # type: ignore[arg-type]  # msgspec.Raw is a buffer, which the stubs do not say
    fast = _plain_decimals(joined, len(texts))
    return fast if fast is not None else np.array([_nanoseconds(bytes(text)) for text in texts], dtype=np.int64)


def _plain_decimals(joined: bytes, count: int) -> Int64 | None:
    """All values at once if each is plain digits with at most one point; else None."""
    chars = np.frombuffer(joined + b",", dtype=np.uint8)
    commas = np.flatnonzero(chars == _COMMA)
    dots = np.flatnonzero(chars == _DOT)
    if len(commas) != count or int(((chars - _DIGITS) < 10).sum()) + len(dots) + count != len(chars):
        return None
    starts = np.concatenate(([0], commas[:-1] + 1))
    whole = commas - starts
    decimals = np.zeros(count, dtype=np.int64)
    owner = np.searchsorted(commas, dots)
    if len(np.unique(owner)) != len(owner):
        return None
    decimals[owner] = commas[owner] - dots - 1
    whole[owner] = dots - starts[owner]
    if whole.min() < 1 or (whole + decimals).max() > _FAST_DIGITS or decimals.max() > 3:
        return None
    values = np.fromstring(joined.replace(b".", b"").decode("ascii"), dtype=np.int64, sep=",")
    scale = 10 ** (3 - decimals)
    return values * scale if (values <= LARGEST_NS // scale).all() else None


def _nanoseconds(text: bytes) -> int:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return UNKNOWN_NS
    sign, whole, fraction, exponent = found.groups(b"")
    digits = (whole + fraction).lstrip(b"0")
    if not digits:
        return 0 if whole + fraction else UNKNOWN_NS
    # Shifted as text: a number of a million digits costs no arithmetic.
    shift = 3 + int(exponent or b"0") - len(fraction)
    if len(digits) + shift > _MOST_DIGITS:
        return UNKNOWN_NS
    value = int(digits + b"0" * shift) if shift >= 0 else int(digits[:shift] or b"0")
    if value > LARGEST_NS:
        return UNKNOWN_NS
    return -value if sign == b"-" else value


def integers(values: Sequence[Any]) -> Int64:
    """Ids and counts to int64: integers, decimal or `0x` strings. -1 where absent, negative or more than 63 bits."""
    try:
        found = np.fromiter((value if type(value) is int else integer(value) for value in values), np.int64, len(values))
    except OverflowError:
        found = np.fromiter((integer(value) for value in values), np.int64, len(values))
    return np.maximum(found, NONE)


def integer(value: Any) -> int:
    """One id or count, or -1."""
    if isinstance(value, str):
        if len(value) > _LONGEST_ID:
            return NONE
        try:
            value = int(value, 0)
        except ValueError:
            return NONE
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        return NONE
    return value


def valid(times: Int64) -> NDArray[np.bool_]:
    """Where a time is known."""
    known: NDArray[np.bool_] = times != UNKNOWN_NS
    return known
