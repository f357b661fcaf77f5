"""`Model`: the shape of a decoder-only transformer, and what follows from it: parameters and FLOP.

It does not model encoders, cross attention, convolutions, state-space layers or vision towers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from underlap.documents import require, require_counts

LayerKind = Literal["dense", "experts"]


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

    def __post_init__(self) -> None:
        require_counts(self, "query_rank", "kv_rank", "nope_head_dim", "rope_head_dim", "value_head_dim", largest=2**24)


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

    def __post_init__(self) -> None:
        require_counts(self, "count", "top_k", "intermediate", "shared_intermediate", "groups", "top_groups", largest=2**24)
        require(0 <= self.shared <= 2**16, f"shared is {self.shared}: expected 0 or more")
        require(0 <= self.dense_layers <= 2**16, f"dense_layers is {self.dense_layers}: expected 0 or more")
        require(self.top_k <= self.count, f"top_k={self.top_k} exceeds count={self.count}: a token visits {self.count} at most")
        groups = self.groups or 1
        require(self.count % groups == 0, f"groups={groups} does not divide count={self.count}: expected groups of equal size")
        limit = self.top_groups or groups
        require(limit <= groups, f"top_groups={limit} exceeds groups={groups}: give groups, or lower top_groups")
        reachable = self.count // groups * limit
        require(self.top_k <= reachable, f"top_k={self.top_k} exceeds the {reachable} experts of top_groups={limit} groups")

    @property
    def shared_width(self) -> int:
        """Of all shared experts together."""
        return self.shared * (self.intermediate if self.shared_intermediate is None else self.shared_intermediate)


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

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "sliding_window", largest=2**24)
        require_counts(self, "layers", largest=2**16)
        divides = f"kv_heads={self.kv_heads} does not divide heads={self.heads}: expected equally many query heads for each"
        require(self.heads % self.kv_heads == 0, divides)
        learned = self.positions == "learned"
        require(0 <= self.learned_positions <= 2**40, f"learned_positions is {self.learned_positions}: expected 0 or more")
        told = f"positions={self.positions} with learned_positions={self.learned_positions}: expected rows exactly where learned"
        require(learned == (self.learned_positions > 0), told)
        if self.latent is not None:
            width = self.latent.nope_head_dim + self.latent.rope_head_dim
            require(self.head_dim == width, f"head_dim={self.head_dim} is not nope_head_dim + rope_head_dim = {width}")
            require(self.kv_heads == self.heads, f"kv_heads={self.kv_heads} with latent: expected as heads={self.heads}")
        if self.experts is not None:
            dense = self.experts.dense_layers
            require(dense < self.layers, f"dense_layers={dense} with layers={self.layers}: no layer is left for the experts")

    @property
    def attention(self) -> Literal["MHA", "GQA", "MLA"]:
        if self.latent is not None:
            return "MLA"
        return "MHA" if self.kv_heads == self.heads else "GQA"

    @property
    def value_dim(self) -> int:
        """Width of one head's values."""
        return self.head_dim if self.latent is None else self.latent.value_head_dim

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Of each layer, first to last."""
        dense = self.layers if self.experts is None else self.experts.dense_layers
        kinds: list[LayerKind] = ["dense" if layer < dense else "experts" for layer in range(self.layers)]
        return tuple(kinds)

    # Parameters. A matrix of n inputs and m outputs has n * m, and m more with a bias.

    def _linear(self, inputs: int, outputs: int, bias: bool) -> int:
        return inputs * outputs + (outputs if bias else 0)

    def _norm(self, width: int) -> int:
        return width * (2 if self.norm == "layer" else 1)

    @property
    def attention_parameters(self) -> int:
        """Of one layer, without the norm before it."""
        if self.latent is not None:
            return self._latent_parameters(self.latent)
        keys_and_values = 2 * self._linear(self.hidden, self.kv_heads * self.head_dim, self.qkv_bias)
        queries = self._linear(self.hidden, self.heads * self.head_dim, self.qkv_bias)
        output = self._linear(self.heads * self.head_dim, self.hidden, self.linear_bias)
        return queries + keys_and_values + output + (2 * self._norm(self.head_dim) if self.qk_norm else 0)

    def _latent_parameters(self, latent: LatentAttention) -> int:
        """DeepSeek-V2, arXiv 2405.04434, equations 37 to 47: down and up projections, norms of the two latents."""
        inputs = self.hidden
        queries = 0
        if latent.query_rank is not None:
            queries = self._linear(self.hidden, latent.query_rank, self.qkv_bias) + self._norm(latent.query_rank)
            inputs = latent.query_rank
        queries += inputs * self.heads * self.head_dim
        down = self._linear(self.hidden, latent.kv_rank + latent.rope_head_dim, self.qkv_bias) + self._norm(latent.kv_rank)
        up = latent.kv_rank * self.heads * (latent.nope_head_dim + latent.value_head_dim)
        return queries + down + up + self._linear(self.heads * latent.value_head_dim, self.hidden, self.qkv_bias)

    def _mlp(self, width: int) -> int:
        inner = self._linear(self.hidden, width, self.linear_bias) * (2 if self.gated else 1)
        return inner + self._linear(width, self.hidden, self.linear_bias)

    @property
    def mlp_parameters(self) -> int:
        """The plain MLP of a dense layer."""
        return self._mlp(self.intermediate)

    @property
    def expert_parameters(self) -> int:
        """One routed expert; 0 without experts."""
        return 0 if self.experts is None else self._mlp(self.experts.intermediate)

    @property
    def shared_expert_parameters(self) -> int:
        """All shared experts of a layer together; 0 without."""
        return 0 if self.experts is None or not self.experts.shared else self._mlp(self.experts.shared_width)

    @property
    def router_parameters(self) -> int:
        """Of one layer; 0 without experts."""
        return 0 if self.experts is None else self.hidden * self.experts.count + self.experts.count * self.experts.router_bias

    def layer_parameters(self, kind: LayerKind) -> int:
        """One layer of a kind, with its two norms."""
        return self._layer(kind, self.experts.count if self.experts else 0)

    def activated_layer_parameters(self, kind: LayerKind) -> int:
        """What one token meets in a layer of a kind: as `layer_parameters`, with top_k routed experts."""
        return self._layer(kind, self.experts.top_k if self.experts else 0)

    def _layer(self, kind: LayerKind, experts: int) -> int:
        rest = self.attention_parameters + 2 * self._norm(self.hidden)
        if kind == "dense":
            return rest + self.mlp_parameters
        return rest + self.router_parameters + experts * self.expert_parameters + self.shared_expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """The table of tokens, and that of positions where they are learned."""
        return (self.vocab + self.learned_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output projection; 0 where it is the embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def _outside(self) -> int:
        return self.embedding_parameters + self.head_parameters + self._norm(self.hidden)

    @property
    def parameters(self) -> int:
        """All of them. Multi-token prediction modules are no part of the model (DeepSeek-V3: 671e9, not 685e9)."""
        return self._outside + sum(self.layer_parameters(kind) for kind in self.layer_kinds)

    @property
    def activated_parameters(self) -> int:
        """Of one token: top_k experts in place of all; embedding and head whole, as Mixtral and Qwen count them."""
        return self._outside + sum(self.activated_layer_parameters(kind) for kind in self.layer_kinds)

    @property
    def multiplied_parameters(self) -> int:
        """Elements of the matrices that one token is multiplied with: no lookup tables, norms, biases; the head, tied or not."""
        return self.vocab * self.hidden + sum(self._multiplied(kind) for kind in self.layer_kinds)

    def _multiplied(self, kind: LayerKind) -> int:
        bare = msgspec.structs.replace(self, qkv_bias=False, linear_bias=False, qk_norm=False)
        attention = bare.attention_parameters
        if self.latent is not None:
            attention -= self._norm(self.latent.kv_rank) + self._norm(self.latent.query_rank or 0)
        if kind == "dense" or self.experts is None:
            return attention + bare.mlp_parameters
        router = self.hidden * self.experts.count
        return attention + router + self.experts.top_k * bare.expert_parameters + bare.shared_expert_parameters

    # Floating-point operations: a multiply-add is two.

    def forward_flops_per_token(self, keys: float) -> float:
        """Matrix products of one token that sees `keys` keys (itself included): 2 per element of a matrix, and attention.

        Megatron's formulas (arXiv 2104.04473, appendix) take keys = sequence length; causal kernels do about half: `causal_keys`.
        """
        return 2.0 * self.multiplied_parameters + self.layers * self.attention_flops_per_token(keys)

    def attention_flops_per_token(self, keys: float) -> float:
        """Scores and weighted values of one token in one layer: 2 * heads * keys * (head_dim + value_dim)."""
        return 2.0 * self.heads * keys * (self.head_dim + self.value_dim)

    def train_flops_per_token(self, keys: float) -> float:
        """Forward and backward, which is twice the forward; recomputation is not counted."""
        return 3.0 * self.forward_flops_per_token(keys)

    def causal_keys(self, sequence: int) -> float:
        """Keys that a token of a causal sequence sees on average, itself included, within the sliding window."""
        window = min(self.sliding_window or sequence, sequence)
        return (window * (window + 1) / 2 + (sequence - window) * window) / sequence
