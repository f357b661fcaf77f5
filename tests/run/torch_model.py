"""The dense models as modules of torch, with the engine's weights: what torch's own parallel pieces are given."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.run import reference
from underlap.model import Model

EPSILON, THETA = 1e-5, 10000.0


class Norm(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return reference._norm(x, self.weight, EPSILON)


def _linear(weight: torch.Tensor) -> nn.Linear:
    """From the shape (inputs, outputs)."""
    made = nn.Linear(*weight.shape, bias=False)
    made.weight = nn.Parameter(weight.t().contiguous())
    return made


class Attention(nn.Module):
    def __init__(self, model: Model, full: reference.Full, layer: int) -> None:
        super().__init__()
        self.dim, self.group = model.head_dim, model.heads // model.kv_heads
        for name in ("query", "key", "value", "output"):
            setattr(self, name, _linear(full[f"attention.{name}", layer]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As many heads as the weights here have: all of them, or those of one tp rank."""

        def heads(made: torch.Tensor) -> torch.Tensor:
            return made.view(*made.shape[:2], -1, self.dim).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        query, key = reference._rotate(query, THETA), reference._rotate(key, THETA)
        key, value = key.repeat_interleave(self.group, 1), value.repeat_interleave(self.group, 1)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(found.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, full: reference.Full, layer: int) -> None:
        super().__init__()
        for name in ("gate", "up", "down"):
            setattr(self, name, _linear(full[f"mlp.{name}", layer]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, model: Model, full: reference.Full, layer: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(full["attention.norm", layer]), Norm(full["mlp.norm", layer])
        self.attention, self.mlp = Attention(model, full, layer), Mlp(full, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Layers begin to end of it; the first part has the embedding, the last one the head."""

    def __init__(self, model: Model, full: reference.Full, begin: int = 0, end: int | None = None) -> None:
        super().__init__()
        end = model.layers if end is None else end
        full = {key: value.clone() for key, value in full.items()}
        self.embedding = None
        if begin == 0:
            self.embedding = nn.Embedding(model.vocab, model.hidden)
            self.embedding.weight = nn.Parameter(full["embedding.tokens", -1])
        self.layers = nn.ModuleDict({str(layer): Block(model, full, layer) for layer in range(begin, end)})
        last = end == model.layers
        self.norm = Norm(full["head.norm", -1]) if last else None
        self.head = _linear(full["head.logits", -1]) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def gradients(self) -> reference.Full:
        """Whole, by the names of the engine, in the shape (inputs, outputs)."""
        found: reference.Full = {}
        for path, parameter in self.named_parameters():
            parts = path.removesuffix(".weight").split(".")
            layer = int(parts[1]) if parts[0] == "layers" else -1
            name = ".".join(parts[2:] if layer >= 0 else parts)
            name = {"embedding": "embedding.tokens", "norm": "head.norm", "head": "head.logits"}.get(name, name)
            name = name.replace("_norm", ".norm")
            gradient = parameter.grad
            assert gradient is not None, path
            if hasattr(gradient, "full_tensor"):
                gradient = gradient.full_tensor()
            linear = gradient.dim() == 2 and name != "embedding.tokens"
            found[name, layer] = gradient.t().clone() if linear else gradient.clone()
        return found


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over all tokens: (sequences, positions, vocab) and (sequences, positions)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
