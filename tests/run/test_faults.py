"""Whatever goes wrong ends in time, with one line that names the rank, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import faults  # noqa: E402 - only with torch
from tests.run.commands import BUSY_S, NEVER_S, TRAIN, TWO, endless, errors, kept, left, linux, running  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402 - only with torch
from underlap.errors import RunError  # noqa: E402 - only with torch
from underlap.flows import run as flow  # noqa: E402 - only with torch
from underlap.planner import plan as planned  # noqa: E402 - only with torch
from underlap.run.job import Job  # noqa: E402 - only with torch
from underlap.run.launch import END_S, GRACE_S, Local, blamed, launch  # noqa: E402 - only with torch

# ---- before anything starts


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, [*TWO, "--port", str(port)])
    assert result.exit_code == 1
    assert errors(result.output) == [
        f"Error: port {port} is in use: name another one with --port, or leave it out for any that is free"
    ]


def test_too_few_cores_are_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    result = CliRunner().invoke(main, TWO)
    assert result.exit_code == 2
    assert "Error: nproc: 2 ranks on 1 cores: expected a core for each" in result.output


def test_a_number_of_ranks_that_does_not_fit_the_layout_is_refused() -> None:
    result = CliRunner().invoke(main, [*TWO, "--nproc", "3"])
    assert result.exit_code == 2
    assert "tp=2 makes 2 ranks, but 3 are started: expected equal numbers" in result.output


# ---- which of several

NOTE = {
    "ours": False,
    "usage": False,
    "doing": "step 3",
    "text": "RuntimeError: x",
    "timed_out": False,
    "lost": False,
    "asked": False,
}


@pytest.mark.parametrize(
    ("notes", "silent", "said"),
    [
        ({0: {"timed_out": True}, 1: {"timed_out": True}}, [2], "rank 2 did not answer within 9 s: rank 0 was step 3"),
        ({0: {"lost": True}, 1: {"lost": True}}, [2], "rank 2 was lost: rank 0 was step 3"),
        ({0: {"lost": True}, 1: {"asked": True, "ours": True}}, [2], "rank 2 was lost: rank 0 was step 3"),
        ({0: {"lost": True}, 2: {"ours": True, "text": "no weights"}}, [1], "rank 2: no weights"),
        ({0: {"lost": True}, 1: {}, 2: {"lost": True}}, [], "rank 1: RuntimeError: x (while step 3)"),
        ({0: {"asked": True, "ours": True, "text": "asked to end"}}, [], "rank 0: asked to end (while step 3)"),
    ],
    ids=["silent", "lost", "asked", "own", "error", "ended"],
)
def test_of_several_ranks_that_fail_the_first_cause_is_told(
    notes: dict[int, dict[str, object]], silent: list[int], said: str
) -> None:
    assert str(blamed({rank: NOTE | note for rank, note in notes.items()}, silent, 9)) == said


# ---- while ranks meet


def job(folder: Path, model: str = "tiny-dense", workload: str = TRAIN, policy: str = "") -> Job:
    what = flow.asked(model=model, layout="tp=2", workload=workload, policy=policy, quiet=True)
    made = planned(what.model, what.layout, what.workload, domain=8)
    plan = flow.apply(made, what.policy).plan
    return Job(
        plans=(("baseline", plan),),
        # All but the plan is equal, so that nothing else can tell them apart.
        model=inputs.model("tiny-dense"),
        layout=what.layout,
        workload=inputs.workload(TRAIN),
        repetitions=1,
        folder=folder,
        outcome=folder / "outcome.json",
        quiet=True,
    )


OTHERS = {
    "passes": {"policy": "tp=split_batch"},
    "shapes": {"workload": "train,gbs=4,mbs=2,seq=32,precision=fp32"},
    "models": {"model": "tiny-moe"},
    "types": {"workload": "train,gbs=4,mbs=2,seq=16"},
}


def test_ranks_with_different_plans_are_told_before_anything_is_sent(tmp_path: Path) -> None:
    same = faults.Meetings(dict.fromkeys(OTHERS, job(tmp_path)), tmp_path)
    other = faults.Meetings({name: job(tmp_path, **options) for name, options in OTHERS.items()}, tmp_path)
    launch(faults.meets, [same, other], Local(ranks=2, timeout_s=30))
    line = "rank 1 and rank 0 were started with different plans (baseline): expected the same command on every rank"
    for rank in range(2):
        assert json.loads((tmp_path / f"said{rank}").read_text()) == {name: [line, False] for name in OTHERS}


def test_a_rank_that_never_comes_is_named() -> None:
    pids: list[int] = []
    how = Local(ranks=2, timeout_s=3, on_start=pids.extend)
    with pytest.raises(RunError, match=r"^rank 1 did not come within 3 s: expected 2 ranks, as the layout has$"):
        launch(faults.meets_late, ["", "late"], how)
    assert len(pids) == 2
    assert not left(pids, 0)


# ---- in the middle of a collective


def broken(entry: object, folder: Path, timeout_s: int, monkeypatch: pytest.MonkeyPatch) -> Result:
    """`underlap run` whose rank 1 does something else; all processes are gone, and in time."""
    monkeypatch.setattr("underlap.run.worker.work_each", entry)
    options = ["--repetitions", "9", "--timeout", str(timeout_s), "--record", str(folder)]
    result = CliRunner().invoke(main, [*TWO, *options])
    ended = time.time()
    assert result.exit_code == 1
    assert len(errors(result.output)) == 1
    assert "Traceback" not in result.output
    assert not left([int((folder / f"pid{rank}").read_text()) for rank in range(2)], 0)
    assert ended - float((folder / "failed at").read_text()) < timeout_s + GRACE_S + END_S + BUSY_S
    return result


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (faults.killed, r"killed by SIGKILL; rank 0 was step 3 of baseline, in \S.*"),
        (
            faults.aborted,
            r"killed by SIGABRT; rank 0 was step 3 of baseline, in \S.*; it said last: terminate called after a test.*",
        ),
    ],
    ids=["killed", "aborted"],
)
def test_a_rank_that_is_killed_is_named_at_once_and_the_record_is_kept(
    entry: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The connection tells it, so nobody waits for the timeout.
    result = broken(entry, tmp_path, 100, monkeypatch)
    assert time.time() - float((tmp_path / "failed at").read_text()) < 100
    assert re.fullmatch(f"Error: rank 1 was {said}", errors(result.output)[0])
    assert kept(tmp_path / "baseline") == [0]


def test_a_rank_that_is_silent_is_named_after_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = broken(faults.stopped, tmp_path, 5, monkeypatch)
    said = r"Error: rank 1 did not answer within 5 s: rank 0 was step 3 of baseline, in \S.*"
    assert re.fullmatch(said, errors(result.output)[0])
    assert kept(tmp_path / "baseline") == [0]


# ---- from outside


@linux
@pytest.mark.parametrize("whole_group", [False, True], ids=["parent", "group"])
def test_control_c_ends_all_ranks_and_keeps_their_records(whole_group: bool, tmp_path: Path) -> None:
    with running([sys.executable, *endless(tmp_path)]) as run:
        (os.killpg if whole_group else os.kill)(run.command.pid, signal.SIGINT)
        assert run.ended() == (130, "Interrupted")
        assert not left(run.ranks, 0)
    assert kept(tmp_path / "baseline")


@linux
def test_a_scheduler_that_ends_the_command_gets_one_line_and_the_records(tmp_path: Path) -> None:
    with running([sys.executable, *endless(tmp_path)]) as run:
        run.command.terminate()
        assert run.ended() == (1, "Error: ended by SIGTERM")
        assert not left(run.ranks, 0)
    assert kept(tmp_path / "baseline")


@linux
def test_ranks_go_when_the_command_is_killed(tmp_path: Path) -> None:
    with running([sys.executable, *endless(tmp_path)]) as run:
        run.command.kill()
        run.command.wait(NEVER_S)
        assert not left(run.ranks)
