"""Passes that only reorder a layer's own operations: what is independent already is put beside communication.

delay_wgrad     weight gradients move behind the issue of the collective that follows them (Megatron overlaps the input
                gradient's all-reduce with them; Zero Bubble, arXiv 2401.10241, splits them off)
shared_expert   the shared experts move between the issue of an all-to-all and its wait (Megatron Core,
                --moe-shared-expert-overlap; DeepSeek-V3, arXiv 2412.19437, section 3.2)
ring            the next block of keys and values is on its way while attention works on this one (Ring Attention,
                arXiv 2310.01889)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from underlap.plan import Block, Operation, OpKind, Plan
from underlap.schedule.rewriting import Refused, conflict, issues_of, key, layer_blocks, spread

WEIGHT_GRADIENT = "weight_grad"


def delay_wgrad(plan: Plan, axis: str) -> Plan:
    """Weight gradients beside the collectives of an axis. Raises Refused where there is nothing to move."""
    if axis == "pp":
        raise Refused("weight gradients beside messages between stages are another schedule: use schedule=zb-h1")

    def rewrite(operations: Sequence[Operation]) -> list[Operation]:
        return _delayed(plan, list(operations), axis)

    return _rewritten(plan, ("backward",), rewrite, f"no weight gradient stands before a collective of {axis}: nothing to delay")


def shared_expert(plan: Plan, axis: str) -> Plan:
    """The shared experts beside dispatch (forward) and combine (backward). Raises Refused where there are none."""

    def rewrite(operations: Sequence[Operation]) -> list[Operation]:
        return _beside(plan, list(operations), axis)

    return _rewritten(plan, ("forward", "backward"), rewrite, "no layer has shared experts and an all-to-all: nothing to move")


def ring(plan: Plan, axis: str) -> Plan:
    """Blocks of keys and values under way while attention works. Raises Refused without a ring."""
    messages = any(
        operation.group == axis and operation.role.startswith("attention.ring")
        for block in plan.blocks.values()
        for operation in block.operations
    )
    if not messages:
        raise Refused("context parallelism does not go around in a ring here (cp=1, or ulysses): use context=ring")

    def rewrite(operations: Sequence[Operation]) -> list[Operation]:
        return spread(plan, operations, lambda operation: operation.group == axis)

    return _rewritten(plan, ("forward", "backward"), rewrite, "every message of the ring is needed at once")


def _rewritten(plan: Plan, directions: tuple[str, ...], rewrite: object, reason: str) -> Plan:
    assert callable(rewrite)
    changed: dict[str, Block] = {}
    for name, block in layer_blocks(plan, directions).items():
        operations = tuple(rewrite(block.operations))
        if operations != block.operations:
            changed[name] = dataclasses.replace(block, operations=operations)
    if not changed:
        raise Refused(reason)
    return plan.replace_blocks(changed)


def _delayed(plan: Plan, made: list[Operation], axis: str) -> list[Operation]:
    """Each weight gradient that stands before an issue of the axis, and that it does not need, goes right behind it."""
    at = 0
    while at < len(made):
        if made[at].kind == OpKind.ISSUE and made[at].group == axis:
            issue = made[at]
            first = at
            while first > 0 and made[first - 1].kind == OpKind.COMPUTE:
                first -= 1
            before = made[first:at]
            late = [
                operation
                for index, operation in enumerate(before)
                if operation.phase == WEIGHT_GRADIENT
                and not conflict(plan.buffers, operation, issue)
                and not any(
                    conflict(plan.buffers, operation, other) for other in before[index + 1 :] if other.phase != WEIGHT_GRADIENT
                )
            ]
            made[first : at + 1] = [*(operation for operation in before if operation not in late), issue, *late]
        at += 1
    return made


def _beside(plan: Plan, made: list[Operation], axis: str) -> list[Operation]:
    """The operations of shared experts, moved behind the block's first all-to-all of the axis that they do not depend on."""
    shared = [operation for operation in made if operation.role.startswith("shared.") and operation.role != "shared.add"]
    issues = issues_of(made)
    if not shared:
        return made
    rest = [operation for operation in made if operation not in shared]
    for at, operation in enumerate(rest):
        if operation.kind != OpKind.ISSUE or operation.group != axis:
            continue
        # They may move up over whatever they do not conflict with.
        first = min(made.index(one) for one in shared)
        over = [issues.get(key(o), o) if o.kind == OpKind.WAIT else o for o in rest[at:] if made.index(o) < first]
        if any(conflict(plan.buffers, one, other) for one in shared for other in over):
            continue
        return [*rest[: at + 1], *shared, *rest[at + 1 :]]
    return made
