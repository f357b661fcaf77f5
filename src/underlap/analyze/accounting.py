"""The account of a device: compute, fused, exposed, copy and idle add up to wall, exactly (DESIGN section 4).

All of it is interval algebra on int64 nanoseconds. Sets are built once per device; what a stretch of time holds of each set
is then read off, so that steps cost nothing extra.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap import intervals
from underlap.columns import Int64
from underlap.timeline import OpClass, Operations

PARTS = ("compute", "fused", "communication", "hidden", "under_fused", "exposed", "copy", "idle")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSets:
    """Interval sets of one device. compute, fused, exposed and copy are disjoint; idle is what they leave."""

    compute: Int64
    fused: Int64
    communication: Int64
    hidden: Int64
    under_fused: Int64
    exposed: Int64
    copy: Int64
    covering: Int64
    """Compute or fused: what hides communication."""

    def amounts(self, stretches: Int64) -> dict[str, Int64]:
        """Nanoseconds of each part inside each stretch [start, end). Each of shape (len(stretches),)."""
        starts, ends = stretches[:, 0], stretches[:, 1]
        inside = {name: intervals.covered(starts, ends, getattr(self, name)) for name in PARTS[:-1]}
        inside["idle"] = (ends - starts) - inside["compute"] - inside["fused"] - inside["exposed"] - inside["copy"]
        return inside


def device_sets(ops: Operations) -> DeviceSets:
    """The sets of one device from its operations."""

    def of(*classes: OpClass) -> Int64:
        rows = np.isin(ops.op_class, classes)
        return intervals.union(ops.start_ns[rows], ops.end_ns[rows])

    compute, any_fused = of(OpClass.COMPUTE), of(OpClass.FUSED)
    communication, copies = of(OpClass.COMMUNICATION, OpClass.WAIT), of(OpClass.COPY)
    covering = intervals.merge(compute, any_fused)
    return DeviceSets(
        compute=compute,
        fused=intervals.subtract(any_fused, compute),
        communication=communication,
        hidden=intervals.intersect(communication, compute),
        under_fused=intervals.subtract(intervals.intersect(communication, any_fused), compute),
        exposed=intervals.subtract(communication, covering),
        copy=intervals.subtract(copies, intervals.merge(covering, communication)),
        covering=covering,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FamilyAmounts:
    """Nanoseconds of one family on one device inside the window."""

    communication: int
    hidden: int
    under_fused: int
    exposed: int
    exposed_share: int
    fused: int


def family_amounts(ops: Operations, family: np.ndarray, sets: DeviceSets, stretches: Int64) -> dict[int, FamilyAmounts]:
    """Per family of this device its union, what of it is hidden and exposed, and its share of the exposed slices.

    `family` gives the family of each operation (-1 for none), shape (len(ops),).
    """
    unions: dict[int, Int64] = {}
    result: dict[int, FamilyAmounts] = {}
    present = np.unique(family[family >= 0]).tolist()
    for number in present:
        rows = (family == number) & (ops.op_class != OpClass.FUSED)
        unions[number] = intervals.union(ops.start_ns[rows], ops.end_ns[rows])
    shares = exposed_shares(unions, sets, stretches)
    starts, ends = stretches[:, 0], stretches[:, 1]
    for number, own in unions.items():
        fused = (family == number) & (ops.op_class == OpClass.FUSED)

        def inside(part: Int64) -> int:
            return int(intervals.covered(starts, ends, part).sum())

        result[number] = FamilyAmounts(
            communication=inside(own),
            hidden=inside(intervals.intersect(own, sets.compute)),
            under_fused=inside(intervals.intersect(own, sets.under_fused)),
            exposed=inside(intervals.subtract(own, sets.covering)),
            exposed_share=shares[number],
            fused=inside(intervals.union(ops.start_ns[fused], ops.end_ns[fused])),
        )
    return result


def exposed_shares(unions: dict[int, Int64], sets: DeviceSets, stretches: Int64) -> dict[int, int]:
    """Each exposed slice split equally among the families running in it; a remainder of nanoseconds goes to the family
    whose running interval started first (of equals, the lowest number). They add up to the exposed time of the stretches."""
    order = list(unions)
    shares = dict.fromkeys(order, 0)
    exposed = intervals.intersect(sets.exposed, stretches) if len(stretches) else intervals.EMPTY
    if not order or len(exposed) == 0:
        return shares
    borders = np.unique(np.concatenate([exposed.ravel(), *(unions[number].ravel() for number in order)]))
    left, right = borders[:-1], borders[1:]
    inside = _holds(exposed, left)[0]
    left, right = left[inside], right[inside]
    active = np.empty((len(order), len(left)), dtype=bool)
    began = np.empty((len(order), len(left)), dtype=np.int64)
    for at, number in enumerate(order):
        active[at], began[at] = _holds(unions[number], left)
    count = active.sum(axis=0)
    each, rest = np.divmod(right - left, count)
    began[~active] = np.iinfo(np.int64).max
    first = began.argmin(axis=0)
    for at, number in enumerate(order):
        shares[number] = int(each[active[at]].sum() + rest[first == at].sum())
    return shares


def _holds(of: Int64, points: Int64) -> tuple[np.ndarray, Int64]:
    """Whether the set holds each point, and the start of the interval that does (undefined where none does)."""
    if len(of) == 0:
        return np.zeros(len(points), dtype=bool), np.zeros(len(points), dtype=np.int64)
    at = np.maximum(np.searchsorted(of[:, 0], points, side="right") - 1, 0)
    return (of[at, 0] <= points) & (points < of[at, 1]), of[at, 0]
