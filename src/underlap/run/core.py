"""The core of a rank, and what it was busy with that no thread of the rank is charged for.

CPU times of threads do not have all that communication takes: while a rank waits, the kernel sends and receives on a core that
belongs to no thread, and while it computes, in the time of the thread that was interrupted. The time of interrupts is both. What
is neither idle, nor of an interrupt, nor this process's is that of other programs. On a virtual machine the core is at times
given to others, which no thread here is charged for either.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
_IDLE, _WAITING, _HARD, _SOFT, _STOLEN = 4, 5, 6, 7, 8
"""Columns of a core's row in /proc/stat: idle, idle while something waits for a disk, interrupts of devices and of the kernel,
and given to other virtual machines."""


class Spent(NamedTuple):
    """For how long a core was what, in ns."""

    idle_ns: int
    interrupts_ns: int
    """Among them is what the kernel does for links."""
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
                kinds = (_IDLE, _WAITING, _HARD, _SOFT, _STOLEN)
                idle, waiting, hard, soft, stolen = (int(columns[kind]) * tick for kind in kinds)
                return Spent(idle + waiting, hard + soft, stolen)
        return None
