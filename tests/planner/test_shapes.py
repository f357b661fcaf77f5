"""Shapes and parameters by hand: latent attention, experts divided in each way, and what ranks hold together."""

from __future__ import annotations

import pytest

from tests.schedule.scenarios import DENSE, mixture
from underlap.cost.work import Attention, Gemm, Transfer
from underlap.expansion import expand
from underlap.layout import Layout
from underlap.model import LatentAttention, Model
from underlap.plan import OpKind, Plan
from underlap.planner import plan
from underlap.workload import Train

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
