"""Waiting is not transfer: how much of each collective call is waiting for a peer that had not arrived.

    rank 0:   [wwwwwwwwwwtttt]        wait = min(end, last needed arrival) - start; arrival = start of the kernel
    rank 1:             [tttt]        (DESIGN section 4). A slow neighbor in a ring is inside transfer.

Calls are matched over ranks (matching), their times put on one clock (clocks), and the matching is checked against physics:
nobody ends before a rank that it needs has arrived. Where a figure would rest on a rank that is not in the input, on clocks
that cannot be compared or on a matching that failed, it is -1, and a note says why.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze import meeting_notes
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.arrivals import Arrivals, arrivals, named, needed_arrivals, without_impossible, worst_group
from underlap.analyze.calls import CallTimes
from underlap.analyze.clocks import Clocks, Ends, Handovers, RankClock, align
from underlap.analyze.groups import Calls, world_size
from underlap.analyze.matching import SIMULTANEOUS, Matching, Unmatchable, match
from underlap.columns import NONE, Int8, Int32, Int64, Table
from underlap.timeline import UNKNOWN_NS, HostKind, Note, OpClass, Operations, Timeline

_FEWEST_EQUAL = 3
"""The shortest of fewer calls of equal size is no bound worth a label."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Instances(Table):
    """One row per instance: the calls of a collective that meet. Times are on the common clock."""

    group: Int32
    """Index into `Calls.groups`."""
    collective: Int32
    """Index into `Timeline.names`; -1 where unknown."""
    need: Int8
    """A `matching.Need`."""
    root: Int32
    members: Int32
    """Calls in the input."""
    expected: Int32
    """Calls that the job made; -1 where unknown."""
    first_rank: Int32
    last_rank: Int32
    """The rank that arrived last; -1 where a member is missing or the clocks cannot be compared."""
    last_start_ns: Int64
    """Arrival of the last rank in the input; `UNKNOWN_NS` where the clocks cannot be compared."""
    start_skew_ns: Int64
    """Last arrival less first, over the ranks in the input; -1 with fewer than two or without a common clock."""
    end_skew_ns: Int64
    uncertainty_ns: Int64
    """Largest sum of two residuals of its members: what a difference between two of them is uncertain by; -1 unknown."""
    entry: Int8
    """1 where the last rank's first event in the trace is later by half the skew or more: it entered the window late."""
    entry_ns: Int64
    """How much later its first event is than the first rank's, at most the skew; 0 where the instance is no entry."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Who met whom when. Columns have one entry per call of `Calls.table`; times are on the rank's own clock."""

    instance: Int64
    """Row of `instances`; -1 for a call that is not matched."""
    wait_start: Int64
    wait_end: Int64
    """`UNKNOWN_NS` where waiting is unknown."""
    wait: Int64
    """-1 where unknown."""
    transfer: Int64
    """The rest of the call's kernel time; -1 where unknown."""
    wait_at_least: Int64
    """What the ranks in the input alone show, where others are missing; -1 where nothing does."""
    transfer_at_most: Int64
    """An upper bound: the shortest call of the same family and payload on the rank, if there are three, or the call's time
    less what surely is waiting; else -1. That is transfer on its own: beside compute it may take longer."""
    uncertainty: Int64
    """What the waiting is uncertain by: the residuals of this rank and of the one it waited for; -1 where unknown."""
    instances: Instances
    clocks: Clocks
    unmatchable: tuple[Unmatchable, ...]
    notes: tuple[Note, ...]


