"""What transfers take of the cores that compute, where a recording tells, and what they take of each other on one link.

    rate = core time of a rank / its transfer time, the least of all ranks: on another core something else may have run, too
    work alone = observed - what transfers beside it took;  in a replay = work alone + what transfers beside it take there

The rate is what a transfer takes of the compute beside it. A transfer keeps what it takes however long it lasts: where a lever
shortens or lengthens it, the rate follows.
Transfers of one group at the same time share its link equally: each lasts longer by what the others have meanwhile.
Not modeled: what compute takes of transfers; cache and memory that both use; links of several groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int64
from underlap.timeline import OpClass, Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Of the operations of a Timeline. Arrays of shape (len(ops),)."""

    taken_ns: NDArray[np.float64]
    """Of each transfer: the core time that it takes. 0 of all else."""
    stretch_ns: Int64
    """Of each computation: what the transfers beside it took, as it was observed. At most its duration. 0 of all else."""


def interference(timeline: Timeline, wait_ns: Int64) -> Interference | None:
    """From the core time that ranks recorded; None where one that sends did not, or took none. `wait_ns`: per operation, -1
    where unknown."""
    ops = timeline.ops
    duration = ops.end_ns - ops.start_ns
    transfer = np.where(_transfers(timeline), duration - np.maximum(wait_ns, 0), 0)
    pairs = [(info.core_ns, int(transfer[ops.rank == info.rank].sum())) for info in timeline.ranks]
    rates = [None if core is None else core / length for core, length in pairs if length]
    known = [rate for rate in rates if rate]
    if not known or len(known) < len(rates):
        return None
    taken = min(1.0, *known) * transfer
    return Interference(taken_ns=taken, stretch_ns=stretch(timeline, taken, transfer, ops.start_ns, ops.end_ns))


def stretch(timeline: Timeline, taken_ns: NDArray[np.float64], transfer_ns: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """What transfers take of each computation beside them, with operations at these times. `transfer_ns`: how long each
    transfer lasts, up to its end. All of shape (len(ops),); operations that end where they start take part in nothing."""
    ops = timeline.ops
    found = np.zeros(len(ops), dtype=np.int64)
    computes = np.isin(ops.op_class, (OpClass.COMPUTE, OpClass.FUSED))
    for info in timeline.ranks:
        own = ops.rank == info.rank
        sends = np.flatnonzero(own & (taken_ns > 0) & (transfer_ns > 0) & (end_ns > start_ns))
        rows = np.flatnonzero(own & computes & (end_ns > start_ns))
        if len(sends) == 0 or len(rows) == 0:
            continue
        rate = taken_ns[sends] / transfer_ns[sends]
        taken = _between(start_ns[rows], end_ns[rows], end_ns[sends] - transfer_ns[sends], end_ns[sends], rate)
        found[rows] = np.minimum(np.rint(taken).astype(np.int64), end_ns[rows] - start_ns[rows])
    return found


def links(timeline: Timeline) -> list[Int64]:
    """Operations that share a link whenever they run at once: the collectives of one group on one CPU rank, of which gloo
    carries out two at a time (a communicator of NCCL one). Messages between two ranks are not among them, as those of two
    directions do not meet."""
    ops, calls = timeline.ops, timeline.collectives
    on_cpu = [info.rank for info in timeline.ranks if info.on_cpu]
    rows = np.flatnonzero(_transfers(timeline) & (ops.collective >= 0) & np.isin(ops.rank, on_cpu))
    group, peer = (np.append(column, NONE)[ops.collective[rows]].astype(np.int64) for column in (calls.group, calls.peer))
    rows, group = rows[(group >= 0) & (peer < 0)], group[(group >= 0) & (peer < 0)]
    _, link = np.unique(np.column_stack((ops.rank[rows], group)), axis=0, return_inverse=True)
    found = [rows[link.ravel() == number] for number in range(int(link.max(initial=-1)) + 1)]
    return [own for own in found if len(np.unique(ops.lane[own])) > 1]


def shared(of: list[Int64], transfer_ns: Int64, end_ns: Int64) -> Int64:
    """By how much each transfer is longer because others use its link meanwhile. `of`: what `links` gave. Shape (len(ops),)."""
    found = np.zeros(len(end_ns), dtype=np.int64)
    for own in of:
        rows = own[transfer_ns[own] > 0]
        if len(rows) == 0:
            continue
        begin, end = end_ns[rows] - transfer_ns[rows], end_ns[rows]
        lost = _between(begin, end, begin, end, np.ones(len(rows)), lambda running: 1 - 1 / np.maximum(running, 1))
        found[rows] = np.rint(lost).astype(np.int64)
    return found


def _between(
    start_ns: Int64,
    end_ns: Int64,
    since_ns: Int64,
    until_ns: Int64,
    rate: NDArray[np.float64],
    felt: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda rates: rates,
) -> NDArray[np.float64]:
    """For each start and end: what all that runs from `since_ns` to `until_ns` takes in between, where rates that add up to r at
    a moment take `felt(r)` of it."""
    at = np.concatenate([since_ns, until_ns])
    order = np.argsort(at, kind="stable")
    at = at[order]
    rates = felt(np.cumsum(np.concatenate([rate, -rate])[order]))
    so_far = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(at))])
    taken: NDArray[np.float64] = np.interp(end_ns, at, so_far) - np.interp(start_ns, at, so_far)
    return taken


def _transfers(timeline: Timeline) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = timeline.ops.op_class == OpClass.COMMUNICATION
    return found
