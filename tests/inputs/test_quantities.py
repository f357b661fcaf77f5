"""Numbers with units: GB is not GiB, Gbit is not GB, and what is ambiguous is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underlap.errors import OptionError
from underlap.quantities import bytes_text, parse_bytes, parse_duration_ns, parse_flops, parse_rate


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "80 GiB", 80 * 2**30),
        (parse_bytes, "80 GB", 80 * 10**9),
        (parse_bytes, "25MB", 25_000_000),
        (parse_bytes, "0.5 KiB", 512),
        (parse_bytes, "143155 MiB", 143155 * 2**20),
        (parse_rate, "50 GB/s", 5e10),
        (parse_rate, "50GBps", 5e10),
        (parse_rate, "400 Gbit/s", 5e10),
        (parse_rate, "400 Gb/s", 5e10),
        (parse_rate, "400Gbps", 5e10),
        (parse_rate, "3.35 TB/s", 3.35e12),
        (parse_rate, "1 GiB/s", 2**30),
        (parse_duration_ns, "3 us", 3000),
        (parse_duration_ns, "2.7us", 2700),
        (parse_duration_ns, "600 ns", 600),
        (parse_flops, "989 TFLOP/s", 9.89e14),
        (parse_flops, "1.979 PFLOPS", 1.979e15),
    ],
)
def test_a_quantity_is_its_number_times_its_unit(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "given_text", "message"),
    [
        (parse_bytes, "80", "'80' has no unit"),
        (parse_bytes, 80, "80 has no unit"),
        (parse_bytes, "", "'' is no quantity"),
        (parse_bytes, "80 Gbit", "'80 Gbit' is in bits"),
        (parse_bytes, "80 Gb", "'80 Gb' is in bits"),
        (parse_bytes, "80 gb", "'80 gb' has the unknown unit 'gb'"),
        (parse_bytes, "0.3 B", "'0.3 B' is no whole number of bytes"),
        (parse_bytes, "-1 GB", "'-1 GB' is out of range"),
        (parse_rate, "400 gb/s", "'400 gb/s' has the unknown unit 'gb/s'"),
        (parse_rate, "450 GB", "'450 GB' has the unknown unit 'GB'"),
        (parse_rate, "900 GB/s bidirectional", "'900 GB/s bidirectional' adds both directions"),
        (parse_duration_ns, "3 min", "'3 min' has the unknown unit 'min'"),
        (parse_flops, "989 TF", "'989 TF' has the unknown unit 'TF'"),
        (parse_flops, "nan TFLOP/s", "'nan TFLOP/s' is no quantity"),
    ],
)
def test_what_is_ambiguous_or_lacks_a_unit_is_refused(parse: Callable[[object], float], given_text: object, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(given_text)

    assert str(caught.value).startswith(message)


def test_a_wrong_case_offers_both_bits_and_bytes() -> None:
    with pytest.raises(OptionError, match="did you mean 'GB/s' or 'Gb/s'"):
        parse_rate("400 gb/s")


@given(st.integers(0, 10**24))
def test_the_text_of_a_size_is_read_back_equal(nbytes: int) -> None:
    assert parse_bytes(bytes_text(nbytes)) == nbytes
