"""Norms of the residual stream, and sums on it."""

from __future__ import annotations

import torch

from underlap.run.machine import Closure, Site, void


def forward(site: Site) -> Closure:
    """result = x / rms(x) * weight (Zhang and Sennrich 2019, arXiv 1910.07467), in fp32."""
    source, weight, result = site.read(0), site.read(1), site.write(0)
    epsilon = site.rank.constants.norm_epsilon

    def run() -> None:
        wide = source.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        result.copy_(wide.to(source.dtype) * weight)

    return run


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
        wide = source.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        unit = wide * scale
        gradient = arrived.float()
        weight_gradient((gradient * unit).sum(0))
        gradient = gradient * weight.float()
        through = scale * (gradient - unit * (gradient * unit).mean(-1, keepdim=True))
        result.copy_(through if past is None else through + past)

    return run


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
