"""Sweeps, ladders and levers on small models, where the answer can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings

from tests.schedule.scenarios import DENSE, Drawn, scenarios
from underlap import inputs
from underlap.answers import SweepPoint
from underlap.errors import OptionError
from underlap.expansion import expand
from underlap.flows import simulate as flow
from underlap.flows import sweep as sweeping
from underlap.flows.ladder import ladder
from underlap.flows.levers import levers, word
from underlap.flows.quick import Outcome, Quick
from underlap.hazards import memory_peak
from underlap.ledger import ledger
from underlap.policy import Policy, parse_policy

GPU = "dgx-h100"


def scenario(layout: str, workload: str, policy: str = "", model: str = "llama3-8b") -> flow.Scenario:
    return flow.scenario(model=model, cluster=GPU, layout=layout, workload=workload, policy=policy)


def of_drawn(drawn: Drawn) -> flow.Scenario:
    cluster = inputs.cluster(GPU).with_gpus(drawn.layout.world)
    return flow.Scenario(model=drawn.model, cluster=cluster, layout=drawn.layout, workload=drawn.workload)


# ---- one point


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_memory_and_bytes_of_a_point_are_those_of_its_whole_plan(drawn: Drawn) -> None:
    asked, quick = of_drawn(drawn), Quick()
    outcome = quick.outcome(asked, Policy())
    plan, _ = quick.plan(asked, Policy())
    assert outcome.memory_bytes == max(memory_peak(plan, expand(plan, role)) for role in plan.roles)
    found = {(entry.group, entry.collective): (entry.calls, entry.sent_bytes) for entry in outcome.entries}
    expected = {(entry.group, entry.collective): (entry.calls, entry.sent_bytes) for entry in ledger(plan)}
    assert found.keys() == expected.keys()
    for key, (calls, sent) in expected.items():
        assert found[key][0] == calls
        assert found[key][1] == pytest.approx(sent)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved:2", "gpipe"])
def test_memory_does_not_grow_with_micro_batches_that_are_never_in_flight(schedule: str) -> None:
    quick = Quick()
    few, many = (scenario(f"pp=4,schedule={schedule}", f"train,gbs={count},mbs=1,seq=512") for count in (32, 64))
    plans = [quick.plan(asked, Policy())[0] for asked in (few, many)]
    whole = [max(memory_peak(plan, expand(plan, role)) for role in plan.roles) for plan in plans]
    assert [quick.memory(asked, Policy()) for asked in (few, many)] == whole
    # But for their tokens, which are all there from the begin on.
    assert (whole[1] - whole[0] < 1_000_000) == (schedule != "gpipe")


def test_a_point_has_the_step_time_of_the_command_that_simulates_one() -> None:
    asked = scenario("tp=4,pp=2,sp", "train,gbs=4,mbs=1,seq=2048")
    report = flow.simulate(asked, deep=False)
    assert report.prediction is not None
    outcome = Quick().outcome(asked, Policy())
    assert outcome.step_ns == pytest.approx(report.prediction.step_ns, rel=1e-3)
    assert outcome.exposed_ns == pytest.approx(report.prediction.exposed_ns, rel=0.01)


# ---- sweep


def swept(layouts: str, compare: str, batches: tuple[int, ...], seqs: tuple[int, ...], **more: str) -> sweeping.Sweep:
    workload = more.pop("workload", "prefill,batch=1,seq=512")
    first = flow.scenario(
        model=more.pop("model", "llama3-8b"),
        cluster=GPU,
        layout=layouts.split(";", maxsplit=1)[0],
        workload=workload,
        divisible=False,
    )
    return sweeping.sweep(sweeping.scenarios(first, layouts), compare, batches=batches, seqs=seqs, jobs=1)


def test_one_point_is_the_ratio_of_two_simulations() -> None:
    (point,) = swept("tp=8,sp", "none,split_batch", (4,), (2048,)).points
    steps = [
        Quick().outcome(scenario("tp=8,sp", "prefill,batch=4,seq=2048"), parse_policy(text)).step_ns
        for text in ("tp=split_batch", "")
    ]
    assert (point.step_ns, point.none_step_ns) == tuple(steps)
    assert point.step_ratio == pytest.approx(steps[0] / steps[1])


def test_small_work_loses_by_half_batches_and_large_work_gains_with_one_border_between() -> None:
    answer = swept("tp=8,sp", "none,split_batch", (1,), (512, 1024, 2048, 4096, 8192, 16384))
    verdicts = [point.verdict for point in answer.points]
    assert verdicts[0] == "loses"
    assert verdicts[-1] == "hides_partly"
    (border,) = [row for row in answer.break_even if row.along == "seq"]
    places = {point.seq: point.verdict for point in answer.points}
    assert border.pays == "above"
    assert border.high == 2 * border.low
    assert not places[border.low].startswith("hides")
    assert places[border.high].startswith("hides")


def test_what_cannot_be_divided_and_what_does_not_fit_is_counted_with_its_reason() -> None:
    answer = swept("dp=8", "none,bucket:25MB", (4, 8, 16), (1024,), workload="train,gbs=8,mbs=1,seq=1024", model="llama3-8b")
    verdicts = {point.batch: point.verdict for point in answer.points}
    assert verdicts[4] == "invalid"
    assert verdicts[8] == verdicts[16] == "memory"
    counted = {row.verdict: (row.points, row.reason) for row in answer.reasons}
    assert counted["invalid"][0] == 1
    assert "4 is not divisible" in counted["invalid"][1]
    assert counted["memory"][0] == 2


def test_points_come_in_the_order_of_layouts_policies_sequences_and_batches_whatever_computes_them() -> None:
    first = scenario("tp=8,sp", "prefill,batch=1,seq=512")
    both = [
        sweeping.sweep(
            sweeping.scenarios(first, "tp=8,sp;tp=4,sp"),
            "none,split_batch,decompose:2",
            batches=(1, 2),
            seqs=(512, 1024),
            jobs=jobs,
        )
        for jobs in (1, 2)
    ]
    assert both[0] == both[1]
    assert len(both[0].points) == 2 * 2 * 2 * 2


@pytest.mark.parametrize(
    ("ratio", "exposed", "expected"),
    [
        (0.9, 0.04, "hides_fully"),
        (0.9, 0.06, "hides_partly"),
        (0.9, None, "hides_partly"),
        (0.996, 0.0, "does_nothing"),
        (1.004, 0.0, "does_nothing"),
        (1.006, 0.0, "loses"),
    ],
)
def test_the_step_decides_before_what_is_hidden(ratio: float, exposed: float | None, expected: str) -> None:
    assert sweeping.verdict(ratio, exposed) == expected


def point(batch: int, verdict: str) -> SweepPoint:
    return SweepPoint(layout="a", policy="b", batch=batch, seq=1, verdict=verdict)  # type: ignore[arg-type]  # a str of the parametrization, which lists verdicts


@pytest.mark.parametrize(
    ("verdicts", "borders"),
    [
        ([], []),
        (["loses"], []),
        (["loses", "does_nothing"], []),
        (["loses", "hides_partly"], [(1, 2, "above")]),
        (["hides_fully", "does_nothing", "hides_partly"], [(1, 2, "below"), (2, 3, "above")]),
        (["loses", "memory", "hides_partly"], [(1, 3, "above")]),
    ],
)
def test_borders_lie_between_the_nearest_points_that_could_be_computed(
    verdicts: list[str], borders: list[tuple[int, int, str]]
) -> None:
    points = [point(batch, verdict) for batch, verdict in enumerate(verdicts, start=1)]
    found = [(row.low, row.high, row.pays) for row in sweeping.break_even(points) if row.along == "batch"]
    assert found == borders


def test_a_sweep_needs_two_policies_and_a_grid() -> None:
    with pytest.raises(OptionError, match="two policies"):
        swept("tp=8", "none", (1,), (512,))
    with pytest.raises(OptionError, match="nothing to sweep"):
        swept("tp=8", "none,split_batch", (), (512,))


# ---- ladder


def test_every_rung_adds_one_axis_and_the_collectives_of_it() -> None:
    answer = ladder(scenario("tp=4,pp=2,dp=2,sp", "train,gbs=8,mbs=1,seq=2048", "tp=split_batch"))
    assert [(rung.adds, rung.gpus) for rung in answer.rungs] == [
        ("one device", 1),
        ("tp=4", 4),
        ("pp=2", 8),
        ("dp=2", 16),
        ("sp", 16),
        ("overlap", 16),
    ]
    costs = {rung.adds: {(cost.axis, cost.collective, cost.link) for cost in rung.costs} for rung in answer.rungs}
    assert costs["one device"] == set()
    assert costs["tp=4"] == {("tp", "all_reduce", "scale_up")}
    assert costs["pp=2"] == {("pp", "send", "scale_up")}
    assert costs["dp=2"] == {("dp", "all_reduce", "scale_out")}
    assert costs["sp"] == {("tp", "reduce_scatter", "scale_up"), ("tp", "all_gather", "scale_up")}
    assert costs["overlap"] == set()


def test_bytes_of_the_tensor_parallel_rung_are_those_of_the_closed_formula() -> None:
    asked = scenario("tp=4", "prefill,batch=1,seq=1024")
    (cost,) = next(rung for rung in ladder(asked).rungs if rung.adds == "tp=4").costs
    # Two all-reduces per layer and one for the embedding, of 1024 tokens x hidden in bf16; a ring sends 2 (n - 1) / n.
    payload = 1024 * asked.model.hidden * 2
    calls = 2 * asked.model.layers + 1
    assert cost.calls >= calls
    assert cost.bytes_per_gpu == pytest.approx(calls * payload * 2 * 3 / 4, rel=0.01)


def test_tensor_parallelism_lifts_capacity_and_latency_and_replicas_lift_traffic_alone() -> None:
    rungs = {rung.adds: rung for rung in ladder(scenario("tp=8,dp=2", "decode,batch=64,context=4096", model="llama3-70b")).rungs}
    assert rungs["one device"].fits is False
    assert rungs["tp=8"].fits is True
    assert set(rungs["tp=8"].lifts) == {"capacity", "latency", "traffic"}
    assert "capacity" not in rungs["dp=2"].lifts
    assert "traffic" in rungs["dp=2"].lifts


def test_a_ladder_to_a_layout_that_cannot_be_is_refused_with_the_two_numbers() -> None:
    with pytest.raises(OptionError, match="not divisible"):
        ladder(flow.scenario(model=DENSE, cluster=GPU, layout="dp=8", workload="train,gbs=12,mbs=1,seq=64", divisible=False))


# ---- levers


def outcome(**changed: int) -> Outcome:
    asked = scenario("tp=2", "prefill,batch=1,seq=512")
    base = Quick().outcome(asked, Policy())
    plain = {"step_ns": 1000, "compute_ns": 600, "hidden_ns": 0, "exposed_ns": 400}
    entries = (dataclasses.replace(base.entries[0], sent_bytes=float(changed.pop("sent", 100))),)
    groups = {"tp": (changed.pop("sending", 400), 0)}
    return dataclasses.replace(base, **{**plain, **changed}, entries=entries, groups=groups)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"step_ns": 1010}, "a loss"),
        ({"step_ns": 996}, "no difference"),
        ({"step_ns": 999, "exposed_ns": 200, "hidden_ns": 200}, "shifted"),
        ({"step_ns": 800, "exposed_ns": 200, "hidden_ns": 200}, "hidden"),
        ({"step_ns": 800, "exposed_ns": 200, "sending": 200}, "shortened"),
        ({"step_ns": 800, "exposed_ns": 200, "sent": 50, "sending": 200}, "removed"),
        ({"step_ns": 800}, "less compute or idle"),
    ],
)
def test_each_change_is_one_of_four_words_or_a_loss(changed: dict[str, int], expected: str) -> None:
    assert word(outcome(), outcome(**changed)) == expected


def test_levers_are_ranked_by_step_time_above_the_noise_and_the_pair_beats_its_parts_or_is_left_out() -> None:
    answer = levers(scenario("tp=4,dp=4,sp,zero=1", "train,gbs=8,mbs=1,seq=4096"))
    steps = [lever.step_ns for lever in answer.ranked]
    assert steps == sorted(steps)  # type: ignore[type-var]  # all are known
    assert all(lever.step_ratio < 1 - answer.noise and lever.fits for lever in answer.ranked)  # type: ignore[operator]  # ranked ones have a ratio
    words = {lever.change: lever.word for lever in answer.ranked}
    assert words["gradients=bf16"] == "removed"
    assert words["dp=bucket:100MB"] == "hidden"
    assert answer.pair is not None
    assert answer.pair.step_ns <= steps[0]  # type: ignore[operator]  # a pair that is given has a step
    for lever in answer.not_ranked:
        assert lever.problem or not lever.fits or lever.step_ratio >= 1 - answer.noise  # type: ignore[operator]  # one without a problem has a ratio


def test_a_layout_without_communication_has_no_overlap_to_offer() -> None:
    answer = levers(scenario("tp=1", "prefill,batch=1,seq=512"))
    assert answer.sent_bytes == 0
    assert [lever for lever in (*answer.ranked, *answer.not_ranked) if lever.kind == "overlap"] == []
    assert answer.pair is None
