"""Routing, the products of experts, and the two permutations between tokens and experts.

Sent rows are in order of experts, so those for one rank of ep lie together; received rows are in order of source rank, then
expert; what ranks of etp gather is in order of these ranks. A row that several experts want is sent to each of them. No token is
dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from underlap.run.machine import Closure, Rank, Route, Site


def choose(site: Site) -> Closure:
    """scores -> (expert, weight) of each choice: top-k, softmax over the chosen (Mixtral, arXiv 2401.04088, section 2.1)."""
    scores, choice, rank, key = site.read(0), site.write(0), site.rank, site.route_key
    count, top = scores.shape[1], choice.shape[1]

    def run() -> None:
        found, index = scores.topk(top, dim=-1)
        choice[..., 0] = index
        choice[..., 1] = found.softmax(-1)
        flat = index.reshape(-1)
        sent = torch.bincount(flat, minlength=count)
        exchange = rank.exchange_counts
        arriving = exchange(sent, site.instruction.key) if exchange else lambda: sent[None, None]
        rank.routes[key] = Route(torch.argsort(flat, stable=True), sent, arriving, rank.gathered_index)

    return run


def choose_backward(site: Site) -> Closure:
    """Gradient of the weights -> gradient of the scores."""
    scores, gradient, result = site.read(0), site.read(1), site.write(0)
    top = gradient.shape[1]

    def run() -> None:
        found, index = scores.topk(top, dim=-1)
        weights = found.softmax(-1)
        given = gradient[..., 1]
        through = weights * (given - (given * weights).sum(-1, keepdim=True))
        result.zero_().scatter_(1, index, through)

    return run


def permute(site: Site) -> Closure:
    """Each token once per chosen expert, in the order of experts."""
    source, result, rank, key = site.read(0), site.write(0), site.rank, site.route_key
    top = _choices(site)
    source = site.own_rows(source, result.shape[0] // top)
    return lambda: _drop(result.copy_(source[rank.routes[key].order // top]))


def permute_backward(site: Site) -> Closure:
    """The gradients of a token's copies, added up."""
    sent, result, rank, key = site.read(0), site.write(0), site.rank, site.route_key
    top = _choices(site)
    result = site.own_rows(result, sent.shape[0] // top)

    def run() -> None:
        pairs = torch.empty_like(sent)
        pairs[rank.routes[key].order] = sent
        result.copy_(pairs.view(result.shape[0], top, -1).sum(1))

    return run


def _choices(site: Site) -> int:
    """How many experts a token visits."""
    assert site.model.experts is not None
    return site.model.experts.top_k


def merge(site: Site) -> Closure:
    """The weighted sum of what a token's experts gave."""
    returned, choice, result, rank, key = site.read(0), site.read(1), site.write(0), site.rank, site.route_key
    result = site.own_rows(result, choice.shape[0])

    def run() -> None:
        pairs = torch.empty_like(returned)
        pairs[rank.routes[key].order] = returned
        result.copy_((pairs.view(*choice.shape[:2], -1) * choice[..., 1:].to(returned.dtype)).sum(1))

    return run


def merge_backward(site: Site) -> Closure:
    """Gradients of what the experts gave, in the order of experts, and of the weights."""
    gradient, returned, choice = site.read(0), site.read(1), site.read(2)
    gradient = site.own_rows(gradient, choice.shape[0])
    result, of_choice, rank, key = site.write(0), site.write(1), site.rank, site.route_key

    def run() -> None:
        order = rank.routes[key].order
        pairs = torch.empty_like(returned)
        pairs[order] = returned
        pairs = pairs.view(*choice.shape[:2], -1)
        of_choice[..., 1] = (pairs.float() * gradient[:, None].float()).sum(-1)
        of_choice[..., 0] = 0
        given = gradient[:, None] * choice[..., 1:].to(gradient.dtype)
        result.copy_(given.reshape(result.shape)[order])

    return run


def local(site: Site) -> Closure:
    """All experts are here: what would have been sent is only renamed."""
    memory, source = site.rank.memory, site.instruction.reads[0]
    put = site.into(site.instruction.writes[0])
    return lambda: put(memory.view(source).clone())


def segments(rank: Rank, key: tuple[int, int, int, int]) -> Iterator[tuple[int, int, int]]:
    """(local expert, begin, end) of each run of received rows."""
    begin = 0
    for of_source in itertools.chain.from_iterable(rank.routes[key].tables()):
        for expert, rows in enumerate(of_source):
            if rows:
                yield expert, begin, begin + rows
            begin += rows


def product(site: Site) -> Closure:
    """Each expert's rows times its weight."""
    return _by_expert(site, transposed=False)


def input_gradient(site: Site) -> Closure:
    """Each expert's gradients times its weight, transposed."""
    return _by_expert(site, transposed=True)


def _by_expert(site: Site, *, transposed: bool) -> Closure:
    rank, key, source = site.rank, site.route_key, site.instruction.reads[0]
    put = site.into(site.instruction.writes[0])
    weights = site.read(1).transpose(1, 2) if transposed else site.read(1)

    def run() -> None:
        rows = rank.memory.view(source)
        made = rows.new_empty((rows.shape[0], weights.shape[2]))
        for expert, begin, end in segments(rank, key):
            torch.mm(rows[begin:end], weights[expert], out=made[begin:end])
        put(made)

    return run


def weight_gradient(site: Site) -> Closure:
    """Each expert's source^T times gradient, over all rows that it got; zero for an expert that got none."""
    rank, key, (source, gradient) = site.rank, site.route_key, site.instruction.reads[:2]
    operand = site.instruction.writes[0]
    target = site.write(0)

    def run() -> None:
        rows, given = rank.memory.view(source), rank.memory.view(gradient)
        if not operand.add:
            target.zero_()
        for expert, begin, end in segments(rank, key):
            target[expert] += rows[begin:end].t() @ given[begin:end]

    return run


def _drop(_: object) -> None:
    """A closure returns nothing."""
