"""The shortest that any schedule could be, and how much of what can be hidden is hidden.

    bound = max(critical path over data edges with isolated work, compute work, transfer per link)

Only dependences that are there in every schedule count: data, and waits for recorded events. Lanes, launches, the order of
the host and what is inferred do not. Without known links, each group of ranks stands for one.
Not modeled: links that several groups share, memory that hiding would take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from underlap import intervals, replay
from underlap.analyze.graph import EdgeKind, Grade, Graph
from underlap.analyze.queues import COMMUNICATING
from underlap.columns import NONE, Int64
from underlap.timeline import OpClass, Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Of one window; the largest device, rank or link decides each part."""

    path_ns: int
    compute_ns: int
    transfer_ns: int
    """On the busiest link. A transfer whose waiting is not known may be all waiting and counts 0."""
    transfer_at_most_ns: int
    """The same with such transfers as long as their kernels."""

    @property
    def length_ns(self) -> int:
        """No schedule is shorter."""
        return max(self.path_ns, self.compute_ns, self.transfer_ns)


def lower_bound(
    timeline: Timeline, graph: Graph, stretches: Mapping[tuple[int, int], Int64], isolated_ns: Int64 | None = None
) -> Bound:
    """The bound of a window. `isolated_ns`: durations alone, where known (for a true bound, their low ends)."""
    ops, size = timeline.ops, len(timeline.ops)
    observed = ops.end_ns - ops.start_ns
    work = np.minimum(observed, isolated_ns) if isolated_ns is not None else observed
    at_most = np.maximum(work - np.maximum(graph.wait_ns[:size], 0), 0)
    work = np.where(np.isin(ops.op_class, COMMUNICATING) & (graph.wait_ns[:size] < 0), 0, at_most)
    inside = np.zeros(size, dtype=bool)
    compute = 0
    for (rank, device), rows in stretches.items():
        own = (ops.rank == rank) & (ops.device == device) & (ops.start_ns >= rows[0, 0]) & (ops.start_ns < rows[-1, 1])
        inside |= own
        computing = own & np.isin(ops.op_class, (OpClass.COMPUTE, OpClass.FUSED))
        # Kernels of several streams at once count once: the union, shortened by what isolation saves.
        union = intervals.length(intervals.union(ops.start_ns[computing], ops.end_ns[computing]))
        compute = max(compute, union - int((observed - np.minimum(observed, work))[computing].sum()))
    return Bound(
        path_ns=_data_path(graph, inside, work),
        compute_ns=max(compute, 0),
        transfer_ns=_busiest_link(timeline, inside, work),
        transfer_at_most_ns=_busiest_link(timeline, inside, at_most),
    )


def hidden_of_possible(hidden_ns: int, devices: Sequence[tuple[int, int]], bound: Bound) -> float | None:
    """The share of what any schedule can hide that is hidden; None where nothing can be hidden.

    `devices`: transfer and compute of each, in ns. No device hides more than it computes, and what the longest path of the
    window has beyond all compute is not hidden either.
    """
    transfer = sum(one for one, _ in devices)
    possible = min(sum(min(pair) for pair in devices), transfer - max(bound.path_ns - bound.compute_ns, 0))
    return min(hidden_ns / possible, 1.0) if possible > 0 else None


def _data_path(graph: Graph, inside: np.ndarray, work: Int64) -> int:
    rows = np.flatnonzero(inside)
    if len(rows) == 0:
        return 0
    edges = graph.edges
    within = np.concatenate([inside, np.zeros(len(graph) - len(inside), dtype=bool)])
    hard = (edges.kind == EdgeKind.EVENT) | (edges.grade == Grade.DATA)
    hard &= within[edges.source] & within[edges.target]
    longest = int(work[rows].max())
    # What no such edge touches is a path of its own.
    rows = np.unique(np.concatenate([edges.source[hard], edges.target[hard]]))
    if len(rows) == 0:
        return longest
    rows = rows[np.lexsort((graph.end_ns[rows], graph.start_ns[rows]))]
    place = np.full(len(graph), NONE, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    plan = replay.network(
        np.full(len(rows), NONE, dtype=np.int32),
        work[rows],
        edges=(place[edges.source[hard]], place[edges.target[hard]], np.zeros(int(hard.sum()), dtype=np.int64)),
    )
    return max(longest, int(replay.replay(plan).end_ns.max()))


def _busiest_link(timeline: Timeline, inside: np.ndarray, work: Int64) -> int:
    ops = timeline.ops
    rows = np.flatnonzero(inside & np.isin(ops.op_class, COMMUNICATING))
    if len(rows) == 0:
        return 0
    group = np.append(timeline.collectives.group, NONE)[ops.collective[rows]].astype(np.int64)
    _, link = np.unique(np.column_stack((ops.rank[rows], group)), axis=0, return_inverse=True)
    link = link.ravel()
    # Transfers of one group at the same time share their link: each is longer for the other, and their sum is not the link's.
    begin, end = ops.end_ns[rows] - work[rows], ops.end_ns[rows]
    return max(intervals.length(intervals.union(begin[link == at], end[link == at])) for at in range(int(link.max()) + 1))
