"""A link's figures from times of transfers of several sizes: start + max(copy x w, wire x (w - burst)).

The kink lies where the burst is used up. Each place between two sizes is tried for it, both sides are fitted on their own, and
the pair with the least squared relative error is kept. Where no side is steeper, nothing holds the link to a rate: one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from underlap.cost.fitting import not_negative
from underlap.errors import OptionError

LEAST_SIZES = 4
STEEPER = 1.5
"""A byte on a link that is held to a rate takes at least so many times longer than a byte of the burst."""


class LinkFit(msgspec.Struct, frozen=True, kw_only=True):
    """In ns and bytes."""

    start_ns: float
    copy_ns_per_byte: float
    wire_ns_per_byte: float
    """As copy_ns_per_byte where nothing holds the link to a rate."""
    burst_bytes: float
    residual: float
    """Root mean square of predicted over measured, less 1."""

    def time_ns(self, nbytes: float) -> float:
        """Of a transfer of so many bytes after a pause."""
        held = self.wire_ns_per_byte * (nbytes - self.burst_bytes)
        return self.start_ns + max(self.copy_ns_per_byte * nbytes, held)


def fit_link(points: Sequence[tuple[float, float]]) -> LinkFit:
    """From (bytes on the wire of a rank, ns). Raises OptionError for fewer than four sizes."""
    points = sorted(points)
    if len({size for size, _ in points}) < LEAST_SIZES:
        raise OptionError(f"transfers: {len(points)} sizes: expected {LEAST_SIZES} or more to tell start, burst and rate apart")
    best = _measured_by(points, *_line(points), None)
    for at in range(2, len(points) - 1):
        found = _kinked(points, at)
        if found is not None and found.residual < 0.9 * best.residual:
            best = found
    return best


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    sizes = np.array([size for size, _ in points])
    times = np.array([time for _, time in points])
    start, slope = not_negative(np.stack([np.ones_like(sizes), sizes], axis=1), times)
    return float(start), float(slope)


def _kinked(points: Sequence[tuple[float, float]], at: int) -> LinkFit | None:
    """The first `at` points pass in the burst, the others do not. None where they do not look so."""
    start, copy = _line(points[:at])
    sizes = np.array([size for size, _ in points[at:]])
    times = np.array([time for _, time in points[at:]])
    # The line beyond the kink may begin below 0: a burst counts as time saved.
    weights = 1 / times
    slope, begin = np.polyfit(sizes, times, 1, w=weights) if len(sizes) > 1 else (0.0, 0.0)
    if slope <= STEEPER * copy or slope <= 0:
        return None
    burst = (start - begin) / slope
    if burst < 0:
        return None
    return _measured_by(points, start, copy, (float(slope), float(burst)))


def _measured_by(points: Sequence[tuple[float, float]], start: float, copy: float, held: tuple[float, float] | None) -> LinkFit:
    wire, burst = held or (copy, 0.0)
    found = LinkFit(start_ns=start, copy_ns_per_byte=copy, wire_ns_per_byte=wire, burst_bytes=burst, residual=0.0)
    missed = [found.time_ns(size) / time - 1 for size, time in points]
    return msgspec.structs.replace(found, residual=math.sqrt(sum(each**2 for each in missed) / len(missed)))


def ranges(points: Sequence[tuple[float, float, float, float]]) -> tuple[LinkFit, dict[str, tuple[float, float]]]:
    """The fit of (bytes, ns, low, high) and how far each figure moves when points move within their ranges or are left out."""
    middle = fit_link([(size, time) for size, time, _, _ in points])
    changed = [[(p[0], p[moved]) for p in points] for moved in (2, 3)]
    for at in range(len(points)):
        changed += [[(p[0], p[moved] if n == at else p[1]) for n, p in enumerate(points)] for moved in (2, 3)]
        if len(points) > LEAST_SIZES + 1:
            changed.append([(p[0], p[1]) for n, p in enumerate(points) if n != at])
    tried = [middle, *map(fit_link, changed)]
    names = ("start_ns", "copy_ns_per_byte", "wire_ns_per_byte", "burst_bytes")
    found = {name: (min(getattr(one, name) for one in tried), max(getattr(one, name) for one in tried)) for name in names}
    return middle, found
