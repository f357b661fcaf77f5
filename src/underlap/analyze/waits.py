"""The rows of a report completed with what is known of waiting: per rank, per family, clocks and bubbles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.analyze.rendezvous import WaitSplit
from underlap.analyze.why import Why
from underlap.bandwidth import bus_factor
from underlap.columns import NONE, Int32
from underlap.report import BubbleRow, ClockRow, FamilyRow, RankRow


def completed_ranks(rows: Sequence[RankRow], why: Why) -> list[RankRow]:
    """Each row with its waiting, its causes of idle time, and the uncertainty of its clock where ranks were compared."""
    clocks = why.met.clocks
    residual = dict(zip(clocks.ranks.tolist(), clocks.residual_ns.tolist(), strict=True)) if why.compared else {}
    return [
        msgspec.structs.replace(
            row,
            **_fields([why.splits[row.rank, row.device]] if row.communication_ns else []),
            idle_causes=why.idle[row.rank, row.device],
            clock_uncertainty_ns=residual[row.rank] if residual.get(row.rank, NONE) >= 0 else None,
        )
        for row in rows
    ]


def completed_family(row: FamilyRow, splits: Sequence[WaitSplit | None], own: np.ndarray, calls: Calls, why: Why) -> FamilyRow:
    """The row with its waiting summed over devices; `own` are its calls in the window."""
    at_most = why.met.transfer_at_most[own]
    unknown = why.met.wait[own] < 0
    return msgspec.structs.replace(
        row,
        **_fields(splits),
        transfer_at_most_ns=int(at_most.sum()) if len(own) and unknown.all() and (at_most >= 0).all() else None,
        busbw_gbps=_bandwidth(row, own, calls, why),
    )


def _fields(splits: Sequence[WaitSplit | None]) -> dict[str, int | float | None]:
    names = ("hidden_transfer", "hidden_wait", "exposed_transfer", "exposed_wait")
    known = [split for split in splits if split is not None]
    if not known or len(known) != len(splits):
        return {"wait_ns": None, "hidden_transfer_share": None, **{f"{name}_ns": None for name in names}}
    total = {name: sum(getattr(split, name) for split in known) for name in names}
    under_wait = sum(split.under_fused_wait for split in known)
    transfer = total["hidden_transfer"] + total["exposed_transfer"] + sum(split.under_fused_transfer for split in known)
    return {
        "wait_ns": total["hidden_wait"] + total["exposed_wait"] + under_wait,
        "hidden_transfer_share": total["hidden_transfer"] / transfer if transfer else None,
        **{f"{name}_ns": value for name, value in total.items()},
    }


def _bandwidth(row: FamilyRow, own: np.ndarray, calls: Calls, why: Why) -> float | None:
    """GB/s over transfer, of the calls whose waiting, payload and group size are known."""
    moved, duration = 0.0, 0
    largest: dict[int, int] = {}
    if row.collective == "all_to_all":
        # An uneven all-to-all counts as its largest rank.
        for at in own.tolist():
            meeting = int(why.met.instance[at])
            largest[meeting] = max(largest.get(meeting, NONE), int(calls.table.payload_bytes[at]))
    for at in own.tolist():
        group, transfer = calls.table.group[at], int(why.met.transfer[at])
        payload = largest.get(int(why.met.instance[at]), int(calls.table.payload_bytes[at]))
        factor = bus_factor(row.collective, calls.groups[group].size if group >= 0 else None)
        if factor is not None and payload > 0 and transfer > 0:
            moved += factor * payload
            duration += transfer
    return moved / duration if duration else None


def calls_of_family(number: int, of_call: Int32, times: CallTimes) -> np.ndarray:
    """The calls of a family in the window."""
    return np.flatnonzero((of_call == number) & times.counted)


def clock_rows(why: Why) -> list[ClockRow]:
    """One row per rank, where ranks were compared."""
    clocks = why.met.clocks
    if not why.compared:
        return []
    columns = (clocks.ranks, clocks.offset_ns, clocks.drift_ppb, clocks.residual_ns, clocks.component)
    return [
        ClockRow(
            rank=rank,
            offset_ns=offset,
            drift_ppb=drift,
            residual_ns=None if residual < 0 else residual,
            component=component,
        )
        for rank, offset, drift, residual, component in zip(*(column.tolist() for column in columns), strict=True)
    ]


def bubble_rows(why: Why, calls: Calls) -> list[BubbleRow]:
    """One row per pipeline."""
    return [
        BubbleRow(
            group=calls.groups[entry.group].description or calls.groups[entry.group].name,
            stages=entry.stages,
            micro_batches=entry.micro_batches,
            ideal_share=entry.ideal_share,
            waiting_share={str(rank): share for rank, share in entry.waiting_share.items()},
            waiting_ns={str(rank): ns for rank, ns in entry.waiting_ns.items()},
            how=entry.how,
        )
        for entry in why.bubbles
    ]
