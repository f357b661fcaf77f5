"""Families: all calls of one collective on one axis, with their time, bytes and bandwidth."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.accounting import FamilyAmounts
from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Axis, Calls, match_key
from underlap.bandwidth import bus_factor
from underlap.columns import NONE, Int32
from underlap.report import FamilyRow
from underlap.timeline import Timeline

FamilyKey = tuple[str | None, str | None]
"""(axis, collective)"""
_ONE_SIDED = ("send", "recv", "send_recv", "dispatch", "combine")


def number_families(timeline: Timeline, calls: Calls) -> tuple[list[FamilyKey], Int32]:
    """The distinct (axis, collective) pairs in order of name, and the family of each call."""
    keys: dict[FamilyKey, int] = {}
    pairs: dict[tuple[int, int], int] = {}
    of_call = np.empty(len(calls.table), dtype=np.int32)
    for at, pair in enumerate(zip(calls.axis_of.tolist(), calls.table.collective.tolist(), strict=True)):
        if pair not in pairs:
            key = (calls.axis[pair[0]].name, timeline.name_of(pair[1]))
            pairs[pair] = keys.setdefault(key, len(keys))
        of_call[at] = pairs[pair]
    # By name, so that a tie between families is not decided by the order of calls or ranks. No name comes last.
    order = sorted(keys, key=lambda key: [(name is None, name or "") for name in key])
    place = {keys[key]: at for at, key in enumerate(order)}
    return order, np.array([place[number] for number in of_call.tolist()], dtype=np.int32)


def family_rows(
    timeline: Timeline,
    calls: Calls,
    times: CallTimes,
    keys: list[FamilyKey],
    of_call: Int32,
    amounts: dict[int, list[FamilyAmounts]],
    devices: int,
) -> list[FamilyRow]:
    """One row per family with calls in the window, most exposed first. `amounts` holds one entry per device.

    Means are over all `devices`, those without the family included, so that they add up to the devices' mean.
    """
    matched = match_key(calls)
    devices = max(devices, 1)  # a window that no device has any step of
    ranks_counted = len({info.rank for info in timeline.ranks})
    rows = []
    for number, (axis, collective) in enumerate(keys):
        own = np.flatnonzero((of_call == number) & times.counted)
        found = amounts.get(number, [])
        if len(own) == 0 and not any(amount.communication or amount.fused for amount in found):
            continue
        communication = sum(amount.communication for amount in found)
        hidden = sum(amount.hidden for amount in found)
        known = calls.table.payload_bytes[own] >= 0
        durations = times.duration[own]
        evidence = _axis_evidence(calls, own)
        payload = int(calls.table.payload_bytes[own].sum()) if known.all() and len(own) else None
        share = sum(amount.exposed_share for amount in found)
        rows.append(
            FamilyRow(
                axis=axis,
                axis_source=evidence.source if axis is not None else None,
                axis_candidates=list(evidence.candidates) if axis is None else [],
                collective=collective,
                library=sorted({timeline.names[at] for at in np.unique(calls.table.library[own])}),
                ranks_counted=ranks_counted,
                count=_count(own, collective, matched, ranks_counted),
                kernels=int(times.kernels[own].sum()),
                payload_bytes=payload,
                payload_known_share=float(durations[known].sum() / durations.sum()) if durations.sum() else float(known.all()),
                communication_ns=communication,
                fused_ns=sum(amount.fused for amount in found),
                hidden_ns=hidden,
                under_fused_ns=sum(amount.under_fused for amount in found),
                exposed_ns=sum(amount.exposed for amount in found),
                exposed_share_ns=share,
                mean_communication_ns=round(communication / devices),
                mean_exposed_share_ns=round(share / devices),
                mean_payload_bytes=None if payload is None else round(payload / devices),
                hidden_share=hidden / communication if communication else None,
                busbw_kernel_gbps=_bus_bandwidth(calls, times, own, collective, matched),
            )
        )
    return sorted(rows, key=lambda row: (-row.exposed_share_ns, -row.communication_ns, row.axis or "", row.collective or ""))


def _axis_evidence(calls: Calls, own: NDArray[np.int64]) -> Axis:
    """The evidence that most calls of the family rest on (of equals, the first by name), with every candidate of any call."""
    counted = Counter(calls.axis_of[own].tolist())
    if not counted:
        return Axis()
    found = sorted((-count, calls.axis[at].source or "", calls.axis[at].candidates, at) for at, count in counted.items())
    most = calls.axis[found[0][-1]]
    candidates = dict.fromkeys(name for _, _, names, _ in found for name in names)
    return Axis(dimensions=most.dimensions, source=most.source, candidates=tuple(candidates))


def _count(
    own: NDArray[np.int64], collective: str | None, matched: list[tuple[int, int, int, int] | None], ranks: int
) -> int | None:
    if ranks == 1 or collective in _ONE_SIDED:
        return len(own)
    keys = [matched[at] for at in own.tolist()]
    return None if None in keys else len(set(keys))


def _bus_bandwidth(
    calls: Calls,
    times: CallTimes,
    own: NDArray[np.int64],
    collective: str | None,
    matched: list[tuple[int, int, int, int] | None],
) -> float | None:
    """GB/s over kernel time of the calls whose payload and group size are known. An uneven all-to-all counts as its largest."""
    largest: dict[tuple[int, int, int, int], int] = {}
    if collective == "all_to_all":
        for at in own.tolist():
            key = matched[at]
            if key is not None:
                largest[key] = max(largest.get(key, NONE), int(calls.table.payload_bytes[at]))
    moved, duration = 0.0, 0
    for at in own.tolist():
        group = calls.table.group[at]
        factor = bus_factor(collective, calls.groups[group].size if group >= 0 else None)
        key = matched[at]
        payload = largest.get(key, NONE) if key in largest else int(calls.table.payload_bytes[at])
        if factor is not None and payload > 0:
            moved += factor * payload
            duration += int(times.duration[at])
    return moved / duration if duration else None
