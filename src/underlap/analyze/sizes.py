"""Calls of a family by payload: how many of each size, how long, and which size is slower than its neighbors let expect.

Sizes are classes between powers of two, so that uneven payloads stay a short table. A size is slow if its median takes over
OUTLIER_FACTOR times what the rate of the next smaller one would give: a larger message is never less efficient by much. What is
not modeled: a latency, which only makes larger messages quicker than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from underlap.analyze.calls import OUTLIER_CALLS, OUTLIER_FACTOR, CallTimes
from underlap.analyze.groups import Calls
from underlap.analyze.rendezvous import Rendezvous
from underlap.bandwidth import bus_factor
from underlap.columns import Int64
from underlap.report import FamilyRow, SizeRow
from underlap.timeline import Note


def size_rows(collective: str | None, calls: Calls, times: CallTimes, met: Rendezvous, own: Int64) -> list[SizeRow]:
    """A row per class of payload among the calls `own`, smallest first."""
    payload = calls.table.payload_bytes
    own = own[(payload[own] > 0) & (times.duration[own] > 0)]
    power = np.array([(int(value) - 1).bit_length() for value in payload[own].tolist()], dtype=np.int64)
    rows: list[SizeRow] = []
    for number in np.unique(power).tolist():
        mine = own[power == number]
        known = bool((met.transfer[mine] > 0).all())
        length = (met.transfer if known else times.duration)[mine]
        median_bytes, median_ns = int(np.median(payload[mine])), int(np.median(length))
        rate = float(np.median(payload[mine] / length))
        factors = {
            bus_factor(collective, calls.groups[group].size if group >= 0 else None)
            for group in np.unique(calls.table.group[mine]).tolist()
        }
        factor = factors.pop() if len(factors) == 1 else None
        before = rows[-1] if rows else None
        expected = None if before is None else before.median_ns * max(median_bytes / before.median_bytes, 1.0)
        rows.append(
            SizeRow(
                at_most_bytes=1 << number,
                calls=len(mine),
                median_bytes=median_bytes,
                median_ns=median_ns,
                waiting_inside=not known,
                algbw_gbps=rate,
                busbw_gbps=None if factor is None else factor * rate,
                times_expected=median_ns / expected if expected else None,
            )
        )
    return rows


def slow_sizes(families: Sequence[FamilyRow]) -> Note | None:
    """The size that is slowest against its smaller neighbor, where that is past explaining by size."""
    slow = [
        (size.times_expected, family, before, size)
        for family in families
        for before, size in zip(family.sizes, family.sizes[1:], strict=False)
        if size.times_expected is not None and size.times_expected > OUTLIER_FACTOR
        if min(before.calls, size.calls) >= OUTLIER_CALLS
    ]
    if not slow:
        return None
    times, family, before, size = max(slow, key=lambda entry: entry[0])
    inside = ", waiting inside" if size.waiting_inside else ""
    text = (
        f"{family.collective or 'communication'} of {size.median_bytes} bytes takes {size.median_ns / 1e6:.3f} ms "
        f"({size.algbw_gbps:.3f} GB/s{inside}), "
        f"{times:.0f}x as long as at the rate of {before.median_bytes} bytes ({before.algbw_gbps:.3f} GB/s)"
    )
    return Note(code="slow_size", text=text)
