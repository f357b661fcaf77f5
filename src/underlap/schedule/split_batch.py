"""split_batch: a micro-batch in parts, one of which computes while another one communicates.

Two half-batches for tensor parallelism (Domino, arXiv 2409.15241; ISO, arXiv 2409.11155; TokenWeave, arXiv 2505.11329) and for
experts (DeepSeek-V3's two micro-batches, arXiv 2412.19437, section 3.4; SGLang's two-batch overlap). The same bytes in more and
smaller messages, the same work in smaller kernels: that is the price.

Parts are whole sequences where their number allows it, else stretches of positions: then part i of causal attention reads the
keys of parts 0 to i, and backward the parts run from the last to the first.
"""

from __future__ import annotations

import dataclasses

import msgspec

from underlap.cost.work import Attention, Gemm
from underlap.plan import Access, Block, Buffer, Operation, OpKind, Plan, Role, Step
from underlap.schedule.rewriting import Refused, layer_blocks, part_name, part_of, rows_of, split_work

DEFAULT_PARTS = 2
_KEYS = ("qkv", "grad.qkv")
"""What all later parts of a causal sequence need too."""


def split_batch(plan: Plan, parts: int | None, axis: str) -> Plan:
    """Every layer in parts, interleaved so that the axis's collectives of one lie beside compute of another. Raises Refused."""
    count = DEFAULT_PARTS if parts is None else parts
    blocks = layer_blocks(plan, ("forward", "backward"))
    if any(".split" in name for name in blocks):
        raise Refused("the layers are in parts already, and these interleave the collectives of every axis: say it once")
    if not any(o.group == axis and o.kind == OpKind.ISSUE for block in blocks.values() for o in block.operations):
        raise Refused(f"no layer communicates over {axis}: nothing to put beside the other part")
    used = {access.buffer for b in blocks.values() for o in b.operations for access in (*o.reads, *o.writes)}
    if any(plan.buffers[name].part_of for name in used):
        raise Refused("layers are in chunks of rows already (decompose), which are no parts of a batch: leave one of both out")
    split = _Splitting(plan, count, blocks)
    return split.plan()


@dataclasses.dataclass(frozen=True, slots=True)
class _Interleaved:
    """A layer's operations in issue order: its tail is left for the next layer's first segment to hide."""

    head: tuple[Operation, ...]
    """The first segment of the first part."""
    body: tuple[Operation, ...]
    tail: tuple[Operation, ...]
    """The last segment of the last part: the wait for the last collective, and what needs it."""


