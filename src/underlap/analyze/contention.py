"""Hidden is not free: what compute and communication lose by running at the same time, and what is left of hiding.

Net gain = hidden - (compute - compute alone) - (communication - communication alone), in time of the device. What the step
gains is another question, which a replay answers: a kernel off the critical path may be slower for nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.accounting import DeviceSets
from underlap.analyze.calls import CallTimes
from underlap.analyze.estimates import FEWEST, Estimate
from underlap.analyze.groups import Calls
from underlap.analyze.positions import Samples, samples
from underlap.analyze.slowdown import (
    SIZES,
    Effect,
    Word,
    apparent_ratio,
    by_position,
    by_strata,
    drifts,
    fixed,
    judged,
    size_class,
)
from underlap.analyze.slower_calls import CallSlowdown, call_slowdowns
from underlap.analyze.steps import Selection, Steps
from underlap.columns import Int32, Int64
from underlap.timeline import OpClass, Timeline

WORST = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Compute kernels beside communication against the same kernels alone. Ranges are of 95 %."""

    word: Word | Literal["unknown"]
    """unknown: nothing to compare. not established: compared, but something else may explain it."""
    reason: str | None
    """Why the word is no more than that, and what would tell; None for slower and faster."""
    method: Literal["positions", "strata"] | None
    positions: int
    """Positions (or strata) that ran on both sides."""
    kernels_slower: int
    """Of these, how many have the longer median beside communication."""
    kernels_faster: int
    slower_apart: int
    """Of the slower, those whose every duration beside communication exceeds every one alone. With two or three steps in
    all this is often so by chance."""
    faster_apart: int
    ratio: float | None
    """Time beside communication / time alone, of the kernels at these positions: long kernels weigh more."""
    ratio_low: float | None
    ratio_high: float | None
    placebo_ratio: float | None
    placebo_low: float | None
    placebo_high: float | None
    cost_ns: int | None
    """Sum over the kernels beside communication of duration less duration alone. None where not established."""
    cost_low_ns: int | None
    cost_high_ns: int | None
    measured_cost_ns: int | None
    """The part of it at positions that ran on both sides; the rest takes the ratio of their size."""
    without_estimate_ns: int
    """Kernel time beside communication that is not in the cost, because nothing tells what it would be alone."""

    @property
    def established(self) -> bool:
        """Whether a difference is shown."""
        return self.word in ("slower", "faster")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownRow:
    """The kernels of one name, or of one size as they ran beside communication."""

    label: str
    kernels_beside: int
    beside_ns: int
    """Their time beside communication."""
    positions: int
    """Positions or strata of them that ran on both sides."""
    ratio: Estimate | None
    """None with too few positions to give a range."""
    cost_ns: int | None
    blocks: int | None
    """The largest grid, in blocks."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetGain:
    """What is left of hiding, over all devices of the window."""

    word: Literal["gain", "gain at most", "loss", "not established"]
    """gain at most: what communication loses is unknown and not subtracted."""
    reason: str | None
    hidden_ns: int
    compute_cost_ns: int | None
    communication_cost_ns: int | None
    net_ns: int | None
    net_low_ns: int | None
    net_high_ns: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """All of it."""

    compute: Slowdown
    sizes: tuple[SlowdownRow, ...]
    kernels: tuple[SlowdownRow, ...]
    """By name, the costliest first."""
    communication: tuple[CallSlowdown, ...]
    communication_blocks: int | None
    """The largest grid of a communication kernel, in blocks. NCCL keeps one multiprocessor per block to itself."""
    net: NetGain
    samples: Samples = dataclasses.field(compare=False, repr=False)
    """The compute kernels compared."""
    effect: Effect | None = dataclasses.field(compare=False, repr=False)
    """None where nothing could be compared."""


def contention(
    timeline: Timeline,
    steps: Steps,
    selection: Selection,
    sets: dict[tuple[int, int], DeviceSets],
    calls: Calls,
    times: CallTimes,
    family_of_call: Int32,
    transfer_ns: Int64 | None = None,
) -> Contention:
    """The contention inside the window. `transfer_ns` is the time on the wire per call, -1 unknown, where ranks are matched."""
    found = samples(timeline, steps, sets, selection)
    effect = by_position(found) or by_strata(timeline, found)
    compute = _without_effect(timeline, found) if effect is None else _slowdown(found, effect)
    hidden = sum(int(sets[key].amounts(stretches)["hidden"].sum()) for key, stretches in selection.stretches.items())
    alike = effect is not None and effect.placebo is not None and not drifts(effect.ratio, effect.placebo)
    communication = tuple(call_slowdowns(calls, times, family_of_call, transfer_ns, alike=alike))
    rows = effect if effect is not None and compute.cost_ns is not None else None
    return Contention(
        compute=compute,
        sizes=tuple(_size_rows(timeline, found, rows)),
        kernels=tuple(_kernel_rows(timeline, found, rows)),
        communication=communication,
        communication_blocks=_most_blocks(timeline, np.flatnonzero(selection.counted & _communicates(timeline))),
        net=net_gain(hidden, compute, communication),
        samples=found,
        effect=effect,
    )


def _communicates(timeline: Timeline) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = timeline.ops.op_class == OpClass.COMMUNICATION
    return found


def _slowdown(found: Samples, effect: Effect) -> Slowdown:
    beside_ns = int(found.covered.sum())
    word, reason = judged(effect)
    cost = effect.cost if word != "not established" else None
    own = found.covered > 0
    missing = int(found.covered[own & np.isnan(effect.cost_of)].sum()) if cost is not None else beside_ns
    return Slowdown(
        word=word,
        reason=reason,
        method=effect.method,
        positions=effect.units,
        kernels_slower=effect.slower,
        kernels_faster=effect.faster,
        slower_apart=effect.slower_apart,
        faster_apart=effect.faster_apart,
        ratio=effect.ratio.value,
        ratio_low=effect.ratio.low,
        ratio_high=effect.ratio.high,
        placebo_ratio=effect.placebo.value if effect.placebo else None,
        placebo_low=effect.placebo.low if effect.placebo else None,
        placebo_high=effect.placebo.high if effect.placebo else None,
        cost_ns=round(cost[0]) if cost else None,
        cost_low_ns=round(cost[1]) if cost else None,
        cost_high_ns=round(cost[2]) if cost else None,
        measured_cost_ns=round(effect.measured_ns) if cost else None,
        without_estimate_ns=missing,
    )


def _without_effect(timeline: Timeline, found: Samples) -> Slowdown:
    word, reason = _nothing_to_compare(timeline, found)
    figures: dict[str, Any] = dict.fromkeys(_FIGURES)
    return Slowdown(
        word=word,
        reason=reason,
        method=None,
        **dict.fromkeys(_COUNTS, 0),
        **figures,
        without_estimate_ns=int(found.covered.sum()),
    )


_COUNTS = ("positions", "kernels_slower", "kernels_faster", "slower_apart", "faster_apart")
_FIGURES = (
    *("ratio", "ratio_low", "ratio_high", "placebo_ratio", "placebo_low", "placebo_high"),
    *("cost_ns", "cost_low_ns", "cost_high_ns", "measured_cost_ns"),
)


def _nothing_to_compare(timeline: Timeline, found: Samples) -> tuple[Literal["unknown", "not established"], str]:
    if len(found.op) == 0:
        return "unknown", "there is no compute kernel in the window"
    if not found.covered.any():
        return "unknown", "no compute kernel runs beside communication; a run in which some do would tell"
    if not found.alone.any():
        return "unknown", "no compute kernel runs alone; a run with less communication, or without overlap, would tell"
    if fixed(found):
        ratio = apparent_ratio(timeline, found)
        looks = "" if ratio is None else f" (kernels alike in name and grid look {ratio:.2f} times as long there)"
        return "not established", (
            f"each kernel of the step runs either always or never beside communication{looks}, so that its place in the "
            "step and communication cannot be told apart; a run with communication at another place (another bucket size, "
            "or without overlap) would tell"
        )
    steps = max(len(np.unique(found.step[(found.device == number) & (found.step >= 0)])) for number in np.unique(found.device))
    return "unknown", (
        f"fewer than {FEWEST} positions of the step run beside communication in some steps and alone in others "
        f"({steps} {'step' if steps == 1 else 'steps'}), and no kind of kernel has {FEWEST} samples on both sides; "
        "more steps would tell"
    )


def _size_rows(timeline: Timeline, found: Samples, effect: Effect | None) -> list[SlowdownRow]:
    size = size_class(found.duration) if effect is None else effect.size_of
    return [_row(timeline, found, effect, label, size == number) for number, label in enumerate(SIZES)]


def _kernel_rows(timeline: Timeline, found: Samples, effect: Effect | None) -> list[SlowdownRow]:
    """The names with the highest cost; without an effect, those with most time beside communication."""
    name = timeline.ops.name[found.op]
    worth = found.covered.astype(np.float64) if effect is None else np.nan_to_num(effect.cost_of)
    total = np.bincount(name[found.covered > 0], worth[found.covered > 0], len(timeline.names))
    present = np.unique(name[found.covered > 0])
    order = present[np.argsort(-total[present], kind="stable")][:WORST]
    return [_row(timeline, found, effect, timeline.names[number], name == number) for number in order.tolist()]


def _row(timeline: Timeline, found: Samples, effect: Effect | None, label: str, chosen: NDArray[np.bool_]) -> SlowdownRow:
    ratio, units = effect.ratio_of(chosen) if effect is not None else (None, 0)
    covered = chosen & (found.covered > 0)
    cost = effect.cost_of[covered] if effect is not None else np.full(1, np.nan)
    return SlowdownRow(
        label=label,
        kernels_beside=int(covered.sum()),
        beside_ns=int(found.covered[covered].sum()),
        positions=units,
        ratio=ratio,
        cost_ns=None if np.isnan(cost).all() and len(cost) else round(float(np.nansum(cost))),
        blocks=_most_blocks(timeline, found.op[covered]),
    )


def _most_blocks(timeline: Timeline, rows: Int64) -> int | None:
    used = np.unique(timeline.ops.shape[rows])
    grids = [timeline.shapes[at][0] for at in used[used >= 0].tolist()]
    return max((x * y * z for x, y, z in grids), default=None)


def net_gain(hidden_ns: int, compute: Slowdown, communication: tuple[CallSlowdown, ...]) -> NetGain:
    """Hidden less what both sides lose. The range takes what has no estimate at its worst: a kernel cannot lose more than
    its time. What communication loses by kernel time may be waiting, so it counts at the low end of the range only."""
    if hidden_ns == 0 or compute.cost_ns is None or compute.cost_low_ns is None or compute.cost_high_ns is None:
        missing = f"what compute loses beside communication is not known: {compute.reason}"
        return NetGain(
            word="not established",
            reason="no communication is hidden behind compute" if hidden_ns == 0 else missing,
            hidden_ns=hidden_ns,
            compute_cost_ns=compute.cost_ns,
            communication_cost_ns=None,
            net_ns=None,
            net_low_ns=None,
            net_high_ns=None,
        )
    costs = [(row.measure, row.cost) for row in communication if row.cost is not None and row.hidden_ns > 0]
    complete = all(row.cost is not None and row.measure == "transfer" for row in communication if row.hidden_ns > 0)
    least = sum(round(cost[1]) for measure, cost in costs if measure == "transfer")
    most = sum(max(round(cost[2]), 0) if measure == "kernel time" else round(cost[2]) for measure, cost in costs)
    lost = sum(round(cost[0]) for measure, cost in costs if measure == "transfer")
    low = hidden_ns - compute.cost_high_ns - compute.without_estimate_ns - most
    high = hidden_ns - compute.cost_low_ns - least
    word, reason = _net_word(low, high, complete)
    return NetGain(
        word=word,
        reason=reason,
        hidden_ns=hidden_ns,
        compute_cost_ns=compute.cost_ns,
        communication_cost_ns=lost if complete else None,
        net_ns=hidden_ns - compute.cost_ns - lost,
        net_low_ns=low,
        net_high_ns=high,
    )


def _net_word(
    low: int, high: int, complete: bool
) -> tuple[Literal["gain", "gain at most", "loss", "not established"], str | None]:
    unknown = "what communication loses beside compute is not known; traces of all ranks, and more steps, would tell"
    if high < 0:
        return "loss", None
    if low > 0:
        return ("gain", None) if complete else ("gain at most", unknown)
    return "not established", ("the range includes 0" if complete else f"the range includes 0, and {unknown}")


def multiprocessors_short(multiprocessors: int, compute_blocks: int | None, communication_blocks: int | None) -> bool | None:
    """Whether the blocks of a compute and a communication kernel can be too many to have a multiprocessor each.

    False rules a shortage of multiprocessors out as the reason of a slowdown; what is left is memory bandwidth, cache or
    power. True does not prove one. None where a grid is not known.

    >>> multiprocessors_short(142, compute_blocks=128, communication_blocks=1)
    False
    """
    if compute_blocks is None or communication_blocks is None:
        return None
    return compute_blocks + communication_blocks > multiprocessors
