"""The families of a Report as a table on the terminal: the most exposed ones, as many columns as the width allows.

A part of terminal.py. Columns that do not fit are left out, first those that one misses least. The order is the Report's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.text import Text

from underlap.render.plain import UNKNOWN, at_least, clean, milliseconds, percent, shorten, size, wrap
from underlap.report import FamilyRow

NAME_WIDTHS = (12, 14)
"""Axis and collective keep this much before columns are left out for them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its heading, a cell per family, and when it is left out (0 never, else the largest first)."""

    heading: str
    cells: list[str]
    optional: int = 0
    style: str = ""

    @property
    def width(self) -> int:
        """Of its widest cell or heading."""
        return max(map(len, (self.heading, *self.cells)))


def family_lines(families: Sequence[FamilyRow], *, shown: int, width: int, decimals: int, rows: int) -> list[Text]:
    """Heading, a line per family, and what a reader needs to know about them. Empty without families."""
    if not families:
        return []
    first, rest = families[:shown], families[shown:]
    names, figures = _fit(_names(first), _figures(first, decimals), width)
    lines = [_line([column.heading for column in (*names, *figures)], names, figures, style="bold")]
    lines += [_line([column.cells[index] for column in (*names, *figures)], names, figures) for index in range(len(first))]
    if rest:
        exposed = milliseconds(sum(family.mean_exposed_share_ns for family in rest), decimals)
        lines.append(Text(f"+ {len(rest)} more {'family' if len(rest) == 1 else 'families'}, {exposed} ms exposed", style="dim"))
    return lines + _legend(names, figures, rows, width)


def _names(families: Sequence[FamilyRow]) -> list[Column]:
    return [
        Column(heading="axis", cells=[_axis(family) for family in families]),
        Column(heading="collective", cells=[_collective(family) for family in families]),
    ]


def _axis(family: FamilyRow) -> str:
    if family.axis is not None:
        return clean(family.axis)
    return " or ".join(map(clean, family.axis_candidates)) + UNKNOWN


def _collective(family: FamilyRow) -> str:
    name = UNKNOWN if family.collective is None else clean(family.collective)
    # NCCL is what one expects: only others are named.
    return name if family.library == ["nccl"] or not family.library else f"{name} ({clean('+'.join(family.library))})"


def _figures(families: Sequence[FamilyRow], decimals: int) -> list[Column]:
    calls = [UNKNOWN if family.count is None else str(family.count) for family in families]
    causes = [_cause(family) for family in families]
    columns = [
        Column(heading="calls", cells=calls, optional=3),
        Column(heading="kernels", cells=[str(family.kernels) for family in families], optional=5),
        Column(heading="payload", cells=[size(family.mean_payload_bytes) for family in families], optional=2),
        Column(heading="kernel ms", cells=[milliseconds(family.mean_communication_ns, decimals) for family in families]),
        Column(heading="hidden %", cells=[percent(family.hidden_share) for family in families], style="green"),
        Column(
            heading="exposed ms",
            cells=[milliseconds(family.mean_exposed_share_ns, decimals) for family in families],
            style="red",
        ),
        Column(heading="busbw GB/s", cells=[_bandwidth(family) for family in families], optional=4),
    ]
    return [*columns, Column(heading="first cause", cells=causes, optional=1)] if set(causes) != {"-"} else columns


def _bandwidth(family: FamilyRow) -> str:
    """Over transfer where waiting is known; else over kernel time, a lower bound."""
    if family.busbw_gbps is None:
        return at_least(family.busbw_kernel_gbps)
    return at_least(family.busbw_gbps).removeprefix(">= ")


def _cause(family: FamilyRow) -> str:
    if family.verdict is None or family.verdict.cause is None:
        return "-"
    return clean(family.verdict.cause)


def _fit(names: list[Column], figures: list[Column], width: int) -> tuple[list[Column], list[Column]]:
    """Leave out optional columns, then cut names, until a line fits."""
    while True:
        room = width - sum(column.width + 2 for column in figures)
        least = sum(min(column.width, keep) for column, keep in zip(names, NAME_WIDTHS, strict=True)) + 2
        dropped = max(figures, key=lambda column: column.optional)
        if least <= room or dropped.optional == 0:
            break
        figures = [column for column in figures if column is not dropped]
    axis, collective = names
    collective_width = min(collective.width, max(room - 2 - axis.width, NAME_WIDTHS[1]))
    widths = (max(room - 2 - collective_width, 4), collective_width)
    return [_cut(column, limit) for column, limit in zip(names, widths, strict=True)], figures


def _cut(column: Column, width: int) -> Column:
    """The column with cells of at most this width: first without the library in parentheses."""
    cells = [cell if len(cell) <= width else shorten(cell.partition(" (")[0], width) for cell in column.cells]
    return dataclasses.replace(column, cells=cells)


def _line(cells: Sequence[str], names: Sequence[Column], figures: Sequence[Column], *, style: str = "") -> Text:
    """Names to the left, figures to the right."""
    line = Text("", style=style)
    for index, (cell, column) in enumerate(zip(cells, (*names, *figures), strict=True)):
        aligned = cell.ljust(column.width) if index < len(names) else cell.rjust(column.width)
        line.append(("  " if index else "") + aligned, style=column.style or None)
    line.rstrip()
    return line


def _legend(names: Sequence[Column], figures: Sequence[Column], rows: int, width: int) -> list[Text]:
    cells = [cell for column in (*names, *figures) for cell in column.cells]
    parts = ["ms, payload: mean as above; calls, kernels: all ranks"] if rows > 1 else []
    if any(cell.startswith(">=") for cell in cells):
        parts.append(">= as waiting is inside")
    if any(cell.endswith(UNKNOWN) for cell in cells):
        parts.append("? = not known")
    return [Text(line, style="dim") for line in wrap("; ".join(parts), width)] if parts else []
