"""A claim about one's own run, against its Report: held, refuted, or not decidable from it. Unknown is never a pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from underlap.claim import METRICS, SCALE, Claim, Value, written
from underlap.judge import figures
from underlap.judge.figures import Figure
from underlap.judge.selection import Amounts, select
from underlap.judge.standing import stated
from underlap.judgement import HELD, NOT_DECIDABLE, REFUTED, Check, Settlement
from underlap.report import Report

OF_PART: dict[str, Callable[[Amounts], Figure]] = {
    "exposed_share": figures.exposed_share,
    "communication_share": figures.communication_share,
    "waiting_share": figures.waiting_share,
    "exposed_time": figures.exposed_time,
    "bytes_per_step": figures.bytes_per_step,
    "bus_bandwidth": figures.bus_bandwidth,
}
OF_REPORT: dict[str, Callable[[Report], Figure]] = {"compute_stretch": figures.compute_stretch, "step_time": figures.step_time}
SETTLED = ("hidden_share", *OF_PART, *OF_REPORT, "end_to_end_speedup", "end_to_end_slowdown", "saved_share")
"""The metrics that a Report can settle; the last three need a baseline's Report as well."""
HIDDEN = {"transfer": figures.hidden_of_transfer, "kernel_time": figures.hidden_of_kernel_time}
_TAKEN_ON_TRUST = ("workload.model", "workload.phase", "workload.batch", "workload.sequence", "workload.precision", "baseline")
_BLIND = {"opaque_graphs": "kernels inside device graphs are not in the trace"}
"""Codes of notes that make every figure one of a part of the work only."""
_SAID = (
    "truncated",
    "missing_ranks",
    "outside_window",
    "events_dropped",
    "events_skipped",
    "ranks_without_steps",
    "duplicate_ranks",
)
"""Codes of notes that a reader of the outcome has to know."""


def settle(claim: Claim, report: Report, baseline: Report | None = None) -> Settlement:
    """The Settlement of a claim; `baseline` is the Report of the run without the change."""
    mismatch = _mismatch(claim, report)
    blind = [words for code, words in _BLIND.items() if any(note.code == code for note in report.notes)]
    partial = _partial(report, baseline)
    checks = [_blocked(check, mismatch + blind) for check in _checks(claim, report, baseline)]
    # What was not seen may be otherwise: it turns no "refuted" into doubt, but no "held" can rest on it.
    checks = [_blocked(check, partial if check.outcome == HELD else []) for check in checks]
    return Settlement(
        outcome=_overall([check.outcome for check in checks]),
        provenance=report.provenance.kind,
        window=_window(report),
        checks=checks,
        conditions=_conditions(claim, report),
        notes=_notes(report, baseline),
    )


def _overall(outcomes: list[str]) -> str:
    if REFUTED in outcomes:
        return REFUTED
    return HELD if outcomes and all(outcome == HELD for outcome in outcomes) else NOT_DECIDABLE


def _checks(claim: Claim, report: Report, baseline: Report | None) -> list[Check]:
    checks = []
    if claim.metric is not None or claim.value is not None or claim.bytes.unchanged is None:
        checks.append(_figure_check(claim, report, baseline))
    if claim.bytes.unchanged is not None:
        checks.append(_bytes_check(claim, report, baseline))
    return checks


def _figure_check(claim: Claim, report: Report, baseline: Report | None) -> Check:
    if claim.metric is None:
        return _check(claim, "figure", None, figures.unknown("the claim names no metric, so nothing tells what to measure"))
    if claim.metric not in SETTLED:
        why = f"{claim.metric} ({METRICS[claim.metric].meaning}) cannot be read off a Report; these can: {', '.join(SETTLED)}"
        return _check(claim, claim.metric, claim.of, figures.unknown(why))
    if claim.value is None:
        return _check(claim, claim.metric, claim.of, figures.unknown("the claim has no figure"))
    if claim.metric == "hidden_share" and claim.of is None:
        return _either(claim, [_settled(claim, report, baseline, of) for of in HIDDEN])
    return _settled(claim, report, baseline, claim.of)


