"""What a rank does for `underlap run`: build its plans, run them in turns, write its records, hand in what it saw."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from underlap.plan import OpKind
from underlap.run import serving
from underlap.run.backend import place
from underlap.run.checkpoint import Checkpoint
from underlap.run.core import Core
from underlap.run.engine import Engine, Inputs, trains
from underlap.run.job import BOTH, LEAST_IN_BOTH, MOST_IN_BOTH, HandedIn, Job, Seen, SeenCeiling, steps_of
from underlap.run.launch import local_rank
from underlap.run.machine import Constants
from underlap.run.meter import Meter
from underlap.run.priority import scheduled
from underlap.run.program import digest
from underlap.run.recording import document, document_of_steps, encoded, host_share, keys
from underlap.run.results import First, Last
from underlap.run.session import Session
from underlap.run.stepping import Stepper
from underlap.run.times import Record
from underlap.run.timing import RankTimes, arrivals, begins, times, typical
from underlap.run.weights import Parameters, Seeded
from underlap.trial import LeftOut
from underlap.workload import Decode

WARM_UP = 2
PROFILED = 6
"""Steps under torch.profiler; the first ones meet whatever it sets up."""

RECORDED = 3
"""Steps in the record of a plain run: the last ones."""


def work_each(session: Session, jobs: Sequence[Job]) -> None:
    """The entry of a rank that was started here."""
    for number, job in enumerate(jobs):
        session.begin(f"job{number}")
        work(session, job)


def work(session: Session, job: Job) -> None:
    """One job, from the first meeting to the last."""
    parameters, constants = _parameters(job)
    inputs = Inputs(
        model=job.model,
        layout=job.layout,
        workload=job.workload,
        parameters=parameters,
        constants=constants,
        seed=job.seed,
    )
    session.agree("settings", job.text)
    for name, plan in job.plans:
        session.agree(f"plans ({name})", digest(plan))
    if job.prompt is not None:
        session.agree("plans (prompt)", digest(job.prompt[1]))
    with session.connected():
        device = place(job.device, local_rank(dict(os.environ), session.rank))
        prompt = _prompt(session, job, inputs, device)
        session.doing = "loading weights"
        engines = {name: Engine(plan, inputs, session.rank, device, session.timeout_s) for name, plan in job.plans}
        if prompt is not None:
            for engine in engines.values():
                serving.start(engine, prompt)
        told = _Progress(session.rank, job)
        records: dict[str, list[Record]] = {name: [] for name in engines}
        meter = Meter(job.interface)
        step = Stepper(session, meter, None if job.share_cores else Core.own())
        try:
            with scheduled(job.priority):
                firsts = _warmed(step, engines, told)
                if job.graph:
                    _captured(step, engines)
                session.doing = "counting the bytes of a barrier"
                meter.learn_idle()
                _measured(step, job, engines, records, told)
                last = {name: Last.of(engine) for name, engine in engines.items()}
                ceilings = _ceilings(step, job, engines, told)
        except BaseException:
            _keep(job, engines, records)
            raise
        _finish(session, job, engines, records, _Results(firsts, last, ceilings), meter)
        for engine in engines.values():
            engine.lanes.release()


def _prompt(session: Session, job: Job, inputs: Inputs, device: torch.device) -> serving.Prompt | None:
    """What a decode goes on from, with the weights that it will have; this engine's memory is given back before it."""
    if job.prompt is None:
        return None
    session.doing = "prefilling the prompts of the decode"
    workload, plan = job.prompt
    return serving.prefilled(plan, dataclasses.replace(inputs, workload=workload), session.rank, device, session.timeout_s)


def _parameters(job: Job) -> tuple[Parameters, Constants]:
    if job.checkpoint is None:
        return Seeded(job.seed), Constants()
    found = Checkpoint(job.checkpoint, job.model)
    return found, found.constants


def _warmed(step: Stepper, engines: dict[str, Engine], told: _Progress) -> dict[str, First]:
    """Steps that are not measured; of the first, what came out, as all plans start from the same weights."""
    firsts = {}
    for number in range(WARM_UP):
        for name, engine in engines.items():
            step(engine, f"warm-up step {number + 1} of {name}")
            if number == 0:
                firsts[name] = First.of(engine)
            told(f"{name}: warm-up {number + 1} of {WARM_UP}")
    return firsts


def _captured(step: Stepper, engines: dict[str, Engine]) -> None:
    for name, engine in engines.items():
        step.session.doing = f"capturing a graph of {name}"
        dist.barrier()
        engine.capture()
        step(engine, f"first launch of the graph of {name}")


@dataclasses.dataclass(frozen=True)
class _Results:
    """What this rank has to hand in beside its records."""

    firsts: dict[str, First]
    last: dict[str, Last]
    ceilings: list[SeenCeiling]


