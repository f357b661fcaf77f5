"""What a machine can do: processors, links, and how they are put together. Peaks only; efficiencies live with the costs."""

from __future__ import annotations

import msgspec


class Processor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device: a GPU, another accelerator, or a core of a CPU."""

    name: str
    architecture: str
    """volta, ampere, hopper, blackwell, cdna3, ..., cpu or other: what tuning constants are chosen by."""
    sms: int | None
    """Streaming multiprocessors or compute units in the product; None where the source does not say."""
    peak_flops: dict[str, float]
    """Dense FLOP/s by precision: fp32, tf32, bf16, fp16, fp8, fp4."""
    memory_bytes: int
    """What a program can count on."""
    memory_bytes_per_s: float
    copy_engines: int
    launch_ns: int
    """What the host needs to submit one kernel."""
    source: str


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connects devices: a scale-up domain (NVLink, xGMI, PCIe) or a scale-out fabric (InfiniBand, Ethernet)."""

    name: str
    bytes_per_s: float
    """In one direction, per device, over all its ports."""
    latency_ns: int
    """One hop, software excluded."""
    switched: bool
    """True where any pair of devices gets the whole bandwidth; False for a mesh of direct links."""
    per_peer_bytes_per_s: float | None = None
    """What one pair gets, where that is less."""
    in_network_reduction: bool = False
    """NVLS in a scale-up domain, SHARP on a fabric."""
    source: str


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices in scale-up domains on a scale-out fabric: what a collective has to know of the machine."""

    processor: Processor
    domain: int
    """Devices per scale-up domain."""
    scale_up: Link
    scale_out: Link | None
    """None where there is one domain only."""
    nics_per_device: float = 1.0
    oversubscription: float = 1.0
    """Of the fabric, >= 1: how many times the devices' bandwidth exceeds what the fabric carries."""
