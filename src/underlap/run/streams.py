"""A rank's Program -> streams and events: what runs where, what is recorded behind which instruction, who waits for it.

    stream   the compute lane is the root; each channel of the plan has one of its own, as `simulate` has a lane for each
    event    recorded behind an instruction; a stream that waits for it begins what follows after that instruction's end

Nothing here needs torch or a GPU. An issue begins after what its issuing lane did before it, a wait holds that lane until the
end of its issue; instructions of different lanes that share memory are ordered, too. Where a stream already knows, by an
earlier wait of its own or of somebody that it waited for, it does not wait again. At its begin every stream forks from the
root, at the end the root joins all: so one capture holds the step, and the next step begins after all of this one.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator

from underlap.cost.work import Transfer
from underlap.errors import PlanError
from underlap.plan import COMPUTE_LANE, OpKind
from underlap.run.program import Instruction, Operand, Program

BEGIN = 0
"""The event that the root records before the first instruction."""
HIGH, NORMAL = -1, 0
"""Priorities, as CUDA counts them: blocks of a collective go before waiting ones of a product, not in place of running ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """A queue of the device."""

    lane: str
    """compute, or a channel of the plan."""
    priority: int


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """Where an instruction runs."""

    stream: int
    waits: tuple[int, ...]
    """Events that its stream waits for before it."""
    event: int
    """Recorded behind it; -1 where nobody waits for it."""
    kind: OpKind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """A program on streams. `placed` has one entry per instruction."""

    streams: tuple[Stream, ...]
    """The first is the root."""
    placed: tuple[Placed, ...]
    joins: tuple[int, ...]
    """Events that the root waits for behind the last instruction."""
    events: int
    """How many there are, that of the begin included."""

    def lane_of(self, at: int) -> str:
        """The lane of the at-th instruction."""
        return self.streams[self.placed[at].stream].lane


def stream_plan(program: Program) -> StreamPlan:
    """Streams, events and waits of a program. Raises PlanError where a channel serves several groups."""
    _check_channels(program)
    lanes = list(dict.fromkeys([COMPUTE_LANE, *(_lane(one) for one in program.instructions)]))
    number = {lane: at for at, lane in enumerate(lanes)}
    stream_of = [number[_lane(one)] for one in program.instructions]
    # The source of a wait is an instruction, or BEGIN's -1. What each stream knows: the latest instruction of each stream.
    known = [[-2] * len(lanes) for _ in lanes]
    known[0][0] = -1
    at_end: list[tuple[int, ...]] = []
    waits: list[list[int]] = []
    for at, needed in enumerate(_needs(program, stream_of)):
        own = stream_of[at]
        taken = []
        for source in sorted(needed, reverse=True):
            of = stream_of[source] if source >= 0 else 0
            if of == own or known[own][of] >= source:
                continue
            taken.append(source)
            _learn(known[own], at_end[source] if source >= 0 else (-1, *[-2] * (len(lanes) - 1)))
        waits.append(taken)
        known[own][own] = at
        at_end.append(tuple(known[own]))
    joined = []
    for source in sorted((_last(stream_of, stream) for stream in range(1, len(lanes))), reverse=True):
        if known[0][stream_of[source]] < source:
            joined.append(source)
            _learn(known[0], at_end[source])
    return _numbered(program, lanes, stream_of, waits, joined)


def _numbered(program: Program, lanes: list[str], stream_of: list[int], waits: list[list[int]], joined: list[int]) -> StreamPlan:
    """Numbers for events, in the order in which they are recorded."""
    sources = sorted({source for taken in (*waits, joined) for source in taken if source >= 0})
    event = {source: 1 + at for at, source in enumerate(sources)} | {-1: BEGIN}
    return StreamPlan(
        streams=tuple(Stream(lane, NORMAL if lane == COMPUTE_LANE else HIGH) for lane in lanes),
        placed=tuple(
            Placed(stream_of[at], tuple(sorted(event[source] for source in waits[at])), event.get(at, -1), one.kind)
            for at, one in enumerate(program.instructions)
        ),
        joins=tuple(sorted(event[source] for source in joined)),
        events=1 + len(sources),
    )


def _lane(instruction: Instruction) -> str:
    if instruction.kind == OpKind.ISSUE:
        return instruction.channel or str(instruction.group)
    return instruction.lane


def _learn(known: list[int], told: Iterable[int]) -> None:
    for stream, latest in enumerate(told):
        known[stream] = max(known[stream], latest)


def _last(stream_of: list[int], stream: int) -> int:
    return max(at for at, of in enumerate(stream_of) if of == stream)


def _check_channels(program: Program) -> None:
    groups: dict[str, set[str]] = defaultdict(set)
    for one in program.instructions:
        if one.kind == OpKind.ISSUE:
            groups[_lane(one)].add(str(one.group))
    for lane, found in groups.items():
        if len(found) > 1 or lane == COMPUTE_LANE:
            raise PlanError(f"channel {lane} serves {', '.join(sorted(found))}: expected one group, on a channel of its own")


