"""A test of the graph that can fail: does step k's graph, with the durations and host times of step k+1, give step k+1's time?

Reproducing a step from its own durations proves nothing, as unexplained starts keep their delay. Here the delays and the
edges of one step have to fit the next. Operations of two steps are matched by lane, name and occurrence; points of the host
by the operation that they launch. That one operation had merely ended before another is not held
against the next step. What has no partner keeps its own time, and its share is told. How a step is entered (how far the host
has run ahead) is taken from the later step. The graph knows nothing of the later step: dependences inferred from timing are
tested on the other steps only. Steps that end in different ways (a recording's last step has no next kernel) are not compared.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from underlap.analyze import rebuilt
from underlap.analyze.counterfactual import TRUSTED_SHARE
from underlap.analyze.graph import LAUNCH, LEAVE, OP, EdgeKind, Graph, build
from underlap.analyze.rebuilt import Changes, Window
from underlap.analyze.steps import Step, Steps
from underlap.columns import NONE, Int32, Int64
from underlap.replay import NO_RELEASE
from underlap.report import PredictionReport, PredictionRow
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What could be predicted on one device."""

    found: tuple[Prediction, ...]
    not_comparable: int
    """Pairs of steps that follow each other but end in different ways."""


GOOD_ERROR = 0.01
"""With a median error up to this a graph is good even where steps differ by less."""
MOST_PAIRS = 8
ROWS = 1_000_000
"""Operations and host rows for which graphs are built, over all pairs; at least two pairs are predicted in any case."""


def predict(timeline: Timeline, steps: Steps, rank: int, device: int) -> Predictions:
    """For pairs of steps of a device that follow each other directly: the first ones, as many as time allows."""
    timeline, of_op = _of_rank(timeline, steps, rank)
    own = sorted((step for step in steps.steps if (step.rank, step.device) == (rank, device)), key=lambda step: step.start_ns)
    rows = len(timeline.ops) + len(timeline.host)
    most = min(max(ROWS // max(rows, 1), 2), MOST_PAIRS)
    found: list[Prediction] = []
    different = 0
    for before, after in itertools.pairwise(own):
        if len(found) == most:
            break
        graph = build(timeline, step_of_op=np.where(of_op == after.number, NONE, of_op).astype(np.int32))
        earlier, later = _window(timeline, graph, before), _window(timeline, graph, after)
        if (len(earlier.border) > 0) != (len(later.border) > 0):
            different += 1
            continue
        keys = [_keys(timeline, graph, part) for part in (earlier, later)]
        partner, matched = _partners(graph, earlier, keys[0], keys[1])
        predicted = _with_times_of(timeline, graph, earlier, later, partner)
        found.append(
            Prediction(
                rank=rank,
                from_step=before.label,
                step=after.label,
                before_ns=earlier.end_ns - earlier.begin_ns,
                predicted_ns=predicted,
                observed_ns=later.end_ns - later.begin_ns,
                matched_share=matched,
            )
        )
    return Predictions(found=tuple(found), not_comparable=different)


def account(found: Predictions, device: int, explained_share: float | None) -> PredictionReport:
    """The predictions as the Report has them, and whether promises may rest on this graph."""
    rows = [
        PredictionRow(
            rank=one.rank,
            device=device,
            from_step=one.from_step,
            step=one.step,
            observed_ns=one.observed_ns,
            predicted_ns=one.predicted_ns,
            before_ns=one.before_ns,
            error=one.error,
            error_of_no_change=(one.before_ns - one.observed_ns) / one.observed_ns,
            matched_share=one.matched_share,
        )
        for one in found.found
    ]
    errors, unchanged = [abs(row.error) for row in rows], [abs(row.error_of_no_change) for row in rows]
    error, still = (float(np.median(values)) if rows else None for values in (errors, unchanged))
    better = sum(errors) < sum(unchanged) if rows else None
    rests: list[str] = []
    if error is None or still is None:
        rests.append("a graph that no two comparable steps could test")
    elif error > GOOD_ERROR and not better:
        rests.append(f"a graph that predicts the next step to {error:.1%}, where assuming no change errs by {still:.1%}")
    if explained_share is not None and explained_share < TRUSTED_SHARE:
        rests.append(f"a critical path of which known edges explain {explained_share:.0%}")
    return PredictionReport(
        pairs=len(rows),
        not_comparable=found.not_comparable,
        error=error,
        error_of_no_change=still,
        worst_error=max(errors, default=None),
        better_than_no_change=better,
        explained_share=explained_share,
        trusted=not rests,
        rests_on=" and ".join(rests) or None,
        rows=rows,
    )


def _of_rank(timeline: Timeline, steps: Steps, rank: int) -> tuple[Timeline, Int32]:
    """The rank alone, and the step of each of its operations."""
    if len(timeline.ranks) == 1:
        return timeline, steps.of_op
    return timeline.of_ranks({rank}), steps.of_op[timeline.ops.rank == rank]


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
    rows = graph.host[left]
    launching = set(rows[np.isin(rows, graph.host[graph.kind == LAUNCH])].tolist())
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
    launches = np.flatnonzero((graph.edges.kind == EdgeKind.LAUNCH) & (part.row[graph.edges.source] >= 0))
    for source, target in zip(graph.edges.source[launches].tolist(), graph.edges.target[launches].tolist(), strict=True):
        if target in of_op:
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
