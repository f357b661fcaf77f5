"""When communication was launched: too late to run beside anything, or early and then held, and behind what.

A call's lead is the time from its launch to the beginning of its exposed part. Without lead, nothing was left to run beside it
when it was launched: no schedule of the device hides it, only an earlier launch (prefetch). A call that stood launched for
longer than is usual was held by something; what ended last before it started is named, which is timing and no proof. What
is not modeled: events that held it, and hardware queues.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze import latencies
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.analyze.host_time import blocking_rows
from underlap.analyze.steps import Steps
from underlap.columns import NONE, Int64
from underlap.report import IssueRow
from underlap.timeline import UNKNOWN_NS, OpClass, Timeline

_SLIVER = 0.01
"""A call with at most this share of its time exposed is hidden."""
_TWICE = 2
"""Up to twice the usual latency, a call started as soon as it was launched."""
_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """Per call of `Timeline.collectives`. All of shape (number of calls,); -1 where unknown or not so."""

    lead: Int64
    """Launch to the beginning of the exposed part; -1 for calls without one."""
    held: Int64
    """Launch to start, where that is longer than usual."""
    behind: Int64
    """Row of the operation whose end came last before the start of a held call."""
    compute: Int64
    """Compute of the device from its start to the start of the next call of its family there."""


def find(timeline: Timeline, times: CallTimes, family_of_call: np.ndarray, sets: dict[tuple[int, int], DeviceSets]) -> Issue:
    """See `Issue`. Calls outside the window, without operations, or on CPU ranks are unknown."""
    size = len(timeline.collectives)
    lead, held, behind, compute = (np.full(size, NONE, dtype=np.int64) for _ in range(4))
    ops = timeline.ops
    on_cpu = {info.rank for info in timeline.ranks if info.on_cpu}
    resolution = {info.rank: info.resolution_ns for info in timeline.ranks}
    for (rank, device), own in sets.items():
        rows = np.flatnonzero((ops.rank == rank) & (ops.device == device))
        calls = np.flatnonzero(times.counted & (times.first_op >= 0))
        calls = calls[np.isin(times.first_op[calls], rows)]
        if rank in on_cpu or len(calls) == 0:
            continue
        usual = latencies.of_rank(ops.take(rows), resolution[rank])
        usual_launch = latencies.usual_launch(usual)
        near = _TWICE * (usual.lane or usual_launch)
        order = rows[np.argsort(ops.end_ns[rows], kind="stable")]
        ends = ops.end_ns[order]
        for call in calls[_launch_known(timeline, times.first_op[calls])].tolist():
            launch = int(ops.launch_ns[times.first_op[call]])
            if times.exposed[call] <= _SLIVER * times.duration[call]:
                continue
            start = int(times.start[call])
            begin = _exposed_from(own.exposed, start, int(times.end[call]))
            lead[call] = NONE if begin is None else max(begin - launch, 0)
            if start - launch > _TWICE * usual_launch:
                held[call] = start - launch
                behind[call] = _last_before(timeline, order, ends, int(times.first_op[call]), near)
        for family in np.unique(family_of_call[calls]).tolist():
            mine = calls[family_of_call[calls] == family]
            mine = mine[np.argsort(times.start[mine], kind="stable")]
            starts = times.start[mine]
            compute[mine[:-1]] = intervals.covered(starts[:-1], starts[1:], own.compute)
    return Issue(lead=lead, held=held, behind=behind, compute=compute)


def _launch_known(timeline: Timeline, rows: Int64) -> NDArray[np.bool_]:
    """Whether each operation has a launch of its own: a graph launches all its kernels at once, which says nothing of each."""
    ops = timeline.ops
    found: NDArray[np.bool_] = (ops.launch_ns[rows] != UNKNOWN_NS) & (ops.graph[rows] < 0)
    return found


def _exposed_from(exposed: Int64, start: int, end: int) -> int | None:
    at = int(np.searchsorted(exposed[:, 1], start, side="right"))
    if at == len(exposed) or exposed[at, 0] >= end:
        return None
    return max(int(exposed[at, 0]), start)


def _last_before(timeline: Timeline, by_end: Int64, ends: Int64, row: int, near: int) -> int:
    """The operation that ended last between the launch and the start of `row`; one of its own lane if that ended `near` it."""
    ops = timeline.ops
    start = int(ops.start_ns[row])
    low = int(np.searchsorted(ends, ops.launch_ns[row], side="right"))
    high = int(np.searchsorted(ends, start, side="right"))
    just = by_end[max(low, int(np.searchsorted(ends, start - near, side="left"))) : high]
    same = just[(ops.lane[just] == ops.lane[row]) & (just != row)]
    if len(same):
        return int(same[-1])
    return next((int(other) for other in by_end[low:high][::-1] if other != row), NONE)


def row_of(timeline: Timeline, calls: Calls, steps: Steps, times: CallTimes, found: Issue, own: Int64) -> IssueRow | None:
    """The row of a family, of whose calls in the window `own` are; None where none of them is launched by a host."""
    ops = timeline.ops
    on_cpu = [info.rank for info in timeline.ranks if info.on_cpu]
    own = own[(times.first_op[own] >= 0) & ~np.isin(calls.table.rank[own], on_cpu)]
    own = own[ops.op_class[times.first_op[own]] != OpClass.FUSED]
    if len(own) == 0:
        return None
    exposed = own[times.exposed[own] > _SLIVER * times.duration[own]]
    known = exposed[_launch_known(timeline, times.first_op[exposed])]
    held = known[found.held[known] >= 0]
    free = known[found.held[known] < 0]
    begun = times.start[free] - ops.launch_ns[times.first_op[free]]
    at_once = free[found.lead[free] <= begun]
    behind = Counter(timeline.names[ops.name[row]] for row in found.behind[held].tolist() if row >= 0)
    compute = found.compute[own]
    exposed_last, bytes_last = _last_of_steps(calls, steps, times, own)
    return IssueRow(
        exposed_calls=len(exposed),
        no_lead=len(at_once),
        held=len(held),
        ran_out=len(free) - len(at_once),
        launch_unknown=len(exposed) - len(known),
        median_lead_ns=_median(found.lead[known]),
        median_held_ns=_median(found.held[held]),
        behind=dict(sorted(behind.items(), key=lambda entry: (-entry[1], entry[0]))[:_SHOWN]),
        blocked_in=_blocked_in(timeline, times.first_op[at_once]),
        median_call_ns=int(np.median(times.duration[own])),
        median_compute_ns=_median(compute[compute >= 0]),
        last_of_step_exposed_ns=exposed_last,
        last_of_step_bytes=bytes_last,
    )


def _median(values: Int64) -> int | None:
    return int(np.median(values)) if len(values) else None


def _last_of_steps(calls: Calls, steps: Steps, times: CallTimes, own: Int64) -> tuple[int | None, int | None]:
    """Exposed time and median payload of the last call of each step on each rank."""
    step = steps.of_op[times.first_op[own]]
    own = own[step >= 0]
    if len(own) == 0:
        return None, None
    order = own[np.lexsort((times.start[own], steps.of_op[times.first_op[own]], calls.table.rank[own]))]
    keys = np.column_stack((calls.table.rank[order], steps.of_op[times.first_op[order]]))
    last = order[np.append((keys[1:] != keys[:-1]).any(axis=1), True)]
    payload = calls.table.payload_bytes[last]
    return int(times.exposed[last].sum()), int(np.median(payload)) if (payload >= 0).all() else None


def _blocked_in(timeline: Timeline, rows: Int64) -> dict[str, int]:
    """Name -> time of the calls in which the launching thread was blocked between its launch before and these launches."""
    ops, host = timeline.ops, timeline.host
    blocking = blocking_rows(timeline)
    total: Counter[str] = Counter()
    for thread in np.unique(ops.thread[rows]).tolist():
        waits = np.flatnonzero(blocking & (host.thread == thread))
        waits = waits[np.argsort(host.start_ns[waits], kind="stable")]
        if len(waits) == 0:
            continue
        launches = np.unique(ops.launch_ns[(ops.thread == thread) & (ops.launch_ns != UNKNOWN_NS)])
        for launch in np.unique(ops.launch_ns[rows[ops.thread[rows] == thread]]).tolist():
            at = int(np.searchsorted(launches, launch))
            since = int(launches[at - 1]) if at else np.iinfo(np.int64).min
            low, high = np.searchsorted(host.start_ns[waits], (since, launch))
            for row in waits[low:high][host.end_ns[waits[low:high]] <= launch].tolist():
                total[timeline.names[host.name[row]]] += int(host.end_ns[row] - host.start_ns[row])
    return dict(sorted(total.items(), key=lambda entry: (-entry[1], entry[0]))[:_SHOWN])
