"""Arms of a comparison: in which settings they differ, and whether they differ in effect."""

from __future__ import annotations

from collections.abc import Sequence

from underlap.lint.jobs import Program
from underlap.lint_report import ComparisonRow, DifferenceRow, LintFinding


def compare(programs: Sequence[Program], findings: Sequence[LintFinding]) -> ComparisonRow:
    """The comparison of two or more programs. A setting counts with its default where the framework's switches were all seen."""
    void = {
        program.name: {name for row in findings if row.job == program.name for name in row.without_effect} for program in programs
    }
    names = sorted({name for program in programs for name in program.settings.of})
    differences = []
    for name in names:
        values = [program.settings.value(name) for program in programs]
        if len(set(map(repr, values))) == 1:
            continue
        # Without effect: wherever it is on, a finding says that it does nothing.
        idle = all(
            name in void[program.name] or value in (False, None, "none", "unset")
            for program, value in zip(programs, values, strict=True)
        )
        differences.append(DifferenceRow(name=name, values=[_text(value) for value in values], without_effect=idle))
    others = len({program.others for program in programs}) > 1
    effective = [row for row in differences if not row.without_effect]
    idle_names = [
        row.name for row in differences if row.without_effect and any(row.name in void[program.name] for program in programs)
    ]
    unknown = any(None in row.values for row in differences if row.without_effect and row.name not in idle_names)
    one = not effective and not unknown and (bool(idle_names) or not others)
    return ComparisonRow(
        arms=[program.name for program in programs],
        differences=differences,
        others_differ=others,
        one_configuration=one,
        text=_sentence([row.name for row in effective], idle_names, others=others, one=one),
    )


def _sentence(effective: list[str], idle: list[str], *, others: bool, one: bool) -> str:
    if one and idle:
        return f"the arms are one configuration in effect: {', '.join(idle)} sets them apart, and does nothing (see the findings)"
    if one:
        return "the arms are one configuration: no setting differs"
    if not effective:
        return "no setting that a rule knows differs in effect; the arms differ in others, which are not shown"
    clash = (
        " (disable_overlap_schedule is about CPU scheduling, not about communication)"
        if "disable_overlap_schedule" in effective
        else ""
    )
    return f"the arms differ in {', '.join(effective)}{clash}" + ("; and in settings that no rule knows" if others else "")


def _text(value: bool | int | float | str | None) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
