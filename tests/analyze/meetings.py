"""Timelines of several ranks by hand, and what the analysis of their meetings needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from underlap.analyze import accounting, bubbles, calls, families, groups, lateness, rendezvous, steps, stragglers
from underlap.columns import NONE, Interner
from underlap.flows.read import read
from underlap.timeline import (
    UNKNOWN_NS,
    Collectives,
    Group,
    HostKind,
    HostRows,
    Lane,
    OpClass,
    Operations,
    RankInfo,
    Thread,
    Timeline,
)

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One device row; unless it is compute or a copy, also one call of a collective."""

    rank: int
    start: int
    end: int
    collective: str | None = "all_reduce"
    payload: int = 1000
    group: int = 0
    sequence: int = NONE
    peer: int = NONE
    launch: int = UNKNOWN_NS
    op_class: OpClass = OpClass.COMMUNICATION
    lane: str = "20"


def compute(rank: int, start: int, end: int, launch: int = UNKNOWN_NS) -> Kernel:
    """A compute kernel."""
    return Kernel(rank, start, end, launch=launch, op_class=OpClass.COMPUTE, lane="7")


def group(*ranks: int, size: int | None = None, name: str = "0", description: str | None = None) -> Group:
    """A group of listed ranks, or of a size only."""
    return Group(name=name, description=description, size=size or len(ranks) or None, ranks=ranks or None)


def timeline(
    kernels: Sequence[Kernel],
    groups: Sequence[Group] = (group(0, 1),),
    *,
    ranks: Sequence[int] | None = None,
    clocks: Mapping[int, int] | None = None,
    world: int | None = None,
    on_cpu: bool = False,
    step_starts: Mapping[int, Sequence[int]] | None = None,
) -> Timeline:
    """The Timeline of these kernels. Every rank has a clock of its own unless `clocks` says otherwise.

    `step_starts` gives per rank the borders of its steps: n+1 numbers for n steps.
    """
    present = sorted({kernel.rank for kernel in kernels}) if ranks is None else list(ranks)
    names, lanes = Interner(), Interner()
    owned = [kernel for kernel in kernels if kernel.op_class in (OpClass.COMMUNICATION, OpClass.WAIT)]
    numbers = {id(kernel): at for at, kernel in enumerate(owned)}
    marks = [
        (rank, borders[at], borders[at + 1], f"ProfilerStep#{at + 1}")
        for rank, borders in (step_starts or {}).items()
        for at in range(len(borders) - 1)
    ]
    result = Timeline(
        provenance="measured",
        origin_ns=0,
        ranks=tuple(
            RankInfo(
                rank=rank,
                rank_source="distributedInfo",
                world_size=world,
                source=f"rank{rank}.json",
                on_cpu=on_cpu,
                clock=rank if clocks is None else clocks[rank],
                resolution_ns=1,
            )
            for rank in present
        ),
        ops=_table(
            Operations,
            len(kernels),
            start_ns=[kernel.start for kernel in kernels],
            end_ns=[kernel.end for kernel in kernels],
            launch_ns=[kernel.launch for kernel in kernels],
            rank=[kernel.rank for kernel in kernels],
            device=[0] * len(kernels),
            lane=[lanes(Lane(rank=kernel.rank, device=0, label=kernel.lane)) for kernel in kernels],
            op_class=[kernel.op_class for kernel in kernels],
            name=[names("kernel")] * len(kernels),
            collective=[numbers.get(id(kernel), NONE) for kernel in kernels],
        ),
        collectives=_table(
            Collectives,
            len(owned),
            rank=[kernel.rank for kernel in owned],
            group=[kernel.group for kernel in owned],
            sequence=[kernel.sequence for kernel in owned],
            collective=[names.optional(kernel.collective) for kernel in owned],
            library=[names("nccl")] * len(owned),
            payload_bytes=[kernel.payload for kernel in owned],
            peer=[kernel.peer for kernel in owned],
            issue_ns=[UNKNOWN_NS] * len(owned),
            asynchronous=[-1] * len(owned),
        ),
        host=_table(
            HostRows,
            len(marks),
            start_ns=[start for _, start, _, _ in marks],
            end_ns=[end for _, _, end, _ in marks],
            rank=[rank for rank, _, _, _ in marks],
            kind=[HostKind.ANNOTATION] * len(marks),
            name=[names(label) for *_, label in marks],
        ),
        lanes=tuple(lanes.values),
        threads=(Thread(rank=0, process="1", label="1"),),
        groups=tuple(groups),
        names=tuple(names.values),
        recognized=np.ones(len(names.values), dtype=bool),
    )
    result.validate()
    return result


def _table(table: Any, rows: int, /, **given: list[int]) -> Any:
    return table.from_columns(**{name: given.get(name, [NONE] * rows) for name in table.dtypes()})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A Timeline, met."""

    timeline: Timeline
    calls: groups.Calls
    times: calls.CallTimes
    sets: dict[tuple[int, int], accounting.DeviceSets]
    steps: steps.Steps
    selection: steps.Selection
    met: rendezvous.Rendezvous

    @property
    def reasons(self) -> list[str]:
        return [entry.reason for entry in self.met.unmatchable]

    def waits(self, rank: int) -> list[int]:
        """Waiting of the rank's calls, in order of start."""
        own = np.flatnonzero(self.calls.table.rank == rank)
        return self.met.wait[own[np.argsort(self.times.start[own], kind="stable")]].tolist()

    def notes(self) -> dict[str, str]:
        return {note.code: note.text for note in self.met.notes}

    def late(self) -> lateness.Late:
        return lateness.find_late(self.timeline, self.calls, self.times, self.sets, self.met)

    def verdicts(self) -> tuple[stragglers.Verdict, ...]:
        return stragglers.verdicts(
            self.late(),
            self.met,
            self.times,
            self.steps,
            families.number_families(self.timeline, self.calls),
            bubbles.pipeline_calls(self.timeline, self.calls, self.times, self.steps),
        )

    def bubbles(self) -> tuple[bubbles.Bubble, ...]:
        return bubbles.bubbles(self.timeline, self.calls, self.times, self.steps, self.met)

    def device(self, rank: int) -> tuple[int, int]:
        return next(key for key in self.sets if key[0] == rank)

    def split(self, rank: int) -> rendezvous.WaitSplit | None:
        key = self.device(rank)
        rows = np.flatnonzero((self.timeline.ops.rank == key[0]) & (self.timeline.ops.device == key[1]))
        parts = rendezvous.halves(self.timeline.ops.take(rows), self.met)
        return rendezvous.split(self.sets[key], parts, self.selection.stretches[key])


def meet(source: Timeline, window: str | None = "whole") -> Meeting:
    """The Timeline with all that the analysis makes of its meetings."""
    settled = groups.settle(source, None)
    found = steps.find(source)
    selection = steps.select(source, found, window, None)
    ops = source.ops
    sets = {
        key: accounting.device_sets(ops.take(np.flatnonzero((ops.rank == key[0]) & (ops.device == key[1]))))
        for key in steps.devices(source)
    }
    times = calls.call_times(source, sets, selection.counted)
    return Meeting(
        timeline=source,
        calls=settled,
        times=times,
        sets=sets,
        steps=found,
        selection=selection,
        met=rendezvous.meet(source, settled, times),
    )


def meet_trace(name: str, window: str | None = "whole") -> Meeting:
    """One of the recorded traces, met."""
    return meet(read(TRACES / name), window)
