"""Putting a plan together: groups, blocks for each kind of layer, and one role per pipeline rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from underlap.cost.work import ELEMENT_BYTES
from underlap.errors import OptionError
from underlap.layout import Layout
from underlap.model import Model
from underlap.plan import Place, Plan, Role, Step
from underlap.planner import attention, context, ends, experts, mlp, pipeline, weights
from underlap.planner.drafting import Draft
from underlap.planner.groups import PIPELINE, groups, members
from underlap.planner.pipeline import SPLIT_BACKWARD, Task
from underlap.planner.shapes import Shapes
from underlap.planner.splitting import split_off
from underlap.planner.weights import GATHERED, Matrix
from underlap.workload import Decode, Train, Workload, check_workload


def plan(model: Model, layout: Layout, workload: Workload, *, domain: int) -> Plan:
    """One training step, prefill or decode step, on scale-up domains of `domain` devices; every collective waited for at once.

    Raises OptionError where layout, model and workload do not fit.
    """
    layout.check_model(model)
    check_workload(workload, layout, model)
    _check_planned(layout, model, workload)
    shapes = Shapes(model, layout, workload)
    _check_length(shapes)
    draft = Draft(groups(layout, domain), shapes.activation)
    _draft_blocks(draft, shapes)
    roles = tuple(_role(shapes, rank) for rank in range(layout.pp))
    used = {step.block for role in roles for step in role.program}
    return Plan(
        title=f"{model.name} {workload.__class__.__name__.lower()} on {layout.world} ranks",
        roles=roles,
        blocks={name: block for name, block in draft.blocks.items() if name in used},
        buffers=draft.buffers,
        groups={name: group for name, group in draft.groups.items() if group.size > 1},
        pools={GATHERED: _gathered_at_once(shapes)} if _pooled(draft) else {},
        world=layout.world,
    )


MOST_STEPS = 1_000_000
"""Uses of blocks on one rank: some tens of operations each, about what memory holds."""


def _check_length(shapes: Shapes) -> None:
    steps = shapes.micro_batches * shapes.model.layers // shapes.layout.pp
    if steps > MOST_STEPS:
        raise OptionError(
            f"workload: {shapes.micro_batches} micro-batches per rank through {shapes.model.layers} layers on {shapes.layout.pp} "
            f"stages: more than {MOST_STEPS} layers in all are not planned: lower gbs, or raise mbs or dp"
        )


def _check_planned(layout: Layout, model: Model, workload: Workload) -> None:
    """What inputs can say and plans cannot."""
    if isinstance(workload, Decode) and layout.cp > 1:
        raise OptionError(f"workload: decode with cp={layout.cp}: a cache divided over ranks is not modeled: use tp, dp or pp")
    sizes = layout.chunk_layers(model)
    if 0 in sizes:
        raise OptionError(f"layout: split gives chunk {sizes.index(0)} no layers, which is not modeled: give each one or more")
    if layout.schedule in SPLIT_BACKWARD and layout.zero_stage >= 2:
        raise OptionError(
            f"layout: schedule={layout.schedule} with zero={layout.zero_stage}: gradients would be reduced behind each weight "
            "gradient that is put off, and whole ones kept until then, which is not modeled: use zero=1"
        )


def _pooled(draft: Draft) -> bool:
    return any(buffer.pool == GATHERED for buffer in draft.buffers.values())


def _gathered_at_once(shapes: Shapes) -> int:
    """Slots for the weights of one layer of the kind that has most; the ends have fewer."""
    kinds = sorted(set(shapes.model.layer_kinds))
    return max(len(weights.layer_weights(shapes, kind)) for kind in kinds)


# ---- blocks


def _draft_blocks(draft: Draft, shapes: Shapes) -> None:
    kinds = sorted(set(shapes.model.layer_kinds))
    outside = {"embedding": ends.embedding_weights(shapes), "head": ends.head_weights(shapes)}
    for matrices in (*outside.values(), *(weights.layer_weights(shapes, kind) for kind in kinds)):
        weights.declare(draft, shapes, matrices)
    draft.phase = "forward" if shapes.train else "decode" if isinstance(shapes.workload, Decode) else "prefill"
    _block(draft, shapes, "embedding.forward", outside["embedding"], ends.embed)
    for kind in kinds:
        _block(draft, shapes, f"{kind}.forward", weights.layer_weights(shapes, kind), *_halves(kind))
    _block(draft, shapes, "head.forward", outside["head"], ends.head)
    _draft_boundaries(draft, shapes)
    if shapes.train:
        _draft_training(draft, shapes, kinds, outside)


def _halves(kind: str) -> tuple[Callable[[Draft, Shapes], None], ...]:
    return attention.forward, mlp.forward if kind == "dense" else experts.forward


def _halves_backward(kind: str) -> tuple[Callable[[Draft, Shapes], None], ...]:
    return mlp.backward if kind == "dense" else experts.backward, attention.backward


def _block(
    draft: Draft, shapes: Shapes, name: str, matrices: tuple[Matrix, ...], *parts: Callable[[Draft, Shapes], None]
) -> None:
    """A block that gathers its weights, where they are sharded, and does its parts."""
    weights.gather(draft, shapes, matrices)
    for part in parts:
        part(draft, shapes)
    draft.close(name)


def _draft_training(draft: Draft, shapes: Shapes, kinds: Sequence[str], outside: dict[str, tuple[Matrix, ...]]) -> None:
    workload = shapes.workload
    assert isinstance(workload, Train)
    each_time = shapes.layout.zero_stage >= 2

    def backward(name: str, matrices: tuple[Matrix, ...], *parts: Callable[[Draft, Shapes], None]) -> None:
        draft.phase = "backward"
        if name != "embedding":  # its gradient needs the tokens only
            weights.gather(draft, shapes, matrices)
        for part in parts:
            part(draft, shapes)
        draft.phase = "backward"
        if each_time:
            weights.reduce(draft, shapes, matrices)
        draft.close(f"{name}.backward")
        if shapes.layout.schedule in SPLIT_BACKWARD:
            for block in split_off(draft.blocks[f"{name}.backward"]):
                draft.blocks[block.name] = block

    backward("head", outside["head"], ends.head_backward)
    for kind in kinds:
        matrices = weights.layer_weights(shapes, kind)
        backward(kind, matrices, *_recomputed(workload, kind), *_halves_backward(kind))
    backward("embedding", outside["embedding"], ends.embed_backward)
    # A table that head and embedding share is the embedding's.
    own = {name: tuple(matrix for matrix in found if matrix.name.startswith(f"{name}.")) for name, found in outside.items()}
    for name, matrices in (*own.items(), *((kind, weights.layer_weights(shapes, kind)) for kind in kinds)):
        draft.phase = "optimizer"
        if not each_time:
            weights.reduce(draft, shapes, matrices)
        draft.close(f"{name}.reduce")
        weights.optimize(draft, shapes, matrices)
        draft.close(f"{name}.optimizer")
    if ends.tied_apart(shapes):
        for name in own:
            ends.tie(draft, shapes, first=name == "embedding")
            draft.close(f"{name}.tie.optimizer")


def _recomputed(workload: Train, kind: str) -> tuple[Callable[[Draft, Shapes], None], ...]:
    """What runs forward again before the backward of a layer, from what was kept of it."""

    def again(part: Callable[[Draft, Shapes], None]) -> Callable[[Draft, Shapes], None]:
        def run(draft: Draft, shapes: Shapes) -> None:
            draft.phase = "recompute"
            part(draft, shapes)
            draft.phase = "backward"

        return run

    if workload.recompute == "full":
        return tuple(again(part) for part in _halves(kind))
    if workload.recompute == "selective":
        return (again(_core_again),)
    return ()


def _core_again(draft: Draft, shapes: Shapes) -> None:
    """Its result was kept for the projection behind it (Korthikanti et al. 2022, section 5), so the new one is dropped."""
    draft.instead = {"context": draft.buffer("context.again", shapes.tokens, shapes.context_width)}
    context.core(draft, shapes)
    draft.instead = {}


# ---- between stages

RETURN = ".return"
"""Of messages along the second arm of a V: they go to the other neighbor, on channels of their own."""


def _draft_boundaries(draft: Draft, shapes: Shapes) -> None:
    """Blocks that send a task's result or receive its input, and that wait for either.

    Every tp rank sends what it holds: with sequence parallelism its part, else the whole stream (Megatron can send parts there
    too and gather them behind the border, arXiv 2104.04473, section 4.1; not planned).
    """
    if shapes.layout.pp == 1:
        return
    forward = draft.phase
    # Ranks of tp that hold the same send a part each, and gather what they get: Megatron-LM (arXiv 2104.04473, section 4.1),
    # DeepSpeed's partitioned pipe messages and vLLM's send_tensor_dict with an all_gather_group do.
    same = 1 if shapes.layout.sp or draft.groups["tp"].domains > 1 else shapes.layout.tp
    message = draft.message(PIPELINE, shapes.rows * shapes.hidden * ELEMENT_BYTES[shapes.activation], parts=same)
    ways = {"forward": (forward, "hidden"), **({"backward": ("backward", "grad.hidden")} if shapes.train else {})}
    for direction, (phase, buffer) in ways.items():
        draft.phase = phase
        name = draft.buffer(buffer, shapes.rows, shapes.hidden)
        for way in (direction, f"{direction}{RETURN}") if shapes.layout.schedule == "dualpipev" else (direction,):
            draft.issue("boundary", PIPELINE, message, name, "", channel=f"pp.send.{way}")
            draft.close(f"send.{way}")
            draft.issue("boundary", PIPELINE, message, "", name, channel=f"pp.receive.{way}")
            draft.close(f"receive.{way}")
            draft.wait("boundary")
            draft.close(f"wait.{way}")
    draft.phase = forward


# ---- programs


def _role(shapes: Shapes, rank: int) -> Role:
    layout = shapes.layout
    inner = math.prod(layout.degree(axis) for axis in layout.axis_order[: layout.axis_order.index("pp")])
    ranks = tuple(r for r in range(layout.world) if r // inner % layout.pp == rank)
    chunks = _chunks(shapes, rank)
    order = (
        pipeline.tasks(layout, rank, shapes.micro_batches)
        if shapes.train
        else pipeline.forward_only(layout, rank, shapes.micro_batches)
    )
    program = _with_messages(shapes, rank, chunks, order)
    if shapes.train:
        program += _update(shapes, rank, chunks)
    return Role(
        name=f"stage{rank}",
        stage=rank,
        ranks=ranks,
        program=tuple(program),
        chunks=tuple(chunks),
        members=members(layout, ranks[0]),
    )


def _chunks(shapes: Shapes, rank: int) -> list[range]:
    """The layers of each chunk of a rank."""
    layout = shapes.layout
    sizes = layout.chunk_layers(shapes.model)
    starts = [sum(sizes[:stage]) for stage in range(len(sizes) + 1)]
    stages = [pipeline.stage_of(layout, rank, chunk) for chunk in range(layout.chunks)]
    return [range(starts[stage], starts[stage + 1]) for stage in stages]


def _stages(shapes: Shapes) -> int:
    return shapes.layout.pp * shapes.layout.chunks


def _task(shapes: Shapes, rank: int, chunks: list[range], task: Task) -> list[Step]:
    stage = pipeline.stage_of(shapes.layout, rank, task.chunk)
    layers, kinds = chunks[task.chunk], shapes.model.layer_kinds

    def step(block: str, layer: int) -> Step:
        return Step(block, Place(task.micro_batch, layer))

    body = [step(f"{kinds[layer]}.{task.direction}", layer) for layer in layers]
    # An embedding has no gradient of its input.
    first = [step(f"embedding.{task.direction}", layers.start)] if stage == 0 and task.direction != "backward_input" else []
    last = [step(f"head.{task.direction}", layers.stop - 1)] if stage == _stages(shapes) - 1 else []
    return [*first, *body, *last] if task.direction == "forward" else [*last, *reversed(body), *first]


def _with_messages(shapes: Shapes, rank: int, chunks: list[range], order: list[Task]) -> list[Step]:
    """The tasks, and between two of them the send of the one's result beside the receive of the other's input.

    A send is waited for at once, as the receive is. Not so where a rank has several chunks: there ranks send in a ring, and a
    circle of blocked senders would never end. Nor where weight gradients are tasks of their own, to be done while a message
    waits for its receiver. In both a send is waited for before the next one of its direction.
    """
    program: list[Step] = []
    unfinished: dict[str, Step] = {}
    put_off = shapes.layout.chunks > 1 or shapes.layout.schedule in SPLIT_BACKWARD
    for before, behind in zip([None, *order], [*order, None], strict=True):
        sent = _crossing(shapes, rank, before, outward=True) if before else None
        received = _crossing(shapes, rank, behind, outward=False) if behind else None
        waits: list[Step] = []
        if before and sent:
            way = _way(shapes, before)
            if way in unfinished:
                program.append(unfinished.pop(way))
            program.append(Step(f"send.{way}", sent))
            wait = Step(f"wait.{way}", sent)
            if put_off:
                unfinished[way] = wait
            else:
                waits.append(wait)
        if behind and received:
            way = _way(shapes, behind)
            program.append(Step(f"receive.{way}", received))
            waits.append(Step(f"wait.{way}", received))
        program += waits
        if behind:
            program += _task(shapes, rank, chunks, behind)
    return [*program, *unfinished.values()]


def _way(shapes: Shapes, task: Task) -> str:
    """Which kind of message a task's input and result are."""
    direction = "forward" if task.direction == "forward" else "backward"
    return f"{direction}{RETURN}" if shapes.layout.schedule == "dualpipev" and task.chunk else direction


