"""`Workload`: what one step of the job works on: training, prefill or decode.

It does not model queues of requests, mixed batches of prefill and decode, or sequences of unequal length.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec

from underlap.documents import nearest, require, require_choice, require_counts, shown
from underlap.layout import Layout
from underlap.model import Model
from underlap.text_form import made, pairs, whole

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
    attention: Literal["fused", "unfused"] = "fused"
    """fused: one kernel that never writes the scores; unfused: products, softmax and dropout on their own, as in 2022."""
    imbalance: float = 1.0
    """Tokens of the busiest rank of an expert group over the mean, >= 1."""

    def __post_init__(self) -> None:
        require_counts(self, "gbs", "mbs", "seq", largest=2**40)
        _check(self)


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

    def __post_init__(self) -> None:
        require_counts(self, "batch", "mbs", "seq", largest=2**40)
        _check(self)


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

    def __post_init__(self) -> None:
        require_counts(self, "batch", "mbs", "context", largest=2**40)
        _check(self)


Workload = Train | Prefill | Decode


_CHOICES = {
    "recompute": get_args(Recompute),
    "precision": get_args(Precision),
    "gradients": ("fp32", "bf16", "fp16"),
    "attention": ("fused", "unfused"),
}


def _check(record: Train | Prefill | Decode) -> None:
    for field in set(record.__struct_fields__) & set(_CHOICES):
        require_choice(record, field, _CHOICES[field])
    holds = math.isfinite(record.imbalance) and 1 <= record.imbalance <= 1e6
    require(holds, f"imbalance is {record.imbalance}: expected the busiest rank's tokens over the mean, 1 or more")


def sequences(workload: Workload) -> int:
    """Of one step, over all ranks."""
    return workload.gbs if isinstance(workload, Train) else workload.batch


def micro_batch_size(workload: Workload, layout: Layout) -> int:
    """Sequences per micro-batch on one data-parallel rank."""
    return workload.mbs or max(1, sequences(workload) // layout.data_parallel)


def micro_batches(workload: Workload, layout: Layout) -> int:
    """Micro-batches of one data-parallel rank in a step. The workload has been checked against the layout."""
    return sequences(workload) // (layout.data_parallel * micro_batch_size(workload, layout))


def tokens_per_sequence(workload: Workload) -> int:
    """That pass through the model: 1 in decode."""
    return 1 if isinstance(workload, Decode) else workload.seq


def tokens(workload: Workload) -> int:
    """Of one step, over all ranks."""
    return sequences(workload) * tokens_per_sequence(workload)


def check_workload(workload: Workload, layout: Layout, model: Model) -> None:
    """Raises OptionError, with the two numbers, where sequences or tokens cannot be divided as the layout asks."""
    total = "gbs" if isinstance(workload, Train) else "batch"
    per_rank = workload.mbs or 1
    product = layout.data_parallel * per_rank
    count = sequences(workload)
    text = f"workload: {total}={count} is not divisible by dp * fsdp * mbs = {layout.dp} * {layout.fsdp} * {per_rank} = {product}"
    require(count % product == 0, f"{text}: use a multiple of {product}")
    _check_pipeline(micro_batches(workload, layout), layout)
    _check_tokens(workload, layout)
    unfused = isinstance(workload, Train) and workload.attention == "unfused"
    text = f"workload: attention=unfused with cp={layout.cp}: scores over several ranks are not modeled"
    require(layout.cp == 1 or not unfused, f"{text}: leave one of them out")
    longest = workload.context + 1 if isinstance(workload, Decode) else workload.seq
    enough = model.positions == "rope" or longest <= model.learned_positions
    text = f"workload: {longest} tokens, but {model.name} has learned_positions={model.learned_positions}"
    require(enough, f"{text}: shorten the sequence")


def _check_pipeline(count: int, layout: Layout) -> None:
    if layout.schedule == "interleaved":
        # Megatron's interleaved schedule runs micro-batches in rounds of pp (arXiv 2104.04473, section 2.2).
        fits = count % layout.pp == 0
        text = f"workload: {count} micro-batches are not divisible by pp={layout.pp}, as the interleaved schedule asks"
        require(fits, f"{text}: change gbs, mbs or dp")
    if layout.schedule == "dualpipev":
        # deepseek-ai/DualPipe, dualpipev.py: num_chunks >= num_ranks * 2
        text = f"workload: {count} micro-batches are fewer than 2 * pp = {2 * layout.pp}, as dualpipev asks"
        require(count >= 2 * layout.pp, f"{text}: raise gbs, or lower mbs or dp")


def _check_tokens(workload: Workload, layout: Layout) -> None:
    name, length = ("context", workload.context) if isinstance(workload, Decode) else ("seq", workload.seq)
    # A causal ring gives each rank one piece from the front and one from the back, so that all have equally much to do.
    pieces = 2 * layout.cp if layout.context == "ring" and layout.cp > 1 and not isinstance(workload, Decode) else layout.cp
    what = f"2 * cp = {pieces} (ring)" if pieces != layout.cp else f"cp={layout.cp}"
    require(length % pieces == 0, f"workload: {name}={length} is not divisible by {what}: use a multiple of {pieces}")
    if layout.sp:
        per_rank = micro_batch_size(workload, layout)
        per_rank *= 1 if isinstance(workload, Decode) else workload.seq // layout.cp
        text = f"workload: {per_rank} tokens per micro-batch and rank are not divisible by tp={layout.tp}, as sp asks"
        require(per_rank % layout.tp == 0, f"{text}: use a multiple of {layout.tp}, or leave sp out")


_KINDS: dict[str, type[Train] | type[Prefill] | type[Decode]] = {"train": Train, "prefill": Prefill, "decode": Decode}


def parse_workload(text: str) -> Workload:
    """The Workload of `train,gbs=256,mbs=1,seq=8192,recompute=full`, `prefill,batch=8,seq=4096`, `decode,batch=64,context=4096`.

    Raises OptionError that starts with "workload:" and names the part.
    """
    kind, _, rest = text.partition(",")
    kind = kind.strip()
    require(
        kind in _KINDS, f"workload: {shown(kind)}: expected it to start with train, prefill or decode; {nearest(kind, _KINDS)}"
    )
    record = _KINDS[kind]
    fields: dict[str, Any] = {}
    for key, given in pairs(rest, "workload", record.__struct_fields__).items():
        value = given or ""
        if key in _CHOICES:
            require(value in _CHOICES[key], f"workload: {key}={shown(value)[1:-1]}: {nearest(value, _CHOICES[key])}")
            fields[key] = value
        elif key == "imbalance":
            fields[key] = _number(value)
        else:
            fields[key] = whole(value, "workload", key)
    for field in msgspec.structs.fields(record):
        missing = field.required and field.name not in fields
        require(not missing, f"workload: {field.name} is missing: expected {kind},...,{field.name}=...")
    return made("workload", lambda: record(**fields))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        require(False, f"workload: imbalance={shown(text)[1:-1]}: expected a number of 1 or more, such as 1.2")
        raise


def workload_text(workload: Workload) -> str:
    """The one-line form of a Workload, without what is as by default; `parse_workload` reverses it."""
    kind = next(name for name, record in _KINDS.items() if isinstance(workload, record))
    parts = [kind]
    for field in msgspec.structs.fields(workload):
        value = getattr(workload, field.name)
        if field.required or value != field.default:
            parts.append(f"{field.name}={value!r}" if isinstance(value, float) else f"{field.name}={value}")
    return ",".join(parts)
