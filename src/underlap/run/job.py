"""What ranks are told for `underlap run`, and what they hand in. No torch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path

import msgspec

from underlap.layout import Layout, layout_text
from underlap.model import Model
from underlap.plan import Plan
from underlap.run.fabric import Fabric
from underlap.run.priority import Priority
from underlap.run.timing import RankTimes
from underlap.trial import LeftOut
from underlap.workload import Prefill, Workload, workload_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What every rank is told."""

    plans: tuple[tuple[str, Plan], ...]
    """By name: baseline, and policy in a comparison."""
    model: Model
    layout: Layout
    workload: Workload
    repetitions: int
    folder: Path
    """Where records go: one folder per plan."""
    outcome: Path
    """Where rank 0 writes what all ranks saw."""
    checkpoint: Path | None = None
    prompt: tuple[Prefill, Plan] | None = None
    """Decode: what fills the caches first."""
    seed: int = 0
    profile: bool = False
    device: str = "cpu"
    """cpu or cuda."""
    graph: bool = False
    """Steps are launched as one graph each."""
    timed: bool = False
    """Hand in how long each operation took in each repetition."""
    quiet: bool = False
    interface: str | None = None
    """Whose bytes are counted around each measured step; None: no bytes are, as others use the interface too."""
    priority: Priority = "default"
    ceilings: tuple[tuple[str, LeftOut], ...] = ()
    """(plan, what its steps leave out): measured behind all others, as what they compute is wrong."""
    each_step: tuple[str, ...] = ()
    """Plans of which every measured step is recorded, each in a folder of its own: `steps_of`."""
    share_cores: bool = False
    """Several ranks on a core: what one leaves of it another one takes."""
    fabric: Fabric | None = None
    """Whose links have twice their rate in some steps."""

    @property
    def text(self) -> str:
        """What has to be equal on all ranks, beside the plans."""
        said = (
            self.model,
            layout_text(self.layout),
            workload_text(self.workload),
            self.seed,
            self.repetitions,
            self.profile,
            self.device,
            self.graph,
            self.timed,
            self.priority,
            self.ceilings,
        )
        named = self.checkpoint.name if self.checkpoint else None
        return repr((*said, named, [name for name, _ in self.plans], importlib.metadata.version("torch")))


def steps_of(folder: Path, plan: str) -> Path:
    """Where the records of every step of a plan are: 0, 1, ..."""
    return folder / f"{plan}-steps"


BOTH = "both"
"""The folder of the record of both plans of a comparison in one: the last steps of each, in turns."""
MOST_IN_BOTH = 200_000
"""Operations of a rank in it, so that it can be read in seconds; but LEAST_IN_BOTH steps of each."""
LEAST_IN_BOTH = 16


class SeenCeiling(msgspec.Struct, kw_only=True):
    """Steps with something left out, and steps as planned in turns with them: of the slowest rank."""

    plan: str
    left_out: LeftOut
    step_ns: list[int]
    planned_ns: list[int]


class Seen(msgspec.Struct, kw_only=True):
    """What one plan did, over all ranks."""

    name: str
    step_ns: list[int]
    host_issue_share: float
    counted: list[tuple[str, str, int]]
    control: list[tuple[str, str, str, int]]
    unmatched_keys: int
    loss: float | None
    tokens: list[int] | None
    typical: int
    """The repetition that the records show in a comparison."""
    times: list[RankTimes]
    """By rank."""
    sent: list[int]
    received: list[int]
    """Payload bytes through the interfaces of all ranks in each measured step. Empty where they are not counted."""


class HandedIn(msgspec.Struct, kw_only=True):
    """What rank 0 hands in."""

    seen: list[Seen]
    both: bool
    """There is a record of both plans."""
    barrier_bytes: int
    """Payload that all ranks send in one barrier; subtracted from what is seen."""
    ceilings: list[SeenCeiling]
    output_difference: float
    gradient_difference: float | None
