"""Predicted beside measured on a screen: a table for each plan, the families, and the operations that differ most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table

from underlap.render.plain import UNKNOWN, WIDTH, clean, milliseconds, shorten, wrap
from underlap.trial import Beside, ComparisonBeside, Foretold, VariantBeside

OPERATIONS = 6
KEYS = 2
"""Names whose worst operation is shown by its structural key as well."""
KEY = 27


def print_foretold(found: Foretold, file: IO[str]) -> None:
    """Write it below the trial."""
    what = "ms per step, medians with what holds them with 95 % (of fewer than six repetitions: the extremes)"
    header = f"SIMULATED on {clean(found.cluster)} beside MEASURED; {what}"
    for line in wrap(header, WIDTH):
        file.write(line + "\n")
    for variant in found.variants:
        _print_variant(variant, file)
    if found.ab is not None:
        for line in wrap(_ratio(found.ab), WIDTH, lines=3):
            file.write(line + "\n")
    for text in found.assumptions:
        for line in wrap(f"assumed: {clean(text)}", WIDTH, lines=3):
            file.write(line + "\n")


def _print_variant(variant: VariantBeside, file: IO[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(clean(variant.name), no_wrap=True)
    for name in ("calls", "simulated", "measured", "from", "to", "error %", "inside"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, beside in _parts(variant):
        table.add_row(name, "", *_cells(beside))
    for row in variant.families:
        table.add_row(f"  {clean(row.group)} {clean(row.collective)}", f"{row.calls:g}", *_cells(row.time))
    table.add_section()
    for operation in variant.operations[:OPERATIONS]:
        table.add_row(f"  {shorten(clean(operation.name), KEY)}", f"{operation.calls:g}", *_cells(operation.time))
    for operation in variant.operations[:KEYS]:
        table.add_row(f"  {shorten(clean(operation.furthest), KEY)}", "", *_cells(operation.furthest_time))
    Console(file=file, width=WIDTH, highlight=False, color_system=None).print(table)
    if variant.step_low_ns is not None and variant.step_high_ns is not None:
        low, high = (milliseconds(ns, 2) for ns in (variant.step_low_ns, variant.step_high_ns))
        file.write(f"simulated step {low} to {high} ms by the ranges of the cluster's costs\n")


def _parts(variant: VariantBeside) -> Iterable[tuple[str, Beside]]:
    yield "step, slowest rank", variant.step
    yield "compute", variant.compute
    yield "communication", variant.communication
    if variant.transfer is not None:
        yield "  without waiting", variant.transfer
    yield "  hidden", variant.hidden
    yield "  exposed", variant.exposed


def _cells(beside: Beside) -> tuple[str, ...]:
    times = (beside.predicted_ns, beside.measured_ns, beside.low_ns, beside.high_ns)
    error = UNKNOWN if beside.error is None else f"{100 * beside.error:+.1f}"
    return (*(milliseconds(ns, 2) for ns in times), error, "yes" if beside.within else "no")


def _ratio(ab: ComparisonBeside) -> str:
    said = {True: "the established sign agrees", False: "THE ESTABLISHED SIGN DOES NOT AGREE", None: "no sign is established"}
    return (
        f"policy / baseline: simulated {ab.predicted_ratio:.3f} ({ab.predicted}), measured {ab.measured_ratio:.3f} "
        f"({ab.ratio_low:.3f} to {ab.ratio_high:.3f}): {said[ab.sign_agrees]}"
    )
