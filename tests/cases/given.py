"""What the tests of public cases share: the cases by id, small Kineto traces, small Timelines, and what a person sees of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import underlap
from tests.timelines import COMMUNICATION, COMPUTE, Call, Host, Op, build, group, info
from underlap.render import explanation, terminal
from underlap.report import FamilyRow, Report
from underlap.timeline import HostKind, Timeline

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case["test_input"]
    for case in yaml.safe_load((Path(__file__).parents[2].parent / "shared" / "cases.yaml").read_text())
}
US, MS, S = 1_000, 1_000_000, 1_000_000_000
Event = dict[str, Any]


def kernel(name: str, start: float, length: float, *, category: str = "kernel", stream: int = 7, **args: Any) -> Event:
    """A device row; times in microseconds."""
    base = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
    return base | {"args": {"device": 0, "stream": stream, **args}}


def host(name: str, start: float, length: float, *, category: str = "cpu_op", **args: Any) -> Event:
    """A row of the main thread."""
    return {"ph": "X", "cat": category, "name": name, "pid": 5, "tid": 5, "ts": start, "dur": length, "args": args}


def launch(correlation: int, at: float, length: float = 1) -> Event:
    """The call that launches the device row with this correlation."""
    return host("cudaLaunchKernel", at, length, category="cuda_runtime", correlation=correlation)


def written(path: Path, events: Sequence[Event], world: int = 8, **metadata: Any) -> Path:
    """A trace of rank 0."""
    info = {"rank": 0, "world_size": world, "backend": "nccl"}
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, **metadata, "traceEvents": list(events)}))
    return path


def whole(source: Path | Timeline, **options: Any) -> Report:
    """The Report of everything in it."""
    return underlap.analyze(source, window="whole", **options)


def screen(report: Report) -> str:
    """What the terminal shows, its lines put together: where they break does not matter here."""
    return " ".join(line.strip() for line in terminal.render(report).plain.splitlines())


def explained(report: Report) -> str:
    """What --explain adds."""
    return "\n".join(explanation.lines(report))


def family(report: Report, collective: str) -> FamilyRow:
    """The family of that collective, with its verdict."""
    (row,) = [row for row in report.families if row.collective == collective]
    assert row.verdict is not None
    return row


def causes(row: FamilyRow) -> dict[str, int]:
    """Cause -> nanoseconds."""
    assert row.verdict is not None
    return {entry.cause: entry.exposed_ns for entry in row.verdict.causes}


def usual_launches(before: int = 0, count: int = 8, latency: int = 5 * US) -> list[Op]:
    """Short kernels to an idle lane before a moment, each `latency` after its launch: what is usual on this device."""
    starts = [before - (count - at) * 10 * latency for at in range(count)]
    return [Op(COMPUTE, start, start + US, launch=start - latency, name="small") for start in starts]


@dataclasses.dataclass
class Ranks:
    """A job of several ranks, each with one stream for compute and one for communication, written call by call."""

    count: int
    description: str = "mesh_tp"
    collective: str = "all_reduce"
    library: str = "nccl"
    ops: list[Op] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    marks: list[Host] = dataclasses.field(default_factory=list)
    made: int = 0

    def meet(self, arrivals: Sequence[int], transfer: int, *, payload: int = 1 << 20, computed: int = 0) -> int:
        """One collective: each rank arrives, the last one's arrival begins the transfer. Returns its end.

        Each rank computes for `computed` right before it arrives, and launches both at that moment.
        """
        end = max(arrivals) + transfer
        for rank, arrival in enumerate(arrivals):
            if computed:
                self.ops.append(Op(COMPUTE, arrival - computed, arrival, launch=arrival - computed, rank=rank))
            self.ops.append(Op(COMMUNICATION, arrival, end, len(self.calls), arrival - computed, rank=rank, lane="20"))
            self.calls.append(Call(self.collective, payload, 0, self.made, rank=rank, library=self.library))
        self.made += 1
        return end

    def step(self, number: int, start: int, end: int) -> None:
        """Marks a step on every rank."""
        self.marks += [Host(f"ProfilerStep#{number}", start, end, rank=rank) for rank in range(self.count)]

    def timeline(self) -> Timeline:
        """All of it."""
        return build(
            self.ops,
            calls=self.calls,
            host=self.marks,
            groups=[group(*range(self.count), description=self.description)],
            ranks=[info(rank, world=self.count) for rank in range(self.count)],
        )


def sync(name: str, start: int, end: int) -> Host:
    """A call in which the host waits for the device."""
    return Host(name, start, end, HostKind.SYNC)
