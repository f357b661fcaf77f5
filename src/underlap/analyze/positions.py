"""Compute kernels as samples: how long each ran, how much of it beside communication, and which place in the step it has.

A position is a place in the step: the k-th kernel with this rank, lane, name, grid and block. The same position in two steps
is the same work, which the same name and grid alone are not: input sizes differ between the layers of a model.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.estimates import Float, group_medians
from underlap.analyze.steps import Selection, Steps
from underlap.columns import NONE, Int64
from underlap.timeline import OpClass, Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The compute kernels of the window. All arrays of shape (samples,), in order of start."""

    op: Int64
    """Row of `Timeline.ops`."""
    device: Int64
    """Number of its device."""
    duration: Int64
    covered: Int64
    """Nanoseconds of it during which communication ran on the same device."""
    stretch: Int64
    """Number of the stretch with or without communication in which it starts, over all devices."""
    late: NDArray[np.bool_]
    """Whether its middle lies in the second half of its stretch."""
    step: Int64
    """Number of the step of its device, over all devices; -1 outside steps."""
    position: Int64
    """-1 where the step does not repeat."""
    offset: Int64
    """From the first kernel of the step; 0 outside steps."""

    @property
    def beside(self) -> NDArray[np.bool_]:
        """At least half of it beside communication."""
        result: NDArray[np.bool_] = (2 * self.covered >= self.duration) & (self.covered > 0)
        return result

    @property
    def alone(self) -> NDArray[np.bool_]:
        """None of it beside communication. Samples in between are on neither side."""
        result: NDArray[np.bool_] = self.covered == 0
        return result

    @property
    def fraction(self) -> Float:
        """The share of the kernel that ran beside communication."""
        return self.covered / self.duration

    def take(self, chosen: NDArray[Any]) -> Samples:
        """Some of the samples."""
        return Samples(**{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)})


def samples(timeline: Timeline, steps: Steps, sets: dict[tuple[int, int], DeviceSets], selection: Selection) -> Samples:
    """The compute kernels that the window counts; those of zero length tell nothing."""
    ops = timeline.ops
    op = np.flatnonzero(selection.counted & (ops.op_class == OpClass.COMPUTE) & (ops.end_ns > ops.start_ns))
    op = op[np.argsort(ops.start_ns[op], kind="stable")]
    start, end = ops.start_ns[op], ops.end_ns[op]
    covered, stretch = np.zeros(len(op), dtype=np.int64), np.zeros(len(op), dtype=np.int64)
    late = np.zeros(len(op), dtype=bool)
    device, stretches = np.zeros(len(op), dtype=np.int64), 0
    for number, ((rank, on), own) in enumerate(sets.items()):
        here = np.flatnonzero((ops.rank[op] == rank) & (ops.device[op] == on))
        device[here] = number
        covered[here] = intervals.covered(start[here], end[here], own.communication)
        edges = own.communication.ravel()
        place = np.searchsorted(edges, start[here], side="right")
        stretch[here] = stretches + place
        stretches += len(edges) + 1
        # Before the first and after the last communication there is no stretch to be late in.
        bounds = np.concatenate(([start.min(initial=0)], edges, [end.max(initial=0)]))
        late[here] = start[here] + end[here] > bounds[place] + bounds[place + 1]
    in_step = steps.of_op[op]
    step = np.where(in_step >= 0, numbered(device, in_step), NONE)
    return Samples(
        op=op,
        device=device,
        duration=end - start,
        covered=covered,
        stretch=stretch,
        late=late,
        step=step,
        position=_positions(timeline, op, device, step),
        offset=_offsets(start, step),
    )


def numbered(*columns: NDArray[Any]) -> Int64:
    """Equal rows of the columns get one number, from 0."""
    result = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        result = np.unique(result * max(len(values), 1) + codes, return_inverse=True)[1]
    return result


def _positions(timeline: Timeline, op: Int64, device: Int64, step: Int64) -> Int64:
    """The position of each sample. Steps in which a kind of kernel runs more or less often than in most have none for it."""
    ops = timeline.ops
    kind = numbered(device, ops.lane[op], ops.name[op], ops.shape[op])
    inside = step >= 0
    result = np.full(len(op), NONE, dtype=np.int64)
    if not inside.any():
        return result
    kind, step = kind[inside], step[inside]
    run = numbered(kind, step)
    count = np.bincount(run)
    order = np.argsort(run, kind="stable")
    occurrence = np.empty(len(run), dtype=np.int64)
    occurrence[order] = np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    usual = _usual_count(kind, run, count)
    result[inside] = np.where(count[run] == usual[kind], numbered(kind, occurrence), NONE)
    return result


