"""Interval algebra on int64 nanoseconds.

An interval set is an int64 array of shape (n, 2): half-open rows [start, end), sorted, disjoint, not touching, none empty.
`union` makes one from any rows; the other functions take and return interval sets. Everything is exact: no float occurs.
"""

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

EMPTY: Int64 = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)


def union(starts: Int64, ends: Int64) -> Int64:
    """The interval set covered by the rows [starts[i], ends[i]). Empty and negative rows cover nothing."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.empty(len(starts), dtype=bool)
    first[0] = True
    first[1:] = starts[1:] > reach[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(starts) - 1)
    return np.column_stack((starts[first], reach[last]))


def length(intervals: Int64) -> int:
    """Total nanoseconds covered."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def merge(*sets: Int64) -> Int64:
    """The union of several interval sets."""
    rows = np.concatenate(sets) if sets else EMPTY
    return union(rows[:, 0], rows[:, 1])


def intersect(a: Int64, b: Int64) -> Int64:
    """The intervals in both `a` and `b`."""
    if len(a) == 0 or len(b) == 0:
        return EMPTY
    # Row i of a meets the rows first[i] .. last[i]-1 of b.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    last = np.searchsorted(b[:, 0], a[:, 1], side="left")
    count = last - first
    row = np.repeat(np.arange(len(a)), count)
    other = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + first[row]
    return np.column_stack((np.maximum(a[row, 0], b[other, 0]), np.minimum(a[row, 1], b[other, 1])))


def complement(a: Int64, start: int, end: int) -> Int64:
    """The part of [start, end) that `a` does not cover."""
    if end <= start:
        return EMPTY
    edges = np.concatenate(([start], np.clip(a, start, end).ravel(), [end])).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def subtract(a: Int64, b: Int64) -> Int64:
    """The part of `a` that `b` does not cover."""
    if len(a) == 0:
        return EMPTY
    return intersect(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def clip(a: Int64, start: int, end: int) -> Int64:
    """The part of `a` inside [start, end)."""
    clipped = np.clip(a, start, end)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def covered(starts: Int64, ends: Int64, by: Int64) -> Int64:
    """For each row [starts[i], ends[i]): the nanoseconds of it that the set `by` covers. Shape (n,)."""
    return _covered_before(ends, by) - _covered_before(starts, by)


def _covered_before(points: Int64, by: Int64) -> Int64:
    if len(by) == 0:
        return np.zeros(len(points), dtype=np.int64)
    sizes = by[:, 1] - by[:, 0]
    before = np.concatenate(([0], np.cumsum(sizes)))
    index = np.searchsorted(by[:, 0], points, side="right")
    inside = np.where(index > 0, np.minimum(points - by[index - 1, 0], sizes[index - 1]), 0)
    return before[np.maximum(index - 1, 0)] * (index > 0) + inside
