"""The usual gaps of a rank, taken from its own trace: launch to start, kernel to kernel, end in one lane to start in another.

They differ by vendor, driver and library (an RCCL collective is followed 15 us later on one machine, an NCCL one 1 us later
on another), so no constant would do. This is the one home of what is usual: the graph, the causes and idle time read it here.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.columns import NONE, Int64
from underlap.timeline import UNKNOWN_NS, OpClass, Operations

LONG_QUEUED_NS = 50_000
"""An operation launched this long before its lane became free did not wait for its launch."""
LONGEST_LANE_NS = 20_000
"""No device needs longer between two queued kernels; what does has another reason."""
FARTHEST_NS = 200_000
"""No gap between lanes longer than this is taken for a dependence."""
_CLEAR = 2.0
"""Coincidences lie at any distance, dependences at short ones: where the next gap is this much longer, they end."""
_FEWEST = 3
FEWEST_LAUNCHES = 8
"""With fewer launches a cause does not rest on what is usual. A graph takes any: it only divides a lag from a delay by it."""
_SHORTEST_NS = 1_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of one rank or device, in ns. 0 where the trace has no sample."""

    launch: int
    """Median from launch to start in an idle lane, while no other lane ended; of kernels that alone were launched by a call."""
    launches: int
    """How many `launch` rests on."""
    launch_copy: int
    """The same for copies and memsets, which take another way."""
    lane: int
    """Median between queued operations of a lane, while no other lane ended."""
    lane_most: int
    """Nine tenths of those are at most this."""
    across: int
    """The longest gap from an end in one lane to a start in another that is taken for a dependence."""


def usual_launch(usual: Latencies) -> int:
    """From launch to start, in ns, for a verdict; 0 where few launches show it, so that every moment after the launch counts
    as submitted."""
    return usual.launch if usual.launches >= FEWEST_LAUNCHES else 0


def previous_in_lane(ops: Operations) -> Int64:
    """Per operation the one before it in its lane (by start), -1 for the first."""
    order = np.lexsort((ops.end_ns, ops.start_ns, ops.lane))
    same = ops.lane[order][1:] == ops.lane[order][:-1]
    result = np.full(len(ops), NONE, dtype=np.int64)
    result[order[1:][same]] = order[:-1][same]
    return result


def last_elsewhere(ops: Operations, rows: Int64, jitter_ns: int) -> Int64:
    """For each of `rows`, the operation of another lane that ended last before its start; -1 for none. `ops` is one rank."""
    by_end = np.argsort(ops.end_ns, kind="stable")
    at = np.searchsorted(ops.end_ns[by_end], ops.start_ns[rows] + jitter_ns, side="right") - 1
    result = np.full(len(rows), NONE, dtype=np.int64)
    left = np.arange(len(rows))
    # The last ends are seldom many of the own lane.
    for _ in range(8):
        left = left[at[left] >= 0]
        candidate = by_end[at[left]]
        fits = (ops.lane[candidate] != ops.lane[rows[left]]) & (ops.start_ns[candidate] < ops.start_ns[rows[left]])
        result[left[fits]] = candidate[fits]
        left = left[~fits]
        at[left] -= 1
    return result


def ready_without(ops: Operations, previous: Int64, launch: tuple[int, int], lane: int) -> Int64:
    """When each operation could have started by its launch and its lane alone; `UNKNOWN_NS` where neither is known.

    `launch` is the time from launch to start of a kernel and of a copy.
    """
    after = np.where(ops.op_class == OpClass.COPY, launch[1], launch[0])
    by_launch = np.where(ops.launch_ns == UNKNOWN_NS, UNKNOWN_NS, ops.launch_ns + after)
    by_lane = np.where(previous >= 0, ops.end_ns[previous] + lane, UNKNOWN_NS)
    return np.maximum(by_launch, by_lane)


