"""A rank's Network shrunk to what other ranks can notice: the longest paths between its rendezvous.

Whatever happens inside a rank between two rendezvous is one number, the longest way from one to the other. So a replay
over thousands of ranks needs a few operations per collective instead of every kernel and launch; one reduction per
counterfactual. Exact for given durations: a path that was left out was never the longest.

    op - op - (0) - op - op - (1)        becomes   source --lag--> (0) --lag--> (1) --lag--> sink
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from underlap.columns import NONE, Int32, Int64
from underlap.errors import ScheduleError
from underlap.replay import NO_RELEASE, Network, lane_edges, network

_WIDEST = 8
"""An operation that has to be seen from more than this many kept ones is kept itself, so that edges do not multiply."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The small network, and which operation each of its rows was. Row 0 is the source, the last row the sink."""

    network: Network
    """The source stands for all release times, the sink for the end of everything: it starts at the makespan."""
    original: Int64
    """The row in the full network; -1 for source and sink. Shape (rows,)."""


def reduce_rank(plan: Network) -> Reduced:
    """The Network with only the members of rendezvous, and where many paths meet, the operation where they do."""
    order, waits = _in_order(plan)
    released = plan.release_ns[plan.release_ns > NO_RELEASE]
    origin = int(released.min()) if len(released) else 0
    work, release, joined = plan.work_ns.tolist(), plan.release_ns.tolist(), (plan.rendezvous >= 0).tolist()
    # Per operation: kept row -> longest way from that row's end to this operation's end. Row 0 is the source.
    reach: list[dict[int, int]] = [{}] * len(plan)
    kept: list[int] = [NONE]
    into: list[dict[int, int]] = [{}]
    edges: list[tuple[int, int, int]] = []
    ends: dict[int, int] = {}
    needed = [True] * len(plan)
    for op in order:
        ways: dict[int, int] = {}
        if release[op] > NO_RELEASE:
            ways[0] = release[op] - origin
        for source, lag in waits[op]:
            needed[source] = False
            for row, way in reach[source].items():
                if ways.get(row, NO_RELEASE) < way + lag:
                    ways[row] = way + lag
        if len(ways) > 1:
            ways = _undominated(ways, into)
        if joined[op] or len(ways) > _WIDEST:
            edges.extend((row, len(kept), way) for row, way in ways.items())
            # From a kept row's end to this one's end, not counting what waiting adds.
            into.append({row: way + work[op] for row, way in ways.items()})
            reach[op] = {len(kept): 0}
            kept.append(op)
        else:
            reach[op] = {row: way + work[op] for row, way in ways.items()}
    for op in np.flatnonzero(needed).tolist():
        for row, way in reach[op].items():
            ends[row] = max(way, ends.get(row, NO_RELEASE))
    edges.extend((row, len(kept), way) for row, way in ends.items())
    rows = np.array([*kept, NONE], dtype=np.int64)
    columns = np.array(edges, dtype=np.int64).reshape(-1, 3)
    start = np.full(len(rows), NO_RELEASE)
    start[0] = origin
    small = network(
        np.full(len(rows), NONE, dtype=np.int32),
        np.append(plan.work_ns, 0)[rows],
        release_ns=start,
        rendezvous=np.append(plan.rendezvous, NONE).astype(np.int32)[rows],
        edges=(columns[:, 0], columns[:, 1], columns[:, 2]),
    )
    return Reduced(network=small, original=rows)


def _undominated(ways: dict[int, int], into: list[dict[int, int]]) -> dict[int, int]:
    """The ways without those that a way through a later kept row already covers, as waiting there only makes it longer."""
    covered = set()
    for later, rest in ways.items():
        for row, way in into[later].items():
            if row in ways and way + rest >= ways[row]:
                covered.add(row)
    return {row: way for row, way in ways.items() if row not in covered}


def join_ranks(ranks: Sequence[Network]) -> Network:
    """One Network from those of several ranks. Rendezvous numbers are common to all; lanes and operations are each rank's own."""
    sizes = np.cumsum([0, *(len(rank) for rank in ranks)])
    lanes = np.cumsum([0, *(int(rank.lane.max(initial=NONE)) + 1 for rank in ranks)])
    edges = np.cumsum([0, *(len(rank.source) for rank in ranks)])
    return Network(
        lane=np.concatenate([np.where(rank.lane >= 0, rank.lane + lanes[at], NONE) for at, rank in enumerate(ranks)]),
        work_ns=np.concatenate([rank.work_ns for rank in ranks]),
        release_ns=np.concatenate([rank.release_ns for rank in ranks]),
        rendezvous=np.concatenate([rank.rendezvous for rank in ranks]),
        first_edge=np.concatenate([[0], *(rank.first_edge[1:] + edges[at] for at, rank in enumerate(ranks))]),
        source=np.concatenate([rank.source + sizes[at] for at, rank in enumerate(ranks)]).astype(np.int32),
        lag_ns=np.concatenate([rank.lag_ns for rank in ranks]),
    )


def split_ranks(plan: Network, rank: Int32) -> list[Network]:
    """The Networks of the ranks (ascending) in a Network whose edges all stay within a rank. `rank` is per operation."""
    target = np.repeat(np.arange(len(plan)), np.diff(plan.first_edge))
    assert (rank[plan.source] == rank[target]).all(), "only rendezvous lead from one rank to another"
    place = np.empty(len(plan), dtype=np.int64)
    parts = []
    for number in np.unique(rank).tolist():
        rows = np.flatnonzero(rank == number)
        place[rows] = np.arange(len(rows))
        edges = rank[target] == number
        parts.append(
            network(
                plan.lane[rows],
                plan.work_ns[rows],
                release_ns=plan.release_ns[rows],
                rendezvous=plan.rendezvous[rows],
                edges=(place[plan.source[edges]], place[target[edges]], plan.lag_ns[edges]),
            )
        )
    return parts


def _in_order(plan: Network) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """The operations so that each follows what it waits for, and per operation its (source, lag), lanes included."""
    waits: list[list[tuple[int, int]]] = [[] for _ in range(len(plan))]
    behind: list[list[int]] = [[] for _ in range(len(plan))]
    target = np.repeat(np.arange(len(plan)), np.diff(plan.first_edge))
    before, after = lane_edges(plan.lane)
    sources = np.concatenate([plan.source, before]).tolist()
    targets = np.concatenate([target, after]).tolist()
    lags = np.concatenate([plan.lag_ns, np.zeros(len(before), dtype=np.int64)]).tolist()
    for one, two, lag in zip(sources, targets, lags, strict=True):
        waits[two].append((one, lag))
        behind[one].append(two)
    left = [len(entry) for entry in waits]
    order = [op for op, count in enumerate(left) if count == 0]
    for op in order:
        for two in behind[op]:
            left[two] -= 1
            if left[two] == 0:
                order.append(two)  # the list is the queue
    if len(order) < len(plan):
        stuck = [op for op, count in enumerate(left) if count > 0]
        raise ScheduleError(
            f"{len(stuck)} of {len(plan)} operations wait for one another in a circle, operation {stuck[0]} first"
        )
    return order, waits
