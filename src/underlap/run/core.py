"""The core of a rank, and how long it did nothing for anybody here.

CPU times of threads do not have all that communication takes: while a rank waits, the kernel sends and receives on a core that
belongs to no thread, and while it computes, in the time of the thread that was interrupted. What of a step is neither idle nor
the computing thread's is both. On a virtual machine the core is at times given to others, which no thread here is charged for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
_IDLE, _WAITING, _STOLEN = 4, 5, 8
"""Columns of a core's row in /proc/stat: idle, idle while something waits for a disk, and given to other virtual machines."""


class Unused(NamedTuple):
    """For how long a core did nothing for anybody here, in ns."""

    idle_ns: int
    stolen_ns: int
    """It was given to other virtual machines."""


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

    def unused(self) -> Unused | None:
        """Since the machine started, in steps of 10 ms: several repetitions are needed. None where the system does not tell."""
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        for line in STAT.read_text().splitlines():
            columns = line.split()
            if columns and columns[0] == f"cpu{self.number}":
                idle, waiting, stolen = (int(columns[kind]) * tick for kind in (_IDLE, _WAITING, _STOLEN))
                return Unused(idle + waiting, stolen)
        return None
