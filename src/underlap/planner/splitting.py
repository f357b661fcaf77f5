"""A backward block in two: gradients of inputs, which the stage before waits for, and gradients of weights, which nobody does.

Qi et al. 2023, Zero Bubble, arXiv 2401.10241, section 2. Norms give both in one kernel, which stays with the inputs.
"""

from __future__ import annotations

import dataclasses

from underlap.plan import Block, Operation, OpKind

WEIGHT_GRADIENT = "weight_grad"


def split_off(block: Block) -> tuple[Block, Block]:
    """(`*.backward_input`, `*.weight_grad`) of a `*.backward`, each in its order.

    Collectives whose result only weight gradients read go with them: the second gather of a sequence-parallel input.
    """
    moved = [operation for operation in block.operations if operation.phase == WEIGHT_GRADIENT]
    for operation in reversed(block.operations):
        if operation.kind == OpKind.ISSUE and operation.phase == "backward" and _only_for(block, operation, moved):
            moved.append(operation)
            moved.append(_wait_of(block, operation))
    keys = {id(operation) for operation in moved}
    name = block.name.removesuffix(".backward")
    return (
        dataclasses.replace(
            block, name=f"{name}.backward_input", operations=tuple(o for o in block.operations if id(o) not in keys)
        ),
        dataclasses.replace(
            block, name=f"{name}.{WEIGHT_GRADIENT}", operations=tuple(o for o in block.operations if id(o) in keys)
        ),
    )


def _only_for(block: Block, issue: Operation, moved: list[Operation]) -> bool:
    """Whether all that reads what a collective writes is moved, and something is."""
    readers = [
        operation
        for operation in block.operations[block.operations.index(issue) + 1 :]
        if set(operation.reads) & set(issue.writes)
    ]
    return bool(readers) and all(any(reader is one for one in moved) for reader in readers)


def _wait_of(block: Block, issue: Operation) -> Operation:
    return next(
        operation
        for operation in block.operations
        if operation.kind == OpKind.WAIT
        and (operation.role, operation.phase, operation.part) == (issue.role, issue.phase, issue.part)
    )
