"""Claims as text: a table of many, or all fields of one. Null is a question mark; nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from underlap.claim import METRICS, Claim, listed, written
from underlap.render.plain import UNKNOWN, clean, wrap

WIDTH = 100
_COLUMNS = ("id", "figure", "measures", "phase", "axis", "hardware")
_WHOLE = 2
"""Columns that are never cut: the id is what the other commands take, and a figure means nothing cut."""
_NAME = 22


def table_text(claims: Sequence[Claim], *, of: int) -> str:
    """One line per claim, of at most 100 columns, and how many there are."""
    rows = [_COLUMNS, *(_cells(claim) for claim in claims)]
    widths = _widths([max(len(row[index]) for row in rows) for index in range(len(_COLUMNS))])
    lines = ["  ".join(cell[:width].ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    count = f"{len(claims)} of {of} claims" if claims else f"no claim fits; the catalog has {of}"
    return "\n".join([*(lines if claims else []), count]) + "\n"


def _widths(longest: list[int]) -> list[int]:
    """The columns' widths: what does not fit is taken from the widest."""
    widths = list(longest)
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH and max(widths[_WHOLE:]) > 4:
        widest = max(range(_WHOLE, len(widths)), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _cells(claim: Claim) -> tuple[str, ...]:
    return (
        clean(claim.id or UNKNOWN),
        clean(written(claim.value, claim.unit) or "words only"),
        METRICS[claim.metric].short if claim.metric else UNKNOWN,
        clean("+".join(listed(claim.workload.phase)) or UNKNOWN),
        clean("+".join(listed(claim.axis)) or UNKNOWN),
        clean(claim.hardware.gpu or UNKNOWN),
    )


def claim_text(claim: Claim) -> str:
    """All fields of a claim, one below the other."""
    lines = _field("id", claim.id)
    for name in claim.__struct_fields__:
        value = getattr(claim, name)
        if name in ("schema", "id"):
            continue
        if name == "value":
            lines += _field("value", written(claim.value, claim.unit))
        elif name == "unit":
            continue
        elif isinstance(value, msgspec.Struct):
            lines += _record(name, value)
        else:
            lines += _field(name, value)
    return "\n".join(lines) + "\n"


def _record(name: str, record: msgspec.Struct) -> list[str]:
    lines: list[str] = []
    for part in record.__struct_fields__:
        value = getattr(record, part)
        if name == "as_stated" and value is None:
            continue  # the source says no more than the field
        lines += _field(f"{name}.{part}", value)
    return lines


def _field(name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        value = [f"{key}={setting}" for key, setting in value.items()]
    if isinstance(value, list):
        values = [str(entry) for entry in value] or ["none" if name in ("effect", "unknowns", "settings") else UNKNOWN]
        text = "; ".join(values)
    else:
        text = UNKNOWN if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    first, *rest = wrap(clean(text), WIDTH - _NAME, lines=60) or [""]
    return [f"{name:{_NAME - 1}} {first}", *(f"{'':{_NAME}}{line.strip()}" for line in rest)]
