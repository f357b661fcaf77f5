"""Isolated time of a transfer on a machine: NCCL's tuned collectives, messages, all-to-alls, and the kernels beside NCCL.

The algorithm is the one that NCCL takes by its own estimate; the time is that estimate with the constants of calibration.yaml;
the user's measurements override it. Does not model contention (sharing.py), late ranks, or what the host needs to launch.

For a what-if on bandwidth hold the choice (Transfer.algorithm and .protocol): NCCL's own choice is not always the quickest, so
that a faster link may lead it to a slower protocol, as on the machine.
"""

from __future__ import annotations

import math

import msgspec

from underlap.cost import nccl
from underlap.cost.calibration import UNCALIBRATED, Calibration, calibration_of, symmetric_kernels_of
from underlap.cost.communicator import DEFAULT, Settings, communicator, given_ctas
from underlap.cost.expert_parallel import price_expert_transfer
from underlap.cost.hardware import Topology
from underlap.cost.measured import Measured
from underlap.cost.messages import price_pairwise, price_send, rates
from underlap.cost.transfer_cost import NOTHING, TransferCost, collective_links, memory_bytes, pairwise_links
from underlap.cost.work import Transfer
from underlap.errors import OptionError

OTHER_ALGORITHMS = ("pairwise", "direct", "hierarchical", "copy_engine", "symmetric", "forwarded", "low_latency")
"""Beside those of NCCL's tuner (nccl.ALGORITHMS)."""


def price(
    transfer: Transfer,
    topology: Topology,
    *,
    settings: Settings = DEFAULT,
    calibration: Calibration | None = None,
    measured: Measured | None = None,
) -> TransferCost:
    """What the transfer takes while nothing else runs.

    `calibration` None: the constants of the processor's generation; UNCALIBRATED: NCCL's own estimate as it is.
    Raises OptionError where the group does not fit the machine, or the algorithm does not exist for it.
    """
    cost = _modelled(transfer, topology, settings, calibration)
    if measured is None or cost is NOTHING:
        return cost
    time = measured.time_ns(transfer.collective, transfer.placed, transfer.payload_bytes)
    if time is None:
        note = f"{measured.source} has no {transfer.collective} over {transfer.ranks} ranks: modelled"
        return msgspec.structs.replace(cost, assumptions=(*cost.assumptions, note))
    return msgspec.structs.replace(cost, time_ns=time, latency_ns=min(time, cost.latency_ns), measured=True)


def _modelled(transfer: Transfer, topology: Topology, settings: Settings, calibration: Calibration | None) -> TransferCost:
    if transfer.ranks == 1 or transfer.payload_bytes == 0:
        return NOTHING
    it, assumed = communicator(topology, transfer.placed, settings)
    if calibration is None:
        calibration = calibration_of(topology.processor.architecture)
        if calibration is None:
            calibration = UNCALIBRATED
            assumed = (*assumed, f"no measurements for architecture {topology.processor.architecture}: NCCL's estimate as it is")
    cost = _by_algorithm(transfer, topology, settings, it, calibration)
    return msgspec.structs.replace(cost, assumptions=(*assumed, *cost.assumptions))


def _by_algorithm(  # noqa: PLR0911 (one per kind of algorithm)
    transfer: Transfer, topology: Topology, settings: Settings, it: nccl.Communicator, calibration: Calibration
) -> TransferCost:
    algorithm = transfer.algorithm
    if algorithm is not None and algorithm not in nccl.ALGORITHMS and algorithm not in OTHER_ALGORITHMS:
        known = ", ".join((*nccl.ALGORITHMS, *OTHER_ALGORITHMS))
        raise OptionError(f"Unknown algorithm {algorithm!r} of a transfer: expected one of {known}")
    if algorithm == "hierarchical":
        return _hierarchical(transfer, topology, settings, calibration)
    if algorithm == "copy_engine":
        return _copy_engine(transfer, topology, it)
    if algorithm == "symmetric":
        return _symmetric(transfer, it)
    if transfer.collective in ("dispatch", "combine") and algorithm in (None, "forwarded", "low_latency"):
        return price_expert_transfer(transfer, topology, it)
    if transfer.collective == "all_to_all" and algorithm in (None, "pairwise"):
        return price_pairwise(transfer, topology, settings, it, calibration)
    if transfer.collective == "send" and algorithm in (None, "direct"):
        sent = price_send(transfer, topology, settings, it, calibration)
        return _gathered(sent, transfer, topology, settings, calibration) if transfer.gathered > 1 else sent
    if transfer.collective in nccl.TUNED:
        return _tuned(transfer, settings, it, calibration)
    raise OptionError(f"There is no {transfer.collective} by {algorithm}: leave the algorithm out")


