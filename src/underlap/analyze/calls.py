"""Calls of collectives, one by one: how long, how much of it hidden and exposed, and where to look at it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.groups import Calls
from underlap.analyze.steps import Steps
from underlap.columns import NONE, Int64
from underlap.report import InstanceRow
from underlap.timeline import UNKNOWN_NS, Timeline

if TYPE_CHECKING:
    # These use CallTimes.
    from underlap.analyze.issue import Issue
    from underlap.analyze.rendezvous import Rendezvous

OUTLIER_FACTOR = 3
OUTLIER_CALLS = 4
"""A median of fewer calls says nothing about what is usual."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Per call of `Timeline.collectives`. All of shape (number of calls,)."""

    first_op: Int64
    """Row of the operation that starts first; -1 for a call without one."""
    start: Int64
    end: Int64
    duration: Int64
    """Sum over its kernels."""
    hidden: Int64
    exposed: Int64
    kernels: Int64
    counted: NDArray[np.bool_]
    """Whether it belongs to the window."""


def call_times(timeline: Timeline, sets: dict[tuple[int, int], DeviceSets], counted: NDArray[np.bool_]) -> CallTimes:
    """Times of every call, from the operations that carry it out. `counted` is per operation."""
    ops, size = timeline.ops, len(timeline.collectives)
    rows = np.flatnonzero(ops.collective >= 0)
    owner = ops.collective[rows]
    hidden, exposed = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    for (rank, device), own in sets.items():
        here = np.flatnonzero((ops.rank[rows] == rank) & (ops.device[rows] == device))
        starts, ends = ops.start_ns[rows[here]], ops.end_ns[rows[here]]
        hidden[here] = intervals.covered(starts, ends, own.compute)
        exposed[here] = intervals.covered(starts, ends, own.exposed)
    start, end = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(start, owner, ops.start_ns[rows])
    np.maximum.at(end, owner, ops.end_ns[rows])
    first = np.full(size, NONE, dtype=np.int64)
    latest_first = np.lexsort((ops.source_row[rows], ops.start_ns[rows]))[::-1]
    first[owner[latest_first]] = rows[latest_first]
    inside = np.zeros(size, dtype=bool)
    inside[first >= 0] = counted[first[first >= 0]]

    def total(values: Int64) -> Int64:
        result = np.zeros(size, dtype=np.int64)
        np.add.at(result, owner, values)
        return result

    return CallTimes(
        first_op=first,
        start=start,
        end=end,
        duration=total(ops.end_ns[rows] - ops.start_ns[rows]),
        hidden=total(hidden),
        exposed=total(exposed),
        kernels=total(np.ones(len(rows), dtype=np.int64)),
        counted=inside,
    )


def outliers(calls: Calls, family: NDArray[np.int32], times: CallTimes) -> NDArray[np.bool_]:
    """Calls that last over three times the median of the same family and payload. Shape (number of calls,)."""
    result = np.zeros(len(family), dtype=bool)
    payload = calls.table.payload_bytes
    candidates = np.flatnonzero(times.counted & (payload > 0))
    keys, group = np.unique(np.column_stack((family[candidates], payload[candidates])), axis=0, return_inverse=True)
    for number in range(len(keys)):
        own = candidates[group.ravel() == number]
        if len(own) >= OUTLIER_CALLS:
            result[own] = times.duration[own] > OUTLIER_FACTOR * np.median(times.duration[own])
    return result


def instance_rows(
    timeline: Timeline,
    calls: Calls,
    steps: Steps,
    times: CallTimes,
    outlier: NDArray[np.bool_],
    met: Rendezvous,
    issued: Issue,
) -> list[InstanceRow]:
    """The instance table of the report: the calls inside the window, in order of start."""
    ops, labels = timeline.ops, steps.labels
    sources = {info.rank: info.source for info in timeline.ranks}
    rows = np.flatnonzero(times.counted)
    rows = rows[np.argsort(times.start[rows], kind="stable")]
    result = []
    for at in rows.tolist():
        op = int(times.first_op[at])
        lane = timeline.lanes[ops.lane[op]]
        table = calls.table
        group = calls.groups[table.group[at]] if table.group[at] >= 0 else None
        launch = int(ops.launch_ns[op])
        result.append(
            InstanceRow(
                rank=int(table.rank[at]),
                device=lane.device,
                lane=lane.label,
                axis=calls.axis[calls.axis_of[at]].name,
                collective=timeline.name_of(int(table.collective[at])),
                library=timeline.names[table.library[at]],
                group=(group.description or group.name) if group else None,
                group_size=group.size if group else None,
                sequence=_known(int(table.sequence[at])),
                dtype=timeline.name_of(int(table.dtype[at])),
                payload_bytes=_known(int(table.payload_bytes[at])),
                start_ns=int(times.start[at]),
                end_ns=int(times.end[at]),
                duration_ns=int(times.duration[at]),
                hidden_ns=int(times.hidden[at]),
                exposed_ns=int(times.exposed[at]),
                launch_ns=None if launch == UNKNOWN_NS else launch,
                lead_ns=_known(int(issued.lead[at])),
                held_ns=_known(int(issued.held[at])),
                behind=None if issued.behind[at] < 0 else timeline.names[ops.name[issued.behind[at]]],
                call_site=timeline.name_of(int(table.call_site[at])),
                step=labels.get(int(steps.of_op[op])),
                kernel=timeline.names[ops.name[op]],
                wait_ns=_known(int(met.wait[at])),
                meets=_known(int(met.instance[at])),
                outlier=bool(outlier[at]),
                source_file=sources[int(table.rank[at])],
                source_row=int(ops.source_row[op]),
                perfetto_ts=str(timeline.origin_ns + int(times.start[at])),
            )
        )
    return result


def _known(value: int) -> int | None:
    return None if value < 0 else value
