"""Attention over blocks of keys that go around a ring (Ring Attention, arXiv 2310.01889), in the zigzag order.

Of 2 * cp equal pieces of each sequence, rank r holds pieces r and 2 * cp - 1 - r. Against the keys of an earlier rank all of
its queries see the first half, against those of a later one its second half of queries sees all: half of the pairs, each time.
"""

from __future__ import annotations

import torch

from underlap.run.machine import Closure, Site
from underlap.run.operations.attention import Heads, attend, attend_backward, causal_mask


def pack(site: Site) -> Closure:
    """Keys and values out of qkv."""
    source, result = site.read(0), site.write(0)
    width = result.shape[1]

    def run() -> None:
        result.copy_(source[:, -width:])

    return run


def core(site: Site) -> Closure:
    """One block: result and log-sum-exp of its keys alone; -inf for queries that see none of them."""
    source, keys, (result, sums) = site.read(0), site.read(1), (site.write(0), site.write(1))
    layout, seen = Heads.of(site.attention), _Seen(site)

    def run() -> None:
        own, other = layout.queries(source), layout.keys(keys)
        found = own.new_zeros((*own.shape[:-1], layout.value_dim), dtype=torch.float32)
        totals = own.new_full((*own.shape[:-1], 1), -torch.inf, dtype=torch.float32)
        found[..., seen.queries, :], totals[..., seen.queries, :] = attend(
            own[..., seen.queries, :], other[0][..., seen.keys, :], other[1][..., seen.keys, :], seen.mask
        )
        result.copy_(layout.rows(found))
        sums.copy_(layout.rows(totals))

    return run


def merge(site: Site) -> Closure:
    """Two results over different keys, weighted by their softmax sums."""
    result, sums, block, block_sums = (site.read(at) for at in range(4))
    heads = sums.shape[1]

    def run() -> None:
        total = torch.logaddexp(sums, block_sums)
        shape = (result.shape[0], heads, -1)
        old = result.view(shape).float() * torch.exp(sums - total)[..., None]
        new = block.view(shape).float() * torch.exp(block_sums - total)[..., None]
        result.copy_((old + new).view(result.shape))
        sums.copy_(total)

    return run


def core_backward(site: Site) -> Closure:
    """Gradients of the queries, and of one block's keys and values, which travel on with it."""
    index = site.instruction.part[0]
    source, keys, result = site.the("qkv"), site.the(f"keys{index}"), site.the("context")
    sums, gradient = site.the("attention.sums"), site.the("grad.context")
    (of_own,), (of_block,) = site.written("grad.qkv"), site.written(f"grad.keys{index}")
    put_queries = site.into(of_own)
    # What came with the block is added to, though it was received rather than computed here.
    target = site.rank.memory.view(of_block)
    layout, seen = Heads.of(site.attention), _Seen(site)

    def run() -> None:
        own, other = layout.queries(source), layout.keys(keys)
        rows = (..., seen.queries, slice(None))
        block = (other[0][..., seen.keys, :], other[1][..., seen.keys, :])
        found = attend_backward(
            (own[rows], *block),
            layout.results(result)[rows],
            layout.sums(sums)[rows],
            layout.results(gradient)[rows],
            seen.mask,
        )
        of_queries = torch.zeros(own.shape, dtype=torch.float32, device=own.device)
        of_queries[rows] = found[0]
        queries = layout.rows(of_queries)
        put_queries(torch.cat((queries, queries.new_zeros(queries.shape[0], keys.shape[1])), dim=-1))
        of_keys, of_values = (torch.zeros(one.shape, dtype=torch.float32, device=own.device) for one in other)
        of_keys[..., seen.keys, :], of_values[..., seen.keys, :] = found[1], found[2]
        made = torch.cat((layout.rows(of_keys), layout.rows(of_values)), dim=-1)
        target.copy_(target + made if index else made)

    return run


def unpack(site: Site) -> Closure:
    """The gradients of keys and values, come home, join those of the queries."""
    home, result = site.read(1), site.write(0)
    width = home.shape[1]

    def run() -> None:
        result[:, -width:] += home

    return run


class _Seen:
    """Which queries see which keys of a block, by where it comes from."""

    def __init__(self, site: Site) -> None:
        rank = site.rank
        size = len(rank.program.members["cp"])
        step = site.instruction.part[0]
        origin = (rank.ring_index - step) % size
        half = site.attention.query // 2
        self.mask: torch.Tensor | None = None
        self.queries, self.keys = slice(None), slice(None)
        if origin == rank.ring_index:
            # Two pieces in order of position: causal as they stand.
            self.mask = causal_mask(2 * half, 2 * half, None, rank.memory.device)
        elif origin < rank.ring_index:
            self.keys = slice(0, half)
        else:
            self.queries = slice(half, None)
