"""Which steps a Timeline has, where each begins and ends on each device, and which window the figures are about.

A step on a device runs from the first kernel launched in it to the first kernel launched in the next (DESIGN section 4), so
that queued kernels count where they were launched. Without launches the annotation itself is the step.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from underlap.columns import NONE, Int32, Int64
from underlap.errors import OptionError
from underlap.timeline import UNKNOWN_NS, HostKind, OpClass, Timeline

_TRAINING = re.compile(r"(?:ProfilerStep#|(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?)[ _#:=-]*)(\d{1,18})$", re.IGNORECASE)
_SERVING = re.compile(r"execute_")
Mark = tuple[int, str, int, int]
"""(number, label, start, end)"""

_GRAPH_LAUNCH = re.compile(r"(?:cuda|hip)GraphLaunch|cuGraphLaunch")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step on one device."""

    label: str
    number: int
    """As the annotation counts it, or the position where it does not count."""
    rank: int
    device: int
    start_ns: int
    end_ns: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of all devices, and the step of each operation."""

    kind: str | None
    """What marks them: training annotations, serving annotations, graph launches; None without steps."""
    steps: tuple[Step, ...]
    of_op: Int32
    """Per operation the `Step.number` in which it was launched, -1 outside. Shape (len(ops),)."""

    @property
    def labels(self) -> dict[int, str]:
        """Number -> label, in order of number."""
        return {step.number: step.label for step in sorted(self.steps, key=lambda step: step.number)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The window: per (rank, device) the stretches that count, in order."""

    kind: str
    definition: str
    numbers: tuple[int, ...]
    """The steps used; empty for the whole trace."""
    stretches: dict[tuple[int, int], Int64]
    """(rank, device) -> rows [start, end), shape (n, 2)."""
    counted: np.ndarray
    """Per operation whether it belongs to the window (by its launch). Bool, shape (len(ops),)."""


def find(timeline: Timeline) -> Steps:
    """The steps that the annotations (else the graph launches) of each rank mark."""
    kind, marks = _marks(timeline)
    of_op = np.full(len(timeline.ops), NONE, dtype=np.int32)
    steps: list[Step] = []
    for rank, device in devices(timeline):
        own = np.flatnonzero((timeline.ops.rank == rank) & (timeline.ops.device == device))
        if rank in marks:
            steps.extend(_on_device(timeline, own, marks[rank], rank, device, of_op))
    return Steps(kind=kind, steps=tuple(steps), of_op=of_op)


def _marks(timeline: Timeline) -> tuple[str | None, dict[int, list[Mark]]]:
    """What marks steps, and per rank the marks in order of time."""
    for kind, pattern in (("training annotations", _TRAINING), ("serving annotations", _SERVING)):
        marks = _annotations(timeline, pattern)
        if marks:
            return kind, marks
    marks = _graph_launches(timeline)
    return ("graph launches" if marks else None), marks


def devices(timeline: Timeline) -> list[tuple[int, int]]:
    """The (rank, device) pairs that have operations, in order."""
    pairs = np.unique(np.column_stack((timeline.ops.rank, timeline.ops.device)), axis=0)
    return [(int(rank), int(device)) for rank, device in pairs]


def select(timeline: Timeline, steps: Steps, window: str | None, numbers: Sequence[int] | None) -> Selection:
    """The window that the options ask for. Raises OptionError when the trace cannot give it."""
    available = steps.labels
    if numbers is not None and window == "whole":
        raise OptionError("--steps and --window whole contradict each other; give one of them")
    if (window == "steps" or numbers is not None) and not available:
        raise OptionError(
            "the trace has no steps: expected annotations ProfilerStep#N, step N, iteration N or execute_*; use --window whole"
        )
    missing = sorted(set(numbers or ()) - set(available))
    if missing:
        found = ", ".join(map(str, available))
        raise OptionError(f"--steps asks for {', '.join(map(str, missing))}; the trace has {found}")
    default = window is None and numbers is None
    if window == "whole" or not available or (default and steps.kind == "graph launches"):
        reason = "" if window == "whole" else "; the trace has no step annotations" if not available else ""
        return _whole(timeline, f"first to last device event of each device{reason}")
    used = tuple(sorted(set(numbers))) if numbers is not None else tuple(available)
    stretches: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step in steps.steps:
        if step.number in used:
            stretches.setdefault((step.rank, step.device), []).append((step.start_ns, step.end_ns))
    on_cpu = {info.rank for info in timeline.ranks if info.on_cpu}
    how = "the annotation" if on_cpu else "first kernel launched in the step to first launched in the next"
    return Selection(
        kind="steps",
        definition=f"steps by {steps.kind}: {how}; cut at the border",
        numbers=used,
        stretches={key: np.array(sorted(rows), dtype=np.int64) for key, rows in stretches.items()},
        counted=np.isin(steps.of_op, used),
    )


def _whole(timeline: Timeline, definition: str) -> Selection:
    ops = timeline.ops
    stretches = {}
    for rank, device in devices(timeline):
        own = (ops.rank == rank) & (ops.device == device)
        launched = ops.launch_ns != UNKNOWN_NS
        # A copy that was submitted before the recording began (its launch is missing, others are there) is a remnant of
        # earlier work: it neither opens nor closes the window. Kernels always do.
        opening = own & (launched | (ops.op_class != OpClass.COPY))
        own = opening if (own & launched).any() and opening.any() else own
        start, end = int(timeline.ops.start_ns[own].min()), int(timeline.ops.end_ns[own].max())
        stretches[rank, device] = np.array([[start, end]], dtype=np.int64)
    return Selection(
        kind="whole",
        definition=definition,
        numbers=(),
        stretches=stretches,
        counted=np.ones(len(timeline.ops), dtype=bool),
    )


