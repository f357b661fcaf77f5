"""Begin and end events (phases B and E) paired to whole ones, per thread and in order of time as the format has it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from underlap.read.json_event import Event, detached
from underlap.read.numbers import nanoseconds, valid


class Ends:
    """Collects begins and ends; what they enclose is known once all are there, as a file need not be in order."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, Any], list[tuple[int, Event]]] = {}

    def add(self, row: int, event: Event) -> None:
        """Take one event of either phase."""
        event.ts = msgspec.Raw(bytes(event.ts))
        if event.args is not None:
            event.args = detached(event.args)
        self._found.setdefault((event.pid, event.tid), []).append((row, event))

    def paired(self, dropped: Counter[str]) -> list[tuple[int, Event]]:
        """Row and event of each begin that has an end, with its duration, in order of row; the others are counted."""
        whole = []
        for found in self._found.values():
            times = nanoseconds([event.ts for _, event in found])
            usable = valid(times)
            dropped["without a usable timestamp or duration"] += int((~usable).sum())
            order = np.argsort(times, kind="stable")
            whole += _pairs([found[at] for at in order[usable[order]].tolist()], times[order[usable[order]]].tolist(), dropped)
        return sorted(whole, key=lambda entry: entry[0])


def _pairs(found: list[tuple[int, Event]], times: list[int], dropped: Counter[str]) -> list[tuple[int, Event]]:
    """The pairs of one thread; an end belongs to the last begin that is open."""
    whole = []
    stack: list[tuple[int, Event, int]] = []
    for (row, event), time in zip(found, times, strict=True):
        if event.ph == "B":
            stack.append((row, event, time))
        elif stack:
            begun, begin, since = stack.pop()
            length = time - since
            begin.dur = msgspec.Raw(f"{length // 1000}.{length % 1000:03d}".encode())
            whole.append((begun, begin))
        else:
            dropped["of an end without a begin"] += 1
    dropped["of a begin without an end"] += len(stack)
    return whole
