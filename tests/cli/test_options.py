"""The grammar of --steps, --ranks and --mesh."""

from __future__ import annotations

import tracemalloc

import click
import pytest

from underlap.cli.options import Mesh, Numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", (3,)),
        ("2-5", (2, 3, 4, 5)),
        ("2,4", (2, 4)),
        ("6,2-3", (2, 3, 6)),
        ("0", (0,)),
        ("7-7", (7,)),
        (" 1 , 2 - 3 ", (1, 2, 3)),
    ],
)
def test_numbers_and_ranges_become_ascending_numbers(value, expected):
    assert Numbers().convert(value, None, None) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "Expected numbers from 0"),
        ("2,", "nothing between two commas, or at an end"),
        ("a", "'a' is no number and no range, in 'a'"),
        ("-1", "'-1' is no number"),
        ("1.5", "'1.5' is no number"),
        ("2-", "'2-' is no number"),
        ("1-2-3", "'1-2-3' is no number"),
        ("\u0663", "is no number"),
        ("1" * 5000, "is no number"),
        ("5-2", "The range 5-2 runs backward. Write 2-5."),
        ("2,2", "'2,2' lists 2 twice."),
        ("2-4,3", "'2-4,3' lists 3 twice."),
    ],
)
def test_other_lists_are_refused_with_the_place_and_the_form(value, message):
    with pytest.raises(click.BadParameter) as caught:
        Numbers().convert(value, None, None)
    assert message in caught.value.message


def test_an_absurd_range_is_refused_without_building_it():
    tracemalloc.start()
    try:
        for value in ("0-999999999", "0-99999,100000-199999,5"):
            with pytest.raises(click.BadParameter, match="at most 100000 are accepted"):
                Numbers().convert(value, None, None)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("dp=8", {"dp": 8}), ("dp=2,tp=4", {"dp": 2, "tp": 4}), (" dp_shard = 2 , cp=1 ", {"dp_shard": 2, "cp": 1})],
)
def test_a_mesh_keeps_its_order(value, expected):
    assert list(Mesh().convert(value, None, None).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "Expected name=size, like dp=2,tp=4."),
        ("dp", "'dp' is no dimension, in 'dp'."),
        ("dp=2,", "'' is no dimension"),
        ("dp=two", "'dp=two' is no dimension"),
        ("2=dp", "'2=dp' is no dimension"),
        ("dp=0", "The size of dp is 0. Expected 1 or more."),
        ("dp=-2", "The size of dp is -2. Expected 1 or more."),
        ("dp=2,dp=4", "'dp=2,dp=4' names the dimension dp twice."),
        ("dp=" + "9" * 5000, "The size of dp is larger than 10000000."),
    ],
)
def test_other_meshes_are_refused_with_the_place_and_the_form(value, message):
    with pytest.raises(click.BadParameter) as caught:
        Mesh().convert(value, None, None)
    assert message in caught.value.message
