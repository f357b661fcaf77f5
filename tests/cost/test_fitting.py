"""Fits come back with what made the data, cost nothing less than nothing, and never fall with size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import testbeds
from underlap.cost.fitting import curve, fitted, not_negative
from underlap.cost.link_fit import fit_link, ranges
from underlap.errors import OptionError

SIZES = [2.0**power for power in range(12, 24)]


def test_coefficients_of_exact_times_come_back():
    features = np.array([[1.0, flops, nbytes] for flops in (1e6, 3e7, 1e9) for nbytes in (1e3, 2e5, 7e6)])
    found = not_negative(features, features @ np.array([12.0, 1e-5, 0.0]))

    assert found == pytest.approx([12.0, 1e-5, 0.0], rel=1e-6, abs=1e-9)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e6)), min_size=3, max_size=12))
def test_no_coefficient_is_below_nothing(points):
    features = np.array([[1.0, size, size**0.5] for size, _ in points])

    assert (not_negative(features, np.array([time for _, time in points])) >= 0).all()


@given(
    st.lists(st.tuples(st.floats(1, 1e9), st.floats(0.01, 1e6)), min_size=1, max_size=12), st.floats(1, 1e10), st.floats(1, 10)
)
def test_a_larger_size_never_takes_less_on_a_curve(points, size, factor):
    line = curve(points)

    assert line.time(factor * size) >= line.time(size) * (1 - 1e-9)


def test_a_curve_goes_through_points_that_rise():
    line = curve([(10.0, 1.0), (100.0, 5.0), (1000.0, 80.0)])

    assert [line.time(size) for size in (10.0, 100.0, 1000.0)] == pytest.approx([1.0, 5.0, 80.0])
    assert line.time(1.0) <= 1.0
    assert 80.0 < line.time(2000.0) <= 160.0


def test_what_a_fit_misses_is_made_up_for_near_the_point_that_says_so():
    features = np.array([[1.0, size] for size in SIZES])
    times = [10 + size / 1e3 * (1.5 if size > 1e6 else 1.0) for size in SIZES]
    fit = fitted(features, SIZES, times)

    missed = [fit.time((1.0, size), size) / time - 1 for size, time in zip(SIZES, times, strict=True)]
    assert max(map(abs, missed)) < 0.15


# ---- links


def test_start_burst_and_rate_of_a_held_link_come_back():
    found = fit_link([(size, 1e3 * testbeds.transfer_us(size)) for size in SIZES])

    assert found.start_ns == pytest.approx(1e3 * testbeds.START_US, rel=1e-6)
    assert found.copy_ns_per_byte == pytest.approx(testbeds.COPY, rel=1e-6)
    assert found.wire_ns_per_byte == pytest.approx(testbeds.WIRE, rel=1e-6)
    assert found.burst_bytes == pytest.approx(testbeds.BURST, rel=1e-6)
    assert found.residual < 1e-9


@given(st.floats(1e4, 1e6), st.floats(0.05, 2.0), st.floats(5.0, 100.0), st.floats(4e4, 1e6), st.integers(0, 2**32 - 1))
def test_a_noisy_link_is_found_again_within_its_noise(start, copy, wire, burst, seed):
    noise = np.random.default_rng(seed).normal(1.0, 0.005, len(SIZES))
    points = [(size, (start + max(copy * size, wire * (size - burst))) * at) for size, at in zip(SIZES, noise, strict=True)]
    found = fit_link(points)

    assert found.wire_ns_per_byte == pytest.approx(wire, rel=0.05)
    assert found.time_ns(6e6) == pytest.approx(start + max(copy * 6e6, wire * (6e6 - burst)), rel=0.05)


def test_a_link_that_nothing_holds_is_one_line():
    found = fit_link([(size, 5e4 + 0.4 * size) for size in SIZES])

    assert found.burst_bytes == 0
    assert found.wire_ns_per_byte == found.copy_ns_per_byte == pytest.approx(0.4)


def test_ranges_hold_what_made_noisy_points():
    rng = np.random.default_rng(5)
    points = []
    for size in SIZES:
        times = np.sort(1e3 * testbeds.transfer_us(size) * rng.normal(1.0, 0.02, 9))
        points.append((size, float(times[4]), float(times[1]), float(times[7])))
    _, found = ranges(points)

    truth = {
        "start_ns": 1e3 * testbeds.START_US,
        "wire_ns_per_byte": testbeds.WIRE,
        "burst_bytes": testbeds.BURST,
    }
    for name, value in truth.items():
        low, high = found[name]
        assert low <= value <= high, name


@given(st.floats(1, 1e8), st.floats(1, 10))
def test_a_larger_transfer_never_takes_less(size, factor):
    found = fit_link([(each, 1e3 * testbeds.transfer_us(each)) for each in SIZES])

    assert found.time_ns(factor * size) >= found.time_ns(size)


def test_three_sizes_do_not_tell_a_link_apart():
    with pytest.raises(OptionError, match=r"3 sizes: expected 4 or more"):
        fit_link([(size, 1.0) for size in SIZES[:3]])
