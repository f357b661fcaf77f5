"""What a rank does for `underlap calibrate`: times of the engine's own operations, of transfers, and of both side by side.

Small plans of many shapes are bound as `underlap run` binds them. In most of them nothing is sent, so that their computation is
timed while every rank computes and no thread of the library runs; in a few the transfers are carried out, for what the host
packs and unpacks. Transfers alone are the calls that the engine makes. Everything is repeated in turns, so that a drift of the
machine takes no side; what scatters by more than a tenth is repeated further while there is time, and counted.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from underlap.cost.testbed import FORWARD_PHASES
from underlap.cost.work import Attention, Gemm, Stream, Transfer
from underlap.layout import Layout
from underlap.model import Model
from underlap.plan import OpKind, Plan
from underlap.run.communication import Flight
from underlap.run.engine import Engine, Inputs
from underlap.run.machine import DTYPES, Closure
from underlap.run.priority import Priority, scheduled
from underlap.run.program import Instruction
from underlap.run.recording import Record
from underlap.run.session import Session
from underlap.run.weights import Seeded
from underlap.workload import Workload

WIDE = 0.10
"""A distance of the quartiles over the median above this is measured further."""
LEAST_NS = 200_000
"""Of operations that are: what is shorter scatters, and adds little."""
_BESIDE_BYTES = 2 * 2**20
_BESIDE_SIDE = 256
_CHAIN = 50
_PAUSE_S = 0.004


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
    """product, attention, stream, transfer, pack, call, finish."""
    name: str
    size: tuple[float, ...]
    """product: m, n, k, groups; attention: batch, heads, query, context, head_dim; else bytes."""
    ns: list[int]
    cpu_ns: list[int] = []
    """Of transfers: CPU time of the process meanwhile."""


class Measurements(msgspec.Struct, kw_only=True):
    """What rank 0 hands in."""

    samples: list[Sample]
    between_ns: list[int]
    compute_stretch: list[float]
    transfer_stretch: list[float]
    beside_cpu_share: list[float]
    first_of_two: dict[str, list[float]]
    """Per collective: when the first of two that were issued at once was done, over when both were."""
    repeated: int
    """Repetitions beyond the asked ones, as spreads were wide."""
    torch: str


def measure(session: Session, job: Measuring) -> None:
    """The entry of a rank."""
    told = _told(session.rank, job)
    deadline = time.monotonic() + job.budget_s
    # The computing thread's from the begin: on a busy machine making the plans would take longest.
    with scheduled(job.priority), session.connected():
        session.doing = "making small plans"
        engines = [_engine(small, session) for small in job.plans]
        told(f"{len(engines)} small plans are made")
        wires = _Wires(job, session)
        session.doing = "measuring"
        samples = _Samples()
        with scheduled(job.priority):
            for engine in engines:  # the first step meets whatever is set up then
                engine.recorded_step()
            wires.all_once()
            beside = _Beside(wires, job.repetitions).measured()
            first_of_two = wires.two_at_once(job.repetitions)
            told("side by side")
            for number in range(job.repetitions):
                for engine in engines:
                    _round(engine, samples)
                wires.round(samples)
                told(f"repetition {number + 1} of {job.repetitions}")
                if _agreed(time.monotonic() > deadline, session) and number >= 2:
                    break
            repeated = _further(session, engines, wires, samples, deadline, job.repetitions, told)
        _hand_in(session, job, samples, beside, first_of_two, repeated)


def _agreed(own: bool, session: Session) -> bool:
    """Rank 0's answer, as all have to go on together."""
    answer = torch.tensor([int(own)])
    dist.broadcast(answer, 0)
    session.doing = "measuring"
    return bool(answer.item())


def _told(rank: int, job: Measuring) -> Callable[[str], None]:
    begun = time.monotonic()

    def say(text: str) -> None:
        if rank == 0 and not job.quiet:
            sys.stderr.write(f"underlap calibrate: {time.monotonic() - begun:.0f} s: {text}\n")
            sys.stderr.flush()

    return say


# ---- the engine's operations


class _Silent(Engine):
    """Nothing is sent: what would come is whatever lies there."""

    def _bind(self, at: int) -> Closure:
        if self.program.instructions[at].kind in (OpKind.ISSUE, OpKind.WAIT):
            return lambda: None
        return super()._bind(at)


def _engine(small: Small, session: Session) -> Engine:
    inputs = Inputs(model=small.model, layout=small.layout, workload=small.workload, parameters=Seeded(0))
    kind = Engine if small.sends else _Silent
    return kind(small.plan, inputs, session.rank, torch.device("cpu"), session.timeout_s)


