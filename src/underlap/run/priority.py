"""Whether a rank's communication may interrupt its compute: the scheduling of gloo's threads beside the one that computes.

On a CPU this decides whether overlap happens, and how much of it. gloo's threads share the core of the rank that computes; where
they may not interrupt it, they run once it waits, and only what the kernel already has moves meanwhile. On a GPU the counterpart
is the priority of streams.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from underlap.errors import OptionError, RunError
from underlap.run.capabilities import SYS_NICE, has_capability

Priority = Literal["default", "communication", "equal", "compute"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)

WORKER, SOCKETS = "pt_gloo_runloop", "gloo_tcp_loop"
"""Threads of gloo, as /proc names them: those that carry out collectives, and the one that serves sockets."""

LEVELS: dict[Priority, tuple[int, int, int]] = {"communication": (21, 20, 10), "equal": (10, 10, 10), "compute": (11, 10, 20)}
"""SCHED_FIFO priority of gloo's workers, of its socket thread, and of the thread that computes. A higher one interrupts; an equal
one waits. The socket thread tries the lock of a pair again and again while a worker holds it: on one core a worker that is not
above it would never get to give the lock back."""


def check_priority(priority: Priority, *, messages: bool) -> None:
    """Raises OptionError where threads cannot be given it, or a plan with messages between two ranks can hang under it."""
    if priority == "default":
        return
    if sys.platform != "linux":
        raise OptionError(f"priority: {priority} is a policy of Linux's scheduler: run it on Linux, or leave --priority out")
    if not has_capability(SYS_NICE):
        raise OptionError(f"priority: {priority} needs root (CAP_SYS_NICE): run as root, or leave --priority out")
    if priority == "communication" and messages:
        raise OptionError(
            "priority: communication can hang with messages between two ranks (pp, and cp with a ring): a thread of gloo waits "
            "without end for a lock of the one it interrupted; use equal or default"
        )


@contextlib.contextmanager
def scheduled(priority: Priority) -> Iterator[None]:
    """Threads have it inside, and what they had before afterwards. To be entered once all process groups are made."""
    if priority == "default":
        yield
        return
    worker, sockets, own = LEVELS[priority]
    wanted = {thread: worker if name == WORKER else sockets for thread, name in gloo_threads().items()}
    wanted[threading.get_native_id()] = own
    before = {}
    for thread in wanted:
        # Threads of groups that are being given back end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            before[thread] = (os.sched_getscheduler(thread), os.sched_getparam(thread))
    try:
        try:
            # The calling thread comes last: from then on what is below it has to wait.
            for thread, level in wanted.items():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(level))
        except PermissionError:
            raise RunError(f"priority: {priority} is refused by the system: expected CAP_SYS_NICE; run as root") from None
        yield
    finally:
        for thread, (policy, parameter) in before.items():
            # A group that was given back took its threads along.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, parameter)


def gloo_threads() -> dict[int, str]:
    """Ids of gloo's threads in this process, and their names."""
    found = {}
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name)):
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            if name in (WORKER, SOCKETS):
                found[int(task.name)] = name
    return found
