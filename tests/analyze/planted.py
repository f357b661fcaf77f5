"""Timelines in which kernels beside communication are slower by a factor that the test chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from underlap.analyze import accounting, calls, families, groups, steps
from underlap.analyze.contention import Contention, contention
from underlap.timeline import UNKNOWN_NS, Collectives, HostKind, HostRows, Lane, OpClass, Operations, RankInfo, Thread, Timeline

GAP_NS = 1_000
PAYLOAD = 1 << 20


@dataclasses.dataclass
class Kernel:
    """One compute kernel of a step."""

    duration_ns: int
    name: str = "kernel"
    grid: int = 1


def timeline(
    each_step: Sequence[Sequence[Kernel]],
    communication: Sequence[Sequence[tuple[int, int, int]]],
    *,
    marked: bool = True,
    communication_grid: int = 4,
) -> Timeline:
    """Steps of kernels in one lane, and per step its collectives: (first kernel, the one behind the last, length).

    A collective of length 0 lasts as long as its kernels. With first = behind it runs beside none, before that kernel.
    """
    names: dict[str, int] = {"all_reduce": 0, "nccl": 1, "ncclDevKernel": 2}
    shapes: dict[int, int] = {communication_grid: 0}
    rows: list[tuple[int, int, int, int, int, int]] = []
    host: list[tuple[int, int, int]] = []
    now = 0
    for number, kernels in enumerate(each_step):
        begin = now
        spans = []
        for at, kernel in enumerate(kernels):
            for first, behind, length in communication[number]:
                if first == behind == at:
                    rows.append((now, now + length, 1, OpClass.COMMUNICATION, 2, 0))
                    now += length + GAP_NS
            spans.append((now, now + kernel.duration_ns))
            name, shape = names.setdefault(kernel.name, len(names)), shapes.setdefault(kernel.grid, len(shapes))
            rows.append((*spans[-1], 0, OpClass.COMPUTE, name, shape))
            now = spans[-1][1] + GAP_NS
        for first, behind, length in communication[number]:
            if first < behind:
                start = spans[first][0]
                end = start + length if length else spans[behind - 1][1]
                rows.append((start, end, 1, OpClass.COMMUNICATION, 2, 0))
                now = max(now, end + GAP_NS)
        if marked:
            host.append((begin, now, names.setdefault(f"ProfilerStep#{number}", len(names))))
    rows.sort()
    return _assembled(rows, host, list(names), [((grid, 1, 1), (128, 1, 1)) for grid in shapes])


def _assembled(rows: list[tuple[int, ...]], host: list[tuple[int, int, int]], names: list[str], shapes: list) -> Timeline:
    start, end, lane, op_class, name, shape = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    is_call = op_class == OpClass.COMMUNICATION
    count, called = len(rows), int(is_call.sum())

    def same(value: int, size: int = count) -> np.ndarray:
        return np.full(size, value, dtype=np.int64)

    found = Timeline(
        provenance="measured",
        origin_ns=0,
        ranks=(
            RankInfo(
                rank=0,
                rank_source="assumed",
                world_size=2,
                source="planted",
                on_cpu=False,
                clock=0,
                resolution_ns=1,
            ),
        ),
        lanes=(Lane(rank=0, device=0, label="7"), Lane(rank=0, device=0, label="20")),
        threads=(Thread(rank=0, process="1", label="1"),),
        groups=(),
        names=tuple(names),
        shapes=tuple(shapes),
        ops=Operations.from_columns(
            start_ns=start,
            end_ns=end,
            launch_ns=same(UNKNOWN_NS),
            rank=same(0),
            device=same(0),
            lane=lane,
            thread=same(0),
            op_class=op_class,
            name=name,
            shape=shape,
            call_site=same(-1),
            collective=np.where(is_call, np.cumsum(is_call) - 1, -1),
            graph=same(-1),
            nbytes=same(-1),
            represents=same(1),
            source_row=np.arange(count),
        ),
        host=HostRows.from_columns(
            start_ns=[begin for begin, _, _ in host],
            end_ns=[end for _, end, _ in host],
            rank=same(0, len(host)),
            thread=same(0, len(host)),
            kind=same(HostKind.ANNOTATION, len(host)),
            name=[name for _, _, name in host],
            source_row=same(0, len(host)),
        ),
        collectives=Collectives.from_columns(
            rank=same(0, called),
            group=same(-1, called),
            sequence=same(-1, called),
            collective=same(0, called),
            library=same(1, called),
            dtype=same(-1, called),
            payload_bytes=same(PAYLOAD, called),
            peer=same(-1, called),
            call_site=same(-1, called),
            issue_ns=same(UNKNOWN_NS, called),
            asynchronous=same(-1, called),
        ),
        recognized=np.ones(len(names), dtype=bool),
    )
    found.validate()
    return found


def training(
    factor: Callable[[int], float] | float = 1.0,
    *,
    steps: int = 6,
    kernels: int = 300,
    wander: int = 60,
    seed: int = 0,
    noise: float = 0.03,
    slow_steps: float = 1.0,
    every_second: bool = False,
) -> tuple[Timeline, float]:
    """A training run, and what contention cost it in nanoseconds.

    A collective runs beside 80 kernels from the 100th on, up to `wander` later from step to step; those are slower by
    `factor` (a number, or one per duration alone). `slow_steps` slows all kernels in every second step,
    with `every_second` the only steps whose collective runs beside kernels (as with gradients accumulated over two).
    """
    random = np.random.default_rng(seed)
    alone = np.exp(random.uniform(np.log(3_000), np.log(600_000), kernels)).astype(np.int64)
    name = random.integers(0, 12, kernels)
    each_step, communication, cost = [], [], 0.0
    for step in range(steps):
        first = 100 + (step % 2) * wander
        lengths = []
        for at, length in enumerate(alone.tolist()):
            own = length * float(np.exp(random.normal(0, noise)))
            if step % 2:
                own *= slow_steps
            if first <= at < first + 80 and not (every_second and step % 2 == 0):
                slower = own * (factor(length) if callable(factor) else factor)
                cost += slower - own
                own = slower
            lengths.append(max(1, round(own)))
        each_step.append([Kernel(length, name=f"kernel {name[at]}", grid=int(name[at]) + 1) for at, length in enumerate(lengths)])
        hides = not every_second or step % 2 == 1
        communication.append([(first, first + 80, 0) if hides else (first, first, 5_000_000)])
    return timeline(each_step, communication), cost


def analyzed(found: Timeline, *, transfer: bool = False) -> Contention:
    """The contention of the whole Timeline; with `transfer` as if all ranks were there and none had waited."""
    marked = steps.find(found)
    selection = steps.select(found, marked, "whole", None)
    sets = {
        (rank, device): accounting.device_sets(found.ops.take((found.ops.rank == rank) & (found.ops.device == device)))
        for rank, device in steps.devices(found)
    }
    settled = groups.settle(found, None)
    times = calls.call_times(found, sets, selection.counted)
    _, family_of_call = families.number_families(found, settled)
    transfer_ns = times.duration if transfer else None
    return contention(found, marked, selection, sets, settled, times, family_of_call, transfer_ns)
