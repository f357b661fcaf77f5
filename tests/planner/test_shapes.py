"""Shapes and parameters by hand: latent attention, experts divided in each way, and what ranks hold together."""

from __future__ import annotations

import math

import msgspec
import pytest

from tests.schedule.scenarios import DENSE, mixture
from underlap.cost.work import Attention, Gemm, Stream, Transfer
from underlap.expansion import expand
from underlap.layout import Layout
from underlap.meetings import validate
from underlap.model import LatentAttention, Model
from underlap.plan import OpKind, Plan, Scope
from underlap.planner import plan
from underlap.workload import Prefill, Train

SEQUENCE = 64
LATENT = Model(
    name="latent",
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=4,
    head_dim=12,
    intermediate=128,
    vocab=256,
    latent=LatentAttention(query_rank=24, kv_rank=16, nope_head_dim=8, rope_head_dim=4, value_head_dim=8),
    source="made for tests",
)


def planned(model: Model, layout: Layout, micro_batches: int = 2) -> Plan:
    workload = Train(gbs=layout.dp * layout.fsdp * micro_batches, mbs=1, seq=SEQUENCE)
    return plan(model, layout, workload, domain=8)


def products(made: Plan, block: str, phase: str = "forward") -> dict[str, tuple[int, int, int]]:
    """(m, n, k) of each product of a block."""
    found = {}
    for operation in made.blocks[block].operations:
        if isinstance(operation.work, Gemm) and operation.phase == phase:
            found[operation.role] = (operation.work.m, operation.work.n, operation.work.k)
    return found


def moved(made: Plan, block: str) -> dict[str, tuple[str, float]]:
    """(collective, payload) of each collective of a block."""
    return {
        operation.role: (operation.work.collective, operation.work.payload_bytes)
        for operation in made.blocks[block].operations
        if operation.kind == OpKind.ISSUE and isinstance(operation.work, Transfer)
    }


def test_latent_attention_goes_down_to_latents_and_up_to_the_heads_of_this_rank() -> None:
    # Two of four heads on each of two ranks; 24 + 16 + 4 wide latents on both, as they belong to no head.
    found = products(planned(LATENT, Layout(tp=2)), "dense.forward")
    assert found["attention.down"] == (SEQUENCE, 44, 64)
    assert found["attention.query_up"] == (SEQUENCE, 2 * 12, 24)
    assert found["attention.key_up"] == (SEQUENCE, 2 * (8 + 8), 16)
    assert found["attention.output"] == (SEQUENCE, 64, 2 * 8)


def test_latent_attention_has_keys_of_twelve_and_values_of_eight_for_every_head() -> None:
    made = planned(LATENT, Layout(tp=2))
    (work,) = [o.work for o in made.blocks["dense.forward"].operations if isinstance(o.work, Attention)]
    assert (work.heads, work.kv_heads, work.head_dim, work.value_dim) == (2, 2, 12, 8)
    # Queries and keys of 12, values of 8, for each of two heads; the result has 8 for each.
    assert made.buffers["qkv"].shape == (SEQUENCE, 2 * (12 + 12 + 8))
    assert made.buffers["context"].shape == (SEQUENCE, 2 * 8)
    assert made.buffers["latent"].nbytes == SEQUENCE * 44 * 2


def test_latent_attention_backward_has_both_gradients_of_each_product() -> None:
    made = planned(LATENT, Layout(tp=2))
    forward, inputs, weights = (
        products(made, f"dense.{b}", phase)
        for b, phase in (("forward", "forward"), ("backward", "backward"), ("backward", "weight_grad"))
    )
    assert inputs == {role: (m, k, n) for role, (m, n, k) in forward.items()}
    assert weights == {role: (k, n, m) for role, (m, n, k) in forward.items()}


# Four sequence tokens in five: 8 experts of width 32, two choices, tokens of 64 elements in bf16.
CHOICES, INNER, TOKEN = 2, 32, 64 * 2


