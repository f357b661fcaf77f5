"""A test of the graph that can fail: does step k's graph, with the durations and host times of step k+1, give step k+1's time?

Reproducing a step from its own durations proves nothing, as unexplained starts keep their delay. Here the delays and the
edges of one step have to fit the next. Operations of two steps are matched by lane, name and occurrence; points of the host
by the operation that they launch. That one operation had merely ended before another is not held
against the next step. What has no partner keeps its own time, and its share is told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from underlap.analyze import rebuilt
from underlap.analyze.graph import LAUNCH, LEAVE, OP, EdgeKind, Graph
from underlap.analyze.rebuilt import Changes, Window
from underlap.analyze.steps import Step
from underlap.columns import NONE, Int64
from underlap.replay import NO_RELEASE
from underlap.timeline import Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The time of one step, predicted from the graph of the step before it."""

    rank: int
    from_step: str
    step: str
    before_ns: int
    """How long the earlier step took: what "no change" would predict."""
    predicted_ns: int
    observed_ns: int
    matched_share: float
    """Of the earlier step's nodes, those with a partner in the later one."""

    @property
    def error(self) -> float:
        """(predicted - observed) / observed."""
        return (self.predicted_ns - self.observed_ns) / self.observed_ns


def predict(timeline: Timeline, graph: Graph, steps: Sequence[Step], rank: int, device: int) -> list[Prediction]:
    """For each pair of steps of a device that follow each other directly."""
    own = sorted((step for step in steps if (step.rank, step.device) == (rank, device)), key=lambda step: step.start_ns)
    windows = [_window(timeline, graph, step) for step in own]
    keys = [_keys(timeline, graph, part) for part in windows]
    found = []
    for at in range(len(own) - 1):
        earlier, later = windows[at], windows[at + 1]
        partner, matched = _partners(graph, earlier, keys[at], keys[at + 1])
        predicted = _with_times_of(timeline, graph, earlier, later, partner)
        found.append(
            Prediction(
                rank=rank,
                from_step=own[at].label,
                step=own[at + 1].label,
                before_ns=earlier.end_ns - earlier.begin_ns,
                predicted_ns=predicted,
                observed_ns=later.end_ns - later.begin_ns,
                matched_share=matched,
            )
        )
    return found


def _window(timeline: Timeline, graph: Graph, step: Step) -> Window:
    stretch = {(step.rank, step.device): np.array([[step.start_ns, step.end_ns]], dtype=np.int64)}
    return rebuilt.window(timeline, graph, stretch)


def _keys(timeline: Timeline, graph: Graph, part: Window) -> dict[tuple[int, ...], int]:
    """What identifies each node within its step -> node."""
    ops = timeline.ops
    counts: dict[tuple[int, ...], int] = {}
    keys: dict[tuple[int, ...], int] = {}
    of_op: dict[int, tuple[int, ...]] = {}
    host = timeline.host
    spans = np.isin(ops.rank, [info.rank for info in timeline.ranks if info.on_cpu]) & (ops.collective >= 0)
    left = part.nodes[graph.kind[part.nodes] == LEAVE]
    leaving = dict(zip(graph.host[left].tolist(), left.tolist(), strict=True))
    launching = set(graph.host[graph.kind == LAUNCH].tolist())
    for node in part.nodes.tolist():
        kind, row = int(graph.kind[node]), int(graph.host[node])
        if kind == LAUNCH or (kind == LEAVE and row in launching):
            continue
        if kind == OP:
            # Whatever thread of gloo takes the next span.
            plain = (OP, NONE if spans[node] else int(ops.lane[node]), int(ops.name[node]))
        else:
            plain = (kind, int(host.thread[row]), int(host.name[row]))
        counts[plain] = counts.get(plain, 0) + 1
        key = (*plain, counts[plain])
        keys[key] = node
        if kind == OP:
            of_op[node] = key
    # A launch, and the end of a call that waited for it, are known by what they launched.
    launches = np.flatnonzero(graph.edges.kind == EdgeKind.LAUNCH)
    for source, target in zip(graph.edges.source[launches].tolist(), graph.edges.target[launches].tolist(), strict=True):
        if target in of_op and part.row[source] >= 0:
            keys[LAUNCH, *of_op[target]] = source
            blocked = leaving.get(int(graph.host[source]), NONE)
            if blocked >= 0:
                keys[LEAVE, *of_op[target]] = blocked
    return keys


