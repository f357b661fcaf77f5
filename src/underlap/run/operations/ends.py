"""Embedding, logits and loss, each on this rank's part of the vocabulary (Megatron, arXiv 1909.08053)."""

from __future__ import annotations

import torch

from underlap.run.machine import Closure, Site, void
from underlap.run.operations import products


def look_up(site: Site) -> Closure:
    """Rows of the table; zeros for tokens of other ranks' parts, as the parts are added up."""
    tokens, table, result = site.read(0), site.read(1), site.write(0)
    first = site.rank.vocab_begin

    def run() -> None:
        index, own = _own(tokens, first, table.shape[0])
        result.copy_(table[index] * own[:, None].to(table.dtype))

    return run


def look_up_gradient(site: Site) -> Closure:
    """Each token's gradient added to its row of the table."""
    tokens, gradient = site.read(0), site.read(1)
    put = site.into(site.instruction.writes[0])
    shape = site.write(0).shape
    first = site.rank.vocab_begin

    def run() -> None:
        index, own = _own(tokens, first, shape[0])
        table = torch.zeros(shape, dtype=torch.float32, device=gradient.device)
        put(table.index_add_(0, index, gradient.float() * own[:, None]))

    return run


def logits(site: Site) -> Closure:
    """normed x weight; of a prompt the last token of each sequence only."""
    source, result = site.read(0), site.write(0)
    if source.shape[0] == result.shape[0]:
        return products.forward(site)
    weight, length = products.weight_of(site, 1), source.shape[0] // result.shape[0]
    return lambda: void(torch.mm(source[length - 1 :: length], weight, out=result))


def maximum(site: Site) -> Closure:
    """The largest logit of each token in this part of the vocabulary."""
    source, result = site.read(0), site.write(0)
    return lambda: void(result.copy_(source.float().amax(-1, keepdim=True)))


def loss(site: Site) -> Closure:
    """logits -> exp(logits - maximum), in place, with their sum and the target's logit (less the maximum) beside them."""
    source, targets = site.read(0), site.read(1)
    greatest = site.read(2) if len(site.instruction.reads) > 2 else None
    result = site.write(1)
    first = site.rank.vocab_begin

    def run() -> None:
        wide = source.float()
        wide = wide - (wide.amax(-1, keepdim=True) if greatest is None else greatest)
        index, own = _own(targets, first, source.shape[1])
        result[:, 1] = wide.gather(1, index[:, None])[:, 0] * own
        wide = wide.exp()
        result[:, 0] = wide.sum(-1)
        source.copy_(wide)

    return run


def loss_backward(site: Site) -> Closure:
    """exponentials -> gradient of the logits: (probability - 1 at the target) / tokens of the step. Notes the loss, too."""
    source, sums, targets = site.read(0), site.read(1), site.read(2)
    rank, number = site.rank, site.instruction.micro_batch
    first = rank.vocab_begin

    def run() -> None:
        rank.losses[number] = (sums[:, 0].log() - sums[:, 1]).sum() / rank.tokens_per_step
        wide = source.float() / sums[:, :1]
        index, own = _own(targets, first, source.shape[1])
        wide.scatter_add_(1, index[:, None], -own[:, None].float())
        source.copy_(wide / rank.tokens_per_step)

    return run


def _own(tokens: torch.Tensor, first: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(index into this part, whether the token is in it); the index is 0 where it is not."""
    index = tokens - first
    own = (index >= 0) & (index < size)
    return torch.where(own, index, torch.zeros_like(index)), own
