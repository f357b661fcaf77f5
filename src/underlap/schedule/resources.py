"""Resource changes: the same transfers on something else. They shorten or stop contending; they hide nothing by themselves.

copy_engine   no multiprocessors (NCCL 2.28's zero-CTA collectives; PyTorch's symmetric memory)
ctas          fewer or more thread blocks: less contention, or more bandwidth
in_network    reduction in the switches: NVLS within a scale-up domain, SHARP on a fabric that reduces
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from underlap.cost.work import REDUCTIONS, Transfer
from underlap.plan import Block, Plan
from underlap.schedule.rewriting import Refused


def copy_engine(plan: Plan, groups: frozenset[str]) -> Plan:
    """All-gathers and all-to-alls on copy engines. Raises Refused where there are none: reductions need multiprocessors."""
    return _changed(
        plan,
        groups,
        lambda work: (
            msgspec.structs.replace(work, algorithm="copy_engine") if work.collective in ("all_gather", "all_to_all") else work
        ),
        "copy engines do not reduce, and there is no all-gather or all-to-all",
    )


def ctas(plan: Plan, groups: frozenset[str], count: int) -> Plan:
    """Every collective on so many thread blocks."""
    return _changed(plan, groups, lambda work: msgspec.structs.replace(work, ctas=count), "nothing is sent")


def in_network(plan: Plan, groups: frozenset[str]) -> Plan:
    """Reductions in the switch. Raises Refused where there is none."""
    return _changed(
        plan,
        groups,
        lambda work: msgspec.structs.replace(work, algorithm="nvls") if work.collective in REDUCTIONS else work,
        "no reduction there that a switch could do",
    )


def _changed(plan: Plan, groups: frozenset[str], change: Callable[[Transfer], Transfer], reason: str) -> Plan:
    changed: dict[str, Block] = {}
    for name, block in plan.blocks.items():
        operations = tuple(
            dataclasses.replace(o, work=change(o.work)) if isinstance(o.work, Transfer) and o.group in groups else o
            for o in block.operations
        )
        if operations != block.operations:
            changed[name] = dataclasses.replace(block, operations=operations)
    if not changed:
        raise Refused(reason)
    return plan.replace_blocks(changed)
