"""Waiting of pipeline stages for each other: the bubble of the schedule, which no healthy stage is to blame for.

Where stages p and micro-batches m can be counted, the formula stands beside what was measured: GPipe and plain 1F1B idle for
(p-1)/(m+p-1) of a step (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021, section
2.2: (p-1)/m of the ideal time). What is not modeled: interleaved and zero-bubble schedules, whose formulas differ.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.analyze.matching import PAIRED
from underlap.analyze.rendezvous import Rendezvous
from underlap.analyze.steps import Steps
from underlap.columns import NONE, Int64
from underlap.timeline import Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """The pipeline of one group: what its stages wait for each other, and what plain schedules would."""

    group: int
    """Index into `Calls.groups`."""
    stages: int | None
    micro_batches: int | None
    """Sends from each stage to its neighbor per step, where all agree."""
    ideal_share: float | None
    """(p-1)/(m+p-1) of the step, if the schedule is GPipe or plain 1F1B; None where p or m is unknown."""
    waiting_share: dict[int, float]
    """Rank -> share of its steps in which it waits for another stage and transfers nothing with it; unknown ranks are absent."""
    waiting_ns: dict[int, int]
    """The same in nanoseconds, over all steps."""
    how: str


def pipeline_calls(timeline: Timeline, calls: Calls, times: CallTimes, steps: Steps) -> NDArray[np.bool_]:
    """Per call whether it hands something from one pipeline stage to another.

    It is point-to-point on an axis with pp in it; or, where the axis is unknown and may be pp, a send or receive of which
    its group makes several in one direction per step, as micro-batches do.
    """
    table = calls.table
    names = [timeline.name_of(number) for number in range(len(timeline.names))]
    paired = np.isin(table.collective, [at for at, name in enumerate(names) if name in PAIRED])
    axes = [calls.axis[number] for number in range(len(calls.axis))]
    named = np.array(["pp" in (axis.dimensions or ()) for axis in axes], dtype=bool)
    possible = np.array([axis.dimensions is None and "pp" in axis.candidates for axis in axes], dtype=bool)
    if not paired.any():
        return paired
    result: NDArray[np.bool_] = paired & named[calls.axis_of]
    sends = np.isin(table.collective, [at for at, name in enumerate(names) if name in ("send", "recv")])
    maybe = np.flatnonzero(sends & possible[calls.axis_of] & (table.group >= 0) & (times.first_op >= 0))
    step = steps.of_op[times.first_op[maybe]]
    keys = np.column_stack((table.group[maybe], table.rank[maybe], table.collective[maybe], table.peer[maybe], step))
    _, kind, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    repeats = (count[kind.ravel()] > 1) & (step >= 0)
    # A group repeats if any of its steps does: the last step of a window may be cut.
    result[maybe] = np.isin(table.group[maybe], table.group[maybe[repeats]])
    return result


def bubbles(timeline: Timeline, calls: Calls, times: CallTimes, steps: Steps, met: Rendezvous) -> tuple[Bubble, ...]:
    """One entry per group that is a pipeline."""
    pipeline = pipeline_calls(timeline, calls, times, steps)
    found = []
    for group in np.unique(calls.table.group[pipeline & (calls.table.group >= 0)]).tolist():
        rows = np.flatnonzero(pipeline & (calls.table.group == group) & times.counted)
        if len(rows) == 0:
            continue
        ranks = calls.groups[group].ranks
        stages = len(ranks) if ranks is not None else None
        count, how = _micro_batches(timeline, calls, times, steps, met, rows)
        ideal = None if stages is None or count is None else (stages - 1) / (count + stages - 1)
        waiting = _waiting(calls, times, steps, met, rows)
        found.append(
            Bubble(
                group=group,
                stages=stages,
                micro_batches=count,
                ideal_share=ideal,
                waiting_share={rank: own / span for rank, (own, span) in waiting.items()},
                waiting_ns={rank: own for rank, (own, _) in waiting.items()},
                how=how,
            )
        )
    return tuple(found)


def _micro_batches(
    timeline: Timeline, calls: Calls, times: CallTimes, steps: Steps, met: Rendezvous, rows: Int64
) -> tuple[int | None, str]:
    """Sends per step from a stage to a neighbor, and how that was counted or why it was not."""
    table = calls.table
    ranks = calls.groups[table.group[rows[0]]].ranks
    sends = rows[[timeline.name_of(int(table.collective[row])) == "send" for row in rows.tolist()]]
    sends = sends[met.instance[sends] >= 0]
    if len(sends) == 0 or ranks is None:
        return None, "micro-batches cannot be counted: no sends that are matched with a receive"
    receiver = {
        int(met.instance[row]): int(table.rank[row])
        for row in rows.tolist()
        if met.instance[row] >= 0 and timeline.name_of(int(table.collective[row])) == "recv"
    }
    place = {rank: at for at, rank in enumerate(ranks)}
    step = steps.of_op[times.first_op[sends]].tolist()
    counted: dict[tuple[int, int, int], int] = {}
    for row, number in zip(sends.tolist(), step, strict=True):
        target = receiver.get(int(met.instance[row]))
        if target is None or number == NONE:
            continue
        source = place[int(table.rank[row])]
        if abs(place[target] - source) != 1:
            return None, "a stage sends past its neighbor, so this is not plain 1F1B and the formula does not apply"
        counted[source, place[target], number] = counted.get((source, place[target], number), 0) + 1
    if not counted:
        return None, "micro-batches cannot be counted: the trace marks no steps, or its sends lie outside them"
    if len(set(counted.values())) > 1:
        return None, f"sends per step differ ({min(counted.values())} to {max(counted.values())}): micro-batches are unknown"
    count = next(iter(counted.values()))
    return count, f"{count} sends per step between neighbors; the formula holds if the schedule is GPipe or plain 1F1B"


def _waiting(calls: Calls, times: CallTimes, steps: Steps, met: Rendezvous, rows: Int64) -> dict[int, tuple[int, int]]:
    """Rank -> (waiting for another stage, length of its steps)."""
    found = {}
    for rank in np.unique(calls.table.rank[rows]).tolist():
        own = rows[calls.table.rank[rows] == rank]
        spans = np.array([(step.start_ns, step.end_ns) for step in steps.steps if step.rank == rank], dtype=np.int64)
        spans = intervals.union(*spans.reshape(-1, 2).T)
        if (met.wait[own] < 0).any() or intervals.length(spans) == 0:
            continue
        waiting = intervals.union(times.start[own], met.wait_end[own])
        moving = intervals.union(met.wait_end[own], times.end[own])
        only = intervals.intersect(intervals.subtract(waiting, moving), spans)
        found[rank] = (intervals.length(only), intervals.length(spans))
    return found
