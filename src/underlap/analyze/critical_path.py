"""The critical path: what the window's length consisted of, found backwards from its end.

From each start the path goes to what held it longest: the operation before it, its launch and so the host, another lane; out
of a blocking call to the operation it waited for; out of a collective to the peer that arrived last, on that peer's rank.

    rank 0   host ---+                       [ wait |transfer ]
    rank 1           +-- [ late compute ]----[       transfer ]      path: transfer, late compute of rank 1, its host, ...

Segments partition the window of the final rank exactly. Steps share it: a step's part is the path inside it.
Not modeled: near-critical paths (the slack of everything else).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze.graph import OP, EdgeKind, Graph
from underlap.columns import NONE, Int8, Int32, Int64, Table
from underlap.timeline import OpClass, Timeline


class Part(IntEnum):
    """What a stretch of the path was."""

    COMPUTE = 0
    """Compute and fused kernels."""
    TRANSFER = 1
    """Communication without its known waiting. Where the waiting is unknown it is inside."""
    WAITING = 2
    """In a collective, for a peer that is not in the input; and spin kernels."""
    COPY = 3
    HOST = 4
    """The host was busy: between the points of a thread, and in its calls."""
    LATENCY = 5
    """From launch to start, from end to the next start, back from a blocking call: as long as usual on this rank."""
    UNEXPLAINED = 6
    """A start later than all that is known of it, or before the first thing known."""


_OF_CLASS = {
    OpClass.COMPUTE: Part.COMPUTE,
    OpClass.FUSED: Part.COMPUTE,
    OpClass.COMMUNICATION: Part.TRANSFER,
    OpClass.COPY: Part.COPY,
    OpClass.WAIT: Part.WAITING,
}
_PART = np.array([_OF_CLASS[number] for number in OpClass], dtype=np.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segments(Table):
    """The path in order of time, without gaps: each row ends where the next starts."""

    start_ns: Int64
    end_ns: Int64
    part: Int8
    """A `Part`."""
    rank: Int32
    node: Int64
    """The node of the graph in which, or before whose start, the time passed; -1 where nothing is known."""
    edge: Int64
    """The edge that led here, for time between two nodes; -1 inside a node."""
    source_row: Int64
    """Evidence: position of the event in the source file of the rank, -1 where it has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """See the module docstring."""

    segments: Segments
    rank: int
    """The final rank: the one whose window ends last."""
    start_ns: int
    end_ns: int

    def composition(self, start_ns: int | None = None, end_ns: int | None = None) -> dict[Part, int]:
        """Nanoseconds of each part inside [start, end), by default the window: they add up to its length."""
        begin = self.start_ns if start_ns is None else start_ns
        end = self.end_ns if end_ns is None else end_ns
        inside = _inside(self.segments, begin, end)
        return {part: int(inside[self.segments.part == part].sum()) for part in Part}


def find(timeline: Timeline, graph: Graph, stretches: Mapping[tuple[int, int], Int64]) -> CriticalPath | None:
    """The path of the window: (rank, device) -> rows [start, end) on the rank's own clock, as `steps.Selection` has them.

    Gaps between the stretches of a rank are part of the path. None where the window is empty.
    """
    windows = {key: rows for key, rows in stretches.items() if len(rows)}
    if not windows:
        return None
    shift = _shifts(timeline, graph)
    key = max(windows, key=lambda key: (int(windows[key][-1, 1]) + shift.get(key[0], 0), -key[0], -key[1]))
    offset = shift.get(key[0], 0)
    begin, end = int(windows[key][0, 0]) + offset, int(windows[key][-1, 1]) + offset
    rows = _walk(timeline, graph, key, begin, end)
    segments = _segments(timeline, graph, rows)
    return CriticalPath(segments=segments, rank=key[0], start_ns=begin, end_ns=end)


def step_shares(path: CriticalPath, borders: Mapping[str, tuple[int, int]]) -> dict[str, dict[Part, int]]:
    """Per step (label -> its [start, end) on the final rank) what the path inside it consisted of."""
    return {label: path.composition(start, end) for label, (start, end) in borders.items()}


