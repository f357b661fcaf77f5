"""Who waited for whom, edge by edge: what `graph.build` puts together. The kinds are described there."""

from __future__ import annotations

import bisect
import dataclasses
from enum import IntEnum
from typing import Literal

import numpy as np

from underlap.analyze import host_chain, latencies
from underlap.analyze.host_chain import LEAVE
from underlap.analyze.latencies import Latencies
from underlap.columns import NONE, Int8, Int64, Table
from underlap.timeline import UNKNOWN_NS, DependenceSource, Operations, Timeline

TURN = np.array([3, 1, 2, 0])
"""At one moment a thread leaves a call, launches, enters a call, computes: the order of the kinds of nodes."""


class EdgeKind(IntEnum):
    """Described in `graph`."""

    LANE = 0
    LAUNCH = 1
    EVENT = 2
    HOST_SYNC = 3
    BUSY = 4
    ACROSS = 5
    HANDOFF = 6
    DATA = 7
    BORROWED = 8


class Grade(IntEnum):
    """How a dependence is known, the surest first."""

    DATA = 0
    SYNC = 1
    ORDER = 2
    TIMING = 3
    BORROWED = 4
    """Seen in another recording of the job."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Edges(Table):
    """Dependences, ordered by target."""

    source: Int64
    target: Int64
    kind: Int8
    grade: Int8
    lag_ns: Int64


def _edges(source: Int64, target: Int64, kind: EdgeKind, grade: Grade, keep: np.ndarray) -> Edges:
    """Edges of one kind; `graph.build` sets their lags."""
    source, target = np.asarray(source)[keep], np.asarray(target)[keep]
    return Edges.from_columns(
        source=source,
        target=target,
        kind=np.full(len(source), kind),
        grade=np.full(len(source), grade),
        lag_ns=np.full(len(source), UNKNOWN_NS),
    )


def usual(timeline: Timeline) -> dict[int, Latencies]:
    """The latencies of each rank."""
    ops = timeline.ops.replace(launch_ns=host_chain.launches(timeline)[1])
    return {
        info.rank: latencies.of_rank(ops.take(np.flatnonzero(ops.rank == info.rank)), info.resolution_ns)
        for info in timeline.ranks
    }


def _on_cpu(timeline: Timeline) -> np.ndarray:
    return np.isin(timeline.ops.rank, [info.rank for info in timeline.ranks if info.on_cpu])


def lane_edges(timeline: Timeline) -> Edges:
    """The operation before it in its lane. Spans of a CPU rank that run side by side in one lane (sends and receives, which
    all lie on the thread that called them) are the work of several servers, and only wait for the one before on theirs."""
    previous = latencies.previous_in_lane(timeline.ops)
    # On CPU ranks the computing operators stand in the chain of their thread.
    on_cpu = _on_cpu(timeline)
    chained = on_cpu & (timeline.ops.collective < 0)
    spans = np.flatnonzero(on_cpu & (timeline.ops.collective >= 0))
    previous[spans] = _previous_on_server(timeline.ops, spans)
    return _edges(previous, np.arange(len(previous)), EdgeKind.LANE, Grade.ORDER, (previous >= 0) & ~chained)


def _previous_on_server(ops: Operations, rows: Int64) -> Int64:
    """Per row the one before it on its server, -1 for the first: a lane has as many servers as spans run in it at once, and
    a span takes the one that became free last before it starts."""
    result = np.full(len(rows), NONE, dtype=np.int64)
    free: dict[int, list[tuple[int, int]]] = {}
    order = np.lexsort((ops.end_ns[rows], ops.start_ns[rows], ops.lane[rows]))
    for place, lane, start, end in zip(
        order.tolist(), *(column[rows[order]].tolist() for column in (ops.lane, ops.start_ns, ops.end_ns)), strict=True
    ):
        servers = free.setdefault(lane, [])
        at = bisect.bisect_right(servers, (start, len(ops))) - 1
        if at >= 0:
            result[place] = servers.pop(at)[1]
        bisect.insort(servers, (end, int(rows[place])))
    return result


def launch_edges(found: host_chain.Found) -> Edges:
    """The call that launched it -> the operation."""
    size = len(found.launch_point)
    return _edges(size + found.launch_point, np.arange(size), EdgeKind.LAUNCH, Grade.SYNC, found.launch_point >= 0)


def event_edges(timeline: Timeline) -> Edges:
    """Last operation launched on the recording lane before the record -> first launched on the waiting lane after the wait."""
    waits, ops = timeline.event_waits, timeline.ops
    recorded = last_recorded(timeline)
    target = np.full(len(waits), NONE, dtype=np.int64)
    order = np.lexsort((ops.launch_ns, ops.lane))
    lane = ops.lane[order]
    for waiting in np.unique(waits.lane[waits.lane >= 0]).tolist():
        rows = np.flatnonzero(waits.lane == waiting)
        own = order[slice(*np.searchsorted(lane, [waiting, waiting + 1]))]
        at = np.searchsorted(ops.launch_ns[own], waits.wait_ns[rows])
        inside = at < len(own)
        target[rows[inside]] = own[at[inside]]
    return _edges(recorded, target, EdgeKind.EVENT, Grade.SYNC, (recorded >= 0) & (target >= 0))


def told_edges(timeline: Timeline) -> list[Edges]:
    """What the Timeline was told: that one operation uses what another wrote, and orders borrowed from another recording."""
    table, ops = timeline.dependences, timeline.ops
    if len(table) == 0:
        return []
    # Pieces of one event share its row: the last of them ends it, the first begins it.
    order = np.lexsort((ops.start_ns, ops.source_row, ops.rank))
    rank, row = ops.rank[order].astype(np.int64), ops.source_row[order]
    keys = np.unique(np.concatenate([row, table.before_row, table.after_row]))
    numbers = rank * len(keys) + np.searchsorted(keys, row)

    def found(rows: Int64, side: Literal["left", "right"]) -> Int64:
        wanted = table.rank.astype(np.int64) * len(keys) + np.searchsorted(keys, rows)
        at = np.searchsorted(numbers, wanted, side=side) - (side == "right")
        inside = np.clip(at, 0, len(numbers) - 1)
        return np.where((at >= 0) & (at < len(numbers)) & (numbers[inside] == wanted), order[inside], NONE)

    before, after = found(table.before_row, "right"), found(table.after_row, "left")
    known = (before >= 0) & (after >= 0) & (before != after)
    return [
        _edges(before, after, EdgeKind.DATA, Grade.DATA, known & (table.source == DependenceSource.DATA)),
        _edges(before, after, EdgeKind.BORROWED, Grade.BORROWED, known & (table.source == DependenceSource.BORROWED)),
    ]


def last_recorded(timeline: Timeline) -> Int64:
    """Per event wait the last operation launched on the recording lane before the record, -1 for none."""
    waits, ops = timeline.event_waits, timeline.ops
    result = np.full(len(waits), NONE, dtype=np.int64)
    order = np.lexsort((ops.launch_ns, ops.lane))
    lane = ops.lane[order]
    for on in np.unique(waits.on_lane).tolist():
        rows = np.flatnonzero(waits.on_lane == on)
        own = order[slice(*np.searchsorted(lane, [on, on + 1]))]
        at = np.searchsorted(ops.launch_ns[own], waits.record_ns[rows]) - 1
        result[rows[at >= 0]] = own[at[at >= 0]]
    return result


def host_sync_edges(timeline: Timeline, found: host_chain.Found) -> list[Edges]:
    """The operation that a blocking call waited for -> leaving it."""
    points, ops, size = found.points, timeline.ops, len(timeline.ops)
    copies = _edges(np.arange(size), size + found.blocking_point, EdgeKind.HOST_SYNC, Grade.SYNC, found.blocking_point >= 0)
    claimed = np.zeros(len(points.kind), dtype=bool)
    claimed[found.blocking_point[found.blocking_point >= 0]] = True
    leaves = np.flatnonzero((points.kind == LEAVE) & ~claimed & (points.host >= 0))
    source = np.full(len(leaves), NONE, dtype=np.int64)
    for rank in np.unique(points.rank[leaves]).tolist():
        mine = np.flatnonzero(points.rank[leaves] == rank)
        entered = timeline.host.start_ns[points.host[leaves[mine]]]
        source[mine] = _waited_for(ops, np.flatnonzero(ops.rank == rank), entered, points.time_ns[leaves[mine]])
    named = _named_sources(timeline, leaves, found)
    source = np.where(named >= 0, named, source)
    single = {rank: len(np.unique(ops.lane[ops.rank == rank])) == 1 for rank in np.unique(points.rank).tolist()}
    sure = points.whole_device[leaves] | np.array([single[rank] for rank in points.rank[leaves].tolist()], dtype=bool)
    sure |= named >= 0
    known = source >= 0
    return [
        copies,
        _edges(source, size + leaves, EdgeKind.HOST_SYNC, Grade.SYNC, known & sure),
        _edges(source, size + leaves, EdgeKind.HOST_SYNC, Grade.TIMING, known & ~sure),
    ]


def _named_sources(timeline: Timeline, leaves: Int64, found: host_chain.Found) -> Int64:
    """Per blocking call the operation that the trace's ids say it waited for, -1 where they say nothing."""
    waits, points, host = timeline.event_waits, found.points, timeline.host
    recorded = last_recorded(timeline)
    lane_rank = np.array([lane.rank for lane in timeline.lanes], dtype=np.int64)
    by_host = np.flatnonzero((waits.lane < 0) & (recorded >= 0))
    named = {
        (rank, start): operation
        for rank, start, operation in zip(
            lane_rank[waits.on_lane[by_host]].tolist(), waits.wait_ns[by_host].tolist(), recorded[by_host].tolist(), strict=True
        )
    }
    keys = zip(points.rank[leaves].tolist(), host.start_ns[points.host[leaves]].tolist(), strict=True)
    return np.array([named.get(key, NONE) for key in keys], dtype=np.int64)


