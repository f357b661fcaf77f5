"""How much slower compute kernels run beside communication, and what that costs: by positions, else by strata.

By positions: the same kernel of the step, beside communication in some steps and alone in others. By strata: kernels alike
in name, grid, block, call site, thread and phase of the step, their durations against the share beside communication.
Both have a placebo, the same comparison where there was no communication, which must show nothing. What is found is
"slower beside communication": that nothing else comes and goes with communication is what the placebo makes likely, not sure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.estimates import FEWEST, Estimate, Float, ratio_of_sums, sign_test, slope_within, student_t
from underlap.analyze.positions import Pairs, Samples, borrowed_sides, numbered, pairs
from underlap.columns import Int64
from underlap.timeline import Timeline

SIZES = ("under 20 us", "20 to 200 us", "over 200 us")
_SIZE_BORDERS_NS = (20_000, 200_000)
_PHASES = 10
"""Parts of the step in which kernels count as being in the same phase."""
_DRIFT = 0.1
"""A placebo may depart from 1 by this share of the effect: with many kernels its range excludes 1 for a trifle."""
_SIGNS = 0.05

Word = Literal["slower", "faster", "no difference seen", "not established"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one method found, before it is put into words. Units are positions, or strata."""

    method: Literal["positions", "strata"]
    ratio: Estimate
    placebo: Estimate | None
    slower: int
    faster: int
    slower_apart: int
    faster_apart: int
    units: int
    cost: tuple[float, float, float]
    """Nanoseconds: value, low, high. Of the kernels with an entry in `cost_of`."""
    measured_ns: float
    """The part of the cost of kernels that were themselves seen on both sides."""
    cost_of: Float
    """Per sample; NaN where nothing tells what it would take alone. 0 for a sample alone."""
    size_of: Int64
    """Per sample its index into `SIZES`: by the median beside communication at its position, else by its own duration."""
    ratio_of: Callable[[NDArray[np.bool_]], tuple[Estimate | None, int]]
    """The ratio of a choice of samples, and the number of units that it rests on."""


def size_class(duration: NDArray[Any]) -> Int64:
    """0, 1, 2: index into `SIZES`."""
    return np.searchsorted(_SIZE_BORDERS_NS, duration, side="right").astype(np.int64)


def by_position(found: Samples) -> Effect | None:
    """Positions that ran on both sides. None where too few did."""
    both = pairs(found.duration, found.position, found.beside, found.alone)
    ratio = ratio_of_sums(both.beside_ns, both.alone_ns)
    if ratio is None:
        return None
    row = np.full(int(found.position.max()) + 2, -1, dtype=np.int64)
    row[both.position] = np.arange(len(both.position))
    pair_of = row[found.position]

    def ratio_of(chosen: NDArray[np.bool_]) -> tuple[Estimate | None, int]:
        own = np.unique(pair_of[chosen & found.beside])
        own = own[own >= 0]
        return ratio_of_sums(both.beside_ns[own], both.alone_ns[own]), len(own)

    size_of = np.where(pair_of >= 0, size_class(both.typical_beside)[pair_of], size_class(found.duration))
    cost, cost_of = _cost_by_position(found, both, pair_of)
    measured = found.beside & (pair_of >= 0)
    return Effect(
        method="positions",
        ratio=ratio,
        placebo=_placebo_by_position(found, both),
        slower=both.slower,
        faster=both.faster,
        slower_apart=int(both.slower_apart.sum()),
        faster_apart=int(both.faster_apart.sum()),
        units=len(both.position),
        cost=cost,
        measured_ns=float(cost_of[measured].sum()),
        cost_of=cost_of,
        size_of=size_of,
        ratio_of=ratio_of,
    )


def _placebo_by_position(found: Samples, both: Pairs) -> Estimate | None:
    rows, beside, alone = borrowed_sides(found, both)
    never = pairs(found.duration[rows], found.position[rows], beside, alone)
    return ratio_of_sums(never.beside_ns, never.alone_ns)


