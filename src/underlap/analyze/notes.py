"""What a reader has to know about the input and the figures, most important first, each thing once."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.calls import OUTLIER_FACTOR, CallTimes
from underlap.analyze.groups import Calls, world_size
from underlap.analyze.steps import Selection
from underlap.report import UnmatchedRow
from underlap.timeline import Note, OpClass, Timeline
from underlap.wording import counted, listed, ranges

_NAMES_SHOWN = 3
_OUTSIDE_SHARE = 0.01
"""What lies outside the window is said from this share of the device's work on."""
_NAME_LENGTH = 60


def collect(
    timeline: Timeline,
    calls: Calls,
    selection: Selection,
    times: CallTimes,
    outlier: NDArray[np.bool_],
    unmatched: list[UnmatchedRow],
    busy: Busy,
    meeting: tuple[Note, ...],
) -> list[Note]:
    """All notes of a report: what can make its figures wrong comes first."""
    found = [
        _no_communication(timeline, unmatched),
        *timeline.notes,
        _missing_ranks(timeline),
        _missing_steps(timeline, selection),
        _left_out_between(selection),
        _outside(busy, selection),
        *calls.notes,
        _unknown_collectives(calls, times),
        _unknown_bytes(calls, times),
        *meeting,
        _outliers(timeline, calls, times, outlier),
        _coarse(timeline),
    ]
    return list(dict.fromkeys(note for note in found if note is not None))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Device-busy time, summed over devices."""

    total_ns: int
    outside_ns: int
    """Of it, outside the window."""


def _outside(busy: Busy, selection: Selection) -> Note | None:
    if selection.kind == "whole" or busy.outside_ns <= _OUTSIDE_SHARE * busy.total_ns:
        return None
    share = busy.outside_ns / busy.total_ns
    text = f"{busy.outside_ns / 1e6:.2f} ms of device work ({share:.0%}) lie outside the steps; --window whole counts them"
    return Note(code="outside_window", text=text)


def _no_communication(timeline: Timeline, unmatched: list[UnmatchedRow]) -> Note | None:
    world = world_size(timeline)
    if world is None or world < 2 or np.isin(timeline.ops.op_class, (OpClass.COMMUNICATION, OpClass.FUSED, OpClass.WAIT)).any():
        return None
    names = ", ".join(_short(row.name) for row in unmatched[:_NAMES_SHOWN]) or "none"
    text = (
        f"NO COMMUNICATION RECOGNIZED in a job of {world} ranks: every figure about overlap is empty. "
        f"Longest kernels without a known family: {names}. Teach a name with --names FILE.yaml"
    )
    return Note(code="no_communication", text=text)


def _missing_ranks(timeline: Timeline) -> Note | None:
    world = world_size(timeline)
    sizes = {info.world_size for info in timeline.ranks if info.world_size is not None}
    if len(sizes) > 1:
        return Note(code="world_size_differs", text=f"the files disagree about the world size ({sorted(sizes)}); it is unknown")
    present = {info.rank for info in timeline.ranks}
    if world is None or len(present) >= world or timeline.provenance == "simulated":
        return None  # of a simulated job one rank stands for each role
    ranks = ranges(sorted(present))
    text = f"only {counted(len(present), 'rank')} of {world} in the input ({ranks})"
    return Note(code="missing_ranks", text=text)


def _missing_steps(timeline: Timeline, selection: Selection) -> Note | None:
    absent = sorted({info.rank for info in timeline.ranks} - {rank for rank, _ in selection.stretches})
    if not absent:
        return None
    text = f"not counted, without any of the steps of the window: {listed('rank', absent)}"
    return Note(code="ranks_without_steps", text=text)


def _left_out_between(selection: Selection) -> Note | None:
    numbers = selection.numbers
    if not numbers or len(numbers) == numbers[-1] - numbers[0] + 1:
        return None
    text = "critical path, levers and bound are of all from the first chosen step to the last: the steps left out are in them"
    return Note(code="steps_left_out_between", text=text)


def _unknown_collectives(calls: Calls, times: CallTimes) -> Note | None:
    unknown = times.counted & (calls.table.collective < 0)
    if not unknown.any():
        return None
    length = times.duration[unknown].sum() / 1e6
    text = f"{counted(int(unknown.sum()), 'communication kernel')} ({length:.3f} ms): the trace does not say which collective"
    return Note(code="collective_unknown", text=text)


def _unknown_bytes(calls: Calls, times: CallTimes) -> Note | None:
    total = times.duration[times.counted].sum()
    unknown = times.duration[times.counted & (calls.table.payload_bytes < 0)].sum()
    if total == 0 or unknown == 0:
        return None
    return Note(code="bytes_unknown", text=f"bytes are unknown for {unknown / total:.1%} of the communication kernel time")


def _outliers(timeline: Timeline, calls: Calls, times: CallTimes, outlier: NDArray[np.bool_]) -> Note | None:
    if not outlier.any():
        return None
    worst = int(np.flatnonzero(outlier)[times.duration[outlier].argmax()])
    name = timeline.name_of(int(calls.table.collective[worst])) or "collective"
    text = (
        f"{counted(int(outlier.sum()), 'call')} took over {OUTLIER_FACTOR}x the median of equal size; "
        f"longest: {name} on rank {int(calls.table.rank[worst])}, {times.duration[worst] / 1e6:.3f} ms"
    )
    return Note(code="outliers", text=text)


def _coarse(timeline: Timeline) -> Note | None:
    if any(info.resolution_ns > 1 for info in timeline.ranks):
        return Note(code="microseconds", text="times are whole microseconds; kernels shorter than that are inexact")
    return None


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 3] + "..."
