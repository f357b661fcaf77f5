"""Slowdown beside communication on planted Timelines, where the right answer is known."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.planted import Kernel, analyzed, timeline, training
from underlap.analyze.contention import multiprocessors_short
from underlap.timeline import Timeline


def few(count: int = 3) -> list[Kernel]:
    """Kernels that stay away from communication, for the placebo."""
    return [Kernel(100_000 + 7 * at, name=f"other {at}") for at in range(count)]


def noisy(length: int, random: np.random.Generator) -> int:
    return round(length * float(np.exp(random.normal(0, 0.02))))


def test_without_operations_the_slowdown_is_unknown_and_says_so() -> None:
    found = analyzed(timeline([], []))

    assert (found.compute.word, found.compute.cost_ns) == ("unknown", None)
    assert found.compute.reason == "there is no compute kernel in the window"
    assert (found.net.word, found.net.net_ns) == ("not established", None)


def test_without_communication_beside_compute_the_slowdown_is_unknown() -> None:
    found = analyzed(timeline([few()] * 4, [[(1, 1, 5_000)]] * 4))

    assert found.compute.word == "unknown"
    assert "no compute kernel runs beside communication" in str(found.compute.reason)
    assert found.net.reason == "no communication is hidden behind compute"


def test_with_all_compute_beside_communication_the_slowdown_is_unknown() -> None:
    found = analyzed(timeline([few()] * 4, [[(0, 3, 0)]] * 4))

    assert (found.compute.word, found.compute.ratio) == ("unknown", None)
    assert "no compute kernel runs alone" in str(found.compute.reason)


def test_one_step_has_no_position_that_ran_on_both_sides() -> None:
    found = analyzed(training(1.5, steps=1)[0])

    assert (found.compute.word, found.compute.positions) == ("unknown", 0)
    assert "(1 step)" in str(found.compute.reason)


@pytest.mark.parametrize("factor", [1.05, 1.2, 1.5, 2.0])
def test_planted_slowdowns_and_their_costs_lie_in_about_95_percent_of_the_ranges(factor: float) -> None:
    established, ratios, costs = 0, 0, 0
    for seed in range(40):
        planted, cost = training(factor, seed=seed)
        found = analyzed(planted).compute
        ratios += found.ratio_low <= factor <= found.ratio_high
        # A placebo that is off by chance, one in twenty, leaves a small effect not established.
        if found.established:
            established += 1
            costs += found.cost_low_ns <= cost <= found.cost_high_ns

    assert ratios >= 36
    assert established >= 36
    assert costs >= 0.9 * established


def test_a_planted_slowdown_leaves_the_placebo_at_one() -> None:
    assert analyzed(training(1.5)[0]).compute.placebo_ratio == pytest.approx(1, abs=0.01)


def test_a_planted_speedup_is_called_faster_and_costs_less_than_nothing() -> None:
    found = analyzed(training(0.8)[0]).compute

    assert found.word == "faster"
    assert found.kernels_faster > found.kernels_slower
    assert found.cost_high_ns < 0


def test_without_a_planted_slowdown_an_effect_is_rarely_claimed() -> None:
    words = [analyzed(training(seed=seed)[0]).compute for seed in range(40)]

    assert sum(found.established for found in words) <= 2
    assert all(abs(found.ratio - 1) < 0.02 for found in words)


def test_small_kernels_that_suffer_more_show_in_the_rows_by_size() -> None:
    found = analyzed(training(lambda length: 1.6 if length < 12_000 else 1.1 if length < 180_000 else 1.03, kernels=600)[0])

    small, middle, large = (row.ratio.value for row in found.sizes)
    # Kernels of 12 to 18 us alone are in the first row too, with the middle factor.
    assert 1.4 < small < 1.6
    assert middle == pytest.approx(1.1, abs=0.02)
    assert large == pytest.approx(1.03, abs=0.01)


def test_the_costs_of_the_sizes_add_up_to_the_cost() -> None:
    found = analyzed(training(1.4)[0])

    assert sum(row.cost_ns for row in found.sizes) == pytest.approx(found.compute.cost_ns, abs=len(found.sizes))
    assert sum(row.beside_ns for row in found.sizes) == found.net.hidden_ns
    assert found.compute.measured_cost_ns <= found.compute.cost_ns


def test_kernels_always_beside_communication_in_one_phase_establish_nothing() -> None:
    # The same kernels at the same places of every step: those in the phase with communication just are shorter.
    found = analyzed(training(0.6, wander=0)[0])

    assert (found.compute.word, found.compute.ratio, found.compute.cost_ns) == ("not established", None, None)
    assert "cannot be told apart" in str(found.compute.reason)
    assert found.net.word == "not established"


def test_pairing_by_name_and_grid_would_show_an_effect_that_positions_do_not() -> None:
    # Two layers with the same kernel and grid, the second ten times longer, and communication always beside it.
    layers = [Kernel(20_000, name="gemm", grid=8)] * 10 + [Kernel(200_000, name="gemm", grid=8)] * 10
    found = analyzed(timeline([layers] * 6, [[(10, 20, 0)]] * 6)).compute

    assert (found.word, found.ratio, found.kernels_slower) == ("not established", None, 0)


def test_the_same_kernel_in_steps_of_different_length_is_not_paired_across_them() -> None:
    # The first layer is missing in half of the steps, so that the k-th kernel is another layer's there.
    short = [Kernel(200_000, name="gemm", grid=8)] * 10
    long = [Kernel(20_000, name="gemm", grid=8)] * 10 + short
    found = analyzed(timeline([long, short] * 3, [[(10, 20, 0)], [(0, 10, 0)]] * 3)).compute

    assert (found.kernels_slower, found.kernels_faster, found.established) == (0, 0, False)


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_steps_that_are_slow_for_another_reason_make_the_placebo_fail(factor: float) -> None:
    found = analyzed(training(factor, slow_steps=1.15, every_second=True)[0]).compute

    assert (found.word, found.cost_ns) == ("not established", None)
    assert found.placebo_ratio == pytest.approx(1.15, abs=0.02)
    assert "something else changes with communication" in str(found.reason)


def test_the_placebo_takes_its_steps_from_the_positions_nearby() -> None:
    # Early kernels are slow in odd steps, late ones in even steps, and communication comes and goes with both.
    random = np.random.default_rng(0)
    steps, communication = [], []
    for step in range(6):
        slow = [1.2 if (at < 100) == bool(step % 2) else 1.0 for at in range(200)]
        steps.append([Kernel(noisy(round(100_000 * by), random), name=f"at {at}") for at, by in enumerate(slow)])
        communication.append([(40, 60, 0)] if step % 2 else [(140, 160, 0)])
    found = analyzed(timeline(steps, communication)).compute

    assert found.word == "not established"
    assert found.placebo_ratio == pytest.approx(1.2, abs=0.02)


def test_kernels_of_a_size_that_never_ran_alone_have_no_estimate_and_widen_the_net_gain() -> None:
    random = np.random.default_rng(0)
    steps, communication = [], []
    for step in range(6):
        beside = range(20, 40) if step % 2 else range(39, 41)
        kernels = [Kernel(noisy(120_000 if at in beside else 100_000, random), name=f"at {at}") for at in range(60)]
        steps.append([*kernels[:40], Kernel(5_000_000, name="long"), *kernels[40:]])
        communication.append([(beside[0], 41, 0)])
    found = analyzed(timeline(steps, communication))

    assert found.compute.word == "slower"
    assert found.compute.without_estimate_ns == 6 * 5_000_000
    assert found.net.net_low_ns == found.net.hidden_ns - found.compute.cost_high_ns - 6 * 5_000_000
    assert found.net.net_high_ns == found.net.hidden_ns - found.compute.cost_low_ns


def test_gradient_accumulation_compares_steps_with_and_without_communication() -> None:
    found = analyzed(training(1.2, every_second=True)[0]).compute

    assert found.word == "slower"
    assert found.ratio == pytest.approx(1.2, abs=0.02)


def test_a_kernel_less_than_half_beside_communication_counts_on_neither_side() -> None:
    kernels = few(20)
    found = analyzed(timeline([kernels] * 6, [[(4, 4, 9_000)], [(5, 6, 30_000)]] * 3))

    assert (found.compute.kernels_slower, found.compute.kernels_faster) == (0, 0)
    assert found.compute.without_estimate_ns == 3 * 30_000


def test_a_mean_that_rests_on_a_few_positions_is_not_established() -> None:
    kernels = few(60)
    slow = [dataclasses.replace(kernel, duration_ns=kernel.duration_ns - 10) for kernel in kernels]
    for at in range(10, 18):
        slow[at] = Kernel(kernels[at].duration_ns * 4, name=kernels[at].name)
    found = analyzed(timeline([kernels, slow] * 4, [[(5, 5, 9_000)], [(5, 45, 0)]] * 4)).compute

    assert (found.kernels_slower, found.kernels_faster) == (8, 32)
    assert found.word == "not established"
    assert "rests on a few" in str(found.reason)


def test_without_steps_kernels_alike_are_compared_by_the_share_of_them_beside_communication() -> None:
    random = np.random.default_rng(1)
    kernels, communication = [], []
    for at in range(60):
        beside = at % 3 == 1
        kernels.append([Kernel(noisy(60_000 if beside else 40_000, random), grid=16) for _ in range(8)])
        communication.append([(0, 8, 0)] if beside else [])
    found = analyzed(timeline(kernels, communication, marked=False)).compute

    assert (found.word, found.method, found.positions) == ("slower", "strata", 1)
    assert found.ratio_low <= 1.5 <= found.ratio_high
    assert found.cost_ns == pytest.approx(20 * 8 * 20_000, rel=0.02)
    assert found.cost_low_ns < found.cost_ns < found.cost_high_ns


def test_without_steps_a_phase_that_begins_before_communication_makes_the_placebo_fail() -> None:
    # Slow kernels throughout the second half of each round; communication only in its last quarter.
    rounds = [[Kernel(60_000 if at >= 8 else 40_000, grid=16) for at in range(16)] for _ in range(30)]
    found = analyzed(timeline(rounds, [[(12, 16, 0)]] * 30, marked=False)).compute

    assert found.word == "not established"
    assert found.placebo_ratio > 1.1


def test_without_steps_fewer_than_eight_kernels_on_one_side_leave_it_unknown() -> None:
    found = analyzed(timeline([few(1) * 7, few(1) * 40], [[(0, 7, 0)], []], marked=False)).compute

    assert (found.word, found.ratio) == ("unknown", None)
    assert "8 samples on both sides" in str(found.reason)


def test_what_communication_loses_is_unknown_with_few_calls_and_the_net_gain_an_upper_bound() -> None:
    found = analyzed(training(1.2)[0])

    assert [row.word for row in found.communication] == ["unknown"]
    assert found.net.word == "gain at most"
    assert found.net.communication_cost_ns is None
    assert found.net.net_ns == found.net.hidden_ns - found.compute.cost_ns


def overlapped_and_serial(repeats: int, gemm: tuple[int, int], all_reduce: tuple[int, int]) -> Timeline:
    """Steps in which a GEMM and an all-reduce run one after the other, and steps in which they run at once."""
    random = np.random.default_rng(0)
    steps, communication = [], []
    for _ in range(repeats):
        for together in (0, 1):
            others = [dataclasses.replace(kernel, duration_ns=noisy(kernel.duration_ns, random)) for kernel in few(12)]
            steps.append([*others, Kernel(noisy(gemm[together], random), name="gemm", grid=128)])
            communication.append([(12, 12 + together, noisy(all_reduce[together], random))])
    return timeline(steps, communication, communication_grid=24)


def test_b04_overlap_slower_than_one_after_the_other_is_called_a_loss() -> None:
    # coconet issue 6: 157.27 ms in a row (all-reduce 106.609, GEMM 48.984), 207.145 ms overlapped (206.436, 109.83).
    planted = overlapped_and_serial(12, (48_984_000, 109_830_000), (106_609_000, 206_436_000))

    found = analyzed(planted, transfer=True)

    assert (found.compute.word, found.communication[0].word) == ("slower", "slower")
    assert found.compute.ratio == pytest.approx(2.24, abs=0.05)
    assert found.communication[0].ratio.value == pytest.approx(1.94, abs=0.05)
    assert (found.net.word, found.net.reason) == ("loss", None)
    assert found.net.net_ns / 12 == pytest.approx(-50_800_000, rel=0.1)


def test_b04_from_one_rank_the_same_trace_neither_proves_a_loss_nor_promises_a_gain() -> None:
    planted = overlapped_and_serial(12, (48_984_000, 109_830_000), (106_609_000, 206_436_000))

    found = analyzed(planted)

    assert (found.communication[0].word, found.communication[0].measure) == ("not established", "kernel time")
    assert "traces of all ranks would tell" in str(found.communication[0].reason)
    assert found.net.word == "not established"
    assert found.net.net_low_ns < 0 < found.net.net_high_ns


def test_c02_grids_that_fit_side_by_side_rule_out_a_shortage_of_multiprocessors() -> None:
    assert multiprocessors_short(142, compute_blocks=128, communication_blocks=1) is False
    assert multiprocessors_short(132, compute_blocks=132, communication_blocks=16) is True
    assert multiprocessors_short(132, compute_blocks=None, communication_blocks=16) is None


def test_c03_one_kernel_that_runs_two_to_four_times_as_long_is_named_with_its_factor() -> None:
    # nccl issue 338: batch-norm backward of 2 ms takes 4 to 8 ms beside the all-reduce.
    random = np.random.default_rng(0)
    steps = []
    for step in range(24):
        others = [dataclasses.replace(kernel, duration_ns=noisy(kernel.duration_ns, random)) for kernel in few(12)]
        steps.append([*others, Kernel(int(random.integers(4_000_000, 8_000_000)) if step % 2 else 2_000_000, name="bn_bw")])
    found = analyzed(timeline(steps, [[(12, 12, 3_000_000)], [(12, 13, 0)]] * 12))

    assert found.compute.word == "slower"
    assert found.kernels[0].label == "bn_bw"
    assert 2 <= found.kernels[0].ratio.low <= found.kernels[0].ratio.high <= 4


def test_c05_a_long_kernel_beside_compute_is_shown_with_the_shortest_call_of_its_size() -> None:
    # nccl issue 491: the same all-reduce takes 100 us alone and 188 ms beside other kernels: it mostly waits.
    planted = overlapped_and_serial(8, (188_000_000, 188_000_000), (100_000, 188_000_000))

    row = analyzed(planted).communication[0]

    assert row.shortest_ns == pytest.approx(100_000, rel=0.1)
    assert row.beside_ns == pytest.approx(188_000_000, rel=0.1)
    assert (row.word, row.measure) == ("not established", "kernel time")


def test_c07_the_multiprocessors_that_communication_holds_are_read_from_its_grid() -> None:
    assert analyzed(overlapped_and_serial(1, (9_000, 9_000), (9_000, 9_000))).communication_blocks == 24


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.sampled_from([1.0, 1.1, 1.4]), shift=st.integers(-(10**9), 10**15))
def test_shifting_all_clocks_changes_nothing(seed: int, factor: float, shift: int) -> None:
    planted, _ = training(factor, seed=seed, kernels=270)
    ops, host = planted.ops, planted.host
    moved = dataclasses.replace(
        planted,
        ops=ops.replace(start_ns=ops.start_ns + shift, end_ns=ops.end_ns + shift),
        host=host.replace(start_ns=host.start_ns + shift, end_ns=host.end_ns + shift),
    )

    assert analyzed(moved) == analyzed(planted)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.floats(1.1, 3.0), every_second=st.booleans())
def test_any_planted_factor_is_found(seed: int, factor: float, every_second: bool) -> None:
    found = analyzed(training(factor, seed=seed, every_second=every_second)[0]).compute

    assert found.word == "slower"
    # A 95 % range misses one time in twenty; a miss is a near one.
    width = found.ratio_high - found.ratio_low
    assert found.ratio_low - width < factor < found.ratio_high + width
    assert found.cost_low_ns <= found.cost_ns <= found.cost_high_ns
