"""Claims and Reports by hand, so that what is settled on them can be computed in the head. Times in ms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tests.render.hand_written import MS, family, rank_row, replace, source, summary
from underlap.claim import Claim
from underlap.claim_file import parse
from underlap.report import (
    CauseRow,
    ContentionReport,
    FamilyRow,
    NetGainReport,
    NoteRow,
    Provenance,
    Report,
    StepRow,
    Verdict,
    Window,
)


def claim(text: str = "", **fields: Any) -> Claim:
    """A claim of the fields that matter, in YAML or by name, with a statement and a source."""
    known = "statement: a claim\nsource: {title: a test}\n"
    claim = parse(known + text, "claim.yaml")
    return replace(claim, **fields) if fields else claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A family, summed over ranks."""

    axis: str | None = "tp"
    collective: str | None = "all_reduce"
    hidden: float = 0
    exposed: float = 0
    wait: float | None = None
    """Of the exposed time, where it is known."""
    fused: float = 0
    payload: int | None = None
    kernels: int = 2
    candidates: Sequence[str] = ()
    causes: dict[str, float] = dataclasses.field(default_factory=dict)
    busbw: float | None = None
    busbw_kernel: float | None = None

    def row(self) -> FamilyRow:
        """As the Report has it."""
        hidden, exposed = round(self.hidden * MS), round(self.exposed * MS)
        causes = [CauseRow(cause=name, exposed_ns=round(ms * MS), share=ms / self.exposed) for name, ms in self.causes.items()]
        verdict = Verdict(
            outcome="exposed",
            cause=next(iter(self.causes), None),
            causes=causes,
            evidence=None,
            recoverable_ns=None,
            would_change=None,
            price=None,
            unknown=[],
        )
        return replace(
            family(self.axis, self.collective),
            axis_candidates=list(self.candidates),
            kernels=self.kernels,
            payload_bytes=self.payload,
            communication_ns=hidden + exposed,
            hidden_ns=hidden,
            exposed_ns=exposed,
            exposed_share_ns=exposed,
            fused_ns=round(self.fused * MS),
            wait_ns=None if self.wait is None else round(self.wait * MS),
            hidden_transfer_ns=None if self.wait is None else hidden,
            busbw_gbps=self.busbw,
            busbw_kernel_gbps=self.busbw_kernel,
            verdict=verdict if self.causes else None,
        )


def report(
    *parts: Part,
    steps: Sequence[float] = (100,) * 6,
    window: str = "steps",
    world: int | None = 2,
    clock_us: float | None = 0,
    unclassified: float = 0,
    kind: str = "measured",
    device: str | None = "NVIDIA H100 80GB HBM3",
    contention: ContentionReport | None = None,
    notes: Sequence[tuple[str, str]] = (),
) -> Report:
    """A Report of two ranks with these families and steps; each rank has half of what the families have."""
    span = round(sum(steps) * MS)
    rows = [part.row() for part in parts]
    known = all(row.wait_ns is not None for row in rows)
    half = {
        name: sum(getattr(row, name) for row in rows) // 2
        for name in ("communication_ns", "hidden_ns", "under_fused_ns", "exposed_ns", "fused_ns")
    }
    ranks = [
        replace(
            rank_row(rank),
            span_ns=span,
            **half,
            communication_kernels=sum(row.kernels for row in rows) // 2,
            wait_ns=sum(row.wait_ns or 0 for row in rows) // 2 if known else None,
            hidden_transfer_ns=sum(row.hidden_transfer_ns or 0 for row in rows) // 2 if known else None,
            clock_uncertainty_ns=None if clock_us is None else round(clock_us * 1000),
        )
        for rank in range(2)
    ]
    names = [str(at) for at in range(len(steps))]
    zero = {name: 0 for name in StepRow.__struct_fields__ if name.endswith("_ns") and name not in ("span_ns",)}
    return Report(
        origin_ns="0",
        provenance=Provenance(
            kind=kind,
            underlap_version="0",
            sources=[replace(source(rank), device_model=device, world_size=world) for rank in range(2)],
            ranks_counted=[0, 1],
            world_size=world,
        ),
        window=Window(kind=window, definition="", steps_found=names, steps_used=names if window == "steps" else [], outside_ns=0),
        summary=replace(summary(), unmatched_ns=round(unclassified * MS), unmatched_kernels=int(unclassified > 0)),
        step_summary=None,
        ranks=ranks,
        families=rows,
        steps=[
            StepRow(step=name, rank=rank, device=0, used=window == "steps", span_ns=round(ms * MS), **zero)
            for name, ms in zip(names, steps, strict=True)
            for rank in range(2)
        ],
        lanes=[],
        instances=[],
        contention=contention,
        unmatched=[],
        notes=[NoteRow(code=code, text=text) for code, text in notes],
    )


def contention(word: str = "slower", ratio: float | None = 1.2, spread: float = 0.1) -> ContentionReport:
    """Compute takes so many times as long beside communication."""
    gain = NetGainReport(
        word="gain",
        reason=None,
        hidden_ns=10 * MS,
        compute_cost_ns=2 * MS,
        communication_cost_ns=0,
        net_ns=8 * MS,
        net_low_ns=7 * MS,
        net_high_ns=9 * MS,
    )
    return ContentionReport(
        word=word,
        reason=None,
        method="positions",
        ratio=ratio,
        ratio_low=None if ratio is None else ratio - spread,
        ratio_high=None if ratio is None else ratio + spread,
        placebo_ratio=1.0,
        kernels_slower=5,
        kernels_faster=0,
        cost_ns=2 * MS,
        cost_low_ns=1 * MS,
        cost_high_ns=3 * MS,
        kernels=[],
        net_gain=gain,
    )
