"""`Timeline`: what happened, as columns. Made by read, simulate and run; read by analyze and render.

The words of the product, each with its equation, are in docs/glossary.md. The ones that this file needs:

    operation     a row of `Timeline.ops`: a kernel, a copy, or on CPU-only ranks an operator; it has a class
    lane          where operations run one after the other: a stream of a device, or a thread of a CPU rank
    collective    a row of `Timeline.collectives`: one call of a collective on one rank; its operations point to it
    group         the ranks that take part in a collective
    host row      a row of `Timeline.host`: a launch, a synchronization, an annotation, an operator on the host

All times are int64 nanoseconds relative to `Timeline.origin_ns`. Ids are int32; -1 means none or unknown. A time that is
not known is `UNKNOWN_NS`, a size that is not known is -1. Names are interned in `Timeline.names`.
"""

# long because: it is one noun, with the functions that keep its tables consistent.
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int8, Int32, Int64, Interner, Table

UNKNOWN_NS = int(np.iinfo(np.int64).min)

Shape = tuple[tuple[int, int, int], tuple[int, int, int]]
"""How a kernel was launched: (grid in blocks, block in threads), each (x, y, z)."""


class OpClass(IntEnum):
    """What an operation does to the device."""

    COMPUTE = 0
    COMMUNICATION = 1
    FUSED = 2
    """Compute and communication in one kernel."""
    COPY = 3
    """Host-device transfer, memset, or device-to-device within one device."""
    WAIT = 4
    """A spin kernel (barrier, notify): communication time in which nothing is transferred."""