def _settled(claim: Claim, report: Report, baseline: Report | None, of: str | None) -> Check:
    assert claim.metric is not None
    return _check(claim, claim.metric, of, _as_claimed(claim, _figure(claim, report, baseline, of)))


def _either(claim: Claim, checks: list[Check]) -> Check:
    """The claim does not say of what: decided where both readings agree."""
    first, second = checks
    if first.outcome == second.outcome != NOT_DECIDABLE:
        return first
    why = (
        f"the claim does not say of what, and it matters: of {first.of} it is {first.outcome} ({first.why}), "
        f"of {second.of} {second.outcome}; write of: transfer, or of: kernel_time"
    )
    return _check(claim, "hidden_share", None, figures.unknown(why))


def _figure(claim: Claim, report: Report, baseline: Report | None, of: str | None) -> Figure:
    metric = claim.metric
    if metric in OF_REPORT:
        if (claim.axis or claim.collective) and metric == "compute_stretch":
            return figures.unknown("the Report's contention is of all communication together: leave out axis and collective")
        return OF_REPORT[metric](report)
    if metric in ("end_to_end_speedup", "end_to_end_slowdown", "saved_share"):
        return _against_baseline(claim, report, baseline)
    part = select(claim, report)
    if isinstance(part, str):
        return figures.unknown(part)
    return HIDDEN[of or "transfer"](part) if metric == "hidden_share" else OF_PART[metric or ""](part)


def _against_baseline(claim: Claim, report: Report, baseline: Report | None) -> Figure:
    if baseline is None:
        return figures.unknown("it takes the Report of the run without the change: --baseline-report")
    differs = _not_the_same_job(report, baseline)
    if differs:
        return figures.unknown(differs)
    if claim.metric == "saved_share":
        before = select(claim, baseline)
        return (
            figures.unknown(f"baseline: {before}") if isinstance(before, str) else figures.saved_share(report, baseline, before)
        )
    return figures.speedup(report, baseline)


def _not_the_same_job(report: Report, baseline: Report) -> str | None:
    """Why the two Reports cannot be compared, if so."""
    one, two = report.provenance, baseline.provenance
    if one.kind != two.kind:
        return f"one Report is {one.kind}, the baseline's {two.kind}"
    if one.world_size != two.world_size:
        return f"the runs have {one.world_size or 'unknown'} and {two.world_size or 'unknown'} ranks in all"
    if one.ranks_counted != two.ranks_counted:
        return "the two Reports count different ranks"
    devices = [sorted({source.device_model or "?" for source in found.sources}) for found in (one, two)]
    if devices[0] != devices[1]:
        return f"the devices differ: {', '.join(devices[0])}; baseline {', '.join(devices[1])}"
    return None


def _as_claimed(claim: Claim, figure: Figure) -> Figure:
    """A ratio as the percentage that the claim's denominator makes of it. Other figures stay."""
    turn: Callable[[float], float]
    metric, of = claim.metric, claim.of
    if metric == "compute_stretch" and claim.unit == "%":
        turn = lambda ratio: ratio - 1  # noqa: E731 - three formulas side by side
    elif metric == "end_to_end_speedup" and claim.unit == "%" and of is not None:
        turn = (lambda ratio: 1 - 1 / ratio) if of == "baseline_time" else (lambda ratio: ratio - 1)
    elif metric == "end_to_end_slowdown":
        return figures.unknown("claim an end_to_end_speedup instead: below 1 x, or below 0 %, it is a slow-down", figure.formula)
    elif metric == "end_to_end_speedup" and claim.unit == "%":
        why = "the claim does not say of what: write of: baseline_time (less time), or of: baseline_rate (more throughput)"
        return figures.unknown(why, figure.formula, figure.fields)
    else:
        return figure
    low, high, best = (None if end is None else turn(end) for end in (figure.low, figure.high, figure.best))
    return Figure(low=low, high=high, best=best, formula=figure.formula, fields=figure.fields, why=figure.why)