def _cost_by_position(found: Samples, both: Pairs, pair_of: Int64) -> tuple[tuple[float, float, float], Float]:
    """Duration less duration alone where the position also ran alone; for other kernels beside communication the covered
    time x (1 - 1 / ratio), with the ratio of the pairs of their size. The range is over pairs, which decide both."""
    pair_size = size_class(both.typical_beside)
    sizes = len(SIZES)
    beside = np.bincount(pair_size, both.beside_ns, sizes)
    alone = np.bincount(pair_size, both.alone_ns, sizes)
    enough = np.bincount(pair_size, minlength=sizes) >= FEWEST
    saved = np.where(enough, 1 - alone / np.maximum(beside, 1), np.nan)
    own = found.beside & (pair_of >= 0)
    size = size_class(found.duration)
    cost_of = np.where(found.covered > 0, found.covered * saved[size], 0.0)
    cost_of[own] = found.duration[own] - both.typical_alone[pair_of[own]]
    others = np.bincount(size[~own], found.covered[~own], sizes) * enough
    influence = both.beside_ns - both.alone_ns
    value = float(np.nansum(cost_of))
    b, a = np.maximum(beside, 1)[pair_size], alone[pair_size]
    influence = influence + others[pair_size] * (a * both.beside_ns / b**2 - both.alone_ns / b)
    units = len(influence)
    spread = float(((influence - influence.mean()) ** 2).sum()) * units / (units - 1)
    half = student_t(units - 1) * math.sqrt(spread)
    return (value, value - half, value + half), cost_of


def by_strata(timeline: Timeline, found: Samples) -> Effect | None:
    """Strata with enough kernels on both sides. None where there is none.

    Where steps repeat, each position is a stratum: other places of the step are no substitute for it.
    """
    if repeating(found):
        stratum, cluster, side = found.position, found.step, _borrowed_fraction(found)
    else:
        stratum, cluster, side = _strata(timeline, found, _PHASES), found.stretch, _late_fraction(found)
    fits = _two_sided(stratum, found.beside, found.alone)
    if not fits.any():
        return None
    slope = _slope(found, fits, found.fraction, stratum, cluster)
    if slope is None:
        return None
    both = pairs(found.duration, np.where(fits, stratum, -1), found.beside, found.alone)
    placebo = _slope(found, np.isfinite(side) & _two_sided(stratum, side == 1, side == 0), side, stratum, cluster)

    def ratio_of(chosen: NDArray[np.bool_]) -> tuple[Estimate | None, int]:
        some = fits & chosen
        estimate = _slope(found, some, found.fraction, stratum, cluster) if some.any() else None
        return estimate, len(np.unique(stratum[some]))

    cost_of = np.where(found.covered > 0, np.nan, 0.0)
    cost_of[fits] = found.covered[fits] * (1 - 1 / slope.value)
    covered = float(found.covered[fits].sum())
    return Effect(
        method="strata",
        ratio=slope,
        placebo=placebo,
        slower=both.slower,
        faster=both.faster,
        slower_apart=int(both.slower_apart.sum()),
        faster_apart=int(both.faster_apart.sum()),
        units=len(np.unique(stratum[fits])),
        measured_ns=covered * (1 - 1 / slope.value),
        cost=(covered * (1 - 1 / slope.value), covered * (1 - 1 / slope.low), covered * (1 - 1 / slope.high)),
        cost_of=cost_of,
        size_of=size_class(found.duration),
        ratio_of=ratio_of,
    )


def fixed(found: Samples) -> bool:
    """Whether steps repeat and each position is always or never beside communication: confounded with its place."""
    return repeating(found) and len(pairs(found.duration, found.position, found.beside, found.alone).position) == 0


def apparent_ratio(timeline: Timeline, found: Samples) -> float | None:
    """How kernels alike in name, shape and caller compare, whatever their place in the step. Shows nothing by itself."""
    stratum = _strata(timeline, found, 1)
    each = np.arange(len(found.op))
    slope = _slope(found, _two_sided(stratum, found.beside, found.alone), found.fraction, stratum, each)
    return None if slope is None else slope.value


def repeating(found: Samples) -> bool:
    """Whether most of the kernel time is at positions that several steps have."""
    placed = found.position >= 0
    count = np.bincount(found.position[placed], minlength=1)
    several = placed & (count[found.position] > 1)
    return bool(2 * found.duration[several].sum() > found.duration.sum())


