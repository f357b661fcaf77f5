"""Products with a weight of shape (inputs, outputs), and their two gradients. A table of tokens is (outputs, inputs)."""

from __future__ import annotations

import torch

from underlap.run.machine import Closure, Site, void


def forward(site: Site) -> Closure:
    """result = source x weight."""
    source, weight, result = site.read(0), weight_of(site, 1), site.write(0)
    source = site.own_rows(source, result.shape[0])
    if source.dtype == result.dtype and result.is_contiguous():
        return lambda: void(torch.mm(source, weight, out=result))
    return lambda: void(result.copy_(torch.mm(source, weight)))


def input_gradient(site: Site) -> Closure:
    """result = gradient x weight^T; added to what is there where the plan reads it (the router joins the experts)."""
    operands = site.instruction.reads
    weight_at = next(at for at, operand in enumerate(operands) if operand.name.startswith("weight."))
    gradient, weight, result = site.read(0), weight_of(site, weight_at), site.write(0)
    result = site.own_rows(result, gradient.shape[0])
    joins = any(operand.cell == site.instruction.writes[0].cell for operand in operands)

    def run() -> None:
        value = torch.mm(gradient.to(weight.dtype), weight.t())
        if joins:
            result.add_(value)
        else:
            result.copy_(value)

    return run


def weight_gradient(site: Site) -> Closure:
    """gradient.weight += source^T x gradient."""
    source, gradient = site.read(0), site.read(1)
    source = site.own_rows(source, gradient.shape[0])
    put = site.into(site.instruction.writes[0])
    if _is_table(site.instruction.writes[0].name):
        return lambda: put(torch.mm(gradient.to(source.dtype).t(), source))
    return lambda: put(torch.mm(source.t(), gradient.to(source.dtype)))


def weight_of(site: Site, at: int) -> torch.Tensor:
    """The weight that is the at-th read, as (inputs, outputs)."""
    weight = site.read(at)
    return weight.t() if _is_table(site.instruction.reads[at].name) else weight


def _is_table(name: str) -> bool:
    return name.endswith(".tokens")
