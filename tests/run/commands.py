"""Commands that tests start, what they leave behind, and what they said: nothing of them outlives the test."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import underlap
from underlap.run.launch import END_S

REPOSITORY = Path(__file__).parents[2]
TRAIN = "train,gbs=4,mbs=2,seq=16,precision=fp32"
COMMAND = ["run", "--model", "tiny-dense", "--workload", TRAIN]
TWO = [*COMMAND, "--layout", "tp=2"]
BUSY_S = 60
"""What a busy machine may add to an end that the timeouts allow: with twenty neighbors the end of an interpreter takes 20 s."""
NEVER_S = 300
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


@dataclasses.dataclass
class Running:
    """A command in the middle of its steps, and the processes that it started."""

    command: subprocess.Popen[str]
    ranks: list[int]

    def ended(self, within_s: float = END_S + BUSY_S) -> tuple[int, str]:
        """(exit code, standard error without progress); whatever was done to it just now ended it in time."""
        begin = time.monotonic()
        _, said = self.command.communicate(timeout=NEVER_S)
        assert time.monotonic() - begin < within_s, said[-2000:]
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


def endless(folder: Path, timeout_s: int = 100, layout: str = "tp=2") -> list[str]:
    options = ["--repetitions", "10000", "--timeout", str(timeout_s), "--record", str(folder)]
    return ["-m", "underlap", *COMMAND, "--layout", layout, *options]


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
