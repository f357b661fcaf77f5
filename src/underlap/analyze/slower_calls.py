"""Communication beside compute: how long calls of one family and payload take when hidden, and when not.

A call that waits for a late peer is longer too, and is hidden to another share. So without the transfer time (traces of all
ranks, matched) the figures are of kernel time and establish nothing; they only bound what communication may lose.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.calls import CallTimes
from underlap.analyze.estimates import FEWEST, Estimate, slope_within
from underlap.analyze.groups import Calls
from underlap.analyze.positions import numbered
from underlap.columns import Int32, Int64

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
    cost: tuple[float, float, float] | None
    """Nanoseconds: value, low, high."""
    word: Literal["slower", "faster", "no difference seen", "not established", "unknown"]
    reason: str | None


def call_slowdowns(calls: Calls, times: CallTimes, family: Int32, transfer: Int64 | None) -> list[CallSlowdown]:
    """One row per family and payload with calls in the window, most hidden time first. `transfer` is per call, -1 unknown."""
    own = np.flatnonzero(times.counted & (times.duration > 0))
    if len(own) == 0:
        return []
    payload = calls.table.payload_bytes[own]
    group = numbered(family[own], payload)
    rows = [_row(calls, times, own[group == number], family, transfer) for number in range(int(group.max()) + 1)]
    return sorted(rows, key=lambda row: (-row.hidden_ns, row.family, row.payload_bytes or -1))


def _row(calls: Calls, times: CallTimes, own: Int64, family: Int32, transfer: Int64 | None) -> CallSlowdown:
    known = transfer is not None and bool((transfer[own] > 0).all())
    duration = transfer[own] if transfer is not None and known else times.duration[own]
    share = times.hidden[own] / times.duration[own]
    beside, alone = share >= 0.5, share <= _ALONE
    payload = int(calls.table.payload_bytes[own[0]])
    ratio = None
    if payload >= 0 and min(beside.sum(), alone.sum()) >= FEWEST:
        sided = beside | alone
        ratio = _ratio(calls, own[sided], duration[sided], beside[sided])
    hidden = int(times.hidden[own].sum())
    # Calls on neither side lose in proportion to what of them was hidden.
    subject = float(np.where(beside, duration, np.where(alone, 0, times.hidden[own])).sum())
    word, reason = _word(ratio, payload, int(beside.sum()), int(alone.sum()), known)
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
        cost=None
        if ratio is None
        else (subject * (1 - 1 / ratio.value), subject * (1 - 1 / ratio.low), subject * (1 - 1 / ratio.high)),
        word=word,
        reason=reason,
    )


def _ratio(calls: Calls, own: Int64, duration: Int64, beside: NDArray[np.bool_]) -> Estimate | None:
    rank = calls.table.rank[own]
    # The n-th call of each rank is the same instance where the ranks make the same calls: alike over the ranks.
    instance = np.zeros(len(own), dtype=np.int64)
    for number in np.unique(rank):
        instance[rank == number] = np.arange(int((rank == number).sum()))
    one = np.zeros(len(own), dtype=np.int64)
    slope = slope_within(np.log(duration.astype(np.float64)), beside.astype(np.float64), one, np.ones(len(own)), instance)
    if slope is None:
        return None
    return Estimate(value=math.exp(slope.value), low=math.exp(slope.low), high=math.exp(slope.high), units=slope.units)


def _word(
    ratio: Estimate | None, payload: int, beside: int, alone: int, known: bool
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
    return ("slower" if ratio.value > 1 else "faster"), None
