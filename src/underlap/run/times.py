"""When the instructions of a step ran."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True, kw_only=True)
class DeviceTimes:
    """When each instruction of one step ran on a device, on the host's clock."""

    begin_ns: list[int]
    end_ns: list[int]
    lanes: list[str]
    """Of each instruction."""
    uncertainty_ns: int
    """The two clocks were set against each other at the begin of the step, to within this."""
    reference_ns: int
    """The begin of the step on the device."""
    graph: bool
    """All of it was launched as one."""
    launched_ns: tuple[int, int] = (0, 0)
    """When that launch was called and came back."""


@dataclasses.dataclass(slots=True)
class Record:
    """When each instruction of one step ran on this rank, on one clock for all ranks of a machine."""

    begin_ns: list[int]
    end_ns: list[int]
    flights: dict[int, tuple[int, int, int]]
    """Of each issue's row: (begun, done, payload bytes); done is 0 where the library did not say."""
    started_ns: int
    ended_ns: int
    device: DeviceTimes | None = None
    """None where the host computes: begin_ns and end_ns are then those of the computation, else those of its issue."""
    library_cpu_ns: int = 0
    """CPU time of the process in the step, without that of the thread that computes."""
    core_ns: int | None = None
    """What communication took of the only core of this rank: the library's threads, and the kernel's work for the links. None
    where it may use several."""
    stolen_ns: int | None = None
    """How long that core was given to other virtual machines. None where `core_ns` is."""
    others_ns: int | None = None
    """How long other programs had it, outside the kernel. In steps of 10 ms as the others, so a single one can be below 0. None
    where `core_ns` is."""

    @property
    def duration_ns(self) -> int:
        """Of the step."""
        return self.ended_ns - self.started_ns
