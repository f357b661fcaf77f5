"""What compute and communication cost each other while they run side by side on one device.

Three resources: SMs (a resident collective keeps its own; compute runs in waves on the rest), memory bandwidth (shared in
proportion to what each asks for), and the wait for SMs of a collective that is launched while compute holds them all. Links are
shared between transfers only, never with compute: `link_share` has those. Does not model caches, power or clocks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from underlap.cost.compute import MEMORY_SHARE, ComputeCost, kernels_of, price
from underlap.cost.hardware import Processor
from underlap.cost.transfer_cost import TransferCost
from underlap.cost.work import ComputeWork

How = Literal["plain", "partitioned"]
"""plain: kernels sized for the whole processor, launched in any order. partitioned: compute is sized for the SMs that the
collective leaves (SM margin, green contexts, CU masks), and these stay free for it."""


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on isolated times while both run, 1 or more."""

    compute: float
    communication: float
    wait_ns: float
    """Until the collective finds SMs, where compute was launched first; 0 where they are free."""
    sms_left: int | None
    """For compute; None where the number of SMs is unknown."""
    by_sms: float
    """Part of the factor on compute that SMs explain."""
    by_memory: float
    """Factor on both that memory bandwidth explains."""
    assumptions: tuple[str, ...] = ()


def slowdown(work: ComputeWork, transfer: TransferCost, processor: Processor, how: How = "plain") -> Slowdown:
    """What the compute work and the transfer cost each other; times of both are isolated ones."""
    alone = price(work, processor)
    total = processor.sms
    if total is None:
        beside, left = alone, None
    else:
        left = max(1, total - transfer.ctas)
        beside = price(work, processor, sms=left, sized_for=left if how == "partitioned" else None)
    by_sms = max(1.0, _ratio(beside.time_ns, alone.time_ns))
    by_memory = memory_factor(beside.hbm_bytes, beside.time_ns, transfer, processor)
    waits = how == "plain" and transfer.ctas > 0 and total is not None and alone.ctas > total - transfer.ctas
    return Slowdown(
        compute=by_sms * by_memory,
        communication=by_memory,
        wait_ns=wave_ns(alone, processor) if waits else 0.0,
        sms_left=left,
        by_sms=by_sms,
        by_memory=by_memory,
        assumptions=(*alone.assumptions, *transfer.assumptions),
    )


def memory_factor(hbm_bytes: float, time_ns: float, transfer: TransferCost, processor: Processor) -> float:
    """Factor on compute and transfer from memory bandwidth: what both ask for over what there is, at least 1.

    Memory serves requests in the order they come, so that each gets in proportion to what it asks for.
    """
    asked = 1e9 * (_ratio(hbm_bytes, time_ns) + _ratio(transfer.hbm_bytes, transfer.time_ns))
    return max(1.0, asked / (MEMORY_SHARE * processor.memory_bytes_per_s))


def wave_ns(cost: ComputeCost, processor: Processor) -> float:
    """After which a kernel that fills the processor first gives SMs free: a wave; all of it where it is persistent."""
    kernels, _ = kernels_of(processor.architecture)
    if kernels.persistent and cost.tiles > cost.ctas:
        return cost.time_ns
    return _ratio(cost.time_ns, cost.waves)


def link_share(transfers: int) -> float:
    """Factor on each of so many transfers that share one link and would each fill it: fair shares."""
    return float(max(1, transfers))


def side_by_side_ns(compute_ns: float, transfer: TransferCost, factors: Slowdown) -> float:
    """Time until both are done, launched together, compute first: each slowed while the other runs, then alone."""
    wait = min(factors.wait_ns, compute_ns)
    compute_left, transfer_left = compute_ns - wait, transfer.time_ns
    first = min(compute_left * factors.compute, transfer_left * factors.communication)
    return wait + first + max(compute_left - first / factors.compute, transfer_left - first / factors.communication)


def gained_share(compute_ns: float, transfer: TransferCost, factors: Slowdown) -> float | None:
    """Share of the ideal speedup that running side by side reaches; None where there is none to gain.

    Ideal: serial time over the longer of both (as in ConCCL, arXiv 2412.14335). Negative where serial is quicker.
    """
    serial, ideal = compute_ns + transfer.time_ns, max(compute_ns, transfer.time_ns)
    if serial <= ideal:
        return None
    reached = side_by_side_ns(compute_ns, transfer, factors)
    return (serial / reached - 1) / (serial / ideal - 1)


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