def test_divided_experts_gather_the_tokens_of_both_tensor_ranks() -> None:
    # Sequence parallelism: 32 rows a rank, each sent twice; both etp ranks need all 128, for half of each of four experts.
    made = planned(mixture(shared=0, dense_layers=0), Layout(dp=2, tp=2, sp=True, ep=2))
    sent = 32 * CHOICES
    found = products(made, "experts.forward")
    assert found["router.logits"] == (32, 8, 64)
    assert found["experts.up"] == (2 * sent, 2 * INNER // 2, 64)
    assert found["experts.down"] == (2 * sent, 64, INNER // 2)
    collectives = moved(made, "experts.forward")
    assert collectives["experts.dispatch"] == ("all_to_all", sent * TOKEN)
    assert collectives["experts.dispatch.gather"] == ("all_gather", 2 * sent * TOKEN)
    assert collectives["experts.combine.reduce"] == ("reduce_scatter", 2 * sent * TOKEN)
    assert collectives["experts.combine"] == ("all_to_all", sent * TOKEN)


def test_whole_experts_without_sequence_parallelism_get_half_of_the_tokens_from_each_tensor_rank() -> None:
    made = planned(mixture(shared=0, dense_layers=0), Layout(dp=2, tp=2, ep=4, etp=1))
    sent = SEQUENCE // 2 * CHOICES
    found = products(made, "experts.forward")
    assert found["router.logits"] == (SEQUENCE // 2, 8, 64)
    assert found["experts.up"] == (sent, 2 * INNER, 64)
    collectives = moved(made, "experts.forward")
    assert collectives["experts.dispatch"] == ("all_to_all", sent * TOKEN)
    assert collectives["experts.gather"] == ("all_gather", SEQUENCE * TOKEN)


def test_divided_experts_without_sequence_parallelism_add_up_what_their_halves_give() -> None:
    made = planned(mixture(shared=0, dense_layers=0), Layout(dp=2, tp=2, ep=2))
    sent = SEQUENCE * CHOICES
    assert products(made, "experts.forward")["experts.up"] == (sent, 2 * INNER // 2, 64)
    collectives = moved(made, "experts.forward")
    assert collectives["experts.dispatch"] == ("all_to_all", sent * TOKEN)
    assert collectives["experts.sum"] == ("all_reduce", SEQUENCE * TOKEN)


_LAYOUTS = [
    Layout(),
    Layout(pp=2),
    Layout(tp=2, pp=2, sp=True),
    Layout(dp=2, tp=2, ep=2),
    Layout(dp=2, tp=2, ep=4, etp=1),
    Layout(dp=2, tp=2, sp=True, ep=2),
    Layout(dp=4, ep=4, pp=2),
    Layout(dp=4, zero=3),
    Layout(dp=2, cp=2, pp=2, schedule="dualpipev"),
]


@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("model", [DENSE, mixture(shared=1, dense_layers=1), LATENT], ids=lambda model: model.name)
def test_parameters_of_all_ranks_are_the_models_times_their_copies(model: Model, layout: Layout) -> None:
    if (model.experts is None and layout.ep > 1) or layout.chunks * layout.pp > model.layers:
        pytest.skip("the layout is not for this model")
    made = planned(model, layout, micro_batches=4)
    held = 0.0
    for role in made.roles:
        expansion = expand(made, role)
        for instance in {int(value) for value in expansion.accesses.instance}:
            name, _, _ = expansion.decode(instance)
            if name.startswith("weight."):
                held += role.multiplicity * made.buffers[name].nbytes / 2 / copies(name, layout)
    # Norms within latent attention are no operations of a plan.
    missing = model.layers * (24 + 16) if model.latent else 0
    assert held == model.parameters - missing


def copies(weight: str, layout: Layout) -> int:
    """On how many ranks of a stage the same part of a weight lies, while it is whole."""
    name = weight.removeprefix("weight.")
    if name.startswith("experts."):
        return layout.edp
    same_on_tp = name.endswith("norm") or name in ("router.logits", "attention.down")
    return layout.dp * layout.fsdp * layout.cp * (layout.tp if same_on_tp else 1)


@pytest.mark.parametrize("layout", [one for one in _LAYOUTS if one.tp == 1 or one.sp or one.etp == 1])
@pytest.mark.parametrize("model", [DENSE, mixture(shared=1, dense_layers=1)], ids=lambda model: model.name)
def test_products_of_a_step_are_twice_the_multiplied_parameters_per_token_forward_and_twice_that_backward(
    model: Model, layout: Layout
) -> None:
    if model.experts is None and layout.ep > 1:
        pytest.skip("the layout is not for this model")
    made = planned(model, layout, micro_batches=4)
    done = {"forward": 0.0, "backward": 0.0, "weight_grad": 0.0}
    for role in made.roles:
        for step in role.program:
            for operation in made.blocks[step.block].operations:
                if isinstance(operation.work, Gemm):
                    done[operation.phase] += role.multiplicity * operation.work.flops
    tokens = 4 * layout.dp * layout.fsdp * SEQUENCE
    assert done == dict.fromkeys(done, 2.0 * tokens * model.multiplied_parameters)


# Queries and keys with norms of their own: two of four query heads and one of two key heads on each rank, 16 wide.

NORMED = Model(
    name="normed",
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=128,
    vocab=256,
    qk_norm=True,
    source="made for tests",
)


def test_norms_of_queries_and_keys_keep_what_they_were_and_stream_it_both_ways() -> None:
    made = planned(NORMED, Layout(tp=2))
    size = SEQUENCE * (2 + 1) * 16
    assert made.buffers["attention.unnormed"].nbytes == size * 2
    forward, backward = (
        next(o for o in made.blocks[f"dense.{block}"].operations if o.role == "attention.qk_norm")
        for block in ("forward", "backward")
    )
    assert forward.work == Stream(read_bytes=2 * size, write_bytes=2 * size, flops=4 * size)
    assert backward.work == Stream(read_bytes=4 * size, write_bytes=2 * size, flops=8 * size)
    assert {access.buffer for access in backward.writes} == {
        "grad.qkv",
        "gradient.attention.query_norm",
        "gradient.attention.key_norm",
    }


def test_their_weights_are_whole_on_every_tensor_rank_and_their_gradients_are_added_up_there() -> None:
    made = planned(NORMED, Layout(tp=2))
    assert made.buffers["weight.attention.query_norm"].shape == made.buffers["weight.attention.key_norm"].shape == (16,)
    assert moved(made, "dense.optimizer") == {"gradients.sum": ("all_reduce", 2 * 16 * 4)}
    # Norms of the stream join them where ranks have other tokens.
    assert moved(planned(NORMED, Layout(tp=2, sp=True)), "dense.optimizer") == {
        "gradients.sum": ("all_reduce", (2 * 16 + 2 * 64) * 4)
    }
    assert moved(planned(NORMED, Layout(dp=2)), "dense.optimizer") == {}


def test_a_prefill_norms_queries_and_keys_and_keeps_nothing_for_a_backward() -> None:
    made = plan(NORMED, Layout(tp=2), Prefill(batch=1, seq=SEQUENCE), domain=8)
    assert "attention.unnormed" not in made.buffers
    (norm,) = [o for o in made.blocks["dense.forward"].operations if o.role == "attention.qk_norm"]
    assert [access.buffer for access in norm.writes] == ["qkv"]


def test_the_weights_of_a_plan_on_one_rank_are_the_parameters_of_the_model() -> None:
    made = planned(NORMED, Layout())
    layers = {True: NORMED.layers, False: 1}
    total = sum(
        math.prod(buffer.shape) * layers[bool(buffer.scope & Scope.LAYER)]
        for name, buffer in made.buffers.items()
        if name.startswith("weight.")
    )
    assert total == NORMED.parameters


# A head that is the embedding: 256 tokens of 64 elements.

TIED = msgspec.structs.replace(NORMED, name="tied", qk_norm=False, tied_embeddings=True)
TIED_DEEP = msgspec.structs.replace(TIED, layers=4)


def test_a_tied_head_on_the_rank_of_the_embedding_has_no_weight_of_its_own() -> None:
    made = planned(TIED, Layout())
    assert not {name for name in made.buffers if name.endswith(("head.logits", "head.tokens"))}
    (logits,) = [o for o in made.blocks["head.forward"].operations if o.role == "head.logits"]
    assert "weight.embedding.tokens" in {access.buffer for access in logits.reads}
    written = [
        o for name in ("head", "embedding") for o in made.blocks[f"{name}.backward"].operations if o.phase == "weight_grad"
    ]
    assert [[access.buffer for access in o.writes] for o in written] == [["gradient.embedding.tokens"]] * 2


@pytest.mark.parametrize("zero", [0, 1])
def test_the_first_and_the_last_stage_send_each_other_their_gradients_of_a_tied_table(zero: int) -> None:
    made = planned(TIED, Layout(pp=2, dp=2, zero=zero))
    validate(made)
    # In fp32; with ZeRO-1 the half that each replica has the states of.
    payload = 256 * 64 * 4 / (1 + zero)
    for name, ways in (("embedding", ("", "other.embedding.tokens")), ("head", ("other.head.tokens", ""))):
        block = made.blocks[f"{name}.tie.optimizer"]
        assert moved(made, block.name) == dict.fromkeys(("tie.onward", "tie.back"), ("send", payload))
        received = [o.writes[0].buffer if o.writes else "" for o in block.operations if o.kind == OpKind.ISSUE]
        assert tuple(received) == ways


def test_both_ends_of_a_v_lie_on_one_rank_which_shares_the_table() -> None:
    made = planned(TIED_DEEP, Layout(pp=2, schedule="dualpipev"), micro_batches=4)
    validate(made)
    assert not [name for name in made.blocks if "tie" in name]
    assert "weight.head.tokens" not in made.buffers
