"""The same models by torch's autograd, on one process and without the engine: what its results are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from underlap.model import Model

Full = dict[tuple[str, int], torch.Tensor]
"""Parameters by name and layer, in the shape (inputs, outputs)."""


def full_shapes(model: Model) -> dict[tuple[str, int], tuple[int, ...]]:
    hidden, dim = model.hidden, model.head_dim
    shapes: dict[tuple[str, int], tuple[int, ...]] = {
        ("embedding.tokens", -1): (model.vocab, hidden),
        ("head.norm", -1): (hidden,),
    }
    if not model.tied_embeddings:
        shapes["head.logits", -1] = (hidden, model.vocab)
    for layer, kind in enumerate(model.layer_kinds):
        own: dict[str, tuple[int, ...]] = {
            "attention.norm": (hidden,),
            "attention.query": (hidden, model.heads * dim),
            "attention.key": (hidden, model.kv_heads * dim),
            "attention.value": (hidden, model.kv_heads * dim),
            "attention.output": (model.heads * dim, hidden),
            "mlp.norm": (hidden,),
        }
        if model.qk_norm:
            own |= {"attention.query_norm": (dim,), "attention.key_norm": (dim,)}
        if kind == "dense":
            own |= _mlp("mlp", hidden, model.intermediate)
        else:
            assert model.experts is not None
            own["router.logits"] = (hidden, model.experts.count)
            for expert in range(model.experts.count):
                own |= _mlp(f"experts.{expert}", hidden, model.experts.intermediate)
            if model.experts.shared:
                own |= _mlp("shared", hidden, model.experts.shared_width)
        shapes |= {(name, layer): shape for name, shape in own.items()}
    return shapes


def _mlp(name: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.gate": (hidden, width), f"{name}.up": (hidden, width), f"{name}.down": (width, hidden)}


def logits(model: Model, full: Full, tokens: torch.Tensor, *, theta: float = 10000.0, epsilon: float = 1e-5) -> torch.Tensor:
    """(sequences, positions) -> (sequences, positions, vocab)."""
    x = full["embedding.tokens", -1][tokens]
    for layer, kind in enumerate(model.layer_kinds):

        def weight(name: str, layer: int = layer) -> torch.Tensor:
            return full[name, layer]

        x = x + _attention(model, weight, _norm(x, weight("attention.norm"), epsilon), theta, epsilon)
        normed = _norm(x, weight("mlp.norm"), epsilon)
        x = x + (_feed(weight, "mlp", normed) if kind == "dense" else _experts(model, weight, normed))
    table = full["embedding.tokens", -1].t() if model.tied_embeddings else full["head.logits", -1]
    return _norm(x, full["head.norm", -1], epsilon) @ table


def loss(model: Model, full: Full, batch: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens; a batch has one token more per sequence than the model sees."""
    found = logits(model, full, batch[:, :-1])
    return functional.cross_entropy(found.reshape(-1, model.vocab), batch[:, 1:].reshape(-1))


def _norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def _attention(
    model: Model, weight: Callable[[str], torch.Tensor], x: torch.Tensor, theta: float, epsilon: float
) -> torch.Tensor:
    count, length, _ = x.shape

    def heads(name: str, number: int) -> torch.Tensor:
        return (x @ weight(f"attention.{name}")).view(count, length, number, model.head_dim).transpose(1, 2)

    query, key, value = heads("query", model.heads), heads("key", model.kv_heads), heads("value", model.kv_heads)
    if model.qk_norm:
        query, key = (_norm(x, weight(f"attention.{name}_norm"), epsilon) for name, x in (("query", query), ("key", key)))
    query, key = _rotate(query, theta), _rotate(key, theta)
    group = model.heads // model.kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(model.head_dim)
    at = torch.arange(length)
    hidden = at[None, :] > at[:, None]
    if model.sliding_window is not None:
        hidden = hidden | (at[None, :] <= at[:, None] - model.sliding_window)
    found = scores.masked_fill(hidden, -math.inf).softmax(-1) @ value
    return found.transpose(1, 2).reshape(count, length, -1) @ weight("attention.output")


def _rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = (torch.arange(x.shape[-2])[:, None] * frequency).to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)


def _feed(weight: Callable[[str], torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    return (functional.silu(x @ weight(f"{name}.gate")) * (x @ weight(f"{name}.up"))) @ weight(f"{name}.down")


def _experts(model: Model, weight: Callable[[str], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    assert model.experts is not None
    chances = (x @ weight("router.logits")).softmax(-1)
    top, index = chances.topk(model.experts.top_k, -1)
    top = top / top.sum(-1, keepdim=True)
    total = _feed(weight, "shared", x) if model.experts.shared else torch.zeros_like(x)
    for expert in range(model.experts.count):
        share = (top * (index == expert)).sum(-1, keepdim=True)
        total = total + share * _feed(weight, f"experts.{expert}", x)
    return total


class Tensors:
    """Full parameters, as `Parameters` for the engine: it takes apart what was put together here."""

    def __init__(self, full: Full) -> None:
        self.full = full

    def part(self, name: str, layer: int, shape: tuple[int, ...], dim: int, begin: int, length: int) -> torch.Tensor:
        found = self.full[name, layer]
        assert tuple(found.shape) == tuple(shape)
        return found.narrow(dim, begin, length)
