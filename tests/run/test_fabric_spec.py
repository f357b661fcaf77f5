"""How a fabric is written down, and what its counters say: nothing is made here, so neither Linux nor root is needed."""

from __future__ import annotations

import pytest

from underlap.errors import OptionError, RunError
from underlap.run import fabric as module
from underlap.run.fabric import Counters, fabric, parsed_counters
from underlap.run.fabric_spec import FabricSpec, fabric_spec, fabric_text

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 2098574      40    0    0    0     0          0         0  1050000      30    0    0    0     0       0          0
"""


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("500mbit", 500_000_000),
        ("1gbit", 10**9),
        ("2.5gbit", 2_500_000_000),
        ("100kbit", 100_000),
        ("500 Mbit/s", 500_000_000),
        ("125 MB/s", 10**9),
        ("unshaped", None),
    ],
)
def test_a_rate_alone_is_a_fabric_of_equal_links(text: str, rate: int | None) -> None:
    assert fabric_spec(text) == FabricSpec(rate=rate)


def test_one_rank_can_have_a_slower_link_than_the_rest() -> None:
    spec = fabric_spec("500mbit,rank1=250mbit")
    assert [spec.rate_of(rank) for rank in range(3)] == [500_000_000, 250_000_000, 500_000_000]


def test_burst_and_latency_are_sizes_and_durations_with_units() -> None:
    spec = fabric_spec("1gbit, burst=64KiB, latency=20ms")
    assert (spec.burst, spec.latency_ns) == (65_536, 20_000_000)


@pytest.mark.parametrize("text", ["500mbit", "unshaped,rank0=1gbit", "1500kbit,rank3=unshaped,burst=64KiB,latency=20000000ns"])
def test_the_text_of_a_fabric_is_read_back_as_the_same(text: str) -> None:
    assert fabric_text(fabric_spec(text)) == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("fast", "'fast'"),
        ("500", "'500' has no unit"),
        ("500mb", "unknown unit 'mb'"),
        ("-5mbit", "'-5mbit'"),
        ("1kbit", "'1kbit' is no rate for a link here"),
        ("0mbit", "'0mbit' is no rate"),
        ("1..2mbit", "'1..2 Mbit/s'"),
        ("500mbit,rank1", "'rank1' says nothing"),
        ("500mbit,rank-1=1gbit", "'rank-1=1gbit' says nothing"),
        ("500mbit,delay=3ms", "'delay=3ms' says nothing"),
        ("500mbit,rank1=1gbit,rank1=2gbit", "rank1 is given twice"),
        ("500mbit,burst=10B", "burst=10B: expected at least 2000 B"),
        ("500mbit,latency=1ns", "latency=1ns: expected from 1ms to 10s"),
        ("500mbit,latency=", "''"),
    ],
)
def test_a_text_that_is_none_is_refused_with_the_part_that_is_wrong(text: str, named: str) -> None:
    with pytest.raises(OptionError) as raised:
        fabric_spec(text)
    said = str(raised.value)
    assert said.startswith("fabric: ")
    assert named in said
    assert "expected" in said
    assert "\n" not in said


def test_without_linux_or_rights_it_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(OptionError, match="Linux network namespaces: run it on Linux"), fabric(fabric_spec("1gbit"), 2):
        pass
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.shutil, "which", lambda tool, path: None)
    with pytest.raises(OptionError, match="ip and tc not found: install iproute2"), fabric(fabric_spec("1gbit"), 2):
        pass
    monkeypatch.setattr(module.shutil, "which", lambda tool, path: tool)
    monkeypatch.setattr(module, "has_capability", lambda number: False)
    with pytest.raises(OptionError, match="need root"), fabric(fabric_spec("1gbit"), 2):
        pass


def test_a_rate_for_a_rank_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing", lambda: None)
    with pytest.raises(OptionError, match="rank2 has a rate, but there are 2 ranks"), fabric(fabric_spec("1gbit,rank2=1mbit"), 2):
        pass
    with pytest.raises(OptionError, match="251 ranks are too many"), fabric(fabric_spec("1gbit"), 251):
        pass


def test_counters_are_the_row_of_the_interface_and_payload_is_without_headers() -> None:
    found = parsed_counters(NET_DEV, "eth0")
    assert found == Counters(1_050_000, 30, 2_098_574, 40)
    assert found.sent_payload == 1_050_000 - 30 * 66
    passed = found - Counters(50_000, 10, 98_574, 20)
    assert passed == Counters(1_000_000, 20, 2_000_000, 20)
    assert passed.received_payload == 2_000_000 - 20 * 66


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(RunError, match="no interface eth1"):
        parsed_counters(NET_DEV, "eth1")
