"""Two sequences of names: what they have in common order, and where each name can stand in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from underlap.columns import Int64

MOST_CELLS = 36_000_000
"""Of the table of the longest common order; longer sequences that are not equal are not compared."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The longest common order of a sequence with another. It can often be laid in several ways."""

    length: int
    places: tuple[tuple[int, ...], ...]
    """Per name all its places in the other sequence; none where some longest order leaves it out."""


def longest(names: Sequence[str], within: Sequence[str]) -> Common | None:
    """The longest common order, in all ways to lay it; None where the sequences are too long to tell."""
    if tuple(names) == tuple(within):
        return Common(length=len(names), places=tuple((at,) for at in range(len(names))))
    if len(names) * len(within) > MOST_CELLS:
        return None
    one, other = _numbered(names, within)
    ahead = _lengths(one, other)
    behind = _lengths(one[::-1], other[::-1])[::-1, ::-1]
    length = int(ahead[-1, -1])
    places: list[tuple[int, ...]] = []
    for at, value in enumerate(one.tolist()):
        # Left out, the parts before and after it are as long together in some place: nobody can tell that it is there at all.
        if int((ahead[at] + behind[at + 1]).max()) == length:
            places.append(())
            continue
        # A pair is the k-th of some longest order if k - 1 are common before it and length - k after it.
        fits = (other == value) & (ahead[at, :-1] + 1 + behind[at + 1, 1:] == length)
        places.append(tuple(np.flatnonzero(fits).tolist()))
    return Common(length=length, places=tuple(places))


def _numbered(one: Sequence[str], other: Sequence[str]) -> tuple[Int64, Int64]:
    numbers: dict[str, int] = {}
    found = [np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64) for names in (one, other)]
    return found[0], found[1]


def _lengths(one: Int64, other: Int64) -> NDArray[np.int32]:
    """The length of the longest common order of the first i of one and the first j of the other: shape (n + 1, m + 1)."""
    table = np.zeros((len(one) + 1, len(other) + 1), dtype=np.int32)
    for at, value in enumerate(one.tolist()):
        # An element extends the order of both shorter parts, or is left out.
        taken = np.where(other == value, table[at, :-1] + 1, 0)
        table[at + 1, 1:] = np.maximum.accumulate(np.maximum(taken, table[at, 1:]))
    return table
