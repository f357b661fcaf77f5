"""Why communication is exposed: a partition of the exposed time, each slice by the first cause that fits (DESIGN section 5).

What is looked at in each slice is the next computing operation of the device: had it been running, the slice would be hidden.
Was it submitted? Did it start only when the communication was over? Does it stand behind it in the same lane? Dependence is
judged by timing here, which the grade says. Not decided here: what would be won without a cause; that is the replay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from underlap import intervals
from underlap.analyze import latencies
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.host_time import HostTime
from underlap.analyze.latencies import Latencies
from underlap.columns import NONE, Int64
from underlap.timeline import UNKNOWN_NS, OpClass, Operations, Timeline

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
keeps that one as `inherited`. stretched, latency_bound and fabric_bound need more than one slice shows: `transfer_causes`
takes their part of dependent and too_little_compute afterwards."""

_COMMUNICATES = (OpClass.COMMUNICATION, OpClass.WAIT)
_COMPUTES = (OpClass.COMPUTE, OpClass.FUSED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A stretch of exposed communication with one cause."""

    start_ns: int
    end_ns: int
    cause: str
    inherited: str | None
    """For queued_behind, stretched, latency_bound and fabric_bound: what the cause would be without."""
    call: int
    """The call of a collective (row of `Timeline.collectives`) that ends last in the slice; -1 if unknown."""
    evidence: int
    """The operation (row of `Timeline.ops`) that the decision rests on; -1 where there is none."""
    grade: str | None
    """sync: waits for its event. order: the same lane. timing: inferred from start and end times. Null where no dependence was
    claimed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Exposed waiting of one device, by what it waits for: interval sets inside the communication."""

    entry: Int64 = dataclasses.field(default_factory=lambda: intervals.EMPTY)
    peer: Int64 = dataclasses.field(default_factory=lambda: intervals.EMPTY)
    bubble: Int64 = dataclasses.field(default_factory=lambda: intervals.EMPTY)


def noise(usual: Latencies, resolution_ns: int) -> int:
    """Up to how long two operations may seem to run side by side, in ns, though one followed the other.

    Both ends are rounded to the resolution of the trace, and nine in ten queued operations of the device follow the one
    before within `lane_most`: an overlap that is no longer tells nothing.
    """
    return max(2 * resolution_ns, usual.lane_most)


def _in_order(ops: Operations, rows: Int64) -> Int64:
    """The rows by start; those that start together as their file has them, whatever their order in the table."""
    order: Int64 = rows[np.lexsort((ops.source_row[rows], ops.end_ns[rows], ops.start_ns[rows]))]
    return order


def device_causes(
    timeline: Timeline,
    rows: Int64,
    sets: DeviceSets,
    stretches: Int64,
    waiting: Waiting | None,
    *,
    host: HostTime | None = None,
    awaited: Mapping[int, frozenset[int]] | None = None,
) -> list[Slice]:
    """The exposed time of one device inside the window, cut into slices with one cause each, in order of time.

    `rows` are the device's operations. `waiting` is None where waiting cannot be told from transfer. `awaited` are the
    operations whose events an operation waits for.
    """
    exposed = intervals.intersect(sets.exposed, stretches) if len(stretches) else intervals.EMPTY
    device = _Device(timeline, rows, host or HostTime(timeline), awaited or {})
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


_NOTHING_BESIDE = 0.01
"""A gap of so small a share of the time in the queue."""


class _Device:
    """One device's operations, in the orders that the decisions need."""

    def __init__(self, timeline: Timeline, rows: Int64, host: HostTime, awaited: Mapping[int, frozenset[int]]) -> None:
        ops = timeline.ops
        self._ops = ops
        self._collectives = timeline.collectives
        self._host = host
        self._awaited = awaited
        own = ops.take(rows)
        self._rows = rows
        self._by_end = np.argsort(own.end_ns, kind="stable")
        info = next((info for info in timeline.ranks if len(rows) and info.rank == int(ops.rank[rows[0]])), None)
        resolution = info.resolution_ns if info else 1
        self._on_cpu = info is not None and info.on_cpu
        if self._on_cpu:
            # The call of a collective is its launch.
            own = own.replace(launch_ns=np.append(timeline.collectives.issue_ns, UNKNOWN_NS)[own.collective])
        self._own = own
        self._usual = latencies.of_rank(own, resolution)
        self._launch = latencies.usual_launch(self._usual)
        self._some_launch = bool((own.launch_ns != UNKNOWN_NS).any())
        self._noise = noise(self._usual, resolution)
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

    def _queueing(self) -> dict[int, int]:
        """Per communication row that stood behind another one in its lane: for how long, since it could have started."""
        result: dict[int, int] = {}
        ops, own = self._ops, self._own
        # Directly behind it: with a kernel between them in the lane, it stood behind that.
        previous = latencies.previous_in_lane(own)
        after = np.flatnonzero(np.isin(own.op_class, _COMMUNICATES) & (previous >= 0))
        after = after[np.isin(own.op_class[previous[after]], _COMMUNICATES)]
        for lane in np.unique(own.lane[after]).tolist():
            rows = after[own.lane[after] == lane]
            usual = latencies.queue_gap(own, previous[rows], rows)
            usual = (self._usual.lane or self._launch) if usual is None else usual
            for before, row in zip(self._rows[previous[rows]].tolist(), self._rows[rows].tolist(), strict=True):
                ready = self._ready_to_start(row, int(ops.start_ns[before]))
                if ready is None:
                    continue
                gap = int(ops.start_ns[row] - ops.end_ns[before])
                stood = int(ops.start_ns[row]) - ready
                # A gap that is nothing beside what it stood for is no other reason, however late a thread woke up.
                if 0 <= gap <= max(2 * usual, _NOTHING_BESIDE * stood) and ops.end_ns[before] > ready:
                    result[row] = stood
        return result

    def _ready_to_start(self, row: int, since: int) -> int | None:
        """When a communication could have started, `since` at least; None where that is unknown."""
        if self._on_cpu:
            # The call of a collective is its launch, and what the thread had not computed by then it cannot need.
            called = int(self._collectives.issue_ns[self._ops.collective[row]])
            return None if called == UNKNOWN_NS else max(called, since)
        submitted = self._submitted(row)
        return None if submitted is None else self._inputs_ready(row, max(submitted, since))

    def _inputs_ready(self, row: int, since: int) -> int:
        """When what a communication may have waited for was over, `since` at least: what another lane ran until then and was
        launched before it may have made its input. What was launched later cannot have."""
        ops, own = self._ops, self._own
        low, high = np.searchsorted(own.end_ns[self._by_end], [since, int(ops.start_ns[row])], side="right")
        ended = self._by_end[low:high]
        # Of two that were launched before the recording began, nobody knows which was first.
        before = own.launch_ns[ended] <= ops.launch_ns[row]
        needed = ended[(own.lane[ended] != ops.lane[row]) & before]
        return int(own.end_ns[needed[-1]]) if len(needed) else since

    def _overlapping(self) -> set[int]:
        """Communication rows beside which compute ran for longer than the noise of the trace."""
        compute = intervals.union(self._ops.start_ns[self._compute], self._ops.end_ns[self._compute])
        hidden = intervals.covered(self._talk_start, self._ops.end_ns[self._talk], compute)
        return set(self._talk[hidden > self._noise].tolist())

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
            # It has run out; where none was ever recorded on this device, the recording may lack it.
            cause = "too_little_compute" if len(self._compute) else "unknown"
            return self._behind_queue(start, end, running, cause, NONE, None)
        following = int(self._compute[at])
        ready = self._submitted(following)
        if ready is None:
            return [self.slice(start, end, "unknown", evidence=following)]
        border = min(max(ready, start), end)
        slices = self._host_late(start, border, following) if border > start else []
        over, needed = self._over_before(border, end, following)
        if over > border:
            slices += self._held_by(border, over, needed, following)
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
            return int(np.iinfo(np.int64).min) if self._some_launch else None
        # An operation that starts as soon as is usual after its launch was not held by anything else.
        return launch + self._launch

    def _host_late(self, start: int, end: int, following: int) -> list[Slice]:
        """The host had not submitted `following` yet: blocked, or busy elsewhere."""
        if self._on_cpu:
            return self._host_late_on_cpu(start, end, following)
        blocked = intervals.clip(self._host.blocked(int(self._ops.thread[following])), start, end)
        slices = [self.slice(low, high, "throttled", evidence=following) for low, high in blocked.tolist()]
        free = intervals.complement(blocked, start, end)
        return slices + [self.slice(low, high, "late_launch", evidence=following) for low, high in free.tolist()]

    def _host_late_on_cpu(self, start: int, end: int, following: int) -> list[Slice]:
        """On a CPU rank the thread either goes on once the communication is over (dependent), or was busy elsewhere."""
        over, needed = self._over_before(start, end, following)
        slices = []
        if over > start:
            slices += self._over_on_cpu(start, over, needed, following)
        if end > over:
            slices.append(self.slice(over, end, "late_launch", evidence=following))
        return slices

    def _over_on_cpu(self, start: int, end: int, needed: list[int], following: int) -> list[Slice]:
        """The thread went on when the communication was over. Where the call was not asynchronous it had no choice."""
        last = max(needed, key=lambda row: self._ops.end_ns[row])
        if self._collectives.asynchronous[self._ops.collective[last]] == 0:
            return self._behind_queue(start, end, needed, "serialized_or_dependent", following, "order")
        return self._ran_out_or_needed(start, end, needed, following)

    def _held_by(self, start: int, end: int, running: list[int], following: int) -> list[Slice]:
        """The next compute was there and did not start before the communication was over."""
        ops = self._ops
        if int(ops.lane[following]) in {int(ops.lane[row]) for row in running}:
            return self._behind_queue(start, end, running, "serialized_or_dependent", following, "order")
        return self._ran_out_or_needed(start, end, running, following)

    def _ran_out_or_needed(self, start: int, end: int, running: list[int], following: int) -> list[Slice]:
        """As long as calls run that compute ran beside, it ran out; what only calls fill that met none is needed at once."""
        hidden = [row for row in running if row in self._hidden_calls]
        bare = [row for row in running if row not in self._hidden_calls]
        last = max(running, key=lambda row: self._ops.end_ns[row])
        queued = min(self._queued.get(last, 0), end - start)
        if queued > 0:
            # What ends last, and was waited for, had stood in a queue while the others ran: so much earlier it could have ended.
            self._queued[last] -= queued
            inherited = "too_little_compute" if last in self._hidden_calls else "dependent"
            rest = self._ran_out_or_needed(start, end - queued, running, following) if end - queued > start else []
            return [
                *rest,
                self.slice(end - queued, end, "queued_behind", evidence=last, grade="order", inherited=inherited),
            ]
        until = min(max((int(self._ops.end_ns[row]) for row in hidden), default=start), end)
        slices = []
        if until > start:
            slices += self._behind_queue(start, until, hidden, "too_little_compute", following, "timing")
        if end > until:
            awaited = self._awaited.get(following, frozenset()).intersection(bare)
            slices += self._behind_queue(until, end, bare, "dependent", following, "sync" if awaited else "timing")
        return slices

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
