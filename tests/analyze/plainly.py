"""The critical path and the late peers found one step at a time: what the vectorized ones are compared with."""

from __future__ import annotations

import numpy as np

from underlap.analyze.critical_path import _OF_CLASS, Part, _first_row, _last_node
from underlap.analyze.graph import MEETING_NS, OP, EdgeKind, Graph
from underlap.columns import NONE
from underlap.timeline import OpClass, Timeline


def walk(timeline: Timeline, graph: Graph, key: tuple[int, int], begin: int, end: int) -> list[list[int]]:
    """(start, end, part, node, edge) of each segment, backwards."""
    node, at_start = _last_node(timeline, graph, key, end)
    rows: list[list[int]] = []
    frontier = end

    def back(to: int, part: int, node: int, edge: int) -> None:
        nonlocal frontier
        to = max(int(to), begin)
        if to < frontier:
            rows.append([to, frontier, int(part), node, edge])
            frontier = to

    while node >= 0 and frontier > begin:
        if not at_start:
            back(graph.end_ns[node], Part.UNEXPLAINED, NONE, NONE)
            if graph.kind[node] == OP:
                part = _OF_CLASS[OpClass(int(timeline.ops.op_class[node]))]
                if graph.wait_ns[node] > 0 and part != Part.COMPUTE:
                    back(graph.start_ns[node] + graph.wait_ns[node], part, node, NONE)
                    if graph.late_node[node] >= 0:
                        node = int(graph.late_node[node])
                    else:
                        back(graph.start_ns[node], Part.WAITING, node, NONE)
                else:
                    back(graph.start_ns[node], part, node, NONE)
        at_start = False
        edge = int(graph.binding[node])
        if edge < 0:
            if graph.kind[node] != OP:
                back(_first_row(timeline, graph, node), Part.HOST, node, NONE)
            break
        before = int(graph.edges.source[edge])
        back(min(frontier, int(graph.end_ns[before] + graph.edges.lag_ns[edge])), Part.UNEXPLAINED, node, edge)
        part = Part.HOST if graph.edges.kind[edge] == EdgeKind.BUSY else Part.LATENCY
        back(graph.end_ns[before], part, node, edge)
        node = before
    back(begin, Part.UNEXPLAINED, NONE, NONE)
    return rows


def late_peers(graph: Graph) -> list[int]:
    """Per operation the peer that it waited for, -1 for none."""
    late = np.full(len(graph), NONE)
    members = np.flatnonzero(graph.rendezvous >= 0)
    members = members[np.lexsort((graph.start_ns[members], graph.rendezvous[members]))]
    for member in members[graph.wait_ns[members] > 0].tolist():
        peers = members[graph.rendezvous[members] == graph.rendezvous[member]]
        distance = np.abs(graph.start_ns[peers] - (graph.start_ns[member] + graph.wait_ns[member]))
        nearest = int(distance.argmin())
        if distance[nearest] <= MEETING_NS and graph.start_ns[peers[nearest]] > graph.start_ns[member]:
            late[member] = peers[nearest]
    return late.tolist()
