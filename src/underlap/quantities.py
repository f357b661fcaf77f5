"""Numbers with units, as people write them: sizes, rates, durations, FLOP/s. GB and GiB, bits and bytes are told apart.

    80 GiB = 80 * 2^30 bytes     25 MB = 25 * 10^6 bytes     50 GB/s = 400 Gbit/s = 400 Gbps     3 us     989 TFLOP/s

A small b alone (Gb) is refused for sizes, and for rates means bits, as on every data sheet of a network.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from underlap.documents import shown
from underlap.errors import OptionError

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_BITS = {f"{prefix}{bit}": factor for prefix, factor in _DECIMAL.items() for bit in ("bit", "b")}
_RATES = {
    **{f"{unit}{per}": Fraction(factor) for unit, factor in _BYTES.items() for per in ("/s", "ps")},
    **{f"{unit}{per}": Fraction(factor, 8) for unit, factor in _BITS.items() for per in ("/s", "ps")},
}
_DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_FLOPS = {f"{prefix}{flop}": factor for prefix, factor in _DECIMAL.items() for flop in ("FLOP/s", "FLOPS", "flop/s")}
_QUANTITY = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z/]*)\s*")
_LARGEST = Fraction(10) ** 24


def _number(text: object, units: dict[str, int] | dict[str, Fraction], example: str) -> Fraction:
    expected = f"expected a number with its unit, such as {example}"
    if not isinstance(text, str):
        raise OptionError(f"{shown(text)} has no unit: {expected}")
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise OptionError(f"{shown(text)} is no quantity: {expected}")
    digits, unit = found.groups()
    if not unit:
        raise OptionError(f"{shown(text)} has no unit: {expected}")
    if unit not in units:
        alike = [known for known in units if known.lower() == unit.lower()]
        hint = f"; did you mean {' or '.join(repr(known) for known in alike)}?" if alike else ""
        raise OptionError(f"{shown(text)} has the unknown unit {unit!r}: {expected}{hint}")
    try:
        value = Fraction(Decimal(digits.replace("_", ""))) * units[unit]
    except (InvalidOperation, ValueError, OverflowError):
        raise OptionError(f"{shown(text)} is no number: {expected}") from None
    if not 0 <= value <= _LARGEST:
        raise OptionError(f"{shown(text)} is out of range: {expected}")
    return value


def parse_bytes(text: object) -> int:
    """Bytes of a size: "80 GiB" is 85899345920, "25MB" is 25000000. Raises OptionError, for bits too."""
    if isinstance(text, str) and re.search(r"[0-9]\s*[kMGTPE]?i?(b|bits?)\s*$", text):
        raise OptionError(f"{shown(text)} is in bits: a size is in bytes, such as '80 GiB' or '25 MB'")
    value = _number(text, _BYTES, "'80 GiB' or '25 MB'")
    if value.denominator != 1:
        raise OptionError(f"{shown(text)} is no whole number of bytes: expected a size such as '80 GiB'")
    return value.numerator


def parse_rate(text: object) -> float:
    """Bytes per second, one direction: "50 GB/s" and "400 Gbit/s" are both 5e10. Raises OptionError."""
    if isinstance(text, str) and re.search(r"\b(bidi\w*|duplex|both)\b", text, re.IGNORECASE):
        raise OptionError(f"{shown(text)} adds both directions: give one, which is half of it, such as '450 GB/s'")
    return float(_number(text, _RATES, "'50 GB/s' (bytes) or '400 Gbit/s' (bits), one direction"))


def parse_duration_ns(text: object) -> int:
    """Nanoseconds, rounded: "3 us" is 3000. Raises OptionError."""
    return round(_number(text, _DURATIONS, "'3 us' or '600 ns'"))


def parse_flops(text: object) -> float:
    """FLOP per second: "989 TFLOP/s" is 9.89e14. Raises OptionError."""
    return float(_number(text, _FLOPS, "'989 TFLOP/s' (dense)"))


def bytes_text(nbytes: int) -> str:
    """The shortest exact form with a unit: 25000000 is 25MB, 26214400 is 25MiB. `parse_bytes` reverses it."""
    forms = [f"{nbytes // factor}{unit}" for unit, factor in _BYTES.items() if nbytes % factor == 0]
    return min(forms, key=len)
