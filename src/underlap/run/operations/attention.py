"""Rotary positions, and the core of attention with its backward: softmax(q k^T / sqrt(d)) v, by products.

Rows of a buffer are tokens, sequence by sequence; a row of qkv holds the heads of queries, then of keys, then of values.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from underlap.cost.work import Attention
from underlap.run.machine import Closure, Site, void


@dataclasses.dataclass(frozen=True, slots=True)
class Heads:
    """How rows of qkv divide into heads."""

    sequences: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int

    @classmethod
    def of(cls, work: Attention) -> Heads:
        """Those of an attention's work."""
        return cls(work.batch, work.heads, work.kv_heads, work.head_dim, work.value_width)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    def queries(self, rows: torch.Tensor) -> torch.Tensor:
        """(tokens, >= heads * dim) -> (sequences, kv_heads, heads per kv head, positions, dim)."""
        shape = (self.sequences, -1, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        return rows[:, : self.query_width].reshape(shape).permute(0, 2, 3, 1, 4)

    def results(self, rows: torch.Tensor) -> torch.Tensor:
        """(tokens, heads * value_dim), in the order of queries."""
        shape = (self.sequences, -1, self.kv_heads, self.heads // self.kv_heads, self.value_dim)
        return rows.reshape(shape).permute(0, 2, 3, 1, 4)

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """(tokens, heads) -> (sequences, kv_heads, heads per kv head, positions, 1)."""
        shape = (self.sequences, -1, self.kv_heads, self.heads // self.kv_heads, 1)
        return rows.reshape(shape).permute(0, 2, 3, 1, 4)

    def keys(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, keys and values) -> keys and values, each (sequences, kv_heads, 1, positions, dim)."""
        keys = rows[:, : self.key_width].reshape(self.sequences, -1, self.kv_heads, 1, self.head_dim)
        values = rows[:, self.key_width :].reshape(self.sequences, -1, self.kv_heads, 1, self.value_dim)
        return keys.permute(0, 2, 3, 1, 4), values.permute(0, 2, 3, 1, 4)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """(sequences, kv_heads, group, positions, dim) -> (tokens, heads * dim)."""
        return tensor.permute(0, 3, 1, 2, 4).reshape(tensor.shape[0] * tensor.shape[3], -1)


def scores(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Scaled scores in fp32; what the mask hides is minus infinity."""
    found = torch.matmul(queries.float(), keys.float().transpose(-1, -2)) / math.sqrt(queries.shape[-1])
    return found if mask is None else found.masked_fill(mask, -math.inf)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, log-sum-exp), in fp32."""
    found = scores(queries, keys, mask)
    sums = torch.logsumexp(found, -1, keepdim=True)
    return torch.matmul(torch.exp(found - sums), values.float()), sums


def attend_backward(
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: torch.Tensor,
    sums: torch.Tensor,
    gradient: torch.Tensor,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values (FlashAttention-2, arXiv 2307.08691, algorithm 2), summed over grouped heads."""
    queries, keys, values = operands
    gradient = gradient.float()
    probabilities = torch.exp(scores(queries, keys, mask) - sums)
    of_values = torch.matmul(probabilities.transpose(-1, -2), gradient).sum(2, keepdim=True)
    through = torch.matmul(gradient, values.float().transpose(-1, -2))
    through = probabilities * (through - (gradient * result.float()).sum(-1, keepdim=True)) / math.sqrt(queries.shape[-1])
    of_keys = torch.matmul(through.transpose(-1, -2), queries.float()).sum(2, keepdim=True)
    return torch.matmul(through, keys.float()), of_keys, of_values


def causal_mask(query: int, context: int, window: int | None, device: torch.device) -> torch.Tensor:
    """True where a query may not look: later keys, and those before its window. Queries are the last of the context."""
    at = torch.arange(context - query, context, device=device)[:, None]
    key = torch.arange(context, device=device)[None, :]
    hidden = key > at
    return hidden if window is None else hidden | (key <= at - window)


# ---- rotary positions


def rotary(site: Site) -> Closure:
    """Queries and keys turned by their positions, in place (Su et al. 2021, arXiv 2104.09864; halves as in Llama's port)."""
    return _turned(site, 1.0)


def rotary_backward(site: Site) -> Closure:
    """Their gradients turned back."""
    return _turned(site, -1.0)


def _turned(site: Site, direction: float) -> Closure:
    rank, model = site.rank, site.model
    operand = site.instruction.writes[0]
    target = site.write(0)
    dim = model.head_dim
    # Per kv head: its query heads, its key head and its value head.
    kv_heads = target.shape[1] // (model.heads // model.kv_heads * dim + dim + model.value_dim)
    turned = target[:, : target.shape[1] - kv_heads * model.value_dim].view(target.shape[0], -1, dim)
    half = dim // 2
    frequency = rank.constants.rope_theta ** (-torch.arange(half, device=target.device, dtype=torch.float64) / half)
    decode = site.instruction.phase == "decode"
    own = rank.positions[operand.begin : operand.begin + operand.rows]

    def angles() -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.full_like(own, rank.length) if decode else own
        angle = (positions[:, None] * frequency).float()[:, None, :]
        return angle.cos(), angle.sin() * direction

    cosine, sine = angles()

    def run() -> None:
        cos, sin = angles() if decode else (cosine, sine)
        first, second = turned[..., :half].float(), turned[..., half:].float()
        turned.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))

    return run


