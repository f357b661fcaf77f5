"""What a rank computes on, and what carries its collectives: the CPU with gloo, or a GPU with NCCL.

The engine asks a `Backend` for its process groups, its wire and its lanes; which of the two it has, it does not know.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from underlap.errors import OptionError, PlanError, RunError
from underlap.layout import Layout
from underlap.plan import Plan
from underlap.run.communication import Wire
from underlap.run.cuda_calls import CudaCalls
from underlap.run.groups import Groups
from underlap.run.lanes import Calls, HostLanes, Lanes, StreamLanes
from underlap.run.machine import Rank
from underlap.run.program import Program, compiled
from underlap.run.stream_wire import Communicators, StreamWire
from underlap.run.streams import against_capture, stream_plan, thread_blocks


class Backend(Protocol):
    """A device and its library."""

    device: torch.device
    library: str
    """gloo or nccl."""

    def lanes(self, program: Program) -> Lanes:
        """Where the program's instructions run."""

    def groups(self, program: Program, timeout_s: float) -> Groups | Communicators:
        """Its process groups. All ranks ask at the same time."""

    def wire(self, rank: Rank, groups: Any, lanes: Any) -> Wire:
        """What binds its issues and waits."""


class Gloo:
    """The CPU: one thread, collectives on threads of gloo."""

    library = "gloo"

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def lanes(self, program: Program) -> HostLanes:
        """One thread has one lane."""
        del program
        return HostLanes()

    def groups(self, program: Program, timeout_s: float) -> Groups:
        """As the plan has them."""
        return Groups(program, timeout_s)

    def wire(self, rank: Rank, groups: Groups, lanes: HostLanes) -> Wire:
        """Waits where the plan waits."""
        del lanes
        return Wire(rank, groups)


class Streams:
    """Streams of a device: shared by NCCL and by what tests put in its place."""

    library = "nccl"

    def __init__(self, device: torch.device, calls: Calls) -> None:
        self.device, self.calls = device, calls

    def lanes(self, program: Program) -> StreamLanes:
        """A stream per lane of the plan."""
        return StreamLanes(stream_plan(program), self.calls)

    def groups(self, program: Program, timeout_s: float) -> Communicators:
        """A communicator per group, and one per direction between two stages."""
        return Communicators(program, lambda *what, **how: self.group(*what, timeout_s=timeout_s, **how))

    def wire(self, rank: Rank, groups: Communicators, lanes: StreamLanes) -> StreamWire:
        """Streams wait where the plan waits; the host does not."""
        return StreamWire(rank, groups, lanes)

    def group(self, ranks: tuple[int, ...], name: str, ctas: int | None, *, alone: bool, timeout_s: float) -> Any:
        """A process group of NCCL. Connected at once: what connects at its first use would stop a rank in the middle of a step.

        `alone`: only its members make it.
        """
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        if ctas is not None:
            options.config.min_ctas = options.config.max_ctas = ctas
        return dist.new_group(
            list(ranks),
            backend="nccl",
            timeout=timedelta(seconds=timeout_s),
            pg_options=options,
            use_local_synchronization=alone,
            group_desc=name,
            device_id=self.device,
        )


def of_device(device: torch.device) -> Backend:
    """The backend of a device."""
    if device.type == "cpu":
        return Gloo()
    torch.cuda.set_device(device)
    return Streams(device, CudaCalls(device))


def chosen(asked: str | None, local_ranks: int) -> str:
    """cpu or cuda: what was asked, else cuda where each rank of this machine has a GPU. Raises OptionError without enough."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked is None:
        return "cuda" if found >= local_ranks else "cpu"
    if asked == "cuda" and found < local_ranks:
        had = f"{found} found for {local_ranks} ranks of this machine"
        raise OptionError(f"device: expected a GPU for each rank, {had}: use a smaller layout, or --device cpu")
    return asked


def place(kind: str, local_rank: int) -> torch.device:
    """The device of a rank. Raises RunError where its machine has no such GPU."""
    if kind == "cpu":
        return torch.device("cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank >= found:
        raise RunError(f"expected a GPU for each rank, {found} found: there is none for local rank {local_rank}")
    return torch.device("cuda", local_rank)


def check_on_device(plan: Plan, layout: Layout, kind: str, *, graph: bool) -> None:
    """Raises OptionError, with the reason, where the device cannot carry out a plan, or not as a graph."""
    if kind == "cpu":
        if graph:
            raise OptionError("graph: a graph needs a GPU for each rank: leave --graph out")
        return
    for role in plan.roles:
        program = compiled(plan, layout, role.ranks[0])
        try:
            stream_plan(program)
            thread_blocks(program)
        except PlanError as error:
            raise OptionError(f"device: {error}") from None
        reason = against_capture(program) if graph else None
        if reason is not None:
            raise OptionError(f"graph: {reason}")