def families_on_path(timeline: Timeline, path: CriticalPath, family: Int32) -> dict[int, int]:
    """Per family of calls (as `family` numbers the rows of `Timeline.collectives`) its communication on the path, in ns."""
    segments = path.segments
    inside = (segments.node >= 0) & (segments.node < len(timeline.ops)) & (segments.edge < 0)
    inside &= np.isin(segments.part, (Part.TRANSFER, Part.WAITING))
    call = timeline.ops.collective[segments.node[inside]]
    length = (segments.end_ns - segments.start_ns)[inside][call >= 0]
    numbers = family[call[call >= 0]]
    return {int(number): int(length[numbers == number].sum()) for number in np.unique(numbers)}


def exposed_on_path(timeline: Timeline, graph: Graph, path: CriticalPath, exposed: Mapping[tuple[int, int], Int64]) -> int:
    """Transfer on the path that is exposed on its own device: (rank, device) -> interval set on the rank's clock, in ns."""
    segments, ops = path.segments, timeline.ops
    shift = _shifts(timeline, graph)
    rows = np.flatnonzero((segments.part == Part.TRANSFER) & (segments.node >= 0))
    total = 0
    for (rank, device), own in exposed.items():
        mine = rows[(ops.rank[segments.node[rows]] == rank) & (ops.device[segments.node[rows]] == device)]
        offset = shift.get(rank, 0)
        total += int(intervals.covered(segments.start_ns[mine] - offset, segments.end_ns[mine] - offset, own).sum())
    return total


def _shifts(timeline: Timeline, graph: Graph) -> dict[int, int]:
    """What the graph added to the times of each rank."""
    ranks, first = np.unique(timeline.ops.rank, return_index=True)
    moved = graph.start_ns[first] - timeline.ops.start_ns[first]
    return dict(zip(ranks.tolist(), moved.tolist(), strict=True))


def _inside(segments: Segments, start: int, end: int) -> Int64:
    inside: Int64 = np.maximum(np.minimum(segments.end_ns, end) - np.maximum(segments.start_ns, start), 0)
    return inside


def _last_node(timeline: Timeline, graph: Graph, key: tuple[int, int], end: int) -> tuple[int, bool]:
    """Where the path begins backwards: the operation that starts at the border, else the one that ends last before or runs
    through it. Returns the node, and whether the border is its start. -1 where there is none."""
    rows = np.flatnonzero((timeline.ops.rank == key[0]) & (timeline.ops.device == key[1]))
    starts = graph.start_ns[rows]
    at_border = rows[starts == end]
    if len(at_border):
        return int(at_border[0]), True
    rows = rows[starts < end]
    if len(rows) == 0:
        return NONE, False
    return int(rows[graph.end_ns[rows].argmax()]), False


def _walk(timeline: Timeline, graph: Graph, key: tuple[int, int], begin: int, end: int) -> Int64:
    """(start, end, part, node, edge) of each segment, backwards: shape (k, 5). Where the path has come to only moves back, so
    they partition the window."""
    node, at_start = _last_node(timeline, graph, key, end)
    visited, jumped = _chain(timeline, graph, node, begin, at_start=at_start)
    rows = np.concatenate([_steps(timeline, graph, visited, jumped, at_start=at_start), [[begin, Part.UNEXPLAINED, NONE, NONE]]])
    # What a step leads to later than where the path already is adds nothing.
    reached = np.minimum.accumulate(np.concatenate([[end], np.maximum(rows[:, 0], begin)]))
    moves = np.flatnonzero(reached[1:] < reached[:-1])
    return np.column_stack((reached[1:][moves], reached[:-1][moves], rows[moves, 1:]))


def _chain(timeline: Timeline, graph: Graph, node: int, begin: int, *, at_start: bool) -> tuple[Int64, NDArray[np.bool_]]:
    """The nodes that the path goes through, backwards, and which of them are late peers that it jumped to."""
    if node < 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    before = np.where(graph.binding >= 0, np.append(graph.edges.source, NONE)[graph.binding], NONE)
    peer = np.where(_waits(timeline, graph), graph.late_node, NONE).tolist()
    following, starts = before.tolist(), graph.start_ns.tolist()
    visited: list[int] = []
    jumps: list[int] = []
    late = NONE if at_start else peer[node]
    while node >= 0:
        visited.append(node)
        if late >= 0:
            jumps.append(len(visited))
            visited.append(late)
            node = late
        if late < 0 and starts[node] <= begin:
            break
        node = following[node]
        late = peer[node] if node >= 0 else NONE
    jumped = np.zeros(len(visited), dtype=bool)
    jumped[jumps] = True
    return np.array(visited, dtype=np.int64), jumped


