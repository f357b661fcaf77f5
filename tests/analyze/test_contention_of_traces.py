"""Contention in real traces. The figures were worked out by hand from them; they stand in the README of the traces."""

from functools import cache
from pathlib import Path

import pytest

import underlap
from tests.analyze.planted import analyzed
from underlap.analyze.contention import Contention

TRACES = Path(__file__).parents[2].parent / "shared/traces"


@cache
def found(name: str) -> Contention:
    return analyzed(underlap.read(TRACES / name))


def test_recsys_kernels_are_slower_beside_communication_as_counted_by_hand() -> None:
    compute = found("recsys_a100").compute

    assert (compute.word, compute.method) == ("slower", "positions")
    assert (compute.kernels_slower, compute.kernels_faster) == (311, 3)
    assert compute.cost_ns == pytest.approx(14.7e6, rel=0.1)
    assert compute.cost_low_ns == pytest.approx(13.4e6, rel=0.1)
    assert compute.cost_high_ns == pytest.approx(16.0e6, rel=0.1)


def test_recsys_hiding_gains_what_is_left_of_it() -> None:
    net = found("recsys_a100").net

    assert net.word == "gain at most"
    assert net.net_ns == pytest.approx(60.9e6, rel=0.1)
    assert net.net_low_ns < net.net_ns < net.net_high_ns


def test_ddp_kernels_are_slower_beside_communication_as_counted_by_hand() -> None:
    compute = found("ddp_a100").compute

    assert compute.word == "slower"
    assert (compute.kernels_slower, compute.kernels_faster) == (50, 15)
    assert compute.cost_ns == pytest.approx(1.5e6, rel=0.1)
    assert compute.cost_low_ns == pytest.approx(1.1e6, rel=0.1)
    assert compute.cost_high_ns == pytest.approx(1.8e6, rel=0.1)


@pytest.mark.parametrize("name", ["recsys_a100", "ddp_a100"])
def test_positions_never_beside_communication_show_no_effect(name: str) -> None:
    compute = found(name).compute

    assert compute.placebo_ratio == pytest.approx(1, abs=0.006)
    assert compute.placebo_low <= 1 <= compute.placebo_high


@pytest.mark.parametrize("name", ["recsys_a100", "ddp_a100"])
def test_small_kernels_suffer_most_and_long_ones_little(name: str) -> None:
    small, middle, large = found(name).sizes

    assert 1.2 <= small.ratio.value <= 1.7
    assert small.ratio.value > middle.ratio.value
    assert large.ratio is None or 1.015 <= large.ratio.value <= 1.07


def test_mi300x_kernels_that_look_faster_beside_communication_are_not_established() -> None:
    compute = found("ddp_mi300x").compute

    assert (compute.word, compute.ratio, compute.cost_ns) == ("not established", None, None)
    assert "look 0." in str(compute.reason)
    assert found("ddp_mi300x").net.word == "not established"


def test_a_sample_of_a_trace_with_two_steps_shows_no_difference() -> None:
    assert found("recsys_sampled_2of128").compute.word == "no difference seen"


@pytest.mark.parametrize("name", ["nsys_2gpu/mfu_2gpu_before.sqlite", "nsys_2gpu/mfu_2gpu_after.sqlite", "vllm_tp8_b200"])
def test_where_all_runs_one_after_the_other_the_slowdown_is_unknown(name: str) -> None:
    compute = found(name).compute

    assert (compute.word, compute.ratio) == ("unknown", None)
    assert "no compute kernel runs beside communication" in str(compute.reason)


def test_ranks_with_one_step_each_leave_the_slowdown_unknown() -> None:
    compute = found("dlrm_v100_8ranks").compute

    assert compute.word == "unknown"
    assert "(1 step)" in str(compute.reason)
