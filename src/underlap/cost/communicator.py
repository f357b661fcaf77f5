"""From the machine to what NCCL's model wants to know of it, with every assumption on the way said aloud."""

from __future__ import annotations

import functools

import msgspec

from underlap.cost import nccl
from underlap.cost.hardware import Link, Topology
from underlap.cost.work import Transfer
from underlap.errors import OptionError

TABLES = ("volta", "ampere", "hopper", "blackwell")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the user runs the library: what the machine alone does not settle."""

    amd_cpu: bool | None = None
    """Host processors by AMD; None: taken as no, and said so where it matters."""
    sharp: bool = True
    """The SHARP plug-in is enabled where the fabric reduces."""
    nvls: bool = True
    """NCCL_NVLS_ENABLE."""
    algorithms: frozenset[str] | None = None
    """NCCL_ALGO; None: all."""
    protocols: frozenset[str] | None = None
    """NCCL_PROTO; None: all."""
    max_ctas: int | None = None
    """NCCL_MAX_CTAS."""


DEFAULT = Settings()


def communicator(topology: Topology, span: tuple[int, int], settings: Settings) -> tuple[nccl.Communicator, tuple[str, ...]]:
    """The communicator of a group with `span` = (ranks per domain, domains), and what was assumed about it.

    Raises OptionError where the group does not fit the machine.
    """
    local, nodes = span
    if local > topology.domain:
        raise OptionError(
            f"A group with {local} ranks per scale-up domain does not fit: the machine has {topology.domain} devices per domain"
        )
    if nodes > 1 and topology.scale_out is None:
        raise OptionError(f"A group over {nodes} domains needs a scale-out link: the machine has none")
    sharp = settings.sharp and nodes > 1 and topology.scale_out is not None and topology.scale_out.in_network_reduction
    nic = None if nodes == 1 else scale_out_rate(topology) / 1e9
    return _communicator(topology.processor.architecture, topology.scale_up, nic, sharp, span, settings)


@functools.lru_cache(maxsize=4096)
def _communicator(
    architecture: str, scale_up: Link, nic: float | None, sharp: bool, span: tuple[int, int], settings: Settings
) -> tuple[nccl.Communicator, tuple[str, ...]]:
    local, nodes = span
    row, assumed = tables_of(architecture)
    ranks = local * nodes
    link = link_rate(row, scale_up, local)
    switch = scale_up.in_network_reduction and settings.nvls
    if nodes > 1 and settings.amd_cpu is None:
        assumed = (*assumed, "host processors taken as not AMD (NCCL's tables for LL and host overhead differ)")
    if not _known(scale_up):
        assumed = (*assumed, f"{scale_up.name}: NCCL's search taken to count on 80 % of its rate")
    made = nccl.Communicator(
        architecture=row,
        ranks=ranks,
        nodes=nodes,
        graph=nccl.ring_graph(row, ranks, nodes, link, nic),
        nvls=nccl.nvls_graph(row, ranks, nodes, link, nic) if switch else None,
        nvlink=not _pcie(scale_up),
        amd_cpu=bool(settings.amd_cpu),
        sharp=sharp,
    )
    return made, assumed


def given_ctas(own: int, transfer: Transfer, settings: Settings) -> tuple[int, float]:
    """(CTAs, share of the bandwidth) of a call that would take `own`: fewer carry proportionally less, more change nothing."""
    limits = [limit for limit in (transfer.ctas, settings.max_ctas) if limit is not None]
    given = min([own, *limits])
    if given < 1:
        raise OptionError(f"{transfer.collective} with {given} thread blocks: expected 1 or more, or the algorithm copy_engine")
    return given, given / own


def tables_of(architecture: str) -> tuple[str, tuple[str, ...]]:
    """The row of NCCL's tables for an architecture, and the assumption where it is another's."""
    if architecture in TABLES:
        return architecture, ()
    return "ampere", (f"no NCCL tables for architecture {architecture}: those of ampere were taken",)


def _pcie(link: Link) -> bool:
    return "pcie" in link.name.lower()


def _known(link: Link) -> bool:
    return _pcie(link) or "nvlink" in link.name.lower()


def link_rate(row: str, link: Link, local: int) -> float:
    """GB/s per device that a group of `local` ranks in one domain can count on, as NCCL's search sees the links.

    On a mesh a pair has its own link only: the fewer ranks, the fewer links.
    """
    line = link.bytes_per_s
    if not link.switched and link.per_peer_bytes_per_s is not None and local > 1:
        line = min(line, (local - 1) * link.per_peer_bytes_per_s)
    line /= 1e9
    if _pcie(link):
        return float(line * nccl.tables()["pcie_share"])
    if not _known(link):
        return 0.8 * line
    return nccl.searched_link_rate(row, line)


def scale_out_rate(topology: Topology) -> float:
    """Bytes per second that a device gets across an oversubscribed fabric when all use it."""
    assert topology.scale_out is not None
    return topology.scale_out.bytes_per_s / topology.oversubscription
