"""What waited for what: the dependence graph of a Timeline, with how each edge is known.

Nodes are the device operations (node i is row i of `Timeline.ops`) and points of the host threads after them: launches,
entering and leaving a blocking call. An edge has a kind and a grade (DESIGN section 4):

    lane         order     the operation before it in its lane
    launch       sync      launch -> operation
    event        sync      last operation before an event record -> first operation after the wait for it
    host_sync    sync      operation -> the host leaves the call that waited for it (timing, where the trace names no stream)
    busy         order     one point of a host thread -> the next; the lag is what the host did between them
    across       timing    end in one lane -> start in another, within the rank's usual gap, that nothing else explains
    handoff      timing    a thread goes on after another thread, or a gloo span, that it seems to have waited for
    data         data      last operation that wrote a tensor -> one that uses it, where an execution trace names both
    borrowed     borrowed  an order that another recording of the job shows (--like), not this one

Each edge has a lag: the usual one of its kind on this rank, or less where less was observed. What a start is later than all
its edges say is its `delay`, which no edge explains. Edges lead from earlier to later starts, so there is no circle.
Not modeled: data dependences without an execution trace, pools of buffers, threads that poll.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from underlap.analyze import dependences, host_chain, recurrence
from underlap.analyze.dependences import TURN, EdgeKind, Edges, Grade
from underlap.analyze.host_chain import ENTER, LAUNCH, LEAVE, OP
from underlap.analyze.latencies import Latencies
from underlap.columns import NONE, Int8, Int32, Int64
from underlap.timeline import UNKNOWN_NS, OpClass, Timeline

__all__ = ["ENTER", "LAUNCH", "LEAVE", "OP", "EdgeKind", "Edges", "Grade", "Graph", "Waits", "build"]

CALL_NS = 5_000
"""What a blocking call costs at most when there is nothing to wait for."""
MEETING_NS = 20_000
"""A peer is taken for the one that was waited for if it arrives this close to the end of the waiting."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What is known of the meetings of ranks. Arrays are per row of `Timeline.collectives`."""

    instance: Int64
    """Calls with the same number are one collective; -1 where unmatched."""
    wait_ns: Int64
    """From its start to the last needed arrival, at most to its end; -1 where unknown."""
    offset_ns: Mapping[int, int]
    """Rank -> what to add to its times to bring them onto the common clock. Absent means 0."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """n nodes: the operations, then the points of the host."""

    kind: Int8
    """OP, LAUNCH, ENTER or LEAVE. Shape (n,)."""
    rank: Int32
    start_ns: Int64
    """On the common clock. A point ends where it starts."""
    end_ns: Int64
    host: Int64
    """Row of `Timeline.host` of a point, -1 where none."""
    first_edge: Int64
    """The edges into node i are first_edge[i] .. first_edge[i + 1] - 1. Shape (n + 1,)."""
    edges: Edges
    delay_ns: Int64
    """How much later a node starts than all its edges say; 0 where it has none. Shape (n,)."""
    binding: Int64
    """The edge that held it longest, -1 where it has none. Shape (n,)."""
    wait_ns: Int64
    """Of the operation that carries out a collective: waiting for needed peers; -1 unknown or not a collective. Shape (n,)."""
    late_node: Int64
    """The operation of the last needed peer, where that rank is in the input; else -1. Shape (n,)."""
    rendezvous: Int64
    """Instance of the operation, where it is matched and its wait known; else -1. Shape (n,)."""
    latencies: dict[int, Latencies]
    """Per rank."""

    def __len__(self) -> int:
        return len(self.kind)


NO_WAITS = Waits(instance=np.empty(0, dtype=np.int64), wait_ns=np.empty(0, dtype=np.int64), offset_ns={})


def build(timeline: Timeline, waits: Waits = NO_WAITS, step_of_op: Int32 | None = None) -> Graph:
    """The graph of all ranks of the Timeline. Without `waits`, ranks do not meet in it. With the step of each operation (as
    `steps.find` has it), dependences inferred from timing that another step contradicts are left out."""
    ops = timeline.ops
    found = host_chain.find(timeline)
    points = found.points
    size = len(ops)
    usual = dependences.usual(timeline)
    shift = np.zeros(max([info.rank for info in timeline.ranks], default=0) + 1, dtype=np.int64)
    for info in timeline.ranks:
        shift[info.rank] = waits.offset_ns.get(info.rank, 0)
    rank = np.concatenate([ops.rank, points.rank]).astype(np.int32)
    start = np.concatenate([ops.start_ns, points.time_ns]) + shift[rank]
    end = np.concatenate([ops.end_ns, points.time_ns]) + shift[rank]
    kind = np.concatenate([np.full(size, OP, dtype=np.int8), points.kind])
    copied = np.concatenate([ops.op_class == OpClass.COPY, np.zeros(len(points.kind), dtype=bool)])
    events = dependences.event_edges(timeline)
    drawn = [
        dependences.lane_edges(timeline),
        dependences.launch_edges(found),
        events,
        *dependences.host_sync_edges(timeline, found),
        dependences.across_edges(timeline, usual, events),
        *dependences.host_edges(timeline, found),
        *dependences.told_edges(timeline),
    ]
    place = np.empty(len(kind), dtype=np.int64)
    place[np.lexsort((end, TURN[kind], start))] = np.arange(len(kind))
    edges = Edges.concatenate(drawn)
    if step_of_op is not None:
        edges = recurrence.recurring(timeline, edges, start, end, found.launch_point, step_of_op)
    # Clocks of host and device are aligned, not equal; what would lead backwards in time says nothing.
    edges = edges.take(place[edges.source] < place[edges.target])
    edges = edges.take(np.lexsort((edges.kind, edges.grade, edges.target)))
    edges, reach = _lags(edges, start, end, rank, usual, copied)
    first = np.concatenate(([0], np.cumsum(np.bincount(edges.target, minlength=len(kind))))).astype(np.int64)
    binding, delay = _binding(edges, reach, first, start, end)
    wait, late, rendezvous = _meetings(timeline, waits, start, end)
    return Graph(
        kind=kind,
        rank=rank,
        start_ns=start,
        end_ns=end,
        host=np.concatenate([np.full(size, NONE, dtype=np.int64), points.host]),
        first_edge=first,
        edges=edges,
        delay_ns=delay,
        binding=binding,
        wait_ns=np.concatenate([wait, np.full(len(points.kind), NONE)]),
        late_node=np.concatenate([late, np.full(len(points.kind), NONE)]),
        rendezvous=np.concatenate([rendezvous, np.full(len(points.kind), NONE)]),
        latencies=usual,
    )


def _lags(
    edges: Edges, start: Int64, end: Int64, rank: Int32, usual: dict[int, Latencies], copied: np.ndarray
) -> tuple[Edges, Int64]:
    """The edges with their lags, and when each says that its target starts, by what is usual (later than observed or not)."""
    table = np.zeros((max(usual, default=0) + 1, 2, len(EdgeKind)), dtype=np.int64)
    for number, gaps in usual.items():
        table[number, :, [EdgeKind.LANE, EdgeKind.EVENT]] = [[gaps.lane] * 2, [gaps.lane_most] * 2]
        table[number, :, [EdgeKind.HOST_SYNC, EdgeKind.ACROSS, EdgeKind.DATA, EdgeKind.BORROWED]] = gaps.across
        table[number, :, EdgeKind.LAUNCH] = gaps.launch, gaps.launch_copy
    observed = start[edges.target] - end[edges.source]
    expected = table[rank[edges.target], copied[edges.target].astype(np.int64), edges.kind]
    handoff = np.where(edges.lag_ns == UNKNOWN_NS, observed, edges.lag_ns)
    expected = np.where(edges.kind == EdgeKind.HANDOFF, handoff, expected)
    expected = np.where(edges.kind == EdgeKind.BUSY, edges.lag_ns, expected)
    # The time inside a call that waited for the device is waiting, but for the call itself.
    waited = np.isin(edges.target, edges.target[edges.kind == EdgeKind.HOST_SYNC]) & (edges.kind == EdgeKind.BUSY)
    expected[waited] = np.minimum(expected[waited], CALL_NS)
    return edges.replace(lag_ns=np.minimum(expected, observed)), end[edges.source] + expected


def _binding(edges: Edges, reach: Int64, first: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Per node the edge that held it longest (the surest of equals), and its delay beyond all edges."""
    binding = np.full(len(start), NONE, dtype=np.int64)
    delay = np.zeros(len(start), dtype=np.int64)
    held = np.flatnonzero(np.diff(first))
    if len(held) == 0:
        return binding, delay
    starts = first[held]
    latest = np.maximum.reduceat(reach, starts)
    counts = np.diff(first)[held]
    candidates = np.flatnonzero(reach == np.repeat(latest, counts))
    nodes = edges.target[candidates]
    binding[nodes[::-1]] = candidates[::-1]
    arrival = np.maximum.reduceat(end[edges.source] + edges.lag_ns, starts)
    delay[held] = start[held] - arrival
    return binding, delay


