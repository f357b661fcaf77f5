"""Transfers alone, two at once, and beside computation: the calls of the library that the engine makes, timed."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from underlap.layout import Layout
from underlap.model import Model
from underlap.plan import Plan
from underlap.run.exchange import Exchange
from underlap.run.flight import Flight
from underlap.run.machine import DTYPES, Closure, void
from underlap.run.priority import Priority
from underlap.run.session import Session
from underlap.workload import Workload

_BESIDE_BYTES = 2 * 2**20
_BESIDE_SIDE = 256
_CHAIN = 50
_LATE_NS = 500_000
"""As much as ranks of a step scatter by. Among more than two ranks gloo's notice that a rank may be sent to then waits behind
what that rank sends (see `Exchange`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small:
    """A plan of one layer, whose operations are timed."""

    model: Model
    layout: Layout
    workload: Workload
    plan: Plan
    sends: bool
    """False: its transfers are left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measuring:
    """What every rank is told."""

    plans: tuple[Small, ...]
    sizes: tuple[int, ...]
    """Of transfers: bytes that a rank puts on the wire."""
    repetitions: int
    budget_s: float
    """Of all measuring; when it is spent no more is repeated."""
    pause_s: float
    """Before a transfer, so that the burst of its link has gathered."""
    precision: str
    priority: Priority
    outcome: Path
    quiet: bool = False


class Sample(msgspec.Struct, kw_only=True):
    """All measured times of one thing, over ranks and repetitions."""

    kind: str
    """product, attention, stream, transfer, late (a transfer with one rank late), pack, call, finish."""
    name: str
    size: tuple[float, ...]
    """product: m, n, k, groups; attention: batch, heads, query, context, head_dim; else bytes."""
    ns: list[int]
    cpu_ns: list[int] = []
    """Of transfers: CPU time of the process meanwhile."""


class Samples:
    """Times by what was timed."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, tuple[float, ...]], Sample] = {}
        self.between_ns: list[int] = []

    def add(self, kind: str, name: str, size: tuple[float, ...], ns: int, cpu_ns: int | None = None) -> None:
        sample = self.found.setdefault((kind, name, size), Sample(kind=kind, name=name, size=size, ns=[]))
        sample.ns.append(ns)
        if cpu_ns is not None:
            sample.cpu_ns = [*sample.cpu_ns, cpu_ns]


class Wires:
    """The calls of the library that the engine makes, on tensors of many sizes."""

    def __init__(self, job: Measuring, session: Session) -> None:
        self.world, self.rank, self.pause_s = session.world, session.rank, job.pause_s
        ranks = list(range(session.world))
        self.group = dist.new_group(ranks)
        self.exchange = Exchange(self.group, (dist.new_group(ranks), dist.new_group(ranks)) if session.world == 2 else None)
        self.rounds = 0
        self.watchers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="messages")
        self.kinds: dict[str, Callable[[int], Callable[[], list[Any]]]] = {
            "all_reduce": self._all_reduce,
            "all_gather": self._all_gather,
            "all_to_all": self._all_to_all,
        }
        if job.priority != "communication" and session.world == 2:
            self.kinds["send"] = self._send
        self.dtype: torch.dtype = DTYPES[job.precision]
        self.calls = {(kind, size): make(size) for kind, make in self.kinds.items() for size in job.sizes}

    # Sizes are what a rank sends: see `underlap.cost.testbed_prices.wire_bytes`.

    def _elements(self, nbytes: float) -> int:
        return max(1, round(nbytes / int(self.dtype.itemsize)))

    def _all_reduce(self, size: int) -> Callable[[], list[Any]]:
        tensor = torch.ones(self._elements(size * self.world / (2 * (self.world - 1))), dtype=self.dtype)
        return lambda: [dist.all_reduce(tensor.fill_(1.0), group=self.group, async_op=True)]

    def _all_gather(self, size: int) -> Callable[[], list[Any]]:
        own = torch.ones(self._elements(size / (self.world - 1)), dtype=self.dtype)
        whole = torch.empty(self.world, own.numel(), dtype=self.dtype)
        return lambda: self.exchange.all_gather(whole, own)

    def _all_to_all(self, size: int) -> Callable[[], list[Any]]:
        sent = torch.ones(self.world, self._elements(size / (self.world - 1)), dtype=self.dtype)
        got = torch.empty_like(sent)
        return lambda: self.exchange.all_to_all(got, sent)

    def _send(self, size: int) -> Callable[[], list[Any]]:
        tensor = torch.ones(self._elements(size), dtype=self.dtype)
        if self.rank == 0:
            return lambda: [dist.isend(tensor, 1, group=self.group, tag=1)]
        return lambda: [dist.irecv(tensor, 0, group=self.group, tag=1)]

    def all_once(self) -> None:
        for call in self.calls.values():
            for work in call():
                work.wait()

    def start(self, call: Callable[[], list[Any]]) -> Flight:
        begun = time.monotonic_ns()
        flight = Flight(begun, call(), 0, None)
        flight.watch(self.watchers)
        return flight

    def ready(self) -> None:
        """All ranks here, and the link idle for long enough."""
        dist.barrier()
        time.sleep(self.pause_s)
        dist.barrier()

    def timed(self, call: Callable[[], list[Any]], *, late: int | None = None) -> tuple[int, int]:
        """(ns from the last rank's begin to the last rank's end, CPU ns of this process). `late`: a rank that begins later."""
        self.ready()
        if late == self.rank:
            until = time.monotonic_ns() + _LATE_NS
            while time.monotonic_ns() < until:
                pass
        before = time.process_time_ns()
        flight = self.start(call)
        flight.wait()
        cpu = time.process_time_ns() - before
        return self._joint(flight.begun_ns, flight.done_ns), cpu

    def _joint(self, begun: int, done: int) -> int:
        """Ranks of one machine have one clock: from the last begin to the last end."""
        both = torch.tensor([begun, done], dtype=torch.int64)
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return max(1, int(both[1] - both[0]))

    def round(self, samples: Samples, only: set[tuple[str, int]] | None = None) -> None:
        """Each call twice: with all ranks at once, and with one of them late, which changes each time."""
        self.rounds += 1
        for (kind, size), call in self.calls.items():
            if only is None or (kind, size) in only:
                samples.add("transfer", kind, (size,), *self.timed(call))
                samples.add("late", kind, (size,), *self.timed(call, late=self.rounds % self.world))

    def two_at_once(self, repetitions: int) -> dict[str, list[float]]:
        """Of two that are issued at once: the end of the first over that of both."""
        found: dict[str, list[float]] = {}
        size = max(size for _, size in self.calls if size <= 2**20)
        for kind, make in self.kinds.items():
            calls = make(size), make(size)
            found[kind] = []
            for _ in range(max(3, repetitions // 2)):
                self.ready()
                flights = [self.start(call) for call in calls]
                for flight in flights:
                    flight.wait()
                ends = sorted(flight.done_ns - flights[0].begun_ns for flight in flights)
                found[kind].append(ends[0] / ends[1])
        return found


class Beside:
    """A chain of products beside an all-reduce, and both alone."""

    def __init__(self, wires: Wires, repetitions: int) -> None:
        self.wires, self.repetitions = wires, repetitions
        self.call = wires.kinds["all_reduce"](_BESIDE_BYTES)
        side = torch.ones(_BESIDE_SIDE, _BESIDE_SIDE, dtype=wires.dtype)
        result = torch.empty_like(side)
        self.product: Closure = lambda: void(torch.mm(side, side, out=result))

    def measured(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(max(5, self.repetitions)):
            transfer_ns, cpu_ns = self.wires.timed(self.call)
            before = self._chain_alone(_CHAIN)
            beside, meanwhile = self._chain_beside(transfer_ns)
            after = self._chain_alone(_CHAIN)
            if meanwhile:
                found["compute"].append(2 * meanwhile / (before + after))
            found["transfer"].append(beside / transfer_ns)
            found["cpu"].append(cpu_ns / transfer_ns)
        return found

    def _chain_alone(self, count: int) -> float:
        """ns per product."""
        self.product()
        dist.barrier()
        begin = time.monotonic_ns()
        for _ in range(count):
            self.product()
        return (time.monotonic_ns() - begin) / count

    def _chain_beside(self, transfer_ns: int) -> tuple[int, float | None]:
        """(ns of the transfer, ns per product while it ran); None where too few ran meanwhile."""
        self.wires.ready()
        flight = self.wires.start(self.call)
        begin = time.monotonic_ns()
        ends: list[int] = []
        while not flight.done_ns and len(ends) < 10_000 and time.monotonic_ns() - begin < 20 * transfer_ns:
            self.product()
            ends.append(time.monotonic_ns())
        flight.wait()
        inside = [end for end in ends if end <= flight.done_ns]
        per = (inside[-1] - begin) / len(inside) if len(inside) >= 3 else None
        return self.wires._joint(flight.begun_ns, flight.done_ns), per
