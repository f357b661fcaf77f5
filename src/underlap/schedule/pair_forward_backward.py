"""pair_forward_backward: the forward of one micro-batch and the backward of another, layer by layer, in one block.

Their segments between collectives take turns, so that what one sends lies beside what the other computes (DeepSeek's DualPipe,
arXiv 2412.19437, section 3.2.1; Megatron Core's --overlap-moe-expert-parallel-comm). Both tasks' inputs have to be there before
the pair begins, and its results leave when both are done: in 1F1B that makes every stage wait for both neighbors, which costs
more than it hides unless more micro-batches are under way (DualPipeV has twice as many). Memory: two layers at work.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from underlap.errors import PlanError
from underlap.meetings import validate
from underlap.plan import Block, Operation, OpKind, Place, Plan, Role, Step
from underlap.schedule.rewriting import Refused, issues_of, key, layer_blocks

_LAYERS = ("dense", "experts")
_ENDS = ("embedding", "head")
_MESSAGES = ("send", "receive", "wait")
_PREFIX = "paired"


def pair_forward_backward(plan: Plan, axis: str) -> Plan:
    """Pairs of neighboring tasks, in the order (forward first or backward first) that gives more of them on all stages.

    Raises Refused where nothing of a layer can be hidden so, no two tasks of different micro-batches follow each other, or
    stages would wait in a circle.
    """
    _check(plan, axis)
    candidates = [_Pairing(plan, axis, forward_first=first) for first in (True, False)]
    candidates.sort(key=lambda one: -one.pairs)
    if not candidates[0].pairs:
        raise Refused(
            "no forward and backward of different micro-batches follow each other on any stage: "
            "use more micro-batches, and 1f1b, interleaved, zb-h1 or dualpipev"
        )
    reason = ""
    for candidate in candidates:
        if not candidate.pairs:
            continue
        made = candidate.plan()
        try:
            validate(made)
        except PlanError as error:
            reason = str(error)
            continue
        return made
    raise Refused(f"pairs make the stages wait in a circle under this schedule ({reason}): use dualpipev")


def _check(plan: Plan, axis: str) -> None:
    if any(name.startswith(_PREFIX) for name in plan.blocks):
        raise Refused("forward and backward are paired already")
    blocks = layer_blocks(plan, ("forward", "backward"))
    if not any(".backward" in name for name in blocks):
        raise Refused("there is no backward: pairs are for training")
    issues = [o for block in blocks.values() for o in block.operations if o.kind == OpKind.ISSUE and _wanted(o, axis)]
    if not issues:
        raise Refused(f"no layer communicates over {axis}: nothing to put beside the other task")
    if any(o.phase == "recompute" and not o.role.startswith("attention.") for b in blocks.values() for o in b.operations):
        raise Refused("with full recomputation a backward holds a forward of its own: use recompute=selective or none")
    rewritten = [name for name in blocks if name.count(".") > 1]
    if rewritten:
        raise Refused(f"layers were rewritten before ({rewritten[0]}): leave split_batch or prefetch out, or put them behind")


def _wanted(issue: Operation, axis: str) -> bool:
    """Whether a collective is to be hidden; under pp, where stages are paired for their own sake, any is."""
    return axis in ("pp", issue.group)


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """A run of steps: one micro-batch through one chunk, or what lies between such runs."""

    steps: tuple[Step, ...]
    direction: str
    """forward, backward, backward_input, weight_grad; empty for messages, `other` for the rest."""
    micro_batch: int = -1
    chunk: int = -1


class _Pairing:
    """One way to pair a plan's tasks."""

    def __init__(self, plan: Plan, axis: str, *, forward_first: bool) -> None:
        self.before, self.axis, self.forward_first = plan, axis, forward_first
        self.blocks: dict[str, Block] = {}
        self.pairs = 0
        self.roles = tuple(dataclasses.replace(role, program=self._program(role)) for role in plan.roles)

    def plan(self) -> Plan:
        """The plan with pairs; pools of gathered weights hold those of two layers."""
        used = {step.block for role in self.roles for step in role.program}
        kept = {name: block for name, block in (self.before.blocks | self.blocks).items() if name in used}
        pools = {name: 2 * slots for name, slots in self.before.pools.items()}
        return dataclasses.replace(self.before, roles=self.roles, blocks=kept, pools=pools)

    # ---- programs

    def _program(self, role: Role) -> tuple[Step, ...]:
        tasks = _tasks(role)
        received = {_message(step) for step in role.program if step.block.startswith("receive.")}
        # Where backwards are whole at times, those are the ones a schedule means to pair.
        backward = "backward" if any(task.direction == "backward" for task in tasks) else "backward_input"
        program: list[Step] = []
        at = 0
        while at < len(tasks):
            task = tasks[at]
            between = tasks[at + 1] if at + 1 < len(tasks) and not tasks[at + 1].direction else _Task((), "")
            behind = at + (2 if between.steps else 1)
            following = tasks[behind] if behind < len(tasks) else None
            if following is not None and self._pairs(task, following, backward):
                inward, outward, waits = _parted(between.steps, received)
                program += inward
                program += self._paired(*((task, following) if task.direction == "forward" else (following, task)))
                program += outward
                self.pairs += 1
                at = behind + 1
                # What the second of them sends follows at once; only then are sends waited for.
                if at < len(tasks) and not tasks[at].direction:
                    program += tasks[at].steps
                    at += 1
                program += waits
                continue
            program += task.steps
            at += 1
        return tuple(program)

    def _pairs(self, one: _Task, other: _Task, backward: str) -> bool:
        directions = ("forward", backward) if self.forward_first else (backward, "forward")
        return (one.direction, other.direction) == directions and one.micro_batch != other.micro_batch

    def _paired(self, forward: _Task, backward: _Task) -> list[Step]:
        """Ends first that have to be, layers side by side, then what is left of either."""
        first = [step for step in forward.steps if _kind(step) == "embedding"] + [s for s in backward.steps if _kind(s) == "head"]
        last = [step for step in forward.steps if _kind(step) == "head"] + [s for s in backward.steps if _kind(s) == "embedding"]
        layers = [[step for step in task.steps if _kind(step) in _LAYERS] for task in (forward, backward)]
        both = [step for pair in itertools.zip_longest(*layers) for step in self._layers(*pair)]
        return [*first, *both, *last]

    def _layers(self, forward: Step | None, backward: Step | None) -> list[Step]:
        """A layer of each in one step; in two where both would gather the same weights, or one is missing."""
        if forward is None or backward is None:
            return [step for step in (forward, backward) if step is not None]
        if forward.place.layer == backward.place.layer and self.before.pools:
            return [forward, backward]
        return [Step(self._block(forward.block, backward.block), forward.place, backward.place)]

    # ---- blocks

    def _block(self, forward: str, backward: str) -> str:
        name = f"{_PREFIX}.{forward}.{backward}"
        if name not in self.blocks:
            ahead = _segments(self.before.blocks[forward].operations, self.axis, 0)
            back = _segments(self.before.blocks[backward].operations, self.axis, 1)
            # The backward goes first: its first segment is short (gradients of what the experts gave), the forward's is long.
            turns = sorted(
                [(number / len(back), 0, segment) for number, segment in enumerate(back)]
                + [(number / len(ahead), 1, segment) for number, segment in enumerate(ahead)],
                key=lambda turn: turn[:2],
            )
            self.blocks[name] = Block(name=name, operations=tuple(o for _, _, segment in turns for o in segment))
        return name


