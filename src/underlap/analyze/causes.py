"""Why communication is exposed: a partition of the exposed time, each slice by the first cause that fits (DESIGN section 5).

What is looked at in each slice is the next computing operation of the device: had it been running, the slice would be hidden.
Was it submitted? Did it start only when the communication was over? Does it stand behind it in the same lane? Dependence is
judged by timing here, which the grade says. Not decided here: what would be won without a cause; that is the replay.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze.accounting import DeviceSets
from underlap.columns import NONE, Int64
from underlap.timeline import UNKNOWN_NS, HostKind, OpClass, Operations, Timeline

CAUSES = (
    "window_entry",
    "late_peer",
    "bubble",
    "queued_behind",
    "late_launch",
    "throttled",
    "serialized",
    "serialized_or_dependent",
    "dependent",
    "stretched",
    "latency_bound",
    "fabric_bound",
    "too_little_compute",
    "unknown",
)
"""In the order of DESIGN section 5. queued_behind is looked for last: it takes the tail of what another cause would get, and
keeps that one as `inherited`. stretched, latency_bound and fabric_bound need more than one trace tells, and are not given yet."""

_COMMUNICATES = (OpClass.COMMUNICATION, OpClass.WAIT)
_COMPUTES = (OpClass.COMPUTE, OpClass.FUSED)
# Runtime calls in which the host waits for the device or for memory, besides the synchronizations.
_BLOCKING = re.compile(r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostRegister|MemGetInfo)(?!Async)|cuMemAlloc|cuMemFree")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A stretch of exposed communication with one cause."""

    start_ns: int
    end_ns: int
    cause: str
    inherited: str | None
    """For queued_behind: what would be the cause without the queue."""
    call: int
    """The call of a collective (row of `Timeline.collectives`) that ends last in the slice; -1 if unknown."""
    evidence: int
    """The operation (row of `Timeline.ops`) that the decision rests on; -1 where there is none."""
    grade: str | None
    """order: the same lane. timing: inferred from start and end times. Null where no dependence was claimed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Exposed waiting of one device, by what it waits for: interval sets inside the communication."""

    entry: Int64 = dataclasses.field(default_factory=lambda: intervals.EMPTY)
    peer: Int64 = dataclasses.field(default_factory=lambda: intervals.EMPTY)
    bubble: Int64 = dataclasses.field(default_factory=lambda: intervals.EMPTY)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """What is usual on a device, read off its own trace; None where the trace has too few samples."""

    launch_ns: int | None
    """Median from launch call to start, of kernels launched to an idle lane, those of graphs apart."""
    gap_ns: int | None
    """Median from end to start between neighbors in a lane, where the later one had long been launched."""


_FEWEST = 8


def latencies(ops: Operations) -> Latencies:
    """See `Latencies`. `ops` is one device."""
    launch, gaps = [], []
    # The kernels of a graph share one launch call: when they start is the graph's order, not latency.
    _, call, kernels_of_call = np.unique(ops.launch_ns, return_inverse=True, return_counts=True)
    sharing = kernels_of_call[call]
    for lane in np.unique(ops.lane):
        rows = np.flatnonzero((ops.lane == lane) & (ops.launch_ns != UNKNOWN_NS))
        rows = _in_order(ops, rows)
        before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ops.end_ns[rows])[:-1]))
        kernels = ops.op_class[rows] != OpClass.COPY
        alone = kernels & (sharing[rows] == 1)
        launch.append((ops.start_ns[rows] - ops.launch_ns[rows])[alone & (before < ops.launch_ns[rows])])
        # Launched at least 50 us before the neighbor ended: what is left is the device's own gap.
        queued = kernels & (ops.launch_ns[rows] + 50_000 < before)
        gaps.append((ops.start_ns[rows] - before)[queued & (ops.start_ns[rows] >= before)])
    return Latencies(launch_ns=_median(launch), gap_ns=_median(gaps))


def blocking_rows(timeline: Timeline) -> NDArray[np.bool_]:
    """Per host row whether the host waits in it: for the device, or for memory."""
    named = [at for at, name in enumerate(timeline.names) if _BLOCKING.match(name)]
    found: NDArray[np.bool_] = (timeline.host.kind == HostKind.SYNC) | np.isin(timeline.host.name, named)
    return found


def _in_order(ops: Operations, rows: Int64) -> Int64:
    """The rows by start; those that start together as their file has them, whatever their order in the table."""
    order: Int64 = rows[np.lexsort((ops.source_row[rows], ops.end_ns[rows], ops.start_ns[rows]))]
    return order


def _median(parts: Sequence[Int64]) -> int | None:
    values = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return int(np.median(values)) if len(values) >= _FEWEST else None


