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

LONG_AGO = int(np.iinfo(np.int64).min) // 2

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
        self._uncertainty = np.maximum(met.uncertainty, 0)
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
        gaps = intervals.subtract(stretches, intervals.merge(sets.covering, sets.communication, sets.copy))
        by_start = rows[np.argsort(ops.start_ns[rows], kind="stable")]
        by_end = rows[np.argsort(ops.end_ns[rows], kind="stable")]
        after = np.searchsorted(ops.start_ns[by_start], gaps[:, 1], side="left")
        before = np.searchsorted(ops.end_ns[by_end], gaps[:, 0], side="right") - 1
        last = np.where(before >= 0, by_end[np.maximum(before, 0)], NONE)
        ended = after < len(by_start)
        total: Counter[str] = Counter()
        for start, end, row in zip(*gaps[~ended].T.tolist(), last[~ended].tolist(), strict=True):
            total["end_of_step" if self._in_step(row) else "unknown"] += end - start
        self._add(total, rows, by_start[after[ended]], last[ended], gaps[ended])
        order = sorted((cause for cause in total if total[cause]), key=lambda cause: (-total[cause], IDLE_CAUSES.index(cause)))
        return {cause: total[cause] for cause in order}

    def _in_step(self, row: int) -> bool:
        """Whether the operation belongs to a step whose annotation the trace has."""
        return row >= 0 and (int(self._timeline.ops.rank[row]), int(self._steps.of_op[row])) in self._step_ends

    def _add(self, total: Counter[str], rows: Int64, following: Int64, last: Int64, gaps: Int64) -> None:
        """The causes of gaps, each of which `following` ends and `last` began."""
        ops = self._timeline.ops
        start, end = gaps[:, 0], gaps[:, 1]
        call = ops.collective[following]
        arrival = np.append(self._arrival, LONG_AGO)[call]
        scheduled = (call >= 0) & (arrival - start > np.append(self._uncertainty, 0)[call])
        here = np.where(scheduled, np.minimum(arrival, end), start)
        total["bubble"] += int((here - start).sum())
        ready = self._submitted(rows, following)
        known = ready != UNKNOWN_NS
        border = np.where(known, np.clip(ready, here, end), here)
        total["unknown"] += int((end - border).sum())
        closing = np.clip(self._closing(last, following), here, border)
        copies = self._host.copies_to_device(following)
        thread = ops.thread[following]
        for number in np.unique(thread).tolist():
            own = thread == number
            fetching = self._host.fetching(number)
            blocked = intervals.subtract(self._host.blocked(number), fetching)
            held = intervals.merge(fetching, blocked)
            of_input = int(intervals.covered(here[own], border[own], fetching).sum())
            # A call that copies from pageable memory stages it first: the copy starts when the host is through with that.
            own_copies = own & copies
            staging = int(intervals.covered(border[own_copies], end[own_copies], fetching).sum())
            of_block = int(intervals.covered(here[own], border[own], blocked).sum())
            of_close = int((closing - here)[own].sum() - intervals.covered(here[own], closing[own], held).sum())
            total["input"] += of_input + staging
            total["unknown"] -= staging
            total["host_blocked"] += of_block
            total["end_of_step"] += of_close
            total["host_busy"] += int((border - here)[own].sum()) - of_input - of_block - of_close

    def _closing(self, last: Int64, following: Int64) -> Int64:
        """Until when the host was still in the step of `last`, after which only `following`, of another step, was submitted."""
        ops, of_op = self._timeline.ops, self._steps.of_op
        result = np.full(len(last), LONG_AGO)
        for at in np.flatnonzero((last >= 0) & (of_op[last] != of_op[following])).tolist():
            key = (int(ops.rank[last[at]]), int(of_op[last[at]]))
            result[at] = self._step_ends.get(key, LONG_AGO)
        return result

    def _submitted(self, rows: Int64, following: Int64) -> Int64:
        """When each would have started, had it only waited for its launch; `UNKNOWN_NS` where the trace does not say."""
        ops = self._timeline.ops
        own = ops.take(rows)
        info = next((info for info in self._timeline.ranks if len(rows) and info.rank == int(own.rank[0])), None)
        if info is not None and info.on_cpu:
            # Operators are not launched: the thread runs them when it gets there.
            return ops.start_ns[following]
        usual = latencies.of_rank(own, info.resolution_ns if info else 1)
        kernel = latencies.usual_launch(usual)
        copy = usual.launch_copy if usual.launches >= latencies.FEWEST_LAUNCHES else 0
        delay = np.where(ops.op_class[following] == OpClass.COPY, copy, kernel)
        # Without its launch, beside others that have theirs, it was launched before the recording began.
        unlaunched = LONG_AGO if (own.launch_ns != UNKNOWN_NS).any() else UNKNOWN_NS
        launch = ops.launch_ns[following]
        return np.where(launch == UNKNOWN_NS, unlaunched, launch + delay)


def _peer_arrivals(calls: Calls, times: CallTimes, met: Rendezvous, pipeline: NDArray[np.bool_]) -> Int64:
    """Per call of a pipeline when its peer arrived, on its own rank's clock; else long ago."""
    result = np.full(len(calls.table), LONG_AGO)
    rows = np.flatnonzero(pipeline & (met.instance >= 0) & (met.wait >= 0))
    if len(rows) == 0:
        return result
    start = met.clocks.correct(calls.table.rank[rows], times.start[rows])
    order = np.lexsort((start, met.instance[rows]))
    rows, start, instance = rows[order], start[order], met.instance[rows][order]
    pair = np.flatnonzero((instance[1:] == instance[:-1]) & (np.bincount(instance)[instance[1:]] == 2))
    for one, other in ((pair, pair + 1), (pair + 1, pair)):
        result[rows[one]] = times.start[rows[one]] + start[other] - start[one]
    return result
