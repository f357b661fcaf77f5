"""Figures of a Report that a claim can be settled on, each as the interval that it lies in (docs/claims.md has the table).

The ends of an interval take at their worst what the Report itself calls uncertain: clocks between ranks (each call's waiting is
off by up to the uncertainty), kernels that no family matched (counted as compute, may be communication), fused kernels, and the
spread of steps. What has no limit is None. Nothing here knows a claim's value.
"""

from __future__ import annotations

import dataclasses
import statistics

from underlap.judge.selection import Amounts
from underlap.report import Report

LEAST_STEPS = 6
"""With fewer, even the least and the most of them miss the median of all such steps in over 5 % of samples: 2 / 2^n."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plain ratio, ns, bytes or GB/s."""

    low: float | None
    high: float | None
    best: float | None
    """The figure itself. None where only the ends are known."""
    formula: str
    fields: tuple[str, ...]
    why: str
    """What widens the interval, or why there is no figure."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The median time of the used steps, each as long as on its slowest rank, with the ends that it lies between."""

    ns: float
    ends: tuple[int, int] | None
    """Of the 95 % interval. None where there are too few steps for one."""
    how: str


def unknown(why: str, formula: str = "", fields: tuple[str, ...] = ()) -> Figure:
    """No figure, and why."""
    return Figure(low=None, high=None, best=None, formula=formula, fields=fields, why=why)


def hidden_of_kernel_time(part: Amounts) -> Figure:
    """hidden / communication, waiting for peers inside both."""
    formula, fields = "hidden_ns / communication_ns", (f"{part.fields}.hidden_ns", f"{part.fields}.communication_ns")
    if part.communication == 0:
        return unknown(_no_time(part), formula, fields)
    low, high = _share(part.hidden, part.communication, part)
    return Figure(
        low=low,
        high=high,
        best=part.hidden / part.communication,
        formula=formula,
        fields=fields,
        why="kernel time: waiting for peers is inside" + _blurred(part),
    )


def hidden_of_transfer(part: Amounts) -> Figure:
    """hidden transfer / transfer, the headline share. Between its limits where waiting could not be separated."""
    formula = "hidden_transfer_ns / (communication_ns - wait_ns)"
    fields = tuple(f"{part.fields}.{name}" for name in ("hidden_transfer_ns", "communication_ns", "wait_ns"))
    if part.communication == 0:
        return unknown(_no_time(part), formula, fields)
    if part.wait is None or part.hidden_transfer is None or part.clock is None:
        missing = "the uncertainty of the clocks is" if part.clock is None and part.wait is not None else "waiting is"
        why = f"{missing} not known, only the share of kernel time: {part.hidden / part.communication:.1%}"
        covered = part.exposed + part.under_fused == 0 and part.unclassified + part.fused == 0
        return Figure(
            low=1.0 if covered else 0.0,
            high=0.0 if part.hidden + part.fused == 0 else 1.0,
            best=None,
            formula=formula,
            fields=fields,
            why=why + "; traces of all ranks would tell",
        )
    transfer = part.communication - part.wait
    if transfer <= 0:
        return unknown("all of it is waiting for peers: nothing was transferred", formula, fields)
    off = part.kernels * part.clock
    # Waiting called transfer, or the reverse, for each call by as much as the clocks allow; no more than there is of either.
    most = min(part.communication, transfer + off)
    ends = [
        _share(max(0, part.hidden_transfer - off), max(1, transfer - off), part)[0],
        _share(part.hidden_transfer, most, part)[0],
        _share(min(part.hidden, part.hidden_transfer + off), most, part)[1],
        _share(part.hidden_transfer, max(1, transfer - off), part)[1],
    ]
    clocks = f"clocks are known to {part.clock / 1000:.1f} us, in each of {part.kernels} kernels" if part.clock else ""
    return Figure(
        low=min(ends),
        high=max(ends),
        best=part.hidden_transfer / transfer,
        formula=formula,
        fields=fields,
        why=(clocks + _blurred(part)).lstrip("; ") or "waiting is known",
    )


def _share(above: float, below: float, part: Amounts) -> tuple[float, float]:
    """The ends of a share that unclassified and fused kernels could shift."""
    unclassified, fused = part.unclassified, part.fused
    low = max(0.0, above - unclassified) / (below + unclassified + fused)
    high = (above + unclassified + fused) / (below + unclassified + fused)
    return min(1.0, low), min(1.0, max(high, above / below))


def _blurred(part: Amounts) -> str:
    words = ""
    if part.unclassified:
        words += f"; {part.unclassified / 1e6:.3f} ms of kernels are not classified and could be communication"
    if part.fused:
        words += f"; {part.fused / 1e6:.3f} ms are fused with compute, hidden or not"
    return words


