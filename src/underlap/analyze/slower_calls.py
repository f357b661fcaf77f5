"""Communication beside compute: how long calls of one family and payload take when hidden, and when not.

A call that waits for a late peer is longer too, and is hidden to another share. So without the transfer time (traces of all
ranks, matched) the figures are of kernel time and establish nothing; they only bound what communication may lose.

The placebo: calls that all ran alone, each on the side of the call of the row that is nearest to it in time. Were the network
slower when calls are hidden, for whatever other reason, they would be slower too. Without such calls the placebo of the
compute kernels stands in: it shows that the steps are alike otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.calls import CallTimes
from underlap.analyze.estimates import FEWEST, Estimate, slope_within
from underlap.analyze.groups import Calls
from underlap.analyze.positions import numbered
from underlap.analyze.slowdown import drifts
from underlap.columns import NONE, Int32, Int64

_ALONE = 0.1
"""Hidden to at most this share counts as alone: collectives that meet no compute at all are rare."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallSlowdown:
    """Calls of one family and payload. Durations are of what `measure` says."""

    family: int
    payload_bytes: int | None
    measure: Literal["transfer", "kernel time"]
    calls_beside: int
    """Hidden to at least half."""
    calls_alone: int
    beside_ns: int | None
    """Median."""
    alone_ns: int | None
    shortest_ns: int
    """Of all calls: the nearest to the transfer alone that the trace shows."""
    hidden_ns: int
    ratio: Estimate | None
    placebo: Estimate | None
    """1 if the comparison is fair; None where too few calls ran alone near calls on either side."""
    cost: tuple[float, float, float] | None
    """Nanoseconds: value, low, high."""
    word: Literal["slower", "faster", "no difference seen", "not established", "unknown"]
    reason: str | None


def call_slowdowns(
    calls: Calls, times: CallTimes, family: Int32, transfer: Int64 | None, *, alike: bool = False
) -> list[CallSlowdown]:
    """One row per family and payload with calls in the window, most hidden time first. `transfer` is per call, -1 unknown.

    `alike` says whether compute kernels away from communication show that the steps are alike.
    """
    own = np.flatnonzero(times.counted & (times.duration > 0))
    if len(own) == 0:
        return []
    payload = calls.table.payload_bytes[own]
    group = numbered(family[own], payload)
    rows = [_row(calls, times, own[group == number], family, transfer, own, alike) for number in range(int(group.max()) + 1)]
    return sorted(rows, key=lambda row: (-row.hidden_ns, row.family, row.payload_bytes or -1))


def stretch_of_calls(
    rows: Sequence[CallSlowdown], calls: Calls, times: CallTimes, family: Int32, transfer: Int64 | None
) -> Int64:
    """Per call what compute beside it added to its transfer, in ns; 0 where the rows establish no slowdown."""
    result = np.zeros(len(calls.table), dtype=np.int64)
    for row in rows:
        if transfer is None or row.word != "slower" or row.ratio is None:
            continue
        own = np.flatnonzero(
            times.counted & (times.duration > 0) & (family == row.family) & (calls.table.payload_bytes == row.payload_bytes)
        )
        result[own] = np.round(_losing(times, own, transfer[own]) * (1 - 1 / row.ratio.value)).astype(np.int64)
    return result


def _losing(times: CallTimes, own: Int64, duration: Int64) -> NDArray[np.float64]:
    """The part of each call that is longer by the ratio: all of a hidden one; of those on neither side what was hidden."""
    share = times.hidden[own] / times.duration[own]
    losing: NDArray[np.float64] = np.where(share >= 0.5, duration, np.where(share <= _ALONE, 0, times.hidden[own])).astype(float)
    return losing


def _row(
    calls: Calls, times: CallTimes, own: Int64, family: Int32, transfer: Int64 | None, everything: Int64, alike: bool
) -> CallSlowdown:
    known = transfer is not None and bool((transfer[own] > 0).all())
    duration = transfer[own] if transfer is not None and known else times.duration[own]
    share = times.hidden[own] / times.duration[own]
    beside, alone = share >= 0.5, share <= _ALONE
    payload = int(calls.table.payload_bytes[own[0]])
    ratio, placebo = None, None
    if payload >= 0 and min(beside.sum(), alone.sum()) >= FEWEST:
        sided = beside | alone
        ratio = _ratio(calls, own[sided], duration[sided], beside[sided])
        if transfer is not None and known:
            placebo = _placebo(calls, times, own[sided], beside[sided], family, transfer, everything)
    hidden = int(times.hidden[own].sum())
    subject = float(_losing(times, own, duration).sum())
    word, reason = _word(ratio, payload, int(beside.sum()), int(alone.sum()), known, placebo, alike)
    return CallSlowdown(
        family=int(family[own[0]]),
        payload_bytes=None if payload < 0 else payload,
        measure="transfer" if known else "kernel time",
        calls_beside=int(beside.sum()),
        calls_alone=int(alone.sum()),
        beside_ns=int(np.median(duration[beside])) if beside.any() else None,
        alone_ns=int(np.median(duration[alone])) if alone.any() else None,
        shortest_ns=int(duration.min()),
        hidden_ns=hidden,
        ratio=ratio,
        placebo=placebo,
        cost=None
        if ratio is None
        else (subject * (1 - 1 / ratio.value), subject * (1 - 1 / ratio.low), subject * (1 - 1 / ratio.high)),
        word=word,
        reason=reason,
    )


