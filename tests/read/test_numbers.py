"""Numbers of traces: exact, whatever their digits and their company."""

from decimal import Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underlap.read.numbers import LARGEST_NS, integer, integers, nanoseconds
from underlap.timeline import UNKNOWN_NS

decimals = st.from_regex(
    r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?", fullmatch=True, alphabet="-.0123456789eE+"
)


def exactly(text: str) -> int:
    value = int(Decimal(text).scaleb(3))
    return value if abs(value) <= LARGEST_NS else UNKNOWN_NS


def test_no_texts_are_no_times() -> None:
    assert nanoseconds([]).tolist() == []


@given(decimals)
def test_one_decimal_is_cut_to_nanoseconds_like_exact_arithmetic(text: str) -> None:
    assert nanoseconds([text.encode()]).tolist() == [exactly(text)]


@given(st.lists(decimals, min_size=1))
def test_many_decimals_do_not_change_one_another(texts: list[str]) -> None:
    assert nanoseconds([msgspec.Raw(text.encode()) for text in texts]).tolist() == [exactly(text) for text in texts]


@given(st.lists(st.tuples(st.integers(0, 10**16), st.integers(0, 3)), min_size=1))
def test_plain_decimals_of_traces_are_exact(numbers: list[tuple[int, int]]) -> None:
    texts = [f"{whole}.{'123'[:digits]}" if digits else str(whole) for whole, digits in numbers]

    assert nanoseconds([text.encode() for text in texts]).tolist() == [exactly(text) for text in texts]


def test_a_time_that_floats_cannot_hold_is_exact() -> None:
    assert nanoseconds([b"1700000000000140.999"]).tolist() == [1700000000000140999]


def test_a_number_of_a_million_digits_is_read_as_text() -> None:
    assert nanoseconds([b"1." + b"0" * 1_000_000, b"0" * 1_000_000 + b"2", b"9" * 1_000_000]).tolist() == [1000, 2000, UNKNOWN_NS]


def test_the_range_does_not_depend_on_the_other_times() -> None:
    large = str(LARGEST_NS // 1000 + 1).encode()

    assert nanoseconds([large]).tolist() == nanoseconds([large, b"-1"]).tolist()[:1] == [UNKNOWN_NS]


@pytest.mark.parametrize(
    "text", ["", "null", "[1,2]", '"1,2"', "NaN", "-", ".", "e5", "1_0", "--1", '"x"', "true", "1e999", "0x10"]
)
def test_what_is_no_time_is_unknown(text: str) -> None:
    assert nanoseconds([text.encode(), b"1"]).tolist() == [UNKNOWN_NS, 1000]


@pytest.mark.parametrize(
    ("text", "expected"), [('"12.5"', 12500), (' "7" ', 7000), ("-0.0019", -1), ("1e3", 1_000_000), ("5e-3", 5)]
)
def test_spellings_of_a_time(text: str, expected: int) -> None:
    assert nanoseconds([text.encode()]).tolist() == [expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), ("5", 5), ("0x0", 0), ("0xff", 255), (5.0, 5), (0, 0), ((1 << 63) - 1, (1 << 63) - 1), (4294967295, 4294967295)],
)
def test_spellings_of_an_id(value: object, expected: int) -> None:
    assert integers([value]).tolist() == [integer(value)] == [expected]


@pytest.mark.parametrize(
    "value",
    [None, "", "x", "0x", "0xzz", -1, -(1 << 40), 1 << 63, 1 << 64, 1 << 200, 1.5, 1e300, True, [1], {"a": 1}, "9" * 9999],
)
def test_what_is_no_id_is_absent(value: object) -> None:
    assert integers([value, 3]).tolist() == [-1, 3]
    assert integer(value) == -1


def test_ids_are_columns_of_64_bits() -> None:
    assert integers([1, "2"]).dtype == np.int64
