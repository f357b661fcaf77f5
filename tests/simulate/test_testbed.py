"""Plans on a machine that was measured operation by operation: by hand, again and again the same, folded or not."""

from __future__ import annotations

import pytest

from tests import testbeds
from underlap import inputs
from underlap.cluster import MEASURED
from underlap.errors import OptionError
from underlap.flows import simulate as flow
from underlap.flows.quick import Quick
from underlap.flows.sweep import sweep

WORKLOAD = "train,gbs=4,mbs=2,seq=64,precision=fp32"


def asked(layout="tp=2", policy="", workload=WORKLOAD, model="tiny-dense", **changed):
    cluster = inputs.cluster_of_document(testbeds.document(**changed), "here.yaml")
    return flow.scenario(model=model, cluster=cluster, layout=layout, workload=workload, policy=policy)


def step_ns(*args, **options):
    return flow.simulate(asked(*args, **options), deep=False).prediction.step_ns


def test_a_step_without_overlap_is_what_its_parts_add_up_to():
    what = asked()
    done, _ = flow.run(what, what.policy)
    report = flow.simulate(what, deep=False)

    assert report.summary.hidden.mean_ns == 0
    assert done.step_ns == done.serial_ns
    # What is left is what the host does: calls, packing, and what comes behind the waits.
    parts = report.summary.compute.mean_ns + report.summary.exposed.mean_ns + report.summary.idle.mean_ns
    assert parts == pytest.approx(done.step_ns, rel=1e-3)


@pytest.mark.parametrize(
    ("layout", "policy"), [("tp=2", "tp=split_batch"), ("dp=2", "dp=bucket:100kB"), ("fsdp=2", "fsdp=prefetch:1")]
)
def test_the_same_plan_takes_the_same_step_every_time(layout, policy):
    assert len({step_ns(layout, policy) for _ in range(3)}) == 1


@pytest.mark.parametrize("layout", ["tp=2", "dp=2", "fsdp=2"])
def test_a_sweep_has_the_steps_of_the_simulation(layout):
    what = asked(layout)

    assert Quick().outcome(what, what.policy).step_ns == step_ns(layout)
    policy = {"tp=2": "tp=split_batch", "dp=2": "dp=bucket:100kB", "fsdp=2": "fsdp=prefetch:1"}[layout]
    found = sweep([what], f"none,{policy}", batches=[4], seqs=[64])
    assert found.points[0].step_ns == step_ns(layout, policy)


def test_a_slower_link_never_makes_a_step_shorter():
    def at(rate):
        link = {**testbeds.document()["scale_up"], "bandwidth": rate}
        return step_ns("dp=2", scale_up=link)

    assert at("100 Mbit/s") > at("250 Mbit/s") > at("500 Mbit/s") > at("1 Gbit/s")


def test_another_rate_than_the_measured_one_is_among_the_assumptions():
    link = {**testbeds.document()["scale_up"], "bandwidth": "1 Gbit/s"}
    report = flow.simulate(asked(scale_up=link), deep=False)

    assert any("measured at 500 Mbit/s and is predicted at 1000" in each for each in report.prediction.assumptions)


def test_a_precision_that_was_not_measured_is_refused():
    with pytest.raises(OptionError, match=r"measured in fp32, but the workload has precision=bf16"):
        step_ns(workload="train,gbs=4,mbs=2,seq=64,precision=bf16")


def test_overlap_hides_what_the_core_has_time_for():
    model = "tiny-dense"
    workload = "train,gbs=32,mbs=16,seq=256,precision=fp32"
    before, after = (
        flow.simulate(asked(policy=policy, workload=workload, model=model), deep=False) for policy in ("", "tp=split_batch")
    )

    assert after.summary.hidden.mean_ns > 0.2 * before.summary.exposed.mean_ns
    assert after.prediction.step_ns < before.prediction.step_ns
    # The library's threads take their share of the core meanwhile.
    assert after.summary.compute.mean_ns > before.summary.compute.mean_ns


@pytest.mark.parametrize(
    ("layout", "policy"), [("tp=2", "tp=split_batch"), ("dp=2", "dp=bucket:100kB"), ("fsdp=2", "fsdp=prefetch:1")]
)
def test_the_ranges_of_measured_costs_give_the_step_a_range_that_holds_it(layout, policy):
    found = flow.simulate(asked(layout, policy), deep=False).prediction

    assert found.step_low_ns < found.step_ns < found.step_high_ns


def test_a_step_of_modeled_costs_has_no_range():
    what = flow.scenario(model="tiny-dense", cluster="dgx-h100", layout="tp=2", workload="train,gbs=4,mbs=2,seq=64")
    found = flow.simulate(what, deep=False).prediction

    assert (found.step_low_ns, found.step_high_ns) == (None, None)


def test_a_testbed_whose_link_nothing_held_has_a_range_too():
    free = {**testbeds.section(), "fabric": None, "fabric_bytes_per_s": None}
    found = flow.simulate(asked("dp=2", "dp=bucket:100kB", **{MEASURED: free}), deep=False).prediction

    assert found.step_low_ns < found.step_ns < found.step_high_ns
