"""Norms of the residual stream and of the heads of queries and keys, and sums on the stream."""

from __future__ import annotations

import torch

from underlap.run.machine import Closure, Site, void


def forward(site: Site) -> Closure:
    """result = x / rms(x) * weight (Zhang and Sennrich 2019, arXiv 1910.07467), in fp32."""
    source, weight, result = site.read(0), site.read(1), site.write(0)
    epsilon = site.rank.constants.norm_epsilon

    return lambda: void(result.copy_(_normed(source, weight, epsilon)))


def _normed(source: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = source.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return wide.to(source.dtype) * weight


def _normed_backward(
    source: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of the source, of the weight) from that of the result, in fp32; the weight has the last dimension."""
    wide = source.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    unit = wide * scale
    gradient = gradient.float()
    of_weight = (gradient * unit).flatten(0, -2).sum(0)
    gradient = gradient * weight.float()
    return scale * (gradient - unit * (gradient * unit).mean(-1, keepdim=True)), of_weight


def backward(site: Site) -> Closure:
    """Gradient through a norm, with the gradient that went past it added; reads stream, gradients, weight."""
    reads = site.instruction.reads
    names = [operand.name for operand in reads]
    at = next(index for index, name in enumerate(names) if name.startswith("weight."))
    source, weight = site.read(0), site.read(at)
    # The head has nothing that went past it.
    arrived, past = site.read(1), site.read(2) if at == 3 else None
    result = site.write(0)
    weight_gradient = site.into(site.instruction.writes[1])
    epsilon = site.rank.constants.norm_epsilon

    def run() -> None:
        through, of_weight = _normed_backward(source, weight, arrived, epsilon)
        weight_gradient(of_weight)
        result.copy_(through if past is None else through + past)

    return run


def of_heads(site: Site) -> Closure:
    """Norm each head of the queries and keys in qkv, in place; a backward's copy of what was there is written, where planned."""
    rows = site.write(0)
    kept = site.write(1) if len(site.instruction.writes) > 1 else None
    epsilon = site.rank.constants.norm_epsilon
    normed, width = _heads(site, rows, [site.the(f"weight.{name}") for name in _OF_HEADS])

    def run() -> None:
        if kept is not None:
            kept.copy_(rows[:, :width])
        for heads, weight in normed:
            heads.copy_(_normed(heads, weight, epsilon))

    return run


def of_heads_backward(site: Site) -> Closure:
    """The gradients of queries and keys in grad.qkv taken through their norms, in place, and those of the two weights."""
    weights = [site.the(f"weight.{name}") for name in _OF_HEADS]
    kept, _ = _heads(site, site.the("attention.unnormed"), weights)
    (given,) = site.written("grad.qkv")
    gradients, _ = _heads(site, site.rank.memory.view(given), weights)
    puts = [site.into(operand) for name in _OF_HEADS for operand in site.written(f"gradient.{name}")]
    epsilon = site.rank.constants.norm_epsilon

    def run() -> None:
        for (source, weight), (gradient, _), put in zip(kept, gradients, puts, strict=True):
            through, of_weight = _normed_backward(source, weight, gradient, epsilon)
            gradient.copy_(through)
            put(of_weight)

    return run


_OF_HEADS = ("attention.query_norm", "attention.key_norm")


def _heads(site: Site, rows: torch.Tensor, weights: list[torch.Tensor]) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], int]:
    """(views (tokens, heads, dim) of queries and of keys, each with its weight; width of both) of rows of qkv or their start."""
    model, tp = site.model, len(site.rank.program.members.get("tp", (0,)))
    dim, heads, kv_heads = model.head_dim, model.heads // tp, model.kv_heads // tp
    parts = rows[:, : (heads + kv_heads) * dim].view(rows.shape[0], -1, dim).split([heads, kv_heads], dim=1)
    return list(zip(parts, weights, strict=True)), (heads + kv_heads) * dim


def add_up(site: Site) -> Closure:
    """result = sum of all reads."""
    parts = [site.read(at) for at in range(len(site.instruction.reads))]
    result = site.write(0)

    def run() -> None:
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        result.copy_(total)

    return run


def copy(site: Site) -> Closure:
    """The same under another name."""
    source, result = site.read(0), site.write(0)
    return lambda: void(result.copy_(source))