class _Splitting:
    """One plan in parts."""

    def __init__(self, plan: Plan, count: int, blocks: dict[str, Block]) -> None:
        self.before, self.count = plan, count
        self.by_sequence = _sequences(blocks) % count == 0
        if not self.by_sequence and any(o.group == "cp" for block in blocks.values() for o in block.operations):
            raise Refused(
                "positions of a sequence lie on several ranks (cp), so that parts of it do not follow each other: "
                f"use a micro-batch of {count} sequences"
            )
        self.buffers: dict[str, Buffer] = {}
        woven = {name: self._interleave(block) for name, block in blocks.items()}
        # A layer that does not communicate stays whole: its parts would have nothing to hide.
        self.layers = {name: layer for name, layer in woven.items() if layer is not None}
        self.made: dict[str, Block] = {}

    def plan(self) -> Plan:
        """The plan with all runs of layers rewritten."""
        roles = tuple(self._role(role) for role in self.before.roles)
        used = {step.block for role in roles for step in role.program}
        kept = {name: block for name, block in self.before.blocks.items() if name in used}
        return dataclasses.replace(
            self.before,
            roles=roles,
            blocks=kept | self.made,
            buffers=self.before.buffers | self.buffers,
            # The last segment of a layer runs within the next one, so the weights of two layers are needed at a time.
            pools={name: 2 * slots for name, slots in self.before.pools.items()},
        )

    # ---- programs

    def _role(self, role: Role) -> Role:
        program: list[Step] = []
        for at, step in enumerate(role.program):
            if step.block not in self.layers:
                program.append(step)
                continue
            before = role.program[at - 1] if at and self._follows(role.program[at - 1], step) else None
            program.append(self._layer(step, before))
            following = role.program[at + 1] if at + 1 < len(role.program) else None
            if following is None or following.block not in self.layers or not self._follows(step, following):
                program.append(self._tail(step))
        return dataclasses.replace(role, program=tuple(program))

    def _follows(self, one: Step, other: Step) -> bool:
        """Whether two steps are neighboring layers of one task."""
        return (
            one.block in self.layers
            and one.place.micro_batch == other.place.micro_batch
            and _backward(one.block) == _backward(other.block)
            and other.place.layer - one.place.layer == (-1 if _backward(one.block) else 1)
        )

    def _layer(self, step: Step, before: Step | None) -> Step:
        name = f"{step.block}.split" + (f".behind_{before.block}" if before else "")
        if name not in self.made:
            layer = self.layers[step.block]
            offset = 1 if _backward(step.block) else -1
            late = tuple(dataclasses.replace(o, layer=o.layer + offset) for o in self.layers[before.block].tail) if before else ()
            self.made[name] = Block(name=name, operations=(*layer.head, *late, *layer.body))
        return dataclasses.replace(step, block=name)

    def _tail(self, step: Step) -> Step:
        name = f"{step.block}.split.tail"
        self.made.setdefault(name, Block(name=name, operations=self.layers[step.block].tail))
        return dataclasses.replace(step, block=name)

    # ---- one layer

    def _interleave(self, block: Block) -> _Interleaved | None:
        order = list(range(self.count))
        if _backward(block.name) and not self.by_sequence:
            if any(operation.phase == "recompute" for operation in block.operations):
                raise Refused(
                    "parts of one sequence run last to first backward, but recomputation first to last: "
                    f"use a micro-batch of {self.count} sequences, or recompute nothing"
                )
            order.reverse()
        first, last = self._outside(block)
        segments = [self._segments(block, part, order) for part in order]
        rounds = len(segments[0])
        if rounds == 1:
            return None
        woven = [list(segments[at][number]) for number in range(rounds) for at in range(self.count)]
        head, *middle, tail = woven
        body = [operation for segment in middle for operation in segment]
        return _Interleaved(head=(*first, *head), body=tuple(body), tail=(*tail, *last))

    def _outside(self, block: Block) -> tuple[list[Operation], list[Operation]]:
        """Operations on weights alone, before the first and behind the last one on tokens: they stay whole."""
        whole = [o for o in block.operations if not self._is_split(block, o)]
        at = [index for index, o in enumerate(block.operations) if self._is_split(block, o)]
        first = [o for o in whole if block.operations.index(o) < at[0]]
        return first, [o for o in whole if o not in first]

    def _is_split(self, block: Block, operation: Operation) -> bool:
        issue = operation
        if operation.kind == OpKind.WAIT:
            issue = next(o for o in block.operations if o.kind == OpKind.ISSUE and (o.phase, o.role, o.part) == _name(operation))
        return rows_of(self.before, issue)

    def _segments(self, block: Block, part: int, order: list[int]) -> list[list[Operation]]:
        """One part's operations, cut before each wait."""
        segments: list[list[Operation]] = [[]]
        for operation in block.operations:
            if not self._is_split(block, operation):
                continue
            if operation.kind == OpKind.WAIT:
                segments.append([])
            segments[-1].append(self._part(operation, part, order))
        return segments

    def _part(self, operation: Operation, part: int, order: list[int]) -> Operation:
        """One part of an operation."""
        numbered = {"part": operation.part * self.count + part, "parts": operation.parts * self.count}
        if operation.kind == OpKind.WAIT:
            return dataclasses.replace(operation, **numbered)  # type: ignore[arg-type]  # both are int
        attention = isinstance(operation.work, Attention)
        everything = attention and not self.by_sequence
        reads = tuple(a for access in operation.reads for a in self._parts_of(access, part, everything=everything))
        writes = tuple(a for access in operation.writes for a in self._parts_of(access, part, everything=everything))
        work = split_work(operation, part, self.count, by_sequence=self.by_sequence)
        again = part != order[0]
        added = tuple(access for access in writes if self._adds_up(access) and access not in reads) if again else ()
        if added and isinstance(work, Gemm):
            work = msgspec.structs.replace(work, accumulate=True)
        if everything and again:
            # The gradient of the keys of an earlier part gets contributions from later ones.
            added += tuple(a for a in writes if a.buffer.startswith("grad.qkv") and a not in (*reads, *added))
        return dataclasses.replace(operation, **numbered, work=work, reads=(*reads, *added), writes=writes)  # type: ignore[arg-type]  # both are int

    def _adds_up(self, access: Access) -> bool:
        """Whether parts add to one result: gradients of weights."""
        return access.buffer.startswith("gradient.")

    def _parts_of(self, access: Access, part: int, *, everything: bool) -> list[Access]:
        buffer = self.before.buffers[access.buffer]
        if not buffer.scope & 2:
            return [access]
        several = everything and access.buffer in _KEYS
        return [Access(self._name_of(access.buffer, index), access.layer) for index in (range(part + 1) if several else (part,))]

    def _name_of(self, name: str, index: int) -> str:
        made = part_name(name, index, self.count)
        if made not in self.buffers:
            self.buffers[made] = part_of(self.before.buffers, name, index, self.count)
        return made


def _name(operation: Operation) -> tuple[str, str, int]:
    return operation.phase, operation.role, operation.part


def _backward(block: str) -> bool:
    return ".backward" in block


def _sequences(blocks: dict[str, Block]) -> int:
    """Sequences of a micro-batch, as attention has them."""
    found = [o.work.batch for block in blocks.values() for o in block.operations if isinstance(o.work, Attention)]
    if not found:
        raise Refused("attention in several kernels (attention=unfused) cannot be split: use attention=fused")
    return found[0]
