"""A window of the dependence graph as a Network to replay, as it was or with something taken away.

Unchanged it replays every start exactly, which proves nothing: a start that no edge explains keeps its delay. Unknown
dependences are kept too: where an operation of another lane had ended before one started, that order stays (`possible`
edges), as nobody knows that the second did not need the first. What began before the window is fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from underlap import replay
from underlap.analyze.dependences import TURN
from underlap.analyze.evened import Evened
from underlap.analyze.graph import MEETING_NS, OP, EdgeKind, Graph
from underlap.analyze.interference import Interference, links, shared, stretch
from underlap.analyze.queues import chains, communicates, implied_by, queued, queues
from underlap.columns import NONE, Int32, Int64
from underlap.replay import NO_RELEASE, Network, Times
from underlap.timeline import Timeline

MOST_ROUNDS, SETTLED = 20, 1e-3
"""Computation that is longer has more transfers beside it, and so on; transfers that share a link likewise. Until no more changes
than this share of the window: each round adds a share of what the one before added, so a few do."""
_OF_HOST = (EdgeKind.LAUNCH, EdgeKind.HOST_SYNC, EdgeKind.BUSY, EdgeKind.HANDOFF)
_ON_DEVICE_TIMING = (EdgeKind.ACROSS, EdgeKind.BORROWED)
"""What this trace does not show: inferred from its times, or borrowed from another recording."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is different from what happened. Nothing by default."""

    waiting: bool = True
    """False: every peer is there in time; ranks do not hold each other up."""
    host: float = 1.0
    """The host's own work, and the delays after a launch or a blocking call, by this factor."""
    serialized: bool = True
    """False: compute and communication of one lane do not wait for each other."""
    work_ns: Int64 | None = None
    """Durations of operations instead of those observed, without waiting. Shape (len(ops),)."""
    transfer: float = 1.0
    """Transfers last so many times as long."""
    calls: bool = True
    """False: what the host does to launch communication takes no time."""
    possible: bool = True
    """False: what merely had ended before, in another lane, need not have."""
    queued: bool = True
    """False: collectives do not stand behind others in their lane that they were launched beside."""
    evened: Evened | None = None
    """What late ranks do less; None for nothing."""
    inferred: bool = True
    """False: dependences that are only inferred from timing do not hold (a barrier is waited for)."""
    shared: bool = True
    """False: transfers of one group take nothing of each other's link."""
    interference: Interference | None = None
    """What transfers take of the compute beside them, wherever they come to lie; None: what lay beside them stays as long."""


AS_IT_WAS = Changes()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What of the graph is replayed, and what closes it."""

    begin_ns: int
    """On the common clock."""
    end_ns: int
    nodes: Int64
    """Nodes of the graph, in order of the Network's rows."""
    row: Int64
    """Per node of the graph its row, -1 outside."""
    border: Int64
    """Rows whose start closes the window."""
    ends: Int64
    """Rows whose end closes it."""
    tail_ns: int
    """What of the window lies after its last end, where no start closes it."""
    possible: tuple[Int64, Int64]
    """(source, target) nodes of the graph: an operation that had ended before one of another lane started."""


def window(timeline: Timeline, graph: Graph, stretches: Mapping[tuple[int, int], Int64]) -> Window:
    """The window of some stretches per (rank, device), on the ranks' own clocks, from the first begin to the last end."""
    ops, size = timeline.ops, len(timeline.ops)
    ranks, first = np.unique(ops.rank, return_index=True)
    shift = dict(zip(ranks.tolist(), (graph.start_ns[first] - ops.start_ns[first]).tolist(), strict=True))
    bounds = {
        key: (int(rows[0, 0]) + shift.get(key[0], 0), int(rows[-1, 1]) + shift.get(key[0], 0)) for key, rows in stretches.items()
    }
    begin, end = min(low for low, _ in bounds.values()), max(high for _, high in bounds.values())
    chosen = np.zeros(len(graph), dtype=bool)
    borders: list[int] = []
    closing = np.zeros(len(graph), dtype=bool)
    for rank in sorted({rank for rank, _ in bounds}):
        last = max(high for (owner, _), (_, high) in bounds.items() if owner == rank)
        chosen |= (graph.rank == rank) & (graph.start_ns >= begin) & (graph.start_ns < last)
    for (rank, device), (_, high) in bounds.items():
        own = np.flatnonzero((ops.rank == rank) & (ops.device == device))
        at_border = own[graph.start_ns[own] == high]
        if len(at_border):
            borders.append(int(at_border[0]))
            chosen[at_border[0]] = True
        else:
            closing[own[(graph.start_ns[own] < high) & (graph.end_ns[own] <= high)]] = True
    nodes = np.flatnonzero(chosen)
    # In the order of what happened nearly every row waits for earlier rows only, which is quicker to replay.
    nodes = nodes[np.lexsort((graph.end_ns[nodes], TURN[graph.kind[nodes]], graph.start_ns[nodes]))]
    row = np.full(len(graph), NONE, dtype=np.int64)
    row[nodes] = np.arange(len(nodes))
    closing[size:] = False
    ends = np.flatnonzero(closing & chosen)
    last = max([int(graph.start_ns[at]) for at in borders] + graph.end_ns[ends].tolist(), default=begin)
    return Window(
        begin_ns=begin,
        end_ns=end,
        nodes=nodes,
        row=row,
        border=row[np.array(borders, dtype=np.int64)],
        ends=row[ends],
        tail_ns=end - last,
        possible=_possible(timeline, graph),
    )


