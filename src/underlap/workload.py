"""`Workload`: what one step of the job works on: training, prefill or decode.

It does not model queues of requests, mixed batches of prefill and decode, or sequences of unequal length.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]
Recompute = Literal["none", "selective", "full"]


class Train(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="train"):
    """One optimizer step."""

    gbs: int
    """Sequences per step, over all ranks."""
    mbs: int = 1
    """Sequences per micro-batch on one data-parallel rank."""
    seq: int
    """Tokens per sequence, before cp divides it."""
    recompute: Recompute = "none"
    """selective: the core of attention only (Korthikanti 2022); full: every layer."""
    precision: Precision = "bf16"
    """Of the matrix products."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What gradients are reduced in."""
    imbalance: float = 1.0
    """Tokens of the busiest rank of an expert group over the mean, >= 1."""


class Prefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="prefill"):
    """One forward pass over whole prompts."""

    batch: int
    """Prompts, over all ranks."""
    mbs: int | None = None
    """Prompts per micro-batch on one data-parallel rank; None: all of the rank's."""
    seq: int
    """Tokens per prompt."""
    precision: Precision = "bf16"
    imbalance: float = 1.0


class Decode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="decode"):
    """One new token for each running sequence."""

    batch: int
    """Running sequences, over all ranks."""
    mbs: int | None = None
    """Sequences per micro-batch on one data-parallel rank; None: all of the rank's."""
    context: int
    """Tokens already in the cache, per sequence."""
    precision: Precision = "bf16"
    imbalance: float = 1.0


Workload = Train | Prefill | Decode
