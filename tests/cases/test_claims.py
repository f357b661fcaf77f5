"""Cases from public issue trackers that a claim and a Report decide: did it gain, by how much, of what, and is that established.

Each test reads its case by id and builds Reports of its figures; what comes out is computed, not repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.judge.reports import Part, claim, contention, report
from tests.render.hand_written import replace
from underlap.flows.claims import by_id
from underlap.judge import evidence, standing
from underlap.judge.questions import ask
from underlap.judge.settlement import settle
from underlap.judgement import HELD, NO, NOT_DECIDABLE, REFUTED
from underlap.report import Report

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in yaml.safe_load((Path(__file__).parents[2].parent / "shared" / "cases.yaml").read_text())
}
LESS_TIME = "metric: end_to_end_speedup\nof: baseline_time\n"
MORE_RATE = "metric: end_to_end_speedup\nof: baseline_rate\n"
RATIO = "metric: end_to_end_speedup\n"


def given(name: str) -> dict[str, Any]:
    return CASES[name]["test_input"]


def steady(ms: float, **options: Any) -> Report:
    """Six equal steps."""
    return report(steps=[ms] * 6, **options)


def check(text: str, run: Report, baseline: Report | None = None):
    settled = settle(claim(text), run, baseline)
    (only,) = settled.checks
    return only


def test_a13_a_gate_fails_when_the_hidden_share_of_fsdp_drops() -> None:
    assert "fail when hidden share of FSDP collectives drops below X" in CASES["A13"]["expected_answer"]
    gate = "metric: hidden_share\nof: kernel_time\naxis: fsdp\nvalue: {at_least: 60 %}\n"
    good = Part(axis="fsdp", collective="all_gather", hidden=8, exposed=2)
    lost = Part(axis="fsdp", collective="all_gather", hidden=0, exposed=10)

    assert check(gate, report(good)).outcome == HELD
    assert check(gate, report(lost)).outcome == REFUTED
    assert check(gate, report(Part(axis="dp", exposed=10))).outcome == NOT_DECIDABLE


def test_b01_a_saving_of_two_of_43_seconds_refutes_five_percent() -> None:
    case = given("B01")
    saved = float(case["saved_s"].removeprefix("<"))
    found = check(LESS_TIME + "value: {at_least: 5 %}", steady(1000 * (case["step_s"] - saved)), steady(1000 * case["step_s"]))

    assert (found.outcome, found.measured) == (REFUTED, pytest.approx(100 * saved / case["step_s"]))


def test_b02_overlap_that_doubles_the_time_is_a_regression() -> None:
    case = given("B02")
    found = check(RATIO + "value: {at_least: 1 x}", steady(1000 * case["t_on_s"]), steady(1000 * case["t_off_s"]))

    assert found.outcome == REFUTED
    assert f"regression {1 / found.measured:.1f}x" == case["expect"]


def test_b04_a_slower_overlap_is_no_failed_claim_of_hiding_but_a_loss() -> None:
    case = given("B04")
    published = by_id("coconet-user-slower")

    assert published.value == round(case["serial_ms"] / case["overlap_total_ms"], 2)
    # Its GEMM is another kernel: the claim says so, and the stretch of the case is of both together.
    assert "different GEMM kernels" in (published.note or "")
    stretch = case["gemm_overlapped_ms"] / case["gemm_ms"]
    found = check("metric: compute_stretch\nvalue: {at_most: 1.1 x}", report(contention=contention(ratio=stretch, spread=0.01)))
    assert (found.outcome, round(found.measured, 2)) == (REFUTED, case["expect_gemm_slowdown"])


@pytest.mark.parametrize("at", [0, 1])
def test_b05_a_published_gain_of_another_batch_does_not_carry_over(at: int) -> None:
    row = given("B05")["rows"][at]
    faster = check(MORE_RATE + "value: {at_least: 0 %}", steady(1e6 / row["overlapped"]), steady(1e6 / row["plain"]))

    assert faster.outcome == REFUTED
    assert faster.measured == pytest.approx(100 * (row["overlapped"] / row["plain"] - 1))


def test_b08_a_quarter_of_the_all_reduce_that_moved_was_saved() -> None:
    case = given("B08")
    before, after, ranks, steps = case["before"], case["after"], 2, 6
    exposed = Part(exposed=before["exposed_ms"] * ranks * steps)
    text = "metric: saved_share\nof: unhidden_communication\naxis: tp\nvalue: {low: 25 %, high: 26 %}"
    found = check(text, steady(after["wall_ms"]), report(exposed, steps=[before["wall_ms"]] * steps))

    assert (found.outcome, round(found.measured / 100, 3)) == (HELD, case["expect"]["share_of_allreduce"])
    # All of it was covered in the picture: hidden, and yet a quarter of the time.
    covered = report(Part(hidden=before["allreduce_ms"] * ranks * steps, payload=1), steps=[after["wall_ms"]] * steps)
    assert check("metric: hidden_share\nof: kernel_time\nvalue: 100 %", covered).outcome == HELD
    judged = standing.judged(claim("metric: hidden_share\nvalue: 100 %"), ask(claim("metric: hidden_share\nvalue: 100 %")))
    assert "that the step became shorter by what is hidden: covered time is not saved time" in judged.does_not_support


def test_b11_tokens_per_second_are_a_rate_and_not_a_time() -> None:
    case = given("B11")
    runs = (steady(1e6 / case["async_tps"]), steady(1e6 / case["vanilla_tps"]))

    assert check(MORE_RATE + "value: {at_least: 12 %}", *runs).measured == pytest.approx(case["expect_gain_pct"], abs=0.01)
    assert check(LESS_TIME + "value: {at_least: 12 %}", *runs).outcome == REFUTED  # the same runs: 11.1 % less time


def test_b12_a_single_figure_against_a_spread_is_not_established() -> None:
    case = given("B12")
    off = case["off_ms"]
    baseline = report(steps=[off["min"], off["median"], off["median"], off["median"], off["mean"], off["max"]])
    alone = check(LESS_TIME + "value: {at_least: 5 %}", report(steps=[case["on_ms"]["min"]]), baseline)

    assert (alone.outcome, alone.low) == (NOT_DECIDABLE, None)
    assert "1 step from 255.800 to 255.800 ms: not established" in alone.why
    same = check(LESS_TIME + "value: {at_least: 9 %}", steady(case["on_ms"]["min"]), baseline)
    assert same.outcome == HELD
    assert same.low == pytest.approx(case["expect_min_gain_pct"], abs=0.05)


def test_b13_a_smoke_result_says_what_it_depends_on() -> None:
    case = given("B13")
    published = by_id("megatron-bridge-ep-overlap-qwen3")
    first = check(RATIO + "value: {at_least: 1 x}", steady(case["a1_s"]), steady(case["a0_s"]))
    second = check(RATIO + "value: {at_least: 1 x}", steady(case["a2_s"]), steady(case["a0_s"]))
    judged = standing.judged(published, ask(published))

    assert [round(found.measured, 3) for found in (first, second)] == case["expect"][1:]
    assert published.value == case["expect"][1]
    assert {"batch", "sequence", "precision", "interconnect"} <= set(judged.unknown)
    assert any("decode" in line for line in judged.does_not_support)


def test_b14_the_same_feature_under_another_environment_is_another_claim() -> None:
    case = given("B14")
    base = case["tflops"]["no_overlap_recompute"]
    for name in ("conn1", "conn32"):
        published = by_id(f"megatron-ep-overlap-recompute-{name}")
        found = check(MORE_RATE + "value: {at_least: 0 %}", steady(1e6 / case["tflops"][f"overlap_{name}"]), steady(1e6 / base))
        assert round(found.measured, 1) == published.value == case["expect_gain_pct"][name]
        assert published.settings == {"CUDA_DEVICE_MAX_CONNECTIONS": int(name.removeprefix("conn"))}


def test_b15_three_percent_of_one_run_is_not_established() -> None:
    case = given("B15")
    assert case["runs"] == 1
    found = check(LESS_TIME + "value: {at_least: 1 %}", report(steps=[case["on_ms"]]), report(steps=[case["off_ms"]]))

    assert (found.outcome, round(found.measured, 2)) == (NOT_DECIDABLE, case["expect_pct"])
    assert "not established" in found.why


def test_b18_a_layout_that_sends_less_removes_and_does_not_hide() -> None:
    case = given("B18")
    entry = claim(RATIO + "value: {at_least: 1.3 x}\nbytes: {unchanged: true}")
    run, baseline = (
        report(Part(exposed=1, payload=payload), steps=[1e9 / case[key]] * 6)
        for key, payload in (("hsdp_tok_s", 1), ("fsdp_tok_s", 8))
    )
    settled = settle(entry, run, baseline)

    assert [found.outcome for found in settled.checks] == [HELD, REFUTED]
    assert settled.checks[0].measured == pytest.approx(case["expect"], abs=0.005)
    assert evidence.ask_with(entry, run, settled.checks)[2].answer == NO


def test_c12_what_the_scheduler_calls_hidden_the_trace_refutes() -> None:
    case = given("C12")
    copy = Part(hidden=case["effective_overlap_us"] / 1000, exposed=case["exposed_us"] / 1000)
    found = check("metric: hidden_share\nof: kernel_time\nvalue: {at_least: 99 %}", report(copy))

    assert found.outcome == REFUTED
    assert found.measured == pytest.approx(100 * 9 / 684)
    assert by_id("xla-scheduled-overlap-not-effective").value == case["exposed_us"]


def test_d13_a_kernel_that_waits_is_hidden_in_kernel_time_and_not_in_transfer() -> None:
    case = given("D13")
    kernel, transfer = case["nccl_ms"], case["transfer_us"] / 1000
    # Compute ran beside the waiting only: the transfer came after it.
    run = report(Part(exposed=kernel, wait=0))
    covered = {"hidden_ns": round((kernel - transfer) * 1e6), "exposed_ns": round(transfer * 1e6)}
    waited = {"wait_ns": covered["hidden_ns"], "hidden_transfer_ns": 0}
    run = replace(run, families=[replace(run.families[0], **covered, **waited)])
    text = "metric: hidden_share\naxis: tp\nvalue: {at_least: 90 %}\n"

    assert check(text + "of: kernel_time", run).outcome == HELD
    assert check(text + "of: transfer", run).outcome == REFUTED
    assert check(text, run).outcome == NOT_DECIDABLE


def test_e10_every_share_is_printed_with_its_formula_and_fields() -> None:
    assert CASES["E10"]["expected_answer"] == "Definition printed next to the number."
    found = check("metric: hidden_share\nof: kernel_time\nvalue: {at_least: 9 %}", report(Part(hidden=2, exposed=1)))

    assert (found.formula, found.fields) == ("hidden_ns / communication_ns", ["ranks[].hidden_ns", "ranks[].communication_ns"])