def _possible(timeline: Timeline, graph: Graph) -> tuple[Int64, Int64]:
    """For each operation and each other lane of its rank, the last one that had ended; where the operation before in the
    lane already had the same, nothing new."""
    ops = timeline.ops
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    order = np.lexsort((graph.end_ns[: len(ops)], ops.start_ns, ops.lane))
    numbers, first = np.unique(ops.lane[order], return_index=True)
    by_lane = dict(zip(numbers.tolist(), np.split(order, first[1:]) if len(order) else [], strict=True))
    for own, mine in by_lane.items():
        for other, rows in by_lane.items():
            if own == other or ops.rank[mine[0]] != ops.rank[rows[0]]:
                continue
            reach = np.maximum.accumulate(graph.end_ns[rows])
            last = np.searchsorted(reach, graph.start_ns[mine], side="right") - 1
            new = last >= 0
            new[1:] &= last[1:] > last[:-1]
            sources.append(rows[last[new]])
            targets.append(mine[new])
    return np.concatenate(sources), np.concatenate(targets)


def network(timeline: Timeline, graph: Graph, part: Window, changes: Changes = AS_IT_WAS) -> Network:
    """The Network of the window. Its rows are `part.nodes`."""
    edges = graph.edges
    target = part.row[edges.target]
    keep = target >= 0
    if not changes.serialized:
        keep &= ~_mixed_lanes(timeline, edges.source, edges.target, edges.kind == EdgeKind.LANE)
    if not changes.queued:
        keep &= ~queues(timeline, graph, edges.source, edges.target, edges.kind == EdgeKind.LANE)
    if not changes.inferred:
        keep &= ~_inferred(timeline, graph)
    source, target, kind = edges.source[keep], target[keep], edges.kind[keep]
    host = np.isin(kind, (EdgeKind.BUSY, EdgeKind.HOST_SYNC, EdgeKind.HANDOFF))
    lag = edges.lag_ns[keep]
    if changes.evened is not None:
        lag = np.where(host & (lag > 0), np.maximum(lag - changes.evened.host_ns[edges.target[keep]], 0), lag)
    if not changes.calls:
        lag = np.where(host & (lag > 0), np.maximum(lag - _calls(timeline, graph)[edges.source[keep]], 0), lag)
    lag = np.where(host & (lag > 0), np.rint(lag * changes.host).astype(np.int64), lag)
    lag = lag + _delays(graph, changes)[edges.target[keep]]
    extra = _lane_by_class(timeline, part) if not changes.serialized else (np.empty(0, np.int64),) * 2
    if changes.possible:
        inside = part.row[part.possible[1]] >= 0
        if not changes.queued:
            inside &= ~queues(timeline, graph, *part.possible, np.ones(len(inside), dtype=bool))
            direct = ((edges.source[keep], edges.target[keep]), part.possible)
            implied = implied_by(queued(timeline, graph), chains(timeline, graph), *direct)
            extra = tuple(np.concatenate([one, two[part.row[implied[1]] >= 0]]) for one, two in zip(extra, implied, strict=True))  # type: ignore[assignment]  # a pair stays one
        extra = tuple(np.concatenate([one, two[inside]]) for one, two in zip(extra, part.possible, strict=True))  # type: ignore[assignment]  # a pair stays one
    source = np.concatenate([source, extra[0]])
    target = np.concatenate([target, part.row[extra[1]]])
    lag = np.concatenate([lag, np.zeros(len(extra[0]), dtype=np.int64)])
    release = np.full(len(part.nodes), NO_RELEASE)
    outside = part.row[source] < 0
    np.maximum.at(release, target[outside], graph.end_ns[source[outside]] + lag[outside])
    # The first point of a thread, and what nothing is known of, stays where it was (in a host without work, at the begin).
    alone = graph.start_ns[part.nodes]
    points = graph.kind[part.nodes] != OP
    alone = np.where(points, part.begin_ns + np.rint((alone - part.begin_ns) * changes.host).astype(np.int64), alone)
    release = np.where(np.diff(graph.first_edge)[part.nodes] > 0, np.maximum(release, part.begin_ns), alone)
    work, rendezvous = _work(timeline, graph, part, changes)
    inner = ~outside
    return replay.network(
        np.full(len(part.nodes), NONE, dtype=np.int32),
        work,
        release_ns=release,
        rendezvous=rendezvous,
        edges=(part.row[source[inner]], target[inner], lag[inner]),
    )


