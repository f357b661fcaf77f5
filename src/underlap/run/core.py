"""The core of a rank, and what it was busy with that no thread of the rank is charged for.

CPU times of threads do not have all that communication takes: while a rank waits, the kernel sends and receives on a core that
belongs to no thread, and while it computes, in the time of the thread that was interrupted. What of a step is neither idle nor
the computing thread's is both; the column of interrupts is not, as the kernel does not sample what interrupts an idle core. Other
programs that run there are told by their time outside the kernel: what the core has of it and this process has not. On a virtual
machine the core is at times given to others, which no thread here is charged for either.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
_USER, _NICE, _IDLE, _WAITING, _STOLEN = 1, 2, 4, 5, 8
"""Columns of a core's row in /proc/stat: programs outside the kernel (the nice ones apart), idle, idle while something waits for
a disk, and given to other virtual machines."""


class Spent(NamedTuple):
    """For how long a core was what, in ns."""

    idle_ns: int
    user_ns: int
    """Programs, outside the kernel."""
    stolen_ns: int
    """It was given to other virtual machines."""

    def since(self, before: Spent) -> Spent:
        """What was added."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


class Core:
    """The only core that this process may use."""

    def __init__(self, number: int) -> None:
        self.number = number

    @staticmethod
    def own() -> Core | None:
        """None where this process may use several, or the system does not tell."""
        if sys.platform != "linux" or not STAT.exists():
            return None
        cores = os.sched_getaffinity(0)
        return Core(*cores) if len(cores) == 1 else None

    def spent(self) -> Spent | None:
        """Since the machine started, in steps of 10 ms: several repetitions are needed. None where the system does not tell."""
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        for line in STAT.read_text().splitlines():
            columns = line.split()
            if columns and columns[0] == f"cpu{self.number}":
                kinds = (_USER, _NICE, _IDLE, _WAITING, _STOLEN)
                user, nice, idle, waiting, stolen = (int(columns[kind]) * tick for kind in kinds)
                return Spent(idle + waiting, user + nice, stolen)
        return None