def _annotations(timeline: Timeline, pattern: re.Pattern[str]) -> dict[int, list[Mark]]:
    """Per rank (number, label, start, end) of the annotations that the pattern finds, in order of time."""
    host = timeline.host
    wanted = [at for at, name in enumerate(timeline.names) if pattern.match(name)]
    rows = np.flatnonzero((host.kind == HostKind.ANNOTATION) & np.isin(host.name, wanted))
    marks: dict[int, list[Mark]] = {}
    for row in rows[np.lexsort((host.source_row[rows], host.start_ns[rows]))].tolist():
        label = timeline.names[host.name[row]]
        own = marks.setdefault(int(host.rank[row]), [])
        found = pattern.match(label)
        number = int(found.group(1)) if found is not None and pattern.groups else len(own)
        if number < np.iinfo(np.int32).max and all(number != other for other, *_ in own):
            own.append((number, label, int(host.start_ns[row]), int(host.end_ns[row])))
    return {rank: _cut_at_the_next(own) for rank, own in marks.items() if own}


def _cut_at_the_next(marks: list[Mark]) -> list[Mark]:
    """Steps do not overlap: where annotations nest or overlap, the one that began last counts."""
    starts = [start for _, _, start, _ in marks[1:]]
    last = [end for *_, end in marks[-1:]]
    return [
        (number, label, start, min(end, following))
        for (number, label, start, end), following in zip(marks, starts + last, strict=True)
    ]


def _graph_launches(timeline: Timeline) -> dict[int, list[Mark]]:
    """Per rank one mark per graph launch, each lasting until the next, the last until the rank's last device event."""
    host = timeline.host
    wanted = [at for at, name in enumerate(timeline.names) if _GRAPH_LAUNCH.match(name)]
    marks: dict[int, list[Mark]] = {}
    for rank in np.unique(host.rank).tolist():
        rows = np.flatnonzero((host.rank == rank) & (host.kind == HostKind.LAUNCH) & np.isin(host.name, wanted))
        starts = np.sort(host.start_ns[rows]).tolist()
        last = timeline.ops.end_ns[timeline.ops.rank == rank]
        if len(starts) > 1 and len(last):
            ends = [*starts[1:], max(int(last.max()), starts[-1]) + 1]
            spans = enumerate(zip(starts, ends, strict=True))
            marks[rank] = [(at, f"graph launch {at}", start, end) for at, (start, end) in spans]
    return marks


def _on_device(timeline: Timeline, own: Int64, marks: list[Mark], rank: int, device: int, of_op: Int32) -> list[Step]:
    ops = timeline.ops
    begins = np.array([start for _, _, start, _ in marks], dtype=np.int64)
    ends = np.array([end for _, _, _, end in marks], dtype=np.int64)
    numbers = np.array([number for number, *_ in marks], dtype=np.int32)
    launch = ops.launch_ns[own]
    launched = launch != UNKNOWN_NS
    if not launched.any():
        at = _mark_at(ops.start_ns[own], begins, ends)
        of_op[own] = np.where(at >= 0, numbers[at], NONE)
        return [
            Step(label=label, number=number, rank=rank, device=device, start_ns=start, end_ns=end)
            for number, label, start, end in marks
            if end > start
        ]
    at = np.where(launched, _mark_at(launch, begins, ends), NONE)
    kernels = launched & (ops.op_class[own] != OpClass.COPY)
    # Border i: the start of the first kernel launched in mark i; the last border closes the last step.
    borders: list[int | None] = [_first_start(ops.start_ns[own], launch, kernels & (at == mark)) for mark in range(len(marks))]
    after = _first_start(ops.start_ns[own], launch, kernels & (launch >= ends[-1]))
    belongs = ops.end_ns[own][at == len(marks) - 1]
    close = after if after is not None else int(belongs.max()) if len(belongs) else None
    steps = []
    for mark, (number, label, _, _) in enumerate(marks):
        start = borders[mark]
        following = [border for border in borders[mark + 1 :] if border is not None]
        # A mark that does not directly follow (a gap of host time) still ends where the next step's kernels begin.
        # Kernels of a later step that run first, on a lane with nothing queued, begin the later step.
        end = min(following) if following else close
        if start is not None and end is not None and end > start:
            steps.append(Step(label=label, number=number, rank=rank, device=device, start_ns=start, end_ns=end))
            of_op[own[at == mark]] = number
    # Rows without a launch (and rows launched between marks) belong where they start.
    loose = own[at == NONE]
    if steps and len(loose):
        spot = _mark_at(
            ops.start_ns[loose],
            np.array([step.start_ns for step in steps], dtype=np.int64),
            np.array([step.end_ns for step in steps], dtype=np.int64),
        )
        of_op[loose] = np.where(spot >= 0, np.array([step.number for step in steps], dtype=np.int32)[spot], NONE)
    return steps


def _mark_at(times: Int64, begins: Int64, ends: Int64) -> Int64:
    """For each time the index of the last mark that begins at or before it and has not ended; -1 for none."""
    at = np.searchsorted(begins, times, side="right") - 1
    return np.where((at >= 0) & (times < ends[np.maximum(at, 0)]), at, NONE)


def _first_start(starts: Int64, launches: Int64, chosen: np.ndarray) -> int | None:
    """The start of the chosen operation that was launched first; None if none is chosen."""
    rows = np.flatnonzero(chosen)
    if len(rows) == 0:
        return None
    return int(starts[rows[np.lexsort((starts[rows], launches[rows]))[0]]])
