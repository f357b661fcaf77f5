"""Pipeline schedules: all valid, the published bubbles with blocks of unit time and free messages, memory as published."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.planner.test_shapes import LATENT
from tests.schedule.scenarios import mixture
from underlap.cost import formulas
from underlap.errors import OptionError
from underlap.expansion import expand
from underlap.layout import Layout
from underlap.meetings import meetings, validate
from underlap.model import Model
from underlap.plan import OpKind, Plan
from underlap.plan_network import PlanNetwork, plan_network
from underlap.planner import plan
from underlap.planner.pipeline import Task, tasks
from underlap.policy import parse_policy
from underlap.replay import Times, network, replay
from underlap.schedule import apply, check_kept
from underlap.workload import Decode, Train

STAGES = (2, 3, 4, 5, 6)


def model(layers: int) -> Model:
    return Model(
        name="small",
        hidden=16,
        layers=layers,
        heads=2,
        kv_heads=2,
        head_dim=8,
        intermediate=16,
        vocab=32,
        source="made for tests",
    )


def layout_of(schedule: str, pp: int, **more: int) -> Layout:
    return Layout(pp=pp, schedule=schedule, virtual=2 if schedule == "interleaved" else 1, **more)  # type: ignore[arg-type]  # str of the parametrization


def counts(schedule: str, pp: int) -> tuple[int, ...]:
    """Micro-batches to try: few, as many as stages, more, many."""
    if schedule == "interleaved":
        return (pp, 2 * pp, 3 * pp)
    if schedule == "dualpipev":
        return (2 * pp, 2 * pp + 1, 3 * pp)
    return (1, 2, pp, 2 * pp + 1, 3 * pp)


def planned(layout: Layout, micro_batches: int) -> Plan:
    """One layer for each chunk."""
    workload = Train(gbs=micro_batches * layout.dp * layout.fsdp, mbs=1, seq=8)
    return plan(model(layout.pp * layout.chunks), layout, workload, domain=8)


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipev")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", STAGES)
def test_every_schedule_is_valid_for_few_and_many_micro_batches(schedule: str, pp: int) -> None:
    layout = layout_of(schedule, pp)
    for count in counts(schedule, pp):
        validate(planned(layout, count))


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
@pytest.mark.parametrize("pp", [2, 4])
def test_another_schedule_of_the_same_stages_keeps_bytes_and_data_dependences_of_1f1b(schedule: str, pp: int) -> None:
    check_kept(planned(layout_of("1f1b", pp), 2 * pp), planned(layout_of(schedule, pp), 2 * pp))


@pytest.mark.parametrize("model", [mixture(shared=1, dense_layers=1), LATENT], ids=lambda model: model.name)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_weight_gradients_put_off_keep_the_dependences_of_experts_latents_and_divided_sequences(
    model: Model, recompute: str
) -> None:
    layout = Layout(dp=2, tp=2, sp=True, pp=2, ep=2 if model.experts else 1, etp=1 if model.experts else None, zero=1)
    workload = Train(gbs=8, mbs=1, seq=64, recompute=recompute)  # type: ignore[arg-type]  # str of the parametrization
    before, after = (
        plan(model, msgspec.structs.replace(layout, schedule=schedule), workload, domain=8) for schedule in ("1f1b", "zb-h1")
    )
    validate(after)
    check_kept(before, after)


def run(made: Plan, forward: int, backward_input: int, weight: int, message: int = 0) -> tuple[PlanNetwork, np.ndarray, Times]:
    """The plan run with the core of attention standing for its layer's time, a weight gradient for all of them, and messages
    between stages of one length; nothing else takes any. (network, length per node, times)"""
    expansions = {role.name: expand(made, role) for role in made.roles}
    built = plan_network(made, expansions, meetings(made, expansions))
    duration = np.zeros(len(built.lane), dtype=np.int64)
    for name, expansion in expansions.items():
        rows = expansion.rows
        named = np.array(expansion.names)
        role, phase = named[rows.role], named[rows.phase]
        computing = rows.kind == OpKind.COMPUTE
        times = np.select(
            [
                computing & (role == "attention.core") & (phase == "forward"),
                computing & (role == "attention.core") & (phase == "backward"),
                computing & (role == "attention.qkv") & (phase == "weight_grad"),
                (rows.kind == OpKind.ISSUE) & (role == "boundary"),
            ],
            [forward, backward_input, weight, message],
            0,
        )
        duration[built.first[name] : built.first[name] + len(rows)] = times
    times = replay(network(built.lane, duration, rendezvous=built.rendezvous, edges=built.edges))
    return built, duration, times


def idle(made: Plan, forward: int, backward_input: int, weight: int, message: int = 0) -> list[int]:
    """Per role: the makespan less its work."""
    built, duration, times = run(made, forward, backward_input, weight, message)
    lanes = np.array([(*lane,) == (lane[0], "compute") for lane in built.lanes] + [False])
    of = [lane[0] for lane in built.lanes] + [""]
    return [
        int(times.end_ns.max())
        - int(sum(d for d, at in zip(duration.tolist(), built.lane.tolist(), strict=True) if lanes[at] and of[at] == role.name))
        for role in made.roles
    ]


@pytest.mark.parametrize("pp", STAGES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_idle_for_the_first_and_last_micro_batch_to_pass_the_other_stages(schedule: str, pp: int) -> None:
    for count in (1, pp, 3 * pp):
        bubble = formulas.bubble_1f1b(pp, 1, 2)
        assert idle(planned(layout_of(schedule, pp), count), 1, 1, 1) == [bubble] * pp
        # The share of the step: (p - 1) / (m + p - 1).
        assert bubble / (3 * count + bubble) == pytest.approx((pp - 1) / (count + pp - 1))


@pytest.mark.parametrize("pp", STAGES)
def test_two_chunks_per_rank_halve_the_bubble_of_1f1b(pp: int) -> None:
    bubble = formulas.bubble_interleaved(pp, 2, 2, 4)
    for count in (pp, 3 * pp):
        assert idle(planned(layout_of("interleaved", pp), count), 1, 1, 1) == [bubble] * pp


@pytest.mark.parametrize("pp", STAGES)
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 2, 1), (2, 3, 2)])
def test_zb_h1_takes_a_weight_gradient_out_of_each_hop_of_the_bubble(pp: int, times: tuple[int, int, int]) -> None:
    for count in (pp, 3 * pp):
        assert idle(planned(layout_of("zb-h1", pp), count), *times) == [formulas.bubble_zb_h1(pp, *times)] * pp


@pytest.mark.parametrize("schedule", ["interleaved", "dualpipev"])
def test_too_few_micro_batches_are_refused_with_the_number_that_would_do(schedule: str) -> None:
    with pytest.raises(OptionError, match=r"workload: 3 micro-batches .*(divisible by pp=4|fewer than 2 \* pp = 8)"):
        planned(layout_of(schedule, 4), 3)


def test_a_schedule_that_puts_weight_gradients_off_refuses_to_reduce_them_in_every_micro_batch() -> None:
    with pytest.raises(OptionError, match=r"schedule=zb-h1 with zero=3: .* use zero=1"):
        planned(layout_of("zb-h1", 2, fsdp=2), 4)


def kept(order: list[Task]) -> int:
    """Micro-batches of whose chunks activations are kept at a time, at most: until the weight gradients are done."""
    alive = most = 0
    for task in order:
        alive += {"forward": 1, "backward_input": 0}.get(task.direction, -1)
        most = max(most, alive)
    return most


@pytest.mark.parametrize("pp", STAGES)
def test_zb_h1_keeps_no_more_micro_batches_than_the_first_rank_of_1f1b(pp: int) -> None:
    layout = layout_of("zb-h1", pp)
    assert [kept(tasks(layout, rank, 3 * pp)) for rank in range(pp)] == [pp] * pp


@pytest.mark.parametrize("pp", STAGES)
def test_dualpipev_keeps_two_chunks_of_stages_and_one_micro_batch_on_every_rank(pp: int) -> None:
    # DeepSeek's table: PP + 1 activations, where PP counts the 2 pp chunks of the V.
    layout = layout_of("dualpipev", pp)
    assert [kept(tasks(layout, rank, 3 * pp)) for rank in range(pp)] == [2 * pp + 1] * pp


@pytest.mark.parametrize("pp", STAGES)
def test_dualpipev_with_pairs_idles_as_published_and_without_them_half_as_long(pp: int) -> None:
    # F&B of two tasks in turn takes F + B, the backward with its weight gradients: 3, B: 2, W: 1.
    published = formulas.bubble_dualpipe_v(2 * pp, 3, 2, 1)
    for count in (2 * pp, 3 * pp):
        made = planned(layout_of("dualpipev", pp, tp=2), count)
        paired = apply(made, parse_policy("tp=pair_forward_backward"))
        assert paired.refused == ()
        assert idle(paired.plan, 1, 1, 1) == [published] * pp
        # One after the other, the first of two results leaves before the second is made.
        assert idle(made, 1, 1, 1) == [published / 2] * pp


@pytest.mark.parametrize(("schedule", "longer"), [("1f1b", True), ("interleaved", False)])
def test_pairs_leave_the_interleaved_bubble_alone_but_make_stages_of_1f1b_wait_for_both_neighbors(
    schedule: str, longer: bool
) -> None:
    made = planned(layout_of(schedule, 4, tp=2), 16)
    paired = apply(made, parse_policy("tp=pair_forward_backward")).plan
    before, after = idle(made, 1, 1, 1), idle(paired, 1, 1, 1)
    assert (after > before) == longer


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_messages_beside_compute_never_lengthen_a_pipeline_and_shorten_one_whose_messages_take_time(
    schedule: str, pp: int
) -> None:
    for count in counts(schedule, pp):
        made = planned(layout_of(schedule, pp), count)
        beside = apply(made, parse_policy("pp=async_p2p"))
        assert beside.refused == ()
        assert max(idle(beside.plan, 2, 2, 2)) <= max(idle(made, 2, 2, 2))
        assert max(idle(beside.plan, 20, 20, 20, 1)) <= max(idle(made, 20, 20, 20, 1))
    assert max(idle(beside.plan, 20, 20, 20, 1)) < max(idle(made, 20, 20, 20, 1))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_wait_for_a_send_begins_only_when_something_received_shows_that_it_has_arrived(schedule: str) -> None:
    made = apply(planned(layout_of(schedule, 4), 12), parse_policy("pp=async_p2p")).plan
    built, _, times = run(made, 20, 20, 20, 1)
    for role in made.roles:
        expansion = expand(made, role)
        rows = expansion.rows
        named = np.array(expansion.names)
        sends = np.flatnonzero((rows.kind == OpKind.ISSUE) & np.char.startswith(named[rows.channel], "pp.send"))
        waits = rows.other[sends]
        # What precedes the wait on the compute lane has ended by the time the message has: the wait holds nothing.
        before = np.array([np.flatnonzero(rows.kind[:wait] != OpKind.ISSUE)[-1] for wait in waits])
        late = times.end_ns[built.first[role.name] + sends] > times.end_ns[built.first[role.name] + before]
        last = np.array([(rows.kind[wait:] == OpKind.WAIT).all() for wait in waits])
        assert (last | ~late).all()


def test_a_chunk_without_layers_and_a_divided_cache_are_refused() -> None:
    with pytest.raises(OptionError, match="chunk 0 no layers"):
        plan(model(2), Layout(pp=2, split=(0, 2)), Train(gbs=2, mbs=1, seq=8), domain=8)
    with pytest.raises(OptionError, match="a cache divided over ranks is not modeled"):
        plan(model(2), Layout(cp=2), Decode(batch=2, mbs=1, context=8), domain=8)
