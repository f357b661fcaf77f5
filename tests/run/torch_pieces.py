"""Entries of ranks that train one step with torch's own parallel pieces, on the weights and the batch of the engine's cases."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from tests.run import layouts, reference
from tests.run.counting import Counter
from tests.run.layouts import Case
from tests.run.torch_model import Decoder, loss_of
from underlap.layout import EXPERT_AXES, Layout
from underlap.run.engine import Inputs, batch_of
from underlap.run.groups import Groups
from underlap.run.program import compiled
from underlap.run.session import Session
from underlap.workload import micro_batch_size, micro_batches


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What a rank runs: engine cases, and beside each a piece of torch."""

    pairs: tuple[tuple[Case, str], ...]
    folder: Path


def run_all(session: Session, asked: Pieces) -> None:
    """The entry of a rank: each case, and each piece, leaves its loss, gradients and bytes in the folder."""
    with session.connected():
        for case in dict.fromkeys(case for case, _ in asked.pairs):
            layouts.run_case(session, case, asked.folder)
        for case, piece in asked.pairs:
            session.doing = f"running {piece}"
            _, job, _ = layouts.made(case)
            torch.manual_seed(0)
            kind, _, variant = piece.partition(" ")
            try:
                loss, gradients, counter = PIECES[kind](job, variant)
            except (AssertionError, KeyError, ValueError, TypeError, RuntimeError) as error:
                # What is raised is one line for the parent.
                raise RuntimeError(f"{piece}: {traceback.format_exc()[-3000:]}".replace("\n", " | ")) from error
            found = {"loss": loss, "gradients": gradients, "bytes": dict(counter.bytes), "calls": dict(counter.calls)}
            torch.save(found, asked.folder / f"{piece} rank{session.rank}.pt")


def _full(job: Inputs) -> reference.Full:
    return {key: job.parameters.part(*key, shape, 0, 0, shape[0]) for key, shape in reference.full_shapes(job.model).items()}


