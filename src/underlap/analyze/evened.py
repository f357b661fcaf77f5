"""What a late rank does more than the one that came first, from meeting to meeting: what the lever `stragglers` takes away.

    first rank   |meets ##compute## meets|        from its arrival at one meeting to its arrival at the next
    late rank    |meets ##compute##....host.... meets|

Counted from arrival to arrival, not from the end of the meeting on: a rank that computes while it waits has only done sooner
what the late one does afterwards. More compute is taken off the late rank's compute, more host time off the gaps between its
calls, each in proportion. Never more than it was late for that reason, and nothing twice where meetings overlap.
Not modeled: the first meeting in the window, copies, and lateness by another collective, which is not the rank's own doing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap import intervals
from underlap.analyze.calls import CallTimes
from underlap.analyze.dependences import EdgeKind
from underlap.analyze.graph import Graph
from underlap.analyze.groups import Calls
from underlap.analyze.lateness import Late
from underlap.analyze.rendezvous import Rendezvous
from underlap.columns import Int64
from underlap.timeline import OpClass, Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evened:
    """What is taken off, in ns."""

    work_ns: Int64
    """Per operation, at most its duration. Shape (len(ops),)."""
    host_ns: Int64
    """Per node of the graph, of the host's time before it. Shape (len(graph),)."""


def evened(timeline: Timeline, graph: Graph, calls: Calls, times: CallTimes, met: Rendezvous, late: Late) -> Evened:
    """What to take off so that every late rank does as little as the one that came first."""
    ops, size = timeline.ops, len(timeline.ops)
    less = Evened(work_ns=np.zeros(size, dtype=np.int64), host_ns=np.zeros(len(graph), dtype=np.int64))
    gap = np.zeros(len(graph), dtype=np.int64)
    busy = graph.edges.kind == EdgeKind.BUSY
    np.maximum.at(gap, graph.edges.target[busy], np.maximum(graph.edges.lag_ns[busy], 0))
    computing = np.isin(ops.op_class, (OpClass.COMPUTE, OpClass.FUSED))
    duration = ops.end_ns - ops.start_ns
    rows = np.flatnonzero((met.instance >= 0) & (times.first_op >= 0))
    meets, of = met.instance[rows].tolist(), calls.table.rank[rows].tolist()
    call_of = dict(zip(zip(meets, of, strict=True), rows.tolist(), strict=True))
    by_start = np.argsort(graph.start_ns, kind="stable")
    nodes = {int(rank): by_start[graph.rank[by_start] == rank] for rank in np.unique(graph.rank)}
    compute = {rank: own[own < size][computing[own[own < size]]] for rank, own in nodes.items()}
    starts = [{rank: graph.start_ns[own] for rank, own in of_rank.items()} for of_rank in (compute, nodes)]

    def between(rank: int, since: int, until: int) -> tuple[Int64, Int64]:
        """Compute operations, and all nodes, after the rank's arrival at one call and up to that at another."""
        arrivals = graph.start_ns[[times.first_op[since], times.first_op[until]]]
        ranges = [slice(*np.searchsorted(of_rank[rank], arrivals, side="right")) for of_rank in starts]
        return compute[rank][ranges[0]], nodes[rank][ranges[1]]

    host_late = late.launched_late + late.blocked + late.unexplained
    compute_late = late.more_compute + late.queued_behind_compute
    for at in np.argsort(graph.start_ns[[times.first_op[call_of[key]] for key in _keys(late)]], kind="stable").tolist():
        instance, since, rank, than = (int(column[at]) for column in (late.instance, late.since, late.rank, late.than))
        ends = [call_of.get(key, -1) for key in ((since, rank), (instance, rank), (since, than), (instance, than))]
        if since < 0 or min(ends) < 0:
            continue
        (computes, own), (computes_less, other) = between(rank, *ends[:2]), between(than, *ends[2:])
        more = _union(timeline, computes) - _union(timeline, computes_less) - int(less.work_ns[computes].sum())
        more = min(more, int(compute_late[at]), int(late.late_ns[at]))
        _spread(less.work_ns, computes, duration[computes] - less.work_ns[computes], more)
        idle = int(gap[own].sum()) - int(gap[other].sum()) - int(less.host_ns[own].sum())
        idle = min(idle, int(host_late[at]), int(late.late_ns[at]) - max(more, 0))
        _spread(less.host_ns, own, gap[own] - less.host_ns[own], idle)
    return less


def _keys(late: Late) -> list[tuple[int, int]]:
    return list(zip(late.instance.tolist(), late.rank.tolist(), strict=True))


def _union(timeline: Timeline, rows: Int64) -> int:
    return intervals.length(intervals.union(timeline.ops.start_ns[rows], timeline.ops.end_ns[rows]))


def _spread(taken: Int64, rows: Int64, available: Int64, amount: int) -> None:
    """Add `amount` to the rows of `taken`, in proportion to what is there; no more than there is, and nothing below 0."""
    total = int(available.sum())
    if amount > 0 and total > 0:
        taken[rows] += np.minimum(available * min(amount / total, 1.0), available).astype(np.int64)
