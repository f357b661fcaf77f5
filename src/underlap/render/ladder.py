"""A Ladder on the screen: one table, a line for each rung and below it one for each collective that it adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from underlap.answers import Ladder, Rung, RungCost
from underlap.render.plain import UNKNOWN, clean, decimals_for, milliseconds, shorten, size, wrap

WIDTH = 100
_HEAD = ("rung", "GPUs", "memory", "step ms", "one ms", "tokens/s", "lifts")
_WIDTHS = (16, 6, 10, 12, 10, 12)


def print_ladder(ladder: Ladder, file: IO[str]) -> None:
    """Write the table, and what must not be concluded."""
    for line in _lines(ladder):
        file.write(line.rstrip() + "\n")


def _lines(ladder: Ladder) -> Iterator[str]:
    yield from wrap(f"SIMULATED {clean(ladder.model)} on {clean(ladder.cluster)}: {clean(ladder.workload)}", WIDTH)
    yield ""
    yield _row(_HEAD)
    yield "-" * WIDTH
    for rung in ladder.rungs:
        yield _row(_cells(rung))
        if rung.problem is not None:
            yield from wrap(f"    cannot be laid out: {clean(rung.problem)}", WIDTH, lines=3)
        if rung.adds == "overlap":
            yield from wrap(f"    {clean(rung.policy)}: every byte is still sent", WIDTH)
        for cost in rung.costs:
            yield from wrap(f"    {_said(cost, rung)}", WIDTH)
    yield "-" * WIDTH
    notes = (
        f"memory: of the fullest GPU, which has {size(ladder.device_memory_bytes)}; '!' does not fit: times as if it did",
        "one ms: a step of one micro-batch; sent: per GPU and step; exposed: ms per GPU, of the group's collectives together",
    )
    for text in notes:
        yield from wrap(text, WIDTH)
    yield ""
    for text in ladder.does_not_support:
        yield from wrap(f"does not support: {clean(text)}", WIDTH)


def _row(cells: tuple[str, ...]) -> str:
    first, *middle = cells[:-1]
    return (
        shorten(first, _WIDTHS[0]).ljust(_WIDTHS[0])
        + "".join(cell.rjust(width) for cell, width in zip(middle, _WIDTHS[1:], strict=True))
        + f"   {cells[-1]}"
    )


def _cells(rung: Rung) -> tuple[str, ...]:
    name = clean(rung.adds) if rung.adds in ("one device", "overlap") else f"+ {clean(rung.adds)}"
    if rung.step_ns is None or rung.single_ns is None:
        return name, str(rung.gpus), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ""
    return (
        name,
        str(rung.gpus),
        size(rung.memory_bytes) + ("  " if rung.fits else " !"),
        milliseconds(rung.step_ns, decimals_for(rung.step_ns)),
        milliseconds(rung.single_ns, decimals_for(rung.single_ns)),
        UNKNOWN if rung.tokens_per_s is None else f"{rung.tokens_per_s:,.0f}",
        ", ".join(rung.lifts),
    )


def _said(cost: RungCost, rung: Rung) -> str:
    if cost.exposed_ns is None or cost.communication_ns is None or rung.step_ns is None:
        exposed = UNKNOWN
    else:
        decimals = decimals_for(rung.step_ns)
        exposed = f"{milliseconds(cost.exposed_ns, decimals)} of {milliseconds(cost.communication_ns, decimals)}"
    link = cost.link.replace("_", "-")
    return f"adds {clean(cost.collective)} over {clean(cost.axis)}, {link}: {size(cost.bytes_per_gpu)} sent, exposed {exposed}"
