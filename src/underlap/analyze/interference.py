"""What transfers take of the cores that compute, where a recording tells: compute beside them is longer by as much.

    rate = core time of a rank / its transfer time, the least of all ranks: on another core something else may have run, too
    work alone = observed - what transfers beside it took;  in a replay = work alone + what transfers beside it take there

The rate is what a transfer takes of the compute beside it. A transfer keeps what it takes however long it lasts: where a lever
shortens or lengthens it, the rate follows.
Not modeled: what compute takes of transfers; cache and memory that both use.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from underlap.columns import Int64
from underlap.timeline import OpClass, Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Of the operations of a Timeline. Arrays of shape (len(ops),)."""

    taken_ns: NDArray[np.float64]
    """Of each transfer: the core time that it takes; 0 where it is not known."""
    stretch_ns: Int64
    """Of each computation: what the transfers beside it took, as it was observed. At most its duration."""

    @property
    def alone_saves_ns(self) -> int:
        """What all computation was longer."""
        return int(self.stretch_ns.sum())


def interference(timeline: Timeline, wait_ns: Int64) -> Interference | None:
    """From the core time that ranks recorded; None where none did. `wait_ns`: per operation, -1 where unknown."""
    ops = timeline.ops
    duration = ops.end_ns - ops.start_ns
    transfer = np.where(_transfers(timeline), duration - np.maximum(wait_ns, 0), 0)
    known = [info for info in timeline.ranks if info.core_ns is not None]
    of_rank = {info.rank: int(transfer[ops.rank == info.rank].sum()) for info in known}
    rate = min(
        (info.core_ns / of_rank[info.rank] for info in known if info.core_ns is not None and of_rank[info.rank]), default=0.0
    )
    if rate <= 0.0:
        return None
    taken = np.where(np.isin(ops.rank, list(of_rank)), min(rate, 1.0) * transfer, 0.0)
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
        at = np.concatenate([end_ns[sends] - transfer_ns[sends], end_ns[sends]])
        order = np.argsort(at, kind="stable")
        at = at[order]
        # What all transfers together have taken up to each moment at which one begins or ends.
        rates = np.cumsum(np.concatenate([rate, -rate])[order])
        until = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(at))])
        taken = np.interp(end_ns[rows], at, until) - np.interp(start_ns[rows], at, until)
        found[rows] = np.minimum(np.rint(taken).astype(np.int64), end_ns[rows] - start_ns[rows])
    return found


def _transfers(timeline: Timeline) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = timeline.ops.op_class == OpClass.COMMUNICATION
    return found
