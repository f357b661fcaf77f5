"""Serving on ranks: a prefill fills caches, a decode goes on from them, greedily.

Which token is the likeliest is found here, outside of the plan: its logits lie in parts over ranks of tp, on the last stage of
a pipeline, and the first one needs it. What is exchanged for that is in no plan, nor in the counted bytes.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist

from underlap.plan import Plan
from underlap.run.engine import Engine, Inputs
from underlap.workload import Prefill, micro_batch_size


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What a prefill left on one rank."""

    caches: dict[int, torch.Tensor]
    """By layer of this stage: keys and values of each token of the prompts, (sequences, positions, width)."""
    tokens: torch.Tensor
    """The likeliest token behind each prompt, (sequences,)."""

    @property
    def length(self) -> int:
        """Of each prompt, in tokens."""
        return int(next(iter(self.caches.values())).shape[1])


def prefilled(plan: Plan, job: Inputs, rank: int, device: torch.device, timeout_s: float) -> Prompt:
    """Run a prefill once, on the prompts that the inputs' seed makes. Every rank has to call it."""
    engine = Engine(plan, job, rank, device, timeout_s)
    engine.step()
    made = left_by(engine)
    engine.close()
    return made


def left_by(engine: Engine) -> Prompt:
    """What the last step of a prefill left; all micro-batches together. Every rank has to call it."""
    found: dict[int, list[torch.Tensor]] = {}
    for (name, _, layer), cell in sorted(engine.memory.persistent.items()):
        tensor = engine.memory.tensors[cell]
        if name == "cache" and tensor is not None:
            sequences = micro_batch_size(engine.job.workload, engine.job.layout)
            found.setdefault(layer, []).append(tensor.view(sequences, -1, tensor.shape[-1]).clone())
    return Prompt({layer: torch.cat(parts) for layer, parts in found.items()}, chosen(engine))


def start(engine: Engine, prompt: Prompt) -> None:
    """Have a decode begin behind a prompt, which its caches have room for."""
    for layer, cache in engine.memory.named("cache").items():
        kept = prompt.caches[layer]
        assert kept.shape[1] < cache.shape[1], f"{kept.shape[1]} tokens, of {cache.shape[1]} that fit with the next one"
        cache[:, : kept.shape[1]].copy_(kept)
    engine.rank.length = prompt.length
    engine.feed(prompt.tokens)


def greedy(engine: Engine, prompt: Prompt, count: int) -> torch.Tensor:
    """The first `count` tokens behind each prompt, (sequences, count): the likeliest each time. Every rank has to call it."""
    start(engine, prompt)
    found = [prompt.tokens]
    while len(found) < count:
        engine.step()
        found.append(chosen(engine))
        engine.rank.length += 1
        engine.feed(found[-1])
    return torch.stack(found, dim=1)


def chosen(engine: Engine) -> torch.Tensor:
    """The likeliest token of each sequence of this rank by the last step's logits, of the lowest number where two are equal."""
    own = []
    for number, logits in enumerate(engine.last("logits") if _has_end(engine) else []):
        value, index = logits.float().max(-1)
        own.append((engine.rank.data_index, number, engine.rank.vocab_begin, value, index + engine.rank.vocab_begin))
    everyone: list[list[tuple[int, int, int, torch.Tensor, torch.Tensor]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    mine = [part for parts in everyone for part in parts if part[0] == engine.rank.data_index]
    found: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for _, number, _, value, index in sorted(mine, key=lambda part: part[1:3]):
        values, indices = found.setdefault(number, ([], []))
        values.append(value)
        indices.append(index)
    # Of equal ones the first part of the vocabulary has the lowest number.
    return torch.cat(
        [torch.stack(indices).gather(0, torch.stack(values).max(0)[1][None])[0] for values, indices in found.values()]
    )


def _has_end(engine: Engine) -> bool:
    """Whether this rank has the last position of its sequences: one rank of cp has."""
    work = engine.job.workload
    return not isinstance(work, Prefill) or int(engine.rank.positions.max()) + 1 == work.seq