def _measured(step: Stepper, job: Job, engines: dict[str, Engine], records: dict[str, list[Record]], told: _Progress) -> None:
    """All plans in turns; which goes first changes each time, so that a drift of the machine takes no side."""
    names = list(engines)
    for number in range(job.repetitions):
        for name in names if number % 2 == 0 else reversed(names):
            doing = f"step {number + 1} of {name}"
            record = step(engines[name], doing)
            step.session.doing = f"ending {doing}"
            step.meter.end(name)
            records[name].append(record)
            text = f"{name}: step {number + 1} of {job.repetitions}, {record.duration_ns / 1e6:.1f} ms on rank 0"
            told(text, always=number + 1 == job.repetitions)


def _ceilings(step: Stepper, job: Job, engines: dict[str, Engine], told: _Progress) -> list[SeenCeiling]:
    """Steps with something left out in turns with steps as planned. This rank's times so far."""
    found = []
    for name, left_out in job.ceilings:
        seen = SeenCeiling(plan=name, left_out=left_out, step_ns=[], planned_ns=[])
        for number in range(job.repetitions):
            turns: list[LeftOut | None] = [None, left_out] if number % 2 == 0 else [left_out, None]
            for left in turns:
                doing = f"step {number + 1} of {name}" + (f" without {left}" if left else ", once more")
                if left_out == "half_transfers":
                    _at_rates(job, 2.0 if left else 1.0, step.session.rank)
                record = step(engines[name], doing, left)
                (seen.planned_ns if left is None else seen.step_ns).append(record.duration_ns)
            told(f"{name} without {left_out}: step {number + 1} of {job.repetitions}", always=number + 1 == job.repetitions)
        if left_out == "half_transfers":
            _at_rates(job, 1.0, step.session.rank)
        found.append(seen)
    return found


def _at_rates(job: Job, factor: float, rank: int) -> None:
    """Give all links so many times their rate, once nothing of the last step is on them."""
    assert job.fabric is not None
    dist.barrier()
    job.fabric.scale(rank, factor)


def _of_slowest(session: Session, durations: list[int]) -> list[int]:
    """Of each repetition."""
    return [max(each) for each in zip(*session.gathered(durations), strict=True)]


def _core(engines: dict[str, Engine], records: dict[str, list[Record]]) -> float | None:
    """What communication takes of this rank's core in a step. In a comparison of the baseline, which sends the same bytes: where
    a thread computes meanwhile, what the kernel does for the links counts as that thread's."""
    taken = [record.core_ns for record in records[next(iter(engines))]]
    known = [each for each in taken if each is not None]
    return max(statistics.mean(known), 0.0) if known and len(known) == len(taken) else None


def _finish(
    session: Session,
    job: Job,
    engines: dict[str, Engine],
    records: dict[str, list[Record]],
    results: _Results,
    meter: Meter,
) -> None:
    """Write the records, and have rank 0 write what all saw."""
    seen = []
    idle = [sum(values) for values in zip(*session.gathered((meter.idle.sent_payload, meter.idle.received_payload)), strict=True)]
    core = _core(engines, records)
    for name, engine in engines.items():
        last = results.last[name]
        steps = _of_slowest(session, [record.duration_ns for record in records[name]])
        timed = _times(session, job, engine, records[name])
        middle = typical(steps, [each.accounts for each in timed])
        shown = records[name][-RECORDED:] if len(engines) == 1 else [records[name][middle]]
        trace = _write(job, name, engine, shown, core)
        if name in job.each_step:
            _write_each(job, name, engine, records[name], core)
        counted: dict[tuple[str, str], int] = sum(map(Counter, session.gathered(last.counted)), Counter())
        control: dict[tuple[str, str, str], int] = sum(map(Counter, session.gathered(last.control)), Counter())
        shares = session.gathered(statistics.mean(host_share(engine.program, record) for record in records[name]))
        own_passed = [(each.sent_payload, each.received_payload) for each in meter.passed.get(name, [])]
        passed = [[sum(values) for values in zip(*step, strict=True)] for step in zip(*session.gathered(own_passed), strict=True)]
        seen.append(
            Seen(
                name=name,
                step_ns=steps,
                host_issue_share=statistics.mean(shares),
                counted=[(*key, size) for key, size in counted.items()],
                control=[(*key, size) for key, size in control.items()],
                unmatched_keys=sum(session.gathered(unmatched(engine, trace, len(shown)))),
                loss=sum(session.gathered(last.loss)) if trains(engine.job) else None,
                tokens=_tokens(session, engine, last),
                typical=middle,
                times=timed,
                sent=[sent - idle[0] for sent, _ in passed],
                received=[received - idle[1] for _, received in passed],
            )
        )
    both = all(session.gathered(_comparable(engines)))
    if both:
        _write_both(job, engines, records, core)
    if job.profile:
        _profile(session, job, engines)
    for ceiling in results.ceilings:
        ceiling.step_ns = _of_slowest(session, ceiling.step_ns)
        ceiling.planned_ns = _of_slowest(session, ceiling.planned_ns)
    pair = list(results.firsts.values())
    found = session.gathered(pair[0].difference(pair[-1]))
    if session.rank == 0:
        outcome = HandedIn(
            seen=seen,
            both=both,
            barrier_bytes=idle[0],
            ceilings=results.ceilings,
            output_difference=max(one for one, _ in found),
            gradient_difference=max(one for _, one in found) if trains(next(iter(engines.values())).job) else None,
        )
        job.outcome.write_bytes(msgspec.json.encode(outcome))
    session.gathered(None)


