"""Fits of measured times, small and deterministic: no coefficient below 0, relative errors, a smoothed rest.

A time is what a few causes add up to (a start, operations, bytes), each of which can cost something or nothing. Errors count
relative to the time, as a small operation must be as right as a large one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS = 200
_WIDTH = 0.7
"""Of the smoothing, in the logarithm of the size: about a factor of two to either side."""


def not_negative(features: Floats, times: Floats) -> Floats:
    """Coefficients >= 0 that bring features x coefficients nearest to the times, by the sum of squared relative errors.

    Features of shape (points, causes), times > 0 of shape (points,). Lawson and Hanson, Solving Least Squares Problems, 1974,
    section 23.3.
    """
    scaled = features / times[:, None]
    # Columns of like size, as operations and starts differ by ten orders.
    norms = np.sqrt((scaled**2).sum(0))
    norms[norms == 0] = 1.0
    matrix, target = scaled / norms, np.ones(len(times))
    found = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(_STEPS):
        slope = matrix.T @ (target - matrix @ found)
        slope[free] = -np.inf
        if free.all() or slope.max() <= 1e-10:
            break
        free[int(slope.argmax())] = True
        while True:
            trial = np.zeros_like(found)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            if trial[free].min() > 0:
                found = trial
                break
            below = free & (trial <= 0)
            step = (found[below] / np.maximum(found[below] - trial[below], 1e-300)).min()
            found = found + step * (trial - found)
            free &= found > 1e-14
            found[~free] = 0.0
    return np.asarray(found / norms, dtype=np.float64)


class Fit(msgspec.Struct, frozen=True):
    """Coefficients, and what the points say beside them by size."""

    coefficients: tuple[float, ...]
    sizes: tuple[float, ...]
    """Logarithms of the points' sizes."""
    rests: tuple[float, ...]
    """Logarithm of time over fitted time, per point."""

    def time(self, features: Sequence[float], size: float) -> float:
        """Of features in the order of the coefficients. Beyond the points the rest of the nearest ones is kept."""
        plain = sum(value * factor for value, factor in zip(features, self.coefficients, strict=True))
        return plain * math.exp(self._rest(math.log(max(size, 1e-9))))

    def _rest(self, at: float) -> float:
        at = min(max(at, min(self.sizes)), max(self.sizes))
        weights = [math.exp(-(((at - size) / _WIDTH) ** 2) / 2) for size in self.sizes]
        return sum(weight * rest for weight, rest in zip(weights, self.rests, strict=True)) / sum(weights)


def fitted(features: Floats, sizes: Sequence[float], times: Sequence[float]) -> Fit:
    """The fit of points; `sizes` is what the rest is smoothed over."""
    taken = np.asarray(times, dtype=np.float64)
    coefficients = not_negative(np.asarray(features, dtype=np.float64), taken)
    plain = np.maximum(features @ coefficients, 1e-12)
    return Fit(
        coefficients=tuple(float(value) for value in coefficients),
        sizes=tuple(math.log(max(size, 1e-9)) for size in sizes),
        rests=tuple(float(value) for value in np.log(taken / plain)),
    )


class Curve(msgspec.Struct, frozen=True):
    """Times over one size, straight between points on logarithmic scales."""

    sizes: tuple[float, ...]
    """Ascending, > 0."""
    times: tuple[float, ...]

    def time(self, size: float) -> float:
        """Beyond the ends the slope of the outer points goes on, kept between constant and proportional."""
        if len(self.sizes) == 1:
            return self.times[0] * max(1.0, size / self.sizes[0])
        at = min(max(sum(known < size for known in self.sizes), 1), len(self.sizes) - 1)
        low, high = self.sizes[at - 1], self.sizes[at]
        slope = math.log(self.times[at] / self.times[at - 1]) / math.log(high / low)
        outside = size < self.sizes[0] or size > self.sizes[-1]
        if outside:
            slope = min(max(slope, 0.0), 1.0)
        if size > self.sizes[-1]:
            return float(self.times[-1] * (size / self.sizes[-1]) ** max(slope, 0.5))
        return float(self.times[at - 1] * (max(size, 1e-9) / low) ** slope)


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """The curve of (size, time) points. Sizes within 2 % are one point, with the mean of their times; a larger size never
    takes less: times that fall are evened out."""
    groups: list[list[tuple[float, float]]] = []
    for size, time in sorted(points):
        if groups and size <= groups[-1][0][0] * 1.02:
            groups[-1].append((size, time))
        else:
            groups.append([(size, time)])
    sizes = [sum(size for size, _ in group) / len(group) for group in groups]
    times = [math.exp(sum(math.log(time) for _, time in group) / len(group)) for group in groups]
    return Curve(tuple(sizes), tuple(_rising(times, [len(group) for group in groups])))


def _rising(values: list[float], counts: list[int]) -> list[float]:
    """The nearest values that never fall: neighbors that do are pooled (Ayer et al. 1955, doi 10.1214/aoms/1177728423)."""
    blocks: list[list[float]] = []  # sum of logarithms, weight, members
    for value, count in zip(values, counts, strict=True):
        blocks.append([math.log(value) * count, count, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return [math.exp(total / weight) for total, weight, members in blocks for _ in range(int(members))]
