"""`Model`: the shape of a decoder-only transformer, and what follows from it: parameters and FLOP.

It does not model encoders, cross attention, convolutions, state-space layers or vision towers.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values from one small latent vector."""

    query_rank: int | None
    """Width of the compressed queries; None where queries are projected directly."""
    kv_rank: int
    """Width of the latent that keys and values are made of, and that the cache holds."""
    nope_head_dim: int
    """Per head, the part of query and key without rotary positions."""
    rope_head_dim: int
    """The rotary part: per head for queries, shared by all heads for keys."""
    value_head_dim: int


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mixture of experts in place of the MLP."""

    count: int
    """Routed experts per layer."""
    top_k: int
    """Routed experts that a token visits."""
    intermediate: int
    """Width of one routed expert."""
    shared: int = 0
    """Experts that every token visits."""
    shared_intermediate: int | None = None
    """Width of one shared expert; None: as the routed ones."""
    dense_layers: int = 0
    """Leading layers that keep the plain MLP."""
    groups: int | None = None
    """Groups that the experts are divided into, for routing limits; None: no groups."""
    top_groups: int | None = None
    """Groups that a token may visit (DeepSeek-V3: 4 of 8, a group on a node); None: no limit."""
    router_bias: bool = False
    """One more number per expert, added for the choice only (balancing without a loss)."""


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only transformer. Counts are of the whole model, before any layout divides it."""

    name: str
    hidden: int
    """Width of the residual stream."""
    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads: as `heads` in MHA, fewer in GQA; with `latent`, as `heads`."""
    head_dim: int
    """Of one head; with `latent`, of query and key together (nope + rope)."""
    intermediate: int
    """Width of the plain MLP (of the dense layers, where there are experts)."""
    vocab: int
    gated: bool = True
    """Three matrices in an MLP (SwiGLU) rather than two."""
    tied_embeddings: bool = False
    """The output head is the embedding."""
    latent: LatentAttention | None = None
    experts: Experts | None = None
    norm: Literal["rms", "layer"] = "rms"
    """layer: with a bias beside the weight."""
    qk_norm: bool = False
    """Norms of queries and keys, over one head."""
    positions: Literal["rope", "learned"] = "rope"
    learned_positions: int = 0
    """Rows of the table of positions, where they are learned."""
    qkv_bias: bool = False
    linear_bias: bool = False
    """Biases of all other linear layers of attention and MLP."""
    sliding_window: int | None = None
    """Tokens that attention looks back; None: all."""
    source: str
    """Where the figures come from."""
