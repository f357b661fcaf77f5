"""What a rank does for `underlap calibrate`: times of the engine's own operations, of transfers, and of both side by side.

Small plans of many shapes are bound as `underlap run` binds them. In most of them nothing is sent, so that their computation is
timed while every rank computes and no thread of the library runs; in a few the transfers are carried out, for what the host
packs and unpacks. Transfers alone are the calls that the engine makes. Everything is repeated in turns, so that a drift of the
machine takes no side; what scatters by more than a tenth is repeated further while there is time, and counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import torch
import torch.distributed as dist

from underlap.cost.testbed import FORWARD_PHASES, WEIGHT_GROUPS
from underlap.cost.work import Attention, Gemm, Transfer
from underlap.plan import OpKind
from underlap.run.engine import Engine, Inputs
from underlap.run.machine import Closure
from underlap.run.measuring_transfers import Beside, Measuring, Sample, Samples, Small, Wires
from underlap.run.priority import scheduled
from underlap.run.program import Instruction
from underlap.run.session import Session
from underlap.run.times import Record
from underlap.run.weights import Seeded

WIDE = 0.10
"""A distance of the quartiles over the median above this is measured further."""
LEAST_NS = 200_000
"""Of operations that are: what is shorter scatters, and adds little."""


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
    with session.connected():
        session.doing = "making small plans"
        engines = [_engine(small, session) for small in job.plans]
        told(f"{len(engines)} small plans are made")
        wires = Wires(job, session)
        session.doing = "measuring"
        samples = Samples()
        with scheduled(job.priority):
            for engine in engines:  # the first step meets whatever is set up then
                engine.recorded_step()
            wires.all_once()
            beside = Beside(wires, job.repetitions).measured()
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


def _round(engine: Engine, samples: Samples) -> None:
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
        name = f"{started.work.collective}/{'weights' if started.group in WEIGHT_GROUPS else 'rows'}"  # type: ignore[union-attr]  # a transfer
        samples.add("pack", name, (size,), max(1, begun - record.begin_ns[issue]))
        samples.add("call", name, (size,), max(1, record.end_ns[issue] - begun))
        samples.add("finish", name, (size,), max(1, record.end_ns[at] - max(done, record.begin_ns[at])))


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
    return "stream", f"{phase}/{instruction.role}", (moved,)


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
    wires: Wires,
    samples: Samples,
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
                found[key].ns += sample.ns if sample.kind not in ("transfer", "late") else []
                found[key].cpu_ns = [*found[key].cpu_ns, *sample.cpu_ns]
    yield from found.values()


def _hand_in(
    session: Session,
    job: Measuring,
    samples: Samples,
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
