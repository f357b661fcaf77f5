"""Figures of a Report: the interval of a median, and what widens the others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.judge.reports import Part, claim, report
from tests.render.hand_written import replace
from underlap.judge import figures
from underlap.judge.selection import Amounts, select


def chance_of_missing(count: int, skipped: int) -> float:
    """That a median lies outside of the sorted sample without so many figures at each end: both tails of (count, 1/2)."""
    return 2 * sum(math.comb(count, k) for k in range(skipped + 1)) / 2**count


@pytest.mark.parametrize("count", [*range(1, 60), 500, 999, 1000])
def test_the_interval_of_a_median_misses_it_in_at_most_one_of_twenty(count):
    skipped = figures._ends_of_interval(count)

    if skipped is None:
        assert count < figures.LEAST_STEPS
        return
    assert chance_of_missing(count, skipped) <= 0.05
    assert chance_of_missing(count, skipped + 1) > 0.05


@pytest.mark.parametrize("count", [1001, 5000])
def test_the_interval_of_many_steps_is_close_to_the_exact_one(count):
    skipped = figures._ends_of_interval(count)

    assert 0.04 < chance_of_missing(count, skipped) <= 0.0505


def test_a_step_is_as_long_as_on_its_slowest_rank():
    even = report(steps=[100] * 6)
    both = replace(even, steps=[replace(row, span_ns=row.span_ns + row.rank) for row in even.steps])

    assert figures.median_step(both).ns == 100_000_001


share = st.floats(0, 50, allow_subnormal=False)


@given(hidden=share, exposed=share, waited=st.floats(0, 1), clock_us=st.floats(0, 2000), unclassified=share, fused=share)
def test_a_share_lies_within_its_ends_and_the_ends_within_0_and_1(hidden, exposed, waited, clock_us, unclassified, fused):
    part = Part(hidden=hidden, exposed=exposed, wait=waited * exposed, fused=fused)
    amounts = select(claim("axis: tp"), report(part, clock_us=clock_us, unclassified=unclassified))
    assert isinstance(amounts, Amounts)
    for figure in (figures.hidden_of_transfer(amounts), figures.hidden_of_kernel_time(amounts), figures.waiting_share(amounts)):
        if figure.best is not None:
            assert 0 <= figure.low <= figure.best + 1e-12
            assert figure.best <= figure.high + 1e-12 <= 1 + 1e-11


@given(hidden=share, exposed=share, extra=share)
def test_an_unclassified_kernel_that_turns_out_to_communicate_was_within_the_ends(hidden, exposed, extra):
    """The truth, with the kernel of `extra` ms classified: beside `overlap` of communication, which is then not hidden."""
    seen = select(claim("axis: tp"), report(Part(hidden=hidden, exposed=exposed), unclassified=extra))
    figure = figures.hidden_of_kernel_time(seen)
    if figure.low is None:
        return
    overlap = min(extra, hidden)
    truth = (hidden - overlap) / (hidden + exposed + extra - overlap)

    assert figure.low - 1e-6 <= truth <= figure.high + 1e-6