def meet(timeline: Timeline, calls: Calls, times: CallTimes) -> Rendezvous:
    """Match the calls, align the clocks, and split each call into waiting and transfer."""
    matching = match(timeline, calls, times)
    found = _align(timeline, calls, times, matching)
    # A wrongly matched group bends the clocks of others, so the worst goes first and the clocks are aligned again.
    while dropped := worst_group(timeline, calls, times, matching, found):
        matching = matching.without(dropped)
        found = _align(timeline, calls, times, matching)
    instances = _instances(timeline, calls, times, matching, found)
    needed, at_least, uncertainty = needed_arrivals(calls, times, matching, found)
    needed = without_impossible(timeline, calls, times, matching, found, needed, uncertainty)
    corrected = found.correct(calls.table.rank, times.start)
    alone = _alone(timeline, calls)
    needed, uncertainty = np.where(alone, corrected, needed), np.where(alone, 0, uncertainty)
    to_wait = np.where(needed == UNKNOWN_NS, UNKNOWN_NS, np.maximum(needed - corrected, 0))
    wait, transfer = _amounts(timeline.ops, times, to_wait)
    lower = np.where(at_least == UNKNOWN_NS, UNKNOWN_NS, np.maximum(at_least - corrected, 0))
    wait_at_least, _ = _amounts(timeline.ops, times, lower)
    known = wait >= 0
    with_ops = times.first_op >= 0
    result = Rendezvous(
        instance=matching.instance,
        wait_start=np.where(known, times.start, UNKNOWN_NS),
        wait_end=np.where(known, _wait_end(times, to_wait), UNKNOWN_NS),
        wait=wait,
        transfer=transfer,
        wait_at_least=np.where(with_ops & ~known, wait_at_least, NONE),
        transfer_at_most=_at_most(calls, times, np.maximum(wait_at_least, 0)),
        uncertainty=np.where(known, uncertainty, NONE),
        instances=instances,
        clocks=found,
        unmatchable=matching.unmatchable,
        notes=(),
    )
    return dataclasses.replace(result, notes=meeting_notes.collect(timeline, calls, times, result))


def _alone(timeline: Timeline, calls: Calls) -> NDArray[np.bool_]:
    """Per call whether its group has one member, or the job one rank: there is nobody to wait for."""
    sizes = [len(group.ranks) if group.ranks is not None else group.size for group in calls.groups]
    of_one = np.array([*(size == 1 or (size is None and world_size(timeline) == 1) for size in sizes), world_size(timeline) == 1])
    result: NDArray[np.bool_] = of_one[calls.table.group]
    return result


def _align(timeline: Timeline, calls: Calls, times: CallTimes, matching: Matching) -> Clocks:
    instances, table = matching.instances, calls.table
    ends_together = named(timeline, instances.collective, SIMULTANEOUS) & (instances.members > 1)
    rows = np.flatnonzero(np.append(ends_together, False)[matching.instance])
    sends = named(timeline, table.collective, ("send",))
    pairs = _pairs(matching)
    pairs = pairs[sends[pairs[:, 0]] != sends[pairs[:, 1]]]
    sender = np.where(sends[pairs[:, 0]], pairs[:, 0], pairs[:, 1])
    receiver = pairs.sum(axis=1) - sender
    found = align(
        [
            RankClock(rank=info.rank, clock=info.clock, resolution_ns=info.resolution_ns, exact=not info.on_cpu)
            for info in timeline.ranks
        ],
        Ends(instance=matching.instance[rows], rank=table.rank[rows], start=times.start[rows], end=times.end[rows]),
        Handovers(
            sender=table.rank[sender],
            receiver=table.rank[receiver],
            sent=times.start[sender],
            received=times.end[receiver],
        ),
    )
    if timeline.provenance == "simulated":
        return dataclasses.replace(found, residual_ns=np.zeros_like(found.residual_ns))  # one clock, and exact
    return found


def _pairs(matching: Matching) -> Int64:
    """The two calls of each instance of two. Shape (n, 2)."""
    rows = np.flatnonzero(np.append(matching.instances.members == 2, False)[matching.instance])
    return rows[np.argsort(matching.instance[rows], kind="stable")].reshape(-1, 2)


def _amounts(ops: Operations, times: CallTimes, to_wait: Int64) -> tuple[Int64, Int64]:
    """Waiting and transfer of each call when it waits for `to_wait` from its start; -1 both where that is unknown.

    Spin kernels wait whatever is known; of a fused kernel nothing is known.
    """
    size = len(to_wait)
    rows = np.flatnonzero(ops.collective >= 0)
    owner, kind = ops.collective[rows], ops.op_class[rows]
    length = ops.end_ns[rows] - ops.start_ns[rows]
    unknown = np.zeros(size, dtype=bool)
    unknown[owner[(kind == OpClass.FUSED) | ((kind != OpClass.WAIT) & (to_wait[owner] == UNKNOWN_NS))]] = True
    unknown |= times.first_op < 0
    until = np.where(to_wait == UNKNOWN_NS, 0, to_wait) + np.where(times.first_op >= 0, times.start, 0)
    waiting = np.where(kind == OpClass.WAIT, length, np.clip(until[owner] - ops.start_ns[rows], 0, length))
    wait = np.zeros(size, dtype=np.int64)
    np.add.at(wait, owner, waiting)
    return np.where(unknown, NONE, wait), np.where(unknown, NONE, times.duration - wait)


