"""The account of a device a second time, without arrays and without interval algebra: walk from border to border and count.

Only DESIGN section 4 is shared with the product. Equal sums from such different ways are evidence for both.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

PARTS = ("compute", "fused", "communication", "hidden", "under_fused", "exposed", "copy", "idle")
FAMILY_PARTS = ("communication", "hidden", "under_fused", "exposed", "exposed_share", "fused")
Family = tuple[str | None, str | None]
"""(axis, collective)"""


class Row(NamedTuple):
    """What occupies a device for a while."""

    kind: str
    """compute, communication, fused or copy."""
    start: int
    end: int
    family: Family | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """Nanoseconds inside the stretches."""

    wall: int
    parts: dict[str, int]
    families: dict[Family, dict[str, int]]


def whole(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """The window from the first start to the last end."""
    rows = list(rows)
    return [(min(row.start for row in rows), max(row.end for row in rows))]


def account(rows: Sequence[Row], stretches: Sequence[tuple[int, int]]) -> Account:
    """The parts of one device, and its families', inside disjoint stretches [start, end)."""
    changes = _changes(rows)
    borders = sorted({*changes, *(border for stretch in stretches for border in stretch)})
    running: Counter[Hashable] = Counter()
    began: dict[Family, int] = {}
    parts = dict.fromkeys(PARTS, 0)
    families = {row.family: dict.fromkeys(FAMILY_PARTS, 0) for row in rows if row.family is not None}
    shares = _Shares()
    for left, right in itertools.pairwise(borders):
        running.update(changes.get(left, {}))
        active = {family for family in families if running["communication", family]}
        began = {family: began.get(family, left) for family in active}
        inside = next((at for at, (start, end) in enumerate(stretches) if start <= left < end), None)
        if inside is None:
            shares.add(None, 0, began)
            continue
        exposed = _count(parts, running, right - left)
        for family, amounts in families.items():
            _count_family(amounts, running, family, right - left)
        shares.add((inside, frozenset(active)) if exposed else None, right - left, began)
    shares.add(None, 0, {})
    for family, share in shares.total.items():
        families[family]["exposed_share"] = share
    return Account(wall=sum(end - start for start, end in stretches), parts=parts, families=families)


def _changes(rows: Iterable[Row]) -> dict[int, Counter[Hashable]]:
    """Border -> what begins (+1) or ends (-1) to run there."""
    changes: dict[int, Counter[Hashable]] = {}
    for row in rows:
        for border, change in ((row.start, 1), (row.end, -1)):
            counter = changes.setdefault(border, Counter())
            counter[row.kind] += change
            if row.family is not None:
                counter[row.kind, row.family] += change
    return changes


def _count(parts: dict[str, int], running: Counter[Hashable], length: int) -> bool:
    """Add a slice to the parts of the device; whether its communication is exposed."""
    communication = running["communication"] > 0
    exposed = False
    if communication:
        parts["communication"] += length
    if running["compute"]:
        parts["compute"] += length
        parts["hidden"] += length if communication else 0
    elif running["fused"]:
        parts["fused"] += length
        parts["under_fused"] += length if communication else 0
    elif communication:
        parts["exposed"] += length
        exposed = True
    elif running["copy"]:
        parts["copy"] += length
    else:
        parts["idle"] += length
    return exposed


def _count_family(amounts: dict[str, int], running: Counter[Hashable], family: Family, length: int) -> None:
    if running["fused", family]:
        amounts["fused"] += length
    if running["communication", family]:
        where = "hidden" if running["compute"] else "under_fused" if running["fused"] else "exposed"
        amounts["communication"] += length
        amounts[where] += length


class _Shares:
    """Splits exposed slices among the families running in them.

    Neighboring slices with the same families are one slice, or the split would depend on borders that mean nothing.
    """

    def __init__(self) -> None:
        self.total: Counter[Family] = Counter()
        self._key: tuple[int, frozenset[Family]] | None = None
        self._length = 0
        self._began: dict[Family, int] = {}

    def add(self, key: tuple[int, frozenset[Family]] | None, length: int, began: dict[Family, int]) -> None:
        """Append a slice; None for one that is not exposed."""
        if key != self._key:
            self._close()
            self._key, self._length, self._began = key, 0, began
        self._length += length

    def _close(self) -> None:
        if self._key is None:
            return
        families = self._key[1]
        each, rest = divmod(self._length, len(families))
        for family in families:
            self.total[family] += each
        first = min(families, key=lambda family: (self._began[family], _alphabetical(family)))
        self.total[first] += rest


def _alphabetical(family: Family) -> list[tuple[bool, str]]:
    """Of families that started together, the first by name; no name comes last."""
    return [(name is None, name or "") for name in family]