def _ratio(calls: Calls, own: Int64, duration: Int64, beside: NDArray[np.bool_]) -> Estimate | None:
    return _slope(calls, own, duration, beside, np.zeros(len(own), dtype=np.int64))


def _placebo(
    calls: Calls,
    times: CallTimes,
    row: Int64,
    beside: NDArray[np.bool_],
    family: Int32,
    transfer: Int64,
    everything: Int64,
) -> Estimate | None:
    payload = calls.table.payload_bytes
    share = times.hidden[everything] / times.duration[everything]
    still = everything[(share <= _ALONE) & (transfer[everything] > 0) & (payload[everything] >= 0)]
    side = np.full(len(still), NONE, dtype=np.int64)
    for rank in np.unique(calls.table.rank[still]).tolist():
        mine, here = np.flatnonzero(calls.table.rank[still] == rank), np.flatnonzero(calls.table.rank[row] == rank)
        here = here[np.argsort(times.start[row[here]], kind="stable")]
        for at in mine.tolist():
            # Another call than itself: the nearest of the two before and the two after it.
            place = int(np.searchsorted(times.start[row[here]], times.start[still[at]]))
            near = [one for one in here[max(place - 2, 0) : place + 2].tolist() if row[one] != still[at]]
            if near:
                nearest = min(near, key=lambda one: abs(int(times.start[row[one]] - times.start[still[at]])))
                side[at] = int(beside[nearest])
    own = still[side >= 0]
    if len(own) == 0:
        return None
    return _slope(calls, own, transfer[own], side[side >= 0] == 1, numbered(family[own], payload[own]))


def _slope(calls: Calls, own: Int64, duration: Int64, beside: NDArray[np.bool_], stratum: Int64) -> Estimate | None:
    rank = calls.table.rank[own]
    # The n-th call of each rank is the same instance where the ranks make the same calls: alike over the ranks.
    instance = np.zeros(len(own), dtype=np.int64)
    for number in np.unique(rank):
        instance[rank == number] = np.arange(int((rank == number).sum()))
    slope = slope_within(np.log(duration.astype(np.float64)), beside.astype(np.float64), stratum, np.ones(len(own)), instance)
    if slope is None:
        return None
    return Estimate(value=math.exp(slope.value), low=math.exp(slope.low), high=math.exp(slope.high), units=slope.units)


def _word(  # noqa: PLR0911 - one return per word and reason
    ratio: Estimate | None, payload: int, beside: int, alone: int, known: bool, placebo: Estimate | None, alike: bool
) -> tuple[Literal["slower", "faster", "no difference seen", "not established", "unknown"], str | None]:
    if payload < 0:
        return "unknown", "the payload is unknown, so that the calls may be of any size"
    if ratio is None:
        wanted = "a run without overlap" if alone == 0 else "more steps"
        return "unknown", (
            f"{beside} calls at least half hidden and {alone} alone, of which {FEWEST} each are needed; {wanted} would tell"
        )
    if not known:
        return "not established", (
            "kernel time holds waiting for late peers, which lengthens a call just the same; traces of all ranks would tell"
        )
    if not ratio.excludes(1.0):
        return "no difference seen", f"the range {ratio.low:.3f} to {ratio.high:.3f} includes 1"
    if placebo is None and not alike:
        return "not established", (
            "there is no placebo: too few calls run alone, some near hidden calls and some near others, so that nothing shows "
            "whether the network is alike otherwise; more steps, or steps with less overlap, would tell"
        )
    if placebo is not None and (ratio.overlaps(placebo) or drifts(ratio, placebo)):
        return "not established", (
            f"calls that run alone differ as well ({placebo.value:.3f}, {placebo.low:.3f} to {placebo.high:.3f}; expected 1): "
            "something else changes with overlap"
        )
    return ("slower" if ratio.value > 1 else "faster"), None