class HostKind(IntEnum):
    """What a host row is."""

    LAUNCH = 0
    """A call that starts device work (kernel, copy, memset, graph)."""
    SYNC = 1
    """A call that blocks the host until the device is done, or a device-side synchronization row."""
    RUNTIME = 2
    """Any other call of the CUDA or HIP runtime or driver."""
    ANNOTATION = 3
    """A range named by the user or the framework (ProfilerStep#3, nccl:all_reduce, NVTX)."""
    OPERATOR = 4
    """An operator of the framework (aten::mm, c10d::allreduce_)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operations(Table):
    """Kernels, copies and (on CPU-only ranks) operators: what occupies a device."""

    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """Start of the call that launched it; `UNKNOWN_NS` where the trace does not say."""
    rank: Int32
    device: Int32
    lane: Int32
    """Index into `Timeline.lanes`."""
    thread: Int32
    """Index into `Timeline.threads`: the host thread that launched it."""
    op_class: Int8
    """An `OpClass`."""
    name: Int32
    shape: Int32
    """Index into `Timeline.shapes`: grid and block of a kernel; -1 where unknown or no kernel."""
    call_site: Int32
    """Index into `Timeline.names`: the operator or annotation that launched it."""
    collective: Int32
    """Index into `Timeline.collectives` for communication, fused and wait rows."""
    graph: Int32
    """Id of the device graph that launched it."""
    nbytes: Int64
    """Bytes moved, for copies; -1 where unknown or not a copy."""
    represents: Int32
    """How many identical ranks this row stands for (1 in a measured trace)."""
    source_row: Int64
    """Position of the event in its source file, from 0."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostRows(Table):
    """What the host did: launches, synchronizations, annotations, operators."""

    start_ns: Int64
    end_ns: Int64
    rank: Int32
    thread: Int32
    """Index into `Timeline.threads`."""
    kind: Int8
    """A `HostKind`."""
    name: Int32
    source_row: Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Collectives(Table):
    """One row per call of a collective on one rank."""

    rank: Int32
    group: Int32
    """Index into `Timeline.groups`."""
    sequence: Int64
    """Sequence number in the group, as the framework counted it; -1 where unknown."""
    collective: Int32
    """Index into `Timeline.names`: all_reduce, all_gather, ...; -1 where unknown."""
    library: Int32
    """Index into `Timeline.names`: nccl, gloo, deepep, ..."""
    dtype: Int32
    """Index into `Timeline.names`: Float, BFloat16, ...; -1 where unknown."""
    payload_bytes: Int64
    """As DESIGN defines it per collective: all-reduce and reduce-scatter input, all-gather output, all-to-all and p2p sent."""
    peer: Int32
    """The other rank of a p2p call, or the root of a rooted collective; -1 where unknown."""
    call_site: Int32
    """Index into `Timeline.names`: the operator or annotation that issued it."""
    issue_ns: Int64
    """Start of the operator that issued it; `UNKNOWN_NS` where the trace does not say."""
    asynchronous: Int8
    """1: the caller asked for a handle to wait on later (async_op). 0: it did not. -1 where the trace does not say."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventWaits(Table):
    """Waits of one lane for an event that was recorded on another, where the trace has their ids."""

    lane: Int32
    """The waiting lane, an index into `Timeline.lanes`."""
    wait_ns: Int64
    """Start of the host call that made it wait: operations launched later on the lane are held."""
    on_lane: Int32
    """The lane on which the event was recorded."""
    record_ns: Int64
    """Start of the host call that recorded the event: operations launched earlier on that lane are waited for."""
    source_row: Int64


class DependenceSource(IntEnum):
    """How a row of `Dependences` is known."""

    DATA = 0
    """An execution trace names the tensor that the one wrote and the other used."""
    BORROWED = 1
    """Another recording of the job shows this order; not measured in this one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dependences(Table):
    """Pairs of operations of one rank of which the later one needs the earlier one, told by something other than times."""

    rank: Int32
    before_row: Int64
    """`Operations.source_row` of the one that has to end first. Several operations may share it: then the last of them."""
    after_row: Int64
    """`Operations.source_row` of the one that needs it; of several the first."""
    source: Int8
    """A `DependenceSource`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A stream of a device, or a thread of a CPU-only rank."""

    rank: int
    device: int
    label: str
    """As the trace names it: the stream or thread id."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread of the host."""

    rank: int
    process: str
    label: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group, as the trace describes it."""

    name: str | None
    description: str | None
    size: int | None
    ranks: tuple[int, ...] | None
    """The members, or None where the trace does not list them (or cuts the list short)."""
    note: str | None = None
    """How the group was found, when not by name."""
    folded: bool = False
    """True where absent members do exactly what the present ones do, and arrive with them: ranks of one role of a plan."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One rank, and how it is known."""

    rank: int
    rank_source: str
    """distributedInfo, file name, process order, or assumed."""
    world_size: int | None
    source: str
    """Base name of the file that it was read from."""
    on_cpu: bool
    """True where the rank has no device rows: its operations are operators and gloo spans on the host."""
    clock: int
    """Ranks with the same number share one clock. A reader gives 0, or a number that stands for the host it is told."""
    resolution_ns: int
    """1000 where the trace has whole microseconds only."""
    device_model: str | None = None
    multiprocessors: int | None = None
    """Of each device of the rank; None where the trace does not say."""
    coordinates: tuple[tuple[str, int], ...] = ()
    """Mesh coordinates in the file's name, (dimension, index), where the file names no rank."""
    session_ns: tuple[int, int] | None = None
    """From when to when it was recorded, on the calendar's clock (UTC); None where the trace does not say."""
    groups: tuple[int, ...] = ()
    """Indices into `Timeline.groups`: the groups that the trace lists for this rank, used or not."""
    core_ns: int | None = None
    """What all communication of the recording took of the core that computes; None where it was not measured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something about the input that the reader of a report has to know."""

    code: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened on some ranks. See the module docstring for units and for what -1 means."""

    provenance: str
    """measured or simulated."""
    origin_ns: int
    """What time 0 is on the clock of the traces."""
    ranks: tuple[RankInfo, ...]
    lanes: tuple[Lane, ...]
    threads: tuple[Thread, ...]
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    ops: Operations
    host: HostRows
    collectives: Collectives
    recognized: NDArray[np.bool_]
    """Per name: whether the kernel table knows it. Shape (len(names),)."""
    shapes: tuple[Shape, ...] = ()
    """Distinct grids and blocks, which `Operations.shape` points to."""
    notes: tuple[Note, ...] = ()
    event_waits: EventWaits = dataclasses.field(default_factory=EventWaits.empty)
    dependences: Dependences = dataclasses.field(default_factory=Dependences.empty)

    def name_of(self, index: int) -> str | None:
        """The interned name, or None for -1."""
        return None if index < 0 else self.names[index]

    def of_ranks(self, wanted: set[int]) -> Self:
        """This Timeline with the rows of some of its ranks only."""
        keep_calls = np.isin(self.collectives.rank, list(wanted))
        place = np.append(np.where(keep_calls, np.cumsum(keep_calls) - 1, NONE), NONE).astype(np.int32)
        ops = self.ops.take(np.isin(self.ops.rank, list(wanted)))
        return dataclasses.replace(
            self,
            ranks=tuple(info for info in self.ranks if info.rank in wanted),
            ops=ops.replace(collective=place[ops.collective]),
            host=self.host.take(np.isin(self.host.rank, list(wanted))),
            collectives=self.collectives.take(keep_calls),
            dependences=self.dependences.take(np.isin(self.dependences.rank, list(wanted))),
            event_waits=self.event_waits.take(np.isin(self._lane_ranks()[self.event_waits.on_lane], list(wanted))),
        )

    def _lane_ranks(self) -> Int32:
        return np.array([*(lane.rank for lane in self.lanes), NONE], dtype=np.int32)

    def validate(self) -> None:
        """Assert that every index is in range, and that no operation ends before it starts."""
        assert (self.ops.end_ns >= self.ops.start_ns).all()
        assert len(self.recognized) == len(self.names)
        for indices, target in (
            (self.ops.lane, self.lanes),
            (self.ops.name, self.names),
            (self.ops.thread, self.threads),
            (self.ops.shape, self.shapes),
            (self.ops.collective, self.collectives),
            (self.collectives.group, self.groups),
            (self.collectives.collective, self.names),
        ):
            assert len(indices) == 0 or (indices.max() < len(target) and indices.min() >= NONE)
        ranks = {rank.rank for rank in self.ranks}
        assert len(ranks) == len(self.ranks)
        assert ranks.issuperset(np.unique(self.ops.rank).tolist())


def in_time_order(ops: Operations, collectives: Collectives) -> tuple[Operations, Collectives]:
    """Operations sorted by start, and collectives by the start of their first operation, so that order means order of time."""
    ops = ops.take(np.argsort(ops.start_ns, kind="stable"))
    owners = ops.collective[ops.collective >= 0]
    found, first = np.unique(owners, return_index=True)
    order = found[np.argsort(first, kind="stable")]
    # Calls without an operation come last.
    order = np.concatenate([order, np.setdiff1d(np.arange(len(collectives)), order)]).astype(np.int64)
    place = np.empty(len(order) + 1, dtype=np.int32)
    place[order] = np.arange(len(order))
    place[-1] = NONE
    return ops.replace(collective=place[ops.collective]), collectives.take(order)


def with_ranks(timeline: Timeline, ranks: Sequence[RankInfo]) -> Timeline:
    """The Timeline with other facts about its ranks."""
    return dataclasses.replace(timeline, ranks=tuple(ranks))


def renumber(timeline: Timeline, mapping: dict[int, int]) -> Timeline:
    """The Timeline with other rank numbers: old -> new for every rank."""
    if all(old == new for old, new in mapping.items()):
        return timeline
    table = np.zeros(max(mapping) + 1, dtype=np.int32)
    table[list(mapping)] = list(mapping.values())
    return dataclasses.replace(
        timeline,
        ranks=tuple(dataclasses.replace(info, rank=mapping[info.rank]) for info in timeline.ranks),
        lanes=tuple(dataclasses.replace(lane, rank=mapping[lane.rank]) for lane in timeline.lanes),
        threads=tuple(dataclasses.replace(thread, rank=mapping[thread.rank]) for thread in timeline.threads),
        ops=timeline.ops.replace(rank=table[timeline.ops.rank]),
        host=timeline.host.replace(rank=table[timeline.host.rank]),
        collectives=timeline.collectives.replace(rank=table[timeline.collectives.rank]),
        dependences=timeline.dependences.replace(rank=table[timeline.dependences.rank]),
    )


def concatenate(timelines: Sequence[Timeline]) -> Timeline:
    """One Timeline from several with different ranks: tables appended, ids and origins made common."""
    assert timelines
    if len(timelines) == 1:
        return timelines[0]
    origin = min(timeline.origin_ns for timeline in timelines)
    names, groups, shapes = Interner(), Interner(), Interner()
    lanes: list[Lane] = []
    threads: list[Thread] = []
    ranks: list[RankInfo] = []
    ops: list[Operations] = []
    host: list[HostRows] = []
    collectives: list[Collectives] = []
    event_waits: list[EventWaits] = []
    recognized: dict[str, bool] = {}
    for timeline in timelines:
        name = _remap([names(value) for value in timeline.names])
        group = _remap([groups(value) for value in timeline.groups])
        shape = _remap([shapes(value) for value in timeline.shapes])
        recognized.update(zip(timeline.names, timeline.recognized.tolist(), strict=True))
        move = timeline.origin_ns - origin
        table = timeline.ops
        ops.append(
            table.replace(
                start_ns=table.start_ns + move,
                end_ns=table.end_ns + move,
                launch_ns=_shift(table.launch_ns, move),
                lane=_offset(table.lane, len(lanes)),
                thread=_offset(table.thread, len(threads)),
                name=name(table.name),
                shape=shape(table.shape),
                call_site=name(table.call_site),
                collective=_offset(table.collective, sum(len(part) for part in collectives)),
            )
        )
        rows = timeline.host
        host.append(
            rows.replace(
                start_ns=rows.start_ns + move,
                end_ns=rows.end_ns + move,
                thread=_offset(rows.thread, len(threads)),
                name=name(rows.name),
            )
        )
        calls = timeline.collectives
        collectives.append(
            calls.replace(
                group=group(calls.group),
                collective=name(calls.collective),
                library=name(calls.library),
                dtype=name(calls.dtype),
                call_site=name(calls.call_site),
                issue_ns=_shift(calls.issue_ns, move),
            )
        )
        event_waits.append(_moved_waits(timeline.event_waits, len(lanes), move))
        lanes.extend(timeline.lanes)
        threads.extend(timeline.threads)
        ranks.extend(
            dataclasses.replace(rank, groups=tuple(group(np.asarray(rank.groups, dtype=np.int32)).tolist()))
            for rank in timeline.ranks
        )
    return Timeline(
        provenance=timelines[0].provenance,
        origin_ns=origin,
        ranks=tuple(ranks),
        lanes=tuple(lanes),
        threads=tuple(threads),
        groups=tuple(groups.values),
        names=tuple(names.values),
        shapes=tuple(shapes.values),
        ops=Operations.concatenate(ops),
        host=HostRows.concatenate(host),
        collectives=Collectives.concatenate(collectives),
        recognized=np.array([recognized[value] for value in names.values], dtype=np.bool_),
        event_waits=EventWaits.concatenate(event_waits),
        dependences=Dependences.concatenate([timeline.dependences for timeline in timelines]),
        notes=tuple(dict.fromkeys(note for timeline in timelines for note in timeline.notes)),
    )


def _moved_waits(waits: EventWaits, lanes: int, move: int) -> EventWaits:
    return waits.replace(
        lane=_offset(waits.lane, lanes),
        on_lane=_offset(waits.on_lane, lanes),
        wait_ns=_shift(waits.wait_ns, move),
        record_ns=_shift(waits.record_ns, move),
    )


def _remap(table: list[int]) -> Callable[[Int32], Int32]:
    # The extra last entry maps -1 to itself.
    array = np.array([*table, NONE], dtype=np.int32)
    return lambda ids: array[ids]


def _offset(ids: Int32, offset: int) -> Int32:
    return np.where(ids >= 0, ids + offset, ids).astype(np.int32)


def _shift(times: Int64, move: int) -> Int64:
    return np.where(times == UNKNOWN_NS, times, times + move)
