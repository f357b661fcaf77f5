"""Why a device is idle: a partition of the time in which neither compute nor communication nor a copy runs on it.

What is looked at in each gap is the operation that ends it: the thread that submitted it, and what that was doing instead.

    device   [####]                                  [####]
    host                L  submitted here: until then the host is the reason, after that the device (unknown)

A gap before a call of a pipeline is the schedule's (bubble) until its peer has arrived: with the call there, the device
would have waited in it. Not looked at: the gaps inside a kernel, and why a submitted operation does not start.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze import latencies
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.analyze.host_time import HostTime
from underlap.analyze.rendezvous import Rendezvous
from underlap.analyze.steps import Steps
from underlap.columns import NONE, Int64
from underlap.timeline import UNKNOWN_NS, HostKind, OpClass, Timeline

IDLE_CAUSES = ("host_busy", "host_blocked", "bubble", "input", "end_of_step", "unknown")
"""In the order of DESIGN section 5. Looked for from the special to the general: bubble, input, host_blocked, end_of_step,
host_busy."""


class Idle:
    """Looks for the causes of idle time, device by device."""

    def __init__(
        self,
        timeline: Timeline,
        calls: Calls,
        times: CallTimes,
        steps: Steps,
        met: Rendezvous,
        pipeline: NDArray[np.bool_],
        host: HostTime,
    ) -> None:
        self._timeline = timeline
        self._steps = steps
        self._host = host
        self._arrival = _peer_arrivals(calls, times, met, pipeline)
        self._step_ends = self._annotation_ends()

    def _annotation_ends(self) -> dict[tuple[int, int], int]:
        """(rank, step) -> when the annotation of the step ends on the host; without annotations empty."""
        numbers = {step.label: step.number for step in self._steps.steps}
        host, names = self._timeline.host, self._timeline.names
        labels = [at for at, name in enumerate(names) if name in numbers]
        rows = np.flatnonzero((host.kind == HostKind.ANNOTATION) & np.isin(host.name, labels))
        found: dict[tuple[int, int], int] = {}
        for rank, name, end in zip(host.rank[rows].tolist(), host.name[rows].tolist(), host.end_ns[rows].tolist(), strict=True):
            key = (rank, numbers[names[name]])
            found[key] = max(end, found.get(key, end))
        return found

    def causes(self, rows: Int64, sets: DeviceSets, stretches: Int64) -> dict[str, int]:
        """Nanoseconds of each cause that occurs on the device whose operations are `rows`, most first. Together they are its
        idle time inside the stretches."""
        ops = self._timeline.ops
        busy = intervals.merge(sets.covering, sets.communication, sets.copy)
        gaps = intervals.subtract(stretches, busy)
        device = _Launches(self._timeline, rows)
        by_start = rows[np.argsort(ops.start_ns[rows], kind="stable")]
        by_end = rows[np.argsort(ops.end_ns[rows], kind="stable")]
        total: Counter[str] = Counter()
        following = np.searchsorted(ops.start_ns[by_start], gaps[:, 1], side="left")
        previous = np.searchsorted(ops.end_ns[by_end], gaps[:, 0], side="right") - 1
        for (start, end), after, before in zip(gaps.tolist(), following.tolist(), previous.tolist(), strict=True):
            last = int(by_end[before]) if before >= 0 else NONE
            if after == len(by_start):
                total["end_of_step" if self._in_step(last) else "unknown"] += end - start
                continue
            self._add(total, device, int(by_start[after]), last, start, end)
        order = sorted((cause for cause in total if total[cause]), key=lambda cause: (-total[cause], IDLE_CAUSES.index(cause)))
        return {cause: total[cause] for cause in order}

    def _in_step(self, row: int) -> bool:
        """Whether the operation belongs to a step whose annotation the trace has."""
        return row >= 0 and (int(self._timeline.ops.rank[row]), int(self._steps.of_op[row])) in self._step_ends

    def _add(self, total: Counter[str], device: _Launches, following: int, last: int, start: int, end: int) -> None:
        """The causes of one gap, which `following` ends and `last` began."""
        ops = self._timeline.ops
        call = int(ops.collective[following])
        here = min(max(int(self._arrival[call]), start), end) if call >= 0 else start
        total["bubble"] += here - start
        ready = device.submitted(following)
        if ready is None:
            total["unknown"] += end - here
            return
        border = min(max(ready, here), end)
        total["unknown"] += end - border
        thread = int(ops.thread[following])
        fetching = intervals.clip(self._host.fetching(thread), here, border)
        blocked = intervals.subtract(intervals.clip(self._host.blocked(thread), here, border), fetching)
        total["input"] += intervals.length(fetching)
        total["host_blocked"] += intervals.length(blocked)
        free = intervals.subtract(intervals.complement(fetching, here, border), blocked)
        closing = intervals.clip(free, here, max(self._closing(last, following), here))
        total["end_of_step"] += intervals.length(closing)
        total["host_busy"] += intervals.length(free) - intervals.length(closing)

    def _closing(self, last: int, following: int) -> int:
        """Until when the host was still in the step of `last`, after which only `following`, of another step, was submitted."""
        of_op = self._steps.of_op
        if last < 0 or of_op[last] == of_op[following]:
            return int(np.iinfo(np.int64).min)
        key = (int(self._timeline.ops.rank[last]), int(of_op[last]))
        return self._step_ends.get(key, int(np.iinfo(np.int64).min))


class _Launches:
    """When the operations of one device had been submitted."""

    def __init__(self, timeline: Timeline, rows: Int64) -> None:
        self._ops = timeline.ops
        own = timeline.ops.take(rows)
        info = next((info for info in timeline.ranks if len(rows) and info.rank == int(own.rank[0])), None)
        usual = latencies.of_rank(own, info.resolution_ns if info else 1)
        enough = usual.launches >= latencies.FEWEST_LAUNCHES
        self._usual = (usual.launch, usual.launch_copy) if enough else (0, 0)
        self._on_cpu = info is not None and info.on_cpu
        self._some = bool((own.launch_ns != UNKNOWN_NS).any())

    def submitted(self, row: int) -> int | None:
        """When it would have started, had it only waited for its launch; None where the trace does not say."""
        ops = self._ops
        if self._on_cpu:
            # Operators are not launched: the thread runs them when it gets there.
            return int(ops.start_ns[row])
        launch = int(ops.launch_ns[row])
        if launch == UNKNOWN_NS:
            return int(np.iinfo(np.int64).min) if self._some else None
        return launch + self._usual[int(ops.op_class[row] == OpClass.COPY)]


def _peer_arrivals(calls: Calls, times: CallTimes, met: Rendezvous, pipeline: NDArray[np.bool_]) -> Int64:
    """Per call of a pipeline when its peer arrived, on its own rank's clock, less what the clocks are uncertain by; else long
    ago."""
    result = np.full(len(calls.table), np.iinfo(np.int64).min)
    rows = np.flatnonzero(pipeline & (met.instance >= 0) & (met.wait >= 0))
    if len(rows) == 0:
        return result
    start = met.clocks.correct(calls.table.rank[rows], times.start[rows])
    order = np.lexsort((start, met.instance[rows]))
    rows, start, instance = rows[order], start[order], met.instance[rows][order]
    pair = np.flatnonzero((instance[1:] == instance[:-1]) & (np.bincount(instance)[instance[1:]] == 2))
    for one, other in ((pair, pair + 1), (pair + 1, pair)):
        apart = start[other] - start[one]
        result[rows[one]] = times.start[rows[one]] + apart - np.maximum(met.uncertainty[rows[one]], 0)
    return result
