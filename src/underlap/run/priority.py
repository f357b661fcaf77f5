"""Whether a rank's communication may interrupt its compute: the scheduling of gloo's threads beside the one that computes.

On a CPU this decides whether overlap happens, and how much of it. gloo's threads share the core of the rank that computes; where
they may not interrupt it, they run once it waits, and only what the kernel already has moves meanwhile. On a GPU the counterpart
is the priority of streams.
"""

from __future__ import annotations

import contextlib
import gc
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

LEVELS: dict[Priority, tuple[int, int]] = {"communication": (20, 10), "equal": (10, 10), "compute": (10, 20)}
"""SCHED_FIFO priority of gloo's threads, and of the thread that computes. A higher one interrupts; an equal one waits.

gloo's threads have the same, and do not take turns by time (SCHED_RR): the one that serves sockets tries the lock of a pair
without end while another holds it, for a whole turn of 100 ms if that one's turn has just ended. And a worker above it would wait
without end: it yields until the other has let go of a buffer (seen with torch 2.13).
"""

THREADS = ("pt_gloo_runloop", "gloo_tcp_loop")
"""Of gloo, as /proc names them: those that carry out collectives, and the one that serves sockets."""


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
    """Threads have it inside, and what they had before afterwards. To be entered once all process groups are made.

    Groups of an earlier job that only garbage still refers to are given back before. That closes their pairs on the thread that
    computes, with the lock that a socket thread tries for: if it happened inside, the one above the other, both would hang.
    """
    if priority == "default":
        yield
        return
    gc.collect()
    above, own = LEVELS[priority]
    wanted = {**dict.fromkeys(gloo_threads(), above), threading.get_native_id(): own}
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


def gloo_threads() -> list[int]:
    """Ids of gloo's threads in this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() in THREADS:
                found.append(int(task.name))
    return sorted(found)
