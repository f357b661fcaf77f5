"""`underlap run --fabric`: bytes on the wire are those of the plan, with overlap and without; whatever ends it leaves nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import over_fabric  # noqa: E402 - only with torch
from tests.run.fabrics import needs_fabric  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402 - only with torch
from underlap.run import fabric as module  # noqa: E402 - only with torch
from underlap.run.capabilities import SYS_NICE, has_capability  # noqa: E402 - only with torch
from underlap.run.fabric import fabric  # noqa: E402 - only with torch
from underlap.run.fabric_spec import BURST, fabric_spec  # noqa: E402 - only with torch
from underlap.run.launch import Local, launch  # noqa: E402 - only with torch

REPOSITORY = Path(__file__).parents[2]
MODEL = """
name: wide
hidden: 256
layers: 1
heads: 8
kv_heads: 4
head_dim: 32
intermediate: 512
vocab: 256
"""
WORKLOAD = "train,gbs=8,mbs=8,seq=256,precision=fp32"
CLOSE = 0.01
BUSY_S = 30
"""What a busy machine may add to an end that the timeouts allow."""
NEVER_S = 150

nsenter = pytest.mark.skipif(shutil.which("nsenter") is None, reason="a link is set down with nsenter of util-linux")


def command(folder: Path, *more: str, layout: str = "tp=2") -> list[str]:
    """Two ranks whose messages are of 1 MiB and more."""
    (folder / "wide.yaml").write_text(MODEL)
    return ["run", "--model", str(folder / "wide.yaml"), "--layout", layout, "--workload", WORKLOAD, *more]


# ---- what is refused before anything starts


def test_a_text_that_is_no_fabric_ends_with_exit_code_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, command(tmp_path, "--fabric", "fast"))
    assert result.exit_code == 2
    assert result.output.startswith("Error: fabric: 'fast' is no quantity: expected a rate such as 500mbit")
    assert len(result.output.splitlines()) == 1


def test_without_rights_the_run_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing", lambda: "network namespaces need root: run as root, or leave --fabric out")
    monkeypatch.setattr("underlap.flows.started_here.missing", module.missing)
    result = CliRunner().invoke(main, command(tmp_path, "--fabric", "500mbit"))
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert "Error: fabric: network namespaces need root" in result.output


@needs_fabric
def test_a_job_of_torchrun_has_a_network_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(main, command(tmp_path, "--fabric", "500mbit"))
    assert result.exit_code == 2
    assert "Error: fabric: ranks of torchrun or srun have a network already" in result.output


@pytest.mark.skipif(sys.platform != "linux" or not has_capability(SYS_NICE), reason="the refusal before it needs CAP_SYS_NICE")
@pytest.mark.parametrize("layout", ["pp=2", "cp=2"])
def test_messages_between_two_ranks_are_refused_above_compute(layout: str) -> None:
    asked = ["run", "--model", "tiny-dense", "--layout", layout, "--workload", "train,gbs=4,mbs=2,seq=16"]
    result = CliRunner().invoke(main, [*asked, "--priority", "communication"])
    assert result.exit_code == 2
    assert "Error: priority: communication can hang with messages between two ranks" in result.output


def test_a_priority_without_rights_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("underlap.run.priority.sys.platform", "linux")
    monkeypatch.setattr("underlap.run.priority.has_capability", lambda number: False)
    result = CliRunner().invoke(main, command(tmp_path, "--priority", "compute"))
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert "Error: priority: compute needs root (CAP_SYS_NICE)" in result.output


# ---- bytes


@needs_fabric
def test_each_collective_puts_on_the_wire_what_the_plan_says(tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    with fabric(fabric_spec("1gbit"), 2) as made:
        how = Local(ranks=2, timeout_s=40, address=made.store_address, at_switch=made.at_switch, enter=made.enter)
        launch(over_fabric.counted, [out] * 2, how)
    seen = json.loads(out.read_text())
    assert 0 < seen["idle"] < 1000
    for name, (planned, sent, received, seconds) in seen["rows"].items():
        close = CLOSE if int(name.split()[1]) >= over_fabric.MIB else 3 * CLOSE
        assert sent == pytest.approx(1, abs=close), name
        assert received == pytest.approx(1, abs=close), name
        # Never faster than the link, but for what its two buckets let pass at once.
        assert seconds >= (planned - 2 * BURST) * 8 / 1e9, name
    for rank, found in enumerate(seen["ranks"]):
        cores = sorted(os.sched_getaffinity(0))
        assert found["cores"] == [cores[rank % len(cores)]]
        assert found["torch"] == 1
        assert found["default"] == [[os.SCHED_OTHER, 0]] * 2
        assert set(map(tuple, found["after"])) == {(os.SCHED_OTHER, 0)}
        if has_capability(SYS_NICE):
            # What would be closed later, on the thread that computes, is closed before.
            before, inside = found["left"]
            assert inside < before
            assert found["communication"] == [[os.SCHED_FIFO, 20], [os.SCHED_FIFO, 10]]
            assert found["compute"] == [[os.SCHED_FIFO, 10], [os.SCHED_FIFO, 20]]
            assert found["equal"] == [[os.SCHED_FIFO, 10], [os.SCHED_FIFO, 10]]


@needs_fabric
def test_overlap_takes_no_byte_off_the_wire(tmp_path: Path) -> None:
    options = ["--fabric", "1gbit", "--overlap", "tp=split_batch", "--ab", "--repetitions", "3", "--json", "-"]
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr[-2000:]
    trial = json.loads(done.stdout)
    assert trial["fabric"] == "1gbit"
    off, on = (variant["wire"] for variant in trial["variants"])
    # 8 all-reduces of 2 MiB with two ranks, and some small ones.
    assert off["planned_bytes"] == on["planned_bytes"] > 16 * over_fabric.MIB
    for wire in (off, on):
        assert wire["ratio"] == pytest.approx(1, abs=CLOSE)
        assert len(wire["sent_bytes"]) == len(wire["received_bytes"]) == 3
        assert sum(wire["received_bytes"]) == pytest.approx(sum(wire["sent_bytes"]), rel=0.001)
    assert on["ratio"] == pytest.approx(off["ratio"], abs=CLOSE)
    # Nothing but what is told: no warning about addresses without a name.
    assert all(line.startswith("underlap run: ") for line in done.stderr.splitlines())


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: PLW1510 - its code is looked at by the caller
        [sys.executable, "-m", "underlap", *command(folder, *more)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=NEVER_S,
    )


# ---- whatever ends it


class Running:
    """`underlap run --fabric`, in the middle of its steps."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.wait_for(r"step \d+ of 10000")
        self.ranks = [pid for pid in _processes() if pid != process.pid and _network(pid) in self.networks()]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def wait_for(self, pattern: str) -> None:
        """Return once a line has come that was not there before."""
        at, deadline = len(self.lines), time.monotonic() + NEVER_S
        while not any(re.search(pattern, line) for line in self.lines[at:]):
            assert time.monotonic() < deadline, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)

    def networks(self) -> set[str]:
        """The namespaces that it holds."""
        folder = f"/proc/{self.process.pid}/fd"
        return {name for fd in os.listdir(folder) if (name := _link(f"{folder}/{fd}")).startswith("net:")}

    def ended(self) -> tuple[int, list[str]]:
        """(exit code, lines on standard error that are not progress)."""
        code = self.process.wait(NEVER_S)
        self.reader.join(BUSY_S)
        return code, [line for line in self.lines if line and not line.startswith("underlap run: ")]