def _waited_for(ops: Operations, rows: Int64, entered: Int64, left: Int64) -> Int64:
    """Of `rows`, the operation launched before entering that ended last, but inside the call; -1 where there is none."""
    by_end = rows[np.argsort(ops.end_ns[rows], kind="stable")]
    at = np.searchsorted(ops.end_ns[by_end], left, side="right") - 1
    result = np.full(len(left), NONE, dtype=np.int64)
    open_rows = np.arange(len(left))
    for _ in range(8):
        open_rows = open_rows[at[open_rows] >= 0]
        candidate = by_end[at[open_rows]]
        inside = ops.end_ns[candidate] > entered[open_rows]
        fits = inside & ((ops.launch_ns[candidate] < entered[open_rows]) | (ops.launch_ns[candidate] == UNKNOWN_NS))
        result[open_rows[fits]] = candidate[fits]
        open_rows = open_rows[inside & ~fits]
        at[open_rows] -= 1
    return result


def across_edges(timeline: Timeline, of_rank: dict[int, Latencies], events: Edges) -> Edges:
    """Starts that launch, lane and events do not explain, shortly after an end in another lane."""
    ops = timeline.ops
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    explained = np.zeros(len(ops), dtype=bool)
    explained[events.target] = True
    for info in timeline.ranks:
        rows = np.flatnonzero(ops.rank == info.rank)
        if info.on_cpu or len(rows) == 0:
            continue
        own, gaps = ops.take(rows), of_rank[info.rank]
        ready = latencies.ready_without(own, latencies.previous_in_lane(own), (gaps.launch, gaps.launch_copy), gaps.lane)
        late = np.flatnonzero((own.start_ns - ready > max(gaps.lane_most, 1000)) & ~explained[rows] | (ready == UNKNOWN_NS))
        other = latencies.last_elsewhere(own, late, info.resolution_ns if info.resolution_ns > 1 else 1000)
        near = (other >= 0) & (own.start_ns[late] - own.end_ns[other] <= gaps.across) & (own.end_ns[other] > ready[late])
        sources.append(rows[other[near]])
        targets.append(rows[late[near]])
    source, target = np.concatenate(sources), np.concatenate(targets)
    return _edges(source, target, EdgeKind.ACROSS, Grade.TIMING, np.ones(len(source), dtype=bool))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Chains:
    """The elements of all threads, by thread and time, on each rank's own clock."""

    node: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    bounds: dict[int, tuple[int, int]]
    """Thread -> its range in the columns."""