def _strata(timeline: Timeline, found: Samples, phases: int) -> Int64:
    """Kernels alike; -1 for kernels without a known shape, which could be of any size."""
    ops = timeline.ops
    steps = int(found.step.max(initial=0)) + 1
    length = np.ones(steps, dtype=np.int64)
    inside = found.step >= 0
    np.maximum.at(length, found.step[inside], found.offset[inside] + 1)
    phase = np.where(inside, phases * found.offset // length[found.step], -1)
    shape = ops.shape[found.op]
    alike = numbered(found.device, ops.name[found.op], shape, ops.call_site[found.op], ops.thread[found.op], phase)
    return np.where(shape >= 0, alike, -1)


def _late_fraction(found: Samples) -> Float:
    """The placebo where positions do not help: kernels alone, the later half of each gap between communication as if
    covered. What grows or shrinks towards communication without communication shows here."""
    return np.where(found.alone, found.late.astype(np.float64), np.nan)


def _borrowed_fraction(found: Samples) -> Float:
    """The placebo of positions: 1 in the steps in which the nearest position that varies was beside, 0 in the others."""
    both = pairs(found.duration, found.position, found.beside, found.alone)
    rows, beside, alone = borrowed_sides(found, both)
    side = np.full(len(found.op), np.nan)
    side[rows[beside]] = 1
    side[rows[alone & ~beside]] = 0
    return side


def _two_sided(stratum: Int64, beside: NDArray[np.bool_], alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Samples of the strata with at least `FEWEST` samples on both sides."""
    known = stratum >= 0
    size = int(stratum.max(initial=0)) + 1
    enough = np.bincount(stratum[known & beside], minlength=size) >= FEWEST
    enough &= np.bincount(stratum[known & alone], minlength=size) >= FEWEST
    return known & enough[stratum]


def _slope(found: Samples, chosen: NDArray[np.bool_], dose: Float, stratum: Int64, cluster: Int64) -> Estimate | None:
    """The ratio of duration at dose 1 to that at dose 0, each kernel weighing as much as its stratum's usual duration."""
    own = stratum[chosen]
    if len(own) == 0:
        return None
    length = found.duration[chosen].astype(np.float64)
    mean = np.bincount(own, length) / np.maximum(np.bincount(own), 1)
    slope = slope_within(np.log(length), dose[chosen], own, mean[own], cluster[chosen])
    if slope is None:
        return None
    low, value, high = (math.exp(part) for part in (slope.low, slope.value, slope.high))
    return Estimate(value=value, low=low, high=high, units=slope.units)


def drifts(ratio: Estimate, placebo: Estimate) -> bool:
    """Whether the placebo differs from 1 by more than a trifle of what the ratio does."""
    return placebo.excludes(1.0) and abs(placebo.value - 1) > _DRIFT * abs(ratio.value - 1)


def judged(effect: Effect) -> tuple[Word, str | None]:
    """The word for an effect, and why it is no more than that."""
    ratio, placebo = effect.ratio, effect.placebo
    if placebo is None:
        return "not established", (
            "there is no placebo: too few kernels stay away from communication in all steps, so that nothing shows "
            "whether the steps are alike otherwise; more steps, or steps with less communication, would tell"
        )
    if drifts(ratio, placebo):
        return "not established", (
            f"kernels that are not beside communication differ as well ({placebo.value:.3f}, "
            f"{placebo.low:.3f} to {placebo.high:.3f}; expected 1): something else changes with communication"
        )
    if not ratio.excludes(1.0) or ratio.overlaps(placebo):
        return "no difference seen", f"the range {ratio.low:.3f} to {ratio.high:.3f} includes 1, or what the placebo shows"
    up = ratio.value > 1
    if effect.method == "positions" and (
        sign_test(effect.slower, effect.faster) > _SIGNS or (effect.slower > effect.faster) != up
    ):
        return "not established", (
            f"{effect.slower} positions are slower and {effect.faster} faster: the mean rests on a few of them"
        )
    return ("slower" if up else "faster"), None