def _gathered(
    sent: TransferCost, transfer: Transfer, topology: Topology, settings: Settings, calibration: Calibration
) -> TransferCost:
    """A message in parts, and then the gather of the parts (Narayanan et al., arXiv 2104.04473, section 4.1).

    It holds the message's multiprocessors only: the gather is a kernel of its own, which does not wait for a peer stage.
    """
    whole = Transfer(collective="all_gather", payload_bytes=transfer.payload_bytes * transfer.gathered, ranks=transfer.gathered)
    gather = price(whole, topology, settings=settings, calibration=calibration)
    return msgspec.structs.replace(
        sent,
        time_ns=sent.time_ns + gather.time_ns,
        latency_ns=sent.latency_ns + gather.latency_ns,
        hbm_bytes=sent.hbm_bytes + gather.hbm_bytes,
        scale_up_bytes=sent.scale_up_bytes + gather.scale_up_bytes,
        assumptions=(*sent.assumptions, *gather.assumptions),
    )


# Collectives that NCCL tunes ----------------------------------------------------------------------------------------------------


def _tuned(transfer: Transfer, settings: Settings, it: nccl.Communicator, calibration: Calibration) -> TransferCost:
    collective, payload = transfer.collective, transfer.payload_bytes
    existing = nccl.candidates(it, collective)
    wanted = tuple(
        candidate
        for candidate in existing
        if (transfer.algorithm is None or candidate.algorithm == transfer.algorithm)
        and (transfer.protocol is None or candidate.protocol == transfer.protocol)
        and (settings.algorithms is None or candidate.algorithm in settings.algorithms)
        and (settings.protocols is None or candidate.protocol in settings.protocols)
    )
    if not wanted:
        known = ", ".join(f"{candidate.algorithm} {candidate.protocol}" for candidate in existing)
        raise OptionError(f"No {collective} of {it.ranks} ranks on {it.nodes} domains as asked for: there are {known}")
    chosen = nccl.choose(it, collective, payload, wanted)
    ctas, share = given_ctas(nccl.channels_of_call(it, chosen.algorithm, chosen.protocol, payload), transfer, settings)
    latency = 1000 * nccl.latency_us(it, collective, chosen, payload) * calibration.latency_factor(chosen.protocol, it.nodes)
    moving = _bandwidth_ns(it, collective, chosen, payload) / share
    if chosen.algorithm == "ring" and collective in ("all_reduce", "all_gather", "reduce_scatter"):
        moving += calibration.local_ns(payload / it.ranks)
    up, out = collective_links(collective, chosen.algorithm, payload, transfer.placed)
    return TransferCost(
        time_ns=latency + moving,
        latency_ns=latency,
        algorithm=chosen.algorithm,
        protocol=chosen.protocol,
        ctas=ctas,
        hbm_bytes=memory_bytes(collective, chosen.algorithm, payload, it.ranks),
        scale_up_bytes=up,
        scale_out_bytes=out,
    )


def _bandwidth_ns(it: nccl.Communicator, collective: str, chosen: nccl.Candidate, payload: float) -> float:
    """Bytes over bandwidth, with NCCL's correction of trees made monotone: a larger message never takes less.

    The correction jumps up at some powers of two; there the time at the end of the size class below holds.
    """
    own = payload / (chosen.algorithm_bandwidth * nccl.correction(it, collective, chosen, payload))
    if chosen.algorithm not in ("tree", "nvls_tree") or collective != "all_reduce":
        return own
    ends = (64.0 * 2**step for step in range(1, 25))
    below = [
        end / (chosen.algorithm_bandwidth * nccl.correction(it, collective, chosen, end - 1)) for end in ends if end <= payload
    ]
    return float(max([own, *below]))


# Composed and special algorithms ------------------------------------------------------------------------------------------------


def _hierarchical(transfer: Transfer, topology: Topology, settings: Settings, calibration: Calibration) -> TransferCost:
    """In phases, inside the domains and across them with one rank per domain each, one after the other.

    All-reduce: reduce-scatter inside, all-reduce across, all-gather inside. All-gather and reduce-scatter: two phases.
    All-to-all: the domain first exchanges by position, then each position across the domains.
    """
    local, nodes = transfer.placed
    payload = transfer.payload_bytes
    plans = {
        "all_reduce": (("reduce_scatter", payload, False), ("all_reduce", payload / local, True), ("all_gather", payload, False)),
        "all_gather": (("all_gather", payload / local, True), ("all_gather", payload, False)),
        "reduce_scatter": (("reduce_scatter", payload, False), ("reduce_scatter", payload / local, True)),
        "all_to_all": (("all_to_all", payload, False), ("all_to_all", payload, True)),
    }
    if transfer.collective not in plans:
        raise OptionError(f"There is no hierarchical {transfer.collective}: expected one of {', '.join(plans)}")
    phases = [
        _modelled(
            Transfer(
                collective=collective,
                payload_bytes=nbytes,
                ranks=nodes if across else local,
                span=(1, nodes) if across else (local, 1),
                uneven=transfer.uneven,
                ctas=transfer.ctas,
            ),
            topology,
            settings,
            calibration,
        )
        for collective, nbytes, across in plans[transfer.collective]
    ]
    return TransferCost(
        time_ns=sum(phase.time_ns for phase in phases),
        latency_ns=sum(phase.latency_ns for phase in phases),
        algorithm="hierarchical",
        protocol=None,
        ctas=max(phase.ctas for phase in phases),
        hbm_bytes=sum(phase.hbm_bytes for phase in phases),
        scale_up_bytes=sum(phase.scale_up_bytes for phase in phases),
        scale_out_bytes=sum(phase.scale_out_bytes for phase in phases),
    )