def _chains(timeline: Timeline, found: host_chain.Found) -> _Chains:
    points, ops, size = found.points, timeline.ops, len(timeline.ops)
    chained = np.flatnonzero(_on_cpu(timeline) & (ops.collective < 0))
    node = np.concatenate([chained, size + np.arange(len(points.kind))])
    thread = np.concatenate([ops.thread[chained], points.thread]).astype(np.int64)
    start = np.concatenate([ops.start_ns[chained], points.time_ns])
    end = np.concatenate([ops.end_ns[chained], points.time_ns])
    order = np.lexsort((node, end, TURN[np.concatenate([np.zeros(len(chained), dtype=np.int8), points.kind])], start, thread))
    thread = thread[order]
    numbers = np.unique(thread)
    low, high = np.searchsorted(thread, numbers), np.searchsorted(thread, numbers, side="right")
    return _Chains(
        node=node[order],
        thread=thread,
        start_ns=start[order],
        end_ns=end[order],
        bounds={int(number): (int(one), int(two)) for number, one, two in zip(numbers, low, high, strict=True)},
    )


def host_edges(timeline: Timeline, found: host_chain.Found) -> list[Edges]:
    """The chain of each thread, and whom a silent thread was waiting for. The lag of a chain is what the host was busy."""
    chains = _chains(timeline, found)
    ahead = np.flatnonzero(chains.thread[1:] == chains.thread[:-1])
    busy = np.maximum(chains.start_ns[ahead + 1] - chains.end_ns[ahead], 0)
    edge_into = np.full(len(chains.node), NONE, dtype=np.int64)
    edge_into[ahead + 1] = np.arange(len(ahead))
    quiet = host_chain.silences(timeline, np.array(sorted(chains.bounds), dtype=np.int64))
    pairs: list[tuple[int, int]] = []
    for thread, begun, resumed, cause, other, span in zip(*(column.tolist() for column in quiet.columns().values()), strict=True):
        low, high = chains.bounds[thread]
        at = low + int(np.searchsorted(chains.start_ns[low:high], resumed))
        source = span if span >= 0 else _last_before(chains, other, cause)
        if at >= high or source < 0 or (span >= 0 and _interrupted(timeline.ops, span, resumed - begun)):
            continue
        edge = int(edge_into[at])
        if edge >= 0:
            # Only what was silent after the element before is not busy.
            silent = resumed - max(begun, int(chains.end_ns[at - 1]))
            if silent <= 0:
                continue
            busy[edge] = max(int(busy[edge]) - silent, 0)
        pairs.append((source, int(chains.node[at])))
    chain = _edges(chains.node[ahead], chains.node[ahead + 1], EdgeKind.BUSY, Grade.ORDER, np.ones(len(ahead), dtype=bool))
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    handoff = _edges(table[:, 0], table[:, 1], EdgeKind.HANDOFF, Grade.TIMING, np.ones(len(table), dtype=bool))
    return [chain.replace(lag_ns=busy), handoff]


def _interrupted(ops: Operations, span: int, silent: int) -> bool:
    """A thread that was busy beside a span up to its last moments may as well have been interrupted by the one that ended it.
    That the span had ended before is known all the same."""
    return silent < host_chain.HANDOFF_NS and silent < host_chain.HANDOFF_SHARE * int(ops.end_ns[span] - ops.start_ns[span])


def _last_before(chains: _Chains, thread: int, time: int) -> int:
    """The last element of a thread that ended by then; -1 for none."""
    low, high = chains.bounds.get(thread, (0, 0))
    at = low + int(np.searchsorted(chains.end_ns[low:high], time, side="right")) - 1
    return int(chains.node[at]) if at >= low else NONE
