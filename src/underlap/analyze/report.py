"""Timeline -> Report: the account of overlap, by the definitions of DESIGN section 4.

Why time is exposed, and what would change it, is not answered here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from underlap import intervals
from underlap._version import __version__
from underlap.analyze import (
    accounting,
    borrowed_rows,
    calls,
    depth,
    drift,
    families,
    groups,
    issue,
    likeness,
    notes,
    sizes,
    steps,
    verdicts,
    waits,
    why,
)
from underlap.columns import NONE, Int32, Int64
from underlap.report import (
    FamilyRow,
    LaneRow,
    NoteRow,
    PartSummary,
    Provenance,
    RankRow,
    Report,
    Source,
    StepRow,
    StepSummary,
    Summary,
    UnmatchedRow,
    Window,
)
from underlap.timeline import OpClass, Operations, Timeline


def report(
    timeline: Timeline,
    *,
    window: str | None = None,
    step_numbers: Sequence[int] | None = None,
    mesh: Mapping[str, int] | None = None,
    deep: bool | None = None,
    like: Timeline | None = None,
) -> Report:
    """The Report of a Timeline over a window ("whole", "steps", or None to choose). Raises OptionError.

    `deep` asks for contention, critical path, levers and bound, or leaves them out; None decides by the size of the trace.
    `like` is an eager recording of the same job: what the replays of device graphs do not tell is borrowed from it.
    """
    borrowed = None
    if like is not None:
        timeline, borrowed = likeness.borrow(timeline, like)
    found = steps.find(timeline)
    selection = steps.select(timeline, found, window, step_numbers)
    settled = groups.settle(timeline, mesh)
    ops_of = {key: _rows_of(timeline, key) for key in steps.devices(timeline)}
    sets = {key: accounting.device_sets(timeline.ops.take(rows)) for key, rows in ops_of.items()}
    times = calls.call_times(timeline, sets, selection.counted)
    keys, family_of_call = families.number_families(timeline, settled)
    family_of_op = np.append(family_of_call, NONE)[timeline.ops.collective]
    amounts: dict[int, list[accounting.FamilyAmounts]] = {}
    for key, stretches in selection.stretches.items():
        own = ops_of[key]
        for number, amount in accounting.family_amounts(timeline.ops.take(own), family_of_op[own], sets[key], stretches).items():
            amounts.setdefault(number, []).append(amount)
    wanted = deep if deep is not None else depth.rows_of(timeline) <= depth.ROWS_BY_DEFAULT
    numbered = (keys, family_of_call)
    reasons = why.explain(timeline, settled, times, found, selection, ops_of, sets, numbered, deep=wanted)
    rank_rows = [_rank_row(timeline, key, ops_of[key], sets[key], selection) for key in selection.stretches]
    rank_rows = waits.completed_ranks(rank_rows, reasons)
    step_rows = _step_rows(found, sets, selection)
    outlier = calls.outliers(settled, family_of_call, times)
    unmatched = _unmatched(timeline, selection)
    busy = _busy(selection, sets)
    family_rows = families.family_rows(timeline, settled, times, keys, family_of_call, amounts, len(rank_rows))
    family_rows = [
        _completed(timeline, row, keys.index((row.axis, row.collective)), family_of_call, times, settled, reasons)
        for row in family_rows
    ]
    issued = issue.find(timeline, times, family_of_call, sets)
    own_calls = [waits.calls_of_family(keys.index((row.axis, row.collective)), family_of_call, times) for row in family_rows]
    family_rows = [
        msgspec.structs.replace(
            row,
            sizes=sizes.size_rows(row.collective, settled, times, reasons.met, own),
            issue=issue.row_of(timeline, settled, found, times, issued, own),
        )
        for row, own in zip(family_rows, own_calls, strict=True)
    ]
    instances = calls.instance_rows(timeline, settled, found, times, outlier, reasons.met, issued)
    if borrowed is not None:
        family_rows = borrowed_rows.labeled_families(family_rows, keys, family_of_call, times.counted, borrowed)
        instances = borrowed_rows.labeled_instances(instances, times.counted, times.start, borrowed)
    late = verdicts.late_rows(reasons)
    priced = reasons.priced
    deeper = (
        depth.explore(timeline, settled, times, found, selection, sets, numbered, reasons, priced, rank_rows)
        if priced and rank_rows
        else None
    )
    gains = {keys[number]: gain for number, gain in deeper.family_gains.items()} if deeper else {}
    family_rows = [verdicts.with_gain(row, gains.get((row.axis, row.collective))) for row in family_rows]
    slow = sizes.slow_sizes(family_rows)
    drifting = drift.notes(numbered, found, times, reasons.met)
    meeting = (*reasons.met.notes, *drifting, *([] if slow is None else [slow]))
    return Report(
        origin_ns=str(timeline.origin_ns),
        provenance=_provenance(timeline),
        window=_window(found, selection, busy),
        step_summary=_step_summary(step_rows),
        summary=_summary(rank_rows, unmatched),
        ranks=rank_rows,
        families=family_rows,
        steps=step_rows,
        lanes=_lane_rows(timeline, selection),
        instances=instances,
        causes=verdicts.cause_rows(reasons.causes),
        coverage=verdicts.coverage(reasons.causes),
        idle_causes=verdicts.idle_rows(reasons.idle),
        headline=verdicts.headline(rank_rows, reasons.causes, late, deeper.contention.net_gain if deeper else None),
        findings=verdicts.findings(family_rows, rank_rows),
        late=late,
        clocks=waits.clock_rows(reasons),
        bubbles=waits.bubble_rows(reasons, settled),
        contention=deeper.contention if deeper else None,
        critical_path=deeper.critical_path if deeper else None,
        levers=deeper.levers if deeper else [],
        joint_lever=deeper.joint if deeper else None,
        if_independent=deeper.if_independent if deeper else None,
        if_nothing_sent=deeper.if_nothing_sent if deeper else None,
        if_half_transfer=deeper.if_half_transfer if deeper else None,
        levers_unknown=deeper.levers_unknown if deeper else None,
        bound=deeper.bound if deeper else None,
        step_prediction=deeper.prediction if deeper else None,
        borrowed=borrowed_rows.account(borrowed) if borrowed else None,
        unmatched=unmatched,
        notes=[
            NoteRow(code=note.code, text=note.text)
            for note in [
                *([borrowed_rows.note(borrowed)] if borrowed else []),
                *notes.collect(timeline, settled, selection, times, outlier, unmatched, busy, meeting),
            ]
        ],
    )


def _completed(
    timeline: Timeline,
    row: FamilyRow,
    number: int,
    family_of_call: Int32,
    times: calls.CallTimes,
    settled: groups.Calls,
    reasons: why.Why,
) -> FamilyRow:
    own = waits.calls_of_family(number, family_of_call, times)
    row = waits.completed_family(row, reasons.family_splits.get(number, []), own, settled, reasons)
    one_rank = len(timeline.ranks) == 1
    return msgspec.structs.replace(
        row, verdict=verdicts.verdict(timeline, row, reasons.family_causes.get(number, {}), one_rank=one_rank)
    )


def _rows_of(timeline: Timeline, key: tuple[int, int]) -> Int64:
    return np.flatnonzero((timeline.ops.rank == key[0]) & (timeline.ops.device == key[1]))


def _provenance(timeline: Timeline) -> Provenance:
    sources: dict[str, Source] = {}
    for info in sorted(timeline.ranks, key=lambda info: info.rank):
        if info.source in sources:
            sources[info.source].ranks.append(info.rank)
            continue
        sources[info.source] = Source(
            file=info.source,
            ranks=[info.rank],
            rank_source=info.rank_source,
            world_size=info.world_size,
            resolution_ns=info.resolution_ns,
            on_cpu=info.on_cpu,
            device_model=info.device_model,
            coordinates=dict(info.coordinates),
        )
    return Provenance(
        kind=timeline.provenance,
        underlap_version=__version__,
        sources=list(sources.values()),
        ranks_counted=sorted(info.rank for info in timeline.ranks),
        world_size=groups.world_size(timeline),
    )


def _busy(selection: steps.Selection, sets: dict[tuple[int, int], accounting.DeviceSets]) -> notes.Busy:
    total = outside = 0
    for key, own in sets.items():
        busy = intervals.merge(own.covering, own.communication, own.copy)
        stretches = selection.stretches.get(key, intervals.EMPTY)
        total += intervals.length(busy)
        outside += intervals.length(busy) - int(intervals.covered(stretches[:, 0], stretches[:, 1], busy).sum())
    return notes.Busy(total_ns=total, outside_ns=outside)


def _window(found: steps.Steps, selection: steps.Selection, busy: notes.Busy) -> Window:
    labels = found.labels
    return Window(
        kind=selection.kind,
        definition=selection.definition,
        steps_found=list(labels.values()),
        steps_used=[labels[number] for number in selection.numbers],
        outside_ns=busy.outside_ns,
    )


def _rank_row(
    timeline: Timeline,
    key: tuple[int, int],
    rows: Int64,
    sets: accounting.DeviceSets,
    selection: steps.Selection,
) -> RankRow:
    stretches = selection.stretches[key]
    parts = {name: int(values.sum()) for name, values in sets.amounts(stretches).items()}
    counted = timeline.ops.op_class[rows][selection.counted[rows]]
    kernels = np.bincount(counted, minlength=len(OpClass))
    return RankRow(
        rank=key[0],
        device=key[1],
        source_file=next(info.source for info in timeline.ranks if info.rank == key[0]),
        start_ns=int(stretches[0, 0]),
        end_ns=int(stretches[-1, 1]),
        span_ns=int((stretches[:, 1] - stretches[:, 0]).sum()),
        hidden_share=parts["hidden"] / parts["communication"] if parts["communication"] else None,
        compute_kernels=int(kernels[OpClass.COMPUTE]),
        communication_kernels=int(kernels[OpClass.COMMUNICATION] + kernels[OpClass.WAIT]),
        fused_kernels=int(kernels[OpClass.FUSED]),
        copies=int(kernels[OpClass.COPY]),
        **_in_ns(parts),
    )


def _in_ns(parts: Mapping[str, int]) -> dict[str, Any]:
    return {f"{name}_ns": value for name, value in parts.items()}


def _summary(rows: list[RankRow], unmatched: list[UnmatchedRow]) -> Summary | None:
    if not rows:
        return None
    total_span = sum(row.span_ns for row in rows)
    communication = sum(row.communication_ns for row in rows)

    def part(name: str) -> PartSummary:
        values = [getattr(row, f"{name}_ns") or 0 for row in rows]
        return PartSummary(
            mean_ns=round(sum(values) / len(values)),
            min_ns=min(values),
            max_ns=max(values),
            share_of_span=sum(values) / total_span if total_span else None,
        )

    waits_known = communication > 0 and all(row.wait_ns is not None for row in rows if row.communication_ns)
    transfer = communication - sum(row.wait_ns or 0 for row in rows)
    most = max(rows, key=lambda row: row.exposed_ns)
    return Summary(
        **{name: part(name) for name in ("span", *accounting.PARTS)},
        hidden_share=sum(row.hidden_ns for row in rows) / communication if communication else None,
        most_exposed_rank=most.rank if most.exposed_ns else None,
        wait=part("wait") if waits_known else None,
        hidden_transfer_share=(sum(row.hidden_transfer_ns or 0 for row in rows) / transfer if waits_known and transfer else None),
        unmatched_ns=sum(row.total_ns for row in unmatched),
        unmatched_kernels=sum(row.kernels for row in unmatched),
    )


def _step_rows(
    found: steps.Steps, sets: dict[tuple[int, int], accounting.DeviceSets], selection: steps.Selection
) -> list[StepRow]:
    rows = []
    for key, own in sets.items():
        mine = [step for step in found.steps if (step.rank, step.device) == key]
        borders = np.array([(step.start_ns, step.end_ns) for step in mine], dtype=np.int64).reshape(-1, 2)
        parts = own.amounts(borders)
        for at, step in enumerate(mine):
            rows.append(
                StepRow(
                    step=step.label,
                    rank=step.rank,
                    device=step.device,
                    start_ns=step.start_ns,
                    end_ns=step.end_ns,
                    span_ns=step.end_ns - step.start_ns,
                    used=selection.kind == "whole" or step.number in selection.numbers,
                    **{f"{name}_ns": int(parts[name][at]) for name in accounting.PARTS},
                )
            )
    return rows


def _step_summary(rows: list[StepRow]) -> StepSummary | None:
    used = [row for row in rows if row.used]
    if not used:
        return None
    spans = np.array([row.span_ns for row in used])
    slowest = used[int(spans.argmax())]
    return StepSummary(
        count=len({row.step for row in used}),
        median_ns=int(np.median(spans)),
        min_ns=int(spans.min()),
        max_ns=int(spans.max()),
        slowest_step=slowest.step,
        slowest_rank=slowest.rank,
    )


def _lane_rows(timeline: Timeline, selection: steps.Selection) -> list[LaneRow]:
    ops, rows = timeline.ops, []
    for number, lane in enumerate(timeline.lanes):
        own = ops.take(np.flatnonzero(ops.lane == number))
        stretches = selection.stretches.get((lane.rank, lane.device))
        if stretches is None or len(own) == 0:
            continue

        def busy(*classes: OpClass, own: Operations = own, stretches: Int64 = stretches) -> int:
            chosen = np.isin(own.op_class, classes)
            return int(
                intervals.covered(
                    stretches[:, 0], stretches[:, 1], intervals.union(own.start_ns[chosen], own.end_ns[chosen])
                ).sum()
            )

        rows.append(
            LaneRow(
                rank=lane.rank,
                device=lane.device,
                lane=lane.label,
                compute_ns=busy(OpClass.COMPUTE),
                fused_ns=busy(OpClass.FUSED),
                communication_ns=busy(OpClass.COMMUNICATION, OpClass.WAIT),
                copy_ns=busy(OpClass.COPY),
            )
        )
    return rows


def _unmatched(timeline: Timeline, selection: steps.Selection) -> list[UnmatchedRow]:
    """Kernels that no family of the name table fits, longest first. Operators of CPU ranks are no kernels."""
    ops = timeline.ops
    on_device = np.isin(ops.rank, [info.rank for info in timeline.ranks if not info.on_cpu])
    rows = selection.counted & on_device & (ops.op_class == OpClass.COMPUTE) & ~timeline.recognized[ops.name]
    lengths = (ops.end_ns - ops.start_ns)[rows]
    names = ops.name[rows]
    total = np.bincount(names, weights=None, minlength=len(timeline.names))
    spent = np.zeros(len(timeline.names), dtype=np.int64)
    np.add.at(spent, names, lengths)
    order = sorted(np.flatnonzero(total).tolist(), key=lambda at: (-int(spent[at]), timeline.names[at]))
    return [UnmatchedRow(name=timeline.names[at], kernels=int(total[at]), total_ns=int(spent[at])) for at in order]