def _waits(timeline: Timeline, graph: Graph) -> NDArray[np.bool_]:
    """Which nodes wait for a peer inside them."""
    size = len(timeline.ops)
    found = graph.wait_ns > 0
    found[:size] &= _PART[timeline.ops.op_class] != Part.COMPUTE
    found[size:] = False
    return found


def _steps(timeline: Timeline, graph: Graph, visited: Int64, jumped: NDArray[np.bool_], *, at_start: bool) -> Int64:
    """(time, part, node, edge) of everything that the path goes back to, in order: six per node, some of no effect."""
    if len(visited) == 0:
        return np.empty((0, 4), dtype=np.int64)
    size, count = len(timeline.ops), len(visited)
    starts, ends = graph.start_ns[visited], graph.end_ns[visited]
    operation = visited < size
    part = np.where(operation, np.append(_PART[timeline.ops.op_class], 0)[np.minimum(visited, size)], NONE)
    waits = _waits(timeline, graph)[visited]
    followed = np.append(jumped[1:], False)
    # No step: to the end of time.
    never = np.iinfo(np.int64).max
    inside = ~jumped
    if at_start:
        inside[0] = False
    edge = graph.binding[visited]
    bound = (edge >= 0) & ~followed
    before = graph.edges.source[np.maximum(edge, 0)] if len(graph.edges) else np.zeros(count, dtype=np.int64)
    lag = graph.edges.lag_ns[np.maximum(edge, 0)] if len(graph.edges) else np.zeros(count, dtype=np.int64)
    busy = graph.edges.kind[np.maximum(edge, 0)] == EdgeKind.BUSY if len(graph.edges) else np.zeros(count, dtype=bool)
    rows = np.full((count, 5, 4), NONE, dtype=np.int64)
    rows[:, 0] = np.column_stack((np.where(inside, ends, never), np.full(count, Part.UNEXPLAINED), *[np.full(count, NONE)] * 2))
    own = np.where(inside & operation, np.where(waits, starts + graph.wait_ns[visited], starts), never)
    rows[:, 1] = np.column_stack((own, part, visited, np.full(count, NONE)))
    waiting = np.where(inside & operation & waits & ~followed, starts, never)
    rows[:, 2] = np.column_stack((waiting, np.full(count, Part.WAITING), visited, np.full(count, NONE)))
    late = np.where(bound, graph.end_ns[before] + lag, never)
    rows[:, 3] = np.column_stack((late, np.full(count, Part.UNEXPLAINED), visited, edge))
    back = np.where(bound, graph.end_ns[before], never)
    rows[:, 4] = np.column_stack((back, np.where(busy, Part.HOST, Part.LATENCY), visited, edge))
    last = int(visited[-1])
    steps = rows.reshape(-1, 4)
    if graph.binding[last] < 0 and graph.kind[last] != OP:
        steps = np.concatenate([steps, [[_first_row(timeline, graph, last), Part.HOST, last, NONE]]])
    return steps


def _first_row(timeline: Timeline, graph: Graph, point: int) -> int:
    """When the thread of a point is first seen, on the common clock: it was busy from then on."""
    row = int(graph.host[point])
    start = int(graph.start_ns[point])
    if row < 0:
        return start
    host = timeline.host
    return start - int(host.start_ns[row] - host.start_ns[host.thread == host.thread[row]].min())


def _segments(timeline: Timeline, graph: Graph, rows: Int64) -> Segments:
    table = rows[::-1]
    node = table[:, 3]
    size = len(timeline.ops)
    host = np.where(node >= 0, np.append(graph.host, NONE)[node], NONE)
    evidence = np.where(host >= 0, np.append(timeline.host.source_row, NONE)[host], NONE)
    on_device = (node >= 0) & (node < size)
    evidence[on_device] = timeline.ops.source_row[node[on_device]]
    return Segments.from_columns(
        start_ns=table[:, 0],
        end_ns=table[:, 1],
        part=table[:, 2],
        rank=np.where(node >= 0, np.append(graph.rank, NONE)[node], NONE),
        node=node,
        edge=table[:, 4],
        source_row=evidence,
    )


def on_path(graph: Graph, path: CriticalPath) -> NDArray[np.bool_]:
    """Which nodes the path goes through. Shape (n,)."""
    result = np.zeros(len(graph), dtype=bool)
    result[path.segments.node[path.segments.node >= 0]] = True
    return result
