"""`underlap run` as a rank of torchrun or srun: what goes wrong is told by one rank for all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run.commands import (  # noqa: E402 - only with torch
    BUSY_S,
    COMMAND,
    NEVER_S,
    TWO,
    endless,
    errors,
    finished,
    kept,
    left,
    linux,
    running,
)
from underlap.run.launch import END_S, JOB_GRACE_S  # noqa: E402 - only with torch


def torchrun(*command: str) -> list[str]:
    """Two ranks on this machine."""
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--monitor-interval", "0.1"]
    return [sys.executable, *agent, *command]


def by_rank(pids: list[int]) -> dict[int, int]:
    """rank -> pid, as a process of a job is told it."""
    found = {}
    for pid in pids:
        environment = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line)
        found[int(environment.get("RANK", environment.get("SLURM_PROCID", "-1")))] = pid
    return found


@linux
def test_a_rank_of_torchrun_that_is_killed_is_named_by_the_other(tmp_path: Path) -> None:
    with running(torchrun(*endless(tmp_path))) as run:
        os.kill(by_rank(run.ranks)[1], signal.SIGKILL)
        code, said = run.ended(JOB_GRACE_S + END_S + BUSY_S)
        assert not left(run.ranks)
    assert code == 1
    assert len(errors(said)) == 1
    assert re.fullmatch(r"Error: rank 1 was lost: rank 0 was (starting )?step \d+ of baseline.*", errors(said)[0])
    assert kept(tmp_path / "baseline") == [0]


@linux
def test_ranks_go_when_the_agent_of_torchrun_is_killed(tmp_path: Path) -> None:
    with running(torchrun(*endless(tmp_path))) as run:
        run.command.kill()
        run.command.wait(NEVER_S)
        assert not left(run.ranks)


DIFFERENT = """
import os, sys
from underlap.cli import main
rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID")))
main([*sys.argv[1:], *(["--overlap", "tp=split_batch"] if rank == 1 else [])])
"""
ABSENT = """
import os, sys, time
from underlap.cli import main
if os.environ["RANK"] == "1":
    time.sleep(600)
main(sys.argv[1:])
"""
TOLD_APART = "Error: rank 1 and rank 0 were started with different plans (baseline): expected the same command on every rank"


@pytest.mark.parametrize(
    ("program", "timeout_s", "line"),
    [
        (DIFFERENT, 60, TOLD_APART),
        (ABSENT, 3, "Error: rank 1 did not come within 3 s: expected 2 ranks, as the layout has"),
    ],
    ids=["different", "absent"],
)
def test_ranks_of_torchrun_that_do_not_fit_are_named_once(program: str, timeout_s: int, line: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    codes, said = finished([torchrun(str(tmp_path / "program.py"), *TWO, "--timeout", str(timeout_s))])
    assert codes == [1]
    assert errors(said) == [line]


def slurm() -> dict[str, list[str]]:
    """The environment of two tasks, as srun sets it, with what a job script adds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {"SLURM_PROCID": ["0", "1"], **{name: [value] * 2 for name, value in common.items()}}


def test_two_tasks_of_srun_run_a_plan_and_one_of_them_tells(tmp_path: Path) -> None:
    out = tmp_path / "trial.json"
    command = [
        sys.executable,
        "-m",
        "underlap",
        *COMMAND,
        "--layout",
        "pp=2",
        "--repetitions",
        "1",
        "--record",
        str(tmp_path / "kept"),
    ]
    codes, said = finished([[*command, "--json", str(out)]] * 2, **slurm())
    assert codes == [0, 0], said
    assert said.count("Wrote ") == 1
    assert json.loads(out.read_text())["ranks"] == 2
    assert kept(tmp_path / "kept/baseline") == [0, 1]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_task_of_srun_that_is_killed_is_named_by_the_other(lost: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(KILLED.replace("LOST", str(lost)))
    command = [sys.executable, str(tmp_path / "program.py"), *TWO, "--repetitions", "9", "--record", str(tmp_path)]
    codes, said = finished([command] * 2, **slurm())
    assert sorted(codes) == [-signal.SIGKILL, 1]
    assert len(errors(said)) == 1
    assert errors(said)[0].startswith(f"Error: rank {lost} was lost: rank {1 - lost} was step 3 of baseline, in ")
    assert kept(tmp_path / "baseline") == [1 - lost]


KILLED = """
import os, sys
from underlap.cli import main
from underlap.run import worker
from tests.run import faults

work = worker.work
if os.environ["SLURM_PROCID"] == "LOST":
    worker.work = faults.killed_here
main(sys.argv[1:])
"""


def test_tasks_of_srun_with_different_plans_are_told_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DIFFERENT)
    codes, said = finished([[sys.executable, str(tmp_path / "program.py"), *TWO]] * 2, **slurm())
    assert codes == [1, 1]
    assert errors(said) == [TOLD_APART]


def test_a_port_of_srun_that_is_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        common = {"SLURM_PROCID": ["0"], "SLURM_NTASKS": ["2"], "MASTER_ADDR": ["127.0.0.1"], "MASTER_PORT": [port]}
        codes, said = finished([[sys.executable, "-m", "underlap", *TWO, "--timeout", "5"]], **common)
    assert codes == [1]
    assert errors(said) == [f"Error: rank 0 found no store: port {port} is in use: set MASTER_PORT to another one, on every rank"]
