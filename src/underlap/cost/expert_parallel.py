"""Dispatch and combine of a mixture of experts, as kernels that forward inside the domain do them (DeepEP): by SMs and domains.

Each token crosses to each other domain once and is forwarded there to every rank that has an expert for it. The time is the
longest of what the SMs move, what NVLink carries and what the NICs carry, after a fixed start and one exchange of counts.
Does not model stragglers in the exchange of counts, nor the low-latency kernels that send by RDMA only.
"""

from __future__ import annotations

import math

from underlap.cost import nccl
from underlap.cost.calibration import expert_kernels_of
from underlap.cost.communicator import link_rate, scale_out_rate
from underlap.cost.formulas import expert_parallel_domain_bytes, reached_ranks
from underlap.cost.hardware import Topology
from underlap.cost.transfer_cost import TransferCost
from underlap.cost.work import Transfer
from underlap.errors import OptionError

DEFAULT_SMS = 20
"""Of DeepEP (Buffer.num_sms) and of the DeepSeek-V3 report."""


def price_expert_transfer(transfer: Transfer, topology: Topology, it: nccl.Communicator) -> TransferCost:
    """Time of one dispatch or combine; payload: the rank's tokens, each once, in the precision that is sent.

    The counts are exchanged over the network in log2(domains) rounds, there and back, each of NCCL's network latency.
    """
    assert transfer.routing is not None
    routing, (local, domains) = transfer.routing, transfer.placed
    kernels = expert_kernels_of(topology.processor.architecture)
    assumed: tuple[str, ...] = ()
    if kernels is None:
        kernels = expert_kernels_of("hopper")
        assert kernels is not None
        assumed = (f"no measured expert kernels for architecture {topology.processor.architecture}: those of hopper were taken",)
    sms = DEFAULT_SMS if transfer.ctas is None else transfer.ctas
    if sms < 1:
        raise OptionError(f"{transfer.collective} with {sms} SMs: expected 1 or more")
    limits = (routing.topk, routing.experts, (local, domains), routing.domains_per_token)
    inside, outside = expert_parallel_domain_bytes(transfer.payload_bytes, *limits)
    handled = transfer.payload_bytes * reached_ranks(*limits) + outside  # the own rank's tokens are copied too
    rate = kernels.sm_bytes_per_s if domains == 1 else kernels.sm_bytes_per_s_between
    link = 1e9 * link_rate(it.architecture, topology.scale_up, local)
    seconds = [handled / (sms * rate), inside / link]
    latency = kernels.dispatch_ns if transfer.collective == "dispatch" else kernels.combine_ns
    if domains > 1:
        one_hop = nccl.tables()["hardware_latency_us"]["net"]["ring"][2]
        latency += 2 * math.ceil(math.log2(domains)) * 1000 * one_hop
        seconds.append(outside / scale_out_rate(topology))
    return TransferCost(
        time_ns=latency + 1e9 * transfer.uneven * max(seconds),
        latency_ns=latency,
        algorithm="forwarded",
        protocol=None,
        ctas=sms,
        hbm_bytes=3 * (inside + outside) + 2 * transfer.payload_bytes,
        scale_up_bytes=inside,
        scale_out_bytes=outside,
        assumptions=assumed,
    )
