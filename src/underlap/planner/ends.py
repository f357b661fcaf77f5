"""The two ends of a model: token embedding, and head with loss, both divided over the vocabulary by tp."""

from __future__ import annotations

import math

from underlap.cost.work import ELEMENT_BYTES
from underlap.plan import Scope
from underlap.planner import linear
from underlap.planner.drafting import Draft
from underlap.planner.groups import PIPELINE, STATES
from underlap.planner.pipeline import owner_of
from underlap.planner.shapes import WIDE, Shapes
from underlap.planner.weights import Matrix

LOSS_SUMS = 2
"""Numbers per token that are added up over the parts of the vocabulary: sum of exponentials, logit of the target."""


def embedding_weights(shapes: Shapes) -> tuple[Matrix, ...]:
    """The table of tokens, and that of positions where they are learned (undivided)."""
    tokens = Matrix("embedding.tokens", (shapes.model.vocab // shapes.layout.tp, shapes.hidden))
    if shapes.model.positions == "rope":
        return (tokens,)
    return tokens, Matrix("embedding.positions", (shapes.model.learned_positions, shapes.hidden))


def head_weights(shapes: Shapes) -> tuple[Matrix, ...]:
    """The last norm and the output projection: where it is tied, the table of tokens, or a copy of it where stages lie apart."""
    norm, outputs = Matrix("head.norm", (shapes.hidden,)), shapes.model.vocab // shapes.layout.tp
    if not shapes.model.tied_embeddings:
        return norm, Matrix("head.logits", (shapes.hidden, outputs))
    return norm, Matrix("head.tokens" if tied_apart(shapes) else "embedding.tokens", (outputs, shapes.hidden))


def tied_apart(shapes: Shapes) -> bool:
    """Whether a tied head is on another rank than the embedding, so that there are two copies of the table."""
    stages = shapes.layout.pp * shapes.layout.chunks
    return shapes.model.tied_embeddings and owner_of(shapes.layout, stages - 1)[0] != owner_of(shapes.layout, 0)[0]


def tie(draft: Draft, shapes: Shapes, *, first: bool) -> None:
    """The gradients of the two copies of a tied table, added up on both ranks that have one.

    Megatron-LM all-reduces them (finalize_model_grads.py, _allreduce_word_embedding_grads). Between two ranks that is one
    message each way, of the whole. Sums over replicas come before.
    """
    name = "embedding.tokens" if first else "head.tokens"
    sharded = shapes.layout.zero_stage and draft.groups[STATES].size > 1
    own = draft.buffers[f"{'gradient_shard' if sharded else 'gradient'}.{name}"]
    other = draft.buffer(f"other.{name}", *own.shape, dtype=own.dtype, scope=Scope.STEP)
    message = draft.message(PIPELINE, own.nbytes)
    for role, sends in (("tie.onward", first), ("tie.back", not first)):
        if sends:
            draft.issue(role, PIPELINE, message, own.name, "", channel="pp.send.tie")
        else:
            draft.issue(role, PIPELINE, message, "", other, channel="pp.receive.tie")
    draft.wait("tie.onward")
    draft.wait("tie.back")
    draft.compute(
        "tie.add", shapes.bytes_stream(2.0 * own.nbytes, own.nbytes, math.prod(own.shape)), f"{own.name} {other}", own.name
    )


def embed(draft: Draft, shapes: Shapes) -> None:
    """Tokens -> hidden of the first layer."""
    draft.buffer("tokens", shapes.tokens, dtype="int64", scope=Scope.MICRO_BATCH, persistent=True)
    weights = " ".join(f"weight.{matrix.name}" for matrix in embedding_weights(shapes))
    size = shapes.tokens * shapes.hidden
    partial = draft.buffer("embedding.partial", shapes.tokens, shapes.hidden, scope=Scope.MICRO_BATCH)
    draft.compute("embedding.look_up", shapes.stream(size, size), f"tokens {weights}", partial)
    draft.buffer("hidden", shapes.rows, shapes.hidden)
    payload = size * ELEMENT_BYTES[shapes.activation]
    if shapes.layout.sp:
        draft.collective("embedding.reduce", "tp", "reduce_scatter", payload, partial, "hidden")
        return
    draft.collective("embedding.reduce", "tp", "all_reduce", payload, partial, partial)
    # The sum is the stream itself; no copy is made, but it gets the name that layers know it by.
    draft.compute("embedding.place", shapes.bytes_stream(0.0, 0.0), partial, "hidden")


def embed_backward(draft: Draft, shapes: Shapes) -> None:
    """Gradient of the first layer's hidden -> gradient of the table."""
    draft.buffer("grad.hidden", shapes.rows, shapes.hidden)
    whole = "grad.hidden"
    if shapes.layout.sp:
        whole = draft.buffer("grad.hidden.whole", shapes.tokens, shapes.hidden)
        linear.gather_named(draft, shapes, "embedding.reduce", "grad.hidden", whole)
    size = shapes.tokens * shapes.hidden
    names = [f"gradient.{matrix.name}" for matrix in embedding_weights(shapes)]
    kept = " ".join(name for name in names if draft.buffers[name].persistent)
    work = shapes.stream(2 * size, size, size)
    draft.compute("embedding.look_up", work, f"tokens {whole} {kept}", " ".join(names), phase="weight_grad")


def head(draft: Draft, shapes: Shapes) -> None:
    """Hidden behind the last layer -> logits; when training also the loss. The steps' layer is the last one, so hidden+1."""
    draft.buffer("head.normed", shapes.rows, shapes.hidden)
    draft.buffer("hidden", shapes.rows, shapes.hidden)
    linear.norm(draft, shapes, "head.norm", "hidden+1", "head.normed")
    source = linear.gather_rows(draft, shapes, "head.gather", "head.normed")
    sizes = _sizes(shapes)
    draft.buffer("logits", *sizes[:2])
    linear.forward(draft, shapes, "head.logits", sizes, source, "logits", weight=_table(shapes))
    if not shapes.train:
        return
    draft.buffer("targets", shapes.tokens, dtype="int64", scope=Scope.MICRO_BATCH, persistent=True)
    draft.buffer("loss", shapes.tokens, LOSS_SUMS, dtype=WIDE)
    elements = sizes[0] * sizes[1]
    maximum = ""
    if shapes.layout.tp > 1:
        # Parts of the vocabulary have to agree on the maximum before they can add up exponentials (Megatron, arXiv 1909.08053).
        maximum = draft.buffer("loss.maximum", shapes.tokens, 1, dtype=WIDE)
        draft.compute("head.maximum", shapes.stream(elements, 0, elements), "logits", maximum)
        draft.collective("head.maximum_reduce", "tp", "all_reduce", 4.0 * shapes.tokens, maximum, maximum)
    draft.compute("head.loss", shapes.stream(elements, elements, 5 * elements), f"logits targets {maximum}", "logits loss")
    draft.collective("head.loss_reduce", "tp", "all_reduce", 4.0 * LOSS_SUMS * shapes.tokens, "loss", "loss")


def head_backward(draft: Draft, shapes: Shapes) -> None:
    """Loss -> gradient of hidden behind the last layer."""
    sizes = _sizes(shapes)
    elements = sizes[0] * sizes[1]
    draft.compute("head.loss", shapes.stream(elements, elements, 2 * elements), "logits loss targets", "logits")
    source = linear.gather_rows(draft, shapes, "head.gather_again", "head.normed")
    partial = draft.buffer("grad.head.normed", shapes.tokens, shapes.hidden)
    linear.input_gradient(draft, shapes, "head.logits", sizes, "logits", partial, weight=_table(shapes))
    linear.weight_gradient(draft, shapes, "head.logits", sizes, source, "logits", weight=_table(shapes))
    total = linear.sum_partials(draft, shapes, "head.gather", partial)
    size = shapes.rows * shapes.hidden
    draft.buffer("grad.hidden", shapes.rows, shapes.hidden)
    kept = " gradient.head.norm" if draft.buffers["gradient.head.norm"].persistent else ""
    draft.compute(
        "head.norm",
        shapes.stream(2 * size, size, 8 * size),
        f"hidden+1 {total} weight.head.norm{kept}",
        "grad.hidden+1 gradient.head.norm",
    )


def _table(shapes: Shapes) -> str:
    """What the head multiplies by."""
    return head_weights(shapes)[1].name


def _sizes(shapes: Shapes) -> tuple[int, int, int]:
    """(rows, outputs, inputs). A prompt needs the logits of its last token only."""
    rows = shapes.tokens if shapes.train else shapes.sequences
    return rows, shapes.model.vocab // shapes.layout.tp, shapes.hidden
