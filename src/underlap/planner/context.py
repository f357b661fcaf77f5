"""The core of attention, and what context parallelism makes of it.

ring      keys and values go from neighbor to neighbor, a block at a time (Ring Attention, arXiv 2310.01889). Blocks are laid
          out so that causal work is even over ranks (striped or zigzag): after its own block, each rank has half of each other.
ulysses   an all-to-all turns parts of the sequence into parts of the heads, and back (DeepSpeed-Ulysses, arXiv 2309.14509)

Unfused, as Megatron had it before FlashAttention (Korthikanti et al. 2022, arXiv 2205.05198, figure 3): `unfused`.
"""

from __future__ import annotations

import dataclasses

import msgspec

from underlap.cost.work import ELEMENT_BYTES, Attention
from underlap.planner import unfused
from underlap.planner.drafting import Draft
from underlap.planner.shapes import WIDE, Shapes
from underlap.workload import Decode, Prefill, Train


def core(draft: Draft, shapes: Shapes) -> None:
    """qkv -> context; in prefill and decode also -> cache."""
    if isinstance(shapes.workload, Prefill):
        _keep(draft, shapes)
    if isinstance(shapes.workload, Decode):
        _cached(draft, shapes)
    elif _unfused(shapes):
        unfused.core(draft, shapes)
    elif shapes.layout.cp == 1:
        draft.compute("attention.core", _whole(shapes), "qkv", f"context {_sums(draft, shapes)}")
    elif shapes.layout.context == "ulysses":
        _ulysses(draft, shapes)
    else:
        _ring(draft, shapes)


def core_backward(draft: Draft, shapes: Shapes) -> None:
    """Gradient of context -> gradient of qkv."""
    if _unfused(shapes):
        unfused.core_backward(draft, shapes)
    elif shapes.layout.cp == 1:
        work = _backward(_whole(shapes))
        draft.compute("attention.core", work, "qkv context attention.sums grad.context", "grad.qkv")
    elif shapes.layout.context == "ulysses":
        _ulysses_backward(draft, shapes)
    else:
        _ring_backward(draft, shapes)


def _sums(draft: Draft, shapes: Shapes, name: str = "attention.sums") -> str:
    """The log-sum-exp of each query and head, which the backward makes the probabilities from again."""
    return draft.buffer(name, shapes.tokens, shapes.heads, dtype=WIDE)


def _unfused(shapes: Shapes) -> bool:
    return isinstance(shapes.workload, Train) and shapes.workload.attention == "unfused"


def _backward(work: Attention) -> Attention:
    """The same attention, backward."""
    return msgspec.structs.replace(work, backward=True)


def _whole(shapes: Shapes, *, heads: int | None = None, kv_heads: int | None = None) -> Attention:
    """Attention of whole sequences over some heads."""
    return Attention(
        batch=shapes.sequences,
        heads=heads or shapes.heads,
        kv_heads=kv_heads or shapes.kv_heads,
        query=shapes.context,
        context=shapes.context,
        head_dim=shapes.model.head_dim,
        value_dim=shapes.model.value_dim,
        window=shapes.model.sliding_window,
        precision=shapes.activation,
    )


def _cache_width(shapes: Shapes) -> int:
    """What is kept of one token and layer on one rank, in elements: keys and values, or the latent that all heads share."""
    latent = shapes.model.latent
    return shapes.key_width if latent is None else latent.kv_rank + latent.rope_head_dim


def _keep(draft: Draft, shapes: Shapes) -> None:
    """What a decode reads, of this rank's tokens: a copy in memory, as serving engines have a kernel of its own for it
    (vLLM: reshape_and_cache). Rows are tokens, so that parts of a prompt are parts of it."""
    new = shapes.tokens * _cache_width(shapes)
    draft.buffer("cache", shapes.tokens, _cache_width(shapes), persistent=True)
    draft.compute("attention.append", shapes.stream(new, new), "latent" if shapes.model.latent else "qkv", "cache")


def _cached(draft: Draft, shapes: Shapes) -> None:
    """One new token per sequence: its keys and values join the cache, attention reads all of it."""
    model = shapes.model
    width = _cache_width(shapes)
    draft.buffer("cache", shapes.sequences, shapes.context, width, persistent=True)
    new = shapes.tokens * width
    draft.compute("attention.append", shapes.stream(new, new), "qkv cache", "cache")
    work = Attention(
        batch=shapes.sequences,
        heads=shapes.heads,
        # The latent is one key of all heads, read once (absorbed form, DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
        kv_heads=shapes.kv_heads if model.latent is None else 1,
        query=1,
        context=shapes.context,
        head_dim=model.head_dim if model.latent is None else model.latent.kv_rank + model.latent.rope_head_dim,
        value_dim=model.value_dim if model.latent is None else model.latent.kv_rank,
        shared_values=model.latent is not None,
        window=model.sliding_window,
        precision=shapes.activation,
    )
    draft.compute("attention.core", work, "qkv cache", "context")


# ---- Ulysses


@dataclasses.dataclass(frozen=True, slots=True)
class _Exchange:
    """An all-to-all between parts of the sequence and parts of the heads."""

    role: str
    source: str
    result: str
    width: int


