"""When the ranks that a call needs arrived, on one clock, and whether that can be true.

The check is physical: nobody ends before a rank that it needs has arrived. Many calls for which that fails mean that they
were wrongly matched; a single one means a wrong timestamp, and its instance stays unknown.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.calls import CallTimes
from underlap.analyze.clocks import AGREE_NS, FEWEST_TO_MOVE, Clocks
from underlap.analyze.groups import Calls
from underlap.analyze.matching import Matching, Need
from underlap.columns import NONE, Int32, Int64
from underlap.timeline import UNKNOWN_NS, Timeline

_WRONG_SHARE = 0.01
"""From this share of a group's instances on, ends before arrivals beyond the residual mean a wrong matching."""
_DOUBTFUL_SHARE = 0.5
"""The same for ends that are early by more than half of it: clocks that wander do that now and then, wrong pairs mostly."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Per instance what its calls in the input show, on the common clock. All of shape (number of instances,)."""

    comparable: NDArray[np.bool_]
    """All its clocks are in one component, and what they are uncertain by is known."""
    first: Int64
    last: Int64
    first_row: Int64
    last_row: Int64
    root: Int64
    """Arrival of the root; `UNKNOWN_NS` where it is unknown or not in the input."""
    residual: Int64
    """Largest residual of its ranks."""


def arrivals(calls: Calls, times: CallTimes, matching: Matching, found: Clocks) -> Arrivals:
    """The arrivals of each instance."""
    instances = matching.instances
    size = len(instances)
    rows = np.flatnonzero(matching.instance >= 0)
    owner, rank = matching.instance[rows], calls.table.rank[rows]
    start = found.correct(rank, times.start[rows])
    at = found.at(rank)
    low, high = np.full(size, np.iinfo(np.int32).max), np.full(size, NONE)
    np.minimum.at(low, owner, found.component[at])
    np.maximum.at(high, owner, found.component[at])
    least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, NONE, dtype=np.int64)
    np.minimum.at(least, owner, found.residual_ns[at])
    np.maximum.at(most, owner, found.residual_ns[at])
    # Of ranks that arrive at one moment, the one with the lower number comes first.
    order = np.lexsort((rank, start, owner))
    begins = np.searchsorted(owner[order], np.arange(size))
    finals = np.searchsorted(owner[order], np.arange(size), side="right") - 1
    root = np.full(size, UNKNOWN_NS)
    is_root = rank == instances.root[owner]
    root[owner[is_root]] = start[is_root]
    return Arrivals(
        comparable=(low == high) & ((least >= 0) | (instances.members == 1)),
        first=start[order[begins]],
        last=start[order[finals]],
        first_row=rows[order[begins]],
        last_row=rows[order[finals]],
        root=root,
        residual=most,
    )


def needed_arrivals(calls: Calls, times: CallTimes, matching: Matching, found: Clocks) -> tuple[Int64, Int64, Int64]:
    """Per call the last arrival that it needed, the last needed one in the input, and the uncertainty of waiting for it.

    The first two on the common clock, `UNKNOWN_NS` where unknown; the third -1 there.
    """
    instances, seen = matching.instances, arrivals(calls, times, matching, found)
    count = len(calls.table)
    needed, at_least = np.full(count, UNKNOWN_NS), np.full(count, UNKNOWN_NS)
    uncertainty = np.full(count, NONE, dtype=np.int64)
    rows = np.flatnonzero(matching.instance >= 0)
    rows = rows[times.first_op[rows] >= 0]
    own = matching.instance[rows]
    need, rank = instances.need[own], calls.table.rank[rows]
    is_root = rank == instances.root[own]
    for_all = (need == Need.EVERYONE) | ((need == Need.AT_ROOT) & is_root)
    for_root = (need == Need.ROOT) & ~is_root & (instances.root[own] >= 0)
    for_nobody = (need == Need.ROOT) & is_root | (need == Need.AT_ROOT) & ~is_root & (instances.root[own] >= 0)
    for_nobody |= instances.expected[own] == 1
    complete = instances.members[own] == instances.expected[own]
    comparable = seen.comparable[own]
    start = found.correct(rank, times.start[rows])
    residual = found.residual_ns[found.at(rank)]
    needed[rows] = np.select(
        [for_nobody, for_all & complete & comparable, for_root & comparable],
        [start, seen.last[own], seen.root[own]],
        UNKNOWN_NS,
    )
    at_least[rows] = np.where(for_all & comparable & (instances.members[own] > 1), seen.last[own], UNKNOWN_NS)
    uncertainty[rows] = np.where(for_nobody, 0, np.where(comparable, residual + seen.residual[own], NONE))
    return needed, at_least, uncertainty


