"""A Judgement or a Comparison as text of at most 100 columns. Every word and figure stands in the record."""

from __future__ import annotations

from underlap.judgement import Check, Comparison, Condition, Judgement, Settlement
from underlap.render.plain import UNKNOWN, clean, shorten, wrap

WIDTH = 100
_LETTERS = "abcd"
_MOST_UNKNOWN = 12


def judgement_text(judgement: Judgement) -> str:
    """The outcome first where there is one, then the claim, the four questions, and what it supports."""
    lines: list[str] = []
    if judgement.settlement is not None:
        lines += _settlement(judgement.settlement)
        lines.append("")
    lines += _claim(judgement)
    lines.append("")
    for letter, answer in zip(_LETTERS, judgement.answers, strict=True):
        lines += _paragraph(f"({letter}) {answer.answer.upper()}  ", f"{answer.text}")
        lines += _paragraph("      ", f"{answer.why}")
        lines += _paragraph("      ", f"rests on {', '.join(answer.rests_on)}")
    lines += _wording(judgement)
    lines.append("")
    lines += _list("supports", judgement.supports)
    lines += _list("does not support", judgement.does_not_support)
    lines += _list("unknown", judgement.unknown, most=_MOST_UNKNOWN)
    return "\n".join(lines) + "\n"


def comparison_text(comparison: Comparison) -> str:
    """Whether two claims can be compared, and a table of conditions. Figures of different things stay apart."""
    verdict = {"yes": "COMPARABLE", "no": "NOT COMPARABLE"}.get(comparison.comparable, "NOT DECIDABLE")
    lines = _paragraph(f"{verdict}: ", comparison.why)
    names = [clean(name or UNKNOWN) for name in (comparison.first_id, comparison.second_id)]
    if comparison.side_by_side:
        figures = [clean(figure or "no figure") for figure in (comparison.first_claimed, comparison.second_claimed)]
        lines += _paragraph("figures: ", f"{figures[0]} ({names[0]}), {figures[1]} ({names[1]})")
    else:
        lines.append("figures: not put side by side, as they do not measure the same in the same unit")
    lines.append("")
    lines += _table([*comparison.conditions, *comparison.subject], names)
    return "\n".join(lines) + "\n"


def _table(conditions: list[Condition], names: list[str]) -> list[str]:
    rows = [("condition", names[0], names[1], "")]
    rows += [(row.name, clean(row.first or UNKNOWN), clean(row.second or UNKNOWN), row.verdict) for row in conditions]
    widths = (max(len(row[0]) for row in rows), 31, 31, 9)
    return [
        "  ".join(shorten(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _claim(judgement: Judgement) -> list[str]:
    lines = _paragraph("claim: ", judgement.statement)
    figure = judgement.claimed or "no figure"
    of = f", of {judgement.of}" if judgement.of else ""
    lines += _paragraph("       ", f"{judgement.metric or 'metric not clear'}{of}: {figure}")
    return lines + _paragraph("       ", f"source: {judgement.source}")


def _settlement(settlement: Settlement) -> list[str]:
    simulated = "" if settlement.provenance == "measured" else f" ({clean(settlement.provenance).upper()})"
    lines = _paragraph(f"{settlement.outcome.upper()}{simulated}: ", settlement.window)
    for check in settlement.checks:
        lines += _check(check)
    for condition in settlement.conditions:
        lines += _paragraph("  condition: ", condition)
    for note in settlement.notes:
        lines += _paragraph("  note: ", note)
    return lines


def _check(check: Check) -> list[str]:
    of = f" of {check.of}" if check.of else ""
    lines = _paragraph("  ", f"{check.about}{of}: claimed {check.claimed}, {_measured(check)}: {check.outcome}")
    if check.formula:
        lines += _paragraph("    ", f"{check.formula}; from {', '.join(check.fields)}")
    return lines + _paragraph("    ", check.why)


def _measured(check: Check) -> str:
    if check.about == "bytes":
        return "not known" if check.measured is None else f"{_number(check.measured)} B more per rank and step"
    if check.measured is None and check.low is None and check.high is None:
        return "not known"
    ends = f"{_end(check.low)} to {_end(check.high)} {check.unit}"
    if check.measured is None:
        return f"somewhere from {ends}"
    if check.low is None and check.high is None:
        return f"measured {_number(check.measured)} {check.unit}, without an interval"
    if check.low == check.high:
        return f"measured {_number(check.measured)} {check.unit}"
    return f"measured {_number(check.measured)} {check.unit} (within {ends})"


def _end(value: float | None) -> str:
    return "no limit" if value is None else _number(value)


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _wording(judgement: Judgement) -> list[str]:
    lines: list[str] = []
    for flag in judgement.wording:
        lines += _paragraph("wording: ", f'"{flag.words}" in {flag.field} {flag.problem}.')
        lines += _paragraph("         ", flag.instead)
    return lines


def _list(heading: str, entries: list[str], *, most: int = 99) -> list[str]:
    lines = [f"{heading}:"] if entries else []
    for entry in entries[:most]:
        lines += _paragraph("  - ", entry)
    if len(entries) > most:
        lines.append(f"  - {len(entries) - most} more in --json")
    return lines


def _paragraph(label: str, text: str) -> list[str]:
    first, *rest = wrap(clean(text), WIDTH - len(label), lines=40) or [""]
    return [f"{label}{first}", *(f"{'':{len(label)}}{line.strip()}" for line in rest)]