def _segments(operations: Sequence[Operation], axis: str, slot: int) -> list[list[Operation]]:
    """The operations of a layer, cut before each wait for a collective of the axis."""
    issues = issues_of(operations)
    segments: list[list[Operation]] = [[]]
    for operation in operations:
        if operation.kind == OpKind.WAIT and key(operation) in issues and _wanted(issues[key(operation)], axis):
            segments.append([])
        segments[-1].append(dataclasses.replace(operation, slot=slot))
    return segments


# ---- cutting programs


def _kind(step: Step) -> str:
    return step.block.split(".", maxsplit=1)[0]


def _message(step: Step) -> tuple[str, Place]:
    return step.block.partition(".")[2], step.place


def _is_message(step: Step) -> bool:
    return _kind(step) in _MESSAGES and not step.block.startswith("wait.buckets")


def _tasks(role: Role) -> list[_Task]:
    """The program in runs: messages, tasks of one micro-batch, chunk and direction, and steps of none."""

    def sort(step: Step) -> tuple[str, int, int]:
        if _is_message(step):
            return "", -1, -1
        if step.place.micro_batch < 0 or _kind(step) not in (*_LAYERS, *_ENDS):
            return "other", -1, -1
        chunk = next((number for number, chunk in enumerate(role.chunks) if step.place.layer in chunk), -1)
        return step.block.split(".")[1], step.place.micro_batch, chunk

    return [_Task(tuple(steps), *name) for name, steps in itertools.groupby(role.program, key=sort)]


def _parted(messages: tuple[Step, ...], received: set[tuple[str, Place]]) -> tuple[list[Step], list[Step], list[Step]]:
    """Messages between two tasks of a pair: (what the second needs, before both; what the first sends, behind both; the waits for
    that, behind what the second sends)."""
    waited = {_message(step) for step in messages if _kind(step) == "wait" and _message(step) in received}
    sent = {_message(step) for step in messages if _kind(step) == "send"}
    inward = [step for step in messages if _message(step) in waited and _kind(step) in ("receive", "wait")]
    rest = [step for step in messages if step not in inward]
    waits = [step for step in rest if _kind(step) == "wait" and _message(step) in sent]
    return inward, [step for step in rest if step not in waits], waits
