"""Numbers in words."""

from __future__ import annotations

import pytest

from underlap.wording import ranges


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([4], "4"), ([0, 1], "0-1"), ([0, 1, 2, 7, 9, 10], "0-2, 7, 9-10"), ([9, 1, 2, 4], "1-2, 4, 9")],
)
def test_numbers_in_a_row_become_a_range(numbers: list[int], expected: str) -> None:
    assert ranges(numbers) == expected


def test_a_separator_without_space_keeps_a_list_together() -> None:
    assert ranges([0, 1, 3], ",") == "0-1,3"