def _own(job: Inputs, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, targets) of each micro-batch of this rank: (sequences, positions)."""
    size, count = micro_batch_size(job.workload, job.layout), micro_batches(job.workload, job.layout)
    first = dist.get_rank() * size * count if ranks > 1 else 0
    parts = batch_of(job)[first : first + size * count].split(size)
    return [(part[:, :-1], part[:, 1:]) for part in parts]


# ---- FSDP2


def fsdp(job: Inputs, _: str) -> tuple[float, reference.Full, Counter]:
    """fully_shard of the embedding, each layer, and the final norm with the head: the units of the plan."""
    model = Decoder(job.model, _full(job))
    mesh = init_device_mesh("cpu", (job.layout.fsdp,), mesh_dim_names=("fsdp",), backend_override={"fsdp": "gloo"})
    units: list[Any] = [model.embedding, *model.layers.values(), [model.norm, model.head]]
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    own = _own(job, job.layout.fsdp)
    total = 0.0
    with Counter() as counter:
        for source, target in own:
            loss = loss_of(model(source), target) / len(own)
            loss.backward()
            total += float(loss.detach())
    return total / job.layout.fsdp, model.gradients(), counter


# ---- tensor parallel


def tensor(job: Inputs, kind: str) -> tuple[float, reference.Full, Counter]:
    """Column- and row-wise linear layers, without or with sequence parallelism, and a loss over a divided vocabulary."""
    sequence = kind == "sequence"
    model = Decoder(job.model, _full(job))
    mesh = init_device_mesh("cpu", (job.layout.tp,), mesh_dim_names=("tp",), backend_override={"tp": "gloo"})
    parallelize_module(model, mesh, _plan(list(model.layers), sequence=sequence))
    own = _own(job, 1)
    total = 0.0
    with Counter() as counter, loss_parallel():
        for source, target in own:
            logits = model(source)
            loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten()) / len(own)
            loss.backward()
            total += float(loss.detach().full_tensor())
        for parameter in model.parameters():
            # With the sequence divided, each rank has the norms' gradients of its own tokens.
            if any(placement.is_partial() for placement in getattr(parameter.grad, "placements", ())):
                parameter.grad = parameter.grad.redistribute(placements=[Replicate()])
    return total, model.gradients(), counter


def _plan(layers: list[str], *, sequence: bool) -> dict[str, Any]:
    between = Shard(1) if sequence else Replicate()
    found: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        found["norm"] = SequenceParallel()
    # Made whole once, for all linear layers that read it; left to each, there were a sum of gradients for each.
    inside = {"input_layouts": (between,), "desired_input_layouts": (Replicate(),)}
    for layer in layers:
        at = f"layers.{layer}"
        if sequence:
            found |= {f"{at}.attention_norm": SequenceParallel(), f"{at}.mlp_norm": SequenceParallel()}
        found |= {f"{at}.attention": PrepareModuleInput(**inside), f"{at}.mlp": PrepareModuleInput(**inside)}
        found |= {f"{at}.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        found |= {f"{at}.mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
        found |= {f"{at}.{name}": RowwiseParallel(output_layouts=between) for name in ("attention.output", "mlp.down")}
    return found


# ---- pipelines


def pipeline(job: Inputs, kind: str) -> tuple[float, reference.Full, Counter]:
    """A schedule of torch.distributed.pipelining, on stages of equally many layers."""
    rank, ranks = dist.get_rank(), job.layout.pp
    chunks = 2 if "Interleaved" in kind else 1
    stages = ranks * chunks
    layers = job.model.layers // stages
    group = dist.new_group(list(range(ranks)), group_desc="pp")
    size, count = micro_batch_size(job.workload, job.layout), micro_batches(job.workload, job.layout)
    seq = job.workload.seq  # type: ignore[union-attr]  # only training is compared here
    parts, made = [], []
    for number in range(rank, stages, ranks):
        part = Decoder(job.model, _full(job), number * layers, (number + 1) * layers)
        hidden = torch.empty(size, seq, job.model.hidden, requires_grad=True)
        source = torch.empty(size, seq, dtype=torch.int64) if number == 0 else hidden
        result = torch.empty(size, seq, job.model.vocab, requires_grad=True) if number == stages - 1 else hidden
        parts.append(part)
        shapes = {"input_args": source, "output_args": result}
        made.append(pipelining.PipelineStage(part, number, stages, torch.device("cpu"), **shapes, group=group))
    schedule = getattr(pipelining, f"Schedule{kind}")(made if chunks > 1 else made[0], count, loss_of)
    batch = batch_of(job)
    losses: list[torch.Tensor] = []
    with Counter() as counter:
        schedule.step(
            *([batch[:, :-1]] if rank == 0 else []),
            **({"target": batch[:, 1:], "losses": losses} if rank == ranks - 1 else {}),
        )
    gradients = {key: value for part in parts for key, value in part.gradients().items()}
    return float(sum(losses)) / count if losses else 0.0, gradients, counter


PIECES: dict[str, Callable[[Inputs, str], tuple[float, reference.Full, Counter]]] = {
    "fsdp": fsdp,
    "tensor": tensor,
    "pipeline": pipeline,
}

# ---- groups


@dataclasses.dataclass(frozen=True)
class GroupCases:
    cases: tuple[Case, ...]
    folder: Path


def compare_groups(session: Session, asked: GroupCases) -> None:
    """The entry of a rank: the engine's groups, and what DeviceMesh makes of the same layout."""
    with session.connected():
        for case in asked.cases:
            plan, job, _ = layouts.made(case)
            program = compiled(plan, job.layout, session.rank)
            groups = Groups(program, session.timeout_s)
            own = {name: dist.get_process_group_ranks(group) for name, group in groups.of.items()}
            axes = {name: group.axis for name, group in plan.groups.items()}
            found = {"own": own, "made": groups.number, "mesh": _of_meshes(job.layout, axes)}
            torch.save(found, asked.folder / f"{case.name} rank{session.rank}.pt")
            groups.close()


def _of_meshes(layout: Layout, axes: dict[str, tuple[str, ...]]) -> dict[str, list[int]]:
    """Of each group the ranks, by the named dimensions of two meshes: all ranks, and the experts'."""
    dense = layout.axis_order[::-1]
    ranks = torch.arange(layout.world).view([layout.degree(axis) for axis in dense])
    stages = ranks.movedim(dense.index("pp"), 0)
    found = {}
    for order, every in ((dense, ranks), (("pp", *EXPERT_AXES[::-1]), stages)):
        wide = [axis for axis in order if layout.degree(axis) > 1]
        mesh = DeviceMesh("cpu", every.reshape([layout.degree(axis) for axis in wide]), mesh_dim_names=tuple(wide))
        for name, inside in axes.items():
            if set(inside) <= set(wide):
                part = mesh[inside[::-1]]
                flat = part._flatten("_".join(inside)) if len(inside) > 1 else part
                found[name] = dist.get_process_group_ranks(flat.get_group())
    return found
