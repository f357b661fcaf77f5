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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

import underlap  # noqa: E402 - only with torch
from tests.run import faults  # noqa: E402
from underlap import inputs  # noqa: E402
from underlap.cli import main  # noqa: E402
from underlap.errors import RunError  # noqa: E402
from underlap.flows import run as flow  # noqa: E402
from underlap.planner import plan as planned  # noqa: E402
from underlap.run.launch import END_S, GRACE_S, Local, blamed, launch  # noqa: E402
from underlap.run.worker import Job  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
TRAIN = "train,gbs=4,mbs=2,seq=16,precision=fp32"
COMMAND = ["run", "--model", "tiny-dense", "--workload", TRAIN]
TWO = [*COMMAND, "--layout", "tp=2"]
BUSY_S = 20
"""What a busy machine may add to an end that the timeouts allow. Torch's elastic agent would take 30 s longer."""
NEVER_S = 150
"""After this a test gives up: nothing here is that slow."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


def exists(pid: int) -> bool:
    """Whether a process is there and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left(pids: list[int], within_s: float = BUSY_S) -> list[int]:
    """Those that are still there when the time is over."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and any(exists(pid) for pid in pids):
        time.sleep(0.05)
    return [pid for pid in pids if exists(pid)]


def errors(text: str) -> list[str]:
    """Lines that begin with Error."""
    return [line for line in text.splitlines() if line.startswith("Error: ")]


def kept(folder: Path) -> list[int]:
    """The ranks whose records `underlap analyze` reads; no half of one is beside them."""
    assert not list(folder.glob("*.part"))
    report = underlap.analyze(folder)
    assert report.steps
    return [row.rank for row in report.ranks]


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
    monkeypatch.setattr("underlap.run.worker.work", entry)
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


@dataclasses.dataclass
class Running:
    """A command in the middle of its steps, and the processes that it started."""

    command: subprocess.Popen[str]
    ranks: list[int]

    def ended(self, within_s: float = END_S + BUSY_S) -> tuple[int, str]:
        """(exit code, standard error without progress); whatever was done to it just now ended it in time."""
        begin = time.monotonic()
        _, said = self.command.communicate(timeout=NEVER_S)
        assert time.monotonic() - begin < within_s
        return self.command.returncode, "\n".join(line for line in said.splitlines() if not line.startswith("underlap run:"))


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    try:
        own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [other for child in own for other in descendants(child)]


@contextmanager
def running(command: list[str], ranks: int = 2, **environment: str) -> Iterator[Running]:
    """A command whose ranks step until they are stopped. Whatever happens, nothing of it is left."""
    made = Running(
        subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Where the tests run in the background SIGINT is ignored, and children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads run here
        ),
        [],
    )
    watchdog = threading.Timer(NEVER_S, made.command.kill)
    watchdog.start()
    try:
        assert made.command.stderr is not None
        seen = []
        for line in made.command.stderr:
            seen.append(line)
            if re.search(r"step \d+ of 10000", line):
                break
        made.ranks = [pid for pid in descendants(made.command.pid) if _is_rank(pid)]
        assert len(made.ranks) == ranks, "".join(seen)
        yield made
        assert not left(made.ranks)
    finally:
        watchdog.cancel()
        for pid in [*descendants(made.command.pid), *made.ranks]:
            if exists(pid):
                os.kill(pid, signal.SIGKILL)
        made.command.kill()
        made.command.communicate()


def _is_rank(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"underlap.run.rank" in words or (b"underlap" in words and b"torch.distributed.run" not in words)


def endless(folder: Path, timeout_s: int = 60, layout: str = "tp=2") -> list[str]:
    options = ["--repetitions", "10000", "--timeout", str(timeout_s), "--record", str(folder)]
    return ["-m", "underlap", *COMMAND, "--layout", layout, *options]


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


# ---- in a job of torchrun or srun


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
        code, said = run.ended(GRACE_S + END_S + BUSY_S)
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


def finished(commands: list[list[str]], **environments: list[str]) -> tuple[list[int], str]:
    """(exit codes, all that was said on standard error) of commands that run together, one per rank."""
    started = []
    for at, command in enumerate(commands):
        own = {name: values[at] for name, values in environments.items()}
        environment = {**os.environ, "PYTHONPATH": "src:.", "OMP_NUM_THREADS": "1", **own}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, **pipes))
    try:
        said = [process.communicate(timeout=NEVER_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [process.returncode for process in started], "".join(said)


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
