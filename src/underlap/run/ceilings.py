"""Steps with something left out, which no schedule of the same work can beat: the analyzer's ceilings, measured.

    waits      every collective is issued where the plan says, and waited for at the end of the step only: if_independent
    messages   nothing is issued, and nothing waited for: if_nothing_sent
    half_transfers   half of what a transfer takes: links of a fabric have twice their rate: if_half_transfer, which is no ceiling

What a step without waits or messages computes is wrong, as it uses what has not come yet. Its times count, and nothing else of
it. No torch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from underlap.errors import OptionError
from underlap.plan import Plan
from underlap.run.fabric_spec import FabricSpec
from underlap.trial import LeftOut
from underlap.workload import Decode, Workload

LEFT_OUT: tuple[LeftOut, ...] = get_args(LeftOut)
LEVER = {"waits": "if_independent", "messages": "if_nothing_sent", "half_transfers": "if_half_transfer"}
"""The lever of a Report that promises as much."""


def measurable(fabric: FabricSpec | None) -> tuple[LeftOut, ...]:
    """What can be left out over these links: their rate changes where they have one."""
    return LEFT_OUT if fabric is not None and fabric.shaped else ("waits", "messages")


def check_ceilings(left_out: Collection[LeftOut], plan: Plan, workload: Workload, device: str, fabric: FabricSpec | None) -> None:
    """Raises OptionError where a step cannot go on without what communication brings, or links have no rate to double."""
    reason = None
    if not set(left_out) <= set(measurable(fabric)):
        raise OptionError("ceilings: half_transfers needs links that all have a rate: expected a fabric such as 500mbit")
    if set(left_out) == {"half_transfers"}:
        return
    if any(buffer.expected for buffer in plan.buffers.values()):
        reason = "rows per expert are known by what is received"
    elif isinstance(workload, Decode):
        reason = "a decode goes on from tokens that it chose"
    elif device != "cpu":
        reason = "they are measured on CPUs only"
    if reason is not None:
        raise OptionError(f"ceilings: {reason}: leave --ceilings out")
