"""Whatever goes wrong ends in time, with one line that names the rank, and leaves no process behind."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from underlap import inputs  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402
from underlap.errors import RunError  # noqa: E402
from underlap.flows import run as flow  # noqa: E402
from underlap.planner import plan as planned  # noqa: E402
from underlap.run.launch import Local, launch  # noqa: E402
from underlap.run.worker import Job, work  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
TRAIN = "train,gbs=4,mbs=2,seq=16,precision=fp32"
COMMAND = ["run", "--model", "tiny-dense", "--workload", TRAIN]
TWO = [*COMMAND, "--layout", "tp=2"]
ENDLESS = [*TWO, "--repetitions", "10000", "--timeout", "4"]
ANSWER_S = 4 + 1.5 + 6
"""The ranks' own timeout, the grace for the others, and a busy machine."""


@dataclasses.dataclass
class Running:
    """`underlap run`, in the middle of its steps."""

    command: subprocess.Popen[str]
    ranks: list[int]

    def outcome(self, within_s: float) -> tuple[int, str]:
        """(exit code, last line on standard error)."""
        begin = time.monotonic()
        _, errors = self.command.communicate(timeout=within_s + 20)
        assert time.monotonic() - begin < within_s
        lines = [line for line in errors.splitlines() if line and not line.startswith("underlap run:")]
        return self.command.returncode, "\n".join(lines)

    def left(self) -> list[int]:
        """Ranks that are still there, a moment later."""
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and any(_exists(rank) for rank in self.ranks):
            time.sleep(0.05)
        return [rank for rank in self.ranks if _exists(rank)]


def _exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return sorted(child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Two ranks that step until they are stopped; their records go to tmp_path."""
    if sys.platform != "linux":
        pytest.skip("children are found in /proc")
    command = subprocess.Popen(
        [sys.executable, "-m", "underlap", *ENDLESS, "--record", str(tmp_path / "kept")],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "src"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background SIGINT is ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads run here
    )
    assert command.stderr is not None
    for line in command.stderr:
        if re.search(r"step \d+ of 10000", line):
            break
    made = Running(command, _children(command.pid))
    assert len(made.ranks) == 2
    yield made
    if command.poll() is None:
        command.kill()
        command.wait(10)
    for stream in (command.stdout, command.stderr):
        assert stream is not None
        stream.close()
    assert not made.left()


def test_a_rank_that_is_killed_is_named_and_the_record_is_kept(running: Running, tmp_path: Path) -> None:
    os.kill(running.ranks[1], signal.SIGKILL)
    code, said = running.outcome(ANSWER_S)
    assert code == 1
    assert re.search(r"^Error: rank 1 was killed by SIGKILL; rank 0 was (starting )?step \d+ of baseline", said, re.MULTILINE)
    assert not running.left()
    trace = json.loads((tmp_path / "kept/baseline/rank0.json").read_text())
    assert any(event["name"].startswith("ProfilerStep#") for event in trace["traceEvents"])


def test_a_rank_that_is_silent_is_named_after_the_timeout(running: Running, tmp_path: Path) -> None:
    os.kill(running.ranks[1], signal.SIGSTOP)
    code, said = running.outcome(ANSWER_S)
    assert code == 1
    assert re.search(r"^Error: rank 1 did not answer within 4 s: rank 0 was ", said, re.MULTILINE)
    assert not running.left()
    assert (tmp_path / "kept/baseline/rank0.json").exists()


def test_control_c_ends_all_ranks_and_keeps_their_records(running: Running, tmp_path: Path) -> None:
    running.command.send_signal(signal.SIGINT)
    code, said = running.outcome(ANSWER_S)
    assert code == 130
    assert said.splitlines()[-1] == "Interrupted"
    assert not running.left()
    assert (tmp_path / "kept/baseline/rank0.json").exists()


def test_ranks_go_when_the_command_is_killed(running: Running) -> None:
    running.command.kill()
    running.command.wait(10)
    assert not running.left()


def job(folder: Path, layout: str = "tp=2", workload: str = TRAIN, policy: str = "") -> Job:
    what = flow.asked(model="tiny-dense", layout=layout, workload=workload, policy=policy, quiet=True)
    made = planned(what.model, what.layout, what.workload, domain=8)
    plan = flow.apply(made, what.policy).plan
    return Job(
        plans=(("baseline", plan),),
        model=what.model,
        layout=what.layout,
        workload=inputs.workload(TRAIN),
        repetitions=2,
        folder=folder,
        outcome=folder / "outcome.json",
        quiet=True,
    )


@pytest.mark.parametrize(
    "other",
    [
        {"policy": "tp=split_batch"},
        {"workload": "train,gbs=4,mbs=2,seq=32,precision=fp32"},
        {"workload": "train,gbs=4,mbs=2,seq=16"},
    ],
    ids=["passes", "shapes", "types"],
)
def test_ranks_with_different_plans_are_told_before_anything_is_sent(other: dict[str, str], tmp_path: Path) -> None:
    jobs = [job(tmp_path), job(tmp_path, **other)]
    with pytest.raises(RunError, match=r"^rank 1 and rank 0 were started with different plans \(baseline\): expected the same"):
        launch(work, jobs, Local(ranks=2, timeout_s=10))


def _meets_alone(session: object, argument: str) -> None:
    if argument:
        time.sleep(60)
    session.agree("settings", "")  # type: ignore[attr-defined]


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(RunError, match=r"^rank 1 did not come within 2 s: expected 2 ranks"):
        launch(_meets_alone, ["", "late"], Local(ranks=2, timeout_s=2))
    assert time.monotonic() - begin < 30


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, [*TWO, "--port", str(port)])
    assert result.exit_code == 1
    assert f"Error: port {port} is in use: name another one with --port" in result.output


def test_too_few_cores_are_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    result = CliRunner().invoke(main, TWO)
    assert result.exit_code == 2
    assert "Error: nproc: 2 ranks on 1 cores: expected a core for each" in result.output


def test_a_number_of_ranks_that_does_not_fit_the_layout_is_refused() -> None:
    result = CliRunner().invoke(main, [*TWO, "--nproc", "3"])
    assert result.exit_code == 2
    assert "tp=2 makes 2 ranks, but 3 are started: expected equal numbers" in result.output
