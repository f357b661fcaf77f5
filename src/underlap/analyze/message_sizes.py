"""Messages below half-peak size: those that take longer for their latency than for their bytes.

    time = latency + bytes / bandwidth        half-peak size n1/2 = latency x bandwidth, at which half of the time is latency

(Hockney's r-infinity and n1/2; R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel
Computing 20, 1994.) Fitted per group and collective to the calls of the trace: to the median transfer of each size where
ranks are matched, else to the shortest call of each size, which holds the least waiting. Not modeled: protocols that change
with the size (then the line does not fit, and nothing is claimed), several calls that share a link, and all-to-alls whose
ranks send unequal amounts.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.analyze.calls import CallTimes
from underlap.analyze.estimates import Float
from underlap.analyze.groups import Calls
from underlap.columns import NONE, Int64

FEWEST_SIZES = 4
FEWEST_CALLS = 3
"""Of each size."""
LEAST_SPREAD = 8
"""The largest size over the smallest, at least."""
OFF_THE_LINE = 0.2
"""No size may take longer or shorter than the line says by more than this share."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a message takes, in one group, by one collective."""

    latency_ns: float
    ns_per_byte: float
    half_peak_low: float
    """Bytes: the smallest half-peak size that is left whichever size is left out of the fit."""

    def time_ns(self, nbytes: Int64) -> Int64:
        """What messages of these sizes take."""
        return np.round(self.latency_ns + self.ns_per_byte * nbytes).astype(np.int64)


def lines(calls: Calls, times: CallTimes, transfer: Int64 | None) -> dict[tuple[int, int], Line]:
    """(group, collective) -> line, where enough sizes of it tell. `transfer` is per call, -1 unknown; None for one rank."""
    table = calls.table
    rows = np.flatnonzero(times.counted & (table.payload_bytes > 0) & (table.group >= 0) & (table.collective >= 0))
    found = {}
    for group, collective in np.unique(np.column_stack((table.group[rows], table.collective[rows])), axis=0).tolist():
        own = rows[(table.group[rows] == group) & (table.collective[rows] == collective)]
        known = transfer is not None and bool((transfer[own] > 0).all())
        duration = transfer[own] if transfer is not None and known else times.duration[own]
        size, of_size, count = np.unique(table.payload_bytes[own], return_inverse=True, return_counts=True)
        enough = np.flatnonzero(count >= FEWEST_CALLS)
        typical = [duration[of_size.ravel() == at] for at in enough.tolist()]
        time = np.array([float(np.median(part) if known else part.min()) for part in typical])
        line = fitted(size[enough].astype(np.float64), time)
        if line is not None:
            found[group, collective] = line
    return found


def fitted(size: Float, time: Float) -> Line | None:
    """The line through the time of each size. None unless there are four sizes over a range of eight, all within a fifth of
    the line, and the half-peak size lies among them, so that both latency and bandwidth are seen."""
    if len(size) < FEWEST_SIZES or size.max() < LEAST_SPREAD * size.min() or time.min() <= 0:
        return None
    latency, slope = _least_squares(size, time)
    if latency <= 0 or slope <= 0 or np.abs(time / (latency + slope * size) - 1).max() > OFF_THE_LINE:
        return None
    halves = [latency / slope]
    for out in range(len(size)):
        kept = np.arange(len(size)) != out
        one, two = _least_squares(size[kept], time[kept])
        halves.append(one / two if one > 0 and two > 0 else 0.0)
    if not size.min() < min(halves) or not max(halves) < size.max():
        return None
    return Line(latency_ns=latency, ns_per_byte=slope, half_peak_low=min(halves))


def _least_squares(size: Float, time: Float) -> tuple[float, float]:
    """Latency and time per byte, each size off by a share of its time."""
    columns = np.column_stack((1 / time, size / time))
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(size)), rcond=None)
    return float(latency), float(slope)


def latency_bound(calls: Calls, times: CallTimes, transfer: Int64 | None) -> Int64:
    """Per call how much of its time its size accounts for, in ns, if it is below half-peak size; else -1.

    Where transfer is known that is all of it. Where it is not, the rest may be waiting, so it is what the line says.
    """
    table = calls.table
    result = np.full(len(table), NONE, dtype=np.int64)
    for (group, collective), line in lines(calls, times, transfer).items():
        own = np.flatnonzero((table.group == group) & (table.collective == collective) & (table.payload_bytes > 0))
        own = own[table.payload_bytes[own] < line.half_peak_low]
        known = transfer[own] if transfer is not None else np.full(len(own), NONE, dtype=np.int64)
        result[own] = np.where(known >= 0, known, line.time_ns(table.payload_bytes[own]))
    return result