def _no_time(part: Amounts) -> str:
    if part.fused:
        return "it is all fused with compute in one kernel: hidden cannot be told"
    return "there is no communication time in the window"


def exposed_share(part: Amounts) -> Figure:
    """exposed / span of the window."""
    name = "exposed_ns" if part.fields == "ranks[]" else "exposed_share_ns"
    return _of_span(part, part.exposed, name)


def communication_share(part: Amounts) -> Figure:
    """communication / span of the window."""
    return _of_span(part, part.communication, "communication_ns")


def _of_span(part: Amounts, time: int, name: str) -> Figure:
    formula, fields = f"{name} / span_ns", (f"{part.fields}.{name}", "ranks[].span_ns")
    if part.span <= 0:
        return unknown("the window has no length", formula, fields)
    more = part.unclassified + part.fused
    return Figure(
        low=time / part.span,
        high=min(1.0, (time + more) / part.span),
        best=time / part.span,
        formula=formula,
        fields=fields,
        why="waiting for peers is inside" + _blurred(part),
    )


def waiting_share(part: Amounts) -> Figure:
    """wait / communication."""
    formula, fields = "wait_ns / communication_ns", (f"{part.fields}.wait_ns", f"{part.fields}.communication_ns")
    if part.communication == 0:
        return unknown(_no_time(part), formula, fields)
    if part.wait is None or part.clock is None:
        why = "waiting could not be separated: traces of all ranks would tell"
        return Figure(low=0.0, high=1.0, best=None, formula=formula, fields=fields, why=why)
    off, more = part.kernels * part.clock, part.unclassified + part.fused
    return Figure(
        low=max(0.0, part.wait - off) / (part.communication + more),
        high=min(1.0, (part.wait + off + more) / (part.communication + more)),
        best=part.wait / part.communication,
        formula=formula,
        fields=fields,
        why=f"clocks are known to {part.clock / 1000:.1f} us" + _blurred(part),
    )


def exposed_time(part: Amounts) -> Figure:
    """Exposed communication per step, mean over ranks, in ns."""
    name = "exposed_ns" if part.fields == "ranks[]" else "exposed_share_ns"
    formula = f"{name} / rows of ranks / steps"
    fields = (f"{part.fields}.{name}", "ranks", "window.steps_used")
    if part.steps is None:
        return unknown("the window is no steps: analyze with --window steps", formula, fields)
    per = part.rows * part.steps
    more = part.unclassified + part.fused
    return Figure(
        low=part.exposed / per,
        high=(part.exposed + more) / per,
        best=part.exposed / per,
        formula=formula,
        fields=fields,
        why="waiting for peers is inside" + _blurred(part),
    )


def bytes_per_step(part: Amounts) -> Figure:
    """Payload per step, mean over ranks."""
    formula = "payload_bytes / rows of ranks / steps"
    fields = ("families[].payload_bytes", "ranks", "window.steps_used")
    if part.steps is None:
        return unknown("the window is no steps: analyze with --window steps", formula, fields)
    if part.payload is None:
        return unknown("the payload is not known for every call", formula, fields)
    if part.unclassified:
        return unknown(
            f"{part.unclassified / 1e6:.3f} ms of kernels are not classified and could be communication", formula, fields
        )
    value = part.payload / (part.rows * part.steps)
    return Figure(low=value, high=value, best=value, formula=formula, fields=fields, why="known for every call")


def bus_bandwidth(part: Amounts) -> Figure:
    """GB/s over transfer time, of one family; its kernel time gives a lower end."""
    formula, fields = "busbw_gbps, else busbw_kernel_gbps as the lower end", ("families[].busbw_gbps",)
    if len(part.families) != 1:
        return unknown("a bandwidth is of one axis and one collective: name both in the claim", formula, fields)
    (row,) = part.families
    if row.busbw_kernel_gbps is None and row.busbw_gbps is None:
        return unknown("payload or group size is not known", formula, fields)
    if row.busbw_gbps is None or part.wait is None or part.clock is None:
        why = "waiting could not be separated, so kernel time gives a lower end only"
        return Figure(low=row.busbw_kernel_gbps, high=None, best=None, formula=formula, fields=fields, why=why)
    transfer, off = part.communication - part.wait, part.kernels * part.clock
    return Figure(
        low=row.busbw_gbps * transfer / (transfer + off) if transfer > 0 else None,
        high=row.busbw_gbps * transfer / (transfer - off) if transfer > off else None,
        best=row.busbw_gbps,
        formula=formula,
        fields=fields,
        why=f"clocks are known to {part.clock / 1000:.1f} us, in each of {part.kernels} kernels",
    )