def _exchanges(draft: Draft, shapes: Shapes) -> tuple[_Exchange, _Exchange]:
    """Of queries, keys and values before the core; of the result behind it."""
    cp = shapes.layout.cp
    draft.buffer("qkv.heads", shapes.tokens * cp, shapes.qkv_width // cp)
    draft.buffer("context.heads", shapes.tokens * cp, shapes.context_width // cp)
    return (
        _Exchange("attention.to_heads", "qkv", "qkv.heads", shapes.qkv_width),
        _Exchange("attention.to_tokens", "context.heads", "context", shapes.context_width),
    )


def _exchange(draft: Draft, shapes: Shapes, step: _Exchange) -> None:
    payload = shapes.tokens * step.width * ELEMENT_BYTES[shapes.activation]
    draft.collective(step.role, "cp", "all_to_all", payload, step.source, step.result)


def _of_heads(shapes: Shapes) -> Attention:
    cp = shapes.layout.cp
    return _whole(shapes, heads=shapes.heads // cp, kv_heads=max(1, shapes.kv_heads // cp))


def _ulysses(draft: Draft, shapes: Shapes) -> None:
    before, behind = _exchanges(draft, shapes)
    _exchange(draft, shapes, before)
    cp = shapes.layout.cp
    sums = draft.buffer("attention.sums.heads", shapes.tokens * cp, shapes.heads // cp, dtype=WIDE)
    draft.compute("attention.core", _of_heads(shapes), "qkv.heads", f"context.heads {sums}")
    _exchange(draft, shapes, behind)


def _ulysses_backward(draft: Draft, shapes: Shapes) -> None:
    before, behind = _exchanges(draft, shapes)
    draft.buffer("grad.qkv.heads", *draft.buffers["qkv.heads"].shape)
    draft.buffer("grad.context.heads", *draft.buffers["context.heads"].shape)
    _exchange(draft, shapes, dataclasses.replace(behind, source="grad.context", result="grad.context.heads"))
    work = _backward(_of_heads(shapes))
    reads = "qkv.heads context.heads attention.sums.heads grad.context.heads"
    draft.compute("attention.core", work, reads, "grad.qkv.heads")
    _exchange(draft, shapes, dataclasses.replace(before, source="grad.qkv.heads", result="grad.qkv"))


# ---- ring


def _block(shapes: Shapes, step: int) -> Attention:
    """Own block: causal. Any other, in a balanced order: all queries against half of the keys, or half against all."""
    keys = shapes.query if step == 0 else max(1, shapes.query // 2)
    return Attention(
        batch=shapes.sequences,
        heads=shapes.heads,
        kv_heads=shapes.kv_heads,
        query=shapes.query,
        context=keys,
        head_dim=shapes.model.head_dim,
        value_dim=shapes.model.value_dim,
        causal=step == 0,
        precision=shapes.activation,
    )


def _blocks(draft: Draft, shapes: Shapes, prefix: str, *, own: bool) -> list[str]:
    """One buffer for the keys and values (or their gradients) that each step works on."""
    names = [f"{prefix}{step}" for step in range(shapes.layout.cp)]
    for name in names[0 if own else 1 :]:
        draft.buffer(name, shapes.tokens, shapes.key_width)
    return names


def _ring(draft: Draft, shapes: Shapes) -> None:
    steps = shapes.layout.cp
    keys = _blocks(draft, shapes, "keys", own=True)
    width = shapes.tokens * shapes.key_width
    message = draft.message("cp", width * ELEMENT_BYTES[shapes.activation])
    draft.compute("attention.pack", shapes.stream(width, width), "qkv", keys[0])
    result = shapes.tokens * shapes.context_width
    whole = f"context {_sums(draft, shapes)}"
    draft.buffer("context.block", shapes.tokens, shapes.context_width)
    block = f"context.block {_sums(draft, shapes, 'attention.sums.block')}"
    for step in range(steps):
        draft.compute("attention.core", _block(shapes, step), f"qkv {keys[step]}", block if step else whole, part=(step, steps))
        if step:
            # Both results are rescaled by their softmax sums and added.
            work = shapes.stream(2 * result, result)
            draft.compute("attention.merge", work, f"{whole} {block}", whole, part=(step - 1, steps - 1))
        if step + 1 < steps:
            draft.issue("attention.ring", "cp", message, keys[step], keys[step + 1], part=(step, steps - 1))
            draft.wait("attention.ring", part=(step, steps - 1))


def _ring_backward(draft: Draft, shapes: Shapes) -> None:
    """Keys and values go around again; their gradients follow one step behind and end where they belong: one message more than
    twice the forward's. Gradients travel in the activations' precision; implementations that add them up in fp32 send twice that.
    """
    steps = shapes.layout.cp
    keys, gradients = _blocks(draft, shapes, "keys", own=True), _blocks(draft, shapes, "grad.keys", own=True)
    home = draft.buffer("grad.keys.home", shapes.tokens, shapes.key_width)
    width = shapes.tokens * shapes.key_width
    message = draft.message("cp", width * ELEMENT_BYTES[shapes.activation])
    for step in range(steps):
        work = _backward(_block(shapes, step))
        carried = f" {gradients[step]}" if step else ""
        reads = f"qkv {keys[step]} context attention.sums grad.context{carried}" + (" grad.qkv" if step else "")
        draft.compute("attention.core", work, reads, f"grad.qkv {gradients[step]}", part=(step, steps))
        if step + 1 < steps:
            draft.issue("attention.ring", "cp", message, keys[step], keys[step + 1], part=(step, steps - 1))
            draft.wait("attention.ring", part=(step, steps - 1))
        following = gradients[step + 1] if step + 1 < steps else home
        draft.issue("attention.ring_gradient", "cp", message, gradients[step], following, part=(step, steps))
        draft.wait("attention.ring_gradient", part=(step, steps))
    draft.compute("attention.unpack", shapes.stream(2 * width, width), f"grad.qkv {home}", "grad.qkv")