def length(timeline: Timeline, graph: Graph, part: Window, changes: Changes = AS_IT_WAS) -> int:
    """How long the window lasts under these changes."""
    plan = network(timeline, graph, part, changes)
    times = replay.replay(plan)
    # Durations that are given are those beside whatever runs beside them.
    link = links(timeline) if changes.shared and changes.work_ns is None else []
    if changes.interference is not None or link:
        times = settled(timeline, graph, part, changes, Unsettled(plan, times, link))
    return close(part, times) - part.begin_ns


@dataclasses.dataclass(frozen=True, slots=True)
class Unsettled:
    """A replay with durations as they were observed, and the links that operations share."""

    plan: Network
    times: Times
    links: list[Int64]
    """As `interference.links` gives them."""


def settled(timeline: Timeline, graph: Graph, part: Window, changes: Changes, first: Unsettled) -> Times:
    """Times at which computations are as much longer as the transfers take that then run beside them, and transfers as much as
    others take of their link."""
    felt, size, plan, times = changes.interference, len(timeline.ops), first.plan, first.times
    observed = graph.end_ns[:size] - graph.start_ns[:size] - np.maximum(graph.wait_ns[:size], 0)
    if changes.work_ns is not None:
        observed = np.where(communicates(timeline), changes.work_ns, observed)
    alone = observed - shared(first.links, observed, graph.end_ns[:size])
    scaled, alone = (np.rint(each * changes.transfer).astype(np.int64) for each in (observed, alone))
    inside = part.nodes < size
    rows = part.nodes[inside]
    start, end = graph.start_ns[:size].copy(), graph.end_ns[:size].copy()
    transfer, work = scaled, plan.work_ns
    for _ in range(MOST_ROUNDS):
        start[rows], end[rows] = times.start_ns[inside], times.end_ns[inside]
        transfer = alone + shared(first.links, transfer, end)
        longer = transfer - scaled
        if felt is not None:
            longer += stretch(timeline, felt.taken_ns, transfer, start, end) - felt.stretch_ns
        now = plan.work_ns.copy()
        now[inside] = np.maximum(now[inside] + longer[rows], 0)
        if int(np.abs(now - work).sum()) <= SETTLED * (part.end_ns - part.begin_ns):
            break
        work = now
        times = replay.replay(dataclasses.replace(plan, work_ns=work))
    return times


def close(part: Window, times: Times) -> int:
    """When the window closes: with the first start of what follows it, or where nothing does, as long after its last end as
    it did."""
    return int(np.concatenate([times.start_ns[part.border], times.end_ns[part.ends], [part.begin_ns]]).max()) + part.tail_ns


def _calls(timeline: Timeline, graph: Graph) -> Int64:
    """Of each node that launches communication and nothing else: how long that call lasted on the host. 0 elsewhere."""
    edges, host = graph.edges, timeline.host
    launches = edges.kind == EdgeKind.LAUNCH
    source, sends = edges.source[launches], np.append(communicates(timeline), False)[edges.target[launches]]
    calls = np.zeros(len(graph), dtype=bool)
    calls[source] = True
    calls[source[~sends]] = False
    calls &= graph.host >= 0
    found = np.zeros(len(graph), dtype=np.int64)
    rows = graph.host[calls]
    found[calls] = host.end_ns[rows] - host.start_ns[rows]
    return found


