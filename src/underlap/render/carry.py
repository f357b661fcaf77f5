"""Whether a claim carries over, as text of at most 100 columns: the answer, both figures, each difference, what stays unknown."""

from __future__ import annotations

from underlap.judgement import CarriedCondition, Carry, Span
from underlap.render.plain import UNKNOWN, WIDTH, clean, paragraph, shorten

_MOST = 12


def carry_lines(carry: Carry) -> list[str]:
    """The lines of a Carry. Every word and figure stands in the record."""
    lines = paragraph(f"{carry.outcome.upper()} (SIMULATED): ", carry.why)
    lines += paragraph("  compared: ", f"{carry.figure}, in {carry.unit}")
    lines += paragraph("  claimed:               ", _claimed(carry))
    lines += paragraph("  claim, simulated:      ", _span(carry.claim_simulated, carry.unit))
    lines += paragraph("  mine, simulated:       ", _span(carry.mine, carry.unit))
    if carry.model_error is not None:
        lines += paragraph("  error of the model:    ", f"{carry.model_error:g} {carry.unit}: {carry.model_error_from}")
    if carry.decided_by is not None:
        lines += paragraph("  decided by:            ", carry.decided_by)
    if carry.conditions:
        lines += ["", *_table(carry.conditions, carry.unit)]
    for label, entries in (("missing", carry.missing), ("assumed", carry.assumptions), ("unknown", carry.unknown)):
        for entry in entries[:_MOST]:
            lines += paragraph(f"  {label}: ", entry)
        if len(entries) > _MOST:
            lines.append(f"  {label}: {len(entries) - _MOST} more in --json")
    return lines


def _claimed(carry: Carry) -> str:
    low, high = carry.claimed_low, carry.claimed_high
    if low is None and high is None:
        return "no figure that can be compared"
    if low is None or high is None:
        return f"at least {low:.4g} {carry.unit}" if high is None else f"at most {high:.4g} {carry.unit}"
    return _ends(low, high, carry.unit)


def _ends(low: float, high: float, unit: str) -> str:
    first, last = f"{low:.4g}", f"{high:.4g}"
    return f"{first} {unit}" if first == last else f"{first} to {last} {unit}"


def _span(span: Span | None, unit: str) -> str:
    if span is None:
        return "no figure"
    text = _ends(span.low, span.high, unit)
    if span.swept:
        text += f" over {span.points} points ({'; '.join(span.swept)})"
    return text + (f"; without a figure: {span.left_out}" if span.left_out else "")


def _table(rows: list[CarriedCondition], unit: str) -> list[str]:
    """Conditions side by side; for those that are not the same, what this one alone does to the figure."""
    cells = [("condition", "claim", "mine", "", "this alone")]
    cells += [
        (row.name, clean(row.claim or UNKNOWN), clean(row.mine or UNKNOWN), row.verdict, _effect(row, unit)) for row in rows
    ]
    widths = (max(len(cell[0]) for cell in cells), 18, 18, 9, WIDTH)
    lines = []
    for index, cell in enumerate(cells):
        line = "  ".join(shorten(part, width).ljust(width) for part, width in zip(cell, widths, strict=True)).rstrip()
        lines.append(line)
        if index and rows[index - 1].why:
            lines += paragraph("    ", rows[index - 1].why)
    return lines


def _effect(row: CarriedCondition, unit: str) -> str:
    if row.verdict == "same":
        return ""
    before, after = (UNKNOWN if end is None else f"{end:.3g}" for end in (row.before, row.after))
    return f"{before} -> {after} {unit}"