def _copy_engine(transfer: Transfer, topology: Topology, it: nccl.Communicator) -> TransferCost:
    """All-gather and all-to-all by copy engines, without an SM (NCCL_CTA_POLICY_ZERO, since 2.28; across domains 2.30.6).

    One copy per peer, submitted by the host one after the other; the copies then share the links.
    """
    if transfer.collective not in ("all_gather", "all_to_all"):
        raise OptionError(f"Copy engines do no {transfer.collective}: expected all_gather or all_to_all")
    inside, between = rates(topology, it)
    if transfer.collective == "all_gather":
        up, out = collective_links("all_gather", "ring", transfer.payload_bytes, transfer.placed)
        local = it.ranks // it.nodes
        if it.nodes > 1:  # no ring: each rank's part goes to each other rank directly
            up, out = pairwise_links(transfer.payload_bytes, (local, it.nodes))
    else:
        up, out = pairwise_links(transfer.payload_bytes, transfer.placed)
    latency = (it.ranks - 1) * float(topology.processor.launch_ns) + topology.scale_up.latency_ns
    if it.nodes > 1:
        assert topology.scale_out is not None
        latency += topology.scale_out.latency_ns
    return TransferCost(
        time_ns=latency + 1e9 * transfer.uneven * max(up / inside, out / between),
        latency_ns=latency,
        algorithm="copy_engine",
        protocol=None,
        ctas=0,
        hbm_bytes=memory_bytes(transfer.collective, "copy_engine", transfer.payload_bytes, it.ranks),
        scale_up_bytes=up,
        scale_out_bytes=out,
        assumptions=(f"one copy per peer, each submitted in {topology.processor.launch_ns} ns",),
    )


def _symmetric(transfer: Transfer, it: nccl.Communicator) -> TransferCost:
    """Kernels on symmetric memory that reduce and multicast in the switch; few CTAs fill the links.

    All-reduce: as quick as NVLS of the tuner at most. All-gather and reduce-scatter: what a ring fills of the links at most.
    CTAs of NCCL's own kernels (src/sym_kernels.cc): ceil(16 / n) on Hopper, ceil(32 / n) on Blackwell.
    """
    kernels = symmetric_kernels_of(it.architecture)
    if (
        transfer.collective not in ("all_reduce", "all_gather", "reduce_scatter")
        or it.nodes > 1
        or it.nvls is None
        or kernels is None
    ):
        raise OptionError(
            f"There is no symmetric-memory {transfer.collective} over {it.nodes} domains here: expected an all-reduce, "
            "all-gather or reduce-scatter in one domain with multicast, on a processor that it was measured on (Hopper)"
        )
    own = math.ceil((32 if it.architecture == "blackwell" else 16) / it.ranks)
    ctas = own if transfer.ctas is None else transfer.ctas
    if ctas < 1:
        raise OptionError(f"{transfer.collective} with {ctas} thread blocks: expected 1 or more, or the algorithm copy_engine")
    ring = 1e9 * it.graph.channels * it.graph.intra * it.ranks / (it.ranks - 1)
    if transfer.collective == "all_reduce":
        nvls = (candidate for candidate in nccl.candidates(it, "all_reduce") if candidate.algorithm == "nvls")
        rate = min(1e9 * next(nvls).algorithm_bandwidth, ctas * kernels.reduce_cta_bytes_per_s)
    elif transfer.collective == "reduce_scatter":
        rate = min(ring, ctas * kernels.reduce_cta_bytes_per_s)
    else:
        rate = min(ring, ctas * kernels.gather_cta_bytes_per_s * it.ranks**2 / (it.ranks - 1))
    up, out = collective_links(transfer.collective, "symmetric", transfer.payload_bytes, transfer.placed)
    return TransferCost(
        time_ns=kernels.latency_ns + 1e9 * transfer.payload_bytes / rate,
        latency_ns=kernels.latency_ns,
        algorithm="symmetric",
        protocol=None,
        ctas=ctas,
        hbm_bytes=memory_bytes(transfer.collective, "symmetric", transfer.payload_bytes, it.ranks),
        scale_up_bytes=up,
        scale_out_bytes=out,
    )
