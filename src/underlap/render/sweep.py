"""A Sweep on the screen: one small map per layout and policy, the borders, the reasons; and its points as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import IO, BinaryIO

import msgspec

from underlap.answers import BreakEven, Sweep, SweepPoint
from underlap.render.plain import clean, wrap

WIDTH = 100
REASONS = 5
LETTERS = {
    "hides_fully": "F",
    "hides_partly": "p",
    "does_nothing": ".",
    "loses": "L",
    "refused": "r",
    "memory": "m",
    "invalid": "x",
}
_LEGEND = "F hides fully, p hides partly, . does nothing, L loses; not computed: m memory, x cannot be laid out, r policy refused"


def print_sweep(sweep: Sweep, file: IO[str]) -> None:
    """Write the maps, the borders and the reasons."""
    for line in _lines(sweep):
        file.write(line + "\n")


def _lines(sweep: Sweep) -> Iterator[str]:
    kind = sweep.workload.partition(",")[0]
    computed = sum(point.step_ns is not None for point in sweep.points)
    yield from wrap(
        f"SIMULATED {clean(sweep.model)} on {clean(sweep.cluster)}: {clean(kind)}, {len(sweep.points)} points, "
        f"{computed} computed",
        WIDTH,
    )
    yield from wrap(_LEGEND, WIDTH)
    yield from wrap(
        f"shorter or longer: by more than {100 * sweep.same_ratio:g} % of the step; "
        f"fully: at least {100 * sweep.hidden_share:g} % of the communication of the policy's axes is hidden",
        WIDTH,
    )
    for layout in sweep.layouts:
        for policy in sweep.policies:
            points = {(p.seq, p.batch): p for p in sweep.points if (p.layout, p.policy) == (layout, policy)}
            if points:
                yield ""
                yield from _map(sweep, f"{layout}; {policy}", points)
                yield from _borders([row for row in sweep.break_even if (row.layout, row.policy) == (layout, policy)])
    if sweep.reasons:
        yield ""
    for reason in sweep.reasons[:REASONS]:
        yield from wrap(f"{reason.points} points {reason.verdict}, as: {clean(reason.reason)}", WIDTH, lines=3)
    yield ""
    for text in sweep.does_not_support:
        yield from wrap(f"does not support: {clean(text)}", WIDTH)


def _map(sweep: Sweep, title: str, points: dict[tuple[int, int], SweepPoint]) -> Iterator[str]:
    yield from wrap(clean(title), WIDTH)
    widths = [max(len(str(batch)), 1) for batch in sweep.batches]
    side = max(len("seq \\ batch"), *(len(str(seq)) for seq in sweep.seqs))
    yield (
        "  "
        + "seq \\ batch".rjust(side)
        + "".join(f" {batch:>{width}}" for batch, width in zip(sweep.batches, widths, strict=True))
    )
    for seq in sweep.seqs:
        letters = (LETTERS[points[seq, batch].verdict] if (seq, batch) in points else " " for batch in sweep.batches)
        row = "".join(f" {letter:>{width}}" for letter, width in zip(letters, widths, strict=True))
        ratios = [points[seq, batch].step_ratio for batch in sweep.batches if (seq, batch) in points]
        known = [ratio for ratio in ratios if ratio is not None]
        span = f"   step x {min(known):.3f} to {max(known):.3f}" if known else ""
        yield f"  {seq:>{side}}{row}{span}"


def _borders(rows: list[BreakEven]) -> Iterator[str]:
    """Borders at the same place are one line."""
    merged: dict[tuple[str, int, int, str], list[int]] = {}
    for row in rows:
        merged.setdefault((row.along, row.low, row.high, row.pays), []).append(row.at)
    for (along, low, high, pays), places in merged.items():
        other = "seq" if along == "batch" else "batch"
        border = f"from between {low} and {high} on" if pays == "above" else f"up to between {low} and {high}"
        yield from wrap(f"  pays {border} along {along} (at {other} {', '.join(map(str, places))})", WIDTH)


def write_csv(sweep: Sweep, stream: BinaryIO) -> None:
    """One row per point, columns as `SweepPoint`. Unknown is an empty field."""
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(SweepPoint.__struct_fields__)
        rows.writerows(msgspec.structs.astuple(point) for point in sweep.points)
    finally:
        text.detach()  # flushes, and leaves the stream open for its owner
