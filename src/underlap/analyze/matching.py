"""Which calls on different ranks are one collective: by sequence number, else by order, and checked, never assumed.

    rank 0:  AR 4 MB   AG 1 MB   AR 4 MB            same collective, payload and count on every rank: three instances
    rank 1:  AR 4 MB   AG 1 MB   AR 4 MB

    rank 0:  AR 4 MB   AG 1 MB   AR 4 MB            the second calls differ: nothing in the group is matched, and the
    rank 1:  AG 1 MB   AR 4 MB   AR 8 MB            reason says where. Shifting one rank until it fits would be a guess.

Order is the order of start on the rank over all collectives of the group, so that a lost call shows as a mismatch. A send
meets the receive of the same pair of ranks in the same place. What is not modeled: peers of a batch of sends and receives
in a group of more than two ranks, which no trace lists.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.columns import NONE, Int8, Int32, Int64, Table, rows_by
from underlap.timeline import UNKNOWN_NS, Group, Timeline

SIMULTANEOUS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Barrier-like: no rank can end before the last has arrived, so the ends lie close together."""
PAIRED = ("send", "recv", "send_recv", "permute")
_SAME_PAYLOAD = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Need(IntEnum):
    """Whose arrival a call has to wait for (DESIGN section 4)."""

    UNKNOWN = 0
    EVERYONE = 1
    ROOT = 2
    """All but the root wait for the root; the root waits for nobody."""
    AT_ROOT = 3
    """The root waits for all; the others wait for nobody."""


