"""Which host range encloses which: operators and annotations of one thread nest like calls."""

from __future__ import annotations

import numpy as np

from underlap.columns import NONE, Int32, Int64

_CLIMB = 64
"""Real stacks are not deeper; what is takes another way up."""


class Nesting:
    """The tree of host ranges per thread. Built once; asked for the innermost range at a point, and for ancestors."""

    def __init__(self, thread: Int32, start: Int64, end: Int64) -> None:
        """Ranges with equal start nest by length: the longer one is the outer. Shapes (n,)."""
        order = np.lexsort((-end, start, thread))
        self._order = order
        self._thread, self._start, self._end = thread[order], start[order], end[order]
        # Positions below are in this order; `_parent[i] < i`.
        self._parent = self._parents()

    def _parents(self) -> Int64:
        parents = []
        stack: list[int] = []
        current = None
        ends = self._end.tolist()
        for at, (thread, start) in enumerate(zip(self._thread.tolist(), self._start.tolist(), strict=True)):
            if thread != current:
                current, stack = thread, []
            while stack and ends[stack[-1]] <= start:
                stack.pop()
            parents.append(stack[-1] if stack else NONE)
            stack.append(at)
        return np.array(parents, dtype=np.int64)

    def innermost(self, thread: Int32, time: Int64) -> Int64:
        """For each (thread, time): the row of the innermost range that holds it, or -1. Shape (m,)."""
        at = self._last_started(thread, time)
        for _ in range(_CLIMB):
            beyond = np.flatnonzero((at >= 0) & (self._end[at] <= time)) if len(self._end) else at[:0]
            if len(beyond) == 0:
                break
            at[beyond] = self._parent[at[beyond]]
        else:
            at = self._leap(at, time)
        return np.where(at >= 0, self._order[at], NONE) if len(self._order) else at

    def _last_started(self, thread: Int32, time: Int64) -> Int64:
        """For each (thread, time): the position of the last range that starts there or before, or -1."""
        at = np.full(len(time), NONE, dtype=np.int64)
        if len(time) == 0:
            return at
        order = np.argsort(thread, kind="stable")
        values, first = np.unique(thread[order], return_index=True)
        low = np.searchsorted(self._thread, values, side="left").tolist()
        high = np.searchsorted(self._thread, values, side="right").tolist()
        for begin, asked in zip(zip(low, high, strict=True), np.split(order, first[1:]), strict=True):
            found = np.searchsorted(self._start[begin[0] : begin[1]], time[asked], side="right") - 1
            at[asked] = np.where(found >= 0, found + begin[0], NONE)
        return at

    def _leap(self, at: Int64, time: Int64) -> Int64:
        """Climb to the first ancestor that holds the time in steps of powers of two, as stacks may be as deep as a file."""
        # Row -1 is above all, and holds every time. tables[k]: the ancestor 2**k above, and the last end on the way to it.
        parents = [np.append(self._parent, NONE)]
        reaches = [np.append(self._end, np.iinfo(np.int64).max)]
        while (parents[-1] >= 0).any():
            above = parents[-1]
            reaches.append(np.maximum(reaches[-1], reaches[-1][above]))
            parents.append(above[above])
        for above, reach in zip(reversed(parents), reversed(reaches), strict=True):
            at = np.where(reach[at] <= time, above[at], at)
        return at

    def parents(self) -> Int64:
        """For each row: the row of the range around it, or -1. Shape (n,)."""
        result = np.full(len(self._order), NONE, dtype=np.int64)
        inside = self._parent >= 0
        result[self._order[inside]] = self._order[self._parent[inside]]
        return result
