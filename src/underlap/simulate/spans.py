"""How the time of a simulated device divides: compute, communication hidden beside it, and exposed; and when its steps end."""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.columns import Int64
from underlap.expansion import Expansion
from underlap.intervals import EMPTY, intersect, length, merge, union
from underlap.plan import OpKind
from underlap.replay import Times


@dataclasses.dataclass(frozen=True, slots=True)
class Spans:
    """How a span of time on one device divides. All in ns; what is in none of them is idle."""

    compute_ns: int = 0
    hidden_ns: int = 0
    """Communication beside compute: part of compute_ns."""
    exposed_ns: int = 0
    groups: tuple[tuple[str, int, int], ...] = ()
    """(group, its communication, what of that is exposed). Groups may communicate at the same time: they need not add up."""

    def plus(self, other: Spans, times: int = 1) -> Spans:
        """Both, the other so many times."""
        groups = {name: (total, exposed) for name, total, exposed in self.groups}
        for name, total, exposed in other.groups:
            before = groups.get(name, (0, 0))
            groups[name] = (before[0] + times * total, before[1] + times * exposed)
        return Spans(
            self.compute_ns + times * other.compute_ns,
            self.hidden_ns + times * other.hidden_ns,
            self.exposed_ns + times * other.exposed_ns,
            tuple((name, *both) for name, both in groups.items()),
        )


def boundaries(expansion: Expansion, times: Times) -> Int64:
    """When each step of the program has ended: when its lane is free for the next. Shape (steps,)."""
    steps = len(expansion.role.program)
    rows = expansion.rows
    ends = np.zeros(steps, dtype=np.int64)
    on_lane = rows.kind != OpKind.ISSUE
    np.maximum.at(ends, rows.step[on_lane], times.end_ns[: len(rows)][on_lane])
    # A stretch ends with nothing in flight, so behind its last step all has ended.
    return np.maximum.accumulate(ends)


def spans_between(expansion: Expansion, times: Times, low: int, high: int) -> Spans:
    """How the time from low to high divides."""
    rows = expansion.rows
    start = np.clip(times.start_ns[: len(rows)], low, high)
    end = np.clip(times.end_ns[: len(rows)], low, high)
    computing = rows.kind == OpKind.COMPUTE
    return divided(expansion, start, end, union(start[computing], end[computing]))


def divided(expansion: Expansion, start: Int64, end: Int64, compute: Int64, folded: Int64 = EMPTY) -> Spans:
    """Spans of a role's rows beside its compute. What is beside a folded stretch is neither hidden nor exposed here."""
    rows = expansion.rows
    sent = rows.kind == OpKind.ISSUE
    apart = merge(compute, folded)
    communication = union(start[sent], end[sent])
    groups = []
    for number in np.unique(rows.group[sent]).tolist():
        own = sent & (rows.group == number)
        spans = union(start[own], end[own])
        groups.append((expansion.names[number], length(spans), length(spans) - length(intersect(spans, apart))))
    return Spans(
        length(compute),
        length(intersect(communication, compute)),
        length(communication) - length(intersect(communication, apart)),
        tuple(groups),
    )
