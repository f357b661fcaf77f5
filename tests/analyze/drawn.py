"""Timelines drawn by hand, in microseconds: each operation and host row is one tuple."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from underlap.analyze.graph import Waits
from underlap.columns import NONE
from underlap.timeline import (
    UNKNOWN_NS,
    Collectives,
    EventWaits,
    HostKind,
    HostRows,
    Lane,
    OpClass,
    Operations,
    RankInfo,
    Thread,
    Timeline,
)

US = 1000
COMPUTE, COMMUNICATION, COPY = OpClass.COMPUTE, OpClass.COMMUNICATION, OpClass.COPY


class Op(NamedTuple):
    """One operation. `lane` counts per rank; `launch` is the start of its launch on the rank's thread `thread`."""

    lane: int
    start: float
    end: float
    launch: float | None = None
    op_class: OpClass = COMPUTE
    rank: int = 0
    thread: int = 0
    call: int = -1


class Row(NamedTuple):
    """One host row that is no launch."""

    name: str
    start: float
    end: float
    kind: HostKind = HostKind.SYNC
    rank: int = 0
    thread: int = 0


def ns(value: float | None) -> int:
    return UNKNOWN_NS if value is None else round(value * US)


def timeline(
    *ops: Op,
    rows: tuple[Row, ...] = (),
    calls: tuple[int, ...] = (),
    launch_us: float = 1,
    events: tuple[tuple[int, float, int, float], ...] = (),
) -> Timeline:
    """`calls` gives the rank of each call; `events` are (waiting lane, wait, recording lane, record) of rank 0."""
    ranks = sorted({op.rank for op in ops} | {row.rank for row in rows})
    lanes = sorted({(op.rank, op.lane) for op in ops})
    threads = sorted({(entry.rank, entry.thread) for entry in (*ops, *rows)})
    names = ("launch", "kernel", *dict.fromkeys(row.name for row in rows))
    launches = sorted({(op.rank, op.thread, op.launch) for op in ops if op.launch is not None})
    host = [(ns(at), ns(at + launch_us), rank, threads.index((rank, of)), HostKind.LAUNCH, 0) for rank, of, at in launches]
    host += [
        (ns(row.start), ns(row.end), row.rank, threads.index((row.rank, row.thread)), row.kind, names.index(row.name))
        for row in rows
    ]
    columns = {field: [] for field in Operations.dtypes()}
    for at, op in enumerate(ops):
        values = {
            "start_ns": ns(op.start),
            "end_ns": ns(op.end),
            "launch_ns": ns(op.launch),
            "rank": op.rank,
            "device": 0,
            "lane": lanes.index((op.rank, op.lane)),
            "thread": threads.index((op.rank, op.thread)) if op.launch is not None else -1,
            "op_class": op.op_class,
            "name": 1,
            "call_site": -1,
            "collective": op.call,
            "graph": -1,
            "nbytes": -1,
            "represents": 1,
            "shape": NONE,
            "source_row": 1000 + at,
        }
        for field, value in values.items():
            columns[field].append(value)
    count = len(calls)
    result = Timeline(
        provenance="measured",
        origin_ns=0,
        ranks=tuple(
            RankInfo(rank=rank, rank_source="assumed", world_size=None, source="x", on_cpu=False, clock=0, resolution_ns=1)
            for rank in ranks
        ),
        lanes=tuple(Lane(rank=rank, device=0, label=str(label)) for rank, label in lanes),
        threads=tuple(Thread(rank=rank, process="1", label=str(label)) for rank, label in threads),
        groups=(),
        names=names,
        ops=Operations.from_columns(**columns),
        host=HostRows.from_columns(
            **dict(zip(("start_ns", "end_ns", "rank", "thread", "kind", "name"), zip(*host, strict=True), strict=True))
            if host
            else {field: [] for field in ("start_ns", "end_ns", "rank", "thread", "kind", "name")},
            source_row=list(range(len(host))),
        ),
        collectives=Collectives.from_columns(
            **{field: [-1] * count for field in Collectives.dtypes() if field not in ("rank", "library", "issue_ns")},
            rank=list(calls),
            library=[0] * count,
            issue_ns=[UNKNOWN_NS] * count,
        ),
        recognized=np.ones(len(names), dtype=bool),
        event_waits=EventWaits.from_columns(
            lane=[event[0] for event in events],
            wait_ns=[ns(event[1]) for event in events],
            on_lane=[event[2] for event in events],
            record_ns=[ns(event[3]) for event in events],
            source_row=[0] * len(events),
        ),
    )
    result.validate()
    return result


def whole(drawn: Timeline) -> dict[tuple[int, int], np.ndarray]:
    """The window of each rank: first start to last end."""
    stretches = {}
    for rank in np.unique(drawn.ops.rank).tolist():
        own = drawn.ops.rank == rank
        stretches[rank, int(drawn.ops.device[own][0])] = np.array(
            [[drawn.ops.start_ns[own].min(), drawn.ops.end_ns[own].max()]], dtype=np.int64
        )
    return stretches


def waits_by_order(drawn: Timeline, offset_ns: dict[int, int] | None = None) -> Waits:
    """The k-th call of each rank is the k-th collective; everyone waits for the last."""
    ops, count = drawn.ops, len(drawn.collectives)
    start, end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    rows = np.flatnonzero(ops.collective >= 0)
    moved = np.array([(offset_ns or {}).get(rank, 0) for rank in ops.rank[rows].tolist()], dtype=np.int64)
    np.minimum.at(start, ops.collective[rows], ops.start_ns[rows] + moved)
    np.maximum.at(end, ops.collective[rows], ops.end_ns[rows] + moved)
    instance = np.zeros(count, dtype=np.int64)
    for rank in np.unique(drawn.collectives.rank).tolist():
        own = np.flatnonzero(drawn.collectives.rank == rank)
        instance[own[np.argsort(start[own], kind="stable")]] = np.arange(len(own))
    last = np.zeros(int(instance.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(last, instance, start)
    return Waits(instance=instance, wait_ns=np.minimum(end, last[instance]) - start, offset_ns=offset_ns or {})
