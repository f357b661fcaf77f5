"""Dependences that are only inferred from timing, tested on the other steps: what a step contradicts was a coincidence, and
what none contradicts holds in all of them, also where it held nobody up.

    step 3   lane 7        [####][#b#]        b starts right after a has ended: it may have waited for it
             lane 20   [==a==]
    step 4   lane 7        [####][#b#]        here b starts while a still runs: it never waits for a, in step 3 neither
             lane 20         [====a====]

Nodes of two steps are the same by lane, name and occurrence, where the steps have equally many of the name (spans of CPU
ranks by order of issue, whatever thread took them); launches by what they launch. An edge that reaches back over a border
is compared over as many borders. Where ends are stamped late (spans of CPU ranks), the steps that contradict are outvoted
by more that do not; they themselves get no such edge. Not tested: edges that occur in one step only, edges of points that
launch nothing, what the trace's ids, lanes or tensors say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.dependences import EdgeKind, Edges
from underlap.columns import NONE, Int32, Int64
from underlap.timeline import UNKNOWN_NS, Timeline

SLACK_NS = 1_000
"""Clocks of host and device agree about this well, so that much earlier is no contradiction."""
_INFERRED = (EdgeKind.ACROSS, EdgeKind.HANDOFF)


def recurring(timeline: Timeline, edges: Edges, start: Int64, end: Int64, launch_point: Int64, step_of_op: Int32) -> Edges:
    """The edges without the inferred ones that another step contradicts, and with those that only other steps showed. `start`
    and `end` are per node; `step_of_op` as in `steps.Steps`. Where a thread turns out not to have waited, it was busy: its own
    edge gets that time back."""
    key, step, alike = _identities(timeline, start, launch_point, step_of_op)
    if key is None or step.max(initial=NONE) < 1:
        return edges
    asked = np.flatnonzero(np.isin(edges.kind, _INFERRED) & (key[edges.source] >= 0) & (key[edges.target] >= 0))
    # A table of nodes by key and step.
    steps = int(step.max()) + 1
    node = np.full((int(key.max()) + 1, steps), NONE, dtype=np.int64)
    known = np.flatnonzero(key >= 0)
    node[key[known], step[known]] = known
    # The same pair of keys in several steps is one pattern. Of a name that occurs more often in one step than in another,
    # nobody knows which is which: such steps have patterns of their own.
    source, target = edges.source[asked], edges.target[asked]
    back = step[target] - step[source]
    seen = np.where(edges.kind[asked] == EdgeKind.HANDOFF, start[target] - end[source], UNKNOWN_NS)
    order = np.lexsort((seen, edges.kind[asked], back, alike[target], alike[source], key[target], key[source]))
    columns = np.column_stack((key[source], key[target], back, alike[source], alike[target], edges.kind[asked].astype(np.int64)))[
        order
    ]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (columns[1:] != columns[:-1]).any(axis=1)
    pattern = np.empty(len(asked), dtype=np.int64)
    pattern[order] = np.cumsum(new) - 1
    firsts = order[new]
    keys = (key[source[firsts]], key[target[firsts]])
    counts = (alike[source[firsts]], alike[target[firsts]])

    def in_step(other: int) -> tuple[Int64, Int64, NDArray[np.bool_]]:
        """The two nodes of each pattern that ends in this step, and whether both are there."""
        earlier = other - back[firsts]
        inside = (earlier >= 0) & (earlier < steps)
        before = np.where(inside, node[keys[0], np.clip(earlier, 0, steps - 1)], NONE)
        after = node[keys[1], other]
        there = (before >= 0) & (after >= 0)
        return before, after, there & (alike[before] == counts[0]) & (alike[after] == counts[1])

    against, compared = (np.zeros(len(firsts), dtype=np.int64) for _ in range(2))
    for other in range(steps):
        before, after, there = in_step(other)
        against += there & (start[after] < end[before] - SLACK_NS)
        compared += there
    outvoted = _stamped_late(timeline, source[firsts]) & (against < compared - against)
    contradicted = (against > 0) & ~outvoted
    refuted = contradicted[pattern]
    keep = np.ones(len(edges), dtype=bool)
    keep[asked[refuted]] = False
    lag = edges.lag_ns.copy()
    handoff = edges.kind == EdgeKind.HANDOFF
    freed = np.setdiff1d(edges.target[~keep & handoff], edges.target[keep & handoff])
    own = (edges.kind == EdgeKind.BUSY) & np.isin(edges.target, freed)
    lag[own] = np.maximum(start[edges.target[own]] - end[edges.source[own]], 0)
    kept = edges.replace(lag_ns=lag).take(keep)
    # As long after as where it was seen to be least; edges between lanes have the usual lag of the rank.
    added = []
    for other in range(steps):
        before, after, there = in_step(other)
        chosen = there & ~contradicted & (start[after] >= end[before] - SLACK_NS)
        added.append(
            edges.take(asked[firsts[chosen]]).replace(source=before[chosen], target=after[chosen], lag_ns=seen[firsts[chosen]])
        )
    return _without_repeats(kept, Edges.concatenate(added), len(start))


def _stamped_late(timeline: Timeline, nodes: Int64) -> NDArray[np.bool_]:
    """Which are spans of collectives of CPU ranks. The end of such a span is stamped by a thread that needs a core after it has
    told the one that waits, so it may come too late in some steps: those are outvoted by more that do not contradict."""
    ops = timeline.ops
    spans = np.isin(ops.rank, [info.rank for info in timeline.ranks if info.on_cpu]) & (ops.collective >= 0)
    return (nodes < len(ops)) & spans[np.minimum(nodes, len(ops) - 1)]


def _without_repeats(kept: Edges, added: Edges, nodes: int) -> Edges:
    """The kept edges and those of the added that are not among them, each once, with the shortest lag."""
    inferred = np.isin(kept.kind, _INFERRED)
    there = kept.source[inferred] * nodes + kept.target[inferred]
    number = added.source * nodes + added.target
    order = np.lexsort((added.lag_ns, number))
    order = order[~np.isin(number[order], there)]
    _, first = np.unique(number[order], return_index=True)
    return Edges.concatenate([kept, added.take(order[first])])


def _identities(
    timeline: Timeline, start: Int64, launch_point: Int64, step_of_op: Int32
) -> tuple[Int64 | None, Int64, NDArray[np.int64]]:
    """Per node what it is in every step (-1 unknown), its step in order of number, and how many of its lane and name the step
    has. Operations by (lane, name, occurrence); a launch by the first operation that it launches."""
    ops, size = timeline.ops, len(timeline.ops)
    key, step, alike = (np.full(len(start), NONE, dtype=np.int64) for _ in range(3))
    rows = np.flatnonzero(step_of_op >= 0)
    if len(rows) == 0:
        return None, step, alike
    _, order_of_step = np.unique(step_of_op[rows], return_inverse=True)
    step[rows] = order_of_step
    lane, begun = ops.lane.astype(np.int64), ops.start_ns
    spans = np.isin(ops.rank, [info.rank for info in timeline.ranks if info.on_cpu]) & (ops.collective >= 0)
    lane = np.where(spans, len(timeline.lanes) + ops.rank, lane)
    begun = np.where(spans & (launch_point >= 0), start[np.minimum(size + launch_point, len(start) - 1)], begun)
    rows = rows[np.lexsort((ops.source_row[rows], ops.end_ns[rows], begun[rows], step[rows], ops.name[rows], lane[rows]))]
    columns = np.column_stack((lane[rows], ops.name[rows], step[rows]))
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (columns[1:] != columns[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    run = np.cumsum(new) - 1
    occurrence = np.arange(len(rows)) - first[run]
    counts = np.diff(np.append(first, len(rows)))
    alike[rows] = counts[run]
    named = np.ones(len(rows), dtype=bool)
    named[1:] = (columns[1:, :2] != columns[:-1, :2]).any(axis=1)
    # (lane, name) -> as many keys as the step with most of them has.
    most = np.maximum.reduceat(occurrence, np.flatnonzero(named)) + 1
    base = np.concatenate(([0], np.cumsum(most)))[:-1]
    key[rows] = base[np.cumsum(named) - 1] + occurrence
    launched = rows[launch_point[rows] >= 0]
    launched = launched[np.argsort(-ops.start_ns[launched], kind="stable")]
    point = size + launch_point[launched]
    key[point] = int(key.max()) + 1 + key[launched]
    step[point], alike[point] = step[launched], alike[launched]
    return key, step, alike
