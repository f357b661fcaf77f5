"""Ranges against values from tables and from repeated draws."""

import math

import numpy as np
import pytest

from underlap.analyze.estimates import group_medians, ratio_of_sums, sign_test, slope_within, student_t


def test_with_too_few_units_there_is_no_estimate() -> None:
    seven = np.ones(7)

    assert ratio_of_sums(seven, seven) is None
    assert slope_within(seven, seven, np.zeros(7), seven, np.arange(7)) is None
    assert slope_within(np.empty(0), np.empty(0), np.empty(0), np.empty(0), np.empty(0)) is None


def test_without_a_difference_in_dose_there_is_no_slope() -> None:
    many = np.arange(20.0)

    assert slope_within(many, np.ones(20), np.zeros(20), np.ones(20), np.arange(20)) is None


@pytest.mark.parametrize(("freedom", "quantile"), [(7, 2.3646), (10, 2.2281), (30, 2.0423), (120, 1.9799)])
def test_quantiles_of_student_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, rel=1e-3)


@pytest.mark.parametrize(
    ("up", "down", "probability"), [(0, 0, 1.0), (3, 3, 1.0), (5, 0, 0.0625), (10, 0, 2 / 1024), (9, 1, 22 / 1024)]
)
def test_the_sign_test_is_the_binomial_one(up: int, down: int, probability: float) -> None:
    assert sign_test(up, down) == pytest.approx(probability)
    assert sign_test(down, up) == pytest.approx(probability)


def test_the_sign_test_of_many_signs_meets_the_exact_one() -> None:
    exact = 2 * sum(math.comb(2400, count) for count in range(1151)) / 2**2400

    assert sign_test(1250, 1150) == pytest.approx(exact, rel=0.02)


def test_ranges_of_ratios_hold_the_ratio_about_19_times_in_20() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        below = random.lognormal(0, 1, 60)
        held += not ratio_of_sums(below * 1.3 * random.lognormal(0, 0.2, 60), below).excludes(1.3 * math.exp(0.02))

    assert 0.9 <= held / 400 <= 0.98


def test_slopes_compare_within_strata_only_and_samples_of_a_cluster_count_once() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        stratum = np.repeat([0, 1], 200)
        cluster = np.tile(np.repeat(np.arange(40), 5), 2)
        dose = (cluster % 2).astype(float)
        values = 5.0 * stratum + 0.3 * dose + random.normal(0, 0.2, 40)[cluster] + random.normal(0, 0.1, 400)
        held += not slope_within(values, dose, stratum, np.ones(400), cluster).excludes(0.3)

    assert 0.9 <= held / 400 <= 0.98


def test_medians_of_groups_are_those_of_numpy() -> None:
    random = np.random.default_rng(0)
    values, group = random.normal(size=100), random.integers(0, 9, 100)

    found = group_medians(values, group, 10)

    assert found[:9].tolist() == [float(np.median(values[group == number])) for number in range(9)]
    assert np.isnan(found[9])
