"""Estimates with a 95 % range: a ratio of sums, a slope within strata, and the sign test.

Ranges come from the spread over units (positions, clusters), linearized, with Student's t: no random numbers, so that the
same trace gives the same figure. What they do not cover: a cause that shifts all units alike; that is what placebos are for.
"""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

FEWEST = 8
"""Units below which no range is given: with fewer, it hangs on one or two of them."""
_EXACT_SIGNS = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % range, and the number of units that it rests on."""

    value: float
    low: float
    high: float
    units: int

    def excludes(self, value: float) -> bool:
        """Whether the range lies on one side of the value."""
        return not self.low <= value <= self.high

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two ranges have a value in common."""
        return self.low <= other.high and other.low <= self.high


def ratio_of_sums(above: Float, below: Float) -> Estimate | None:
    """sum(above) / sum(below) over units. None with too few units.

    The linearized ratio estimator (Cochran, Sampling Techniques, 3rd edition, section 6.4), its range on the log scale.
    """
    units = len(above)
    if units < FEWEST or below.sum() <= 0 or above.sum() <= 0:
        return None
    value = float(above.sum() / below.sum())
    spread = float(((above - value * below) ** 2).sum()) * units / (units - 1)
    half = student_t(units - 1) * math.sqrt(spread) / float(above.sum())
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), units=units)


def slope_within(values: Float, doses: Float, stratum: NDArray[Any], weights: Float, cluster: NDArray[Any]) -> Estimate | None:
    """The slope of `values` on `doses`, both taken as differences from the mean of their stratum, by weighted least squares.

    Samples of one cluster may be alike, so the range is by clusters (Liang and Zeger 1986). None with fewer than `FEWEST`
    clusters, or without a difference in dose. All arrays of shape (samples,).
    """
    if len(values) == 0:
        return None
    _, stratum = np.unique(stratum, return_inverse=True)
    clusters, cluster = np.unique(cluster, return_inverse=True)
    total = np.bincount(stratum, weights)
    x = doses - (np.bincount(stratum, weights * doses) / total)[stratum]
    y = values - (np.bincount(stratum, weights * values) / total)[stratum]
    power = float((weights * x * x).sum())
    if len(clusters) < FEWEST or power <= 1e-12 * float(weights.sum()):
        return None
    slope = float((weights * x * y).sum()) / power
    scores = np.bincount(cluster, weights * x * (y - slope * x))
    error = math.sqrt(float((scores**2).sum()) * len(clusters) / (len(clusters) - 1)) / power
    half = student_t(len(clusters) - 1) * error
    return Estimate(value=slope, low=slope - half, high=slope + half, units=len(clusters))


def sign_test(up: int, down: int) -> float:
    """Two-sided probability of signs as uneven as these, if up and down were equally likely. Ties are left out before."""
    total, fewer = up + down, min(up, down)
    if total == 0:
        return 1.0
    if total > _EXACT_SIGNS:
        return min(1.0, 2 * NormalDist().cdf((fewer + 0.5 - total / 2) / (math.sqrt(total) / 2)))
    return min(1.0, float(2 * sum(math.comb(total, count) for count in range(fewer + 1)) / 2**total))


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion around the normal (Abramowitz and Stegun 26.7.5).

    Within 0.1 % from 6 degrees of freedom on.
    """
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return float(z + first / freedom + second / freedom**2 + third / freedom**3)


def group_medians(values: Float, group: NDArray[Any], groups: int) -> Float:
    """The median of the values of each group 0 .. groups-1; NaN for a group without values."""
    order = np.lexsort((values, group))
    ordered = values[order]
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    result = np.full(groups, np.nan)
    some = count > 0
    lower, upper = first + (count - 1) // 2, first + count // 2
    result[some] = (ordered[lower[some]] + ordered[upper[some]]) / 2
    return result
