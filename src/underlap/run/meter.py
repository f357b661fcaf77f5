"""Bytes on a rank's interface from one barrier to the next, without what the barrier itself sends.

A collective can be done while what this rank sent still lies in its socket: so a step is counted between two barriers, behind
which all has arrived. Exactly one barrier's messages pass between the two readings; what it sends is found by idle ones. The
store is asked for nothing meanwhile.
"""

from __future__ import annotations

import torch.distributed as dist

from underlap.run.fabric import Counters, counters

IDLE = 5
"""Barriers that are counted alone; the median of them is what one sends."""

_NOTHING = Counters(0, 0, 0, 0)


class Meter:
    """Counts on one interface; on None nothing, at no cost."""

    def __init__(self, interface: str | None) -> None:
        self.interface = interface
        self.idle = _NOTHING
        """Of one barrier."""
        self.passed: dict[str, list[Counters]] = {}
        """By plan, of each step; one barrier is in it."""
        self._begin = _NOTHING

    def learn_idle(self) -> None:
        """Count barriers alone. All ranks at once."""
        if self.interface is None:
            return
        between = []
        for _ in range(IDLE):
            self.begin()
            between.append(self._since())
        self.idle = sorted(between, key=lambda each: each.sent_payload)[IDLE // 2]

    def begin(self) -> None:
        """Meet the other ranks: what follows is counted."""
        dist.barrier()
        if self.interface is not None:
            self._begin = counters(self.interface)

    def end(self, name: str) -> None:
        """Meet them again, and note what passed since `begin` as a step of a plan."""
        if self.interface is not None:
            self.passed.setdefault(name, []).append(self._since())

    def _since(self) -> Counters:
        assert self.interface is not None
        dist.barrier()
        return counters(self.interface) - self._begin
