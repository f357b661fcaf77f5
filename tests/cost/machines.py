"""Machines to price on, with round figures of the products."""

from __future__ import annotations

from underlap.cost.hardware import Link, Processor, Topology


def processor(architecture: str = "hopper", sms: int | None = 132, bf16: float = 989e12, hbm: float = 3.35e12) -> Processor:
    return Processor(
        name=f"a {architecture} GPU",
        architecture=architecture,
        sms=sms,
        peak_flops={"bf16": bf16, "fp8": 2 * bf16, "fp32": bf16 / 15},
        memory_bytes=80 * 2**30,
        memory_bytes_per_s=hbm,
        copy_engines=4,
        launch_ns=3000,
        source="test",
    )


def link(rate: float, *, name: str = "NVLink", reduces: bool = False, per_peer: float | None = None) -> Link:
    return Link(
        name=name,
        bytes_per_s=rate,
        latency_ns=500,
        switched=per_peer is None,
        per_peer_bytes_per_s=per_peer,
        in_network_reduction=reduces,
        source="test",
    )


def dgx_a100(up: float = 300e9, out: float = 25e9) -> Topology:
    gpu = processor("ampere", 108, 312e12, 2.039e12)
    return Topology(processor=gpu, domain=8, scale_up=link(up), scale_out=link(out, name="InfiniBand"))


def dgx_h100(up: float = 450e9, out: float = 50e9, *, sharp: bool = False, domain: int = 8) -> Topology:
    fabric = link(out, name="InfiniBand", reduces=sharp)
    return Topology(processor=processor(), domain=domain, scale_up=link(up, reduces=True), scale_out=fabric)


def dgx_b200(up: float = 900e9, out: float = 50e9) -> Topology:
    gpu = processor("blackwell", 148, 2250e12, 7.7e12)
    return Topology(processor=gpu, domain=8, scale_up=link(up, reduces=True), scale_out=link(out, name="InfiniBand"))


def mi300x() -> Topology:
    gpu = processor("cdna3", 304, 1307e12, 5.3e12)
    mesh = link(448e9, name="Infinity Fabric", per_peer=64e9)
    return Topology(processor=gpu, domain=8, scale_up=mesh, scale_out=link(50e9, name="Ethernet"))


BY_ARCHITECTURE = {"ampere": dgx_a100, "hopper": dgx_h100, "blackwell": dgx_b200}
