"""Links that hold their rate, bytes that are those of the plan, and nothing left: network namespaces, so Linux and root."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.fabrics import needs_fabric
from underlap.errors import OptionError, RunError
from underlap.run import fabric as module
from underlap.run.fabric import Counters, Fabric, fabric
from underlap.run.fabric_spec import fabric_spec

pytestmark = needs_fabric

MIB = 2**20


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What this machine's own network has, and this process holds, is the same afterwards."""
    before = _visible()
    yield
    assert _visible() == before


def _visible() -> tuple[list[str], int]:
    links = sorted(line.split(":")[0].strip() for line in Path("/proc/self/net/dev").read_text().splitlines()[2:])
    held = sum(_target(f"/proc/self/fd/{name}").startswith("net:") for name in os.listdir("/proc/self/fd"))
    return links, held


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _holders(made: Fabric) -> set[int]:
    """Processes that run in a namespace of it, or hold one by a descriptor."""
    wanted = {_target(f"/proc/{made.owner}/fd/{fd}") for fd in (made.switch, *made.hosts)}
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            links = [f"/proc/{process}/ns/net", *(f"/proc/{process}/fd/{fd}" for fd in os.listdir(f"/proc/{process}/fd"))]
            if wanted & {_target(link) for link in links}:
                found.add(int(process))
    return found


def _sent(made: Fabric, sender: int, receiver: int, nbytes: int) -> tuple[float, Counters, Counters]:
    """(seconds, what passed the sender's link, what passed the receiver's), for one stream of so many bytes."""
    results: dict[str, Counters] = {}
    listening = threading.Event()

    def receive() -> None:
        with socket.create_server((made.address(receiver), 5000)) as server:
            listening.set()
            stream, _ = server.accept()
            with stream:
                left = nbytes
                while left:
                    left -= len(stream.recv(MIB))
                stream.sendall(b"!")
        results["receiver"] = _here()

    def send() -> float:
        before = _here()
        begun = time.monotonic()
        with socket.create_connection((made.address(receiver), 5000), timeout=20) as stream:
            stream.sendall(bytes(nbytes))
            assert stream.recv(1) == b"!"
        seconds = time.monotonic() - begun
        results["sender"] = _here() - before
        return seconds

    thread = threading.Thread(target=lambda: module._elsewhere(lambda: (module._enter(made.hosts[receiver]), receive())))
    thread.start()
    assert listening.wait(20)
    seconds = module._elsewhere(lambda: (module._enter(made.hosts[sender]), send())[1])
    thread.join(20)
    return seconds, results["sender"], results["receiver"]


def _here() -> Counters:
    """Of the namespace that the calling thread is in."""
    return module.parsed_counters(Path("/proc/thread-self/net/dev").read_text(), module.INTERFACE)


def test_a_fabric_stands_inside_and_nobody_holds_it_afterwards() -> None:
    with fabric(fabric_spec("500mbit"), 2) as made:
        assert _holders(made) == {os.getpid()}
        inside = made.at_switch(lambda: sorted(line.split(":")[0].strip() for line in _net_dev()))
        assert inside == ["br0", "lo", "p0", "p1"]


def _net_dev() -> list[str]:
    return Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]


def test_what_is_asked_of_the_switch_raises_what_it_raises() -> None:
    with fabric(fabric_spec("500mbit"), 1) as made, pytest.raises(ZeroDivisionError):
        made.at_switch(lambda: 1 // 0)


def test_a_link_holds_its_rate_and_the_counters_have_the_bytes() -> None:
    with fabric(fabric_spec("100mbit"), 2) as made:
        seconds, sender, receiver = _sent(made, 0, 1, 2 * MIB)
    # The first 128 KiB pass at once; of the rest 1448 bytes of 1514 are payload.
    assert seconds >= (2 * MIB - 128 * 1024) * 8 / 100e6
    assert sender.sent_payload == pytest.approx(2 * MIB, rel=0.01)
    assert receiver.received_payload == pytest.approx(2 * MIB, rel=0.01)
    assert sender.received_payload < 0.01 * MIB


@pytest.mark.parametrize("direction", [(0, 1), (1, 0)])
def test_a_slower_rank_is_slow_in_both_directions(direction: tuple[int, int]) -> None:
    with fabric(fabric_spec("unshaped,rank1=40mbit"), 3) as made:
        seconds, _, _ = _sent(made, *direction, MIB)
        others, _, _ = _sent(made, 0, 2, MIB)
    assert seconds >= (MIB - 128 * 1024) * 8 / 40e6
    assert others < seconds


def test_two_at_the_same_time_do_not_meet() -> None:
    spec = fabric_spec("unshaped")
    with fabric(spec, 2) as one, fabric(spec, 2) as other:
        assert one.address(0) == other.address(0)
        _sent(one, 0, 1, MIB)
        before = other.at_switch(_net_dev)
        _sent(one, 1, 0, MIB)
        assert other.at_switch(_net_dev) == before


def test_where_the_system_refuses_half_way_all_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(tool: str, lines: list[str], descriptors: list[int] | None = None) -> None:
        if tool == "tc":
            raise RunError("fabric: tc cannot set the links: not today")

    monkeypatch.setattr(module, "_tool", refused)
    with pytest.raises(RunError, match="not today"), fabric(fabric_spec("1gbit"), 2):
        pass


def test_what_the_tools_refuse_is_said_in_one_line() -> None:
    with pytest.raises(RunError) as raised:
        module._tool("tc", ["qdisc add dev nothing root tbf rate 1mbit burst 2000 latency 1ms"])
    assert str(raised.value).startswith("fabric: tc cannot set the links: ")
    assert "\n" not in str(raised.value)


def test_a_name_server_is_not_asked_for_and_the_setting_for_it_is_taken_back() -> None:
    before = os.environ.get("TORCH_CPP_LOG_LEVEL")
    with fabric(fabric_spec("500mbit"), 1):
        assert os.environ["TORCH_CPP_LOG_LEVEL"] == (before or "ERROR")
    assert os.environ.get("TORCH_CPP_LOG_LEVEL") == before


def test_a_rank_whose_owner_is_gone_says_so() -> None:
    lost = Fabric(spec=fabric_spec("500mbit"), ranks=1, owner=2**22 + 1, switch=3, hosts=(4,))
    with pytest.raises(RunError, match="its owner, process 4194305, is gone"):
        lost.enter(0)


def test_without_rights_the_command_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_capability", lambda number: False)
    with pytest.raises(OptionError, match="need root"), fabric(fabric_spec("1gbit"), 2):
        pass
