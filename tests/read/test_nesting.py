"""The tree of host ranges, held against a search that looks at every range."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from underlap.read.nesting import Nesting

Range = tuple[int, int, int]
ranges = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 40)), max_size=40)


def nesting(rows: list[Range]) -> Nesting:
    """Of (thread, start, length)."""
    thread, start, length = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    return Nesting(thread.astype(np.int32), start, start + length)


def innermost(tree: Nesting, *points: tuple[int, int]) -> list[int]:
    thread, time = (np.array([point[at] for point in points], dtype=np.int64) for at in range(2))
    return tree.innermost(thread.astype(np.int32), time).tolist()


def test_without_ranges_nothing_encloses_anything() -> None:
    assert innermost(nesting([]), (0, 5)) == [-1]
    assert nesting([]).parents().tolist() == []


def test_without_points_nothing_is_asked() -> None:
    assert innermost(nesting([(0, 0, 5)])) == []


def test_the_start_is_inside_and_the_end_is_not() -> None:
    assert innermost(nesting([(0, 10, 5)]), (0, 9), (0, 10), (0, 14), (0, 15), (1, 12)) == [-1, 0, 0, -1, -1]


def test_of_two_ranges_with_one_start_the_longer_is_the_outer() -> None:
    tree = nesting([(0, 0, 5), (0, 0, 9)])

    assert tree.parents().tolist() == [1, -1]
    assert innermost(tree, (0, 4), (0, 7)) == [0, 1]


def test_a_stack_as_deep_as_a_file_is_climbed() -> None:
    depth = 5000
    rows = [(0, at, 2 * (depth - at)) for at in range(depth)]

    assert innermost(nesting(rows), (0, 2 * depth - 1), (0, depth), (0, depth + 10)) == [0, depth - 1, depth - 11]


def test_every_event_on_its_own_thread_finds_its_own_range() -> None:
    threads = 3000

    assert innermost(nesting([(at, 0, 2) for at in range(threads)]), *((at, 1) for at in range(threads))) == list(range(threads))


@given(ranges, st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 85)), min_size=1, max_size=10))
def test_what_is_found_holds_the_point_and_leaps_find_the_same(rows: list[Range], points: list[tuple[int, int]]) -> None:
    tree = nesting(rows)
    found = innermost(tree, *points)
    for (thread, time), at in zip(points, found, strict=True):
        holding = [i for i, (owner, start, length) in enumerate(rows) if owner == thread and start <= time < start + length]
        assert at in holding or at == -1
    thread, time = (np.array([point[at] for point in points], dtype=np.int64) for at in range(2))
    leaped = tree._leap(tree._last_started(thread.astype(np.int32), time), time)
    assert [int(tree._order[at]) if at >= 0 else -1 for at in leaped] == found