_NEEDS = {
    **dict.fromkeys((*SIMULTANEOUS, *PAIRED, "dispatch", "combine"), Need.EVERYONE),
    **dict.fromkeys(("broadcast", "scatter"), Need.ROOT),
    **dict.fromkeys(("reduce", "gather"), Need.AT_ROOT),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Matched(Table):
    """One row per instance: calls that meet. In order of their first start."""

    group: Int32
    """Index into `Calls.groups`."""
    collective: Int32
    """Index into `Timeline.names`; -1 where no rank says."""
    need: Int8
    """A `Need`."""
    root: Int32
    """Rank of the root; -1 where unknown or where there is none."""
    members: Int32
    """Calls in the input."""
    expected: Int32
    """Calls that the job made; -1 where the group's size is unknown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unmatchable:
    """Calls of one group that no claim across ranks is made about, and why."""

    group: int
    """Index into `Calls.groups`; -1 for calls whose group is unknown."""
    calls: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Instances, the instance of each call, and what could not be matched."""

    instances: Matched
    instance: Int64
    """Per call a row of `instances`, or -1. Shape (number of calls,)."""
    unmatchable: tuple[Unmatchable, ...]

    def without(self, dropped: dict[int, str]) -> Matching:
        """This without the instances of some groups, each with the reason."""
        keep = ~np.isin(self.instances.group, list(dropped))
        lost = np.append(self.instances.group, NONE)[self.instance]
        place = np.append(np.where(keep, np.cumsum(keep) - 1, NONE), NONE)
        more = [Unmatchable(group=group, calls=int((lost == group).sum()), reason=reason) for group, reason in dropped.items()]
        return Matching(
            instances=self.instances.take(keep), instance=place[self.instance], unmatchable=(*self.unmatchable, *more)
        )


class _Mismatch(Exception):  # noqa: N818 - it is the answer "no", caught a few lines below
    """Why the calls of a group do not pair up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    rows: Sequence[int]
    expected: int
    need: Need
    root: int = NONE


def match(timeline: Timeline, calls: Calls, times: CallTimes) -> Matching:
    """The instances of all calls in the Timeline, in the window or not."""
    input_ranks = {info.rank for info in timeline.ranks}
    order = _order(timeline, calls, times)
    found: list[_Meeting] = []
    refused: list[Unmatchable] = []
    for number, at_group in rows_by(calls.table.group[order]):
        rows = order[at_group]
        by_rank = {rank: rows[own] for rank, own in rows_by(calls.table.rank[rows])}
        group = _Group(timeline, calls, number, by_rank, input_ranks)
        try:
            found.extend(group.meetings())
        except _Mismatch as reason:
            refused.append(Unmatchable(group=number, calls=len(rows), reason=str(reason)))
    found.sort(key=lambda meeting: min(int(times.start[row]) for row in meeting.rows))
    instance = np.full(len(calls.table), NONE, dtype=np.int64)
    for at, meeting in enumerate(found):
        instance[list(meeting.rows)] = at
    first = np.array([meeting.rows[0] for meeting in found], dtype=np.int64)
    instances = Matched.from_columns(
        group=calls.table.group[first],
        collective=[int(calls.table.collective[list(meeting.rows)].max()) for meeting in found],
        need=[meeting.need for meeting in found],
        root=[meeting.root for meeting in found],
        members=[len(meeting.rows) for meeting in found],
        expected=[meeting.expected for meeting in found],
    )
    return Matching(instances=instances, instance=instance, unmatchable=tuple(refused))


def _order(timeline: Timeline, calls: Calls, times: CallTimes) -> Int64:
    """Calls with an operation, in order of start. Spans of a CPU rank's two run loops start in any order: by issue there."""
    on_cpu = [info.rank for info in timeline.ranks if info.on_cpu]
    issued = np.isin(calls.table.rank, on_cpu) & (calls.table.issue_ns != UNKNOWN_NS)
    when = np.where(issued, calls.table.issue_ns, times.start)
    rows = np.flatnonzero(times.first_op >= 0)
    return rows[np.argsort(when[rows], kind="stable")]


class _Group:
    """The calls of one group, rank by rank."""

    def __init__(self, timeline: Timeline, calls: Calls, number: int, by_rank: dict[int, Int64], input_ranks: set[int]) -> None:
        self.timeline, self.table, self.by_rank = timeline, calls.table, by_rank
        self.group: Group | None = calls.groups[number] if number >= 0 else None
        self.input_ranks = input_ranks
        self.paired_names = [at for at, name in enumerate(timeline.names) if name in PAIRED]

    def meetings(self) -> list[_Meeting]:
        """All instances of the group. Raises _Mismatch."""
        if self.group is None:
            raise _Mismatch(self._why_unknown())
        members = self._members(self.group)
        paired = {rank: self._paired(rows) for rank, rows in self.by_rank.items()}
        collective = {rank: rows[~paired[rank]] for rank, rows in self.by_rank.items()}
        pairs = {rank: rows[paired[rank]] for rank, rows in self.by_rank.items()}
        found = []
        if any(len(rows) for rows in collective.values()):
            found += self._collectives(collective, members, self.group.size or (len(members) if members else NONE))
        if any(len(rows) for rows in pairs.values()):
            if members is None:
                raise _Mismatch("the trace does not list the members, so the peers of its sends and receives are unknown")
            found += self._pairs(pairs, members)
        return found

    def _members(self, group: Group) -> tuple[int, ...] | None:
        """The member ranks; None where unknown and only one of them is in the input."""
        present = tuple(self.by_rank)
        if group.ranks is not None:
            strangers = sorted(set(present) - set(group.ranks))
            if strangers:
                raise _Mismatch(f"rank {strangers[0]} has calls in it but is not among the members that the trace lists")
            return group.ranks
        if group.size == len(present):
            return present
        if len(present) > 1:
            size = "an unknown number of" if group.size is None else str(group.size)
            raise _Mismatch(
                f"the trace does not list its {size} members, and {len(present)} ranks of the input have calls under its name"
            )
        return None

    def _paired(self, rows: Int64) -> np.ndarray:
        return np.isin(self.table.collective[rows], self.paired_names)

    def _collectives(self, rows: dict[int, Int64], members: tuple[int, ...] | None, size: int) -> list[_Meeting]:
        wanted = sorted(self.input_ranks.intersection(members)) if members is not None else list(rows)
        for rank in wanted:
            rows.setdefault(rank, np.empty(0, dtype=np.int64))
        columns = (
            self._by_sequence(rows)
            if all((self.table.sequence[own] >= 0).all() for own in rows.values())
            else self._by_order(rows)
        )
        if self.group is not None and self.group.folded:
            size = len(wanted)
        return [self._meeting(column, members, size) for column in columns]

    def _by_sequence(self, rows: dict[int, Int64]) -> list[list[int]]:
        met: dict[tuple[int, int], list[int]] = {}
        for own in rows.values():
            # Calls of one coalesced launch share a number: the first meets the first.
            seen: dict[int, int] = {}
            for row in own.tolist():
                number = int(self.table.sequence[row])
                seen[number] = seen.get(number, 0) + 1
                met.setdefault((number, seen[number]), []).append(row)
        keys = sorted(met)
        self._check_all([met[key] for key in keys], lambda at: f"as number {keys[at][0]}")
        return [met[key] for key in keys]

    def _by_order(self, rows: dict[int, Int64]) -> list[list[int]]:
        columns = [list(column) for column in zip(*(own.tolist() for own in rows.values()), strict=False)]
        self._check_all(columns, lambda at: f"as call {at + 1}")
        self._same_count({f"rank {rank}": len(own) for rank, own in rows.items()}, "calls")
        return columns

    def _check_all(self, columns: list[list[int]], where: Callable[[int], str]) -> None:
        """Check the columns in which anything differs: one pass over all of them finds those."""
        rows = np.fromiter(itertools.chain.from_iterable(columns), dtype=np.int64)
        owner = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
        differs = np.zeros(len(columns), dtype=bool)
        for values in (self.table.collective[rows], self.table.payload_bytes[rows]):
            known = values >= 0
            low, high = np.full(len(columns), np.iinfo(np.int64).max), np.full(len(columns), NONE, dtype=np.int64)
            np.minimum.at(low, owner[known], values[known])
            np.maximum.at(high, owner[known], values[known])
            differs |= low < high
        for at in np.flatnonzero(differs).tolist():
            self._check(columns[at], where(at))

    def _check(self, column: list[int], where: str) -> None:
        """Raises _Mismatch where calls that should be one are not. What a call does not say contradicts nothing."""
        first = max(column, key=lambda row: int(self.table.collective[row] >= 0) + int(self.table.payload_bytes[row] >= 0))
        for row in column:
            named = min(self.table.collective[first], self.table.collective[row]) >= 0
            sized = min(self.table.payload_bytes[first], self.table.payload_bytes[row]) >= 0
            other = named and self.table.collective[first] != self.table.collective[row]
            if self._name(first) in _SAME_PAYLOAD and sized:
                other = other or self.table.payload_bytes[first] != self.table.payload_bytes[row]
            if other:
                raise _Mismatch(f"the ranks do not make the same calls: {where} {self._say(first)}, but {self._say(row)}")

    def _same_count(self, counts: dict[str, int], what: str) -> None:
        least, most = min(counts, key=lambda who: counts[who]), max(counts, key=lambda who: counts[who])
        if counts[least] != counts[most]:
            raise _Mismatch(
                f"{most} has {counts[most]} {what}, {least} has {counts[least]}: some are missing, and which is not known"
            )

    def _meeting(self, column: list[int], members: tuple[int, ...] | None, size: int) -> _Meeting:
        need = _NEEDS.get(self._name(max(column, key=lambda row: int(self.table.collective[row]))) or "", Need.UNKNOWN)
        root = self._root(column, members) if need in (Need.ROOT, Need.AT_ROOT) else NONE
        return _Meeting(rows=column, expected=size, need=need, root=root)

    def _root(self, column: list[int], members: tuple[int, ...] | None) -> int:
        """The root's rank. Traces give it in the job or in the group: where these differ and both exist, it is unknown."""
        stated = {int(self.table.peer[row]) for row in column} - {NONE}
        if len(stated) != 1 or members is None:
            return NONE
        number = stated.pop()
        meanings = {number} & set(members) | {members[number] for _ in [0] if number < len(members)}
        return meanings.pop() if len(meanings) == 1 else NONE

    def _pairs(self, rows: dict[int, Int64], members: tuple[int, ...]) -> list[_Meeting]:
        """Sends with receives. A peer is numbered in the job, or else in the group, whichever of the two fits everywhere."""
        in_job: Callable[[int, int], int] = lambda _, peer: peer if peer in members else NONE  # noqa: E731 - rules, one line each
        in_group: Callable[[int, int], int] = lambda _, peer: members[peer] if 0 <= peer < len(members) else NONE  # noqa: E731 - rules, one line each
        if len(members) == 2:
            in_job = lambda rank, _: members[1] if rank == members[0] else members[0]  # noqa: E731 - rules, one line each
        try:
            return self._pairs_with(rows, in_job)
        except _Mismatch:
            if len(members) == 2 or members == tuple(range(len(members))):
                raise
            return self._pairs_with(rows, in_group)

    def _pairs_with(self, rows: dict[int, Int64], peer_of: Callable[[int, int], int]) -> list[_Meeting]:
        ends: dict[tuple[int, int, str], dict[int, list[int]]] = {}
        for rank, own in rows.items():
            for row in own.tolist():
                name = self._name(row) or ""
                peer = peer_of(rank, int(self.table.peer[row]))
                if peer in (NONE, rank):
                    raise _Mismatch(f"{self._say(row)}, and the trace does not say with which of the members")
                source, target = (rank, peer) if name == "send" else (peer, rank)
                kind = "" if name in ("send", "recv") else name
                key = (min(rank, peer), max(rank, peer), kind) if kind else (source, target, kind)
                ends.setdefault(key, {}).setdefault(rank, []).append(row)
        found = []
        for (source, target, kind), met in ends.items():
            here = [rank for rank in (source, target) if rank in self.input_ranks]
            counts = {f"rank {rank}": len(met.get(rank, [])) for rank in here}
            what = kind or f"sends and receives from rank {source} to rank {target}"
            self._same_count(counts, f"calls of {what}" if kind else what)
            for column in zip(*(met[rank] for rank in here if rank in met), strict=True):
                self._check_pair(column)
                found.append(_Meeting(rows=column, expected=2, need=Need.EVERYONE))
        return found

    def _check_pair(self, column: Sequence[int]) -> None:
        sizes = [int(self.table.payload_bytes[row]) for row in column]
        if len(column) == 2 and min(sizes) >= 0 and sizes[0] != sizes[1] and self._name(column[0]) in ("send", "recv"):
            raise _Mismatch(f"a send and its receive differ: {self._say(column[0])}, but {self._say(column[1])}")

    def _why_unknown(self) -> str:
        """Why calls without a group are not matched, and where their sequences differ, if there are several ranks."""
        text = "the trace does not say their group"
        if len(self.input_ranks) == 1:
            return f"{text}, and only rank {min(self.input_ranks)} is in the input"
        for (rank, rows), (other, others) in itertools.pairwise(self.by_rank.items()):
            for at, column in enumerate(zip(rows.tolist(), others.tolist(), strict=False)):
                try:
                    self._check(list(column), f"as call {at + 1}")
                except _Mismatch as reason:
                    return f"{text}, and {reason}"
            if len(rows) != len(others):
                return f"{text}, and rank {rank} has {len(rows)} of them, rank {other} has {len(others)}"
        return text

    def _name(self, row: int) -> str | None:
        return self.timeline.name_of(int(self.table.collective[row]))

    def _say(self, row: int) -> str:
        size = int(self.table.payload_bytes[row])
        name = self._name(row) or "an unknown collective"
        return f"rank {int(self.table.rank[row])} issues {name}" + (f" of {size} bytes" if size >= 0 else "")
