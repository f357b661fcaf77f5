"""The attention half of a layer, forward and backward: norm, projections, positions, the core, the sum over tp."""

from __future__ import annotations

from underlap.planner import linear
from underlap.planner.context import core, core_backward
from underlap.planner.drafting import Draft
from underlap.planner.shapes import Shapes
from underlap.planner.weights import head_norms


def forward(draft: Draft, shapes: Shapes) -> None:
    """hidden -> middle."""
    linear.norm(draft, shapes, "attention.norm", "hidden", "attention.normed")
    source = linear.gather_rows(draft, shapes, "attention.gather", "attention.normed")
    draft.buffer("qkv", shapes.tokens, shapes.qkv_width)
    _project(draft, shapes, source)
    _norm_heads(draft, shapes)
    width = shapes.tokens * shapes.qkv_width
    if shapes.model.positions == "rope":
        draft.compute("attention.rotary", shapes.stream(width, width, 3 * width), "qkv", "qkv")
    draft.buffer("context", shapes.tokens, shapes.context_width)
    core(draft, shapes)
    partial = draft.buffer("attention.partial", shapes.tokens, shapes.hidden)
    linear.forward(draft, shapes, "attention.output", _output(shapes), "context", partial)
    total = linear.sum_partials(draft, shapes, "attention.reduce", partial)
    draft.buffer("middle", shapes.rows, shapes.hidden)
    linear.residual(draft, shapes, "attention.residual", "hidden", total, "middle")


def backward(draft: Draft, shapes: Shapes) -> None:
    """Gradient of middle -> gradient of hidden."""
    whole = linear.gather_rows(draft, shapes, "attention.reduce", "grad.middle")
    draft.buffer("grad.context", shapes.tokens, shapes.context_width)
    linear.backward(draft, shapes, "attention.output", _output(shapes), "context", whole, "grad.context")
    draft.buffer("grad.qkv", shapes.tokens, shapes.qkv_width)
    core_backward(draft, shapes)
    width = shapes.tokens * shapes.qkv_width
    if shapes.model.positions == "rope":
        draft.compute("attention.rotary", shapes.stream(width, width, 3 * width), "grad.qkv", "grad.qkv")
    _norm_heads_backward(draft, shapes)
    source = linear.gather_rows(draft, shapes, "attention.gather_again", "attention.normed")
    partial = draft.buffer("grad.attention.normed", shapes.tokens, shapes.hidden)
    _project_backward(draft, shapes, source, partial)
    total = linear.sum_partials(draft, shapes, "attention.gather", partial)
    draft.buffer("grad.hidden", shapes.rows, shapes.hidden)
    linear.norm_backward(draft, shapes, "attention.norm", "hidden", (total, "grad.middle"), "grad.hidden")


def _norm_heads(draft: Draft, shapes: Shapes) -> None:
    """Norms of each head of queries and keys, before they are turned (Qwen3, arXiv 2505.09388, section 2).

    A backward needs them as they were: training writes the normed ones beside them, here as a copy of what was in qkv.
    """
    size = shapes.tokens * shapes.normed_width
    if not size:
        return
    weights = " ".join(f"weight.{matrix.name}" for matrix in head_norms(shapes))
    kept = f" {draft.buffer('attention.unnormed', shapes.tokens, shapes.normed_width)}" if shapes.train else ""
    draft.compute("attention.qk_norm", shapes.stream(size, size, 4 * size), f"qkv {weights}", f"qkv{kept}")


def _norm_heads_backward(draft: Draft, shapes: Shapes) -> None:
    """Gradients of normed queries and keys -> of what they were before, and of the two weights."""
    size = shapes.tokens * shapes.normed_width
    if not size:
        return
    names = [matrix.name for matrix in head_norms(shapes)]
    weights = " ".join(f"weight.{name}" for name in names)
    gradients = [f"gradient.{name}" for name in names]
    kept = " ".join(name for name in gradients if draft.buffers[name].persistent)
    draft.compute(
        "attention.qk_norm",
        shapes.stream(2 * size, size, 8 * size),
        f"attention.unnormed grad.qkv {weights} {kept}",
        f"grad.qkv {' '.join(gradients)}",
    )


def _output(shapes: Shapes) -> tuple[int, int, int]:
    return shapes.tokens, shapes.hidden, shapes.context_width


def _project(draft: Draft, shapes: Shapes, source: str) -> None:
    latent = shapes.model.latent
    if latent is None:
        linear.forward(draft, shapes, "attention.qkv", (shapes.tokens, shapes.qkv_width, shapes.hidden), source, "qkv")
        return
    for role, sizes, reads, writes in _latent(draft, shapes, source):
        linear.forward(draft, shapes, role, sizes, reads, writes)


def _latent(draft: Draft, shapes: Shapes, source: str) -> list[tuple[str, tuple[int, int, int], str, str]]:
    """The products of latent attention: down to the latents, up to queries and to keys and values (each a part of qkv)."""
    latent = shapes.model.latent
    assert latent is not None
    down = (latent.query_rank or 0) + latent.kv_rank + latent.rope_head_dim
    draft.buffer("latent", shapes.tokens, down)
    queries = latent.query_rank or shapes.hidden
    up = shapes.heads * (latent.nope_head_dim + latent.value_head_dim)
    return [
        ("attention.down", (shapes.tokens, down, shapes.hidden), source, "latent"),
        (
            "attention.query_up",
            (shapes.tokens, shapes.heads * shapes.model.head_dim, queries),
            "latent" if latent.query_rank else source,
            "qkv",
        ),
        # Keys and values join the queries in one buffer.
        ("attention.key_up", (shapes.tokens, up, latent.kv_rank), "latent qkv", "qkv"),
    ]


def _project_backward(draft: Draft, shapes: Shapes, source: str, result: str) -> None:
    if shapes.model.latent is None:
        sizes = (shapes.tokens, shapes.qkv_width, shapes.hidden)
        linear.backward(draft, shapes, "attention.qkv", sizes, source, "grad.qkv", result)
        return
    draft.buffer("grad.latent", *draft.buffers["latent"].shape)
    written: set[str] = set()
    for role, sizes, reads, writes in reversed(_latent(draft, shapes, source)):
        taken = reads.removesuffix(" qkv")
        gradient = result if taken == source else f"grad.{taken}"
        # Two products share an input: the second adds its gradient to that of the first.
        added = f" {gradient}" if gradient in written else ""
        linear.backward(draft, shapes, role, sizes, taken, f"grad.{writes}{added}", gradient)
        written.add(gradient)
