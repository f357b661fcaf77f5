"""Interval sets: examples by hand, and every function against sets of integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from underlap import intervals

Rows = list[tuple[int, int]]
QUICK = settings(max_examples=80, deadline=None)
rows_of_any_kind: st.SearchStrategy[Rows] = st.lists(st.tuples(st.integers(-9, 30), st.integers(-9, 30)), max_size=9)
border = st.integers(-12, 35)


def made(*rows: tuple[int, int]) -> NDArray[np.int64]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return intervals.union(table[:, 0], table[:, 1])


def listed(found: NDArray[np.int64]) -> Rows:
    """The rows, after a check that they are an interval set: sorted, disjoint, not touching, none empty."""
    rows = [(int(start), int(end)) for start, end in found]
    assert all(start < end for start, end in rows)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(rows))
    return rows


def points(rows: Rows) -> set[int]:
    return {point for start, end in rows for point in range(start, end)}


def test_the_union_of_no_rows_is_empty() -> None:
    assert listed(made()) == []
    assert listed(intervals.merge()) == []
    assert intervals.length(intervals.EMPTY) == 0


def test_the_empty_set_cannot_be_written_to() -> None:
    assert not intervals.EMPTY.flags.writeable
    assert intervals.EMPTY.shape == (0, 2)


def test_rows_without_length_or_with_negative_length_cover_nothing() -> None:
    assert listed(made((3, 3), (9, 5))) == []
    assert listed(made((3, 3), (1, 2))) == [(1, 2)]


def test_one_row_stays_as_it_is() -> None:
    assert listed(made((3, 8))) == [(3, 8)]


def test_touching_nested_and_repeated_rows_become_one() -> None:
    assert listed(made((0, 5), (5, 9))) == [(0, 9)]
    assert listed(made((0, 9), (2, 3), (4, 9))) == [(0, 9)]
    assert listed(made((1, 2), (1, 2))) == [(1, 2)]
    assert listed(made((7, 9), (0, 2))) == [(0, 2), (7, 9)]


def test_intervals_that_only_touch_do_not_intersect() -> None:
    assert listed(intervals.intersect(made((0, 5)), made((5, 9)))) == []


def test_subtracting_a_hole_leaves_both_sides() -> None:
    assert listed(intervals.subtract(made((0, 9)), made((3, 4)))) == [(0, 3), (4, 9)]


def test_the_complement_of_nothing_is_the_whole_stretch() -> None:
    assert listed(intervals.complement(intervals.EMPTY, 2, 7)) == [(2, 7)]
    assert listed(intervals.complement(made((0, 9)), 2, 7)) == []
    assert listed(intervals.complement(made((0, 9)), 7, 2)) == []


def test_a_clipped_set_keeps_only_what_lies_inside() -> None:
    assert listed(intervals.clip(made((0, 4), (6, 9)), 2, 6)) == [(2, 4)]


def test_covered_counts_each_row_by_itself() -> None:
    starts, ends = np.array([0, 2, 9]), np.array([10, 4, 9])

    assert intervals.covered(starts, ends, made((1, 3), (8, 20))).tolist() == [4, 1, 0]
    assert intervals.covered(starts, ends, intervals.EMPTY).tolist() == [0, 0, 0]


@QUICK
@given(rows=rows_of_any_kind)
def test_a_union_covers_the_integers_of_its_rows(rows: Rows) -> None:
    found = made(*rows)

    assert points(listed(found)) == points(rows)
    assert intervals.length(found) == len(points(rows))


@QUICK
@given(a=rows_of_any_kind, b=rows_of_any_kind)
def test_two_sets_combine_like_sets_of_integers(a: Rows, b: Rows) -> None:
    first, second = made(*a), made(*b)

    assert points(listed(intervals.intersect(first, second))) == points(a) & points(b)
    assert points(listed(intervals.subtract(first, second))) == points(a) - points(b)
    assert points(listed(intervals.merge(first, second))) == points(a) | points(b)


@QUICK
@given(rows=rows_of_any_kind, start=border, end=border)
def test_a_stretch_is_the_clipped_set_and_its_complement(rows: Rows, start: int, end: int) -> None:
    stretch = set(range(start, end))

    assert points(listed(intervals.complement(made(*rows), start, end))) == stretch - points(rows)
    if start <= end:
        assert points(listed(intervals.clip(made(*rows), start, end))) == stretch & points(rows)


@QUICK
@given(rows=rows_of_any_kind, asked=st.lists(st.tuples(border, st.integers(0, 20)), min_size=1, max_size=6))
def test_covered_is_the_number_of_integers_in_both(rows: Rows, asked: Rows) -> None:
    starts = np.array([start for start, _ in asked])
    ends = starts + np.array([length for _, length in asked])

    expected = [len(points(rows) & set(range(start, start + length))) for start, length in asked]
    assert intervals.covered(starts, ends, made(*rows)).tolist() == expected


@pytest.mark.parametrize("moved", [0, 1 << 61, -(1 << 61)])
def test_absolute_nanoseconds_lose_no_digit(moved: int) -> None:
    found = made((moved, moved + 3), (moved + 2, moved + 7))

    assert listed(found) == [(moved, moved + 7)]
    assert intervals.covered(np.array([moved + 1]), np.array([moved + 6]), found).tolist() == [5]
