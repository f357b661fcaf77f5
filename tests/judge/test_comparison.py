"""Two claims, condition by condition: figures of different things are never put side by side."""

from __future__ import annotations

import pytest

from tests.judge.reports import claim
from underlap.flows.claims import by_id, catalog
from underlap.judge.comparison import CONDITIONS, SUBJECT, compared
from underlap.judge.standing import stated
from underlap.render.judgement import comparison_text

FULL = """
metric: end_to_end_speedup
of: baseline_rate
value: {at_least: 5 %}
baseline: no overlap
workload: {model: M, phase: train, batch: 1, sequence: 2048, precision: bf16}
axis: tp
collective: [all_gather, reduce_scatter]
bytes: {unchanged: true}
contention_included: true
hardware: {gpu: H100, count: 8, interconnect: NVLink, topology: one node}
software: {name: A, version: "1"}
"""


def test_claims_under_equal_conditions_are_comparable_whatever_the_software():
    found = compared(claim(FULL), claim(FULL.replace("name: A", "name: B").replace("at_least: 5", "at_least: 7")))

    assert (found.comparable, found.side_by_side, found.why) == ("yes", True, "all conditions are the same")
    assert [row.verdict for row in found.subject] == ["different", "same"]


def test_order_and_case_of_words_make_no_difference():
    other = FULL.replace("[all_gather, reduce_scatter]", "[reduce_scatter, all_gather]").replace("NVLink", "nvlink")

    assert compared(claim(FULL), claim(other)).comparable == "yes"


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("metric: end_to_end_speedup", "metric: forward_speedup", "metric"),
        ("of: baseline_rate", "of: baseline_time", "of"),
        ("5 %", "1.05 x", "unit"),
        ("phase: train", "phase: decode", "workload.phase"),
        ("batch: 1", "batch: 64", "workload.batch"),
        ("axis: tp", "axis: ep", "axis"),
        ("unchanged: true", "unchanged: false", "bytes.unchanged"),
        ("contention_included: true", "contention_included: false", "contention_included"),
        ("gpu: H100", "gpu: A100", "hardware.gpu"),
        ("interconnect: NVLink", "interconnect: PCIe", "hardware.interconnect"),
    ],
)
def test_one_different_condition_makes_them_not_comparable(old, new, name):
    found = compared(claim(FULL), claim(FULL.replace(old, new)))

    assert found.comparable == "no"
    assert [row.name for row in found.conditions if row.verdict == "different"] == [name]
    assert found.side_by_side == (name not in ("metric", "of", "unit"))


def test_a_condition_that_is_not_stated_leaves_it_open():
    found = compared(claim(FULL), claim(FULL.replace("sequence: 2048, ", "")))

    assert (found.comparable, found.why) == ("unknown", "not stated in one or both: workload.sequence")


def test_two_units_of_time_can_stand_side_by_side():
    first, second = (claim(f"metric: step_time\nvalue: {{at_most: {value}}}") for value in ("3 ms", "3000 us"))

    assert compared(first, second).side_by_side


def test_settings_are_a_condition_where_a_claim_names_them():
    found = compared(by_id("megatron-ep-overlap-recompute-conn1"), by_id("megatron-ep-overlap-recompute-conn32"))

    assert (found.comparable, found.why) == ("no", "one condition differs: settings")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("pytorch-asynctp-e2e-70b", "pytorch-asynctp-forward-70b"),  # end to end, forward only
        ("vllm-dbo-tp-prefill-qwen3", "vllm-dbo-tp-hidden-vs-saved"),  # throughput, time saved of what was moved
        ("nanotron-domino-62", "deepspeed-zero2-overlap-zero-percent"),  # of something, of kernel time
        ("flux-overlap-efficiency-average", "domino-row-split-100"),  # efficiency, share covered
        ("iso-a800-15", "sglang-tbo-prefill-27-35"),  # less time, more throughput
        ("sglang-tbo-decode-256", "triton-distributed-qwen3-agrs-decode"),  # percent, ratio
    ],
)
def test_percentages_of_different_things_are_not_shown_side_by_side(first, second):
    found = compared(by_id(first), by_id(second))
    text = comparison_text(found)

    assert not found.side_by_side
    assert "not put side by side" in text
    for figure in (found.first_claimed, found.second_claimed):
        assert figure not in text


def test_no_pair_of_the_catalog_mixes_denominators():
    claims = catalog()
    for at, first in enumerate(claims):
        for second in claims[at + 1 :]:
            found = compared(first, second)
            if found.side_by_side and "%" in (first.unit, second.unit):
                assert first.unit == second.unit
                assert first.metric == second.metric is not None
                assert first.of == second.of is not None


@pytest.mark.parametrize("entry", catalog()[::9], ids=lambda entry: entry.id)
def test_every_condition_is_a_field_of_a_claim(entry):
    for name in (*CONDITIONS, *SUBJECT):
        stated(entry, name)