# ---- what has to end before what


def _needs(program: Program, stream_of: list[int]) -> Iterator[set[int]]:
    """Of each instruction: those of other streams that have to end before it; -1 stands for the begin."""
    at_row = {one.row: at for at, one in enumerate(program.instructions)}
    shared = _Shared(program)
    last: dict[str, int] = {}
    for at, one in enumerate(program.instructions):
        needed = {-1} | shared.before(one, at, stream_of[at])
        if one.kind == OpKind.ISSUE:
            needed.add(last.get(one.lane, -1))
        else:
            last[one.lane] = at
        if one.kind == OpKind.WAIT:
            needed.add(at_row[one.issue])
        yield needed


class _Shared:
    """Who used a piece of memory last, on each stream. A stream runs in order, so its last use stands for those before."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses: dict[int, dict[tuple[int, int, int, bool], int]] = defaultdict(dict)
        """By slot: (stream, first row, end, writes) -> the last instruction, of the life that the slot has now."""
        self.life: dict[int, int] = {}
        self.former: dict[int, dict[int, int]] = defaultdict(dict)
        """By slot: stream -> the last instruction of all former lives."""

    def before(self, one: Instruction, at: int, stream: int) -> set[int]:
        """Instructions whose use of the same memory excludes this one's."""
        found: set[int] = set()
        for writes, operands in ((False, one.reads), (True, one.writes)):
            for operand in operands:
                found |= self._conflicts(operand, writes=writes)
        for writes, operands in ((False, one.reads), (True, one.writes)):
            for operand in operands:
                place = self._place(operand)
                self.uses[place][stream, operand.begin, operand.begin + operand.rows, writes] = at
        return found

    def _place(self, operand: Operand) -> int:
        slot = self.program.cells[operand.cell].slot
        return slot if slot >= 0 else -1 - operand.cell

    def _conflicts(self, operand: Operand, *, writes: bool) -> set[int]:
        place = self._place(operand)
        if self.life.get(place, operand.cell) != operand.cell:
            for (stream, *_), at in self.uses.pop(place, {}).items():
                self.former[place][stream] = max(at, self.former[place].get(stream, -1))
        self.life[place] = operand.cell
        found = set(self.former[place].values())
        for (_, begin, end, wrote), at in self.uses[place].items():
            if (writes or wrote) and begin < operand.begin + operand.rows and operand.begin < end:
                found.add(at)
        return found


# ---- communicators


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Link:
    """One direction between two stages: messages of one way, which arrive in the order in which they are sent."""

    way: str
    source: int
    target: int


def link_of(program: Program, instruction: Instruction) -> Link | None:
    """The link of a message between stages; None for what involves a whole group, as a step of a ring does."""
    sends, receives = instruction.send_to is not None, instruction.receive_from is not None
    if sends == receives:
        return None
    way = str(instruction.channel).replace("pp.send.", "", 1).replace("pp.receive.", "", 1)
    if instruction.send_to is not None:
        return Link(way, program.rank, instruction.send_to)
    assert instruction.receive_from is not None
    return Link(way, instruction.receive_from, program.rank)


def links(program: Program) -> tuple[Link, ...]:
    """Those that this rank is an end of, in the order in which all ranks make theirs: so nobody waits in a circle."""
    found = (link_of(program, one) for one in program.instructions if one.kind == OpKind.ISSUE)
    return tuple(sorted({link for link in found if link is not None}))


def thread_blocks(program: Program) -> dict[str, int]:
    """By group: how many thread blocks its collectives may use, where the plan says (`ctas` of a Policy).

    Raises PlanError where it says more than one number, or asks for what NCCL cannot be told per communicator.
    """
    found: dict[str, int] = {}
    for one in program.instructions:
        if one.kind != OpKind.ISSUE or not isinstance(one.work, Transfer):
            continue
        if one.work.algorithm in ("copy_engine", "nvls"):
            wanted = "copy engines" if one.work.algorithm == "copy_engine" else "reduction in the switches"
            raise PlanError(f"{one.key}: {wanted} cannot be asked of a communicator: leave it out, or set NCCL's own variables")
        if one.work.ctas and found.setdefault(str(one.group), one.work.ctas) != one.work.ctas:
            raise PlanError(f"{one.key}: {one.group} has {found[str(one.group)]} and {one.work.ctas} thread blocks: expected one")
    return found


def against_capture(program: Program) -> str | None:
    """Why a step cannot be captured as a graph; None where it can."""
    for one in program.instructions:
        routed = [operand.name for operand in (*one.reads, *one.writes) if program.cells[operand.cell].slot < 0]
        if routed or one.role == "router.choose":
            return (
                f"{one.key}: the host reads how many rows each expert gets, and a graph has fixed sizes: "
                "leave --graph out, or choose a model without experts"
            )
    return None
