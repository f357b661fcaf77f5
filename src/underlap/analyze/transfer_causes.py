"""Causes that one slice does not show: transfer that contention stretched, that latency or the link decides.

    [too_little_compute or dependent          ]     as `causes` found it, by timing
    [  the rest  ][fabric][latency ][stretched]     taken from its end, where there is evidence

They take exposed time only from causes that rest on times alone, and keep what it was as `inherited`. A result that is shown
to be needed (by an event) stays dependent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from underlap.analyze.causes import Slice
from underlap.columns import NONE, Int32, Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of transfers beyond their slices. Arrays are per row of `Timeline.collectives`."""

    stretch_ns: Int64
    """What compute beside it added to a call, where that is established; else 0."""
    latency_ns: Int64
    """`message_sizes.latency_bound`."""
    group: Int32
    excess_ns: Mapping[int, int]
    """Group -> what of its transfer no schedule could hide on this device (`fabric.excess`)."""


def refined(slices: Sequence[Slice], known: Evidence) -> list[Slice]:
    """The slices of one device, with the parts that the evidence explains under their own causes, in order of time."""
    stretch = {call: int(known.stretch_ns[call]) for call in {piece.call for piece in slices} if call >= 0}
    latency = {call: int(known.latency_ns[call]) for call in stretch}
    result: list[Slice] = []
    left: list[Slice] = []
    # What sticks out of a call is its end, so its last slices first.
    for piece in sorted(slices, key=lambda piece: -piece.start_ns):
        if not _by_timing(piece) or piece.call < 0:
            result.append(piece)
            continue
        rest: Slice | None = piece
        if piece.cause == "too_little_compute":
            rest = _take(result, piece, piece, "stretched", stretch)
        rest = _take(result, rest, piece, "latency_bound", latency) if rest else None
        if rest:
            left.append(rest)
    return sorted(result + _beyond_compute(left, known), key=lambda piece: piece.start_ns)


def _by_timing(piece: Slice) -> bool:
    return piece.cause in ("dependent", "too_little_compute") and piece.grade in (None, "timing")


def _take(found: list[Slice], piece: Slice, origin: Slice, cause: str, budget: dict[int, int]) -> Slice | None:
    """Move the end of the piece, as long as the budget of its call lasts, to `found`; returns what is left of it."""
    amount = min(max(budget[piece.call], 0), piece.end_ns - piece.start_ns)
    if amount == 0:
        return piece
    budget[piece.call] -= amount
    found.append(_part(piece, piece.end_ns - amount, piece.end_ns, cause, origin.cause))
    return dataclasses.replace(piece, end_ns=piece.end_ns - amount) if piece.start_ns < piece.end_ns - amount else None


def _part(piece: Slice, start: int, end: int, cause: str, inherited: str) -> Slice:
    """It rests on the communication itself, which is what evidence falls back to."""
    return dataclasses.replace(piece, start_ns=start, end_ns=end, cause=cause, inherited=inherited, evidence=NONE, grade=None)


def _beyond_compute(slices: Sequence[Slice], known: Evidence) -> list[Slice]:
    """The excess of each link is shared by the slices of its calls, each as much of it as it is long."""
    result: list[Slice] = []
    of_group: dict[int, list[Slice]] = {}
    for piece in slices:
        of_group.setdefault(int(known.group[piece.call]), []).append(piece)
    for group, pieces in of_group.items():
        total = sum(piece.end_ns - piece.start_ns for piece in pieces)
        excess = min(known.excess_ns.get(group, 0), total)
        passed = 0
        for piece in pieces:
            before = excess * passed // total
            passed += piece.end_ns - piece.start_ns
            border = piece.end_ns - (excess * passed // total - before)
            if border > piece.start_ns:
                result.append(dataclasses.replace(piece, end_ns=border))
            if border < piece.end_ns:
                result.append(_part(piece, border, piece.end_ns, "fabric_bound", piece.cause))
    return result
