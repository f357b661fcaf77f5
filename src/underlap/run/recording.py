"""What a rank did, as a trace file that `underlap analyze`, Perfetto and chrome://tracing read.

It has the form in which torch.profiler writes CPU ranks: operators on the calling thread, `c10d::*` where a collective is
issued, `gloo:*` on a thread of the library from its start to its end. Every event carries the structural key of its
operation. gloo carries out the collectives of a group on two threads, in order; a third one begins when one of the two ends. What
two ranks exchange has groups of its own, so threads too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from underlap.cost.work import Transfer
from underlap.plan import OpKind
from underlap.run import device_recording
from underlap.run.program import EXCHANGES, Instruction, Program
from underlap.run.times import Record

WORKERS = 2
"""Threads that gloo has for the collectives of a group (ProcessGroupGloo::Options::threads)."""

_CALLS = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_to_all": "c10d::alltoall_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}
_MAIN = 1


def host_share(program: Program, record: Record) -> float:
    """Share of the step that the host spent on anything but computing and waiting: issuing, and going from one to the next.

    On a device: the share of the step in which its compute lane had nothing to do because the host had not issued it yet.
    """
    if record.device is not None:
        return device_recording.late_share(program, record)
    busy = sum(
        record.end_ns[at] - record.begin_ns[at]
        for at, instruction in enumerate(program.instructions)
        if instruction.kind != OpKind.ISSUE and at < len(record.end_ns) and record.end_ns[at]
    )
    return 1 - busy / record.duration_ns if record.duration_ns else 0.0


def document(
    program: Program, records: Sequence[Record], dtype: str, device: int = 0, core_ns: float | None = None
) -> dict[str, Any]:
    """The trace of some steps of a rank. `dtype` is that of activations, for sizes in elements; `device` the GPU's number;
    `core_ns` what communication takes of the core in a step, None where it is not known."""
    return document_of_steps([(program, record) for record in records], dtype, device, core_ns)


def document_of_steps(
    steps: Sequence[tuple[Program, Record]], dtype: str, device: int = 0, core_ns: float | None = None
) -> dict[str, Any]:
    """The same of steps of several programs of one rank, in the order in which they were run."""
    on_device = any(record.device is not None for _, record in steps)
    members = {name: ranks for each, _ in steps for name, ranks in each.members.items()}
    program, _ = steps[0]
    events: list[dict[str, Any]] = [_thread(program, _MAIN, "python")]
    threads = _Threads(program, events)
    for number, (program, record) in enumerate(steps):
        events.append(_event(program, f"ProfilerStep#{number}", "user_annotation", record.started_ns, record.ended_ns))
        if record.device is None:
            events += _of_step(program, record, threads)
        else:
            events += device_recording.rows(program, record, number, device, _described)
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl" if on_device else "gloo",
            "rank": program.rank,
            "world_size": program.world,
            "pg_config": [
                {"pg_name": name, "pg_desc": name, "pg_size": len(ranks), "ranks": list(ranks)} for name, ranks in members.items()
            ],
        },
        "displayTimeUnit": "ms",
        "underlap": {
            "stage": program.stage,
            "dtype": dtype,
            **({} if core_ns is None else {"core_ns": round(core_ns * len(steps))}),
        },
        "traceEvents": events,
    }


def encoded(trace: dict[str, Any]) -> str:
    """The text of a trace."""
    return json.dumps(trace, separators=(",", ":"))


def keys(trace: dict[str, Any]) -> list[tuple[str, str]]:
    """(kind of event, structural key) of what a trace has, in order: compute, issue, transfer or wait."""
    return [(event["args"]["what"], event["args"]["key"]) for event in trace["traceEvents"] if "key" in event.get("args", {})]


class _Threads:
    """A number for each thread of the library."""

    def __init__(self, program: Program, events: list[dict[str, Any]]) -> None:
        self.program, self.events = program, events
        self.numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = _MAIN + 1 + len(self.numbers)
            self.events.append(_thread(self.program, self.numbers[name], f"pt_gloo_runloop {name}"))
        return self.numbers[name]


def _of_step(program: Program, record: Record, threads: _Threads) -> Iterable[dict[str, Any]]:
    for at, instruction in enumerate(program.instructions):
        begin, end = record.begin_ns[at], record.end_ns[at]
        if not end:
            continue  # the step did not get so far
        if instruction.kind == OpKind.ISSUE:
            arguments = {"what": "issue", "key": instruction.key, **_described(program, instruction)}
            yield _event(program, _CALLS[_collective(instruction)], "cpu_op", begin, end, arguments)
        elif instruction.kind == OpKind.WAIT:
            yield _event(program, f"wait {instruction.role}", "user_annotation", begin, end, _what("wait", instruction))
        else:
            name = f"underlap::{instruction.phase}/{instruction.role}"
            yield _event(program, name, "cpu_op", begin, end, _what("compute", instruction))
    yield from _transfers(program, record, threads)


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """One collective of one step, and the thread of the library that carried it out."""

    instruction: Instruction
    lane: str
    begin_ns: int
    end_ns: int


def flights(program: Program, record: Record) -> Iterable[Carried]:
    """From when a thread of the library took each collective to when it was done, in order of issue."""
    waited_ns = {
        one.issue: record.end_ns[at]
        for at, one in enumerate(program.instructions)
        if one.kind == OpKind.WAIT and record.end_ns[at]
    }
    by_row = {instruction.row: instruction for instruction in program.instructions}
    free: dict[str, list[int]] = {}
    for row, (issued, done, _) in record.flights.items():
        instruction = by_row[row]
        end = done or waited_ns.get(row, 0)
        if not end:
            continue
        lane = str(instruction.group)
        if lane in program.paired and _collective(instruction) in EXCHANGES:
            lane = f"{lane} exchanges"
        messages = _collective(instruction) in ("send", "recv")
        if messages:
            # Messages do not queue: each has a lane that is free.
            lane = f"{lane} messages"
        workers = free.setdefault(lane, [] if messages else [0] * WORKERS)
        if messages and all(worker > issued for worker in workers):
            workers.append(0)
        worker = min(range(len(workers)), key=lambda number: workers[number])
        begin = max(issued, workers[worker])
        end = max(end, begin)
        workers[worker] = end
        yield Carried(instruction, f"{lane} {worker}", begin, end)


def _transfers(program: Program, record: Record, threads: _Threads) -> Iterable[dict[str, Any]]:
    for flight in flights(program, record):
        instruction = flight.instruction
        arguments = {"what": "transfer", "key": instruction.key, **_described(program, instruction)}
        name = f"gloo:{_collective(instruction)}"
        yield _event(program, name, "user_annotation", flight.begin_ns, flight.end_ns, arguments, threads(flight.lane))


def _collective(instruction: Instruction) -> str:
    work = instruction.work
    assert isinstance(work, Transfer)
    if work.collective == "send":
        return "send" if instruction.reads else "recv"
    return work.collective


def _described(program: Program, instruction: Instruction) -> dict[str, Any]:
    """The arguments that Kineto gives to calls of a collective. Sizes in bytes: elements of one byte."""
    work, group = instruction.work, str(instruction.group)
    assert isinstance(work, Transfer)
    ranks = program.members[group]
    payload = round(work.payload_bytes)
    sizes = {
        "all_gather": (payload // len(ranks), payload),
        "reduce_scatter": (payload, payload // len(ranks)),
    }.get(work.collective, (payload, payload))
    peers: dict[str, int] = {}
    if instruction.send_to is not None:
        peers["Dst Rank"] = instruction.send_to
    if instruction.receive_from is not None:
        peers["Src Rank"] = instruction.receive_from
    return {
        "Collective name": _collective(instruction),
        "In msg nelems": sizes[0],
        "Out msg nelems": sizes[1],
        "Group size": len(ranks),
        "dtype": "Byte",
        "Process Group Name": group,
        "Process Group Description": group,
        "Process Group Ranks": str(list(ranks)),
        **peers,
    }


def _what(kind: str, instruction: Instruction) -> dict[str, Any]:
    return {"what": kind, "key": instruction.key}


def _event(
    program: Program,
    name: str,
    category: str,
    begin_ns: int,
    end_ns: int,
    arguments: dict[str, Any] | None = None,
    thread: int = _MAIN,
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": program.rank,
        "tid": thread,
        "ts": begin_ns / 1000,
        "dur": (end_ns - begin_ns) / 1000,
        "args": arguments or {},
    }


def _thread(program: Program, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": program.rank, "tid": number, "args": {"name": name}}