def _crossing(shapes: Shapes, rank: int, task: Task, *, outward: bool) -> Place | None:
    """The micro-batch and layer border where a task's result leaves the rank, or its input comes in; None where it stays."""
    layout = shapes.layout
    if task.direction == "weight_grad":
        return None
    stage = pipeline.stage_of(layout, rank, task.chunk)
    onward = (task.direction == "forward") == outward
    other = stage + 1 if onward else stage - 1
    if not 0 <= other < _stages(shapes) or pipeline.owner_of(layout, other)[0] == rank:
        return None
    layers = _chunks(shapes, rank)[task.chunk]
    return Place(task.micro_batch, layers.stop if onward else layers.start)


def _update(shapes: Shapes, rank: int, chunks: list[range]) -> list[Step]:
    """Reduce gradients in the order in which they got ready, add up those of tied copies, then the optimizer."""
    layout, kinds = shapes.layout, shapes.model.layer_kinds
    places = [Step(kinds[layer], Place(-1, layer)) for chunk in reversed(chunks) for layer in reversed(chunk)]
    stages = {pipeline.stage_of(layout, rank, chunk) for chunk in range(layout.chunks)}
    if _stages(shapes) - 1 in stages:
        places.insert(0, Step("head", Place(-1, -1)))
    if 0 in stages:
        places.append(Step("embedding", Place(-1, -1)))
    reduced = [] if layout.zero_stage >= 2 else [Step(f"{step.block}.reduce", step.place) for step in places]
    tied = [step for step in places if step.block in ("embedding", "head")] if ends.tied_apart(shapes) else []
    added = [Step(f"{step.block}.tie.optimizer", step.place) for step in tied]
    return [*reduced, *added, *(Step(f"{step.block}.optimizer", step.place) for step in places)]
