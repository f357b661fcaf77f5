"""Whether one plan was faster than another: ratios of steps that were run in turns, and an interval of their median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from underlap.trial import Outcome, Word

CONFIDENCE = 0.95
LEAST_REPETITIONS = 7
SAME = 0.05
"""Ratios within this of 1 are called no difference, if the whole interval lies there.

What differs from launch to launch is in no interval of one launch: of six launches of one comparison over a link of 500 Mbit/s
five had a ratio between 0.71 and 0.75, which is 5 % apart, and one 0.84. Less than that would not come out again.
"""


def ratios(baseline: Sequence[int], policy: Sequence[int]) -> list[float]:
    """Of each pair of repetitions, which ran next to each other."""
    return [after / before for before, after in zip(baseline, policy, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the narrowest pair of order statistics around the median that holds it with CONFIDENCE.

    The k-th smallest and k-th largest of n hold the median with 1 - 2 * P(Binomial(n, 1/2) < k) (David and Nagaraja, Order
    Statistics, 2003, section 7.1). With fewer than six values no pair does: then the extremes, and nothing is established.
    """
    ordered = sorted(values)
    count, best = len(ordered), 0
    for k in range(count // 2):
        missed = 2 * sum(math.comb(count, i) for i in range(k + 1)) / 2**count
        if 1 - missed >= CONFIDENCE:
            best = k
    return statistics.median(ordered), ordered[best], ordered[count - 1 - best]


def outcome(low: float, high: float, repetitions: int) -> Outcome | None:
    """What the interval establishes; None where it leaves it open."""
    if repetitions < LEAST_REPETITIONS:
        return None
    if low >= 1 - SAME and high <= 1 + SAME:
        return "no difference"
    return "gain" if high < 1 else "loss" if low > 1 else None


def word(found: Outcome | None, *, bytes_removed: bool, hidden_before: int, hidden_after: int) -> Word | None:
    """hidden: the same bytes, less of them in the way; removed: fewer bytes; shortened: the same bytes, less time, no more
    covered; shifted: more is covered, and the step takes as long."""
    more_hidden = hidden_after > hidden_before
    if found == "gain":
        return "removed" if bytes_removed else "hidden" if more_hidden else "shortened"
    return "shifted" if found == "no difference" and more_hidden else None