def _times(session: Session, job: Job, engine: Engine, records: list[Record]) -> list[RankTimes]:
    """Of all ranks. Machines have clocks of their own: when the last rank came is known on one machine only."""
    came = session.gathered(begins(engine.program, records))
    one_machine = len(set(session.gathered(socket.gethostname()))) == 1
    arrived = arrivals(engine.program, came) if one_machine else None
    return session.gathered(times(engine.program, records, arrived, each=job.timed))


def _tokens(session: Session, engine: Engine, last: Last) -> list[int] | None:
    """Of a decode: what its last step chose for each sequence of the batch."""
    if not isinstance(engine.job.workload, Decode):
        return None
    by_index = dict(session.gathered((engine.rank.data_index, last.chosen)))
    return [token for index in sorted(by_index) for token in by_index[index]]


def unmatched(engine: Engine, trace: dict[str, Any], steps: int) -> int:
    """Structural keys of planned issues and computations without a recorded event, and the other way round."""
    kinds = {0: ("compute",), 1: ("compute",), 2: ("issue", "transfer"), 3: ("wait",)}
    planned = [(what, one.key) for one in engine.program.instructions for what in kinds[int(one.kind)]] * steps
    recorded = keys(trace)
    left: dict[tuple[str, str], int] = {}
    for key in planned:
        left[key] = left.get(key, 0) + 1
    for key in recorded:
        left[key] = left.get(key, 0) - 1
    return sum(abs(count) for count in left.values())


def _write(job: Job, name: str, engine: Engine, shown: list[Record], core: float | None = None) -> dict[str, Any]:
    trace = document(engine.program, shown, job.workload.precision, engine.memory.device.index or 0, core)
    _put(job.folder / name, engine.program.rank, trace)
    return trace


def _write_each(job: Job, name: str, engine: Engine, records: list[Record], core: float | None) -> None:
    """Every step by itself."""
    for number, record in enumerate(records):
        trace = document(engine.program, [record], job.workload.precision, core_ns=core)
        _put(steps_of(job.folder, name) / str(number), engine.program.rank, trace)


def _comparable(engines: dict[str, Engine]) -> bool:
    """Two plans that compute the same by structural key, as where a pass only moves operations and cuts none into parts. On a
    device the ids of a trace are those of one plan."""
    computed = {
        frozenset(one.key for one in engine.program.instructions if one.kind == OpKind.COMPUTE) for engine in engines.values()
    }
    return len(engines) > 1 and len(computed) == 1 and all(engine.memory.device.type == "cpu" for engine in engines.values())


def _write_both(job: Job, engines: dict[str, Engine], records: dict[str, list[Record]], core: float | None) -> None:
    """Steps with overlap and without in one trace: what computes beside communication in some and alone in others."""
    count = max(LEAST_IN_BOTH, MOST_IN_BOTH // sum(len(engine.program.instructions) for engine in engines.values()))
    steps = [(engine, record) for name, engine in engines.items() for record in records[name][-count:]]
    steps.sort(key=lambda step: step[1].started_ns)
    trace = document_of_steps([(engine.program, record) for engine, record in steps], job.workload.precision, core_ns=core)
    _put(job.folder / BOTH, steps[0][0].program.rank, trace)


def _put(folder: Path, rank: int, trace: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{rank}.json"
    # A rank that is killed here must not leave half a trace.
    half = path.with_suffix(".part")
    half.write_text(encoded(trace))
    half.replace(path)


def _keep(job: Job, engines: dict[str, Engine], records: dict[str, list[Record]]) -> None:
    """After a failure: the steps that this rank has a record of, and the one that failed."""
    if threading.current_thread() is threading.main_thread():
        # torchrun asks to end as soon as another rank has: that must not cut off what is written here.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for name, engine in engines.items():
        kept = [*records[name][-RECORDED:], *([engine.failed] if engine.failed else [])]
        if kept:
            _write(job, name, engine, kept)


def _profile(session: Session, job: Job, engines: dict[str, Engine]) -> None:
    """The same steps once more under torch.profiler, each with a record of its own beside the trace."""
    for name, engine in engines.items():
        folder = job.folder / f"{name}-profile"
        folder.mkdir(parents=True, exist_ok=True)
        session.doing = f"profiling {name}"
        dist.barrier()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if engine.memory.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            # No barrier in between: it would be communication that the records do not have.
            shown = []
            for number in range(PROFILED):
                with torch.profiler.record_function(f"ProfilerStep#{number}"):
                    shown.append(engine.recorded_step())
        profiler.export_chrome_trace(str(folder / f"rank{session.rank}.json"))
        _write(job, f"{name}-profiled", engine, shown)


class _Progress:
    """What rank 0 says on standard error."""

    def __init__(self, rank: int, job: Job) -> None:
        self.silent = rank != 0 or job.quiet
        self.said = 0.0

    def __call__(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if not self.silent and (always or now - self.said > 0.2):
            self.said = now
            sys.stderr.write(f"underlap run: {text}\n")
            sys.stderr.flush()
