"""NCCL's own tuning model: which algorithm and protocol it takes, and how long it believes that a call takes.

The tables are NCCL's (nccl.yaml, version inside); the formulas are those of its src/graph/tuning.cc. Latencies here are in
microseconds and bandwidths in GB/s, as there, so that both can be compared line by line; collectives.py turns them into ns.

The topology search is not run on the user's machine: its result for the reference machine of the generation (a DGX) is scaled
with the links. So channel counts stay, and more bandwidth is never slower. Does not model congestion, launches or late ranks.
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import Any, NamedTuple

import yaml

PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""In NCCL's order: on a tie the earlier is taken."""

TUNED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Collectives that NCCL's model has a cost for; it has none for messages and what is built of them."""

_SIMPLE = 2
_PATTERNS = {
    "all_reduce": ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"),
    "all_gather": ("ring", "collnet_direct", "nvls", "pat"),
    "reduce_scatter": ("ring", "collnet_direct", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}


@functools.cache
def tables() -> Any:
    """The content of nccl.yaml."""
    return yaml.safe_load((resources.files("underlap.cost") / "nccl.yaml").read_text())


class Graph(NamedTuple):
    """Result of NCCL's topology search: channels, and GB/s of each inside a node and between nodes."""

    channels: int
    intra: float
    inter: float


class Communicator(NamedTuple):
    """What NCCL's model knows of a communicator. A node is a scale-up domain, however many hosts it has."""

    architecture: str
    """volta, ampere, hopper or blackwell: the row of the tables."""
    ranks: int
    nodes: int
    graph: Graph
    """Of ring, tree and collnet_chain."""
    nvls: Graph | None
    """None without multicast in the switches of the scale-up domain, or with one rank per node."""
    nvlink: bool
    """The ring stays on NVLink inside a node."""
    amd_cpu: bool
    sharp: bool
    """The fabric reduces, and the plug-in is enabled."""
    net_latency_us: float = 0.0
    """As the network plug-in states it; the common ones state none."""

    @property
    def per_node(self) -> float:
        return self.ranks / self.nodes

    @property
    def column(self) -> int:
        return min(self.nodes, 3) - 1


class Candidate(NamedTuple):
    """One algorithm and protocol with what NCCL believes of it."""

    algorithm: str
    protocol: str
    latency_us: float
    algorithm_bandwidth: float
    """GB/s: bytes over time, without latency."""
    bus_bandwidth: float
    """GB/s: what the slowest link carries."""


def searched_link_rate(architecture: str, line_rate: float) -> float:
    """GB/s that the search counts on, for NVLink of a line rate in GB/s and one direction."""
    link = tables()["nvlink"][architecture]
    return float(link["searched"] * (line_rate / link["line"]))


@functools.lru_cache(maxsize=4096)
def ring_graph(architecture: str, ranks: int, nodes: int, link: float, nic: float | None) -> Graph:
    """The graph of ring and tree on links of `link` GB/s as searched, and NICs of `nic` GB/s per device where nodes > 1.

    Source: src/graph/search.cc, in short: the speed whose channels fill the links best, the higher on a tie, then split in two.
    """
    data = tables()
    reference = data["reference"][architecture]
    reference_link = data["nvlink"][architecture]["searched"] * reference["links"]
    local = ranks // nodes
    if nodes == 1:
        channels, speed = _split(
            architecture, *_packed(data["speeds"]["intra"][architecture], data["max_ring_channels"], reference_link)
        )
        scaled = speed * link / reference_link
        return Graph(channels, scaled, scaled)
    assert nic is not None
    # A ring enters a node by one NIC and leaves by another: per channel one hop less than ranks is made on NVLink.
    per_channel = math.inf if local == 1 else reference_link * local / (local - 1)
    channels, speed = _packed(
        data["speeds"]["inter"][architecture], data["max_ring_channels"], per_channel, (reference["nic"], local)
    )
    by_link = math.inf if local == 1 else link * local / (local - 1) / channels
    channels, speed = _split(architecture, channels, min(speed * nic / reference["nic"], by_link), speed)
    return Graph(channels, speed, speed)


def _packed(speeds: list[float], most: int, link: float, nics: tuple[float, int] | None = None) -> tuple[int, float]:
    """(channels, speed) with the largest product."""

    def channels(speed: float) -> int:
        fit = math.inf if math.isinf(link) else link // speed
        if nics is not None:
            fit = min(fit, nics[1] * (nics[0] // speed))
        return int(min(most, fit))

    best = max(speeds, key=lambda speed: (round(channels(speed) * speed, 6), speed))
    return max(channels(best), 1), best


def _split(architecture: str, channels: int, speed: float, searched: float | None = None) -> tuple[int, float]:
    tested = speed if searched is None else searched
    newer = architecture in ("hopper", "blackwell")
    if tested >= 25 and not (newer and tested < 50 and channels > 4) and 2 * channels <= tables()["max_ring_channels"]:
        return 2 * channels, speed / 2
    return channels, speed


@functools.lru_cache(maxsize=4096)
def nvls_graph(architecture: str, ranks: int, nodes: int, link: float, nic: float | None) -> Graph | None:
    """The graph of the algorithms that reduce in the switch: one channel per local rank. None where there is no such graph."""
    data = tables()
    local = min(ranks // nodes, data["max_nvls_heads"])
    if local < 2 or data["nvls_efficiency"][architecture] == 0:
        return None
    reference = data["reference"][architecture]
    reference_link = data["nvlink"][architecture]["searched"] * reference["links"]
    speeds = data["speeds"]["intra" if nodes == 1 else "inter"][architecture]
    if nodes > 1:
        speeds = [speed for speed in speeds if speed <= reference["nic"]]
    intra = next((speed for speed in speeds if local * speed <= reference_link), speeds[-1])
    inter = max(speed for speed in speeds if speed < 2 * intra or speed == intra)
    wider = link / reference_link
    return Graph(local, intra * wider, inter * (wider if nodes == 1 or nic is None else nic / reference["nic"]))


@functools.lru_cache(maxsize=4096)
def candidates(communicator: Communicator, collective: str) -> tuple[Candidate, ...]:
    """All algorithms and protocols that exist for the collective, in NCCL's order."""
    found = []
    for algorithm in ALGORITHMS:
        if algorithm not in _PATTERNS[collective] or not _exists(communicator, collective, algorithm):
            continue
        for index, protocol in enumerate(PROTOCOLS):
            if algorithm not in ("tree", "ring") and index != _SIMPLE:
                continue
            if protocol == "LL128" and not (communicator.nvlink or communicator.per_node == 1):
                continue
            bus = _bus_bandwidth(communicator, collective, algorithm, index)
            bandwidth = bus * _ratio(communicator, collective, algorithm)
            if bandwidth > 0:
                latency = _latency(communicator, collective, algorithm, index)
                found.append(Candidate(algorithm, protocol, latency, bandwidth, bus))
    return tuple(found)


def _exists(it: Communicator, collective: str, algorithm: str) -> bool:
    if algorithm == "pat":
        return it.nodes > 1 and it.per_node == 1
    if algorithm.startswith("collnet"):
        switched = it.nvls is not None or algorithm == "collnet_chain"
        return it.nodes > 1 and it.sharp and it.per_node <= 8 and switched and collective == "all_reduce"
    if algorithm == "nvls_tree":
        return it.nodes > 1 and it.nvls is not None and it.nvls.channels >= 2
    if algorithm == "nvls":
        reduces = collective == "all_reduce"
        fits = it.sharp and reduces if it.nodes > 1 else reduces or it.per_node <= 32
        return fits and it.nvls is not None and it.nvls.channels >= 2
    return True


def _bus_bandwidth(it: Communicator, collective: str, algorithm: str, protocol: int) -> float:  # noqa: PLR0911 (a branch each)
    data, graph = tables(), it.graph
    if algorithm in ("nvls", "nvls_tree"):
        assert it.nvls is not None
        return it.nvls.channels * _nvls_channel(it, collective, algorithm, it.nvls)
    bus = graph.channels * (graph.intra if it.nodes <= 2 or algorithm.startswith("collnet") else graph.inter)
    if algorithm == "pat":
        return bus * 0.75
    if algorithm.startswith("collnet"):
        if algorithm == "collnet_chain":
            return bus
        spread = it.per_node / graph.channels
        bus /= spread - (spread - 1) / 2
        return bus * (0.85 if it.architecture in ("hopper", "blackwell") else 1.0)
    row = it.architecture if it.nodes == 1 else ("ampere" if it.amd_cpu else "volta")
    ll_max = data["ll_max"][row][it.column]
    per_channel = data["per_channel"]
    if algorithm == "ring":
        if protocol == 0:
            return float(min(ll_max, 0.5 * bus))
        return float(min(0.92 * bus, graph.channels * per_channel["ring_ll128"][it.architecture]) if protocol == 1 else bus)
    bus = min(0.92 * bus, graph.channels * per_channel["tree"][it.architecture][it.column])
    if protocol == 0:
        return float(min(bus / 3.8, ll_max))
    if protocol == 1:
        payload = bus * (7 / 9 if it.nodes == 1 else 120 / 128)
        return float(min(payload, graph.channels * per_channel["tree_ll128"][it.architecture][it.column]))
    return float(bus)


def _nvls_channel(it: Communicator, collective: str, algorithm: str, graph: Graph) -> float:
    """GB/s of one channel of NVLS or NVLSTree."""
    data = tables()
    inside = graph.intra * data["nvls_efficiency"][it.architecture] * (graph.channels - 1) / graph.channels
    inside *= 2 if collective == "all_reduce" else (it.per_node - 1) / it.per_node
    if algorithm == "nvls":
        return float(min(inside, graph.inter))
    outside = graph.inter * (2 if it.nodes == 2 else 1)
    return float(min(inside, outside, data["per_channel"]["nvls_tree"][it.architecture][it.column]))


def _ratio(it: Communicator, collective: str, algorithm: str) -> float:
    """Algorithm bandwidth over bus bandwidth."""
    n = it.ranks
    if collective in ("broadcast", "reduce"):
        return 1.0
    if collective == "all_reduce":
        return n / (2 * (n - 1)) if algorithm in ("ring", "nvls", "nvls_tree") else 0.5
    return n / (n - 1) if algorithm == "ring" else 1.0


def _latency(it: Communicator, collective: str, algorithm: str, protocol: int) -> float:  # noqa: PLR0911 (a branch per algorithm)
    data = tables()
    hardware, nodes, ranks = data["hardware_latency_us"], it.nodes, it.ranks
    base = float(data["base_latency_us"][algorithm][protocol])
    intra = float(hardware["nvlink" if it.nvlink else "pci"][algorithm][protocol])
    over_net = hardware["net"]["tree" if it.per_node == 1 else algorithm][protocol]
    inter = float(over_net) + it.net_latency_us * (2 if protocol == _SIMPLE else 1)
    local, rounds = int(it.per_node), math.floor(math.log2(nodes))
    if algorithm == "ring" and collective in ("broadcast", "reduce"):
        if nodes == 1:
            return base + intra
        return base + ranks * float(hardware["net"]["tree" if protocol == _SIMPLE else "ring"][protocol])
    if algorithm == "ring":
        steps, between = (2 * (ranks - 1), 2 * (nodes - 1)) if collective == "all_reduce" else (ranks - 1, nodes - 1)
        if nodes == 1:
            between = 0
        else:
            intra = max(intra, (2.0 if it.amd_cpu else 1.0) * (3 if protocol == _SIMPLE else 1))
        return base + (steps - between) * intra + between * inter
    if algorithm == "tree":
        return base + 2 * ((local - 1) * intra + rounds * inter)
    if algorithm == "collnet_direct":
        return base + 2 * (min(1, local - 1) * intra + (local - 1) * 0.4) + inter
    if algorithm == "collnet_chain":
        return base + 2 * (local - 1) * intra + inter
    if algorithm == "nvls":
        return base + intra + (inter if nodes > 1 else 0.0)
    if algorithm == "nvls_tree":
        return base + intra + 2 * rounds * inter
    return base + rounds * inter / 3.5 + 2.8 * ranks


def channels_of(it: Communicator) -> int:
    """Channels of the communicator (CTAs that a large ring or tree call takes). Source: src/graph/connect.cc."""
    count = min(64, 2 * it.graph.channels)
    if it.sharp and it.nodes > 1:
        count = min(64, int(count * 1.5))
    if it.architecture in ("hopper", "blackwell") and it.nodes > 1 and it.graph.intra > 45 and count < 16:
        count *= 2
    return count


def nvls_channels(it: Communicator) -> int:
    """CTAs of a call by NVLS or NVLSTree, at any size. Source: src/transport/nvls.cc."""
    count = int(tables()["nvls_channels"][it.architecture][it.column])
    return count if it.nodes == 1 else min(count, channels_of(it))


def channels_of_call(it: Communicator, algorithm: str, protocol: str, nbytes: float) -> int:
    """CTAs of one call: fewer than the communicator's channels where the message is small. Source: src/enqueue.cc."""
    if algorithm in ("nvls", "nvls_tree"):
        return nvls_channels(it)
    count = channels_of(it)
    if algorithm not in ("ring", "tree"):
        return count
    threads = 640 if protocol == "LL128" else 512
    if protocol == "Simple" and algorithm == "ring" and it.graph.channels * it.graph.intra <= 12:
        threads = 256
    threshold = {"LL": 8 * it.ranks if algorithm == "ring" else 8, "LL128": 8, "Simple": 64}[protocol]
    return max(1, min(count, int(nbytes // (threads * threshold))))


def message_channels(it: Communicator) -> int:
    """Channels for messages: those of the communicator, up to a power of two. Source: src/init.cc."""
    return int(min(64, 2 ** math.ceil(math.log2(channels_of(it)))))


def channels_of_message(it: Communicator, nbytes: float) -> tuple[int, bool]:
    """(channels, small enough for LL) of one message. Source: src/enqueue.cc.

    Inside a node a peer gets all links, over the network two channels; all peers at once have to fit. No part of a message is
    smaller than 64 KiB, and up to 16 KiB per channel go by LL.
    """
    all_channels = message_channels(it)
    most = all_channels if it.nodes == 1 else 2
    while most > 1 and most * it.ranks > all_channels:
        most //= 2
    count = int(max(1, min(most, math.ceil(nbytes / 65536))))
    return count, nbytes <= 16384 * count


def tuned_time_us(it: Communicator, collective: str, candidate: Candidate, nbytes: float) -> float:
    """NCCL's own estimate for one lone call, corrections included."""
    bandwidth = candidate.algorithm_bandwidth * correction(it, collective, candidate, nbytes)
    return latency_us(it, collective, candidate, nbytes) + nbytes / (1000 * bandwidth)


def latency_us(it: Communicator, collective: str, candidate: Candidate, nbytes: float) -> float:
    """Latency of one call: that of ring Simple between nodes grows where chunks are full."""
    full = nbytes / (channels_of(it) * it.ranks) >= 64
    if collective == "all_reduce" and candidate.algorithm == "ring" and candidate.protocol == "Simple" and it.nodes > 1 and full:
        return candidate.latency_us * (1.9 if it.architecture == "volta" else 1.4)
    return candidate.latency_us


def correction(it: Communicator, collective: str, candidate: Candidate, nbytes: float) -> float:
    """Factor on the bandwidth of trees by size."""
    if nbytes < 64 or collective != "all_reduce":
        return 1.0
    index = int(nbytes // 64).bit_length() - 1
    table = tables()["tree_correction"]
    if candidate.algorithm == "tree" and index <= 22:
        return float(table[candidate.protocol][index])
    if candidate.algorithm == "nvls_tree" and it.architecture == "blackwell" and index <= 23:
        return float(table["Simple"][index])
    return 1.0


def choose(it: Communicator, collective: str, nbytes: float, allowed: tuple[Candidate, ...]) -> Candidate:
    """The candidate with the least estimate; on a tie the earlier. `allowed` is not empty."""
    return min(allowed, key=lambda candidate: tuned_time_us(it, collective, candidate, nbytes))