class _Samples:
    """Times by what was timed."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, tuple[float, ...]], Sample] = {}
        self.between_ns: list[int] = []

    def add(self, kind: str, name: str, size: tuple[float, ...], ns: int, cpu_ns: int | None = None) -> None:
        sample = self.found.setdefault((kind, name, size), Sample(kind=kind, name=name, size=size, ns=[]))
        sample.ns.append(ns)
        if cpu_ns is not None:
            sample.cpu_ns = [*sample.cpu_ns, cpu_ns]


def _round(engine: Engine, samples: _Samples) -> None:
    dist.barrier()
    record = engine.recorded_step()
    if isinstance(engine, _Silent):
        samples.between_ns.append(_between(engine, record))
        for at, instruction in enumerate(engine.program.instructions):
            named = _named(instruction)
            if named is not None:
                samples.add(*named, record.end_ns[at] - record.begin_ns[at])
        return
    issued = {instruction.row: (at, instruction) for at, instruction in enumerate(engine.program.instructions)}
    for at, instruction in enumerate(engine.program.instructions):
        if instruction.kind != OpKind.WAIT:
            continue
        issue, started = issued[instruction.issue]
        begun, done, size = record.flights[instruction.issue]
        name = f"{started.work.collective}/{'weights' if _of_weights(started) else 'rows'}"  # type: ignore[union-attr]  # a transfer
        samples.add("pack", name, (size,), max(1, begun - record.begin_ns[issue]))
        samples.add("call", name, (size,), max(1, record.end_ns[issue] - begun))
        samples.add("finish", name, (size,), max(1, record.end_ns[at] - max(done, record.begin_ns[at])))


def _of_weights(instruction: Instruction) -> bool:
    return instruction.group in ("fsdp", "dp", "expert_fsdp", "expert_dp")


def _between(engine: Engine, record: Record) -> int:
    """From one operation to the next, mean over a step: clocks and the calls themselves."""
    inside = sum(end - begin for begin, end in zip(record.begin_ns, record.end_ns, strict=True))
    return int(max(1, (record.duration_ns - inside) // len(engine.program.instructions)))


def _named(instruction: Instruction) -> tuple[str, str, tuple[float, ...]] | None:
    """(kind, name, size) of an operation that computes."""
    work = instruction.work
    if work is None or isinstance(work, Transfer) or instruction.kind in (OpKind.ISSUE, OpKind.WAIT):
        return None
    phase = "forward" if instruction.phase in FORWARD_PHASES else instruction.phase
    if isinstance(work, Gemm):
        grouped = "experts." if instruction.role.startswith("experts.") else ""
        return "product", f"{grouped}{phase}", (work.batch * work.m, work.n, work.k, work.group_count)
    if isinstance(work, Attention):
        size = (work.batch, work.heads, work.query, work.context, work.head_dim)
        return "attention", "backward" if work.backward else phase, size
    moved = work.read_bytes + work.write_bytes
    return "stream", f"{phase}/{instruction.role}", (moved,) if isinstance(work, Stream) else (moved,)


# ---- transfers


class _Wires:
    """The calls of the library that the engine makes, on tensors of many sizes."""

    def __init__(self, job: Measuring, session: Session) -> None:
        self.world, self.rank, self.pause_s = session.world, session.rank, job.pause_s
        self.group = dist.new_group(list(range(session.world)))
        self.watchers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="messages")
        self.kinds: dict[str, Callable[[int], Callable[[], list[Any]]]] = {
            "all_reduce": self._all_reduce,
            "all_gather": self._all_gather,
            "all_to_all": self._all_to_all,
        }
        if job.priority != "communication" and session.world == 2:
            self.kinds["send"] = self._send
        self.dtype = DTYPES[job.precision]
        self.calls = {(kind, size): make(size) for kind, make in self.kinds.items() for size in job.sizes}

    # Sizes are what a rank sends: see `underlap.cost.testbed.wire_bytes`.

    def _elements(self, nbytes: float) -> int:
        return max(1, round(nbytes / self.dtype.itemsize))

    def _all_reduce(self, size: int) -> Callable[[], list[Any]]:
        tensor = torch.ones(self._elements(size * self.world / (2 * (self.world - 1))), dtype=self.dtype)
        return lambda: [dist.all_reduce(tensor.fill_(1.0), group=self.group, async_op=True)]

    def _all_gather(self, size: int) -> Callable[[], list[Any]]:
        own = torch.ones(self._elements(size / (self.world - 1)), dtype=self.dtype)
        whole = torch.empty(self.world * own.numel(), dtype=self.dtype)
        return lambda: [dist.all_gather_single(whole, own, group=self.group, async_op=True)]

    def _all_to_all(self, size: int) -> Callable[[], list[Any]]:
        sent = torch.ones(self.world, self._elements(size / (self.world - 1)), dtype=self.dtype)
        got = torch.empty_like(sent)
        return lambda: [dist.all_to_all_single(got, sent, group=self.group, async_op=True)]

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

    def timed(self, call: Callable[[], list[Any]]) -> tuple[int, int]:
        """(ns from the last rank's begin to the last rank's end, CPU ns of this process)."""
        self.ready()
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

    def round(self, samples: _Samples, only: set[tuple[str, int]] | None = None) -> None:
        """Each call once."""
        for (kind, size), call in self.calls.items():
            if only is None or (kind, size) in only:
                samples.add("transfer", kind, (size,), *self.timed(call))

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


class _Beside:
    """A chain of products beside an all-reduce, and both alone."""

    def __init__(self, wires: _Wires, repetitions: int) -> None:
        self.wires, self.repetitions = wires, repetitions
        self.call = wires.kinds["all_reduce"](_BESIDE_BYTES)
        side = torch.ones(_BESIDE_SIDE, _BESIDE_SIDE, dtype=wires.dtype)
        result = torch.empty_like(side)
        self.product: Closure = lambda: _drop(torch.mm(side, side, out=result))

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


def _drop(_: object) -> None:
    """A closure returns nothing."""


# ---- repeating and handing in


def _spread(ns: list[int]) -> float:
    """Distance of the quartiles over the median."""
    if len(ns) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(ns, n=4)
    return (high - low) / middle


def _further(
    session: Session,
    engines: list[Engine],
    wires: _Wires,
    samples: _Samples,
    deadline: float,
    most: int,
    told: Callable[[str], None],
) -> int:
    """Repeat the transfers, and the plans, whose times scatter too much. Returns how many repetitions that took."""
    count = 0
    while count < most and not _agreed(time.monotonic() > deadline, session):
        wide = [sample for sample in samples.found.values() if _spread(sample.ns) > WIDE]
        transfers = {(sample.name, int(sample.size[0])) for sample in wide if sample.kind == "transfer"}
        computing = any(
            sample.kind in ("product", "attention", "stream") and statistics.median(sample.ns) > LEAST_NS for sample in wide
        )
        # What rank 0 finds wide is repeated, as all have to do the same.
        chosen: list[tuple[list[tuple[str, int]], bool] | None] = [(sorted(transfers), computing)]
        dist.broadcast_object_list(chosen, 0)
        assert chosen[0] is not None
        names, again = chosen[0]
        if not names and not again:
            break
        if again:
            for engine in engines:
                if isinstance(engine, _Silent):
                    _round(engine, samples)
        wires.round(samples, {(name, size) for name, size in names})
        count += 1
    if count:
        told(f"{count} further repetitions, as some times scattered by more than {100 * WIDE:.0f} %")
    return count


def _pooled(own: list[Sample], session: Session) -> Iterator[Sample]:
    """The samples of all ranks together."""
    found: dict[tuple[str, str, tuple[float, ...]], Sample] = {}
    for samples in session.gathered(own):
        for sample in samples:
            key = sample.kind, sample.name, tuple(sample.size)
            if key not in found:
                found[key] = sample
            else:
                # All ranks have the same time of a transfer.
                found[key].ns += sample.ns if sample.kind != "transfer" else []
                found[key].cpu_ns = [*found[key].cpu_ns, *sample.cpu_ns]
    yield from found.values()


def _hand_in(
    session: Session,
    job: Measuring,
    samples: _Samples,
    beside: dict[str, list[float]],
    first_of_two: dict[str, list[float]],
    repeated: int,
) -> None:
    pooled = list(_pooled(list(samples.found.values()), session))
    between = [ns for each in session.gathered(samples.between_ns) for ns in each]
    found = list(session.gathered(dict(beside)))
    if session.rank == 0:
        outcome = Measurements(
            samples=pooled,
            between_ns=between,
            compute_stretch=[value for each in found for value in each.get("compute", [])],
            transfer_stretch=beside["transfer"],
            beside_cpu_share=[value for each in found for value in each["cpu"]],
            first_of_two=first_of_two,
            repeated=repeated,
            torch=str(torch.__version__),
        )
        job.outcome.write_bytes(msgspec.json.encode(outcome))
    session.gathered(None)