def _usual_count(kind: Int64, run: Int64, count: Int64) -> Int64:
    """Per kind how often it runs in more than half of the steps that have it; -1 where no number does."""
    kind_of_run = np.empty(len(count), dtype=np.int64)
    kind_of_run[run] = kind
    pair = numbered(kind_of_run, count)
    times = np.bincount(pair)
    in_steps = np.bincount(kind_of_run)
    usual = np.full(len(in_steps), NONE, dtype=np.int64)
    most = 2 * times[pair] > in_steps[kind_of_run]
    usual[kind_of_run[most]] = count[most]
    return usual


def _offsets(start: Int64, step: Int64) -> Int64:
    inside = step >= 0
    first = np.full(int(step.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, step[inside], start[inside])
    return np.where(inside, start - first[step], 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Positions that ran on both sides. Arrays of shape (pairs,)."""

    position: Int64
    beside_ns: Float
    """Time of its kernels beside communication."""
    alone_ns: Float
    """What as many would have taken at its median alone."""
    typical_beside: Float
    """Medians."""
    typical_alone: Float
    slower_apart: NDArray[np.bool_]
    """Whether even the shortest beside communication is longer than the longest alone."""
    faster_apart: NDArray[np.bool_]
    """The reverse."""

    @property
    def slower(self) -> int:
        """Positions whose median is longer beside communication."""
        return int((self.typical_beside > self.typical_alone).sum())

    @property
    def faster(self) -> int:
        """Positions whose median is shorter beside communication."""
        return int((self.typical_beside < self.typical_alone).sum())


def pairs(duration: Int64, position: Int64, beside: NDArray[np.bool_], alone: NDArray[np.bool_]) -> Pairs:
    """Compare the sides within each position. Samples with position -1 or on neither side are left out."""
    beside, alone = beside & (position >= 0), alone & (position >= 0)
    size = int(position.max(initial=0)) + 1
    count = np.bincount(position[beside], minlength=size)
    both = np.flatnonzero((count > 0) & (np.bincount(position[alone], minlength=size) > 0))
    length = duration.astype(np.float64)
    typical_alone = group_medians(length[alone], position[alone], size)[both]
    shortest, longest = _extremes(length, position, beside, size)
    shortest_alone, longest_alone = _extremes(length, position, alone, size)
    return Pairs(
        position=both,
        beside_ns=np.bincount(position[beside], length[beside], size)[both].astype(np.float64),
        alone_ns=typical_alone * count[both],
        typical_beside=group_medians(length[beside], position[beside], size)[both],
        typical_alone=typical_alone,
        slower_apart=(shortest > longest_alone)[both],
        faster_apart=(longest < shortest_alone)[both],
    )


def _extremes(values: Float, group: Int64, chosen: NDArray[np.bool_], size: int) -> tuple[Float, Float]:
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(low, group[chosen], values[chosen])
    np.maximum.at(high, group[chosen], values[chosen])
    return low, high


def borrowed_sides(found: Samples, pairs_found: Pairs) -> tuple[Int64, NDArray[np.bool_], NDArray[np.bool_]]:
    """The placebo: kernels at positions that are never beside communication, with the sides of a position that is.

    Each takes the steps of the position nearest to it in the step, on the same device. Returns the samples, and which of
    them count as beside and as alone.
    """
    positions = int(found.position.max(initial=0)) + 1
    placed = found.position >= 0
    touched = np.bincount(found.position[placed], found.covered[placed], positions) > 0
    rows = np.flatnonzero(placed & ~touched[found.position])
    none = np.zeros(0, dtype=bool)
    if len(rows) == 0 or len(pairs_found.position) == 0:
        return rows[:0], none, none
    middle = np.nan_to_num(group_medians(found.offset[placed].astype(np.float64), found.position[placed], positions))
    device = np.zeros(positions, dtype=np.int64)
    device[found.position[placed]] = found.device[placed]
    nearest = _nearest(device, middle.astype(np.int64), pairs_found.position)
    steps = int(found.step.max()) + 1
    both = np.zeros(positions, dtype=bool)
    both[pairs_found.position] = True
    model = placed & both[found.position]
    keys = found.position * steps + found.step
    wanted = nearest[found.position[rows]] * steps + found.step[rows]
    beside = np.isin(wanted, keys[model & found.beside])
    alone = np.isin(wanted, keys[model & found.alone])
    return rows, beside, alone


def _nearest(group: Int64, place: Int64, among: Int64) -> Int64:
    """For each element the one of `among` in the same group with the nearest place; -1 where the group has none."""
    # Groups are set so far apart that a neighbor in another group is never mistaken for a near one.
    apart = 4 * (int(np.abs(place).max()) + 1)
    at = group * apart + place
    ordered = among[np.argsort(at[among], kind="stable")]
    after = np.minimum(np.searchsorted(at[ordered], at), len(ordered) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.where(np.abs(at[ordered[before]] - at) <= np.abs(at[ordered[after]] - at), ordered[before], ordered[after])
    return np.where(group[closer] == group, closer, NONE)
