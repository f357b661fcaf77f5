"""Measured tables of ../shared/facts as records, and the machines that they were measured on. Computes no figure."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from underlap.cost.hardware import Link, Processor, Topology
from underlap.cost.work import Routing, Transfer

FACTS = Path(__file__).parents[2] / "shared" / "facts"
MIB = 2**20

GENERATIONS = {"a100_sxm": "ampere", "h100_sxm": "hopper", "gb200": "blackwell"}
"""Systems of the NCCL tables, and the generation whose constants they give."""


def machine(system: str, oversubscription: float = 1.0) -> Topology:
    """A machine of the measured tables; figures from hardware.yaml of the facts."""
    architecture, sms, bf16, memory, hbm, link, domain, nic = {
        "a100_sxm": ("ampere", 108, 312e12, 80, 2039e9, 300e9, 8, 25e9),
        "h100_sxm": ("hopper", 132, 989e12, 80, 3350e9, 450e9, 8, 50e9),
        "h200_sxm": ("hopper", 132, 989e12, 141, 4800e9, 450e9, 8, 50e9),
        "b200_sxm": ("blackwell", 148, 2250e12, 180, 7700e9, 900e9, 8, 50e9),
        "gb200": ("blackwell", 152, 2500e12, 185, 8000e9, 900e9, 4, 50e9),
        "mi300x": ("cdna3", 304, 1307e12, 192, 5300e9, 448e9, 8, 50e9),
    }[system]
    source = "hardware.yaml of the facts"
    mesh = system == "mi300x"
    return Topology(
        processor=Processor(
            name=system,
            architecture=architecture,
            sms=sms,
            peak_flops={"bf16": bf16},
            memory_bytes=memory * 2**30,
            memory_bytes_per_s=hbm,
            copy_engines=4,
            launch_ns=3000,
            source=source,
        ),
        domain=domain,
        scale_up=Link(
            name="Infinity Fabric" if mesh else "NVLink",
            bytes_per_s=link,
            latency_ns=500,
            switched=not mesh,
            per_peer_bytes_per_s=64e9 if mesh else None,
            in_network_reduction=architecture in ("hopper", "blackwell"),
            source=source,
        ),
        scale_out=Link(name="InfiniBand", bytes_per_s=nic, latency_ns=1000, switched=True, source=source),
        oversubscription=oversubscription,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One measured transfer."""

    system: str
    transfer: Transfer
    us: float


def nccl_rows(smallest: int = MIB) -> list[Row]:
    """nccl_single_node_measured.csv from a size on."""
    with (FACTS / "nccl_single_node_measured.csv").open(newline="") as file:
        return [
            Row(
                found["system"],
                Transfer(
                    collective=found["op"].replace("alltoall", "all_to_all"),
                    payload_bytes=float(found["size_bytes"]),
                    ranks=int(found["num_gpus"]),
                ),
                float(found["time_us"]),
            )
            for found in csv.DictReader(file)
            if int(found["size_bytes"]) >= smallest
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class ExpertRow:
    """One measured dispatch or combine; time with its exchange of counts (notify)."""

    system: str
    nodes: int
    sms: int
    tokens: int
    transfer: Transfer
    us: float


def expert_rows(fewest_tokens: int = 1024) -> list[ExpertRow]:
    """deepep_normal_vs_sms_nodes.csv: DeepEP with FP8 dispatch and BF16 combine. A node has 8 GPUs, on GB200 4."""
    rows = []
    with (FACTS / "deepep_normal_vs_sms_nodes.csv").open(newline="") as file:
        for found in csv.DictReader(file):
            tokens, nodes, hidden = int(found["num_token"]), int(found["node_num"]), int(found["hidden_size"])
            if tokens < fewest_tokens:
                continue
            local = machine(found["system"]).domain
            for kind, element in (("dispatch", 1), ("combine", 2)):
                transfer = Transfer(
                    collective=kind,
                    payload_bytes=tokens * hidden * element,
                    ranks=local * nodes,
                    span=(local, nodes),
                    routing=Routing(topk=int(found["num_topk"]), experts=int(found["num_experts"])),
                    ctas=int(found[f"{kind}_sms"]),
                )
                us = float(found[f"{kind}_transmit_us"]) + float(found[f"{kind}_notify_us"])
                rows.append(ExpertRow(found["system"], nodes, int(found[f"{kind}_sms"]), tokens, transfer, us))
    return rows


def multimem_rows() -> list[Row]:
    """tokenweave_h100_figure_7.csv: all-reduce by multimem kernels on 8 H100, by CTAs, bf16."""
    rows = []
    with (FACTS / "tokenweave_h100_figure_7.csv").open(newline="") as file:
        for found in csv.DictReader(file):
            for ctas in (2, 4, 8, 16, 32):
                transfer = Transfer(
                    collective="all_reduce",
                    payload_bytes=2.0 * int(found["BL"]) * int(found["hidden_size"]),
                    ranks=8,
                    algorithm="symmetric",
                    ctas=ctas,
                )
                rows.append(Row("h100_sxm", transfer, float(found[f"multimem_ar_us_ctas_{ctas}"])))
    return rows
