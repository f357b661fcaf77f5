"""Replay by given durations in one pass over the rows, where every row waits for earlier rows only.

The event kernel finds the order in which things happen; a window that was recorded already has one. Then it is enough to go
through what each row waits for, one edge after the other: the same times, several times faster in plain Python.
"""

from __future__ import annotations

import dataclasses
from itertools import repeat

import numpy as np

from underlap.columns import Int64

_EARLIEST = int(np.iinfo(np.int64).min)
_OPEN, _MEMBER = -1, -2
"""In the stream of edges: more edges of this row follow; the row's last edge, and it belongs to a rendezvous."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What n rows wait for. m edges, ordered by target."""

    source: Int64
    """The row that has to end before. Shape (m,)."""
    target: Int64
    lag_ns: Int64
    release_ns: Int64
    """Not before this time. Shape (n,)."""
    work_ns: Int64
    """Shape (n,)."""
    rendezvous: Int64
    """Rows with the same number >= 0 begin jointly; -1 for none. Shape (n,)."""


def run(waits: Waits) -> tuple[Int64, Int64, Int64] | None:
    """(start, begin, end) of each row; None where some row waits for itself or a later one, so that the event kernel has to
    find the order."""
    if not _forward(waits):
        return None
    source, lag, closing = _stream(waits)
    numbers = waits.rendezvous
    joined = np.flatnonzero(numbers >= 0)
    starts: dict[int, int] = {}
    if len(joined) == 0:
        ends = _alone(source, lag, closing)
    else:
        order = joined[np.argsort(numbers[joined], kind="stable")]
        _, first = np.unique(numbers[order], return_index=True)
        members = {int(numbers[rows[0]]): rows.tolist() for rows in np.split(order, first[1:])}
        ends = _with_meetings(source, lag, closing, waits, members, starts)
    end = np.array(ends[1:], dtype=np.int64)
    begin = end - waits.work_ns
    start = begin.copy()
    start[list(starts)] = list(starts.values())
    return start, begin, end


def _forward(waits: Waits) -> bool:
    """Whether all edges lead to later rows, and those out of a rendezvous to rows after its last member."""
    if not (waits.source < waits.target).all():
        return False
    numbers = waits.rendezvous
    joined = np.flatnonzero(numbers >= 0)
    if len(joined) == 0:
        return True
    last = np.zeros(int(numbers.max()) + 1, dtype=np.int64)
    np.maximum.at(last, numbers[joined], joined)
    met = numbers[waits.source]
    return bool(((met < 0) | (waits.target > last[met])).all())


def _stream(waits: Waits) -> tuple[list[int], list[int], list[int]]:
    """Per edge, ordered by target: the source + 1, the lag, and how it closes its row: with the row's work, or one of the
    codes. A release time is an edge from 0, left out where an edge of the row already says as much."""
    size = len(waits.work_ns)
    counts = np.bincount(waits.target, minlength=size)
    said = np.zeros(size, dtype=bool)
    # No row ends before the least release time, so a lag >= 0 on top is no earlier.
    said[waits.target[waits.lag_ns >= 0]] = True
    released = ~(said & (waits.release_ns <= waits.release_ns.min(initial=0)))
    first = np.concatenate(([0], np.cumsum(counts + released)))
    total = int(first[-1])
    source, lag = np.zeros(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    closing = np.full(total, _OPEN, dtype=np.int64)
    lag[first[:-1][released]] = waits.release_ns[released]
    before = np.concatenate(([0], np.cumsum(counts)))
    place = np.arange(len(waits.source)) + (first[:-1] + released - before[:-1])[waits.target]
    source[place] = waits.source + 1
    lag[place] = waits.lag_ns
    closing[first[1:] - 1] = np.where(waits.rendezvous >= 0, _MEMBER, waits.work_ns)
    return source.tolist(), lag.tolist(), closing.tolist()


def _alone(source: list[int], lag: list[int], closing: list[int]) -> list[int]:
    """The end of each row, after a 0."""
    ends = [0]
    push = ends.append
    latest = _EARLIEST
    for before, more, close in zip(source, lag, closing, strict=True):
        moment = ends[before] + more
        if moment > latest:  # noqa: PLR1730  # max() is slower
            latest = moment
        if close >= 0:
            push(latest + close)
            latest = _EARLIEST
    return ends


def _with_meetings(
    source: list[int],
    lag: list[int],
    closing: list[int],
    waits: Waits,
    members: dict[int, list[int]],
    starts: dict[int, int],
) -> list[int]:
    """The same with rendezvous; also fills in the starts of their members."""
    ends = [0]
    push = ends.append
    latest = _EARLIEST
    numbers, work = waits.rendezvous, waits.work_ns
    missing = dict(zip(members, map(len, members.values()), strict=True))
    gathered = dict(zip(members, repeat(_EARLIEST), strict=False))
    for before, more, close in zip(source, lag, closing, strict=True):
        moment = ends[before] + more
        if moment > latest:  # noqa: PLR1730  # max() is slower
            latest = moment
        if close >= 0:
            push(latest + close)
            latest = _EARLIEST
        elif close == _MEMBER:
            row = len(ends) - 1
            number = int(numbers[row])
            starts[row] = latest
            gathered[number] = max(gathered[number], latest)
            missing[number] -= 1
            push(0)
            if missing[number] == 0:
                for member in members[number]:
                    ends[member + 1] = gathered[number] + int(work[member])
            latest = _EARLIEST
    return ends
