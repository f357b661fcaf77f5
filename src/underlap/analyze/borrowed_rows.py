"""What was borrowed from another recording, as the Report says it: the account, the first note, the labels of rows."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from underlap.analyze.families import FamilyKey
from underlap.analyze.likeness import FIELDS, Borrowed
from underlap.columns import Int32, Int64
from underlap.report import BorrowedReport, FamilyRow, InstanceRow
from underlap.timeline import Note


def account(borrowed: Borrowed) -> BorrowedReport:
    """The account as the Report has it."""
    return BorrowedReport(
        sources=list(borrowed.sources),
        graphs=borrowed.graphs,
        replays=borrowed.replays,
        refused=borrowed.refused,
        kernels=borrowed.kernels,
        matched=borrowed.matched,
        ambiguous=borrowed.ambiguous,
        shapes=borrowed.shapes,
        fields=borrowed.fields,
        order=borrowed.order,
        contradicted=borrowed.contradicted,
        reasons=list(borrowed.reasons),
    )


def note(borrowed: Borrowed) -> Note:
    """What a reader has to know before anything else about these figures."""
    where = ", ".join(borrowed.sources[:2]) + (", ..." if len(borrowed.sources) > 2 else "")
    if not borrowed.replays:
        return Note(
            code="like_unused", text=f"--like {where}: no kernel of this trace belongs to a device graph; nothing is borrowed"
        )
    parts = [
        f"{count} {what}"
        for count, what in (
            (borrowed.shapes, "shapes"),
            *((count, {"payload_bytes": "sizes"}.get(name, f"{name}s")) for name, count in borrowed.fields.items()),
            (borrowed.order, "orders of two kernels"),
        )
        if count
    ]
    text = f"borrowed from {where}, not measured here: {', '.join(parts) or 'nothing'}"
    text += f"; {borrowed.matched} of {borrowed.kernels} kernels of {borrowed.replays} graph replays matched by name and order"
    if borrowed.refused:
        text += f"; {borrowed.refused} replays refused: {borrowed.reasons[0]}"
    if borrowed.ambiguous:
        text += f"; {borrowed.ambiguous} kernels may be any of several and got only what these agree on"
    return Note(code="borrowed", text=text)


def labeled_families(
    rows: list[FamilyRow], keys: list[FamilyKey], family: Int32, counted: NDArray[np.bool_], borrowed: Borrowed
) -> list[FamilyRow]:
    """The rows, each with what of its calls is borrowed. `family` is per call a place in `keys`."""
    found: dict[FamilyKey, set[str]] = {}
    for call in np.flatnonzero(counted & (family >= 0)).tolist():
        found.setdefault(keys[family[call]], set()).update(borrowed.of_call[call])
    return [
        msgspec.structs.replace(row, borrowed=[name for name in FIELDS if name in found.get((row.axis, row.collective), ())])
        for row in rows
    ]


def labeled_instances(rows: list[InstanceRow], counted: NDArray[np.bool_], start: Int64, borrowed: Borrowed) -> list[InstanceRow]:
    """The rows (the counted calls in order of start), each with what of it is borrowed."""
    calls = np.flatnonzero(counted)
    calls = calls[np.argsort(start[calls], kind="stable")].tolist()
    return [
        msgspec.structs.replace(row, borrowed=", ".join(borrowed.of_call[call]) or None)
        for row, call in zip(rows, calls, strict=True)
    ]
