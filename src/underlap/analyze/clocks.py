"""How the clocks of the ranks stand to each other, told from collectives that end together.

Barrier-like collectives end at nearly one moment on all their ranks, so their ends show the offset (and drift) of a clock:

    clock a:   ------[######]--            ends differ by 11.56 s, by the same 11.56 s each time: an offset.
    clock b:   ---------[###]--  + 11.56 s  What is left of the differences afterwards is the residual.

Clocks that may agree are not moved: only where ends disagree consistently, by more than their own spread, is an offset
fitted, and a drift only over many instances and a long time. gloo's ends are not simultaneous, so there a clock is moved
only if the unmoved one would have calls end before their peers arrived. The residual is what every figure across ranks is
uncertain by. Clocks that share no such collective are linked by sends and receives, which bound the offset from both sides;
else they are in different components, and nothing is said across them.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int32, Int64, rows_by

AGREE_NS = 30_000
"""Ends of one collective on the ranks of one host lie this close: kernel ends, and the conversion of device clocks."""
FEWEST_TO_MOVE = 3
"""With fewer common instances the spread of an offset is not known."""
_FEWEST_TO_DRIFT, _SHORTEST_TO_DRIFT_NS = 12, 1_000_000_000
_SPREADS = 3
_REFINED = 4
_SAMPLE = 256
_PARTS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """One entry per rank of the Timeline. Corrected time = time - offset - drift * (time - pivot)."""

    ranks: Int32
    """Ascending."""
    offset_ns: Int64
    """What the rank's clock is ahead of its component's first one."""
    drift_ppb: Int64
    residual_ns: Int64
    """How far the rank's ends lie from the middle of their instances, in nine of ten; -1 where nothing tells."""
    component: Int32
    """Ranks with different numbers cannot be compared."""
    pivot_ns: int
    common: Int64
    """Instances that the figures of the rank rest on."""

    def at(self, rank: Int32) -> NDArray[np.int64]:
        """The position of ranks in these columns."""
        return np.searchsorted(self.ranks, rank)

    def correct(self, rank: Int32, time: Int64) -> Int64:
        """Times of ranks on the common clock of their component."""
        at = self.at(rank)
        return time - self.offset_ns[at] - _drifted(self.drift_ppb[at], time - self.pivot_ns)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Calls of barrier-like instances. All of one shape."""

    instance: Int64
    rank: Int32
    start: Int64
    end: Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Handovers:
    """Sends that meet a receive. All of one shape."""

    sender: Int32
    receiver: Int32
    sent: Int64
    """Start of the send."""
    received: Int64
    """End of the receive."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """What the Timeline says about a rank's clock."""

    rank: int
    clock: int
    """Ranks with the same number share one."""
    resolution_ns: int
    exact: bool
    """Whether its ends are those of device kernels, which end together."""


@dataclasses.dataclass(slots=True)
class _Fit:
    """Offset and drift per clock while they are being found."""

    offset: Int64
    drift: Int64
    component: Int32


