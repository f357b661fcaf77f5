"""Bytes of plans against closed formulas of the literature (underlap.cost.formulas), and against the buffers they move."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from tests.schedule.scenarios import DENSE, Drawn, mixture, scenarios
from underlap.cost import formulas
from underlap.cost.work import Transfer
from underlap.expansion import expand
from underlap.layout import Layout
from underlap.ledger import ledger
from underlap.model import Model
from underlap.plan import OpKind, Plan
from underlap.planner import plan
from underlap.workload import Train

SEQUENCE, BF16 = 64, 2
HIDDEN, LAYERS = DENSE.hidden, DENSE.layers
KV = DENSE.kv_heads * DENSE.head_dim


def planned(layout: Layout, *, model: Model = DENSE, micro_batches: int = 1, gradients: str = "bf16") -> Plan:
    workload = Train(gbs=layout.dp * layout.fsdp * micro_batches, mbs=1, seq=SEQUENCE, gradients=gradients)  # type: ignore[arg-type]  # str of the parametrization
    return plan(model, layout, workload, domain=8)


def sent(made: Plan, group: str, collective: str | None = None) -> float:
    """Bytes that leave one rank in one step, the mean over ranks."""
    entries = [e for e in ledger(made) if e.group == group and collective in (None, e.collective)]
    return sum(entry.sent_bytes for entry in entries) / made.world


def in_layers(made: Plan, group: str, phases: tuple[str, ...]) -> tuple[float, float]:
    """(payload, bytes sent) of one rank in one of its layers."""
    payload = moved = 0.0
    for block in made.blocks.values():
        for operation in block.operations:
            if block.name.startswith(("dense.", "experts.")) and operation.group == group and operation.phase in phases:
                work = operation.work
                assert isinstance(work, Transfer)
                payload += work.payload_bytes
                moved += formulas.link_bytes(work.collective, work.payload_bytes, work.ranks)
    return payload, moved


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_every_payload_is_the_size_of_the_buffers_that_it_moves(drawn: Drawn) -> None:
    made = drawn.plan()
    for block in made.blocks.values():
        for operation in block.operations:
            if operation.kind == OpKind.ISSUE and isinstance(operation.work, Transfer):
                whole = operation.writes if operation.work.collective == "all_gather" else operation.reads or operation.writes
                moved = operation.work.payload_bytes * operation.work.gathered
                assert moved == pytest.approx(sum(made.buffers[a.buffer].nbytes for a in whole)), operation.role


@pytest.mark.parametrize("sp", [False, True])
def test_ranks_of_tensor_parallelism_send_a_part_each_of_what_goes_to_the_next_stage(sp: bool) -> None:
    made = planned(Layout(tp=4, pp=2, sp=sp))
    message = next(o.work for o in made.blocks["send.forward"].operations)

    assert isinstance(message, Transfer)
    assert message.payload_bytes == formulas.pipeline_boundary_bytes(SEQUENCE, HIDDEN, BF16, tp=4)
    # With sequence parallelism they hold different parts, so there is nothing to gather.
    assert message.gathered == (1 if sp else 4)


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallelism_sends_four_all_reduces_per_layer(tp: int) -> None:
    made = planned(Layout(tp=tp))
    expected = formulas.tensor_parallel_link_bytes(SEQUENCE, HIDDEN, BF16, tp)
    assert in_layers(made, "tp", ("forward", "backward"))[1] == pytest.approx(expected)
    # Beside them: the sum of embeddings, of the gradient of the head's input, and three numbers per token for the loss.
    ends = formulas.link_bytes("all_reduce", 2 * SEQUENCE * HIDDEN * BF16 + 3 * 4 * SEQUENCE, tp)
    assert sent(made, "tp") == pytest.approx(LAYERS * expected + ends)


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_sends_the_same_and_gathers_both_inputs_again_in_the_backward(tp: int) -> None:
    made = planned(Layout(tp=tp, sp=True))
    moved = in_layers(made, "tp", ("forward", "backward"))[1]
    expected = formulas.tensor_parallel_link_bytes(SEQUENCE, HIDDEN, BF16, tp)
    again = formulas.sequence_parallel_regather_bytes(SEQUENCE, HIDDEN, BF16, tp)
    assert moved == pytest.approx(expected + again)


@pytest.mark.parametrize("dp", [2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_data_parallelism_sends_two_parameters_for_each_under_zero_0_to_2(stage: int, dp: int) -> None:
    made = planned(Layout(dp=dp, zero=stage))
    group = "fsdp" if stage else "dp"
    assert sent(made, group) == pytest.approx(formulas.zero_link_bytes(stage, DENSE.parameters, BF16, dp))


@pytest.mark.parametrize("layout", [Layout(dp=4, zero=3), Layout(fsdp=4)])
def test_zero_3_sends_three_but_one_gather_of_the_embedding_which_its_gradient_does_not_need(layout: Layout) -> None:
    whole = formulas.zero_link_bytes(3, DENSE.parameters, BF16, 4)
    spared = formulas.link_bytes("all_gather", DENSE.vocab * HIDDEN * BF16, 4)
    assert sent(planned(layout), "fsdp") == pytest.approx(whole - spared)


def test_zero_2_scatters_and_zero_3_also_gathers_in_every_micro_batch() -> None:
    one, four = (planned(Layout(dp=4, zero=2), micro_batches=count) for count in (1, 4))
    assert sent(four, "fsdp", "reduce_scatter") == 4 * sent(one, "fsdp", "reduce_scatter")
    assert sent(four, "fsdp", "all_gather") == sent(one, "fsdp", "all_gather")
    one, four = (planned(Layout(fsdp=4), micro_batches=count) for count in (1, 4))
    assert sent(four, "fsdp") == 4 * sent(one, "fsdp")


def test_gradients_in_fp32_double_what_is_reduced_and_leave_what_is_gathered() -> None:
    narrow, wide = (planned(Layout(fsdp=4), gradients=precision) for precision in ("bf16", "fp32"))
    assert sent(wide, "fsdp", "reduce_scatter") == 2 * sent(narrow, "fsdp", "reduce_scatter")
    assert sent(wide, "fsdp", "all_gather") == sent(narrow, "fsdp", "all_gather")


def test_hybrid_sharding_all_reduces_one_shard_over_the_replicas() -> None:
    made = planned(Layout(dp=2, fsdp=4))
    shard = DENSE.parameters * BF16 / 4
    assert sent(made, "dp") == pytest.approx(formulas.link_bytes("all_reduce", shard, 2))
    assert sent(made, "fsdp", "reduce_scatter") == pytest.approx(
        formulas.link_bytes("reduce_scatter", DENSE.parameters * BF16, 4)
    )


@pytest.mark.parametrize("cp", [2, 4])
def test_a_ring_sends_its_keys_and_values_to_all_others_and_backward_their_gradients_one_step_further(cp: int) -> None:
    made = planned(Layout(cp=cp))
    once = formulas.ring_attention_bytes(SEQUENCE, DENSE.kv_heads, DENSE.head_dim, BF16, cp)
    assert in_layers(made, "cp", ("forward",))[1] == once
    # The formula's backward is twice the forward. Gradients that go with their block come home by one more message; they are
    # sent in bf16 here, where some implementations send fp32.
    assert in_layers(made, "cp", ("backward",))[1] == 2 * once + once / (cp - 1)


@pytest.mark.parametrize("cp", [2, 4])
def test_ulysses_sends_queries_keys_values_and_results_each_way(cp: int) -> None:
    made = planned(Layout(cp=cp, context="ulysses"))
    expected = formulas.ulysses_payload(SEQUENCE, HIDDEN, KV, BF16, cp)
    assert in_layers(made, "cp", ("forward",))[0] == expected
    assert in_layers(made, "cp", ("backward",))[0] == expected


@pytest.mark.parametrize("ep", [2, 4])
def test_experts_get_and_give_back_each_token_once_per_choice_forward_and_backward(ep: int) -> None:
    made = planned(Layout(dp=ep, ep=ep), model=mixture(shared=0, dense_layers=0))
    expected = formulas.expert_parallel_payload(SEQUENCE, HIDDEN, BF16, 2)
    assert in_layers(made, "ep", ("forward",))[0] == 2 * expected
    assert in_layers(made, "ep", ("backward",))[0] == 2 * expected


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize(("layout", "tp"), [(Layout(pp=4), 1), (Layout(pp=4, tp=2, sp=True), 2)])
def test_stages_send_the_stream_of_each_micro_batch_over_each_border_both_ways(schedule: str, layout: Layout, tp: int) -> None:
    made = planned(msgspec.structs.replace(layout, schedule=schedule), micro_batches=3)
    message = formulas.pipeline_boundary_bytes(SEQUENCE, HIDDEN, BF16, tp)
    # 3 borders; the last stage sends nothing forward, the first nothing backward.
    assert sent(made, "pp") * made.world == pytest.approx(2 * 3 * 3 * message * tp)


def test_without_sequence_parallelism_every_tp_rank_sends_the_whole_stream() -> None:
    # Megatron's scatter and gather around the border (arXiv 2104.04473, section 4.1) is not planned.
    one, two = planned(Layout(pp=2)), planned(Layout(pp=2, tp=2))
    assert sent(one, "pp") == sent(two, "pp")


def test_a_chunk_in_a_v_and_interleaved_chunks_cross_borders_more_often() -> None:
    message = formulas.pipeline_boundary_bytes(SEQUENCE, HIDDEN, BF16)
    interleaved = planned(Layout(pp=2, schedule="interleaved", virtual=2), micro_batches=4)
    v = planned(Layout(pp=2, schedule="dualpipev"), micro_batches=4)
    # 3 borders between 4 chunks; in the V the middle one stays on its rank.
    assert sent(interleaved, "pp") * 2 == 2 * 4 * 3 * message
    assert sent(v, "pp") * 2 == 2 * 4 * 2 * message


def test_calls_of_the_ledger_are_the_issues_of_the_rows() -> None:
    made = planned(Layout(tp=2, dp=2))
    rows = expand(made, made.roles[0]).rows
    assert sum(entry.calls for entry in ledger(made)) == int((rows.kind == OpKind.ISSUE).sum())
