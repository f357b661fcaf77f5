"""What it costs that no two ranks take equally long: the last of n ranks is later than the mean, and the others wait for it.

Times of operations vary around their mean, independently, with one relative standard deviation. Between two collectives of a
group the compute of its ranks adds up; the expected time of the last of n of them is the mean plus sigma times the expected
maximum of n standard normal variables (David and Nagaraja, Order Statistics, 2003, section 3). Not modeled: ranks that are
slow all the time, and that a wait for one group also lines up others.
"""

from __future__ import annotations

import functools

import numpy as np

from underlap.columns import Int64
from underlap.expansion import Expansion
from underlap.plan import OpKind, Plan


def waiting(plan: Plan, expansion: Expansion, duration: Int64, spread: float) -> Int64:
    """Per row: what a collective waits for the last of its ranks on average, in ns; 0 for all else. `spread`: sigma over mean."""
    rows = expansion.rows
    extra = np.zeros(len(rows), dtype=np.int64)
    computing = rows.kind == OpKind.COMPUTE
    variance = np.cumsum(np.where(computing, (spread * duration) ** 2.0, 0.0))
    for number in np.unique(rows.group[rows.kind == OpKind.ISSUE]).tolist():
        issued = np.flatnonzero((rows.kind == OpKind.ISSUE) & (rows.group == number))
        since = np.diff(variance[issued], prepend=0.0)
        name = expansion.names[number]
        ranks = 2 if name == "pp" else plan.groups[name].size  # a message has two ends
        extra[issued] = np.rint(expected_maximum(ranks) * np.sqrt(np.maximum(since, 0.0)))
    return extra


@functools.cache
def expected_maximum(count: int) -> float:
    """Of `count` independent standard normal variables: the mean of the distribution F^n, summed over a fine grid."""
    if count <= 1:
        return 0.0
    points = np.linspace(-9.0, 9.0, 36001)
    density = np.exp(-(points**2) / 2) / np.sqrt(2 * np.pi)
    step = float(points[1] - points[0])
    below = np.clip(np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2) * step)), 0.0, 1.0)
    return float(((points[1:] + points[:-1]) / 2 * np.diff(below**count)).sum())
