"""Many layouts in one launch: each rank runs them one after the other and leaves what it computed in a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import torch

from tests.run import reference
from tests.run.counting import Counter, added
from underlap import inputs
from underlap.ledger import ledger
from underlap.model import Model
from underlap.planner import plan as planned
from underlap.run.engine import Engine, Inputs, batch_of, trains
from underlap.run.launch import Local, launch
from underlap.run.session import Session
from underlap.run.weights import Division, Seeded
from underlap.schedule import apply

SEED = 3

Results = list[dict[str, Any]]
"""Of each rank: what `run_one` found."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One plan to run."""

    model: str
    layout: str
    workload: str
    policy: str = ""
    layers: int = 2

    @property
    def name(self) -> str:
        return f"{self.model} {self.layout} {self.workload} {self.policy} {self.layers}".replace("/", "_")


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


def made(case: Case) -> tuple[Any, Inputs, tuple[Any, ...]]:
    """(plan, what a rank has to know, what was refused)."""
    model, layout, work = model_of(case), inputs.layout(case.layout), inputs.workload(case.workload)
    plan = planned(model, layout, work, domain=8)
    applied = apply(plan, inputs.policy(case.policy))
    job = Inputs(model=model, layout=layout, workload=work, parameters=Seeded(SEED))
    return applied.plan, job, applied.refused


def run_all(session: Session, asked: Cases) -> None:
    """The entry of a rank."""
    with session.connected():
        for case in asked.cases:
            run_case(session, case, asked.folder)


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


def run_cases(folder: Path, ranks: int, cases: list[Case]) -> dict[Case, Results]:
    """The results of every rank of each case, in one launch."""
    launch(run_all, [Cases(tuple(cases), folder)] * ranks, Local(ranks=ranks, timeout_s=30))
    return {
        case: [torch.load(folder / f"{case.name} rank{rank}.pt", weights_only=False) for rank in range(ranks)] for case in cases
    }


def identifier(case: Case) -> str:
    """What a test of a case is called."""
    return f"{case.model} {case.layout} {case.policy}{' recompute' if 'recompute' in case.workload else ''}"


def run_one(session: Session, plan: Any, job: Inputs) -> dict[str, Any]:
    engine = Engine(plan, job, session.rank, torch.device("cpu"), session.timeout_s)
    with Counter() as seen:
        record = engine.recorded_step()
    gradients = {key: value.clone() for key, value in engine.tensors("gradient").items()}
    shards = {key: value.clone() for key, value in engine.tensors("gradient_shard").items()}
    found = {
        "loss": engine.loss() if trains(job) else None,
        "gradient": gradients,
        "gradient_shard": shards,
        "weight": {key: value.clone() for key, value in (engine.tensors("weight") | engine.tensors("shard")).items()},
        "logits": [value.clone() for value in engine.last("logits")] if not trains(job) else [],
        "counted": engine.counted(),
        "seen": dict(seen.bytes),
        "uneven": seen.uneven,
        "control": engine.control(),
        "keys": [engine.program.instructions[row].key for row in record.flights],
        "planned": [one.key for one in engine.program.instructions if one.kind == 2],
        "losses_here": bool(engine.rank.losses),
        "tp_index": engine.rank.tp_index,
    }
    engine.close()
    return found


def expected(case: Case) -> tuple[float, reference.Full]:
    """(loss, gradients) of the reference, for the whole batch."""
    _, job, _ = made(case)
    model = job.model
    full = {
        key: job.parameters.part(*key, shape, 0, 0, shape[0]).requires_grad_()
        for key, shape in reference.full_shapes(model).items()
    }
    found = reference.loss(model, full, batch_of(job))
    found.backward()
    return float(found.detach()), {key: value.grad for key, value in full.items() if value.grad is not None}


def differences(case: Case, results: list[dict[str, Any]], gradients: reference.Full) -> dict[str, float]:
    """Of each gradient on each rank: the largest difference over the largest expected value."""
    _, job, _ = made(case)
    found: dict[str, float] = {}
    for rank, result in enumerate(results):
        division = Division(job.model, job.layout, rank, reference.Tensors(gradients))
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
