"""Small Timelines by hand: a list of operations, of calls, of host rows, and what they refer to by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from underlap.columns import NONE, Interner
from underlap.timeline import (
    UNKNOWN_NS,
    Collectives,
    Group,
    HostKind,
    HostRows,
    Lane,
    Note,
    OpClass,
    Operations,
    RankInfo,
    Thread,
    Timeline,
)

COMPUTE, COMMUNICATION, FUSED, COPY, WAIT = OpClass


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """A row of `Timeline.ops`. `call` is an index into the list of calls."""

    op_class: OpClass
    start: int
    end: int
    call: int | None = None
    launch: int | None = None
    name: str = "kernel"
    rank: int = 0
    device: int = 0
    lane: str = "7"
    thread: str = "1"
    graph: int = NONE
    nbytes: int = NONE


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A row of `Timeline.collectives`. `group` is an index into the list of groups."""

    collective: str | None = "all_reduce"
    payload: int | None = None
    group: int | None = None
    sequence: int | None = None
    rank: int = 0
    library: str = "nccl"
    dtype: str | None = None
    peer: int | None = None
    site: str | None = None
    issue: int | None = None
    asynchronous: int = NONE


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A row of `Timeline.host`."""

    name: str
    start: int
    end: int
    kind: HostKind = HostKind.ANNOTATION
    rank: int = 0
    thread: str = "1"


def info(rank: int = 0, *, world: int | None = None, groups: Sequence[int] = (), on_cpu: bool = False) -> RankInfo:
    """A rank of one file."""
    return RankInfo(
        rank=rank,
        rank_source="distributedInfo",
        world_size=world,
        source=f"rank{rank}.json",
        on_cpu=on_cpu,
        clock=0,
        resolution_ns=1,
        groups=tuple(groups),
    )


def group(*ranks: int, description: str | None = None, name: str | None = "1", size: int | None = None) -> Group:
    """A process group with known members, or with a known size only."""
    return Group(name=name, description=description, size=size or len(ranks) or None, ranks=ranks or None)


def build(
    ops: Sequence[Op] = (),
    *,
    calls: Sequence[Call] = (),
    host: Sequence[Host] = (),
    groups: Sequence[Group] = (),
    ranks: Sequence[RankInfo] | None = None,
    unknown: Collection[str] = (),
    origin: int = 0,
    notes: Sequence[Note] = (),
) -> Timeline:
    """The Timeline of these rows. Ranks default to those of the operations; names in `unknown` are of no kernel family."""
    names, lanes, threads = Interner(), Interner(), Interner()
    if ranks is None:
        ranks = [info(rank) for rank in sorted({op.rank for op in ops})]
    operations = Operations.from_columns(
        start_ns=[op.start for op in ops],
        end_ns=[op.end for op in ops],
        launch_ns=[UNKNOWN_NS if op.launch is None else op.launch for op in ops],
        rank=[op.rank for op in ops],
        device=[op.device for op in ops],
        lane=[lanes(Lane(rank=op.rank, device=op.device, label=op.lane)) for op in ops],
        thread=[threads(Thread(rank=op.rank, process="1", label=op.thread)) for op in ops],
        op_class=[op.op_class for op in ops],
        name=[names(op.name) for op in ops],
        shape=[NONE] * len(ops),
        call_site=[NONE] * len(ops),
        collective=[_id(op.call) for op in ops],
        graph=[op.graph for op in ops],
        nbytes=[op.nbytes for op in ops],
        represents=[1] * len(ops),
        source_row=list(range(len(ops))),
    )
    rows = HostRows.from_columns(
        start_ns=[row.start for row in host],
        end_ns=[row.end for row in host],
        rank=[row.rank for row in host],
        thread=[threads(Thread(rank=row.rank, process="1", label=row.thread)) for row in host],
        kind=[row.kind for row in host],
        name=[names(row.name) for row in host],
        source_row=list(range(len(host))),
    )
    collectives = Collectives.from_columns(
        rank=[call.rank for call in calls],
        group=[_id(call.group) for call in calls],
        sequence=[_id(call.sequence) for call in calls],
        collective=[names.optional(call.collective) for call in calls],
        library=[names(call.library) for call in calls],
        dtype=[names.optional(call.dtype) for call in calls],
        payload_bytes=[_id(call.payload) for call in calls],
        peer=[_id(call.peer) for call in calls],
        call_site=[names.optional(call.site) for call in calls],
        issue_ns=[UNKNOWN_NS if call.issue is None else call.issue for call in calls],
        asynchronous=[call.asynchronous for call in calls],
    )
    timeline = Timeline(
        provenance="measured",
        origin_ns=origin,
        ranks=tuple(ranks),
        lanes=tuple(lanes.values),
        threads=tuple(threads.values),
        groups=tuple(groups),
        names=tuple(names.values),
        ops=operations,
        host=rows,
        collectives=collectives,
        recognized=np.array([name not in unknown for name in names.values], dtype=np.bool_),
        notes=tuple(notes),
    )
    timeline.validate()
    return timeline


def _id(value: int | None) -> int:
    return NONE if value is None else value
