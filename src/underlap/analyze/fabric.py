"""Transfer that no schedule could hide: more of it on one link than there is compute beside which it could run.

    excess = isolated transfer on the link - all compute of the device that may be independent of it

As in `bound`, only data and waits for recorded events make compute dependent, each group of ranks stands for one link, and
transfer counts at its low end, so that an excess is a fact of the recorded work and not of its schedule. Compute of which no
edge tells counts as independent: where it is not, the excess is larger than said. Not decided: where waiting is unknown (the
transfer may be nothing), and where the trace does not say the group (the link has no name).
"""

from __future__ import annotations

import numpy as np

from underlap import intervals
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.groups import Calls
from underlap.analyze.rendezvous import Rendezvous
from underlap.columns import NONE, Int64
from underlap.timeline import OpClass, Timeline

Successors = dict[int, list[int]]
"""Operation -> operations that wait for an event recorded after it."""


def successors(edges: list[tuple[int, int]]) -> Successors:
    """From pairs (source, target)."""
    result: Successors = {}
    for source, target in edges:
        result.setdefault(source, []).append(target)
    return result


def excess(
    timeline: Timeline,
    calls: Calls,
    met: Rendezvous,
    rows: Int64,
    sets: DeviceSets,
    stretches: Int64,
    forward: Successors,
    backward: Successors,
) -> dict[int, int]:
    """Group -> excess in ns (above 0) on one device, whose operations are `rows`."""
    ops, table = timeline.ops, calls.table
    inside = intervals.covered(ops.start_ns[rows], ops.end_ns[rows], stretches) > 0
    own = rows[inside & (ops.op_class[rows] == OpClass.COMMUNICATION) & (ops.collective[rows] >= 0)]
    group = table.group[ops.collective[own]]
    compute = int(intervals.covered(stretches[:, 0], stretches[:, 1], sets.covering).sum())
    found = {}
    for number in np.unique(group[group >= 0]).tolist():
        link_of = calls.groups[number]
        if not (link_of.name or link_of.description or link_of.ranks):
            continue
        link = own[group == number]
        transfer = _isolated(timeline, calls, met, link, stretches)
        independent = compute - _most_dependent(timeline, rows, link, stretches, (forward, backward))
        if transfer is not None and transfer > independent:
            found[number] = transfer - independent
    return found


def _isolated(timeline: Timeline, calls: Calls, met: Rendezvous, link: Int64, stretches: Int64) -> int | None:
    """What these operations transfer inside the stretches, at least: together no longer than the link was busy, and each no
    longer than the shortest of its kind. None where the waiting of any is unknown."""
    ops, table = timeline.ops, calls.table
    call: Int64 = np.unique(ops.collective[link]).astype(np.int64)
    if bool((met.transfer[call] < 0).any()):
        return None
    until = np.clip(met.wait_end[ops.collective[link]], ops.start_ns[link], ops.end_ns[link])
    busy = intervals.length(intervals.intersect(intervals.union(until, ops.end_ns[link]), stretches))
    alone = met.transfer[call].copy()
    sized = table.payload_bytes[call] > 0
    keys = np.column_stack((table.collective[call[sized]], table.payload_bytes[call[sized]]))
    _, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.ravel()
    shortest = np.full(int(kind.max(initial=NONE)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, kind, alone[sized])
    alone[sized] = shortest[kind]
    return min(busy, int(alone.sum()))


def _most_dependent(timeline: Timeline, rows: Int64, link: Int64, stretches: Int64, edges: tuple[Successors, Successors]) -> int:
    """Compute that every one of these operations must precede or follow, in ns: it can run beside none of them."""
    dependent: set[int] | None = None
    for row in link.tolist():
        reached = _reached(row, edges[0]) | _reached(row, edges[1])
        dependent = reached if dependent is None else dependent & reached
        if not dependent:
            return 0
    ops = timeline.ops
    chosen = np.array(sorted(dependent or ()), dtype=np.int64)
    chosen = chosen[np.isin(chosen, rows) & np.isin(ops.op_class[chosen], (OpClass.COMPUTE, OpClass.FUSED))]
    return intervals.length(intervals.intersect(intervals.union(ops.start_ns[chosen], ops.end_ns[chosen]), stretches))


def _reached(row: int, along: Successors) -> set[int]:
    found: set[int] = set()
    ahead = [row]
    while ahead:
        for other in along.get(ahead.pop(), ()):
            if other not in found:
                found.add(other)
                ahead.append(other)
    return found