def align(ranks: list[RankClock], ends: Ends, handovers: Handovers) -> Clocks:
    """The clocks of the ranks, from the ends of common instances and from what was handed over."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    numbers = np.array([rank.rank for rank in ranks], dtype=np.int32)
    # Clocks numbered by their first rank, so that the first clock of a component is the one with the lowest rank.
    order = {clock: at for at, clock in enumerate(dict.fromkeys(rank.clock for rank in ranks))}
    clock_of = np.array([order[rank.clock] for rank in ranks], dtype=np.int64)
    place = np.searchsorted(numbers, ends.rank)
    clock = clock_of[place]
    pivot = int(np.median(ends.end)) if len(ends.end) else 0
    fit = _fit(clock, ends, len(order), pivot)
    resolution = np.array([rank.resolution_ns for rank in ranks], dtype=np.int64)
    exact = np.array([rank.exact for rank in ranks], dtype=bool)
    _settle(fit, clock, ends, pivot, int(resolution.max(initial=1)), _by_clock(exact, clock_of, len(order)))
    residual = _residuals(fit, clock, place, ends, pivot, len(ranks))
    common = np.bincount(place, minlength=len(ranks)).astype(np.int64)
    # A rank that shares its clock with another needs no collective to be compared with it.
    sharing = np.bincount(clock_of, minlength=len(order))[clock_of] > 1
    residual = np.where((residual < 0) & sharing, np.where(exact, AGREE_NS, 0), residual)
    residual = np.where((residual >= 0) & (resolution > 1), np.maximum(residual, resolution), residual)
    _link(fit, residual, clock_of, numbers, handovers)
    return Clocks(
        ranks=numbers,
        offset_ns=fit.offset[clock_of],
        drift_ppb=fit.drift[clock_of],
        residual_ns=residual,
        component=fit.component[clock_of],
        pivot_ns=pivot,
        common=common,
    )


def _drifted(ppb: Int64, elapsed: Int64) -> Int64:
    return ppb * elapsed // _PARTS


def _by_clock(values: NDArray[np.bool_], clock_of: Int64, clocks: int) -> NDArray[np.bool_]:
    result = np.ones(clocks, dtype=bool)
    np.logical_and.at(result, clock_of, values)
    return result


def _medians(keys: Int64, values: Int64, size: int) -> tuple[Int64, NDArray[np.bool_]]:
    """The median of the values of each key 0 .. size-1, and whether it has any. Exact on integers, rounded down."""
    order = np.lexsort((values, keys))
    sorted_values = values[order]
    count = np.bincount(keys, minlength=size)
    first = np.cumsum(count) - count
    there = count > 0
    low = sorted_values[first[there] + (count[there] - 1) // 2]
    high = sorted_values[first[there] + count[there] // 2]
    result = np.zeros(size, dtype=np.int64)
    result[there] = low + (high - low) // 2
    return result, there


def _fit(clock: Int64, ends: Ends, clocks: int, pivot: int) -> _Fit:
    """Offsets spread from the first clock of each component over common instances, then refined against the middle of all."""
    instances = int(ends.instance.max()) + 1 if len(ends.instance) else 0
    component = _components(clock, ends.instance, clocks, instances)
    fit = _Fit(np.zeros(clocks, dtype=np.int64), np.zeros(clocks, dtype=np.int64), component)
    known = component == np.arange(clocks)
    while not known.all():
        own = known[clock]
        middle, there = _medians(ends.instance[own], ends.end[own] - fit.offset[clock[own]], instances)
        new = ~own & there[ends.instance]
        offset, found = _medians(clock[new], ends.end[new] - middle[ends.instance[new]], clocks)
        fit.offset[found] = offset[found]
        known |= found
    for _ in range(_REFINED if instances else 0):
        _refine(fit, clock, ends, pivot, instances)
    return fit


def _components(clock: Int64, instance: Int64, clocks: int, instances: int) -> Int32:
    """Per clock the lowest clock that common instances link it to."""
    label = np.arange(clocks, dtype=np.int32)
    while True:
        lowest = np.full(instances, clocks, dtype=np.int32)
        np.minimum.at(lowest, instance, label[clock])
        new = label.copy()
        np.minimum.at(new, clock, lowest[instance])
        if (new == label).all():
            return label
        label = new


def _refine(fit: _Fit, clock: Int64, ends: Ends, pivot: int, instances: int) -> None:
    """One round: the middle of each instance from all clocks, then each clock against the middles, the first ones kept at 0."""
    left = _left(fit, clock, ends, pivot, instances)
    offset, _ = _medians(clock, left, len(fit.offset))
    drift = np.zeros(len(fit.offset), dtype=np.int64)
    for number, own in rows_by(clock):
        drift[number] = _slope(ends.end[own] - pivot, left[own])
    fit.offset += offset
    fit.drift += drift
    fit.offset -= fit.offset[fit.component]
    fit.drift -= fit.drift[fit.component]


def _left(fit: _Fit, clock: Int64, ends: Ends, pivot: int, instances: int) -> Int64:
    """How far each corrected end lies from the middle of its instance."""
    corrected = ends.end - fit.offset[clock] - _drifted(fit.drift[clock], ends.end - pivot)
    middle, _ = _medians(ends.instance, corrected, instances)
    return corrected - middle[ends.instance]


def _slope(when: Int64, left: Int64) -> int:
    """Drift in parts per 10^9 by the median of slopes (Theil-Sen), 0 unless it stands out of the spread around it."""
    if len(when) < _FEWEST_TO_DRIFT or int(when.max() - when.min()) < _SHORTEST_TO_DRIFT_NS:
        return 0
    chosen = np.linspace(0, len(when) - 1, min(len(when), _SAMPLE)).astype(np.int64)
    order = np.argsort(when[chosen], kind="stable")
    time, value = when[chosen][order].astype(np.float64), left[chosen][order].astype(np.float64)
    half = len(time) // 2
    # Pairs half the window apart: short pairs say little about a slope.
    slopes = (value[half:] - value[: len(value) - half]) / np.maximum(time[half:] - time[: len(time) - half], 1)
    slope = float(np.median(slopes))
    around = value - slope * time
    spread = float(np.median(np.abs(around - np.median(around))))
    if abs(slope) * float(time[-1] - time[0]) <= max(AGREE_NS, 2 * _SPREADS * spread):
        return 0
    return round(slope * _PARTS)


def _settle(fit: _Fit, clock: Int64, ends: Ends, pivot: int, resolution: int, exact: NDArray[np.bool_]) -> None:
    """Keep only the offsets that the ends demand; clocks that agree with each other are moved together."""
    if len(ends.end) == 0:
        return
    instances = int(ends.instance.max()) + 1
    left = np.abs(_left(fit, clock, ends, pivot, instances))
    spread, _ = _medians(clock, left, len(fit.offset))
    count = np.bincount(clock, minlength=len(fit.offset))
    span = int(ends.end.max() - ends.end.min())
    for first in np.unique(fit.component).tolist():
        own = np.flatnonzero(fit.component == first)
        tolerance = np.maximum(max(AGREE_NS, 2 * resolution), 2 * _SPREADS * spread[own])
        swing = np.abs(fit.drift[own]) * span // (2 * _PARTS)
        agree = (np.abs(fit.offset[own]) + swing <= tolerance) | (count[own] < FEWEST_TO_MOVE)
        for at in np.flatnonzero(~agree & ~exact[own]).tolist():
            agree[at] = not _impossible(fit, int(own[at]), clock, ends, pivot)
        fit.offset[own[agree]] = 0
        fit.drift[own[agree]] = 0
        _together(fit, own[~agree], tolerance[~agree])


def _impossible(fit: _Fit, number: int, clock: Int64, ends: Ends, pivot: int) -> bool:
    """Whether without moving this clock most of its calls would end before a peer arrived, or begin after one ended."""
    move = fit.offset[clock] + _drifted(fit.drift[clock], ends.end - pivot)
    move = np.where(clock == number, 0, move)
    start, end = ends.start - move, ends.end - move
    size = int(ends.instance.max()) + 1
    last, first = np.full(size, np.iinfo(np.int64).min), np.full(size, np.iinfo(np.int64).max)
    np.maximum.at(last, ends.instance, start)
    np.minimum.at(first, ends.instance, end)
    wrong = (first < last - AGREE_NS)[ends.instance[clock == number]]
    return bool(2 * wrong.sum() > len(wrong))


def _together(fit: _Fit, own: Int64, tolerance: Int64) -> None:
    """Clocks whose offsets agree, and that do not drift, get one offset: the middle of theirs."""
    steady = np.flatnonzero(fit.drift[own] == 0)
    order = steady[np.argsort(fit.offset[own[steady]], kind="stable")]
    while len(order):
        near = np.abs(fit.offset[own[order]] - fit.offset[own[order[0]]]) <= np.maximum(tolerance[order], tolerance[order[0]])
        group = own[order[near]]
        fit.offset[group] = int(np.sort(fit.offset[group])[(len(group) - 1) // 2])
        order = order[~near]


def _residuals(fit: _Fit, clock: Int64, place: Int64, ends: Ends, pivot: int, ranks: int) -> Int64:
    result = np.full(ranks, NONE, dtype=np.int64)
    if len(ends.end) == 0:
        return result
    left = np.abs(_left(fit, clock, ends, pivot, int(ends.instance.max()) + 1))
    for at, rows in rows_by(place):
        own = np.sort(left[rows])
        # Nine of ten; of fewer than four the largest.
        result[at] = own[int(0.9 * (len(own) - 1))] if len(own) >= 4 else own[-1]
    return result


def _link(fit: _Fit, residual: Int64, clock_of: Int64, numbers: Int32, handovers: Handovers) -> None:
    """Join components by sends and receives in both directions: a receive cannot end before its send began.

    That bounds the offset from both sides; 0 is kept where it is possible, and the residual covers all that is possible.
    """
    sender = clock_of[np.searchsorted(numbers, handovers.sender)]
    receiver = clock_of[np.searchsorted(numbers, handovers.receiver)]
    # Drift is not considered: components are joined by clocks that no common instance compares.
    sent, received = handovers.sent - fit.offset[sender], handovers.received - fit.offset[receiver]
    bounds: dict[tuple[int, int], int] = {}
    pairs = np.column_stack((fit.component[sender], fit.component[receiver]))
    for source, target in np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).tolist():
        own = (pairs[:, 0] == source) & (pairs[:, 1] == target)
        bounds[source, target] = int((received - sent)[own].min())
    # `up`: the most that target's clock can be ahead of source's; `low`: the least.
    two_sided = sorted(
        (up + bounds[target, source], source, target)
        for (source, target), up in bounds.items()
        if source < target and (target, source) in bounds
    )
    for width, source, target in two_sided:
        base, other = fit.component[source], fit.component[target]
        if width < 0 or base == other:
            continue
        up, low = bounds[source, target], -bounds[target, source]
        moved = np.flatnonzero(fit.component == other)
        shift = 0 if low <= 0 <= up else (low + up) // 2
        # The bounds hold between the original components; one joined before carries its own shift.
        fit.offset[moved] += shift + fit.offset[source] - fit.offset[target]
        residual[(residual < 0) & (fit.component[clock_of] == base)] = 0
        fit.component[moved] = base
        joined = np.isin(clock_of, moved)
        residual[joined] = np.maximum(residual[joined], max(up - shift, shift - low))