def _wait_end(times: CallTimes, to_wait: Int64) -> Int64:
    start = np.where(times.first_op >= 0, times.start, 0)
    return np.where(to_wait == UNKNOWN_NS, times.end, np.minimum(times.end, start + np.maximum(to_wait, 0)))


def _at_most(calls: Calls, times: CallTimes, waiting: Int64) -> Int64:
    """What each call's transfer alone takes at most: the shortest call of equal size on its rank, and its own time less
    what surely is waiting."""
    table = calls.table
    result = np.where(waiting > 0, times.duration - waiting, np.iinfo(np.int64).max)
    rows = np.flatnonzero((times.first_op >= 0) & (table.payload_bytes > 0) & (table.collective >= 0))
    keys = np.column_stack((calls.axis_of[rows], table.collective[rows], table.payload_bytes[rows], table.rank[rows]))
    _, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.ravel()
    size = int(kind.max()) + 1 if len(kind) else 0
    shortest = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(shortest, kind, times.duration[rows])
    enough = np.bincount(kind, minlength=size) >= _FEWEST_EQUAL
    result[rows] = np.where(enough[kind], np.minimum(result[rows], shortest[kind]), result[rows])
    return np.where(result == np.iinfo(np.int64).max, NONE, np.minimum(result, times.duration))


def _instances(timeline: Timeline, calls: Calls, times: CallTimes, matching: Matching, found: Clocks) -> Instances:
    matched, seen = matching.instances, arrivals(calls, times, matching, found)
    size = len(matched)
    rows = np.flatnonzero(matching.instance >= 0)
    owner = matching.instance[rows]
    end = found.correct(calls.table.rank[rows], times.end[rows])
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(low, owner, end)
    np.maximum.at(high, owner, end)
    several = seen.comparable & (matched.members > 1)
    complete = several & (matched.members == matched.expected)
    skew = np.where(several, seen.last - seen.first, NONE)
    first_rank, last_rank = calls.table.rank[seen.first_row], calls.table.rank[seen.last_row]
    uncertainty = np.where(seen.comparable & (seen.residual >= 0), 2 * seen.residual, NONE)
    entry = _entries(timeline, calls, matching, found, seen, np.where(complete & (skew > uncertainty), skew, 0))
    return Instances(
        group=matched.group,
        collective=matched.collective,
        need=matched.need,
        root=matched.root,
        members=matched.members,
        expected=matched.expected,
        first_rank=np.where(complete, first_rank, NONE).astype(np.int32),
        last_rank=np.where(complete, last_rank, NONE).astype(np.int32),
        last_start_ns=np.where(several, seen.last, UNKNOWN_NS),
        start_skew_ns=skew,
        end_skew_ns=np.where(several, high - low, NONE),
        uncertainty_ns=uncertainty,
        entry=(entry > 0).astype(np.int8),
        entry_ns=entry,
    )


def entered(timeline: Timeline, found: Clocks) -> tuple[Int64, Int64]:
    """When each rank's first event of any kind began, and its first that is no annotation, on the common clock."""
    size, host = len(found.ranks), timeline.host
    first, work = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).max)
    real = (host.kind != HostKind.ANNOTATION) & (host.rank >= 0)
    for target, rank, start in (
        (first, timeline.ops.rank, timeline.ops.start_ns),
        (first, host.rank[host.rank >= 0], host.start_ns[host.rank >= 0]),
        (work, timeline.ops.rank, timeline.ops.start_ns),
        (work, host.rank[real], host.start_ns[real]),
    ):
        np.minimum.at(target, found.at(rank), start)
    empty = first == np.iinfo(np.int64).max
    first, work = np.where(empty, 0, first), np.where(work == np.iinfo(np.int64).max, first, work)
    return found.correct(found.ranks, first), found.correct(found.ranks, work)