def _early(timeline: Timeline, calls: Calls, times: CallTimes, matching: Matching, found: Clocks) -> tuple[Int64, Int64, Int64]:
    """(call, by how many ns it ends before a rank that it needs arrives, uncertainty) of calls for which that is so."""
    needed, at_least, uncertainty = needed_arrivals(calls, times, matching, found)
    latest = np.maximum(needed, at_least)
    # A small message may be sent before anybody asks for it.
    one_sided = named(timeline, calls.table.collective, ("send", "dispatch", "combine"))
    rows = np.flatnonzero((latest != UNKNOWN_NS) & (uncertainty >= 0) & ~one_sided)
    end = found.correct(calls.table.rank[rows], times.end[rows])
    by = latest[rows] - end
    return rows[by > 0], by[by > 0], uncertainty[rows[by > 0]]


def worst_group(timeline: Timeline, calls: Calls, times: CallTimes, matching: Matching, found: Clocks) -> dict[int, str]:
    """The group whose calls most often end before a peer arrived, with the reason to refuse it; empty if none does.

    Not only beyond the residual, since a wrong matching makes the residual large: half of it counts where many calls are
    involved, and where there are few instances, nothing but clocks that agree.
    """
    rows, by, uncertainty = _early(timeline, calls, times, matching, found)
    instance = matching.instance[rows]
    common = np.maximum(found.common[found.at(calls.table.rank[rows])], 1)
    beyond = by > np.maximum(uncertainty, AGREE_NS)
    doubtful = by > np.maximum(np.where(common < FEWEST_TO_MOVE, 0, uncertainty // 2), AGREE_NS)
    total = np.bincount(matching.instances.group, minlength=len(calls.groups)) if len(matching.instances) else np.zeros(0)
    worst, reason = (0.0, NONE), ""
    for group in np.unique(matching.instances.group[instance]).tolist():
        here = matching.instances.group[instance] == group
        sure = len(np.unique(instance[here & beyond])) / total[group]
        many = len(np.unique(instance[here & doubtful])) / total[group]
        if (sure > _WRONG_SHARE or many > _DOUBTFUL_SHARE) and max(sure, many) > worst[0]:
            worst = (max(sure, many), group)
            reason = (
                f"in {max(sure, many):.0%} of its {int(total[group])} instances a rank ends before another arrives, by up to "
                f"{by[here].max() / 1e3:.0f} us: these calls are not one collective, or the clocks are worse than they look"
            )
    return {worst[1]: reason} if reason else {}


def without_impossible(
    timeline: Timeline, calls: Calls, times: CallTimes, matching: Matching, found: Clocks, needed: Int64, uncertainty: Int64
) -> Int64:
    """`needed_arrivals` made unknown in the instances with a timestamp that cannot be true."""
    rows, by, _ = _early(timeline, calls, times, matching, found)
    wrong = by > np.maximum(uncertainty[rows], AGREE_NS)
    bad = np.zeros(len(matching.instances) + 1, dtype=bool)
    bad[matching.instance[rows[wrong]]] = True
    bad[-1] = False
    return np.where(bad[matching.instance], UNKNOWN_NS, needed)


def named(timeline: Timeline, ids: Int32, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which of the collectives, given by their ids, have one of the names."""
    return np.isin(ids, [at for at, name in enumerate(timeline.names) if name in names])
