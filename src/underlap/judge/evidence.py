"""The questions that a Report can answer better than the claim's own fields: bytes, slack, stretch and price, as measured.

What a Report does not tell stays as the claim has it. The workload question always does: a Report holds no batch.
"""

from __future__ import annotations

import msgspec

from underlap.claim import METRICS, Claim, listed
from underlap.judge import figures
from underlap.judge.questions import ask
from underlap.judge.selection import Amounts, select
from underlap.judgement import HELD, NO, NOT_DECIDABLE, UNKNOWN, YES, Answer, Check
from underlap.report import Report

_ESTABLISHED = ("slower", "faster", "no difference seen")
_DEPENDENT = ("dependent", "serialized_or_dependent")


def ask_with(claim: Claim, report: Report, checks: list[Check], baseline: Report | None = None) -> list[Answer]:
    """The four answers; `checks` are what the Report settled, `baseline` is of the run without the change."""
    workload, axis, same_bytes, contention = ask(claim)
    part = select(claim, report)
    bytes_check = next((check for check in checks if check.about == "bytes"), None)
    return [
        workload,
        axis if isinstance(part, str) else _axis(claim, report, part, axis),
        same_bytes
        if bytes_check is None
        else _same_bytes(claim, bytes_check, same_bytes, None if baseline is None else figures.speedup(report, baseline)),
        _contention(claim, report, contention),
    ]


def _axis(claim: Claim, report: Report, part: Amounts, answer: Answer) -> Answer:
    told: list[str] = []
    missing: list[str] = []
    if part.payload is not None and part.communication > 0:
        rate = part.payload / part.communication  # bytes per ns are GB/s
        told.append(f"{part.payload / part.rows / 1e6:.4g} MB per rank in the window, at {rate:.3g} GB/s of kernel time or more")
    else:
        missing.append("bytes over the link")
    slack = _slack(part)
    (told if slack else missing).append(slack or "slack before the result is needed")
    found = report.contention
    if found is not None and found.word in _ESTABLISHED and found.ratio is not None:
        told.append(f"compute beside communication takes {found.ratio:.3g} times as long as alone")
    else:
        missing.append("stretch beside compute")
    axes = {row.axis for row in part.families}
    if None in axes:
        missing.append("an axis for every family")
    if len(axes) > 1 or len(listed(claim.axis)) > 1:
        verdict, why = NO, f"one figure for several axes ({', '.join(sorted(axis or '?' for axis in axes))})"
    else:
        verdict, why = UNKNOWN if missing else YES, ", ".join(axis or "an unknown axis" for axis in axes) or "no axis"
    why = "; ".join([why, *told]) + (f"; not known: {', '.join(missing)}" if missing else "")
    fields = ["families[].payload_bytes", "families[].verdict.causes", "contention.ratio"]
    return msgspec.structs.replace(answer, answer=verdict, why=why, rests_on=["axis", "collective", *fields])


def _slack(part: Amounts) -> str | None:
    """How much of the exposed time stands before a compute that waits for the result."""
    causes = [cause for row in part.families if row.verdict is not None for cause in row.verdict.causes]
    exposed = sum(cause.exposed_ns for cause in causes)
    if part.exposed == 0:
        return "no exposed time, so slack sufficed"
    if exposed == 0:
        return None
    known = sum(cause.exposed_ns for cause in causes if cause.cause != "unknown")
    needed = sum(cause.exposed_ns for cause in causes if cause.cause in _DEPENDENT)
    if known == 0:
        return None
    return f"in {needed / exposed:.0%} of the exposed time the result is needed at once (cause known for {known / exposed:.0%})"


def _same_bytes(claim: Claim, check: Check, answer: Answer, speedup: figures.Figure | None) -> Answer:
    if check.outcome == NOT_DECIDABLE:
        return msgspec.structs.replace(answer, why=f"{answer.why}; the Report: {check.why}")
    same = (check.outcome == HELD) == bool(claim.bytes.unchanged)
    verdict, then = (YES, _whether_shifted(speedup)) if same else (NO, "what changed is removed, not hidden")
    if same and speedup is not None and speedup.high is not None and speedup.high <= 1:
        verdict = NO
    rests_on = ["bytes.unchanged", *check.fields, "steps[].span_ns"]
    return msgspec.structs.replace(answer, answer=verdict, why=f"measured: {check.why}; {then}", rests_on=rests_on)


def _whether_shifted(speedup: figures.Figure | None) -> str:
    """The same bytes are hidden if the step became shorter, and shifted if it did not."""
    if speedup is None or speedup.low is None or speedup.high is None:
        return "whether the step became shorter, or time was only shifted, is not established"
    if speedup.high <= 1:
        return f"the step did not become shorter ({speedup.best:.3g} times as fast): shifted"
    if speedup.low > 1:
        return f"the step is {speedup.best:.3g} times as fast"
    return f"the step is {speedup.low:.3g} to {speedup.high:.3g} times as fast: shifted is not excluded"


def _contention(claim: Claim, report: Report, answer: Answer) -> Answer:
    found = report.contention
    if found is None or found.word not in _ESTABLISHED:
        looked = "was not looked for (underlap analyze --explain)" if found is None else f"is {found.word} in the Report"
        return msgspec.structs.replace(answer, why=f"{answer.why}; contention {looked}")
    whole = claim.metric is not None and METRICS[claim.metric].whole
    verdict = YES if whole or claim.metric in ("compute_stretch", "communication_stretch", "saved_share") else NO
    ratio = "" if found.ratio is None else f" ({found.ratio:.3g} times)"
    gain = found.net_gain
    net = "" if gain.net_ns is None else f", {gain.net_ns / 1e6:.3f} ms"
    inside = "inside the figure" if verdict == YES else "outside the figure, which counts covered time only"
    why = f"{inside}; the Report: compute {found.word}{ratio} beside communication, net gain of hiding: {gain.word}{net}"
    fields = ["metric", "contention.word", "contention.ratio", "contention.net_gain"]
    return msgspec.structs.replace(answer, answer=verdict, why=why, rests_on=fields)
