"""Which host range encloses which: operators and annotations of one thread nest like calls."""

from __future__ import annotations

import numpy as np

from underlap.columns import NONE, Int32, Int64


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
        first = np.searchsorted(self._thread, thread, side="left")
        last = np.searchsorted(self._thread, thread, side="right")
        at = np.full(len(time), NONE, dtype=np.int64)
        for value in np.unique(thread):
            asked = np.flatnonzero(thread == value)
            low, high = int(first[asked[0]]), int(last[asked[0]])
            found = low + np.searchsorted(self._start[low:high], time[asked], side="right") - 1
            at[asked] = np.where(found >= low, found, NONE)
        while True:
            beyond = (at >= 0) & (self._end[at] <= time)
            if not beyond.any():
                break
            at[beyond] = self._parent[at[beyond]]
        return np.where(at >= 0, self._order[at], NONE) if len(self._order) else at

    def parents(self) -> Int64:
        """For each row: the row of the range around it, or -1. Shape (n,)."""
        result = np.full(len(self._order), NONE, dtype=np.int64)
        inside = self._parent >= 0
        result[self._order[inside]] = self._order[self._parent[inside]]
        return result
