"""The core of a rank, and how long nobody used it.

CPU times of threads do not have all that communication takes: while a rank waits, the kernel sends and receives on a core that
belongs to no thread, and while it computes, in the time of the thread that was interrupted. What of a step is neither idle nor
the computing thread's is both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

STAT = Path("/proc/stat")
_IDLE, _WAITING = 4, 5
"""Columns of a core's row in /proc/stat: idle, and idle while something waits for a disk."""


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

    def idle_ns(self) -> int | None:
        """Since the machine started, in steps of 10 ms: several repetitions are needed. None where the system does not tell."""
        for line in STAT.read_text().splitlines():
            columns = line.split()
            if columns and columns[0] == f"cpu{self.number}":
                return (int(columns[_IDLE]) + int(columns[_WAITING])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return None