def _delays(graph: Graph, changes: Changes) -> Int64:
    """The delay of each node; after a launch or a blocking call it scales with the host."""
    if changes.host == 1.0:
        return graph.delay_ns
    bound = graph.binding >= 0
    kind = np.append(graph.edges.kind, np.int8(NONE))[graph.binding]
    scaled = bound & np.isin(kind, _OF_HOST)
    return np.where(scaled, np.rint(graph.delay_ns * changes.host).astype(np.int64), graph.delay_ns)


def _mixed_lanes(timeline: Timeline, source: Int64, target: Int64, lanes: np.ndarray) -> np.ndarray:
    """Edges of lanes between communication and anything else."""
    talks = np.append(communicates(timeline), False)
    size = len(timeline.ops)
    mixed: np.ndarray = lanes & (talks[np.minimum(source, size)] != talks[np.minimum(target, size)])
    return mixed


def _lane_by_class(timeline: Timeline, part: Window) -> tuple[Int64, Int64]:
    """The order of each lane within communication and within the rest: what is left of it when the two do not wait.
    On CPU ranks compute stands in the chain of its thread, so the two never wait for each other's lane."""
    rows = part.nodes[part.nodes < len(timeline.ops)]
    rows = rows[~np.isin(timeline.ops.rank[rows], [info.rank for info in timeline.ranks if info.on_cpu])]
    key = timeline.ops.lane[rows].astype(np.int64) * 2 + communicates(timeline)[rows]
    order = rows[np.lexsort((timeline.ops.end_ns[rows], timeline.ops.start_ns[rows], key))]
    keys = timeline.ops.lane[order].astype(np.int64) * 2 + communicates(timeline)[order]
    same = keys[1:] == keys[:-1]
    return order[:-1][same], order[1:][same]


def _inferred(timeline: Timeline, graph: Graph) -> np.ndarray:
    """Edges between lanes that are inferred, and threads that went on after a span (but barriers are there to be waited for)."""
    edges, size = graph.edges, len(timeline.ops)
    barrier = np.array([name == "barrier" for name in timeline.names], dtype=bool)
    calls = timeline.collectives
    is_barrier = np.append(np.append(barrier, False)[calls.collective], False)[timeline.ops.collective]
    span = (edges.kind == EdgeKind.HANDOFF) & (edges.source < size)
    span[span] = ~is_barrier[edges.source[span]]
    found: np.ndarray = np.isin(edges.kind, _ON_DEVICE_TIMING) | span
    return found


def _work(timeline: Timeline, graph: Graph, part: Window, changes: Changes) -> tuple[Int64, Int32]:
    """Work and rendezvous of each row of the Network."""
    size = len(timeline.ops)
    work = graph.end_ns - graph.start_ns
    rendezvous = np.full(len(graph), NONE, dtype=np.int64)
    waited = graph.wait_ns > 0
    transfer = np.where(waited, work - graph.wait_ns, work)
    if changes.waiting:
        members = np.flatnonzero((graph.rendezvous >= 0) & (part.row >= 0) & (graph.wait_ns >= 0))
        _, number, counts = np.unique(graph.rendezvous[members], return_inverse=True, return_counts=True)
        last = np.full(len(counts), np.iinfo(np.int64).min)
        np.maximum.at(last, number, graph.start_ns[members])
        reached = graph.start_ns[members] + graph.wait_ns[members]
        # Who did not wait for the last (the root of a broadcast, a peer outside the input) keeps its waiting as it was.
        joined = (np.abs(reached - last[number]) <= MEETING_NS) & (graph.end_ns[members] >= last[number]) & (counts[number] > 1)
        whole = np.ones(len(counts), dtype=bool)
        np.logical_and.at(whole, number, joined | (graph.start_ns[members] == last[number]))
        joined &= whole[number]
        rows = members[joined]
        rendezvous[rows] = number[joined]
        work[rows] = graph.end_ns[rows] - last[number[joined]]
        transfer[rows] = work[rows]
    else:
        work = transfer
    if changes.evened is not None:
        work[:size] -= changes.evened.work_ns
    if changes.work_ns is not None:
        fixed = work[:size] - transfer[:size]
        work[:size] = changes.work_ns + np.where(rendezvous[:size] >= 0, 0, fixed)
    if changes.transfer != 1.0:
        rows = np.flatnonzero(communicates(timeline))
        saved = transfer[rows] - np.rint(changes.transfer * transfer[rows]).astype(np.int64)
        work[rows] = np.maximum(work[rows] - saved, 0)
    return work[part.nodes], rendezvous[part.nodes].astype(np.int32)
