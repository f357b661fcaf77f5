"""prefetch: sharded weights are gathered some layers ahead, and gradients are scattered behind the next layer's backward.

FSDP's forward and backward prefetch (Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277, section 3.3.2). The price is memory:
the weights of so many more layers are whole at a time. The first gather of a chunk stays exposed, as nothing comes before it.
"""

from __future__ import annotations

import dataclasses

from underlap.plan import Block, Operation, OpKind, Place, Plan, Role, Step
from underlap.schedule.rewriting import Refused, issues_of, key

DEFAULT_DEPTH = 1
_GATHER = "weights.gather."
_SCATTER = ("gradients.scatter.", "gradients.reduce.")


def prefetch(plan: Plan, depth: int | None) -> Plan:
    """Gathers `depth` layers ahead. Raises Refused where weights are not sharded."""
    depth = DEFAULT_DEPTH if depth is None else depth
    bodies = {name: block for name, block in plan.blocks.items() if _is_layer(name) and _gathers(block)}
    if not bodies:
        raise Refused("weights are not sharded (ZeRO-3): nothing is gathered, so nothing can be prefetched; use fsdp or zero=3")
    if any(".ahead_" in name for name in plan.blocks):
        raise Refused("the weights are prefetched already: say it once, with the depth wanted")
    if any(name.startswith("paired.") and _gathers(block) for name, block in plan.blocks.items()):
        raise Refused("layers in pairs gather their weights where they use them: leave pair_forward_backward out, or use zero=1")
    made = _Made(plan, depth)
    roles = tuple(made.role(role) for role in plan.roles)
    pools = {name: slots * (depth + 1) for name, slots in plan.pools.items()}
    return dataclasses.replace(plan, roles=roles, blocks=plan.blocks | made.blocks, pools=pools)


def _is_layer(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in ("dense", "experts")


def _gathers(block: Block) -> bool:
    return any(operation.role.startswith(_GATHER) for operation in block.operations)


def _direction(name: str) -> int:
    """Which layer comes next: one further, or one back."""
    return -1 if ".backward" in name else 1


class _Made:
    """Blocks as they are needed: one per block and the kind of layer whose weights it gathers ahead."""

    def __init__(self, plan: Plan, depth: int) -> None:
        self.plan, self.depth = plan, depth
        self.blocks: dict[str, Block] = {}

    def role(self, role: Role) -> Role:
        """The role with every run of layers rewritten."""
        program: list[Step] = []
        at = 0
        while at < len(role.program):
            end = self._run(role.program, at)
            program += self._layers(role.program[at:end]) if end > at else [role.program[at]]
            at = max(end, at + 1)
        return dataclasses.replace(role, program=tuple(program))

    def _run(self, program: tuple[Step, ...], at: int) -> int:
        """Where the run of layers of one task ends; `at` itself where none begins."""
        end = at
        while (
            end < len(program) and self._same_task(program[at], program[end]) and _gathers(self.plan.blocks[program[end].block])
        ):
            if end > at and program[end].place.layer - program[end - 1].place.layer != _direction(program[at].block):
                break
            end += 1
        return end

    def _same_task(self, first: Step, other: Step) -> bool:
        return (
            _is_layer(first.block)
            and _is_layer(other.block)
            and first.place.micro_batch == other.place.micro_batch
            and _direction(first.block) == _direction(other.block)
        )

    def _layers(self, steps: tuple[Step, ...]) -> list[Step]:
        """The first layers' gathers at once, then each layer gathers the one `depth` further on."""
        made = [self._gather_step(step) for step in steps[: self.depth]]
        for at, step in enumerate(steps):
            ahead = steps[at + self.depth] if at + self.depth < len(steps) else None
            behind = steps[at - 1] if at else None
            made.append(self._layer_step(step, ahead, behind))
        last = self._scatter_wait(steps[-1])
        return [*made, *([last] if last else [])]

    def _gather_step(self, step: Step) -> Step:
        name = f"{step.block}.gather"
        if name not in self.blocks:
            self.blocks[name] = Block(name=name, operations=tuple(_gather_issues(self.plan.blocks[step.block])))
        return dataclasses.replace(step, block=name)

    def _layer_step(self, step: Step, ahead: Step | None, behind: Step | None) -> Step:
        """The layer without its own gathers' issues, with those of the layer ahead, and with the waits of the layer behind."""
        name = step.block
        if ahead:
            name += f".ahead_{_kind(ahead.block)}"
        if behind:
            name += f".behind_{_kind(behind.block)}"
        if name not in self.blocks:
            direction = _direction(step.block)
            block = self.plan.blocks[step.block]
            issued = (
                [
                    dataclasses.replace(operation, layer=direction * self.depth)
                    for operation in _gather_issues(self.plan.blocks[ahead.block])
                ]
                if ahead
                else []
            )
            earlier = _scatter_waits(self.plan.blocks[behind.block], -direction) if behind else []
            waits, body, scatters = _parted(block)
            self.blocks[name] = Block(name=name, operations=(*waits, *issued, *body, *earlier, *scatters))
        return dataclasses.replace(step, block=name)

    def _scatter_wait(self, step: Step) -> Step | None:
        waits = _scatter_waits(self.plan.blocks[step.block], 0)
        if not waits:
            return None
        name = f"{step.block}.scattered"
        self.blocks[name] = Block(name=name, operations=tuple(waits))
        return Step(name, Place(step.place.micro_batch, step.place.layer))


def _kind(block: str) -> str:
    return block.split(".", maxsplit=1)[0]


def _gather_issues(block: Block) -> list[Operation]:
    return [o for o in block.operations if o.role.startswith(_GATHER) and o.kind == OpKind.ISSUE]


def _last_scatters(block: Block) -> list[Operation]:
    """Of each chain of reductions of a layer the issues that may stay in flight: all but those that another one builds on.

    Those that stand with another layer already, where layers are split, stay as they are.
    """
    issues = [o for o in block.operations if o.kind == OpKind.ISSUE and o.role.startswith(_SCATTER) and o.layer == 0]
    used = {access.buffer for issue in issues for access in issue.reads}
    return [issue for issue in issues if not any(access.buffer in used - _own(issue) for access in issue.writes)]


def _own(issue: Operation) -> set[str]:
    return {access.buffer for access in issue.reads}


def _scatter_waits(block: Block, offset: int) -> list[Operation]:
    """The waits of a layer's reductions, put off to another layer's step."""
    return [
        dataclasses.replace(o, kind=OpKind.WAIT, layer=offset, work=None, group=None, channel=None, reads=(), writes=())
        for o in _last_scatters(block)
    ]


def _parted(block: Block) -> tuple[list[Operation], list[Operation], list[Operation]]:
    """(waits of the layer's gathers, its body, its reductions without the waits that are put off)."""
    issues = issues_of(block.operations)
    late = {key(issue) for issue in _last_scatters(block)}
    waits, body, scatters = [], [], []
    for operation in block.operations:
        if operation.role.startswith(_GATHER):
            if operation.kind == OpKind.WAIT:
                waits.append(operation)
        elif operation.role.startswith(_SCATTER) and key(operation) in issues:
            if not (operation.kind == OpKind.WAIT and key(operation) in late):
                scatters.append(operation)
        else:
            body.append(operation)
    return waits, body, scatters
