"""`Policy`: how each axis overlaps: which passes rewrite its schedule, in order, and which resources it runs on.

By default nothing overlaps. A pass moves work; a resource change lets the same work run on something else. They are kept
apart because their gains are: the first hides, the second removes contention or shortens.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PassName = Literal[
    "bucket",
    "prefetch",
    "split_batch",
    "pair_forward_backward",
    "decompose",
    "ring",
    "async_p2p",
    "delay_wgrad",
    "shared_expert",
]
ResourceName = Literal["copy_engine", "ctas", "in_network"]
POLICY_AXES = ("tp", "cp", "ep", "pp", "fsdp", "dp")


class Pass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rewriting of the schedule."""

    name: PassName
    parameter: int | None = None
    """bucket: bytes; prefetch: layers ahead; split_batch: parts; decompose: chunks; None: the pass's own default."""


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the axis's transfers run on, instead of the default."""

    name: ResourceName
    parameter: int | None = None
    """ctas: thread blocks."""


class AxisPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one axis does."""

    passes: tuple[Pass, ...] = ()
    """In the order in which they are applied."""
    resources: tuple[Resource, ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every axis does; an axis that says nothing does not overlap."""

    tp: AxisPolicy = AxisPolicy()
    cp: AxisPolicy = AxisPolicy()
    ep: AxisPolicy = AxisPolicy()
    pp: AxisPolicy = AxisPolicy()
    fsdp: AxisPolicy = AxisPolicy()
    dp: AxisPolicy = AxisPolicy()
