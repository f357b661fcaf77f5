"""The core of attention as products, softmax and dropout on their own: scores are written, and kept for the backward.

Korthikanti et al. 2022, arXiv 2205.05198, section 4.1 and equation 2: of each layer 5 a s^2 b bytes are kept, softmax's result
(2), dropout's mask (1) and its result (2), for a heads, b sequences of s tokens. Scale and mask are fused into the softmax;
products do not skip what a causal mask hides. Selective recomputation makes all of it again. Keys and values that several heads
share are read once for each head. Forgoes: dropout anywhere else.
"""

from __future__ import annotations

from underlap.cost.work import Gemm
from underlap.planner.drafting import Draft
from underlap.planner.shapes import Shapes

_SCORES, _PROBABILITIES, _MASK, _DROPPED = (f"attention.{name}" for name in ("scores", "probabilities", "mask", "dropped"))


def core(draft: Draft, shapes: Shapes) -> None:
    """qkv -> context."""
    query, keys = shapes.query, shapes.context
    _score_buffers(draft, shapes)
    size = _elements(shapes)
    draft.compute("attention.scores", _product(shapes, query, keys, shapes.model.head_dim), "qkv", _SCORES)
    draft.compute("attention.softmax", shapes.stream(size, size, 5 * size), _SCORES, _PROBABILITIES)
    mask = shapes.bytes_stream(2 * size, 3 * size, size)
    draft.compute("attention.dropout", mask, _PROBABILITIES, f"{_MASK} {_DROPPED}")
    draft.compute("attention.weigh", _product(shapes, query, shapes.model.value_dim, keys), f"{_DROPPED} qkv", "context")


def core_backward(draft: Draft, shapes: Shapes) -> None:
    """Gradient of context -> gradient of qkv: two products for each of the forward's, and both streams."""
    query, keys, model = shapes.query, shapes.context, shapes.model
    for name in (_DROPPED, _PROBABILITIES, _SCORES):
        draft.buffer(f"grad.{name}", *_shape(shapes))
    size = _elements(shapes)
    dropped, probabilities, scores = (f"grad.{name}" for name in (_DROPPED, _PROBABILITIES, _SCORES))
    draft.compute("attention.weigh", _product(shapes, query, keys, model.value_dim), "grad.context qkv", dropped)
    draft.compute(
        "attention.weigh_values", _product(shapes, keys, model.value_dim, query), f"{_DROPPED} grad.context", "grad.qkv"
    )
    draft.compute("attention.dropout", shapes.bytes_stream(3 * size, 2 * size, size), f"{dropped} {_MASK}", probabilities)
    softmax = shapes.stream(2 * size, size, 4 * size)
    draft.compute("attention.softmax", softmax, f"{_PROBABILITIES} {probabilities}", scores)
    draft.compute("attention.scores", _product(shapes, query, model.head_dim, keys), f"{scores} qkv grad.qkv", "grad.qkv")
    draft.compute("attention.scores_keys", _product(shapes, keys, model.head_dim, query), f"{scores} qkv grad.qkv", "grad.qkv")


def _score_buffers(draft: Draft, shapes: Shapes) -> None:
    for name in (_SCORES, _PROBABILITIES, _DROPPED):
        draft.buffer(name, *_shape(shapes))
    draft.buffer(_MASK, *_shape(shapes), dtype="uint8")


def _shape(shapes: Shapes) -> tuple[int, int, int]:
    """One score for each token, head and key."""
    return shapes.tokens, shapes.heads, shapes.context


def _elements(shapes: Shapes) -> int:
    tokens, heads, keys = _shape(shapes)
    return tokens * heads * keys


def _product(shapes: Shapes, rows: int, outputs: int, inputs: int) -> Gemm:
    """One for each head of each sequence."""
    return Gemm(m=rows, n=outputs, k=inputs, batch=shapes.sequences * shapes.heads, precision=shapes.activation)
