"""The price of a transfer, and the bytes it moves over links and through memory by algorithm.

Link bytes are those that leave a rank, the mean over the ranks of the group, without protocol overhead (LL doubles its data with
flags, LL128 adds 1/15). Memory bytes are those of one rank's HBM, reads and writes added, caches not counted on.
"""

from __future__ import annotations

import msgspec

from underlap.cost.formulas import link_bytes


class TransferCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a transfer takes while nothing else runs."""

    time_ns: float
    latency_ns: float
    """Part of the time that does not shrink with more bandwidth."""
    algorithm: str
    protocol: str | None
    ctas: int
    """Thread blocks, each keeping an SM to itself (NVIDIA/nccl#689); 0 where copy engines do the work."""
    hbm_bytes: float
    scale_up_bytes: float
    scale_out_bytes: float
    measured: bool = False
    """The time is from a table of the user's; the rest is the model's."""
    assumptions: tuple[str, ...] = ()


NOTHING = TransferCost(
    time_ns=0.0, latency_ns=0.0, algorithm="none", protocol=None, ctas=0, hbm_bytes=0.0, scale_up_bytes=0.0, scale_out_bytes=0.0
)
"""One rank, or no bytes: nothing is launched."""


def collective_links(collective: str, algorithm: str, payload: float, span: tuple[int, int]) -> tuple[float, float]:
    """(scale-up, scale-out) bytes of a collective that NCCL tunes.

    Ring: each rank sends to the next, and one hop per domain leaves it. Tree: n - 1 edges, nodes - 1 of them between domains,
    each carries the data up and down. In the switch (NVLS): an all-reduce sends the data to be reduced, and 1/n to multicast.
    """
    local, nodes = span
    n = local * nodes
    if algorithm in ("nvls", "nvls_tree", "symmetric"):
        within = {"all_reduce": payload * (1 + 1 / local), "all_gather": payload / n, "reduce_scatter": payload}[collective]
        if nodes == 1:
            return within, 0.0
        return within, payload / local if algorithm == "nvls" else 2 * payload * (nodes - 1) / n
    if algorithm in ("collnet_direct", "collnet_chain"):
        return 2 * (local - 1) / local * payload, payload / local
    total = link_bytes(collective, payload, n)
    if nodes == 1:
        return total, 0.0
    chained = algorithm == "tree" or collective in ("broadcast", "reduce")
    outside = total * (nodes - 1) / (n - 1) if chained else total / local
    return total - outside, outside


def pairwise_links(payload: float, span: tuple[int, int]) -> tuple[float, float]:
    """(scale-up, scale-out) bytes of an all-to-all in which each pair exchanges its part directly."""
    local, nodes = span
    n = local * nodes
    return payload * (local - 1) / n, payload * (n - local) / n


def memory_bytes(collective: str, algorithm: str, payload: float, ranks: int) -> float:
    """HBM traffic of one rank.

    Counted from the kernels' steps: data that comes in is written to a buffer, read from it, and combined with the own part
    (NVIDIA/nccl#1428, maintainer: 2 to 3 bytes of memory traffic per byte on NVLink).
    """
    n, s = ranks, payload
    if algorithm == "copy_engine":
        return 2 * s  # own part copied, the others' read once and written once
    if algorithm == "symmetric":
        return {"all_reduce": 2 * s, "all_gather": s + s / n, "reduce_scatter": s + s / n}[collective]
    if algorithm in ("nvls", "nvls_tree"):
        # Not registered: copied to the multicast buffer and back, and read and written there by the switch.
        return {"all_reduce": 6 * s, "all_gather": 3 * s + 3 * s / n, "reduce_scatter": 3 * s + 3 * s / n}[collective]
    return {
        "all_reduce": s * (4 * (n - 1) / n + 1),
        "all_gather": s * (2 * n - 1) / n,
        "reduce_scatter": s * (3 * n - 1) / n,
        "reduce": 3 * s,
        "broadcast": 2 * s,
        "send": 3 * s,
        "all_to_all": 2 * s + 2 * s * (n - 1) / n,
    }[collective]