def _check(claim: Claim, about: str, of: str | None, figure: Figure) -> Check:
    scale = SCALE.get(claim.unit or "")
    low, high, best = (None if end is None or scale is None else end / scale for end in (figure.low, figure.high, figure.best))
    outcome = decide(claim.value, low, high)
    why = figure.why
    if isinstance(claim.value, Value) and (claim.value.up_to is not None or claim.value.points is not None):
        why = "'up to' and several points say nothing of one run: claim at_least, at_most or a range. " + why
    return Check(
        about=about,
        of=of,
        claimed=written(claim.value, claim.unit) or "no figure",
        outcome=outcome,
        measured=best,
        low=low,
        high=high,
        unit=claim.unit or "",
        formula=figure.formula,
        fields=list(figure.fields),
        why=why,
    )


def decide(value: float | Value | None, low: float | None, high: float | None) -> str:
    """held where every figure between the ends fits, refuted where none does, else not decidable. None is no limit known."""
    if low is not None and high is not None and low > high:
        return NOT_DECIDABLE  # a figure cannot be both: what was read contradicts itself
    least, most = _claimed_ends(value)
    if least is None and most is None:
        return NOT_DECIDABLE
    if (least is not None and high is not None and high < least) or (most is not None and low is not None and low > most):
        return REFUTED
    fits_below = least is None or (low is not None and low >= least)
    fits_above = most is None or (high is not None and high <= most)
    return HELD if fits_below and fits_above else NOT_DECIDABLE


def _claimed_ends(value: float | Value | None) -> tuple[float | None, float | None]:
    if value is None:
        return None, None
    if isinstance(value, Value):
        return (value.low, value.high) if value.low is not None else (value.at_least, value.at_most)
    # 80 is meant to the last digit written: anything that rounds to it.
    decimals = len(f"{value:.12f}".rstrip("0").partition(".")[2])
    half = 0.5 * 10.0**-decimals
    return value - half, value + half


def _bytes_check(claim: Claim, report: Report, baseline: Report | None) -> Check:
    claimed = "the same bytes as the baseline" if claim.bytes.unchanged else "other bytes than the baseline"
    formula = "payload_bytes / rows of ranks / steps, of both Reports"
    fields = ("families[].payload_bytes", "window.steps_used")
    figure = _difference_of_bytes(claim, report, baseline)
    outcome = NOT_DECIDABLE
    if figure.best is not None:
        outcome = HELD if (figure.best == 0) == claim.bytes.unchanged else REFUTED
    return Check(
        about="bytes",
        of=None,
        claimed=claimed,
        outcome=outcome,
        measured=figure.best,
        low=figure.low,
        high=figure.high,
        unit="B",
        formula=formula,
        fields=list(fields),
        why=figure.why,
    )


def _difference_of_bytes(claim: Claim, report: Report, baseline: Report | None) -> Figure:
    """Bytes per step more than in the baseline."""
    if baseline is None:
        return figures.unknown("whether the bytes are the same takes the Report of the run without the change: --baseline-report")
    differs = _not_the_same_job(report, baseline)
    if differs:
        return figures.unknown(differs)
    now, before = _bytes_of(claim, report), _bytes_of(claim, baseline)
    if isinstance(now, str):
        return figures.unknown(now)
    if isinstance(before, str):
        return figures.unknown(f"baseline: {before}")
    # Fractions, as the same bytes are exactly the same.
    difference = float(now - before)
    why = f"{float(now):.12g} B per rank and step, baseline {float(before):.12g} B"
    return Figure(low=difference, high=difference, best=difference, formula="", fields=(), why=why)


def _bytes_of(claim: Claim, report: Report) -> Fraction | str:
    """Payload per rank and step, or why it is not known."""
    part = select(claim, report)
    if isinstance(part, str):
        return part
    figure = figures.bytes_per_step(part)
    if figure.best is None or part.payload is None or part.steps is None:
        return figure.why
    return Fraction(part.payload, part.rows * part.steps)