def _partners(
    graph: Graph, earlier: Window, ours: dict[tuple[int, ...], int], theirs: dict[tuple[int, ...], int]
) -> tuple[Int64, float]:
    """Per node of the graph its partner in the later step (-1 for none), and the share that has one."""
    partner = np.full(len(graph), NONE, dtype=np.int64)
    for key, node in ours.items():
        partner[node] = theirs.get(key, NONE)
    return partner, float((partner[earlier.nodes] >= 0).mean()) if len(earlier.nodes) else 0.0


def _with_times_of(timeline: Timeline, graph: Graph, earlier: Window, later: Window, partner: Int64) -> int:
    """The length of the earlier window with the durations and host times of the partners, entered as the later one was."""
    ops, edges = timeline.ops, graph.edges
    busy = np.full(len(graph), NONE, dtype=np.int64)
    chain = edges.kind == EdgeKind.BUSY
    busy[edges.target[chain]] = edges.lag_ns[chain]
    other = partner[edges.target]
    exchanged = chain & (other >= 0)
    exchanged[exchanged] = busy[other[exchanged]] >= 0
    lag = edges.lag_ns.copy()
    lag[exchanged] = busy[other[exchanged]]
    start, end = _entered(graph, earlier, later, partner, lag)
    moved = dataclasses.replace(graph, edges=edges.replace(lag_ns=lag), start_ns=start, end_ns=end)
    own, durations = partner[: len(ops)], graph.end_ns[: len(ops)] - graph.start_ns[: len(ops)]
    work = np.where(own >= 0, durations[own], durations)
    return rebuilt.length(timeline, moved, earlier, Changes(work_ns=work, possible=False))


def _entered(graph: Graph, earlier: Window, later: Window, partner: Int64, lag: Int64) -> tuple[Int64, Int64]:
    """Starts and ends of all nodes, and in place the lags of edges into the window, so that the earlier window is entered as
    the later one was: how far the host had run ahead, and what still ran, is no matter of the step's graph."""
    edges = graph.edges
    shift = earlier.begin_ns - later.begin_ns
    arrival = graph.end_ns[edges.source] + edges.lag_ns
    # When the edges of each kind from outside say that a node of the later window can start.
    inward = np.flatnonzero((later.row[edges.target] >= 0) & (later.row[edges.source] < 0))
    said = np.full((len(EdgeKind), len(graph)), NO_RELEASE)
    np.maximum.at(said, (edges.kind[inward], edges.target[inward]), arrival[inward])
    mine = np.flatnonzero((earlier.row[edges.target] >= 0) & (earlier.row[edges.source] < 0) & (partner[edges.target] >= 0))
    theirs = said[edges.kind[mine], partner[edges.target[mine]]]
    mine, theirs = mine[theirs > NO_RELEASE], theirs[theirs > NO_RELEASE]
    lag[mine] = theirs + shift - graph.end_ns[edges.source[mine]]
    # What waits for nothing that is known begins as its partner does.
    free = np.diff(graph.first_edge) == 0
    nodes = earlier.nodes[free[earlier.nodes] & (partner[earlier.nodes] >= 0)]
    nodes = nodes[free[partner[nodes]]]
    start, end = graph.start_ns.copy(), graph.end_ns.copy()
    start[nodes] = graph.start_ns[partner[nodes]] + shift
    end[nodes] = start[nodes] + graph.end_ns[nodes] - graph.start_ns[nodes]
    return start, end
