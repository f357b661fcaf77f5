"""NCCL's tuner a second time: plain, straight from the text of the facts, on the facts' own example graphs.

Shares nothing with underlap.cost. Every rule stands as nccl_model.yaml words it, so that a reader can compare the two.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

FACTS = yaml.safe_load((Path(__file__).parents[3] / "shared" / "facts" / "nccl_model.yaml").read_text())
PROTO = ["LL", "LL128", "Simple"]
ORDER = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
ARCH = {"A100": "ampere", "H100": "hopper", "B200": "blackwell"}

# nChannels, bwIntra, bwInter of 8-GPU machines: (one node, several nodes), and of NVLS
RING = {"A100": ([12, 20, 20], [8, 24, 24]), "H100": ([12, 30, 30], [8, 48, 48]), "B200": ([16, 45, 45], [8, 48, 48])}
NVLS = {"A100": (None, None), "H100": ([8, 40, 60], [8, 45, 48]), "B200": ([8, 90, 90], [8, 48, 48])}


def pairs(gpu: str, coll: str, nodes: int, sharp: bool) -> list[tuple[str, str]]:
    out = []
    for algo in ORDER:
        if coll == "all_reduce" and algo == "pat":
            continue
        if coll in ("all_gather", "reduce_scatter") and algo in ("tree", "collnet_chain", "nvls_tree"):
            continue
        if algo == "pat":
            continue  # one rank per node only; the machines here have eight
        if algo.startswith("collnet") and (nodes == 1 or not sharp or coll != "all_reduce"):
            continue
        if algo == "collnet_direct" and gpu == "A100":
            continue  # no multicast machine in the product either
        if algo.startswith("nvls") and gpu == "A100":
            continue
        if algo == "nvls_tree" and nodes == 1:
            continue
        if algo == "nvls" and nodes > 1 and (not sharp or coll != "all_reduce"):
            continue
        for proto in PROTO:
            if algo not in ("tree", "ring") and proto != "Simple":
                continue
            out.append((algo, proto))
    return out


def alg_bw(gpu: str, coll: str, algo: str, proto: str, nodes: int, amd: bool) -> float:
    arch, n, ppn = ARCH[gpu], 8 * nodes, 8
    col = 0 if nodes == 1 else 1 if nodes == 2 else 2
    ch, intra, inter = RING[gpu][nodes > 1]
    per = FACTS["per_channel_GBps"]
    bw = intra if nodes <= 2 or algo.startswith("collnet") else inter
    if algo in ("nvls", "nvls_tree"):
        ch, intra, inter = NVLS[gpu][nodes > 1]
        eff = {"hopper": 0.85, "blackwell": 0.74}[arch]
        ib = intra * eff * (ch - 1) / ch
        ib *= 2 if coll == "all_reduce" else (ppn - 1) / ppn
        xb = inter * (2 if algo == "nvls_tree" and nodes == 2 else 1)
        bw = min(ib, xb)
        if algo == "nvls_tree":
            bw = min(bw, per["nvls_tree"][arch][col])
    bus = ch * bw
    row = arch if nodes == 1 else ("ampere" if amd else "volta")
    ll_max = per["ll_max"][row][col]
    if algo == "ring":
        bus = {"LL": min(ll_max, 0.5 * bus), "LL128": min(0.92 * bus, ch * per["ring_ll128"][arch]), "Simple": bus}[proto]
    if algo == "tree":
        bus = min(0.92 * bus, ch * per["tree"][arch][col])
        if proto == "LL":
            bus = min(bus / 3.8, ll_max)
        if proto == "LL128":
            bus = min(bus * 7 / 9 if nodes == 1 else bus * 120 / 128, ch * per["tree_ll128"][arch][col])
    if algo == "collnet_direct":
        f = ppn / ch
        f = f - (f - 1) / 2
        bus = bus / f * (0.85 if arch != "ampere" else 1)
    if coll == "all_reduce":
        return bus * (n / (2 * (n - 1)) if algo in ("ring", "nvls", "nvls_tree") else 0.5)
    return bus * (n / (n - 1) if algo == "ring" else 1)


def latency(coll: str, algo: str, proto: str, nodes: int, amd: bool) -> float:
    i, n, ppn = PROTO.index(proto), 8 * nodes, 8
    short = algo if algo in ("tree", "ring", "pat") else "collnet" if algo.startswith("collnet") else "nvls"
    base = FACTS["base_latency_us"][short][i]
    intra = FACTS["hw_latency_us"]["nvlink"][algo][i]
    inter = FACTS["hw_latency_us"]["net"][algo][i]
    if algo == "ring":
        nsteps = 2 * (n - 1) if coll == "all_reduce" else n - 1
        n_inter = 0 if nodes == 1 else 2 * (nodes - 1) if coll == "all_reduce" else nodes - 1
        if nodes > 1:
            overhead = (2 if amd else 1) * (3 if proto == "Simple" else 1)
            intra = max(intra, overhead)
        return base + (nsteps - n_inter) * intra + n_inter * inter
    if algo == "tree":
        return base + 2 * ((ppn - 1) * intra + math.floor(math.log2(nodes)) * inter)
    if algo == "nvls":
        return intra + (inter if nodes > 1 else 0)
    if algo == "nvls_tree":
        return intra + 2 * math.floor(math.log2(nodes)) * inter
    if algo == "collnet_direct":
        return 2 * (min(1, ppn - 1) * intra + (ppn - 1) * 0.4) + inter
    assert algo == "collnet_chain"
    return 2 * (ppn - 1) * intra + inter


def communicator_channels(gpu: str, nodes: int, sharp: bool) -> int:
    ch, intra, _ = RING[gpu][nodes > 1]
    count = min(64, 2 * ch)
    if sharp and nodes > 1:
        count = int(1.5 * count)
    if gpu != "A100" and nodes > 1 and intra > 45 and count < 16:
        count *= 2
    return count


def time_us(gpu: str, coll: str, algo: str, proto: str, nodes: int, nbytes: int, amd: bool, sharp: bool) -> float:
    bw = alg_bw(gpu, coll, algo, proto, nodes, amd)
    lat = latency(coll, algo, proto, nodes, amd)
    if coll == "all_reduce" and nbytes >= 64:
        index = math.floor(math.log2(nbytes / 64))
        if algo == "tree" and index <= 22:
            bw *= FACTS["tree_correction"][proto][index]
        if algo == "nvls_tree" and gpu == "B200" and index <= 23:
            bw *= FACTS["tree_correction"]["Simple"][index]
    full = nbytes / (communicator_channels(gpu, nodes, sharp) * 8 * nodes) >= 64
    if algo == "ring" and proto == "Simple" and coll == "all_reduce" and nodes > 1 and full:
        lat *= 1.4
    return lat + nbytes / (1000 * bw)


def choose(gpu: str, coll: str, nodes: int, nbytes: int, amd: bool, sharp: bool) -> tuple[str, str, float]:
    best: Any = None
    for algo, proto in pairs(gpu, coll, nodes, sharp):
        if alg_bw(gpu, coll, algo, proto, nodes, amd) <= 0:
            continue
        time = time_us(gpu, coll, algo, proto, nodes, nbytes, amd, sharp)
        if best is None or time < best[2]:
            best = (algo, proto, time)
    return best
