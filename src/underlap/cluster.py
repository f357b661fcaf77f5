"""`Cluster`: a named machine: its topology, how many GPUs the job gets, and where each number comes from."""

from __future__ import annotations

import msgspec

from underlap.cost.hardware import Topology


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one kind in scale-up domains on a fabric."""

    name: str
    topology: Topology
    gpus: int
    """Of the job."""
    sources: dict[str, str]
    """For each number, by its path in the YAML (scale_up.bandwidth): the preset or file and the source it names."""

    @property
    def domains(self) -> int:
        """Scale-up domains that the job's GPUs fill, the last one perhaps in part."""
        return -(-self.gpus // self.topology.domain)
