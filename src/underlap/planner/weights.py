"""Weights, their gradients and states: which buffers a layer has, and what moves when they are sharded or reduced.

Left out, as too small to matter: biases, the bias of a layer norm, norms of latents, and the all-reduce over tp of the gradient
of the down projections of latent attention, which every tp rank holds whole.
"""

from __future__ import annotations

import dataclasses

from underlap.cost.work import ELEMENT_BYTES
from underlap.plan import Scope
from underlap.planner.drafting import Draft
from underlap.planner.groups import EXPERT_REPLICAS, EXPERT_STATES, REPLICAS, STATES
from underlap.planner.shapes import WIDE, Shapes
from underlap.workload import Train

GATHERED = "gathered"
"""The pool of whole weights where parameters are sharded (ZeRO-3): as many layers at a time as may be prefetched, and one."""

STATES_PER_PARAMETER = 3
"""Adam: a master copy and two moments, in fp32 (Rajbhandari et al. 2020, ZeRO, section 3.1: K = 12 bytes)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Weights that are sharded and reduced in one group: those of attention and MLP, or those of routed experts."""

    name: str
    shards: str
    """Group that states are sharded over."""
    replicas: str
    """Group that gradients are all-reduced over."""


DENSE = Family("dense", STATES, REPLICAS)
EXPERT = Family("expert", EXPERT_STATES, EXPERT_REPLICAS)


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of one rank, before sharding."""

    name: str
    shape: tuple[int, ...]
    family: Family = DENSE

    @property
    def size(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total


def attention_weights(shapes: Shapes) -> tuple[Matrix, ...]:
    """Of one layer: norm, projection to queries, keys and values, their norms, projection back."""
    hidden, model = shapes.hidden, shapes.model
    output = Matrix("attention.output", (shapes.context_width, hidden))
    norm = Matrix("attention.norm", (hidden,))
    if model.latent is None:
        return norm, Matrix("attention.qkv", (hidden, shapes.qkv_width)), *head_norms(shapes), output
    latent = model.latent
    queries = latent.query_rank or hidden
    down = (latent.query_rank or 0) + latent.kv_rank + latent.rope_head_dim
    return (
        norm,
        Matrix("attention.down", (hidden, down)),
        Matrix("attention.query_up", (queries, shapes.heads * model.head_dim)),
        Matrix("attention.key_up", (latent.kv_rank, shapes.heads * (latent.nope_head_dim + latent.value_head_dim))),
        output,
    )


def head_norms(shapes: Shapes) -> tuple[Matrix, ...]:
    """The weights of the norms of queries and of keys, one head wide and shared by all heads, where a model has such norms."""
    if not shapes.normed_width:
        return ()
    return tuple(Matrix(f"attention.{part}_norm", (shapes.model.head_dim,)) for part in ("query", "key"))


def mlp_weights(shapes: Shapes) -> tuple[Matrix, ...]:
    """Of one dense layer."""
    hidden, inner = shapes.hidden, shapes.model.intermediate // shapes.layout.tp
    wide = inner * (2 if shapes.model.gated else 1)
    return Matrix("mlp.norm", (hidden,)), Matrix("mlp.up", (hidden, wide)), Matrix("mlp.down", (inner, hidden))


def expert_weights(shapes: Shapes) -> tuple[Matrix, ...]:
    """Of one layer with experts: norm, router, the routed experts of this rank, the shared ones."""
    experts, hidden = shapes.model.experts, shapes.hidden
    assert experts is not None
    local, inner = experts.count // shapes.layout.ep, experts.intermediate // shapes.etp
    gates = 2 if shapes.model.gated else 1
    made = [
        Matrix("mlp.norm", (hidden,)),
        Matrix("router.logits", (hidden, experts.count)),
        Matrix("experts.up", (local, hidden, gates * inner), EXPERT),
        Matrix("experts.down", (local, inner, hidden), EXPERT),
    ]
    if experts.shared:
        width = experts.shared_width // shapes.layout.tp
        made += [Matrix("shared.up", (hidden, gates * width)), Matrix("shared.down", (width, hidden))]
    return tuple(made)


def layer_weights(shapes: Shapes, kind: str) -> tuple[Matrix, ...]:
    """All of one layer of a kind, `dense` or `experts`."""
    return (*attention_weights(shapes), *(mlp_weights(shapes) if kind == "dense" else expert_weights(shapes)))


def declare(draft: Draft, shapes: Shapes, matrices: tuple[Matrix, ...]) -> None:
    """The buffers of weights; when training also those of gradients and states."""
    for matrix in matrices:
        shards = draft.groups[matrix.family.shards].size
        sharded = parameters_sharded(shapes) and shards > 1
        scope = Scope.STEP if matrix.name.split(".")[0] in OUTSIDE else Scope.LAYER
        if sharded:
            draft.buffer(f"shard.{matrix.name}", -(-matrix.size // shards), scope=scope, persistent=True)
        draft.buffer(
            f"weight.{matrix.name}",
            *matrix.shape,
            scope=scope,
            persistent=not sharded,
            pool=GATHERED if sharded else None,
        )
        if isinstance(shapes.workload, Train):
            _declare_states(draft, shapes, matrix, scope, shards)


OUTSIDE = ("embedding", "head")
"""What belongs to no layer."""


def _declare_states(draft: Draft, shapes: Shapes, matrix: Matrix, scope: Scope, shards: int) -> None:
    """Gradients, from ZeRO-2 on only this rank's part beside the layer in progress; Adam's states, sharded from ZeRO-1 on."""
    workload = shapes.workload
    assert isinstance(workload, Train)
    stage = shapes.layout.zero_stage if shards > 1 else 0
    part = -(-matrix.size // shards) if stage else matrix.size
    draft.buffer(f"gradient.{matrix.name}", *matrix.shape, dtype=workload.gradients, scope=scope, persistent=stage < 2)
    if stage:
        draft.buffer(f"gradient_shard.{matrix.name}", part, dtype=workload.gradients, scope=scope, persistent=True)
    draft.buffer(f"state.{matrix.name}", part, STATES_PER_PARAMETER, dtype=WIDE, scope=scope, persistent=True)


def parameters_sharded(shapes: Shapes) -> bool:
    """Whether whole weights exist only while they are used (ZeRO-3)."""
    return shapes.layout.zero_stage == 3


def gather(draft: Draft, shapes: Shapes, matrices: tuple[Matrix, ...]) -> None:
    """ZeRO-3: all-gather the weights of a layer, one collective per family, waited for at once."""
    if not parameters_sharded(shapes):
        return
    size = _size(shapes.activation)
    for family, members in by_family(matrices):
        draft.collective(
            f"{_owner(matrices)}weights.gather.{family.name}",
            family.shards,
            "all_gather",
            size * sum(matrix.size for matrix in members),
            " ".join(f"shard.{matrix.name}" for matrix in members),
            " ".join(f"weight.{matrix.name}" for matrix in members),
        )


def reduce(draft: Draft, shapes: Shapes, matrices: tuple[Matrix, ...]) -> None:
    """Reduce the gradients of a layer: all-reduce over replicas, or reduce-scatter over shards and all-reduce what is left."""
    workload = shapes.workload
    assert isinstance(workload, Train)
    role = f"{_owner(matrices)}gradients"
    for family, members in by_family(matrices):
        payload = _size(workload.gradients) * sum(matrix.size for matrix in members)
        whole = " ".join(f"gradient.{matrix.name}" for matrix in members)
        shards = draft.groups[family.shards].size
        if shapes.layout.zero_stage and shards > 1:
            parts = " ".join(f"gradient_shard.{matrix.name}" for matrix in members)
            draft.collective(f"{role}.scatter.{family.name}", family.shards, "reduce_scatter", payload, whole, parts)
            whole, payload = parts, payload / shards
        draft.collective(f"{role}.reduce.{family.name}", family.replicas, "all_reduce", payload, whole, whole)


def optimize(draft: Draft, shapes: Shapes, matrices: tuple[Matrix, ...]) -> None:
    """Adam on this rank's part of a layer; with ZeRO-1 and 2 the new weights are gathered."""
    stage = shapes.layout.zero_stage
    _sum_copies(draft, shapes, matrices)
    for family, members in by_family(matrices):
        shards = draft.groups[family.shards].size if stage else 1
        count = sum(-(-matrix.size // shards) for matrix in members)
        gradient = "gradient_shard" if shards > 1 else "gradient"
        weight = "shard" if shards > 1 and stage == 3 else "weight"
        states = " ".join(f"state.{matrix.name}" for matrix in members)
        gradients = " ".join(f"{gradient}.{matrix.name}" for matrix in members)
        weights = " ".join(f"{weight}.{matrix.name}" for matrix in members)
        wide = count * STATES_PER_PARAMETER
        draft.compute(
            f"{_owner(matrices)}optimizer.step.{family.name}",
            # Reads gradient and states, writes states and the weight: fp32 all but the weight.
            shapes.bytes_stream(4 * (wide + count), 4 * wide + _size(shapes.activation) * count, 12 * count),
            f"{gradients} {states}",
            f"{states} {weights}",
        )
        if stage in (1, 2):
            payload = _size(shapes.activation) * sum(matrix.size for matrix in members)
            draft.collective(
                f"{_owner(matrices)}optimizer.gather.{family.name}", family.shards, "all_gather", payload, weights, weights
            )


def _sum_copies(draft: Draft, shapes: Shapes, matrices: tuple[Matrix, ...]) -> None:
    """All-reduce over tp the gradients of weights that its ranks have copies of, but saw different tokens with.

    With sequence parallelism these are the norms (Megatron: finalize_model_grads.py, _allreduce_layernorm_grads). Without it as
    well: the norms of queries and keys, as each rank has other heads, and the router, as of each choice a rank knows what its
    own part of the experts, or of the tokens, makes of it. Sums over replicas come before: sums can be taken in any order.
    """
    workload = shapes.workload
    assert isinstance(workload, Train)
    partial = ("router.logits", *(matrix.name for matrix in head_norms(shapes)))
    copied = [m for m in matrices if m.name in partial or (shapes.layout.sp and m.name.endswith(".norm"))]
    if not copied:
        return
    shards = draft.groups[STATES].size if shapes.layout.zero_stage else 1
    names = " ".join(f"{'gradient_shard' if shards > 1 else 'gradient'}.{matrix.name}" for matrix in copied)
    payload = _size(workload.gradients) * sum(-(-matrix.size // shards) for matrix in copied)
    draft.collective(f"{_owner(matrices)}gradients.sum", "tp", "all_reduce", payload, names, names)


def by_family(matrices: tuple[Matrix, ...]) -> list[tuple[Family, list[Matrix]]]:
    """The matrices of each family that has any."""
    pairs = [(family, [matrix for matrix in matrices if matrix.family is family]) for family in (DENSE, EXPERT)]
    return [(family, members) for family, members in pairs if members]


def _owner(matrices: tuple[Matrix, ...]) -> str:
    """A prefix that tells the ends of the model apart, which belong to no layer."""
    first = matrices[0].name.split(".")[0]
    return f"{first}." if first in OUTSIDE else ""


def _size(dtype: str) -> float:
    return ELEMENT_BYTES[dtype]
