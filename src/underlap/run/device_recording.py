"""A step on a device as trace events, in the form in which torch.profiler writes CUDA ranks.

Of each instruction: on the host what issued it, with its launch; on its stream from its first to its last mark. A wait holds a
stream without running anything there, so it is a row of the host that says when it held the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from underlap.cost.work import Transfer
from underlap.plan import COMPUTE_LANE, OpKind
from underlap.run.program import Instruction, Program
from underlap.run.times import Record

Described = Callable[[Program, Instruction], dict[str, Any]]
"""The arguments that Kineto gives to a collective."""


def late_share(program: Program, record: Record) -> float:
    """Share of the step in which the compute lane was idle though only the host kept it: what comes next was not issued yet."""
    times = record.device
    if times is None or not record.duration_ns or times.graph:
        return 0.0  # a graph is launched as one
    late, free = 0, record.started_ns
    for at, instruction in enumerate(program.instructions):
        if times.lanes[at] != COMPUTE_LANE or not times.end_ns[at]:
            continue
        if instruction.kind != OpKind.WAIT:
            late += max(0, min(times.begin_ns[at], record.end_ns[at]) - free)
        free = max(free, times.end_ns[at])
    return late / record.duration_ns


def rows(program: Program, record: Record, step: int, device: int, described: Described) -> Iterator[dict[str, Any]]:
    """The events of one step. Streams are numbered in the order of the plan's lanes; 7 is the first, as in torch's own."""
    times = record.device
    assert times is not None
    streams = {lane: 7 + number for number, lane in enumerate(dict.fromkeys([COMPUTE_LANE, *times.lanes]))}
    size = len(program.instructions)
    if times.graph:
        yield _host(program, "cudaGraphLaunch", "cuda_runtime", times.launched_ns, {"correlation": step + 1})
    for at, instruction in enumerate(program.instructions):
        if not times.end_ns[at]:
            continue  # the step did not get so far
        # Readers take an external id that equals the correlation for none.
        number = 2 * (step * size + at + 1)
        correlation, external = step + 1 if times.graph else number + 1, number
        span = (record.begin_ns[at], record.end_ns[at])
        if instruction.kind == OpKind.WAIT:
            held = {"device ts": times.begin_ns[at] / 1000, "device dur": (times.end_ns[at] - times.begin_ns[at]) / 1000}
            arguments = {"what": "wait", "key": instruction.key, **held}
            yield _host(program, f"wait {instruction.role}", "user_annotation", span, arguments)
            continue
        communicates = isinstance(instruction.work, Transfer) and instruction.kind == OpKind.ISSUE
        about = described(program, instruction) if communicates else {}
        on_host = {"External id": external, **about}
        if communicates:
            on_host |= {"what": "issue", "key": instruction.key}
        if communicates or not times.graph:
            yield _host(program, _call(instruction, about), "cpu_op", span, on_host)
        if not times.graph:
            yield _host(program, "cudaLaunchKernel", "cuda_runtime", span, {"correlation": correlation, "External id": external})
        arguments = {
            "what": "transfer" if communicates else "compute",
            "key": instruction.key,
            "device": device,
            "stream": streams[times.lanes[at]],
            "correlation": correlation,
            **({"graph id": 1, "graph node id": at + 1} if times.graph else {"External id": external}),
            **about,
        }
        name = f"nccl:{about['Collective name']}" if communicates else f"underlap::{instruction.phase}/{instruction.role}"
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": device,
            "tid": streams[times.lanes[at]],
            "ts": times.begin_ns[at] / 1000,
            "dur": max(0, times.end_ns[at] - times.begin_ns[at]) / 1000,
            "args": arguments,
        }


def _call(instruction: Instruction, about: dict[str, Any]) -> str:
    return "record_param_comms" if about else f"underlap::{instruction.phase}/{instruction.role}"


def _host(program: Program, name: str, category: str, span: tuple[int, int], arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": program.rank,
        "tid": 1,
        "ts": span[0] / 1000,
        "dur": (span[1] - span[0]) / 1000,
        "args": arguments,
    }
