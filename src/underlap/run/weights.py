"""Where a rank's weights come from: seeded random numbers or a checkpoint, and which part of each is this rank's.

A parameter is known by name and layer, in the shape (inputs, outputs), before any layout divides it: attention.query, .key,
.value, .output, mlp.gate, .up, .down, and so on. A rank's buffers hold several of them side by side.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import torch

from underlap.layout import Layout
from underlap.model import Model

DEVIATION = 0.05


class Parameters(Protocol):
    """Full parameters, of which only the asked part need be read."""

    def part(self, name: str, layer: int, shape: tuple[int, ...], dim: int, begin: int, length: int) -> torch.Tensor:
        """Elements begin to begin + length along a dimension of the parameter, in fp32."""
        ...


class Seeded:
    """Random parameters that are the same on every rank and in every layout."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def part(self, name: str, layer: int, shape: tuple[int, ...], dim: int, begin: int, length: int) -> torch.Tensor:
        """See `Parameters`."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{name}/{layer}".encode()))
        made = torch.randn(shape, generator=generator)
        made = 1 + 0.1 * made if name.endswith("norm") else made * DEVIATION
        return made.narrow(dim, begin, length).contiguous()


class Division:
    """A rank's part of every weight buffer of the plan."""

    def __init__(self, model: Model, layout: Layout, rank: int, parameters: Parameters) -> None:
        self.model, self.layout, self.parameters = model, layout, parameters
        at = layout.coordinates(rank)
        self.tp = (at["tp"], layout.tp)
        self.ep = (at["ep"], layout.ep)
        self.etp = (at["etp"], layout.expert_tensor)

    def local(self, name: str, layer: int) -> torch.Tensor:  # noqa: PLR0911 - one return per kind of weight
        """What the buffer `weight.<name>` of a layer holds on this rank, before ZeRO shards it."""
        model = self.model
        hidden = model.hidden
        if name == "attention.qkv":
            widths = {"query": model.heads, "key": model.kv_heads, "value": model.kv_heads}
            parts = [
                self._columns(f"attention.{part}", layer, (hidden, heads * model.head_dim)) for part, heads in widths.items()
            ]
            return torch.cat(parts, dim=1)
        if name == "attention.output":
            return self._rows(name, layer, (model.heads * model.value_dim, hidden))
        owner, _, part = name.partition(".")
        if owner in ("mlp", "shared") and part in ("up", "down"):
            experts = model.experts
            width = model.intermediate if owner == "mlp" or experts is None else experts.shared_width
            if part == "down":
                return self._rows(name, layer, (width, hidden))
            return torch.cat([self._columns(f"{owner}.{gate}", layer, (hidden, width)) for gate in self._gates], dim=1)
        if owner == "experts":
            return self._experts(part, layer)
        if name in ("embedding.tokens", "head.tokens"):
            # A tied head has a copy of its own where it is on another stage.
            return self._rows("embedding.tokens", layer, (model.vocab, hidden))
        if name == "head.logits":
            return self._columns(name, layer, (hidden, model.vocab))
        if name == "router.logits":
            assert model.experts is not None
            return self._whole(name, layer, (hidden, model.experts.count))
        if name in ("attention.query_norm", "attention.key_norm"):
            return self._whole(name, layer, (model.head_dim,))
        assert name.endswith(".norm"), f"{name} is no weight of a plan"
        return self._whole(name, layer, (hidden,))

    @property
    def _gates(self) -> tuple[str, ...]:
        return ("gate", "up") if self.model.gated else ("up",)

    def _experts(self, part: str, layer: int) -> torch.Tensor:
        experts, hidden = self.model.experts, self.model.hidden
        assert experts is not None
        index, size = self.ep
        local = experts.count // size
        width, made = experts.intermediate, []
        for expert in range(index * local, (index + 1) * local):
            named = f"experts.{expert}"
            if part == "down":
                made.append(self._rows(f"{named}.down", layer, (width, hidden), self.etp))
            else:
                parts = [self._columns(f"{named}.{gate}", layer, (hidden, width), self.etp) for gate in self._gates]
                made.append(torch.cat(parts, dim=1))
        return torch.stack(made)

    def _whole(self, name: str, layer: int, shape: tuple[int, ...]) -> torch.Tensor:
        return self.parameters.part(name, layer, shape, 0, 0, shape[0])

    def _rows(self, name: str, layer: int, shape: tuple[int, int], over: tuple[int, int] | None = None) -> torch.Tensor:
        index, size = over or self.tp
        length = shape[0] // size
        return self.parameters.part(name, layer, shape, 0, index * length, length)

    def _columns(self, name: str, layer: int, shape: tuple[int, int], over: tuple[int, int] | None = None) -> torch.Tensor:
        index, size = over or self.tp
        length = shape[1] // size
        return self.parameters.part(name, layer, shape, 1, index * length, length)
