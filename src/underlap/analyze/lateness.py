"""Which rank keeps the others waiting, how often, and why it came late, told from its own lanes.

The late rank is compared with the one that came first, since both last met, or since the window began:

    first rank:  end of last meeting |##compute##|......launch|[wwwwwwwwww
    late rank:   end of last meeting |####compute####|.........launch|[...      more compute, and launched late

Each rank's time until its arrival is cut into parts that add up; the differences are the causes, and add up to the lateness.
Late entry into the recorded window is kept apart: the reason lies before it. One step never makes a straggler.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap import intervals
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.analyze.matching import Need
from underlap.analyze.rendezvous import Rendezvous, entered, entry_lateness
from underlap.columns import NONE, Int32, Int64, Table
from underlap.timeline import UNKNOWN_NS, Timeline

CAUSES = (
    "window_entry",
    "more_compute",
    "queued_behind_compute",
    "behind_collective",
    "copying",
    "launched_late",
    "blocked",
    "released_later",
    "unexplained",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Late(Table):
    """One row per instance in which a rank kept others waiting, by more than the clocks are uncertain by.

    The causes are nanoseconds that the late rank spent more than the first one; they add up to `late_ns`, and one below 0
    is what the late rank did quicker.
    """

    instance: Int32
    """Row of `Rendezvous.instances`."""
    rank: Int32
    """The late one."""
    than: Int32
    """The one that came first."""
    late_ns: Int64
    caused_ns: Int64
    """Waiting of all members for it."""
    since: Int32
    """The instance that both last had in common; -1 for the start of the window."""
    window_entry: Int64
    more_compute: Int64
    """Computing on the device before the call was launched."""
    queued_behind_compute: Int64
    """Computing on the device after it: the call was queued behind it, or waited for it."""
    behind_collective: Int64
    copying: Int64
    launched_late: Int64
    """The device stood idle, and the host had not launched the call: its host is late."""
    blocked: Int64
    """The device stood idle though the call was launched: launch overhead, or an event it waited for."""
    released_later: Int64
    """What both last had in common ended later on it."""
    unexplained: Int64
    """The device stood idle, and the trace does not say when the call was launched."""

    def causes(self) -> Int64:
        """The causes as one array of shape (rows, len(CAUSES))."""
        return np.column_stack([getattr(self, name) for name in CAUSES])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """The calls of two ranks in the instances that they have in common, in order of end."""

    first: Int64
    second: Int64
    ended: Int64
    """On the common clock, by both."""


class _Meetings:
    """Finds where two ranks last met before a call."""

    def __init__(self, calls: Calls, times: CallTimes, met: Rendezvous) -> None:
        self.met, self.table = met, calls.table
        self.start = met.clocks.correct(self.table.rank, times.start)
        self.end = met.clocks.correct(self.table.rank, times.end)
        matched = np.flatnonzero((met.instance >= 0) & (times.first_op >= 0))
        self.rows = {int(rank): matched[self.table.rank[matched] == rank] for rank in np.unique(self.table.rank[matched])}
        self._common: dict[tuple[int, int], _Common] = {}

    def last(self, first: int, late: int) -> tuple[int, int] | None:
        """The latest calls of both ranks in one instance that each had left when it arrived at these; None if there are none."""
        pair = (int(self.table.rank[first]), int(self.table.rank[late]))
        if pair not in self._common:
            one, other = self.rows[pair[0]], self.rows[pair[1]]
            _, at, opposite = np.intersect1d(self.met.instance[one], self.met.instance[other], return_indices=True)
            ended = np.maximum(self.end[one[at]], self.end[other[opposite]])
            order = np.argsort(ended, kind="stable")
            self._common[pair] = _Common(first=one[at][order], second=other[opposite][order], ended=ended[order])
        common = self._common[pair]
        before = int(np.searchsorted(common.ended, self.start[first], side="right")) - 1
        # The late one may have left it when the first, which left sooner, had arrived at the next.
        while before + 1 < len(common.ended) and self._over(common, before + 1, first, late):
            before += 1
        return None if before < 0 else (int(common.first[before]), int(common.second[before]))

    def _over(self, common: _Common, at: int, first: int, late: int) -> bool:
        """Whether each rank had left this meeting when it arrived at its own call."""
        left = self.end[common.first[at]] <= self.start[first] and self.end[common.second[at]] <= self.start[late]
        return bool(left)


def _cut(
    timeline: Timeline,
    calls: Calls,
    times: CallTimes,
    sets: dict[tuple[int, int], DeviceSets],
    rows: Int64,
    since: Int64,
) -> dict[str, Int64]:
    """What the ranks of some calls did from `since` (own clock) to the call, in parts that add up. Each of shape (len(rows),)."""
    ops = timeline.ops
    op = times.first_op[rows]
    arrival = times.start[rows]
    launch = np.where(ops.launch_ns[op] != UNKNOWN_NS, ops.launch_ns[op], calls.table.issue_ns[rows])
    known = launch != UNKNOWN_NS
    border = np.where(known, np.clip(launch, np.minimum(since, arrival), arrival), arrival)
    begin = np.minimum(since, border)
    parts = {name: np.zeros(len(rows), dtype=np.int64) for name in CAUSES}
    busy = [np.zeros(len(rows), dtype=np.int64) for _ in range(2)]
    for (rank, device), own in sets.items():
        here = np.flatnonzero((ops.rank[op] == rank) & (ops.device[op] == device))
        stretches = ((begin[here], border[here]), (border[here], arrival[here]))
        for half, compute in enumerate(("more_compute", "queued_behind_compute")):
            for name, of in ((compute, own.covering), ("behind_collective", own.exposed), ("copying", own.copy)):
                amount = intervals.covered(stretches[half][0], stretches[half][1], of)
                parts[name][here] += amount
                busy[half][here] += amount
    idle = border - begin - busy[0]
    parts["launched_late"] = np.where(known, idle, 0)
    # Also what lies between, where the stretch ends before it begins.
    parts["unexplained"] = np.where(known, 0, idle) + begin - since
    parts["blocked"] = arrival - border - busy[1]
    return parts


def find_late(
    timeline: Timeline, calls: Calls, times: CallTimes, sets: dict[tuple[int, int], DeviceSets], met: Rendezvous
) -> Late:
    """Every instance of the window in which a rank kept others waiting, with why it came late."""
    meetings = _Meetings(calls, times, met)
    culprits = _culprits(calls, times, met, meetings.start)
    instance = np.array([culprit[0] for culprit in culprits], dtype=np.int64)
    first = np.array([culprit[1] for culprit in culprits], dtype=np.int64)
    late = np.array([culprit[2] for culprit in culprits], dtype=np.int64)
    lateness = meetings.start[late] - meetings.start[first]
    came = entered(timeline, met.clocks)
    place = [met.clocks.at(calls.table.rank[rows]) for rows in (first, late)]
    entry = np.minimum(entry_lateness(came, place[1], place[0]), lateness)
    # Where they last met, on the common clock; where they had not, the window began when the first of them entered.
    since = np.full(len(culprits), NONE, dtype=np.int64)
    begin, released = came[0][place[0]], came[0][place[0]] + entry
    for at in range(len(culprits)):
        before = meetings.last(int(first[at]), int(late[at]))
        if before is not None:
            since[at] = met.instance[before[0]]
            begin[at], released[at] = meetings.end[before[0]], meetings.end[before[1]]
            entry[at] = 0
    # Back to each rank's own clock, by the distance to its arrival.
    less = _cut(timeline, calls, times, sets, first, times.start[first] - (meetings.start[first] - begin))
    more = _cut(timeline, calls, times, sets, late, times.start[late] - (meetings.start[late] - released))
    causes = {name: more[name] - less[name] for name in CAUSES}
    causes["window_entry"] = entry
    causes["released_later"] = np.where(since >= 0, released - begin, 0)
    _settle_compute(causes)
    return Late.from_columns(
        instance=instance,
        rank=calls.table.rank[late],
        than=calls.table.rank[first],
        late_ns=lateness,
        caused_ns=[culprit[3] for culprit in culprits],
        since=since,
        **causes,
    )


def _settle_compute(causes: dict[str, Int64]) -> None:
    """Compute moved from before the launch to after it, or back, is not more of it: only the difference counts."""
    before, after = causes["more_compute"], causes["queued_behind_compute"]
    opposite = (before < 0) != (after < 0)
    longer = np.abs(before) >= np.abs(after)
    causes["more_compute"] = np.where(opposite, np.where(longer, before + after, 0), before)
    causes["queued_behind_compute"] = np.where(opposite, np.where(longer, 0, before + after), after)


def _culprits(calls: Calls, times: CallTimes, met: Rendezvous, start: Int64) -> list[tuple[int, int, int, int]]:
    """(instance, call of the first rank, call of the rank that was waited for, waiting of all for it)."""
    rows = np.flatnonzero((met.instance >= 0) & (met.wait >= 0) & times.counted)
    caused = np.zeros(len(met.instances), dtype=np.int64)
    np.add.at(caused, met.instance[rows], met.wait[rows])
    order = np.lexsort((calls.table.rank, start, met.instance))
    order = order[(met.instance[order] >= 0) & (times.first_op[order] >= 0)]
    owners = met.instance[order]
    result = []
    wanted = np.flatnonzero((caused > 0) & (met.instances.start_skew_ns > met.instances.uncertainty_ns))
    for at in wanted.tolist():
        own = order[np.searchsorted(owners, at) : np.searchsorted(owners, at, side="right")]
        awaited = int(own[-1])
        if met.instances.need[at] == Need.ROOT:
            root = own[calls.table.rank[own] == met.instances.root[at]]
            if len(root) == 0:
                continue  # the root is not among those with an operation
            awaited = int(root[0])
        if awaited != own[0]:
            result.append((at, int(own[0]), awaited, int(caused[at])))
    return result