# ---- the core


def core(site: Site) -> Closure:
    """qkv -> context and log-sum-exp: whole sequences, parts of them, one block of a ring, or one token against a cache."""
    names = {operand.name for operand in site.instruction.reads}
    if "cache" in names:
        return _cached(site)
    if any(name.startswith("keys") for name in names):
        from underlap.run.operations import ring

        return ring.core(site)
    sources = [site.read(at) for at in range(len(site.instruction.reads))]
    result, sums = site.write(0), site.write(1)
    layout, last = Heads.of(site.attention), sources[-1]
    mask = causal_mask(site.attention.query, site.attention.context, site.attention.window, last.device)

    def run() -> None:
        keys = torch.cat([source[:, layout.query_width :] for source in sources])
        found, total = attend(layout.queries(last), *layout.keys(keys), mask)
        result.copy_(layout.rows(found))
        sums.copy_(layout.rows(total))

    return run


def core_backward(site: Site) -> Closure:
    """Gradients of qkv; of a part of a sequence also of the keys of the parts before it."""
    names = {operand.name for operand in site.instruction.reads}
    if any(name.startswith("keys") for name in names):
        from underlap.run.operations import ring

        return ring.core_backward(site)
    suffix = ".heads" if "qkv.heads" in names else ""
    sources = site.reads(f"qkv{suffix}")
    result, sums = site.the(f"context{suffix}"), site.the(f"attention.sums{suffix}")
    gradient = site.the(f"grad.context{suffix}")
    targets = [site.into(operand) for operand in site.written(f"grad.qkv{suffix}")]
    layout, last = Heads.of(site.attention), sources[-1]
    mask = causal_mask(site.attention.query, site.attention.context, site.attention.window, last.device)

    def run() -> None:
        keys = torch.cat([source[:, layout.query_width :] for source in sources])
        of_queries, of_keys, of_values = attend_backward(
            (layout.queries(last), *layout.keys(keys)),
            layout.results(result),
            layout.sums(sums),
            layout.results(gradient),
            mask,
        )
        rows = torch.cat((layout.rows(of_keys), layout.rows(of_values)), dim=-1)
        for at, (put, part) in enumerate(zip(targets, rows.chunk(len(targets)), strict=True)):
            own = at + 1 == len(targets)
            queries = layout.rows(of_queries) if own else part.new_zeros(part.shape[0], layout.query_width)
            put(torch.cat((queries, part), dim=-1))

    return run


# ---- the cache


def append(site: Site) -> Closure:
    """Keys and values of the new tokens join the cache: one behind those there in decode, all of a prompt in prefill."""
    source, cache = site.the("qkv"), site.write(0)
    width, rank = cache.shape[-1], site.rank
    if site.instruction.phase == "prefill":
        return lambda: void(cache.copy_(source[:, -width:]))
    return lambda: void(cache[:, rank.length].copy_(source[:, -width:]))


def _cached(site: Site) -> Closure:
    source, cache, result = site.the("qkv"), site.the("cache"), site.write(0)
    layout, rank, window = Heads.of(site.attention), site.rank, site.attention.window

    def run() -> None:
        first = 0 if window is None else max(0, rank.length + 1 - window)
        held = cache[:, first : rank.length + 1]
        found, _ = attend(layout.queries(source), *layout.keys(held.reshape(-1, held.shape[-1])), None)
        result.copy_(layout.rows(found))

    return run
