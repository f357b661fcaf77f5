"""Every pass keeps bytes, data dependences and meetings, on plans of all kinds; and what each moves where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.scenarios import DENSE, Drawn, mixture, scenarios
from underlap.layout import Layout
from underlap.meetings import validate
from underlap.plan import OpKind, Plan
from underlap.planner import plan
from underlap.policy import PASSES, POLICY_AXES, Policy, parse_policy
from underlap.schedule import apply, check_kept
from underlap.workload import Train

_TEXTS = [
    f"{axis}={name}" + {"bucket": ":4kB", "prefetch": ":1", "decompose": ":2"}.get(name, "")
    for name, known in PASSES.items()
    for axis in known.axes
    if axis in POLICY_AXES
]


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_every_planned_scenario_is_valid_before_any_pass(drawn: Drawn) -> None:
    validate(drawn.plan())


@settings(max_examples=150, deadline=None)
@given(scenarios(), st.sampled_from(_TEXTS))
def test_a_pass_keeps_bytes_and_dependences_or_is_refused_with_a_reason(drawn: Drawn, text: str) -> None:
    made = drawn.plan()
    done = apply(made, parse_policy(text))
    if done.refused:
        (refusal,) = done.refused
        assert len(refusal.reason) > 20
        assert done.plan == made
        return
    assert done.plan.passes
    validate(done.plan)
    check_kept(made, done.plan)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.lists(st.sampled_from(_TEXTS), min_size=2, max_size=4, unique_by=lambda text: text.split("=")[0]))
def test_passes_of_several_axes_together_keep_bytes_and_dependences(drawn: Drawn, texts: list[str]) -> None:
    made = drawn.plan()
    done = apply(made, parse_policy(",".join(texts)))
    validate(done.plan)
    check_kept(made, done.plan)


def trained(layout: Layout, *, mbs: int = 2, experts: bool = False, count: int = 2) -> Plan:
    model = mixture(shared=1, dense_layers=0) if experts else DENSE
    return plan(model, layout, Train(gbs=layout.dp * layout.fsdp * mbs * count, mbs=mbs, seq=64), domain=8)


def between(made: Plan, block: str, role: str, phase: str, part: int = 0) -> list[str]:
    """The operations of a block between a collective's issue and its wait."""
    operations = made.blocks[block].operations
    wanted = (role, phase, part)
    at = [i for i, o in enumerate(operations) if (o.role, o.phase, o.part) == wanted and o.kind >= OpKind.ISSUE]
    return [f"{o.phase}/{o.role}" for o in operations[at[0] + 1 : at[1]] if o.kind == OpKind.COMPUTE]


def applied(made: Plan, text: str) -> Plan:
    done = apply(made, parse_policy(text))
    assert done.refused == ()
    return done.plan


def test_nothing_lies_between_issue_and_wait_before_any_pass() -> None:
    made = trained(Layout(tp=2))
    assert between(made, "dense.forward", "attention.reduce", "forward") == []


def test_an_empty_policy_leaves_the_plan_as_it_is() -> None:
    made = trained(Layout(tp=2))
    assert apply(made, Policy()).plan is made


def test_delayed_weight_gradients_lie_beside_the_all_reduce_of_the_input_gradient() -> None:
    made = applied(trained(Layout(tp=2)), "tp=delay_wgrad")
    assert "weight_grad/mlp.up" in between(made, "dense.backward", "mlp.gather", "backward")


def test_two_half_batches_put_the_other_halfs_compute_beside_each_all_reduce() -> None:
    made = applied(trained(Layout(tp=2)), "tp=split_batch")
    block = next(name for name in made.blocks if name.startswith("dense.forward.split.behind"))
    assert between(made, block, "attention.reduce", "forward", part=0).count("forward/attention.core") == 1


def test_the_ring_has_its_next_block_under_way_while_attention_works() -> None:
    made = applied(trained(Layout(cp=2)), "cp=ring")
    assert "forward/attention.core" in between(made, "dense.forward", "attention.ring", "forward")


def test_shared_experts_run_beside_the_dispatch_of_tokens() -> None:
    made = applied(trained(Layout(dp=2, ep=2), experts=True), "ep=shared_expert")
    assert "forward/shared.up" in between(made, "experts.forward", "experts.dispatch", "forward")


def test_prefetch_gathers_the_next_layer_before_this_one_computes_and_doubles_the_pool() -> None:
    before = trained(Layout(fsdp=2))
    made = applied(before, "fsdp=prefetch")
    block = made.blocks["dense.forward.ahead_dense.behind_dense"]
    first = next(o for o in block.operations if o.kind == OpKind.ISSUE)
    assert (first.role, first.layer) == ("weights.gather.dense", 1)
    assert made.pools["gathered"] == 2 * before.pools["gathered"]


@pytest.mark.parametrize("policy", ["tp=split_batch,fsdp=prefetch", "tp=decompose:2,fsdp=prefetch:2"])
def test_layers_in_parts_or_chunks_still_have_their_weights_prefetched(policy: str) -> None:
    before = trained(Layout(tp=2, fsdp=2, pp=2), mbs=1)
    made = applied(before, policy)
    validate(made)
    check_kept(before, made)
    assert made.pools["gathered"] > before.pools["gathered"]


