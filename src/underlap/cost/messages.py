"""Isolated time of messages, and of all-to-alls, which are built of them. NCCL has no cost for these: the formulas are ours.

Latency, protocol and channels are NCCL's; the bandwidth is what its search fills of NVLink and of a NIC.
"""

from __future__ import annotations

import math

from underlap.cost import nccl
from underlap.cost.calibration import Calibration
from underlap.cost.communicator import Settings, given_ctas, link_rate, scale_out_rate
from underlap.cost.hardware import Topology
from underlap.cost.transfer_cost import TransferCost, memory_bytes, pairwise_links
from underlap.cost.work import Transfer
from underlap.errors import OptionError

_PER_BATCH = 8
"""Peers of an all-to-all whose messages share one work batch of a channel. Source: NCCL src/enqueue.cc."""
_LL_SHARE = 0.5
"""Of the bandwidth, as in NCCL's cost of rings: LL sends a flag with each datum."""


def rates(topology: Topology, it: nccl.Communicator) -> tuple[float, float]:
    """Bytes per second of one rank (inside its domain, between domains), as NCCL's search fills the links."""
    local = max(it.ranks // it.nodes, 1)
    inside = nccl.ring_graph(
        it.architecture, max(local, 2), 1, link_rate(it.architecture, topology.scale_up, max(local, 2)), None
    )
    between = math.inf
    if it.nodes > 1:
        # What the search takes of a NIC, the same share on any: 48 of 50 GB/s.
        alone = nccl.ring_graph(it.architecture, it.nodes, it.nodes, math.inf, scale_out_rate(topology) / 1e9)
        between = 1e9 * alone.channels * alone.intra
    return 1e9 * inside.channels * inside.intra, between


def price_pairwise(
    transfer: Transfer, topology: Topology, settings: Settings, it: nccl.Communicator, calibration: Calibration
) -> TransferCost:
    """Each pair exchanges its part directly.

    One hop per work batch of peers that the channels carry at once, the slower of both links by the largest rank's share, and the
    own part copied beside them. The fewer channels of small messages cost no bandwidth: so it is on groups of 2 and 4 GPUs.
    """
    channels = nccl.message_channels(it)
    each, small = nccl.channels_of_message(it, transfer.payload_bytes / it.ranks)
    ctas, share = given_ctas(min(channels, each * it.ranks), transfer, settings)
    up, out = pairwise_links(transfer.payload_bytes, transfer.placed)
    inside, between = rates(topology, it)
    remote = it.ranks - it.ranks // it.nodes
    rounds = math.ceil(remote / channels) if remote else math.ceil(it.ranks / (channels * _PER_BATCH))
    moving = 1e9 * transfer.uneven * max(up / inside, out / between) / share
    own = calibration.local_ns(transfer.uneven * transfer.payload_bytes / it.ranks)
    time, latency, protocol = _quicker(it, small, rounds, moving, calibration)
    return TransferCost(
        time_ns=time + own,
        latency_ns=latency,
        algorithm="pairwise",
        protocol=protocol,
        ctas=ctas,
        hbm_bytes=memory_bytes("all_to_all", "pairwise", transfer.payload_bytes, it.ranks),
        scale_up_bytes=up,
        scale_out_bytes=out,
    )


def price_send(
    transfer: Transfer, topology: Topology, settings: Settings, it: nccl.Communicator, calibration: Calibration
) -> TransferCost:
    """One message from one rank to another, in the same domain or not."""
    if it.ranks != 2:
        raise OptionError(f"A send has 2 ranks: the transfer has {it.ranks}")
    payload = transfer.payload_bytes
    inside, between = rates(topology, it)
    if topology.scale_up.per_peer_bytes_per_s is not None and not topology.scale_up.switched:
        inside = min(inside, topology.scale_up.per_peer_bytes_per_s)
    crossing = it.nodes > 1
    each, small = nccl.channels_of_message(it, payload)
    ctas, share = given_ctas(each, transfer, settings)
    time, latency, protocol = _quicker(it, small, 1, 1e9 * payload / (between if crossing else inside) / share, calibration)
    return TransferCost(
        time_ns=time,
        latency_ns=latency,
        algorithm="direct",
        protocol=protocol,
        ctas=ctas,
        hbm_bytes=memory_bytes("send", "direct", payload, 2),
        scale_up_bytes=0.0 if crossing else payload,
        scale_out_bytes=payload if crossing else 0.0,
    )


def _quicker(
    it: nccl.Communicator, small: bool, rounds: int, moving_ns: float, calibration: Calibration
) -> tuple[float, float, str]:
    """(time, latency, protocol): NCCL sends small messages by LL; where that would take longer (slow links) it counts as Simple.

    So a larger message never takes less.
    """
    data = nccl.tables()
    row = data["hardware_latency_us"]["net" if it.nodes > 1 else ("nvlink" if it.nvlink else "pci")]
    found = []
    for protocol, share in (("LL", _LL_SHARE), ("Simple", 1.0)) if small else (("Simple", 1.0),):
        at = nccl.PROTOCOLS.index(protocol)
        latency = 1000.0 * (data["base_latency_us"]["ring"][at] + rounds * row["ring"][at])
        latency *= calibration.latency_factor(protocol, it.nodes)
        found.append((latency + moving_ns / share, latency, protocol))
    return min(found)