def _mismatch(claim: Claim, report: Report) -> list[str]:
    """Conditions in which the Report is of another run than the claim is about."""
    found = []
    world = report.provenance.world_size
    if isinstance(claim.hardware.count, int) and world is not None and world != claim.hardware.count:
        found.append(f"the claim is about {claim.hardware.count} devices, the Report about {world}")
    wanted = _models_in(claim.hardware.gpu or "")
    if wanted and report.provenance.kind == "measured":
        if any(source.on_cpu for source in report.provenance.sources):
            found.append(f"the claim is about {claim.hardware.gpu}, the Report about compute on the host")
        elif not all(source.device_model for source in report.provenance.sources):
            found.append(f"the claim is about {claim.hardware.gpu}, and the Report does not name its device")
    for model in sorted({source.device_model for source in report.provenance.sources if source.device_model}):
        have = _models_in(model)
        if wanted and have and not wanted & have:
            found.append(f"the claim is about {claim.hardware.gpu}, the Report about {model}")
    return found


def _partial(report: Report, baseline: Report | None) -> list[str]:
    """What the Reports do not show of the run that the claim is about."""
    found = []
    for name, one in (("", report), ("baseline: ", baseline)):
        if one is None:
            continue
        seen, world = len(one.provenance.ranks_counted), one.provenance.world_size
        if one.provenance.kind != "measured":
            found.append(f"{name}nothing was run: the Report is {one.provenance.kind}")
        elif world is not None and seen < world:
            found.append(f"{name}only {seen} of {world} ranks: the others may differ")
        if one.window.kind == "steps" and not one.window.steps_used:
            found.append(f"{name}no step is in it")
    return found


def _models_in(text: str) -> set[str]:
    """H100 in "NVIDIA H100 80GB HBM3": letters and then digits, but no memory, and no architecture as in SM90."""
    return {word for word in re.findall(r"\b[A-Z]{1,3}[0-9]{2,4}[A-Z]?\b", text.upper()) if not word.startswith(("HBM", "SM"))}


def _blocked(check: Check, reasons: list[str]) -> Check:
    """A check on a run that the claim is not about decides nothing."""
    if not reasons:
        return check
    return Check(
        about=check.about,
        of=check.of,
        claimed=check.claimed,
        outcome=NOT_DECIDABLE,
        measured=check.measured,
        low=check.low,
        high=check.high,
        unit=check.unit,
        formula=check.formula,
        fields=check.fields,
        why="; ".join([*reasons, check.why]),
    )


def _conditions(claim: Claim, report: Report) -> list[str]:
    lines = []
    world = report.provenance.world_size
    if claim.hardware.count is not None:
        lines.append(f"hardware.count: {claim.hardware.count}; the Report: {'unknown' if world is None else world}")
    if claim.hardware.gpu is not None:
        models = sorted({source.device_model or "unknown" for source in report.provenance.sources})
        lines.append(f"hardware.gpu: {claim.hardware.gpu}; the Report: {', '.join(models)}")
    trusted = [name for name in _TAKEN_ON_TRUST if stated(claim, name) is not None]
    if trusted:
        lines.append(f"taken on trust, as a Report does not hold them: {', '.join(trusted)}")
    return lines


def _window(report: Report) -> str:
    used, found = len(report.window.steps_used), len(report.window.steps_found)
    ranks = report.provenance.ranks_counted
    world = report.provenance.world_size
    steps = f"{used} of {found} steps" if report.window.kind == "steps" else "the whole trace"
    return f"{steps}, {len(ranks)} of {'an unknown number of' if world is None else world} ranks"


def _notes(report: Report, baseline: Report | None) -> list[str]:
    notes = []
    for name, found in (("", report), ("baseline: ", baseline)):
        if found is None:
            continue
        if found.provenance.kind != "measured":
            notes.append(f"{name}SIMULATED: this says what the model gives, not what a run did")
        notes += [f"{name}{note.text}" for note in found.notes if note.code in (*_SAID, *_BLIND)]
        if found.window.kind != "steps":
            notes.append(f"{name}the window is the whole trace: start-up and end are inside")
    return notes