def device_causes(timeline: Timeline, rows: Int64, sets: DeviceSets, stretches: Int64, waiting: Waiting | None) -> list[Slice]:
    """The exposed time of one device inside the window, cut into slices with one cause each, in order of time.

    `rows` are the device's operations. `waiting` is None where waiting cannot be told from transfer.
    """
    exposed = intervals.intersect(sets.exposed, stretches) if len(stretches) else intervals.EMPTY
    device = _Device(timeline, rows)
    slices: list[Slice] = []
    for cause, part in _waiting_parts(waiting):
        for start, end in intervals.intersect(exposed, part).tolist():
            slices.append(device.slice(start, end, cause))
        exposed = intervals.subtract(exposed, part)
    for start, end in exposed.tolist():
        slices.extend(device.explain(start, end))
    return sorted(slices, key=lambda piece: piece.start_ns)


def _waiting_parts(waiting: Waiting | None) -> list[tuple[str, Int64]]:
    if waiting is None:
        return []
    return [("window_entry", waiting.entry), ("late_peer", waiting.peer), ("bubble", waiting.bubble)]


class _Device:
    """One device's operations, in the orders that the decisions need."""

    def __init__(self, timeline: Timeline, rows: Int64) -> None:
        self._on_cpu = any(info.on_cpu for info in timeline.ranks if len(rows) and info.rank == int(timeline.ops.rank[rows[0]]))
        # On a CPU rank the call of a collective is its launch.
        called = np.append(timeline.collectives.issue_ns, UNKNOWN_NS)[timeline.ops.collective]
        ops = timeline.ops.replace(launch_ns=called) if self._on_cpu else timeline.ops
        self._timeline = timeline
        self._ops = ops
        self._usual = latencies(ops.take(rows))
        compute = rows[np.isin(ops.op_class[rows], _COMPUTES)]
        self._compute = _in_order(ops, compute)
        self._compute_start = ops.start_ns[self._compute]
        talk = rows[np.isin(ops.op_class[rows], _COMMUNICATES)]
        self._talk = _in_order(ops, talk)
        self._talk_start = ops.start_ns[self._talk]
        # Up to each row of `_talk`: the latest end so far, to stop looking back early.
        self._talk_reach = np.maximum.accumulate(ops.end_ns[self._talk]) if len(talk) else talk
        self._queued = self._queueing()
        self._hidden_calls = self._overlapping()
        self._blocked: dict[int, Int64] = {}

    def _queueing(self) -> dict[int, int]:
        """Per communication row that stood behind another one in its lane: for how long, since it could have started."""
        result: dict[int, int] = {}
        ops = self._ops
        usual = self._usual.launch_ns or 0
        last: dict[int, int] = {}
        for row in self._talk.tolist():
            lane = int(ops.lane[row])
            before = last.get(lane)
            last[lane] = row
            launch = int(ops.launch_ns[row])
            if before is None or launch == UNKNOWN_NS:
                continue
            ready = max(launch + usual, int(ops.start_ns[before]))
            gap = int(ops.start_ns[row] - ops.end_ns[before])
            if 0 <= gap <= 2 * (self._usual.gap_ns or usual) and ops.end_ns[before] > ready:
                result[row] = int(ops.start_ns[row]) - ready
        return result

    def _overlapping(self) -> set[int]:
        """Communication rows beside which some compute ran."""
        compute = intervals.union(self._ops.start_ns[self._compute], self._ops.end_ns[self._compute])
        hidden = intervals.covered(self._talk_start, self._ops.end_ns[self._talk], compute)
        return set(self._talk[hidden > 0].tolist())

    def _running(self, start: int, end: int) -> list[int]:
        """Communication rows that run somewhere in [start, end)."""
        high = int(np.searchsorted(self._talk_start, end, side="left"))
        low = int(np.searchsorted(self._talk_reach, start, side="right"))
        rows = self._talk[low:high]
        found: list[int] = rows[self._ops.end_ns[rows] > start].tolist()
        return found

    def slice(
        self, start: int, end: int, cause: str, *, evidence: int = NONE, grade: str | None = None, inherited: str | None = None
    ) -> Slice:
        """A slice of that cause, of the call that ends last in it."""
        running = self._running(start, end)
        last = max(running, key=lambda row: self._ops.end_ns[row], default=NONE)
        call = int(self._ops.collective[last]) if last >= 0 else NONE
        return Slice(start_ns=start, end_ns=end, cause=cause, inherited=inherited, call=call, evidence=evidence, grade=grade)

    def explain(self, start: int, end: int) -> list[Slice]:
        """The causes of exposed transfer in [start, end), in which no compute runs."""
        running = self._running(start, end)
        if not running:
            return [self.slice(start, end, "unknown")]
        at = int(np.searchsorted(self._compute_start, start, side="left"))
        if at == len(self._compute):
            return self._behind_queue(start, end, running, "too_little_compute", NONE, None)
        following = int(self._compute[at])
        ready = self._submitted(following)
        if ready is None:
            return [self.slice(start, end, "unknown", evidence=following)]
        border = min(max(ready, start), end)
        slices = self._host_late(start, border, following) if border > start else []
        over, needed = self._over_before(border, end, following)
        if over > border:
            cause, grade = self._submitted_but_idle(following, needed)
            slices += self._behind_queue(border, over, needed, cause, following, grade)
        if end > over:
            # It started while this communication still ran, so it did not need its result; its own lane held it.
            slices += self._behind_queue(over, end, self._running(over, end), "serialized", following, "order")
        return slices

    def _over_before(self, start: int, end: int, following: int) -> tuple[int, list[int]]:
        """Until when communication ran in [start, end) that was over before `following` began, which may have needed it."""
        ends = self._ops.end_ns
        rows = [row for row in self._running(start, end) if ends[row] <= self._ops.start_ns[following]] if end > start else []
        return max((min(int(ends[row]), end) for row in rows), default=start), rows

    def _submitted(self, row: int) -> int | None:
        """When the device could have started the operation, had nothing else held it; None where that is unknown."""
        if self._on_cpu:
            # Operators are not launched: the thread runs them when it gets there.
            return int(self._ops.start_ns[row])
        launch = int(self._ops.launch_ns[row])
        if launch == UNKNOWN_NS:
            # Without its launch, beside others that have theirs, it was launched before the recording began.
            return int(np.iinfo(np.int64).min) if self._usual.launch_ns is not None or self._some_launch() else None
        # An operation that starts as soon as is usual after its launch was not held by anything else.
        return launch + (self._usual.launch_ns or 0)

    def _some_launch(self) -> bool:
        return bool((self._ops.launch_ns != UNKNOWN_NS).any())

    def _host_late(self, start: int, end: int, following: int) -> list[Slice]:
        """The host had not submitted `following` yet: blocked, or busy elsewhere."""
        if self._on_cpu:
            return self._host_late_on_cpu(start, end, following)
        blocked = intervals.clip(self._blocking(int(self._ops.thread[following])), start, end)
        slices = [self.slice(low, high, "throttled", evidence=following) for low, high in blocked.tolist()]
        free = intervals.complement(blocked, start, end)
        return slices + [self.slice(low, high, "late_launch", evidence=following) for low, high in free.tolist()]

    def _host_late_on_cpu(self, start: int, end: int, following: int) -> list[Slice]:
        """On a CPU rank the thread either goes on once the communication is over (dependent), or was busy elsewhere."""
        over, needed = self._over_before(start, end, following)
        slices = []
        if over > start:
            cause, grade = self._over_on_cpu(needed)
            slices += self._behind_queue(start, over, needed, cause, following, grade)
        if end > over:
            slices.append(self.slice(over, end, "late_launch", evidence=following))
        return slices

    def _over_on_cpu(self, needed: list[int]) -> tuple[str, str]:
        """The thread went on when the communication was over. Where the call was not asynchronous it had no choice."""
        last = max(needed, key=lambda row: self._ops.end_ns[row])
        if self._timeline.collectives.asynchronous[self._ops.collective[last]] == 0:
            return "serialized_or_dependent", "order"
        return ("too_little_compute" if self._hidden_calls.intersection(needed) else "dependent"), "timing"

    def _blocking(self, thread: int) -> Int64:
        if thread not in self._blocked:
            host = self._timeline.host
            rows = (host.thread == thread) & blocking_rows(self._timeline)
            self._blocked[thread] = intervals.union(host.start_ns[rows], host.end_ns[rows])
        return self._blocked[thread]

    def _submitted_but_idle(self, following: int, running: list[int]) -> tuple[str, str | None]:
        """The next compute was there and did not start before the communication was over."""
        ops = self._ops
        if int(ops.lane[following]) in {int(ops.lane[row]) for row in running}:
            return "serialized_or_dependent", "order"
        if self._hidden_calls.intersection(running):
            return "too_little_compute", "timing"
        return "dependent", "timing"

    def _behind_queue(
        self, start: int, end: int, running: list[int], cause: str, evidence: int, grade: str | None
    ) -> list[Slice]:
        """The slice, of which the last part is due to the queue that its last communication stood in."""
        last = max(running, key=lambda row: self._ops.end_ns[row])
        queued = min(self._queued.get(last, 0), end - start)
        slices = []
        if end - queued > start:
            slices.append(self.slice(start, end - queued, cause, evidence=evidence, grade=grade))
        if queued > 0:
            self._queued[last] -= queued
            slices.append(self.slice(end - queued, end, "queued_behind", evidence=last, grade="order", inherited=cause))
        return slices
