"""decompose: a collective and the product beside it in chunks of rows, one chunk's transfer beside another's product.

all-gather -> product (Wang et al. 2022, Overlap Communication with Dependent Computation, ASPLOS 2023; Transformer Engine's
userbuffers; PyTorch async TP) and product -> reduce-scatter or all-reduce (FLUX, arXiv 2406.06858). The first chunk's gather and
the last chunk's scatter stay exposed; smaller products and messages are the price.
"""

from __future__ import annotations

import dataclasses

from underlap.cost.work import Gemm
from underlap.plan import Access, Block, Buffer, Operation, OpKind, Plan
from underlap.schedule.rewriting import Refused, key, layer_blocks, part_name, part_of, split_work

DEFAULT_CHUNKS = 4


def decompose(plan: Plan, chunks: int | None, axis: str) -> Plan:
    """Every collective of the axis that stands beside a product, in chunks with it. Raises Refused where none does."""
    count = DEFAULT_CHUNKS if chunks is None else chunks
    buffers: dict[str, Buffer] = {}
    changed: dict[str, Block] = {}
    for name, block in layer_blocks(plan, ("forward", "backward")).items():
        made = _block(plan, block.operations, axis, count, buffers)
        if made != block.operations:
            changed[name] = dataclasses.replace(block, operations=made)
    if not changed:
        raise Refused(f"no collective of {axis} stands beside a product that makes its input or needs its result")
    return plan.replace_blocks(changed, buffers)


def _block(
    plan: Plan, operations: tuple[Operation, ...], axis: str, count: int, buffers: dict[str, Buffer]
) -> tuple[Operation, ...]:
    made: list[Operation] = []
    at = 0
    while at < len(operations):
        issue = operations[at]
        if (
            issue.kind != OpKind.ISSUE
            or issue.group != axis
            or at + 1 == len(operations)
            or key(operations[at + 1]) != key(issue)
        ):
            made.append(issue)
            at += 1
            continue
        wait = operations[at + 1]
        following = operations[at + 2] if at + 2 < len(operations) else None
        chunk = _Chunks(plan, count, buffers)
        if following is not None and _takes(following, issue):
            made += chunk.gathered(issue, wait, following)
            at += 3
        elif made and _gives(made[-1], issue):
            made += chunk.scattered(made.pop(), issue, wait)
            at += 2
        else:
            made += [issue, wait]
            at += 2
    return tuple(made)


def _takes(product: Operation, issue: Operation) -> bool:
    """Whether a product reads, row by row, what the collective writes."""
    written = {access.buffer for access in issue.writes}
    reads = {access.buffer for access in product.reads}
    return isinstance(product.work, Gemm) and product.phase != "weight_grad" and bool(written & reads)


def _gives(product: Operation, issue: Operation) -> bool:
    """Whether the collective reads what a product writes, row by row."""
    written = {access.buffer for access in product.writes}
    return (
        isinstance(product.work, Gemm)
        and product.phase != "weight_grad"
        and product.parts == 1
        and {access.buffer for access in issue.reads} <= written
    )


class _Chunks:
    """A collective and a product in chunks."""

    def __init__(self, plan: Plan, count: int, buffers: dict[str, Buffer]) -> None:
        self.plan, self.count, self.buffers = plan, count, buffers

    def gathered(self, issue: Operation, wait: Operation, product: Operation) -> list[Operation]:
        """All chunks are sent for; each product begins as its chunk arrives."""
        parts = range(self.count)
        return [
            *(self._part(issue, part) for part in parts),
            *(operation for part in parts for operation in (self._part(wait, part), self._part(product, part))),
        ]

    def scattered(self, product: Operation, issue: Operation, wait: Operation) -> list[Operation]:
        """Each chunk is sent as its product ends."""
        parts = range(self.count)
        return [
            *(operation for part in parts for operation in (self._part(product, part), self._part(issue, part))),
            *(self._part(wait, part) for part in parts),
        ]

    def _part(self, operation: Operation, part: int) -> Operation:
        numbered = dataclasses.replace(operation, part=operation.part * self.count + part, parts=operation.parts * self.count)
        if operation.kind == OpKind.WAIT:
            return numbered
        return dataclasses.replace(
            numbered,
            work=split_work(operation, part, self.count, by_sequence=True),
            reads=tuple(self._access(access, part) for access in operation.reads),
            writes=tuple(self._access(access, part) for access in operation.writes),
        )

    def _access(self, access: Access, part: int) -> Access:
        if not self.plan.buffers[access.buffer].scope & 2:
            return access
        name = part_name(access.buffer, part, self.count)
        if name not in self.buffers:
            self.buffers[name] = part_of(self.plan.buffers | self.buffers, access.buffer, part, self.count)
        return dataclasses.replace(access, buffer=name)
