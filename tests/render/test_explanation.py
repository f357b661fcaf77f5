"""The explanation below the screen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import underlap
from tests.render.hand_written import one_rank_report
from underlap.render.explanation import lines
from underlap.report import Verdict

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


def test_a_report_without_depth_explains_its_families_and_nothing_else() -> None:
    text = "\n".join(lines(one_rank_report()))

    assert "else hidden" in text
    assert "critical path" not in text
    assert "by replay" not in text


def test_a_loss_is_explained_in_its_words() -> None:
    report = one_rank_report()
    verdict = Verdict(
        outcome="a loss",
        cause=None,
        causes=[],
        evidence=None,
        recoverable_ns=None,
        would_change=None,
        price=None,
        unknown=[],
        loss="hiding 1.00 ms cost 2.00 ms",
    )
    families = [msgspec.structs.replace(family, verdict=verdict) for family in report.families]
    text = "\n".join(lines(msgspec.structs.replace(report, families=families)))

    assert ": a loss; " in text
    assert "hiding 1.00 ms cost 2.00 ms" in text


@pytest.mark.parametrize("name", ["recsys_a100", "vllm_tp8_b200"])
def test_a_real_trace_is_explained_with_path_levers_and_bound(name: str) -> None:
    report = underlap.analyze(TRACES / name, window="whole", deep=True)
    text = "\n".join(lines(report))

    assert "critical path (ends on rank" in text
    assert "by replay the window would be shorter by (not additive):" in text
    assert "no schedule of this work is shorter than" in text
    assert "without late_peers       ? (waiting is not known" in text


def test_the_branches_of_a_family_add_up_to_its_exposed_share() -> None:
    report = underlap.analyze(TRACES / "recsys_a100", window="whole")

    for family in report.families:
        assert family.verdict is not None
        assert sum(cause.exposed_ns for cause in family.verdict.causes) == family.exposed_share_ns


def test_the_parts_of_the_critical_path_add_up_to_the_window() -> None:
    report = underlap.analyze(TRACES / "recsys_a100", window="whole")
    path = report.critical_path

    assert path is not None
    assert sum(path.parts.values()) == path.end_ns - path.start_ns == report.ranks[0].span_ns


def test_what_moving_communication_wins_on_a_host_bound_trace_is_next_to_nothing() -> None:
    report = underlap.analyze(TRACES / "vllm_tp8_b200", window="whole")
    (lever,) = [row for row in report.levers if row.lever == "communication"]

    assert lever.at_most_ns is not None
    assert lever.at_most_ns < 50_000


def test_a_pipeline_whose_spans_run_side_by_side_in_a_lane_has_levers() -> None:
    report = underlap.analyze(TRACES / "gloo_axes" / "pp_1f1b")
    amounts = {row.lever: row.at_least_ns for row in report.levers}

    assert report.levers_unknown is None
    # Its peer comes late by the pipeline's order, and most of its exposed time goes with its transfers.
    assert 0 < (amounts["late_peers"] or 0) < (amounts["communication"] or 0)


def test_why_there_are_no_levers_is_told_where_there_are_none() -> None:
    report = underlap.analyze(TRACES / "gloo_axes" / "pp_1f1b")
    refused = msgspec.structs.replace(report, levers=[], joint_lever=None, levers_unknown="they wait in a circle")

    assert "what each lever would win is not known: they wait in a circle" in lines(refused)


def test_contention_of_the_recommender_is_that_read_by_hand() -> None:
    found = underlap.analyze(TRACES / "recsys_a100", window="whole").contention

    assert found is not None
    assert (found.word, found.kernels_slower, found.kernels_faster) == ("slower", 311, 3)
    assert found.cost_ns == pytest.approx(14.7e6, rel=0.1)
    assert found.net_gain.net_ns == pytest.approx(60.9e6, rel=0.1)


def test_depth_can_be_left_out() -> None:
    report = underlap.analyze(TRACES / "vllm_tp8_b200", deep=False)

    assert (report.contention, report.critical_path, report.levers, report.bound) == (None, None, [], None)


@pytest.mark.parametrize("name", ["dlrm_v100_8ranks", "gloo_axes/moe_ep", "gloo_axes/fsdp2", "recsys_a100"])
def test_no_lever_wins_more_than_the_bound_leaves_and_all_win_at_least_what_one_does(name: str) -> None:
    report = underlap.analyze(TRACES / name, deep=True)

    assert report.bound is not None
    assert report.joint_lever is not None
    assert report.if_independent is not None
    left = report.bound.observed_ns - report.bound.lower_bound_ns
    # What stragglers do more is work that the bound counts, so without it the bound is another.
    amounts = [row.at_most_ns or 0 for row in report.levers if row.lever != "stragglers"]
    assert max(*amounts, report.if_independent.at_most_ns or 0) <= left
    assert max(amounts) <= (report.joint_lever.at_most_ns or 0) <= left


@pytest.mark.parametrize("name", ["dlrm_v100_8ranks", "ddp_mi300x", "gloo_axes/fsdp2"])
def test_a_promise_on_a_hardly_explained_path_is_no_single_number_even_where_it_is_cut(name: str) -> None:
    report = underlap.analyze(TRACES / name, window="whole", deep=True)
    assert report.critical_path is not None
    assert (report.critical_path.explained_share or 0) < 0.8
    assert report.joint_lever is not None

    for lever in (*report.levers, report.joint_lever):
        assert lever.at_least_ns is None or lever.at_most_ns in (0, None) or lever.at_least_ns < lever.at_most_ns
