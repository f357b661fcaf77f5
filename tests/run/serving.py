"""Decode and prefill on ranks: what a test asks of each, importable by the processes that it starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from tests.run import layouts, reference
from underlap import inputs
from underlap.model import Model
from underlap.planner import plan as planned
from underlap.run import serving
from underlap.run.checkpoint import Checkpoint
from underlap.run.engine import Engine, Inputs
from underlap.run.session import Session
from underlap.run.weights import Seeded

SEED, BATCH, PROMPT, NEW = 5, 2, 6, 8


@dataclasses.dataclass(frozen=True)
class Serving:
    model: str
    layout: str
    folder: Path


def model_of(name: str) -> Model:
    return msgspec.structs.replace(inputs.model(name), layers=2)


def prompts(model: Model) -> torch.Tensor:
    return torch.randint(model.vocab, (BATCH, PROMPT), generator=torch.Generator().manual_seed(SEED))


def full(model: Model) -> reference.Full:
    parameters = Seeded(SEED)
    return {key: parameters.part(*key, shape, 0, 0, shape[0]) for key, shape in reference.full_shapes(model).items()}


def both(session: Session, asked: list[Serving]) -> None:
    """The entry of a rank."""
    with session.connected():
        greedy(session, asked)
        prefilled(session, asked)


def greedy(session: Session, asked: list[Serving]) -> None:
    """Each sequence goes through the cache token by token, the prompt's first, then what the logits choose."""
    for one in asked:
        session.doing = f"decoding on {one.layout or 'one rank'}"
        torch.save(_decoded(session, one), one.folder / f"{one.model} {one.layout} rank{session.rank}.pt")


def _decoded(session: Session, one: Serving) -> torch.Tensor:
    model, layout = model_of(one.model), inputs.layout(one.layout)
    work = inputs.workload(f"decode,batch={BATCH},context={PROMPT + NEW - 1},precision=fp32")
    job = Inputs(model=model, layout=layout, workload=work, parameters=Seeded(SEED))
    engine = Engine(planned(model, layout, work, domain=8), job, session.rank, torch.device("cpu"), session.timeout_s)
    mine = BATCH // layout.data_parallel
    whole = prompts(model)[engine.rank.data_index * mine : (engine.rank.data_index + 1) * mine]
    for length in range(PROMPT + NEW - 1):
        engine.feed(whole[:, length])
        engine.rank.length = length
        engine.step()
        if length + 1 >= PROMPT:
            whole = torch.cat((whole, _best(engine)[:, None]), dim=1)
    engine.close()
    return whole


def _best(engine: Engine) -> torch.Tensor:
    """The likeliest token over all parts of the vocabulary."""
    (logits,) = engine.last("logits")
    value, index = logits.max(-1)
    group = engine.groups.of.get("tp")
    if group is None:
        return index
    found = torch.stack((value, (index + engine.rank.vocab_begin).float()))
    parts = [torch.empty_like(found) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, found, group=group)
    values, indices = torch.stack(parts).unbind(1)
    return indices.gather(0, values.argmax(0)[None])[0].long()


def prefilled(session: Session, asked: list[Serving]) -> None:
    """One prefill of each; the logits of the last tokens, as this rank's part of the vocabulary has them."""
    for one in asked:
        model, layout = model_of(one.model), inputs.layout(one.layout)
        work = inputs.workload(f"prefill,batch={BATCH},seq={PROMPT},precision=fp32")
        job = Inputs(model=model, layout=layout, workload=work, parameters=Seeded(SEED))
        engine = Engine(planned(model, layout, work, domain=8), job, session.rank, torch.device("cpu"), session.timeout_s)
        mine = BATCH // layout.data_parallel
        engine.feed(prompts(model)[engine.rank.data_index * mine :][:mine].reshape(-1))
        engine.step()
        (logits,) = engine.last("logits")
        kept = (logits.clone(), engine.rank.data_index * mine, engine.rank.vocab_begin)
        torch.save(kept, one.folder / f"{one.model} {one.layout} prefill rank{session.rank}.pt")
        engine.close()


# ---- a prompt, then what follows, of folders of Hugging Face


@dataclasses.dataclass(frozen=True)
class Generation:
    """A prefill of some prompts, and a greedy decode behind it."""

    folder: Path
    """Of the model."""
    layout: str
    prefill: str
    new: int
    results: Path

    @property
    def name(self) -> str:
        return f"{self.folder.name} {self.layout} {self.prefill}"


def jobs(one: Generation) -> tuple[Inputs, Inputs]:
    """(prefill, decode)."""
    model, layout = inputs.model(str(one.folder)), inputs.layout(one.layout)
    parameters = Checkpoint(one.folder, model)
    prefill = inputs.workload(one.prefill)
    decode = inputs.workload(f"decode,batch={prefill.batch},context={prefill.seq + one.new},precision=fp32")
    made = [
        Inputs(model=model, layout=layout, workload=work, parameters=parameters, constants=parameters.constants)
        for work in (prefill, decode)
    ]
    return made[0], made[1]


def generated(session: Session, asked: list[Generation]) -> None:
    """The entry of a rank: leaves (which of the batch, tokens, the decode's logits)."""
    worlds = {one: inputs.layout(one.layout).world for one in asked}
    # As in layouts: those of all ranks first.
    for world in sorted(set(worlds.values()), reverse=True):
        own = layouts.part_of(session, world)
        with own.connected():
            for one in [one for one in asked if worlds[one] == world][session.rank // world :: session.world // world]:
                session.doing = f"running {one.name}"
                _generated(own, one)


def _generated(session: Session, one: Generation) -> None:
    prefill, decode = jobs(one)
    device = torch.device("cpu")
    plans = [planned(job.model, job.layout, job.workload, domain=8) for job in (prefill, decode)]
    prompt = serving.prefilled(plans[0], prefill, session.rank, device, session.timeout_s)
    engine = Engine(plans[1], decode, session.rank, device, session.timeout_s)
    logits = layouts.watched(engine)
    tokens = serving.greedy(engine, prompt, one.new)
    torch.save((engine.rank.data_index, tokens, logits), one.results / f"{one.name} rank{session.rank}.pt")
    engine.close()
