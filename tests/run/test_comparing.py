"""When a difference between two plans is established. Needs no torch."""

from __future__ import annotations

import random

import pytest

from underlap.run import comparing


def test_the_interval_of_seven_values_is_their_extremes() -> None:
    # 1 - 2 / 2^7 = 98.4 %; the second smallest and largest hold it with 87.5 % only.
    assert comparing.interval([7, 1, 2, 6, 3, 5, 4]) == (4, 1, 7)


def test_the_interval_of_nine_values_leaves_out_the_extremes() -> None:
    # 1 - 2 * (1 + 9) / 2^9 = 96.1 %
    assert comparing.interval(range(1, 10)) == (5, 2, 8)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        _, low, high = comparing.interval([draw.lognormvariate(0, 0.3) for _ in range(9)])
        held += low <= 1.0 <= high
    assert 0.945 <= held / 2000 <= 0.98


@pytest.mark.parametrize(
    ("low", "high", "repetitions", "expected"),
    [
        (0.8, 0.99, 7, "gain"),
        (1.01, 1.2, 7, "loss"),
        (0.97, 1.03, 7, "no difference"),
        (1.001, 1.007, 7, "no difference"),
        (0.96, 0.98, 7, "no difference"),
        (0.8, 1.2, 7, None),
        (0.8, 0.9, 6, None),
    ],
)
def test_an_outcome_is_named_only_where_the_interval_establishes_it(
    low: float, high: float, repetitions: int, expected: str | None
) -> None:
    assert comparing.outcome(low, high, repetitions) == expected


def test_the_word_follows_from_bytes_hidden_time_and_outcome() -> None:
    assert comparing.word("gain", bytes_removed=False, hidden_before=1, hidden_after=5) == "hidden"
    assert comparing.word("gain", bytes_removed=True, hidden_before=1, hidden_after=5) == "removed"
    assert comparing.word("gain", bytes_removed=False, hidden_before=5, hidden_after=5) == "shortened"
    assert comparing.word("no difference", bytes_removed=False, hidden_before=1, hidden_after=5) == "shifted"
    assert comparing.word("loss", bytes_removed=False, hidden_before=1, hidden_after=5) is None
    assert comparing.word(None, bytes_removed=False, hidden_before=1, hidden_after=5) is None
