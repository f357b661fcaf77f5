"""A claim about one's own run against its Report: held, refuted, or not decidable. Unknown is never a pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judge.reports import Part, claim, contention, report
from tests.render.hand_written import replace
from underlap.claim import METRICS, Value
from underlap.judge import settlement
from underlap.judge.settlement import SETTLED, decide, settle
from underlap.judgement import HELD, NOT_DECIDABLE, REFUTED

HIDDEN = "metric: hidden_share\nof: transfer\naxis: tp\nvalue: {at_least: 80 %}\n"


def only_check(text, *reports):
    settled = settle(claim(text), *reports)
    (check,) = settled.checks
    assert settled.outcome == check.outcome
    return check


def test_a_report_without_operations_decides_nothing():
    check = only_check(HIDDEN, replace(report(), ranks=[]))

    assert (check.outcome, check.why) == (NOT_DECIDABLE, "the Report has no operations in its window")


def test_an_absent_family_is_named_with_what_there_is():
    check = only_check(HIDDEN, report(Part(axis="dp", collective="all_gather", hidden=8, exposed=2, wait=0)))

    assert check.outcome == NOT_DECIDABLE
    assert check.why == "the Report has no tp communication; it has dp all_gather"


@pytest.mark.parametrize(("hidden", "outcome"), [(7.9, REFUTED), (8, HELD), (10, HELD)])
def test_a_share_of_transfer_is_held_from_its_border_on(hidden, outcome):
    check = only_check(HIDDEN, report(Part(hidden=hidden, exposed=15 - hidden, wait=5)))

    assert (check.outcome, check.measured) == (outcome, pytest.approx(10 * hidden))
    assert check.formula == "hidden_transfer_ns / (communication_ns - wait_ns)"


def test_waiting_that_is_not_separated_leaves_a_share_of_transfer_open():
    check = only_check(HIDDEN, report(Part(hidden=9.9, exposed=0.1)))

    assert (check.outcome, check.measured, check.low, check.high) == (NOT_DECIDABLE, None, 0, 100)
    assert "waiting is not known, only the share of kernel time: 99.0%" in check.why


@pytest.mark.parametrize(("hidden", "exposed", "outcome"), [(10, 0, HELD), (0, 10, REFUTED)])
def test_all_or_nothing_decides_even_where_waiting_is_not_separated(hidden, exposed, outcome):
    assert only_check(HIDDEN, report(Part(hidden=hidden, exposed=exposed))).outcome == outcome


def test_the_same_share_of_kernel_time_is_decided_without_waiting():
    check = only_check(HIDDEN.replace("transfer", "kernel_time"), report(Part(hidden=9, exposed=1)))

    assert (check.outcome, check.measured, check.low, check.high) == (HELD, 90, 90, 90)


def test_a_claim_that_does_not_say_of_what_is_decided_only_where_both_agree():
    text = HIDDEN.replace("of: transfer\n", "")
    split = only_check(text, report(Part(hidden=8, exposed=12, wait=10)))

    assert split.outcome == NOT_DECIDABLE
    assert "of transfer it is held" in split.why
    assert "of kernel_time refuted" in split.why
    assert only_check(text, report(Part(hidden=9, exposed=1, wait=0))).outcome == HELD
    assert only_check(text, report(Part(hidden=1, exposed=9, wait=0))).outcome == REFUTED


@pytest.mark.parametrize(("clock_us", "outcome"), [(0, HELD), (600, HELD), (700, NOT_DECIDABLE), (None, NOT_DECIDABLE)])
def test_the_uncertainty_of_clocks_counts_once_per_kernel(clock_us, outcome):
    # 9 of 10 ms, and 2 ms of waiting. With 0.6 ms more transfer in both kernels 9 / 11.2 = 80.4 %, with 0.7 ms 9 / 11.4.
    check = only_check(HIDDEN, report(Part(hidden=9, exposed=3, wait=2, kernels=2), clock_us=clock_us))

    assert check.outcome == outcome


@pytest.mark.parametrize(("unclassified", "outcome"), [(0, HELD), (0.4, HELD), (1, NOT_DECIDABLE)])
def test_kernels_that_no_family_matched_can_be_communication(unclassified, outcome):
    # 9 of 10 ms: with u unclassified, (9 - u) / (10 + u) may be all that is hidden.
    check = only_check(HIDDEN, report(Part(hidden=9, exposed=1, wait=0), unclassified=unclassified))

    assert check.outcome == outcome
    assert check.low == pytest.approx(100 * (9 - unclassified) / (10 + unclassified))


def test_fused_kernels_leave_open_what_of_them_is_hidden():
    check = only_check(HIDDEN, report(Part(hidden=9, exposed=1, wait=0, fused=5)))

    assert (check.outcome, check.low) == (NOT_DECIDABLE, pytest.approx(60))
    assert "fused with compute" in check.why
    all_fused = only_check(HIDDEN, report(Part(fused=5, wait=0)))
    assert all_fused.why == "it is all fused with compute in one kernel: hidden cannot be told"


def test_communication_of_an_unknown_axis_that_can_be_meant_leaves_it_open():
    unclear = Part(axis=None, hidden=1, exposed=9, wait=0, candidates=["tp", "dp"])
    check = only_check(HIDDEN, report(Part(hidden=9, exposed=1, wait=0), unclear))

    assert check.outcome == NOT_DECIDABLE
    assert check.why.startswith("10.000 ms of all_reduce could belong to tp (axis: dp, tp)")
    elsewhere = Part(axis=None, hidden=1, exposed=9, wait=0, candidates=["pp"])
    assert only_check(HIDDEN, report(Part(hidden=9, exposed=1, wait=0), elsewhere)).outcome == HELD


def test_a_collective_that_is_not_known_may_be_the_one_that_is_meant():
    text = HIDDEN + "collective: all_reduce\n"
    known = Part(hidden=9, exposed=1, wait=0)

    assert only_check(text, report(known, Part(collective=None, exposed=9, wait=0))).outcome == NOT_DECIDABLE
    assert only_check(text, report(known, Part(axis=None, collective=None, exposed=9, wait=0))).outcome == NOT_DECIDABLE
    for other in (Part(axis="dp", collective=None, exposed=9, wait=0), Part(collective=None, wait=0), Part(axis=None, wait=0)):
        assert only_check(text, report(known, other)).outcome == HELD


def test_the_other_collectives_of_the_axis_stay_out():
    parts = (Part(hidden=9, exposed=1, wait=0), Part(collective="all_gather", hidden=0, exposed=90, wait=0))

    assert only_check(HIDDEN + "collective: all_reduce\n", report(*parts)).outcome == HELD
    assert only_check(HIDDEN, report(*parts)).outcome == REFUTED


def test_a_claim_without_axis_and_collective_is_about_the_ranks():
    check = only_check("metric: hidden_share\nof: kernel_time\nvalue: {at_most: 50 %}", report(Part(hidden=4, exposed=6)))

    assert (check.outcome, check.fields) == (HELD, ["ranks[].hidden_ns", "ranks[].communication_ns"])


BYTES = "axis: tp\nbytes: {unchanged: true}\n"


def test_unchanged_bytes_need_the_report_of_the_run_without_the_change():
    check = only_check(BYTES, report(Part(exposed=1, payload=1200)))

    assert (check.outcome, check.about) == (NOT_DECIDABLE, "bytes")
    assert "--baseline-report" in check.why


@pytest.mark.parametrize(("before", "outcome"), [(1200, HELD), (2400, REFUTED), (1201, REFUTED), (None, NOT_DECIDABLE)])
def test_unchanged_bytes_are_exactly_equal_bytes(before, outcome):
    check = only_check(BYTES, report(Part(exposed=1, payload=1200)), report(Part(exposed=1, payload=before)))

    assert check.outcome == outcome


def test_bytes_are_counted_per_step_so_that_windows_may_differ():
    longer = report(Part(exposed=1, payload=2400), steps=(100,) * 12)

    assert only_check(BYTES, report(Part(exposed=1, payload=1200)), longer).outcome == HELD
    whole = report(Part(exposed=1, payload=1200), window="whole")
    assert only_check(BYTES, report(Part(exposed=1, payload=1200)), whole).outcome == NOT_DECIDABLE


def test_claimed_savings_of_bytes_are_refuted_by_equal_bytes():
    same = report(Part(exposed=1, payload=1200))

    assert only_check(BYTES.replace("true", "false"), same, same).outcome == REFUTED


def test_one_refuted_part_refutes_the_claim_and_one_open_part_keeps_it_open():
    text = HIDDEN + "bytes: {unchanged: true}\n"
    good, bad = Part(hidden=9, exposed=1, wait=0, payload=8), Part(hidden=1, exposed=9, wait=0, payload=8)

    assert settle(claim(text), report(good)).outcome == NOT_DECIDABLE
    assert settle(claim(text), report(bad)).outcome == REFUTED
    assert settle(claim(text), report(good), report(bad)).outcome == HELD


@pytest.mark.parametrize(
    "baseline",
    [report(Part(payload=8, exposed=1), world=4), report(Part(payload=8, exposed=1), device="NVIDIA A100"),
     report(Part(payload=8, exposed=1), kind="simulated")],
)  # fmt: skip
def test_a_baseline_of_another_job_decides_nothing(baseline):
    assert only_check(BYTES, report(Part(payload=8, exposed=1)), baseline).outcome == NOT_DECIDABLE


SPEEDUP = "metric: end_to_end_speedup\nof: baseline_time\nvalue: {at_least: 10 %}\n"


def test_a_speed_up_needs_a_baseline_and_six_steps_of_both():
    fast, slow = report(steps=[80] * 6), report(steps=[100] * 6)

    assert "--baseline-report" in only_check(SPEEDUP, fast).why
    assert only_check(SPEEDUP, fast, slow).outcome == HELD
    few = only_check(SPEEDUP, report(steps=[80] * 5), slow)
    assert (few.outcome, few.measured) == (NOT_DECIDABLE, pytest.approx(20))
    assert "5 steps from 80.000 to 80.000 ms: not established, 6 are the least" in few.why


def test_less_time_and_more_throughput_are_different_percentages():
    fast, slow = report(steps=[80] * 6), report(steps=[100] * 6)
    rate = SPEEDUP.replace("baseline_time", "baseline_rate")

    assert only_check(SPEEDUP, fast, slow).measured == pytest.approx(20)
    assert only_check(rate, fast, slow).measured == pytest.approx(25)
    assert only_check(rate.replace("10 %", "1.2 x").replace("of: baseline_rate\n", ""), fast, slow).measured == pytest.approx(
        1.25
    )
    assert "does not say of what" in only_check(SPEEDUP.replace("of: baseline_time\n", ""), fast, slow).why


def test_a_speed_up_within_the_spread_of_steps_is_not_decidable():
    noisy = report(steps=[70, 80, 85, 90, 100, 110])

    assert only_check(SPEEDUP, noisy, report(steps=[100] * 6)).outcome == NOT_DECIDABLE
    assert only_check(SPEEDUP, report(steps=[99] * 6), report(steps=[100] * 6)).outcome == REFUTED


def test_saved_time_is_taken_of_what_the_baseline_exposes():
    # 2 ranks, 6 steps: 480 ms exposed are 40 ms per rank and step; 10 ms shorter steps save a quarter.
    text = "metric: saved_share\nof: unhidden_communication\nvalue: {low: 20, high: 30}\nunit: '%'\n"
    check = only_check(text, report(steps=[90] * 6), report(Part(exposed=480), steps=[100] * 6))

    assert (check.outcome, check.measured) == (HELD, pytest.approx(25))


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("metric: exposed_share\nof: step\nvalue: {at_most: 1 %}", 100 * 6 / 1200),
        ("metric: communication_share\nof: step\nvalue: {at_most: 1 %}", 100 * 10 / 1200),
        ("metric: waiting_share\nof: kernel_time\nvalue: {low: 15, high: 25}\nunit: '%'", 20),
        ("metric: exposed_time\nvalue: {at_most: 1 ms}", 0.5),
        ("metric: exposed_time\nvalue: {at_most: 600 us}", 500),
        ("metric: step_time\nvalue: {low: 90, high: 110}\nunit: ms", 100),
        ("metric: bytes_per_step\nvalue: 1 KiB", 1),
        ("metric: bytes_per_step\nvalue: {at_most: 1.1 kB}", 1.024),
        ("metric: bus_bandwidth\naxis: tp\ncollective: all_reduce\nvalue: {at_least: 40 GB/s}", 50),
        ("metric: compute_stretch\nof: alone\nvalue: {at_most: 35 %}", 20),
        ("metric: compute_stretch\nvalue: {at_most: 1.4 x}", 1.2),
    ],
)
def test_each_metric_is_read_off_its_fields(text, measured):
    part = Part(hidden=4, exposed=6, wait=2, payload=12 * 1024, busbw=50, busbw_kernel=40)
    check = only_check(text, report(part, contention=contention()))

    assert check.measured == pytest.approx(measured)
    assert check.outcome == HELD
    assert check.formula
    assert check.fields


def test_a_bandwidth_over_kernel_time_is_a_lower_end_only():
    text = "metric: bus_bandwidth\naxis: tp\nvalue: {at_least: 40 GB/s}"
    part = Part(exposed=6, busbw_kernel=41)

    assert only_check(text, report(part)).outcome == HELD
    assert only_check(text.replace("40", "42"), report(part)).outcome == NOT_DECIDABLE
    assert only_check(text.replace("at_least: 40", "at_most: 42"), report(part)).outcome == NOT_DECIDABLE


@pytest.mark.parametrize("found", [None, contention("not established"), contention("unknown", None)])
def test_contention_that_is_not_established_decides_nothing(found):
    assert only_check("metric: compute_stretch\nvalue: {at_most: 9 x}", report(contention=found)).outcome == NOT_DECIDABLE


@pytest.mark.parametrize("metric", sorted(set(METRICS) - set(SETTLED)))
def test_metrics_that_no_report_holds_are_said_to_be_so(metric):
    check = only_check(f"metric: {metric}\nvalue: null", report(Part(exposed=1)))

    assert check.outcome == NOT_DECIDABLE
    assert "cannot be read off a Report" in check.why


def test_a_window_of_the_whole_trace_has_no_time_per_step():
    check = only_check("metric: exposed_time\nvalue: {at_most: 9 s}", report(Part(exposed=1), window="whole"))

    assert (check.outcome, check.why) == (NOT_DECIDABLE, "the window is no steps: analyze with --window steps")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hardware: {count: 64}", "the claim is about 64 devices, the Report about 2"),
        ("hardware: {gpu: A100 80GB SXM4}", "the claim is about A100 80GB SXM4, the Report about NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_report_of_another_run_decides_nothing(text, words):
    check = only_check(HIDDEN + text, report(Part(hidden=9, exposed=1, wait=0)))

    assert (check.outcome, check.why.startswith(words)) == (NOT_DECIDABLE, True)


def test_conditions_that_a_report_does_not_hold_are_said_to_be_taken_on_trust():
    text = HIDDEN + "workload: {phase: train, batch: 4}\nhardware: {gpu: H100, count: 2}"
    settled = settle(claim(text), report(Part(hidden=9, exposed=1, wait=0)))

    assert settled.outcome == HELD
    assert settled.conditions == [
        "hardware.count: 2; the Report: 2",
        "hardware.gpu: H100; the Report: NVIDIA H100 80GB HBM3",
        "taken on trust, as a Report does not hold them: workload.phase, workload.batch",
    ]


def test_simulated_truncated_and_incomplete_reports_are_said():
    notes = [("truncated", "a.json: ends early"), ("missing_ranks", "only 2 of 64"), ("microseconds", "not of interest")]
    settled = settle(claim(HIDDEN), report(Part(hidden=9, exposed=1, wait=0), kind="simulated", window="whole", notes=notes))

    assert settled.provenance == "simulated"
    assert settled.window == "the whole trace, 2 of 2 ranks"
    assert settled.notes == [
        "SIMULATED: this says what the model gives, not what a run did",
        "a.json: ends early",
        "only 2 of 64",
        "the window is the whole trace: start-up and end are inside",
    ]


def test_a_report_of_some_ranks_or_of_no_run_refutes_but_never_holds():
    for partial in ({"world": 8}, {"kind": "simulated"}):
        good, bad = (report(Part(hidden=hidden, exposed=10 - hidden, wait=0), **partial) for hidden in (9, 1))

        assert only_check(HIDDEN, good).outcome == NOT_DECIDABLE
        assert only_check(HIDDEN, bad).outcome == REFUTED


def test_kernels_unseen_inside_device_graphs_decide_nothing():
    seen = report(Part(hidden=9, exposed=1, wait=0), notes=[("opaque_graphs", "3 graphs are one row each")])

    assert only_check(HIDDEN, seen).outcome == NOT_DECIDABLE


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome"),
    [
        (None, 1, 1, NOT_DECIDABLE),
        (80, 79.5, 80.5, HELD),
        (80, 79.4, 80.5, NOT_DECIDABLE),
        (80, 80.6, 81, REFUTED),
        (1.24, 1.24, 1.244, HELD),
        (1.24, 1.246, 1.25, REFUTED),
        (Value(at_least=1), 1, None, HELD),
        (Value(at_least=1), None, 2, NOT_DECIDABLE),
        (Value(at_least=1), None, 0.9, REFUTED),
        (Value(at_most=1), None, 1, HELD),
        (Value(at_most=1), 0, None, NOT_DECIDABLE),
        (Value(low=1, high=2), 1, 2, HELD),
        (Value(low=1, high=2), 0, 3, NOT_DECIDABLE),
        (Value(low=1, high=2), 2.1, 3, REFUTED),
        (Value(up_to=9), 1, 1, NOT_DECIDABLE),
        (Value(points=[1, 2]), 1, 1, NOT_DECIDABLE),
        (Value(at_least=1), 3, 2, NOT_DECIDABLE),
    ],
)
def test_a_value_is_held_against_both_ends_of_what_was_measured(value, low, high, outcome):
    assert decide(value, low, high) == outcome


def test_the_notes_that_count_are_notes_that_are_written():
    sources = "".join(path.read_text() for path in (Path(__file__).parents[2] / "src" / "underlap").rglob("*.py"))

    assert [code for code in (*settlement._SAID, *settlement._BLIND) if f'code="{code}"' not in sources] == []


@pytest.mark.parametrize(
    ("on_cpu", "why"),
    [
        (True, "the claim is about H100, the Report about compute on the host"),
        (False, "the claim is about H100, and the Report does not name its device"),
    ],
)
def test_a_claim_about_a_device_that_the_report_does_not_show_is_not_held(on_cpu, why):
    ours = report(Part(hidden=9, exposed=1, wait=0), device=None)
    sources = [replace(row, on_cpu=on_cpu) for row in ours.provenance.sources]
    check = only_check(HIDDEN + "hardware: {gpu: H100}\n", replace(ours, provenance=replace(ours.provenance, sources=sources)))

    assert (check.outcome, check.why.partition(";")[0]) == (NOT_DECIDABLE, why)
