"""Levers on the screen: the ranked ones as a table with their price, the best pair, and what was not ranked in one line each."""

from __future__ import annotations

from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table

from underlap.answers import Lever, Levers
from underlap.render.plain import UNKNOWN, clean, decimals_for, milliseconds, size, wrap

WIDTH = 100
RANKED = 8
OTHERS = 8


def print_levers(levers: Levers, file: IO[str]) -> None:
    """Write the table, the pair and the rest."""
    decimals = decimals_for(levers.step_ns)
    heading = (
        f"SIMULATED {clean(levers.model)} on {clean(levers.cluster)}: {clean(levers.layout)}; {clean(levers.workload)}; "
        f"policy {clean(levers.policy)}",
        f"step {milliseconds(levers.step_ns, decimals)} ms, exposed {milliseconds(levers.exposed_ns, decimals)} ms per GPU, "
        f"sent {size(levers.sent_bytes)} by all, memory {size(levers.memory_bytes)}",
    )
    for text in heading:
        _wrapped(text, file)
    if levers.ranked:
        _table(levers.ranked[:RANKED], decimals, file)
    else:
        _wrapped(f"nothing that was tried gains {100 * levers.noise:g} % of the step and fits", file)
    if len(levers.ranked) > RANKED:
        _wrapped(f"and {len(levers.ranked) - RANKED} more (--json lists them)", file)
    if levers.pair is not None:
        _wrapped(f"best pair: {_said(levers.pair, decimals)}", file)
    if levers.not_ranked:
        _wrapped(f"not ranked (within {100 * levers.noise:g} %, a loss, does not fit, or not possible):", file)
    for lever in levers.not_ranked[:OTHERS]:
        _wrapped(f"  {_said(lever, decimals)}", file)
    if len(levers.not_ranked) > OTHERS:
        _wrapped(f"  and {len(levers.not_ranked) - OTHERS} more (--json lists them)", file)
    file.write("\n")
    for text in levers.does_not_support:
        _wrapped(f"does not support: {clean(text)}", file)


def _table(rows: list[Lever], decimals: int, file: IO[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("change", "step ms", "ratio", "what it is", "memory", "what it asks for"):
        left = name in ("change", "what it is", "what it asks for")
        table.add_column(name, justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        table.add_row(
            clean(row.change),
            UNKNOWN if row.step_ns is None else milliseconds(row.step_ns, decimals),
            UNKNOWN if row.step_ratio is None else f"{row.step_ratio:.3f}",
            clean(row.word or UNKNOWN),
            size(row.memory_bytes),
            clean(row.costs),
        )
    Console(file=file, width=WIDTH, highlight=False, color_system=None).print(table)


def _said(lever: Lever, decimals: int) -> str:
    if lever.step_ns is None or lever.step_ratio is None:
        return f"{clean(lever.change)}: {clean(lever.problem or UNKNOWN)}"
    fits = "" if lever.fits else f", does not fit ({size(lever.memory_bytes)})"
    step = f"{milliseconds(lever.step_ns, decimals)} ms, x {lever.step_ratio:.3f}"
    return f"{clean(lever.change)}: {step}, {clean(lever.word or UNKNOWN)}{fits}"


def _wrapped(text: str, file: IO[str]) -> None:
    for line in wrap(text, WIDTH, lines=3):
        file.write(line + "\n")
