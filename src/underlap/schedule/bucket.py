"""bucket: gradients are reduced as they get ready, in buckets, while the backward goes on.

PyTorch DDP (Li et al. 2020, arXiv 2006.15704, section 3.2.3) and Megatron's --overlap-grad-reduce. Only the last
micro-batch's backward makes gradients complete. The last bucket has nothing left to hide behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from underlap.cost.work import Transfer
from underlap.plan import Access, Block, Operation, OpKind, Place, Plan, Role, Step
from underlap.schedule.rewriting import Refused

_REDUCES = ".reduce"
WEIGHT_GRADIENT = "weight_grad"
_PREFIX = "gradient."


def bucket(plan: Plan, nbytes: int) -> Plan:
    """Reductions of at least `nbytes`, issued behind the operation that completes them; a larger weight is a bucket of its own.

    Raises Refused where gradients are reduced in every micro-batch (ZeRO-2 and 3), or in two steps (HSDP).
    """
    if not any(name.endswith(_REDUCES) for name in plan.blocks):
        raise Refused("gradients are not reduced at the end of the step (ZeRO-2 and 3 reduce in every layer): use prefetch")
    blocks: dict[str, Block] = {}
    roles = tuple(_Role(plan, role, nbytes, blocks).bucketed() for role in plan.roles)
    if not blocks:
        raise Refused("no gradients are reduced: there is one replica only")
    kept = {name: block for name, block in plan.blocks.items() if not name.endswith(_REDUCES)}
    return dataclasses.replace(plan, roles=roles, blocks=kept | blocks)


@dataclasses.dataclass(frozen=True, slots=True)
class _Gradient:
    """A gradient of a layer, the reduction that takes it, and the step that completes it."""

    buffer: str
    layer: int
    issue: Operation
    step: int
    """Index into the program."""
    operation: int
    """Index into its block."""


class _Role:
    """One role's program, rewritten."""

    def __init__(self, plan: Plan, role: Role, nbytes: int, blocks: dict[str, Block]) -> None:
        self.plan, self.role, self.nbytes, self.blocks = plan, role, nbytes, blocks
        self.last = max((step.place.micro_batch for step in role.program), default=-1)

    def bucketed(self) -> Role:
        """The role with its reductions in its last backward."""
        gradients = self._in_order()
        if not gradients:
            return self.role
        families: dict[tuple[str, str], list[_Gradient]] = {}
        for gradient in gradients:
            families.setdefault((gradient.issue.role.rsplit(".", 1)[1], gradient.issue.group or ""), []).append(gradient)
        inserted: dict[int, list[tuple[int, Operation]]] = {}
        waits: list[Operation] = []
        for (family, group), members in families.items():
            full = list(self._buckets(members))
            for number, content in enumerate(full):
                step, operation = max((gradient.step, gradient.operation) for gradient in content)
                here = self.role.program[step].place.layer
                issue = self._issue((family, group), content, (number, len(full)), here)
                inserted.setdefault(step, []).append((operation, issue))
                waits.append(dataclasses.replace(issue, kind=OpKind.WAIT, work=None, group=None, reads=(), writes=(), layer=here))
        return dataclasses.replace(self.role, program=self._program(inserted, waits))

    def _in_order(self) -> list[_Gradient]:
        """All gradients of the last micro-batch that a reduce step takes, in the order in which they are complete."""
        taken: dict[tuple[str, int], Operation] = {}
        for step in self.role.program:
            if step.block.endswith(_REDUCES):
                for issue in self._single(step):
                    for access in issue.reads:
                        taken[access.buffer, step.place.layer] = issue
        found: dict[tuple[str, int], _Gradient] = {}
        for at, step in enumerate(self.role.program):
            if self.last not in (step.place.micro_batch, step.second.micro_batch):
                continue
            for index, operation in enumerate(self.plan.blocks[step.block].operations):
                place = step.second if operation.slot else step.place
                if place.micro_batch != self.last:
                    continue
                for access in operation.writes:
                    outside = access.buffer.removeprefix(_PREFIX).split(".")[0] in ("embedding", "head")
                    layer = -1 if outside else place.layer + operation.layer + access.layer
                    if (access.buffer, layer) in taken:
                        issue = taken[access.buffer, layer]
                        found[access.buffer, layer] = _Gradient(access.buffer, layer, issue, at, index)
        return sorted(found.values(), key=lambda gradient: (gradient.step, gradient.operation))

    def _single(self, step: Step) -> list[Operation]:
        """The issues of a reduce step. Raises Refused where one builds on another."""
        issues = [o for o in self.plan.blocks[step.block].operations if o.kind == OpKind.ISSUE]
        written = {access.buffer for issue in issues for access in issue.writes if access.buffer.startswith("gradient_shard.")}
        if any(access.buffer in written for issue in issues for access in issue.reads):
            raise Refused("gradients are scattered and then all-reduced (shards and replicas): buckets of both are not modeled")
        return issues

    def _buckets(self, gradients: list[_Gradient]) -> Iterator[list[_Gradient]]:
        filled: list[_Gradient] = []
        size = 0
        for gradient in gradients:
            filled.append(gradient)
            size += self.plan.buffers[gradient.buffer].nbytes
            if size >= self.nbytes:
                yield filled
                filled, size = [], 0
        if filled:
            yield filled

    def _issue(self, family: tuple[str, str], content: list[_Gradient], part: tuple[int, int], here: int) -> Operation:
        """One collective for the whole bucket, as a template of a step of layer `here`."""
        first = content[0].issue
        work = first.work
        assert isinstance(work, Transfer)
        payload = sum(self.plan.buffers[gradient.buffer].nbytes for gradient in content)
        return Operation(
            role=f"gradients.bucket.{family[0]}",
            phase="optimizer",
            kind=OpKind.ISSUE,
            group=family[1],
            channel=first.channel,
            work=msgspec.structs.replace(work, payload_bytes=float(payload)),
            reads=tuple(Access(gradient.buffer, gradient.layer - here) for gradient in content),
            writes=tuple(Access(self._written(gradient), gradient.layer - here) for gradient in content),
            part=part[0],
            parts=part[1],
        )

    def _written(self, gradient: _Gradient) -> str:
        shard = f"gradient_shard.{gradient.buffer.removeprefix(_PREFIX)}"
        return shard if any(access.buffer == shard for access in gradient.issue.writes) else gradient.buffer

    def _program(self, inserted: dict[int, list[tuple[int, Operation]]], waits: list[Operation]) -> tuple[Step, ...]:
        program: list[Step] = []
        waited = False
        for at, step in enumerate(self.role.program):
            if step.block.endswith(_REDUCES):
                continue
            if step.block.endswith(".optimizer") and not waited:
                program.append(self._keep(f"wait.buckets.{self.role.name}", tuple(waits), Step("", Place(-1, 0))))
                waited = True
            if at not in inserted:
                program.append(step)
                continue
            program += self._split_step(step, sorted(inserted[at], key=lambda item: item[0]))
        return tuple(program)

    def _split_step(self, step: Step, issues: list[tuple[int, Operation]]) -> Iterator[Step]:
        """The step in pieces, with a step of no micro-batch between two of them for each issue: a bucket belongs to none."""
        block = self.plan.blocks[step.block]
        begin = 0
        for index, issue in issues:
            piece = block.operations[begin : index + 1]
            if piece:
                yield self._keep(f"{block.name}[{begin}:{index + 1}]", piece, step)
            name = f"bucket.{self.role.name}.{issue.role}.{issue.part}"
            yield self._keep(name, (issue,), Step("", Place(-1, step.place.layer)))
            begin = index + 1
        if begin < len(block.operations):
            yield self._keep(f"{block.name}[{begin}:]", block.operations[begin:], step)

    def _keep(self, name: str, operations: tuple[Operation, ...], step: Step) -> Step:
        self.blocks.setdefault(name, Block(name=name, operations=operations))
        return dataclasses.replace(step, block=name)
