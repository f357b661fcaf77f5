"""The part of a Report that a claim is about: the families of its axes and collectives, or the whole of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from underlap.claim import Claim, listed
from underlap.report import FamilyRow, RankRow, Report


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Sums over the chosen families and all ranks counted; without a choice, over the rows of `ranks`. In ns, and bytes."""

    fields: str
    """`families[...]` or `ranks[]`: where in the Report they come from."""
    communication: int
    hidden: int
    under_fused: int
    exposed: int
    """Adds up: of a slice with several families in it, each has its share."""
    fused: int
    """Kernels that compute and communicate: what of them is communication, and hidden, cannot be told."""
    wait: int | None
    hidden_transfer: int | None
    kernels: int
    payload: int | None
    families: Sequence[FamilyRow]
    span: int
    """Of all rows of `ranks`."""
    rows: int
    steps: int | None
    """Null where the window is no steps."""
    unclassified: int
    """Kernels that no family matched: counted as compute, but it can be communication."""
    clock: int | None
    """The largest uncertainty of a rank's clock. Null where ranks were not compared."""


def select(claim: Claim, report: Report) -> Amounts | str:
    """The amounts, or why there are none."""
    if report.summary is None or not report.ranks:
        return "the Report has no operations in its window"
    axes = {_folded(axis) for axis in listed(claim.axis)}
    collectives = set(listed(claim.collective))
    if not axes and not collectives:
        return _whole(report)
    unclear = [row for row in report.families if _unclear(row, axes, collectives)]
    chosen = [
        row
        for row in report.families
        if row not in unclear
        and (not collectives or row.collective in collectives)
        and (not axes or (row.axis is not None and _folded(row.axis) in axes))
    ]
    what = " ".join([*sorted(axes), *sorted(collectives)])
    if unclear:
        which = ", ".join(sorted({row.collective or "an unknown collective" for row in unclear}))
        axis = ", ".join(sorted({candidate for row in unclear for candidate in row.axis_candidates})) or "any"
        milliseconds = sum(row.communication_ns + row.fused_ns for row in unclear) / 1e6
        return (
            f"{milliseconds:.3f} ms of {which} could belong to {what} (axis: {axis}); "
            "give the mesh to underlap analyze (--mesh), and judge again"
        )
    if not chosen:
        return f"the Report has no {what} communication; it has {_present(report)}"
    return _of_families(report, chosen)


def _unclear(row: FamilyRow, axes: set[str], collectives: set[str]) -> bool:
    """Whether the row may or may not be meant: it has time, nothing rules it out, and something is not known."""
    candidates = {_folded(candidate) for candidate in row.axis_candidates}
    axis_open = bool(axes) and row.axis is None and (not candidates or bool(candidates & axes))
    collective_open = bool(collectives) and row.collective is None
    axis_fits = not axes or (row.axis is not None and _folded(row.axis) in axes)
    collective_fits = not collectives or row.collective in collectives
    possible = (axis_fits or axis_open) and (collective_fits or collective_open)
    return possible and (axis_open or collective_open) and row.communication_ns + row.fused_ns > 0


def _folded(axis: str) -> str:
    return " ".join(axis.lower().split())


def _present(report: Report) -> str:
    names = [f"{row.axis or '?'} {row.collective or '?'}" for row in report.families]
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "no communication at all"


def _whole(report: Report) -> Amounts:
    rows = report.ranks
    return _amounts(
        report,
        rows,
        report.families,
        fields="ranks[]",
        exposed=sum(row.exposed_ns for row in rows),
        kernels=sum(row.communication_kernels for row in rows),
    )


def _of_families(report: Report, chosen: list[FamilyRow]) -> Amounts:
    names = ", ".join(f"{row.axis or '?'} {row.collective or '?'}" for row in chosen)
    return _amounts(
        report,
        chosen,
        chosen,
        fields=f"families[{names}]",
        exposed=sum(row.exposed_share_ns for row in chosen),
        kernels=sum(row.kernels for row in chosen),
    )


def _amounts(
    report: Report,
    rows: Sequence[RankRow] | Sequence[FamilyRow],
    families: Sequence[FamilyRow],
    *,
    fields: str,
    exposed: int,
    kernels: int,
) -> Amounts:
    talking = [row for row in rows if row.communication_ns]
    waits = [row.wait_ns for row in talking]
    transfers = [row.hidden_transfer_ns for row in talking]
    payloads = [row.payload_bytes for row in families]
    residuals = [row.clock_uncertainty_ns for row in report.ranks if row.clock_uncertainty_ns is not None]
    steps = report.window.steps_used if report.window.kind == "steps" else []
    return Amounts(
        fields=fields,
        communication=sum(row.communication_ns for row in rows),
        hidden=sum(row.hidden_ns for row in rows),
        under_fused=sum(row.under_fused_ns for row in rows),
        exposed=exposed,
        fused=sum(row.fused_ns for row in families),
        wait=_sum_of_known(waits),
        hidden_transfer=_sum_of_known(transfers),
        kernels=kernels,
        payload=_sum_of_known(payloads),
        families=families,
        span=sum(row.span_ns for row in report.ranks),
        rows=len(report.ranks),
        steps=len(steps) or None,
        unclassified=report.summary.unmatched_ns if report.summary else 0,
        clock=max(residuals, default=None),
    )


def _sum_of_known(values: Sequence[int | None]) -> int | None:
    """Null as soon as one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
