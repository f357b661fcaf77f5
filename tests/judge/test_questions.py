"""The four questions, from a claim's own fields."""

from __future__ import annotations

import pytest

from tests.judge.reports import Part, claim, contention, report
from underlap.claim import Claim
from underlap.flows.claims import catalog
from underlap.judge import evidence, settlement
from underlap.judge.questions import ask
from underlap.judge.standing import stated
from underlap.judgement import NO, UNKNOWN, YES


def answers(entry: Claim):
    return {answer.question: answer for answer in ask(entry)}


def test_a_claim_that_states_nothing_gets_four_times_unknown():
    found = answers(claim())

    assert {answer.answer for answer in found.values()} == {UNKNOWN}
    assert found["workload"].why == "the claim names no phase; not stated: model, batch, sequence, precision"


@pytest.mark.parametrize(
    ("workload", "answer"),
    [
        ("phase: train", YES),
        ("phase: prefill", YES),
        ("phase: [forward, backward]", YES),
        ("phase: decode", NO),
        ("phase: decode, batch: 256", NO),
        ("phase: decode, batch: 4096", YES),
        ("phase: prefill, batch: 1, sequence: 128", NO),
        # At most 16,384 rows: an engine may cut that into chunks, so only the phase speaks.
        ("phase: prefill, batch: 8, sequence: 2048", YES),
        ("phase: operator", UNKNOWN),
        ("phase: operator, rows: 8192", YES),
        ("phase: operator, rows: [64, 512]", NO),
        ("phase: operator, rows: [64, 8192]", UNKNOWN),
        ("phase: [prefill, decode]", UNKNOWN),
        ("phase: serving", UNKNOWN),
    ],
)
def test_many_rows_and_long_compute_are_the_favorable_side(workload, answer):
    assert answers(claim(f"workload: {{{workload}}}"))["workload"].answer == answer


def test_no_axis_is_hard_by_its_name_but_by_bytes_slack_and_stretch():
    both = [answers(claim(f"axis: {axis}\ncollective: {collective}"))["axis"] for axis, collective in
            (("tp", "all_reduce"), ("ep", "all_to_all"))]  # fmt: skip

    assert [answer.answer for answer in both] == [UNKNOWN, UNKNOWN]
    assert all("bytes over the link, slack and stretch decide" in answer.why for answer in both)
    told = "bytes: {reported: 164 KB}\nhardware: {interconnect: PCIe}\nslack: one layer\ncontention_included: true\n"
    assert answers(claim(told + "axis: tp\ncollective: all_reduce"))["axis"].answer == YES


def test_one_figure_for_several_axes_is_no_answer_for_either():
    found = answers(claim("axis: [ep, pp]\ncollective: all_to_all"))["axis"]

    assert (found.answer, found.why) == (NO, "one figure for several axes (ep, pp), which differ in bytes, link and slack")


@pytest.mark.parametrize(
    ("text", "answer", "words"),
    [
        ("bytes: {unchanged: true}", YES, "unchanged"),
        ("bytes: {unchanged: false}", NO, "sending less"),
        ("effect: [removed, hidden]", NO, "beside hiding"),
        ("effect: [shortened]", NO, "nothing is hidden"),
        ("effect: [shifted]", NO, "shifted"),
        ("bytes: {unchanged: true}\neffect: [removed]", UNKNOWN, "contradicts itself"),
        ("effect: [hidden]\nmetric: hidden_share", UNKNOWN, "can be shifted"),
        ("metric: end_to_end_speedup", UNKNOWN, "by hiding, removing or shortening alike"),
    ],
)
def test_hidden_is_told_from_removed_shortened_and_shifted(text, answer, words):
    found = answers(claim(text))["bytes"]

    assert found.answer == answer
    assert words in found.why


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("contention_included: true", YES),
        ("contention_included: false", NO),
        ("metric: end_to_end_speedup", YES),
        ("metric: hidden_share", UNKNOWN),
        ("metric: collective_speedup", UNKNOWN),
    ],
)
def test_the_price_is_inside_where_it_is_said_or_where_the_whole_run_was_timed(text, answer):
    assert answers(claim(text))["contention"].answer == answer


@pytest.mark.parametrize("entry", catalog(), ids=lambda entry: entry.id)
def test_every_answer_rests_on_fields_that_exist(entry):
    for answer in ask(entry):
        assert answer.answer in (YES, NO, UNKNOWN)
        for field in answer.rests_on:
            stated(entry, field)


def with_report(entry, *reports):
    settled = settlement.settle(entry, *reports)
    return {answer.question: answer for answer in evidence.ask_with(entry, reports[0], settled.checks, *reports[1:])}


def test_a_report_answers_with_its_figures_what_the_claim_leaves_open():
    entry = claim("axis: tp\nmetric: hidden_share\nvalue: {at_least: 1 %}\nbytes: {unchanged: true}")
    run = report(Part(hidden=9, exposed=3, wait=0, payload=1200, causes={"dependent": 2, "unknown": 1}), contention=contention())
    found = with_report(entry, run, run)

    assert [answer.answer for answer in found.values()] == [UNKNOWN, YES, NO, NO]  # the same bytes, and no shorter step
    assert "in 67% of the exposed time the result is needed at once (cause known for 67%)" in found["axis"].why
    assert "compute beside communication takes 1.2 times as long as alone" in found["axis"].why
    assert "net gain of hiding: gain, 8.000 ms" in found["contention"].why
    assert "contention.net_gain" in found["contention"].rests_on


def test_a_report_that_does_not_tell_leaves_the_answer_open():
    entry = claim("axis: tp\nbytes: {unchanged: true}")
    found = with_report(entry, report(Part(hidden=9, exposed=3)))

    assert found["axis"].answer == UNKNOWN
    assert found["axis"].why.endswith("not known: bytes over the link, slack before the result is needed, stretch beside compute")
    assert "--baseline-report" in found["bytes"].why


def test_other_bytes_in_the_report_turn_hidden_into_removed():
    entry = claim("axis: tp\nbytes: {unchanged: true}")
    found = with_report(entry, report(Part(exposed=1, payload=600)), report(Part(exposed=1, payload=1200)))

    assert found["bytes"].answer == NO
    assert found["bytes"].why.endswith("what changed is removed, not hidden")


@pytest.mark.parametrize(
    ("steps", "answer", "words"),
    [
        ([90] * 6, YES, "the step is 1.11 times as fast"),
        ([100] * 6, NO, "the step did not become shorter (1 times as fast): shifted"),
        ([110] * 6, NO, "the step did not become shorter (0.909 times as fast): shifted"),
        ([80, 90, 90, 90, 90, 120], YES, "shifted is not excluded"),
        ([50] * 5, YES, "is not established"),
    ],
)
def test_the_same_bytes_are_shifted_where_the_step_did_not_become_shorter(steps, answer, words):
    run = report(Part(hidden=1, payload=100 * len(steps)), steps=steps)
    found = with_report(claim("axis: tp\nbytes: {unchanged: true}"), run, report(Part(exposed=1, payload=600)))["bytes"]

    assert found.answer == answer
    assert words in found.why
