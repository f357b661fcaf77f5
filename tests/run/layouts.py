"""Many layouts in one launch: each rank runs them one after the other and leaves what it computed in a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from tests.run import reference
from tests.run.counting import Counter, added
from underlap import inputs
from underlap.ledger import ledger
from underlap.model import Model
from underlap.plan import OpKind
from underlap.planner import plan as planned
from underlap.run.checkpoint import Checkpoint
from underlap.run.engine import Engine, Inputs, batch_of, trains
from underlap.run.exchange import Exchange
from underlap.run.flight import size_of
from underlap.run.launch import Local, launch
from underlap.run.machine import Closure, Constants
from underlap.run.session import Session
from underlap.run.weights import Division, Parameters, Seeded
from underlap.schedule import apply
from underlap.workload import micro_batch_size, micro_batches

SEED = 3
FORWARD = ("forward", "prefill", "decode")

Logits = tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]
"""(sequence in the batch, position) of each row, the first of its tokens in the vocabulary, the rows."""

Results = list[dict[str, Any]]
"""Of each rank: what `run_one` found."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One plan to run."""

    model: str
    """A preset, with seeded weights, or a folder of Hugging Face."""
    layout: str
    workload: str
    policy: str = ""
    layers: int = 2

    @property
    def name(self) -> str:
        return f"{Path(self.model).name} {self.layout} {self.workload} {self.policy} {self.layers}".replace("/", "_")

    @property
    def world(self) -> int:
        return inputs.layout(self.layout).world


@dataclasses.dataclass(frozen=True)
class Cases:
    cases: tuple[Case, ...]
    folder: Path


CHANGED: dict[str, dict[str, Any]] = {
    "normed-heads": {"qk_norm": True, "head_dim": 16},
    "tied": {"tied_embeddings": True},
}
"""Models that no preset is: what of tiny-dense is different."""


def model_of(case: Case) -> Model:
    changed = CHANGED.get(case.model)
    model = inputs.model("tiny-dense" if changed else case.model)
    return msgspec.structs.replace(model, layers=case.layers, **(changed or {}))


def job_of(case: Case) -> Inputs:
    """What a rank has to know beside the plan."""
    model = model_of(case)
    parameters: Parameters = Seeded(SEED)
    constants = Constants()
    if Path(case.model).is_dir():
        parameters = found = Checkpoint(Path(case.model), model)
        constants = found.constants
    layout, work = inputs.layout(case.layout), inputs.workload(case.workload)
    return Inputs(model=model, layout=layout, workload=work, parameters=parameters, constants=constants)


@functools.cache
def made(case: Case) -> tuple[Any, Inputs, tuple[Any, ...]]:
    """(plan, what a rank has to know, what was refused). Kept, as several tests look at each case."""
    job = job_of(case)
    plan = planned(job.model, job.layout, job.workload, domain=8)
    applied = apply(plan, inputs.policy(case.policy))
    return applied.plan, job, applied.refused


