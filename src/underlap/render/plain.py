"""Words and numbers for a screen: names made harmless, times and sizes with units, text cut and wrapped.

For the renderers and the command line. Everything returned is printable ASCII. It knows nothing of Reports.
"""

from __future__ import annotations

import math
import textwrap

UNKNOWN = "?"


def printable(text: str) -> str:
    """One line without control characters: what a file or kernel is called must not steer the terminal."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def clean(text: str) -> str:
    """`printable` in ASCII: any other letter is written as its escape, as its width on the screen is anyone's guess."""
    return printable(text).encode("ascii", "backslashreplace").decode("ascii")


def shorten(text: str, width: int) -> str:
    """At most `width` characters, cut in the middle: kernel and file names differ at both ends."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    tail = (width - 3) // 3
    return text[: width - 3 - tail] + "..." + text[len(text) - tail :]


def wrap(text: str, width: int, *, lines: int = 2) -> list[str]:
    """The text in at most so many lines, the later ones indented."""
    return textwrap.wrap(text, width, subsequent_indent="  ", max_lines=lines, placeholder=" ...")


def decimals_for(span_ns: int) -> int:
    """How many decimals of a millisecond are worth reading in a window of this length."""
    if span_ns >= 10_000_000_000:
        return 1
    return 2 if span_ns >= 10_000_000 else 3


def milliseconds(ns: int, decimals: int) -> str:
    """12.34; what is there but rounds to nothing is <0.01."""
    least = 10.0**-decimals
    if 0 < ns / 1e6 < least / 2:
        return f"<{least:.{decimals}f}"
    return f"{ns / 1e6:.{decimals}f}"


def percent(share: float | None) -> str:
    """12.3, without the sign; 0.0 and 100.0 are kept for exactly that."""
    if share is None:
        return UNKNOWN
    if 0 < share < 0.0005:
        return "<0.1"
    if 0.9995 <= share < 1:
        return ">99.9"
    return f"{100 * share:.1f}"


def size(nbytes: int | None) -> str:
    """1.90 GB (10^9 bytes)."""
    if nbytes is None:
        return UNKNOWN
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    if unit == "B":
        return f"{nbytes} B"
    return f"{value:.2f} {unit}" if value < 9.995 else f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def at_least(value: float | None) -> str:
    """>= 85.3: a lower bound, so rounded down."""
    if value is None:
        return UNKNOWN
    scale = 10 if value >= 10 else 1000
    return f">= {math.floor(value * scale) / scale:.{1 if scale == 10 else 3}f}"