def test_buckets_are_issued_within_the_last_backward_and_waited_for_before_the_optimizer() -> None:
    made = applied(trained(Layout(dp=2)), "dp=bucket:1kB")
    steps = [step.block for step in made.roles[0].program]
    issues = [at for at, name in enumerate(steps) if name.startswith("bucket.")]
    backward = [at for at, name in enumerate(steps) if name.startswith("dense.backward")]
    waits, optimizer = steps.index("wait.buckets.stage0"), next(at for at, name in enumerate(steps) if name.endswith("optimizer"))
    assert issues[0] < backward[-1] < waits < optimizer


def test_a_bucket_as_large_as_everything_is_one_collective_that_nothing_hides() -> None:
    made = applied(trained(Layout(dp=2)), "dp=bucket:1GB")
    assert sum(step.block.startswith("bucket.") for step in made.roles[0].program) == 1


def test_in_pairs_the_all_to_alls_of_one_micro_batch_lie_beside_compute_of_the_other() -> None:
    made = applied(trained(Layout(dp=2, ep=2), experts=True, count=3), "ep=pair_forward_backward")
    (name,) = [name for name in made.blocks if name.startswith("paired")]
    assert sum(step.block == name for step in made.roles[0].program) == 2 * 4  # two pairs of micro-batches, four layers
    assert between(made, name, "experts.combine", "backward")[:2] == ["forward/attention.norm", "forward/attention.qkv"]
    assert "weight_grad/experts.down" in between(made, name, "experts.dispatch", "forward")
    assert "forward/experts.down" in between(made, name, "experts.dispatch", "backward")
    assert "backward/attention.core" in between(made, name, "experts.combine", "forward")


def test_pairs_go_through_layers_in_opposite_directions_and_keep_two_layers_weights_at_a_time() -> None:
    before = trained(Layout(fsdp=2, tp=2), count=2)
    made = applied(before, "tp=pair_forward_backward")
    steps = [step for step in made.roles[0].program if step.block.startswith("paired")]
    assert [(step.place.layer, step.second.layer) for step in steps] == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert {(step.place.micro_batch, step.second.micro_batch) for step in steps} == {(1, 0)}
    assert made.pools["gathered"] == 2 * before.pools["gathered"]


@pytest.mark.parametrize(
    ("layout", "text", "reason"),
    [
        (Layout(dp=2), "tp=split_batch", "no layer communicates over tp"),
        (Layout(fsdp=2), "dp=bucket:1MB", "use prefetch"),
        (Layout(dp=2), "fsdp=prefetch", "not sharded"),
        (Layout(cp=2, context="ulysses"), "cp=ring", "use context=ring"),
        (Layout(tp=2), "ep=shared_expert", "no layer has shared experts"),
        (Layout(tp=2), "pp=async_p2p", "one stage only"),
        (Layout(tp=2), "tp=decompose:2+split_batch", "in chunks of rows already"),
        (Layout(pp=2), "pp=delay_wgrad", "use schedule=zb-h1"),
        (Layout(dp=2), "tp=pair_forward_backward", "no layer communicates over tp"),
    ],
)
def test_a_pass_without_its_precondition_says_what_is_missing(layout: Layout, text: str, reason: str) -> None:
    (refusal,) = apply(trained(layout), parse_policy(text)).refused
    assert reason in refusal.reason


def test_pairs_are_refused_with_full_recomputation_for_one_micro_batch_and_for_split_layers() -> None:
    layout = Layout(tp=2)

    def reason(made: Plan, text: str) -> str:
        return apply(made, parse_policy(text)).refused[-1].reason

    full = plan(DENSE, layout, Train(gbs=2, mbs=1, seq=64, recompute="full"), domain=8)
    assert "use recompute=selective or none" in reason(full, "tp=pair_forward_backward")
    assert "use more micro-batches" in reason(trained(layout, count=1), "tp=pair_forward_backward")
    assert "leave split_batch or prefetch out" in reason(trained(layout), "tp=split_batch+pair_forward_backward")
    assert "leave pair_forward_backward out" in reason(trained(Layout(tp=2, fsdp=2)), "tp=pair_forward_backward,fsdp=prefetch")
    assert "already" in reason(trained(layout), "tp=pair_forward_backward,pp=pair_forward_backward")


def test_a_micro_batch_of_one_sequence_is_split_by_position_and_backward_from_the_end() -> None:
    made = applied(trained(Layout(tp=2), mbs=1), "tp=split_batch")
    forward = made.blocks["dense.forward.split"].operations
    backward = made.blocks["dense.backward.split"].operations
    contexts = [o.work.context for o in forward if o.role == "attention.core"]  # type: ignore[union-attr]  # works of attention.core have a context
    parts = [o.part for o in backward if o.role == "attention.core"]
    assert (contexts, parts) == ([32, 64], [1, 0])
