"""Collectives that stand behind another one of their lane: launched before that one ended. And what their order implies."""

from __future__ import annotations

import numpy as np

from underlap.analyze.graph import EdgeKind, Graph
from underlap.columns import NONE, Int64
from underlap.timeline import OpClass, Timeline

COMMUNICATING = (OpClass.COMMUNICATION, OpClass.WAIT)


def communicates(timeline: Timeline) -> np.ndarray:
    """Which operations do. Shape (len(ops),)."""
    found: np.ndarray = np.isin(timeline.ops.op_class, COMMUNICATING)
    return found


def queued(timeline: Timeline, graph: Graph) -> tuple[Int64, Int64]:
    """(source, target) of the order of lanes between communication, where the second had been launched before the first ended."""
    edges = graph.edges
    found = queues(timeline, graph, edges.source, edges.target, edges.kind == EdgeKind.LANE)
    return edges.source[found], edges.target[found]


def chains(timeline: Timeline, graph: Graph) -> tuple[Int64, Int64]:
    """(chain, place in it) of each node whose predecessors in it are always waited for: what no queue can part. NONE elsewhere.

    Those are the operations of a lane that do not communicate. On CPU ranks the thread holds them in order, not the lane.
    """
    chain = np.full(len(graph), NONE, dtype=np.int64)
    size = len(timeline.ops)
    held = ~communicates(timeline) & ~np.isin(timeline.ops.rank, [info.rank for info in timeline.ranks if info.on_cpu])
    chain[:size][held] = timeline.ops.lane[held]
    place = np.empty(len(graph), dtype=np.int64)
    place[np.lexsort((graph.end_ns, graph.start_ns))] = np.arange(len(graph))
    return chain, place


def implied_by(dropped: tuple[Int64, Int64], held: tuple[Int64, Int64], *edges: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """What waited for a queued operation had also waited for those it stood behind: (source, target) without the queue.

    Of the targets in a chain only the first is given, as the others wait for it: a queue may be as long as the recording, and
    pairs of everything in it with everything behind it would be its square.
    """
    size = max((int(column.max(initial=0)) for pair in (dropped, *edges) for column in pair), default=0) + 1
    ahead = np.full(size, NONE, dtype=np.int64)
    ahead[dropped[1]] = dropped[0]
    source, target = (np.concatenate(columns) for columns in zip(*edges, strict=True))
    chain, place = held
    first: dict[tuple[int, int], int] = {}

    def news(source: Int64, target: Int64) -> np.ndarray:
        """Which pairs are earlier in their chain than those there were for their source."""
        found = np.ones(len(source), dtype=bool)
        for at in np.flatnonzero(chain[target] >= 0).tolist():
            key, own = (int(source[at]), int(chain[target[at]])), int(place[target[at]])
            found[at] = own < first.get(key, own + 1)
            if found[at]:
                first[key] = own
        return found

    queue = np.zeros(size, dtype=bool)
    queue[dropped[0]] = queue[dropped[1]] = True
    source, target = source[queue[source]], target[queue[source]]
    news(source, target)
    sources, targets = [source[:0]], [target[:0]]
    while len(source):
        behind = ahead[source] >= 0
        source, target = ahead[source[behind]], target[behind]
        kept = news(source, target)
        source, target = source[kept], target[kept]
        # What stands in the queue itself waits for nobody in it.
        free = ahead[target] != source
        sources.append(source[free])
        targets.append(target[free])
    return np.concatenate(sources), np.concatenate(targets)


def queues(timeline: Timeline, graph: Graph, source: Int64, target: Int64, chosen: np.ndarray) -> np.ndarray:
    """Which of some edges lead from communication to communication that had been launched before the first ended."""
    talks = np.append(communicates(timeline), False)
    size = len(timeline.ops)
    found: np.ndarray = chosen & talks[np.minimum(source, size)] & talks[np.minimum(target, size)]
    launched = np.full(len(graph), np.iinfo(np.int64).max)
    launches = graph.edges.kind == EdgeKind.LAUNCH
    launched[graph.edges.target[launches]] = graph.end_ns[graph.edges.source[launches]]
    return found & (launched[target] < graph.end_ns[source])