@contextmanager
def running(folder: Path, timeout_s: int = 60) -> Iterator[Running]:
    """Two ranks that step until they are stopped. Afterwards no process is in their networks, and none holds them."""
    asked = command(folder, "--fabric", "1gbit", "--repetitions", "10000", "--timeout", str(timeout_s))
    process = subprocess.Popen(
        [sys.executable, "-m", "underlap", *asked],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "src"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background SIGINT is ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads run here
    )
    try:
        made = Running(process)
        networks = made.networks()
        assert len(networks) == 3
        assert len(made.ranks) == 2
        yield made
        assert _left(networks) == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def _left(networks: set[str]) -> list[int]:
    """Processes in these networks, or with a descriptor of one, when a busy machine has had its time."""
    deadline = time.monotonic() + BUSY_S
    while (found := _holders(networks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _holders(networks: set[str]) -> list[int]:
    return [pid for pid in _processes() if _network(pid) in networks or networks & _descriptors(pid)]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _network(pid: int) -> str:
    return _link(f"/proc/{pid}/ns/net")


def _descriptors(pid: int) -> set[str]:
    try:
        return {_link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return set()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _seen() -> tuple[list[str], list[str]]:
    """(interfaces of this machine's own network, names of namespaces)."""
    links = [line.split(":")[0].strip() for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]]
    named = Path("/run/netns")
    return sorted(links), sorted(path.name for path in named.iterdir()) if named.exists() else []


@needs_fabric
@nsenter
def test_a_link_that_goes_down_ends_the_run_within_the_timeout(tmp_path: Path) -> None:
    with running(tmp_path, timeout_s=5) as one:
        down = ["nsenter", f"--net=/proc/{one.ranks[1]}/ns/net", "ip", "link", "set", "eth0", "down"]
        begun = time.monotonic()
        subprocess.run(down, check=True, timeout=20)
        code, said = one.ended()
        assert time.monotonic() - begun < 5 + BUSY_S
    assert code == 1
    assert len(said) == 1, said
    assert re.match(r"Error: rank [01]", said[0]), said


@needs_fabric
def test_two_runs_at_once_control_c_and_a_kill_leave_nothing(tmp_path: Path) -> None:
    before = _seen()
    with running(tmp_path) as one:
        with running(tmp_path) as other:
            assert not one.networks() & other.networks()
            # Nothing of it can be seen from outside, and nothing has a name.
            assert _seen() == before
            other.process.send_signal(signal.SIGINT)
            code, said = other.ended()
            assert code == 130
            assert said[-1] == "Interrupted"
        one.wait_for(r"step \d+ of 10000")
        one.process.kill()
        one.ended()
    # As if the run had never crashed: there is nothing for the next one to clear away.
    assert _seen() == before
