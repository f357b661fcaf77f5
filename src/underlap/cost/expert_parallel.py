"""Dispatch and combine of a mixture of experts, as kernels that forward inside the domain do them (DeepEP): by SMs and domains.

Each token crosses to each other domain once and is forwarded there to every rank that has an expert for it. The time is the
longest of what the SMs move, what NVLink carries and what the NICs carry, after a fixed start and one exchange of counts.
The kernels for few tokens (low latency) instead send each copy of a token straight to its expert, and hold no SM meanwhile.
Does not model stragglers in the exchange of counts.
"""

from __future__ import annotations

import math

from underlap.cost import nccl
from underlap.cost.calibration import ExpertKernels, expert_kernels_of
from underlap.cost.communicator import link_rate, scale_out_rate
from underlap.cost.formulas import expert_parallel_domain_bytes, reached_ranks
from underlap.cost.hardware import Topology
from underlap.cost.transfer_cost import TransferCost
from underlap.cost.work import Transfer
from underlap.errors import OptionError

DEFAULT_SMS = 20
"""Of DeepEP (Buffer.num_sms) and of the DeepSeek-V3 report."""


def price_expert_transfer(transfer: Transfer, topology: Topology, it: nccl.Communicator) -> TransferCost:
    """Time of one dispatch or combine; payload: the rank's tokens, each once, in the precision that is sent."""
    kernels = expert_kernels_of(topology.processor.architecture)
    if kernels is not None:
        return _priced(transfer, topology, it, kernels, ())
    other = expert_kernels_of("hopper")
    assert other is not None
    note = f"no measured expert kernels for architecture {topology.processor.architecture}: those of hopper were taken"
    return _priced(transfer, topology, it, other, (note,))


def _priced(
    transfer: Transfer, topology: Topology, it: nccl.Communicator, kernels: ExpertKernels, assumed: tuple[str, ...]
) -> TransferCost:
    sending = _low_latency if transfer.algorithm == "low_latency" else _forwarded
    seconds, inside, outside, sms = sending(transfer, topology, it, kernels)
    one_hop = 1000 * nccl.tables()["hardware_latency_us"]["net"]["ring"][2]
    latency = kernels.dispatch_ns if transfer.collective == "dispatch" else kernels.combine_ns
    if it.nodes > 1:
        # Counts go there and back in log2(domains) rounds; tokens sent straight away wait for one hop.
        latency += one_hop * (1 if sms == 0 else 2 * math.ceil(math.log2(it.nodes)))
    return TransferCost(
        time_ns=latency + 1e9 * transfer.uneven * seconds,
        latency_ns=latency,
        algorithm="low_latency" if sms == 0 else "forwarded",
        protocol=None,
        ctas=sms,
        hbm_bytes=3 * (inside + outside) + 2 * transfer.payload_bytes,
        scale_up_bytes=inside,
        scale_out_bytes=outside,
        assumptions=assumed,
    )


def _forwarded(
    transfer: Transfer, topology: Topology, it: nccl.Communicator, kernels: ExpertKernels
) -> tuple[float, float, float, int]:
    """(seconds, bytes inside the domain, bytes between domains, SMs) of the kernels that forward."""
    assert transfer.routing is not None
    routing, (local, domains) = transfer.routing, transfer.placed
    sms = DEFAULT_SMS if transfer.ctas is None else transfer.ctas
    if sms < 1:
        raise OptionError(f"{transfer.collective} with {sms} SMs: expected 1 or more, or the algorithm low_latency")
    limits = (routing.topk, routing.experts, (local, domains), routing.domains_per_token)
    inside, outside = expert_parallel_domain_bytes(transfer.payload_bytes, *limits)
    handled = transfer.payload_bytes * reached_ranks(*limits) + outside  # the own rank's tokens are copied too
    rate = kernels.sm_bytes_per_s if domains == 1 else kernels.sm_bytes_per_s_between
    seconds = max(handled / (sms * rate), inside / (1e9 * link_rate(it.architecture, topology.scale_up, local)))
    if domains > 1:
        seconds = max(seconds, outside / scale_out_rate(topology))
    return seconds, inside, outside, sms


def _low_latency(
    transfer: Transfer, topology: Topology, it: nccl.Communicator, _: ExpertKernels
) -> tuple[float, float, float, int]:
    """As _forwarded: a copy per expert, over NVLink inside the domain and by RDMA between domains; no SM while in flight."""
    assert transfer.routing is not None
    local, domains = transfer.placed
    copies = transfer.payload_bytes * transfer.routing.topk
    inside, outside = copies * (local - 1) / it.ranks, copies * (it.ranks - local) / it.ranks
    seconds = inside / (1e9 * link_rate(it.architecture, topology.scale_up, local))
    if domains > 1:
        seconds = max(seconds, outside / scale_out_rate(topology))
    return seconds, inside, outside, 0
