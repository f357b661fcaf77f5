"""`Layout`: how a model is spread over ranks, and which ranks form the groups of each axis.

world = pp * dp * fsdp * cp * tp. Experts live on a second mesh over the ranks of one pipeline stage:
ep * etp * edp = dp * fsdp * cp * tp. Sequence parallelism (sp) is a form of tp and has no ranks of its own.
It does not model layouts that differ between layers, nor pipeline stages of uneven width.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipev"]
ContextKind = Literal["ring", "ulysses"]
DENSE_AXES = ("tp", "cp", "fsdp", "dp", "pp")
"""The dimensions of the mesh of ranks."""
EXPERT_AXES = ("etp", "ep", "edp")
"""The dimensions of the experts' mesh, innermost first."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """How the groups of an axis lie in the machine."""

    axis: str
    dimensions: tuple[str, ...]
    """The mesh dimensions that the axis is made of, innermost first."""
    size: int
    """Ranks per group."""
    ranks_per_domain: int
    """Members in one scale-up domain, at most."""
    domains: int
    """Scale-up domains that one group touches, at most."""
    uniform: bool
    """True where every group lies alike, with the same number of members in each domain it touches."""

    @property
    def span(self) -> tuple[int, int]:
        """(ranks per domain, domains), as a Transfer has it."""
        return self.ranks_per_domain, self.domains


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Degrees of parallelism. Data parallel = dp replicas, each sharded over fsdp ranks (HSDP where both exceed 1)."""

    dp: int = 1
    """Replicas."""
    fsdp: int = 1
    """Ranks that one replica's states are sharded over."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism inside an expert; None: as tp."""
    sp: bool = False
    """Sequence parallelism beside tp: reduce-scatter and all-gather in place of all-reduce."""
    zero: int | None = None
    """What is sharded: 1 optimizer states, 2 and gradients, 3 and parameters. None: 3 where fsdp > 1, else 0. Where fsdp
    is 1 the states are sharded over dp (Megatron's distributed optimizer)."""
    schedule: Schedule = "1f1b"
    virtual: int = 1
    """Model chunks per rank of the interleaved schedule."""
    context: ContextKind = "ring"
    """What cp does."""
    order: tuple[str, ...] | None = None
    """The dimensions of the mesh, innermost first; None: see `axis_order`."""