def compute_stretch(report: Report) -> Figure:
    """Duration of compute beside communication / alone, as a ratio."""
    formula, fields = "contention.ratio", ("contention.ratio", "contention.ratio_low", "contention.ratio_high")
    found = report.contention
    if found is None:
        return unknown("contention was not looked for: run underlap analyze with --explain", formula, fields)
    if found.ratio_low is None or found.ratio_high is None or found.word in ("unknown", "not established"):
        return unknown(f"contention is {found.word}: {found.reason or 'no reason given'}", formula, fields)
    why = f"{found.method or 'compared'}, placebo {found.placebo_ratio}"
    return Figure(low=found.ratio_low, high=found.ratio_high, best=found.ratio, formula=formula, fields=fields, why=why)


def step_time(report: Report) -> Figure:
    """The median step, in ns."""
    formula, fields = "median over steps of the longest span_ns", ("steps[].span_ns where used",)
    median = median_step(report)
    if isinstance(median, str):
        return unknown(median, formula, fields)
    low, high = median.ends or (None, None)
    return Figure(low=low, high=high, best=median.ns, formula=formula, fields=fields, why=median.how)


def speedup(report: Report, baseline: Report) -> Figure:
    """Baseline step / step, as a ratio."""
    formula = "median step of the baseline / median step"
    fields = ("steps[].span_ns where used, of both Reports",)
    medians = _medians(report, baseline)
    if isinstance(medians, str):
        return unknown(medians, formula, fields)
    now, before = medians
    why = f"{now.how}; baseline: {before.how}; one run each, so what differs from run to run is not inside"
    low = high = None
    if now.ends and before.ends:
        low, high = before.ends[0] / now.ends[1], before.ends[1] / now.ends[0]
    return Figure(low=low, high=high, best=before.ns / now.ns, formula=formula, fields=fields, why=why)


def saved_share(report: Report, baseline: Report, part_before: Amounts) -> Figure:
    """Step time saved / exposed communication of the baseline per step, as a ratio."""
    formula = "(median step of the baseline - median step) / (exposed per step of the baseline, mean over ranks)"
    fields = ("steps[].span_ns where used, of both Reports", f"baseline {part_before.fields}.exposed")
    medians = _medians(report, baseline)
    if isinstance(medians, str):
        return unknown(medians, formula, fields)
    now, before = medians
    exposed = exposed_time(part_before)
    if exposed.low is None or exposed.high is None or exposed.best is None or exposed.low <= 0:
        return unknown("the baseline has no exposed communication to save", formula, fields)
    ends: list[float] = []
    if now.ends and before.ends:
        saved = (before.ends[0] - now.ends[1], before.ends[1] - now.ends[0])
        ends = [difference / time for difference in saved for time in (exposed.low, exposed.high)]
    return Figure(
        low=min(ends, default=None),
        high=max(ends, default=None),
        best=(before.ns - now.ns) / exposed.best,
        formula=formula,
        fields=fields,
        why=f"{now.how}; baseline: {before.how}",
    )


def _medians(report: Report, baseline: Report) -> tuple[Median, Median] | str:
    now, before = median_step(report), median_step(baseline)
    if isinstance(now, str):
        return now
    if isinstance(before, str):
        return f"baseline: {before}"
    return now, before


def median_step(report: Report) -> Median | str:
    """The median step, or why there is none."""
    longest: dict[str, int] = {}
    for row in report.steps:
        if row.used:
            longest[row.step] = max(longest.get(row.step, 0), row.span_ns)
    times = sorted(longest.values())
    if report.window.kind != "steps" or not times:
        return "the window is no steps: analyze with --window steps"
    if times[0] <= 0:
        return "a step has no length"
    middle = statistics.median(times)
    skipped = _ends_of_interval(len(times))
    if skipped is None:
        count = f"{len(times)} step{'s' if len(times) > 1 else ''}"
        how = f"{count} from {times[0] / 1e6:.3f} to {times[-1] / 1e6:.3f} ms: not established, {LEAST_STEPS} are the least"
        return Median(ns=middle, ends=None, how=how)
    how = f"{len(times)} steps, 95 % interval of their median"
    return Median(ns=middle, ends=(times[skipped], times[-1 - skipped]), how=how)


def _ends_of_interval(count: int) -> int | None:
    """How many of the sorted figures to skip at each end for a 95 % interval of the median; None where there are too few.

    Order statistics: a sample of n lies below the median k times or fewer with the binomial probability of (n, 1/2).
    """
    if count > 1000:
        return int((count - 1.96 * count**0.5) / 2) - 1  # the binomial's weights leave the range of floats
    below, weight, skipped = 0.0, 0.5**count, None
    for k in range(count // 2):
        below += weight
        if 2 * below > 0.05:
            break
        skipped = k
        weight *= (count - k) / (k + 1)
    return skipped
