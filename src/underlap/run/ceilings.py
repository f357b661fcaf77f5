"""Steps with something left out, which no schedule of the same work can beat: the analyzer's ceilings, measured.

    waits      every collective is issued where the plan says, and waited for at the end of the step only: if_independent
    messages   nothing is issued, and nothing waited for: if_nothing_sent

What such a step computes is wrong, as it uses what has not come yet. Its times count, and nothing else of it. No torch.
"""

from __future__ import annotations

from typing import Literal, get_args

from underlap.errors import OptionError
from underlap.plan import Plan
from underlap.workload import Decode, Workload

LeftOut = Literal["waits", "messages"]
LEFT_OUT: tuple[LeftOut, ...] = get_args(LeftOut)
LEVER = {"waits": "if_independent", "messages": "if_nothing_sent"}
"""The lever of a Report that promises at most as much."""


def check_ceilings(plan: Plan, workload: Workload, device: str) -> None:
    """Raises OptionError where a step cannot go on without what communication brings."""
    reason = None
    if any(buffer.expected for buffer in plan.buffers.values()):
        reason = "rows per expert are known by what is received"
    elif isinstance(workload, Decode):
        reason = "a decode goes on from tokens that it chose"
    elif device != "cpu":
        reason = "they are measured on CPUs only"
    if reason is not None:
        raise OptionError(f"ceilings: {reason}: leave --ceilings out")