def _meetings(timeline: Timeline, waits: Waits, start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
    """Per operation: its waiting (-1 unknown), the operation of the peer it waited for, and its instance."""
    ops = timeline.ops
    wait, late, instance = (np.full(len(ops), NONE, dtype=np.int64) for _ in range(3))
    rows = np.flatnonzero(ops.collective >= 0)
    if len(waits.instance) == 0 or len(rows) == 0:
        return wait, late, instance
    # The first operation of a call is the one that arrives.
    rows = rows[np.lexsort((start[rows], ops.collective[rows]))]
    calls, at = np.unique(ops.collective[rows], return_index=True)
    node = rows[at]
    known = waits.wait_ns[calls] >= 0
    wait[node[known]] = np.minimum(waits.wait_ns[calls[known]], (end - start)[node[known]])
    matched = known & (waits.instance[calls] >= 0)
    instance[node[matched]] = waits.instance[calls[matched]]
    members = node[matched][np.lexsort((start[node[matched]], instance[node[matched]]))]
    _late_peers(late, members, instance[members], start, wait)
    return wait, late, instance


def _late_peers(late: Int64, members: Int64, number: Int64, start: Int64, wait: Int64) -> None:
    """Fill in `late`: of the operations that meet (`members`, by instance and start), the one that arrived closest to the end
    of the waiting of each, the first of equals, if that is close enough and later than the one that waited."""
    asking = np.flatnonzero(wait[members] > 0)
    if len(asking) == 0:
        return
    until = start[members[asking]] + wait[members[asking]]
    # Where each moment falls among the starts of its instance, behind those that are equal.
    moments = np.concatenate([start[members], until])
    whose = np.concatenate([number, number[asking]])
    question = np.repeat([False, True], [len(members), len(asking)])
    order = np.lexsort((question, moments, whose))
    behind = np.empty(len(order), dtype=np.int64)
    behind[order] = np.cumsum(~question[order])
    at = behind[len(members) :]
    far = np.iinfo(np.int64).max
    low, high = np.maximum(at - 1, 0), np.minimum(at, len(members) - 1)
    below = np.where((at > 0) & (number[low] == number[asking]), until - start[members[low]], far)
    above = np.where((at < len(members)) & (number[high] == number[asking]), start[members[high]] - until, far)
    new = np.ones(len(members), dtype=bool)
    new[1:] = (number[1:] != number[:-1]) | (start[members][1:] != start[members][:-1])
    first = np.maximum.accumulate(np.where(new, np.arange(len(members)), 0))
    nearest = np.where(below <= above, first[low], high)
    waiting, peer = members[asking], members[nearest]
    fits = (np.minimum(below, above) <= MEETING_NS) & (start[peer] > start[waiting])
    late[waiting[fits]] = peer[fits]
