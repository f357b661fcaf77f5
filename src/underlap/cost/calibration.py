"""Constants that measurements add to NCCL's own model and to the models of kernels that it has no cost for; per generation.

All are in calibration.yaml with their source, and tools/fit_costs.py prints them again from the measured tables.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import msgspec
import yaml


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Three constants on top of NCCL's tuning model. The choice of algorithm stays NCCL's own; they change the time only.

    The latency factors were found inside one scale-up domain and are used there; the third is used everywhere.
    """

    latency_ll: float = 1.0
    """Factor on the latency of LL and LL128."""
    latency_simple: float = 1.0
    """Factor on the latency of Simple."""
    local_bytes_per_s: float | None = None
    """At which a rank moves its own share of the result beside the transfer (out of place); None: at no cost."""
    source: str = "none: NCCL's own estimate as it is"

    def latency_factor(self, protocol: str, nodes: int) -> float:
        """On the latency of a call over so many domains."""
        if nodes > 1:
            return 1.0
        return self.latency_simple if protocol == "Simple" else self.latency_ll

    def local_ns(self, nbytes: float) -> float:
        """Time in which a rank moves its own share of the result."""
        return 0.0 if self.local_bytes_per_s is None else 1e9 * nbytes / self.local_bytes_per_s


class ExpertKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels of mixtures of experts (DeepEP): what one SM moves, and what a call costs before it moves anything."""

    sm_bytes_per_s: float
    """Of one SM inside a domain."""
    sm_bytes_per_s_between: float
    """Of one SM where tokens also cross domains and are forwarded."""
    dispatch_ns: float
    combine_ns: float
    source: str


class SymmetricKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels on symmetric memory that reduce and multicast in the switch (multimem)."""

    latency_ns: float
    reduce_cta_bytes_per_s: float
    """Of an all-reduce or reduce-scatter, bytes of the whole buffer per CTA."""
    gather_cta_bytes_per_s: float
    """Of an all-gather, bytes received per CTA and rank: one store reaches all ranks."""
    source: str


UNCALIBRATED = Calibration()


@functools.cache
def _file() -> Any:
    return yaml.safe_load((resources.files("underlap.cost") / "calibration.yaml").read_text())


@functools.cache
def calibration_of(architecture: str) -> Calibration | None:
    """The constants of a generation; None where nothing was measured."""
    found = _file()["nccl"].get(architecture)
    return None if found is None else msgspec.convert(found, Calibration)


@functools.cache
def expert_kernels_of(architecture: str) -> ExpertKernels | None:
    found = _file()["expert_kernels"].get(architecture)
    return None if found is None else msgspec.convert(found, ExpertKernels)


@functools.cache
def symmetric_kernels_of(architecture: str) -> SymmetricKernels | None:
    found = _file()["symmetric_kernels"].get(architecture)
    return None if found is None else msgspec.convert(found, SymmetricKernels)