def of_rank(ops: Operations, jitter_ns: int) -> Latencies:
    """The latencies of the rank or device whose operations these are."""
    previous = previous_in_lane(ops)
    launched = ops.launch_ns != UNKNOWN_NS
    free = np.where(previous >= 0, ops.end_ns[previous], UNKNOWN_NS)
    # A kernel may begin before the one before it has ended (programmatic dependent launch).
    gap = np.maximum(ops.start_ns - np.where(previous >= 0, free, ops.start_ns), 0)
    queued = (previous >= 0) & launched & (ops.launch_ns + LONG_QUEUED_NS < free)
    idle = launched & (ops.launch_ns >= free) & (ops.start_ns >= ops.launch_ns)
    # Where another lane ended in between, the operation may have waited for that.
    elsewhere = last_elsewhere(ops, np.arange(len(ops)), jitter_ns)
    between = (elsewhere >= 0) & (ops.end_ns[elsewhere] > np.maximum(free, ops.launch_ns))
    queued &= ~between
    idle &= ~between
    lane, lane_most = (int(value) for value in np.percentile(gap[queued], [50, 90])) if queued.any() else (0, 0)
    lane, lane_most = min(lane, LONGEST_LANE_NS), min(lane_most, LONGEST_LANE_NS)
    copies = ops.op_class == OpClass.COPY
    # The kernels of a graph share one launch call: when they start is the graph's order, not latency.
    _, call, kernels_of_call = np.unique(ops.launch_ns, return_inverse=True, return_counts=True)
    idle &= kernels_of_call[call.ravel()] == 1
    kernel, copy = (_usual((ops.start_ns - ops.launch_ns)[idle & rows], 1) for rows in (~copies, copies))
    # What was never seen idle: as the other, else 0.
    launch, launch_copy = max(kernel if kernel >= 0 else copy, 0), max(copy if copy >= 0 else kernel, 0)
    ready = ready_without(ops, previous, (launch, launch_copy), lane)
    late = np.flatnonzero((ready != UNKNOWN_NS) & (ops.start_ns - ready > max(lane_most, _SHORTEST_NS)))
    other = last_elsewhere(ops, late, jitter_ns)
    found = (other >= 0) & (ops.end_ns[other] > ready[late])
    gaps = np.sort((ops.start_ns[late] - ops.end_ns[other])[found])
    return Latencies(
        launch=launch,
        launches=int((idle & ~copies).sum()),
        launch_copy=launch_copy,
        lane=lane,
        lane_most=lane_most,
        across=_across(gaps, lane_most),
    )


def _usual(values: Int64, fewest: int) -> int:
    return int(np.median(values)) if len(values) >= fewest else NONE


def queue_gap(ops: Operations, before: Int64, after: Int64) -> int | None:
    """The usual gap between operations of one lane that stood in a queue, from those operations alone; None where unknown.

    `before` and `after` are direct neighbors in that lane. Only those count of which the later had long been launched and
    between which no operation of another lane ended, as it may have waited for that. None with fewer than three such gaps; no
    more than any device needs.
    """
    if len(after) == 0:
        return None
    free, start = ops.end_ns[before], ops.start_ns[after]
    queued = (start >= free) & long_launched(ops, after, free)
    others = np.sort(ops.end_ns[ops.lane != ops.lane[after[0]]])
    queued &= np.searchsorted(others, start, side="right") == np.searchsorted(others, free, side="right")
    usual = _usual((start - free)[queued], _FEWEST)
    return None if usual < 0 else min(usual, LONGEST_LANE_NS)


def long_launched(ops: Operations, rows: Int64, free: Int64) -> np.ndarray:
    """Whether each of `rows` had long been launched at `free`. One without its launch, beside others that have theirs, was
    launched before the recording began. Bool, shape (len(rows),)."""
    launch = ops.launch_ns[rows]
    some = bool((ops.launch_ns != UNKNOWN_NS).any())
    result: np.ndarray = np.where(launch == UNKNOWN_NS, some, launch + LONG_QUEUED_NS < free)
    return result


def _across(gaps: Int64, lane_most: int) -> int:
    """Where the short gaps end: before the widest jump, as a ratio, among those in question."""
    gaps = np.maximum(gaps[gaps <= FARTHEST_NS], _SHORTEST_NS)
    usual = max(2 * lane_most, 5 * _SHORTEST_NS)
    if len(gaps) < _FEWEST:
        return usual
    ratios = np.append(gaps[1:], FARTHEST_NS) / gaps
    ratios[: _FEWEST - 1] = 0
    widest = int(ratios.argmax())
    return max(int(gaps[widest] * 1.1), usual) if ratios[widest] >= _CLEAR else usual