def run_all(session: Session, asked: Cases) -> None:
    """The entry of a rank: cases of fewer ranks than were started run side by side, each on some of them."""
    # Those of all ranks come first: afterwards nobody waits for a part that has more to do.
    for world in sorted({case.world for case in asked.cases}, reverse=True):
        own = part_of(session, world)
        with own.connected():
            for case in [case for case in asked.cases if case.world == world][session.rank // world :: session.world // world]:
                session.doing = f"running {case.name}"
                run_case(own, case, asked.folder)


def part_of(session: Session, world: int) -> Session:
    """This rank's place among so many of those that were started, who know nothing of the others."""
    if world == session.world:
        return session
    assert session.world % world == 0
    store = dist.PrefixStore(f"{world} ranks from {session.rank // world * world}", session.store)
    return Session(store, session.rank % world, world, session.timeout_s)


def run_case(session: Session, case: Case, folder: Path) -> None:
    session.doing = f"running {case.name}"
    plan, job, refused = made(case)
    session.agree(f"plans of {case.name}", "same")
    try:
        found = run_one(session, plan, job)
    except (AssertionError, IndexError, KeyError, ValueError, TypeError) as error:
        import traceback

        raise RuntimeError(f"{case.name}: {traceback.format_exc()[-1500:]}".replace("\n", " | ")) from error
    found["refused"] = [refusal.reason for refusal in refused]
    torch.save(found, folder / f"{case.name} rank{session.rank}.pt")


def run_cases(folder: Path, cases: list[Case]) -> dict[Case, Results]:
    """The results of every rank of each case. In one launch, as loading torch takes longer than many cases."""
    ranks = max(case.world for case in cases)
    launch(run_all, [Cases(tuple(cases), folder)] * ranks, Local(ranks=ranks, timeout_s=120))
    return {
        case: [torch.load(folder / f"{case.name} rank{rank}.pt", weights_only=False) for rank in range(case.world)]
        for case in cases
    }


def identifier(case: Case) -> str:
    """What a test of a case is called."""
    return f"{case.model} {case.layout} {case.policy}{' recompute' if 'recompute' in case.workload else ''}"


def run_one(session: Session, plan: Any, job: Inputs) -> dict[str, Any]:
    engine = Engine(plan, job, session.rank, torch.device("cpu"), session.timeout_s)
    logits = watched(engine)
    kept: dict[str, int] = defaultdict(int)
    with Counter() as seen, noting_what_is_kept(kept):
        record = engine.recorded_step()
    gradients = {key: value.clone() for key, value in engine.tensors("gradient").items()}
    shards = {key: value.clone() for key, value in engine.tensors("gradient_shard").items()}
    found = {
        "loss": engine.loss() if trains(job) else None,
        "gradient": gradients,
        "gradient_shard": shards,
        "weight": {key: value.clone() for key, value in (engine.tensors("weight") | engine.tensors("shard")).items()},
        "logits": logits,
        "counted": engine.counted(),
        "seen": dict(seen.bytes),
        "kept": dict(kept),
        "place": {name: members.index(session.rank) for name, members in engine.program.members.items()},
        "uneven": seen.uneven,
        "control": engine.control(),
        "keys": [engine.program.instructions[row].key for row in record.flights],
        "planned": [one.key for one in engine.program.instructions if one.kind == 2],
        "losses_here": bool(engine.rank.losses),
        "tp_index": engine.rank.tp_index,
    }
    engine.close()
    return found


@contextlib.contextmanager
def noting_what_is_kept(kept: dict[str, int]) -> Iterator[None]:
    """Between two ranks, what a rank sends to itself never reaches torch: counted here by group."""
    real = Exchange.all_to_all

    def noted(self: Exchange, got: Any, sent: Any, here: Any = None, there: Any = None) -> list[Any]:
        if self.ways is not None and len(sent):
            rows = len(sent) // 2 if there is None else there[dist.get_rank(self.group)]
            kept[self.group.group_desc] += size_of(sent) // len(sent) * rows
        return real(self, got, sent, here, there)

    Exchange.all_to_all = noted  # type: ignore[method-assign]  # for a while
    try:
        yield
    finally:
        Exchange.all_to_all = real  # type: ignore[method-assign]  # as it was


def watched(engine: Engine) -> list[Logits]:
    """Filled as the engine runs: logits as they are made, for the loss, or the next step, is put over them."""
    found: list[Logits] = []

    def watching(closure: Closure, at: int) -> Closure:
        instruction = engine.program.instructions[at]
        operand = instruction.writes[0]
        count = micro_batch_size(engine.job.workload, engine.job.layout)
        before = engine.rank.data_index * micro_batches(engine.job.workload, engine.job.layout) + instruction.micro_batch
        per_sequence = engine.program.cells[operand.cell].shape[0] // count
        rows = torch.arange(operand.begin, operand.begin + operand.rows)
        position = engine.rank.positions.view(count, -1)[:, -per_sequence:].reshape(-1)[rows]

        def run() -> None:
            closure()
            values = engine.memory.view(operand).clone()
            found.append((before * count + rows // per_sequence, position, engine.rank.vocab_begin, values))

        return run

    for at, instruction in enumerate(engine.program.instructions):
        if instruction.role == "head.logits" and instruction.kind == OpKind.COMPUTE and instruction.phase in FORWARD:
            engine.closures[at] = watching(engine.closures[at], at)
    return found


def expected(case: Case) -> tuple[float, reference.Full]:
    """(loss, gradients) of the reference, for the whole batch."""
    return _expected(dataclasses.replace(case, layout="", policy=""))


@functools.cache
def _expected(case: Case) -> tuple[float, reference.Full]:
    job = job_of(case)
    model = job.model
    full = {
        key: job.parameters.part(*key, shape, 0, 0, shape[0]).requires_grad_()
        for key, shape in reference.full_shapes(model).items()
    }
    found = reference.loss(model, full, batch_of(job))
    found.backward()
    return float(found.detach()), {key: value.grad for key, value in full.items() if value.grad is not None}


def expected_logits(case: Case) -> torch.Tensor:
    """(sequences, positions, vocab), of the reference."""
    return _expected_logits(dataclasses.replace(case, layout="", policy=""))


@functools.cache
def _expected_logits(case: Case) -> torch.Tensor:
    job = job_of(case)
    full = {key: job.parameters.part(*key, shape, 0, 0, shape[0]) for key, shape in reference.full_shapes(job.model).items()}
    return reference.logits(job.model, full, batch_of(job)[:, :-1])


def differences(case: Case, results: list[dict[str, Any]], gradients: Parameters | reference.Full) -> dict[str, float]:
    """Of each gradient on each rank: the largest difference over the largest expected value."""
    _, job, _ = made(case)
    whole = reference.Tensors(gradients) if isinstance(gradients, dict) else gradients
    found: dict[str, float] = {}
    for rank, result in enumerate(results):
        division = Division(job.model, job.layout, rank, whole)
        sharded = {name for name, _ in result["gradient_shard"]}
        for kind in ("gradient", "gradient_shard"):
            for (name, layer), value in result[kind].items():
                if kind == "gradient" and name in sharded:
                    continue
                wanted = division.local(name, layer)
                if kind == "gradient_shard":
                    group = _shard_group(case, rank, expert=name in ("experts.up", "experts.down"))
                    part = wanted.reshape(-1)[group.index(rank) * value.numel() :][: value.numel()]
                    found[f"{name}@{layer} rank {rank}"] = relative(value[: part.numel()], part)
                    continue
                found[f"{name}@{layer} rank {rank}"] = relative(value.reshape(wanted.shape), wanted)
    return found


def relative(value: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference over the largest wanted value."""
    return float((value - wanted).abs().max()) / (float(wanted.abs().max()) or 1.0)


def weights_of(results: Results) -> set[str]:
    """The names of all weights that some rank of the plan keeps, whole or in shards."""
    return {name for result in results for name, _ in result["weight"]}


def logits_difference(results: Results, wanted: torch.Tensor) -> float:
    """The largest difference over the largest wanted value; wanted is (sequences, positions, vocab), of which ranks have parts.

    Training makes all of them, prefill those of last positions.
    """
    missing = torch.ones(wanted.shape, dtype=torch.bool)
    largest = 0.0
    for result in results:
        for sequence, position, first, values in result["logits"]:
            part = slice(first, first + values.shape[1])
            missing[sequence, position, part] = False
            largest = max(largest, float((values - wanted[sequence, position, part]).abs().max()))
    prompts = results[0]["loss"] is None
    assert not (missing[:, -1] if prompts else missing).any()
    return largest / float(wanted.abs().max())


def _shard_group(case: Case, rank: int, *, expert: bool) -> list[int]:
    plan, job, _ = made(case)
    group = plan.groups["expert_fsdp" if expert else "fsdp"]
    return next(row for row in job.layout.groups(*group.axis).tolist() if rank in row)


def total_loss(case: Case, results: list[dict[str, Any]]) -> float:
    """Each part of the batch counted once: of tp ranks, which have the same, the first."""
    return sum(result["loss"] for result in results if result["tp_index"] == 0)


def planned_bytes(case: Case) -> dict[tuple[str, str], float]:
    return {(entry.group, entry.collective): entry.payload_bytes for entry in ledger(made(case)[0])}


def counted_bytes(results: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return added([result["counted"] for result in results])