def entry_lateness(when: tuple[Int64, Int64], late: Int64, than: Int64) -> Int64:
    """How much later ranks entered than others, by the first event and by the first work both; 0 where not later.

    Both, since an annotation can stand open while its rank waits for the others before the first work of the window.
    Ranks are given by their positions in `Clocks.ranks`.
    """
    later: Int64 = np.minimum(when[0][late] - when[0][than], when[1][late] - when[1][than])
    return np.maximum(later, 0)


def _entries(timeline: Timeline, calls: Calls, matching: Matching, found: Clocks, seen: Arrivals, skew: Int64) -> Int64:
    """Per instance how much of the skew is late entry into the window; 0 unless it is half of it or more.

    Only in the first instance that the first and the last rank have in common: after that they have met.
    """
    last, first = (found.at(calls.table.rank[row]) for row in (seen.last_row, seen.first_row))
    late = entry_lateness(entered(timeline, found), last, first)
    amount = np.where((skew > 0) & (2 * late >= skew), np.minimum(late, skew), 0)
    first_met: dict[tuple[int, int], int] = {}
    for at in np.flatnonzero(amount).tolist():
        pair = (int(calls.table.rank[seen.first_row[at]]), int(calls.table.rank[seen.last_row[at]]))
        if pair not in first_met:
            both = [matching.instance[(calls.table.rank == rank) & (matching.instance >= 0)] for rank in pair]
            common = np.intersect1d(*both)
            first_met[pair] = int(common[seen.last[common].argmin()])
        if first_met[pair] != at:
            amount[at] = 0
    return amount


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """The communication of some operations of one device, as interval sets on its own clock."""

    waiting: Int64
    transferring: Int64
    unknown: Int64
    """Calls that are not matched."""


def halves(ops: Operations, met: Rendezvous) -> Halves:
    """Waiting and transfer of these operations, which are those of one device or of one family on it."""
    communication = np.isin(ops.op_class, (OpClass.COMMUNICATION, OpClass.WAIT))
    ops = ops.take(communication)
    spin = ops.op_class == OpClass.WAIT
    known = spin | ((ops.collective >= 0) & (np.append(met.wait, NONE)[ops.collective] >= 0))
    until = np.append(met.wait_end, UNKNOWN_NS)[ops.collective]
    until = np.where(spin, ops.end_ns, np.clip(until, ops.start_ns, ops.end_ns))
    return Halves(
        waiting=intervals.union(ops.start_ns[known], until[known]),
        transferring=intervals.union(until[known], ops.end_ns[known]),
        unknown=intervals.union(ops.start_ns[~known], ops.end_ns[~known]),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WaitSplit:
    """Nanoseconds. Each pair adds up to the part that it splits: hidden, under_fused, exposed."""

    hidden_transfer: int
    hidden_wait: int
    under_fused_transfer: int
    under_fused_wait: int
    exposed_transfer: int
    exposed_wait: int


def split(sets: DeviceSets, parts: Halves, stretches: Int64) -> WaitSplit | None:
    """What is waiting and what is transfer of the hidden and the exposed communication inside the stretches.

    `parts` are those of the whole device or of one family. A moment in which one call waits while another transfers is
    transfer. None where the stretches hold a call that is not matched.
    """
    starts, ends = stretches[:, 0], stretches[:, 1]

    def inside(part: Int64) -> int:
        return int(intervals.covered(starts, ends, part).sum())

    if inside(parts.unknown):
        return None
    transfer = parts.transferring
    wait = intervals.subtract(parts.waiting, transfer)
    return WaitSplit(
        hidden_transfer=inside(intervals.intersect(transfer, sets.compute)),
        hidden_wait=inside(intervals.intersect(wait, sets.compute)),
        under_fused_transfer=inside(intervals.intersect(transfer, sets.fused)),
        under_fused_wait=inside(intervals.intersect(wait, sets.fused)),
        exposed_transfer=inside(intervals.subtract(transfer, sets.covering)),
        exposed_wait=inside(intervals.subtract(wait, sets.covering)),
    )
