"""Formats of numbers and names."""

from __future__ import annotations

import pytest

from underlap.render import plain


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_996, "10.0 kB"),
        (999_600, "1.00 MB"),
        (1_900_000_000, "1.90 GB"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(nbytes, expected):
    assert plain.size(nbytes) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(None, "?"), (0.0, "0.0"), (1e-9, "<0.1"), (0.5, "50.0"), (0.9999, ">99.9"), (1.0, "100.0")]
)
def test_only_exact_shares_are_0_and_100(share, expected):
    assert plain.percent(share) == expected


@pytest.mark.parametrize("width", [1, 3, 4, 5, 10, 11])
def test_a_shortened_text_has_the_width_asked_for(width):
    assert len(plain.shorten("abcdefghijkl", width)) == width


def test_a_text_that_fits_is_not_shortened():
    assert plain.shorten("abc", 3) == "abc"


def test_printable_keeps_letters_of_any_script_but_no_control_characters():
    assert plain.printable("a\tb\n\x1b[0m\u202e\u4e2d") == "a b [0m\u4e2d"
    assert plain.clean("\u4e2d") == "\\u4e2d"


@pytest.mark.parametrize(("value", "expected"), [(None, "?"), (85.99, ">= 85.9"), (0.12345, ">= 0.123"), (10.0, ">= 10.0")])
def test_lower_bounds_round_down(value, expected):
    assert plain.at_least(value) == expected
