"""A Trial on a screen: what was run, how long a step took, the bytes, and what the comparison establishes."""

from __future__ import annotations

from typing import IO

from underlap.render.plain import clean, milliseconds, percent, size, wrap
from underlap.trial import Ceiling, Comparison, Slowdown, Trial, Variant, WireBytes

WIDTH = 100
WITHOUT = {
    "waits": "waiting for nothing before its end",
    "messages": "sending nothing",
    "half_transfers": "over links of twice the rate",
}
"""The step that a ceiling is measured by."""


def print_trial(trial: Trial, file: IO[str]) -> None:
    """Write it; the Reports are the business of `print_report`."""
    lines = [
        f"MEASURED {clean(trial.model)} on {trial.ranks} ranks over {trial.library}: {clean(trial.layout) or 'one rank'}",
        f"workload {clean(trial.workload)}",
    ]
    if trial.fabric is not None or trial.priority != "default":
        lines.append(f"links {clean(trial.fabric or 'as loopback has them')}, priority {clean(trial.priority)}")
    for variant in trial.variants:
        lines += _variant_lines(variant)
    if trial.ab is not None:
        lines += _comparison_lines(trial.ab)
    if trial.slowdown is not None:
        lines.append(_slowdown_line(trial.slowdown))
    lines += [_ceiling_line(ceiling) for ceiling in trial.ceilings]
    lines += [clean(note) for note in trial.notes]
    lines.append(_shown_line(trial))
    for line in lines:
        for part in wrap(line, WIDTH, lines=3):
            file.write(part + "\n")


def _shown_line(trial: Trial) -> str:
    """Which steps the Report behind it is of."""
    shown = trial.variants[-1]
    count = len(shown.step_ns)
    if len(trial.variants) == 1:
        return f"below: the last steps of {clean(shown.name)}"
    which = f"step {shown.typical + 1} of {count} of {clean(shown.name)}"
    return f"below: {which}, the nearest to the medians; causes differ from step to step"


def _variant_lines(variant: Variant) -> list[str]:
    steps = sorted(variant.step_ns)
    lines = [
        f"{variant.name} ({clean(variant.policy)}): step {milliseconds(variant.median_step_ns, 2)} ms, median of {len(steps)} "
        f"({milliseconds(steps[0], 2)} to {milliseconds(steps[-1], 2)}); host issue "
        f"{percent(variant.host_issue_share)} % of the step"
    ]
    for row in variant.bytes_by_axis:
        same = "as planned" if row.planned_bytes == row.counted_bytes else f"NOT as planned ({size(row.planned_bytes)})"
        lines.append(f"  {clean(row.group)} {clean(row.collective)}: {size(row.counted_bytes)} handed in, all ranks, {same}")
    lines += [
        f"  control, not in the plan: {clean(row.group)} {clean(row.collective)}: {size(row.counted_bytes)}, {clean(row.what)}"
        for row in variant.control
    ]
    if variant.wire is not None:
        lines.append(_wire_line(variant.wire))
    if variant.unmatched_keys:
        lines.append(f"  {variant.unmatched_keys} operations planned or recorded without the other")
    return lines + [f"  not applied: {clean(text)}" for text in variant.refused]


def _wire_line(wire: WireBytes) -> str:
    middle = size(wire.median_sent_bytes)
    ratio = "nothing planned" if wire.ratio is None else f"{wire.ratio:.4f} of the planned {size(wire.planned_bytes)}"
    return f"  on the wire: {middle} per step without headers, all ranks, {ratio}"


def _comparison_lines(ab: Comparison) -> list[str]:
    said: str = ab.outcome or "no outcome established"
    if ab.outcome == "no difference":
        said += f" of more than {percent(ab.same_within)} %"
    line = f"policy / baseline: {ab.ratio:.3f} ({ab.ratio_low:.3f} to {ab.ratio_high:.3f}, {ab.repetitions} repetitions): {said}"
    if ab.word:
        line += f", communication {ab.word}"
    lines = [
        line,
        f"bytes {'equal' if ab.bytes_equal else 'NOT equal'}; outputs differ by {ab.max_output_difference:.1e} at most",
    ]
    if ab.max_gradient_difference is not None:
        lines[-1] += f", gradients by {ab.max_gradient_difference:.1e}"
    return lines + [clean(note) for note in ab.notes]


def _slowdown_line(found: Slowdown) -> str:
    line = f"compute beside communication: {clean(found.word)}"
    if found.ratio is None or found.ratio_low is None or found.ratio_high is None:
        return line + (f": {clean(found.reason)}" if found.reason else "")
    line += f", {found.ratio:.2f} times as long as alone ({found.ratio_low:.2f} to {found.ratio_high:.2f})"
    if found.cost_ns is None:
        return line
    return line + f": {milliseconds(found.cost_ns, 2)} ms of a step with the policy, mean per rank"


def _ceiling_line(ceiling: Ceiling) -> str:
    """Times of the slowest rank."""
    promised = "unknown"
    if ceiling.promised_ns is not None:
        low, high = (milliseconds(value or 0, 2) for value in (ceiling.promised_low_ns, ceiling.promised_ns))
        promised = f"{high} ms" if low == high else f"{low} to {high} ms" if ceiling.promised_low_ns else f"{high} ms at most"
    kind = "measured" if ceiling.left_out == "half_transfers" else "ceiling"
    won = [milliseconds(value, 2) for value in (ceiling.won_ns, ceiling.won_low_ns, ceiling.won_high_ns)]
    return (
        f"{kind}: {clean(ceiling.plan)} {WITHOUT[ceiling.left_out]}: {won[0]} ms less ({won[1]} to {won[2]}, "
        f"{len(ceiling.step_ns)} repetitions); the analysis promises {promised}"
    )
