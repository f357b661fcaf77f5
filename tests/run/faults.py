"""What goes wrong on a rank, by itself and at a place that is known: entries that started processes can import."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist

from underlap.errors import RunError
from underlap.plan import OpKind
from underlap.run.engine import Engine
from underlap.run.job import Job
from underlap.run.session import Session
from underlap.run.worker import work
from underlap.trial import LeftOut

GOOD_STEPS = 4
"""Two to warm up and two measured ones; the next one ends in the middle."""


def _at_a_collective(happens: Callable[[], None]) -> None:
    """This rank never issues the second collective of its fifth step, in which the other waits for it."""
    recorded_step = Engine.recorded_step

    def step(engine: Engine, left_out: LeftOut | None = None) -> object:
        if engine.rank.step == GOOD_STEPS:
            issues = [at for at, one in enumerate(engine.program.instructions) if one.kind == OpKind.ISSUE]
            engine.closures[issues[1]] = happens
        return recorded_step(engine, left_out)

    Engine.recorded_step = step  # type: ignore[method-assign,assignment]  # replaced in a process of its own, which ends with it


def _sent(number: signal.Signals, folder: Path) -> None:
    (folder / "failed at").write_text(str(time.time()))
    os.kill(os.getpid(), number)
    time.sleep(600)


def killed(session: Session, jobs: Sequence[Job]) -> None:
    """As `work_each`, but rank 1 is killed in the middle of a collective."""
    _work(session, jobs, signal.SIGKILL)


def killed_here(session: Session, job: Job) -> None:
    """As `work`, but this rank is killed in the middle of a collective."""
    _at_a_collective(lambda: _sent(signal.SIGKILL, job.folder))
    work(session, job)


def stopped(session: Session, jobs: Sequence[Job]) -> None:
    """As `work_each`, but rank 1 stops answering in the middle of a collective."""
    _work(session, jobs, signal.SIGSTOP)


def aborted(session: Session, jobs: Sequence[Job]) -> None:
    """As `work_each`, but rank 1 ends as C++ does: with a last word and SIGABRT."""
    if session.rank == 1:
        os.write(2, b"terminate called after a test asked for it\n")
    _work(session, jobs, signal.SIGABRT)


def _work(session: Session, jobs: Sequence[Job], number: signal.Signals) -> None:
    (job,) = jobs
    (job.folder / f"pid{session.rank}").write_text(str(os.getpid()))
    if session.rank == 1:
        _at_a_collective(lambda: _sent(number, job.folder))
    work(session, job)


@dataclasses.dataclass(frozen=True)
class Meetings:
    """Jobs by name, which a rank is told to begin one after the other."""

    jobs: dict[str, Job]
    folder: Path


def meets(session: Session, asked: Meetings) -> None:
    """Begin each job, and note how that ended and whether anything but the store was in use by then."""
    said = {}
    for name, job in asked.jobs.items():
        own = Session(dist.PrefixStore(name, session.store), session.rank, session.world, session.timeout_s)
        try:
            work(own, job)
        except RunError as error:
            said[name] = [str(error), dist.is_initialized()]
    (asked.folder / f"said{session.rank}").write_text(json.dumps(said))


def meets_late(session: Session, argument: str) -> None:
    """A rank that is late sleeps in front of the first meeting."""
    if argument:
        with contextlib.suppress(RunError):
            time.sleep(600)
    session.agree("settings", "")
