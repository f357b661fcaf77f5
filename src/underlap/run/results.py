"""What steps leave on a rank: outputs and gradients of the first, counts and losses of the last."""

from __future__ import annotations

import dataclasses

import torch

from underlap.run import serving
from underlap.run.engine import Engine, trains
from underlap.workload import Decode


@dataclasses.dataclass(frozen=True)
class First:
    """The results of a first step on this rank."""

    outputs: list[torch.Tensor]
    gradients: dict[tuple[str, int], torch.Tensor]

    @classmethod
    def of(cls, engine: Engine) -> First:
        if not trains(engine.job):
            return cls([value.clone() for value in engine.last("logits")], {})
        # Where gradients are sharded, what is left of whole ones holds nothing that is used.
        sharded = engine.tensors("gradient_shard")
        whole = {key: value for key, value in engine.tensors("gradient").items() if key not in sharded}
        kept = {key: value.clone() for key, value in (sharded | whole).items()}
        return cls([torch.tensor([engine.loss()])], kept)

    def difference(self, other: First) -> tuple[float, float]:
        """The largest difference of outputs, and of gradients, each relative to the largest value of its tensor."""
        outputs = [_relative(a, b) for a, b in zip(self.outputs, other.outputs, strict=True)]
        gradients = [_relative(value, other.gradients[key]) for key, value in self.gradients.items()]
        return max(outputs, default=0.0), max(gradients, default=0.0)


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    scale = float(one.float().abs().max())
    return float((one.float() - other.float()).abs().max()) / (scale or 1.0)


@dataclasses.dataclass(frozen=True)
class Last:
    """What the last measured step left on this rank."""

    counted: dict[tuple[str, str], int]
    control: dict[tuple[str, str, str], int]
    loss: float
    chosen: list[int]
    """Tokens of a decode."""

    @classmethod
    def of(cls, engine: Engine) -> Last:
        loss = engine.loss() if trains(engine.job) and engine.rank.tp_index == 0 else 0.0
        chosen = serving.chosen(engine).tolist() if isinstance(engine.job.workload, Decode) else []
        return cls(engine.counted(), engine.control(), loss, chosen)
