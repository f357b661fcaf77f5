"""What takes longer to find: the price of hiding (contention), the critical path, what each lever would win, and the bound.

Kept apart from the account, as its cost grows with the host rows. Everything here is in device or path time of the window;
promises are upper bounds or ranges, and are not additive: the joint one is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec

from underlap.analyze import bound, contention, counterfactual, critical_path, evened, graph, interference, prediction
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.calls import CallTimes
from underlap.analyze.families import FamilyKey
from underlap.analyze.family_gain import family_gains
from underlap.analyze.groups import Calls
from underlap.analyze.steps import Selection, Steps
from underlap.analyze.why import Why
from underlap.columns import Int32, Int64
from underlap.errors import ScheduleError
from underlap.report import (
    BoundReport,
    ContentionReport,
    CriticalPathReport,
    LeverRow,
    NetGainReport,
    PredictionReport,
    RankRow,
    SlowerRow,
)
from underlap.timeline import Timeline


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The fields of a Report that take longer to find; see there."""

    contention: ContentionReport
    family_gains: dict[int, NetGainReport]
    """Of the families of which something is hidden."""
    critical_path: CriticalPathReport | None
    levers: list[LeverRow]
    joint: LeverRow | None
    if_independent: LeverRow | None
    if_nothing_sent: LeverRow | None
    if_half_transfer: LeverRow | None
    levers_unknown: str | None
    bound: BoundReport | None
    prediction: PredictionReport | None


ROWS_BY_DEFAULT = 1_000_000
"""Operations and host rows up to which this is done without being asked for: at most about ten seconds on one core."""


def explore(  # noqa: PLR0913, PLR0917 - everything that the account has found
    timeline: Timeline,
    calls: Calls,
    times: CallTimes,
    steps: Steps,
    selection: Selection,
    sets: dict[tuple[int, int], DeviceSets],
    families: tuple[list[FamilyKey], Int32],
    why: Why,
    priced: contention.Contention,
    ranks: list[RankRow],
) -> Depth:
    """All of it, for the window, of which the price of hiding is known already."""
    gains = family_gains(timeline, selection, sets, families[1], priced)
    clocks = why.met.clocks
    offsets = {int(rank): -int(offset) for rank, offset in zip(clocks.ranks, clocks.offset_ns, strict=True)}
    met = graph.Waits(instance=why.met.instance, wait_ns=why.met.wait, offset_ns=offsets)
    built = graph.build(timeline, met, steps.of_op)
    path = critical_path.find(timeline, built, selection.stretches)
    if path is None:
        return Depth(
            contention=_contention(timeline, priced),
            family_gains={number: _net_gain(gain) for number, gain in gains.items()},
            critical_path=None,
            levers=[],
            joint=None,
            if_independent=None,
            if_nothing_sent=None,
            if_half_transfer=None,
            levers_unknown=None,
            bound=None,
            prediction=None,
        )
    exposed = {key: own.exposed for key, own in sets.items()}
    on_path = critical_path.exposed_on_path(timeline, built, path, exposed)
    felt = interference.interference(timeline, built.wait_ns[: len(timeline.ops)])
    alone = timeline.ops.end_ns - timeline.ops.start_ns - (0 if felt is None else felt.stretch_ns)
    limit = bound.lower_bound(timeline, built, selection.stretches, alone)
    lower = max(limit.path_ns, limit.compute_ns, limit.transfer_ns)
    final = [row for row in ranks if row.rank == path.rank]
    limits = counterfactual.Limits(
        waiting_ns=_sum([row.wait_ns for row in final]),
        idle_ns=sum(row.idle_ns for row in final),
        exposed_ns=sum(row.exposed_ns for row in final),
        exposed_on_path_ns=on_path,
        stretch_ns=priced.compute.cost_ns,
        lower_bound_ns=lower,
        longest_waiting_ns=max((row.wait_ns for row in ranks if row.wait_ns is not None), default=None),
    )
    less = evened.evened(timeline, built, calls, times, why.met, why.lateness) if why.compared else None
    waterfall, refused = None, None
    try:
        waterfall = counterfactual.waterfall(timeline, built, path, selection.stretches, limits, evened=less, interference=felt)
    except ScheduleError:
        refused = "operations that meet across ranks wait for each other in a circle, so the recorded order cannot be replayed"
    # No schedule of the same work is shorter than the bound, so no lever can win more, whatever the replay of all ranks says.
    most = max(path.end_ns - path.start_ns - lower, 0)
    without_transfer = max(path.end_ns - path.start_ns - limit.compute_ns, 0)
    rested = most if less is None else _left(timeline, built, selection, alone - less.work_ns, path)
    waits = _sum([row.wait_ns for row in ranks if row.communication_ns])
    hidden = _sum([row.hidden_transfer_ns for row in ranks if row.communication_ns]) if waits is not None else None
    hidden = sum(row.hidden_ns for row in ranks) if hidden is None else hidden
    known = waits is not None
    devices = [
        (row.communication_ns - ((row.wait_ns or 0) if known else 0), row.compute_ns + row.fused_ns)
        for row in ranks
        if row.communication_ns
    ]
    told = _path(path, families, critical_path.families_on_path(timeline, path, families[1]), on_path, built)
    device = min(row.device for row in final)
    tested = prediction.predict(timeline, steps, path.rank, device)
    return Depth(
        contention=_contention(timeline, priced),
        family_gains={number: _net_gain(gain) for number, gain in gains.items()},
        critical_path=told,
        prediction=prediction.account(tested, device, told.explained_share),
        levers=[_lever(lever, rested if lever.name == "stragglers" else most, waterfall.explained) for lever in waterfall.levers]
        if waterfall
        else [],
        joint=_joint(waterfall, most) if waterfall else None,
        if_independent=_lever(waterfall.if_independent, most, waterfall.explained) if waterfall else None,
        if_nothing_sent=_lever(waterfall.if_nothing_sent, without_transfer, waterfall.explained) if waterfall else None,
        if_half_transfer=_lever(waterfall.if_half_transfer, without_transfer, waterfall.explained) if waterfall else None,
        levers_unknown=refused,
        bound=BoundReport(
            lower_bound_ns=lower,
            path_ns=limit.path_ns,
            compute_ns=limit.compute_ns,
            transfer_ns=limit.transfer_ns,
            transfer_at_most_ns=limit.transfer_at_most_ns,
            observed_ns=path.end_ns - path.start_ns,
            hidden_of_possible=bound.hidden_of_possible(hidden, devices, limit),
        ),
    )


def _left(timeline: Timeline, built: graph.Graph, selection: Selection, work: Int64, path: critical_path.CriticalPath) -> int:
    """What any schedule could win where stragglers do no more than the others: their work is part of the bound otherwise."""
    return max(path.end_ns - path.start_ns - bound.lower_bound(timeline, built, selection.stretches, work).length_ns, 0)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _path(
    path: critical_path.CriticalPath,
    families: tuple[list[FamilyKey], Int32],
    on_path: Mapping[int, int],
    exposed_on_path: int,
    built: graph.Graph,
) -> CriticalPathReport:
    explained = counterfactual.explained(built, path)
    return CriticalPathReport(
        rank=path.rank,
        start_ns=path.start_ns,
        end_ns=path.end_ns,
        parts={part.name.lower(): int(amount) for part, amount in path.composition().items()},
        families={" ".join(name or "?" for name in families[0][number]): int(ns) for number, ns in on_path.items()},
        exposed_on_path_ns=exposed_on_path,
        explained_share=explained.real_ns / explained.path_ns if explained.path_ns else None,
    )


def _lever(lever: counterfactual.Lever, most: int, rests: counterfactual.Explained) -> LeverRow:
    capped = lever.high_ns is not None and lever.high_ns > most
    return LeverRow(
        lever=lever.name,
        at_least_ns=None if lever.low_ns is None else min(lever.low_ns, rests.sure_of(most)),
        at_most_ns=None if lever.high_ns is None else min(lever.high_ns, most),
        bound_ns=most if lever.bound_ns is None else min(lever.bound_ns, most),
        ceiling=lever.ceiling,
        reason="; ".join(filter(None, (lever.reason, "cut at the lower bound" if capped else ""))),
    )


def _joint(waterfall: counterfactual.Waterfall, most: int) -> LeverRow:
    """All levers that leave the work as it is together win at least what any one of them does."""
    single = [_lever(lever, most, waterfall.explained) for lever in waterfall.levers if lever.name != "stragglers"]
    joint = _lever(waterfall.joint, most, waterfall.explained)
    if joint.at_least_ns is None or joint.at_most_ns is None:
        return joint
    return msgspec.structs.replace(
        joint,
        at_least_ns=max(joint.at_least_ns, *(lever.at_least_ns or 0 for lever in single)),
        at_most_ns=max(joint.at_most_ns, *(lever.at_most_ns or 0 for lever in single)),
    )


def _contention(timeline: Timeline, found: contention.Contention) -> ContentionReport:
    compute, net = found.compute, found.net
    counts = {info.multiprocessors for info in timeline.ranks}
    multiprocessors = counts.pop() if len(counts) == 1 else None
    return ContentionReport(
        word=compute.word,
        reason=compute.reason,
        method=compute.method,
        ratio=compute.ratio,
        ratio_low=compute.ratio_low,
        ratio_high=compute.ratio_high,
        placebo_ratio=compute.placebo_ratio,
        kernels_slower=compute.kernels_slower,
        kernels_faster=compute.kernels_faster,
        cost_ns=compute.cost_ns,
        cost_low_ns=compute.cost_low_ns,
        cost_high_ns=compute.cost_high_ns,
        kernels=[
            SlowerRow(
                name=row.label,
                kernels_beside=row.kernels_beside,
                beside_ns=row.beside_ns,
                ratio=None if row.ratio is None else row.ratio.value,
                cost_ns=row.cost_ns,
                blocks=row.blocks,
                multiprocessors_short=None
                if multiprocessors is None
                else contention.multiprocessors_short(multiprocessors, row.blocks, found.communication_blocks),
            )
            for row in found.kernels
        ],
        net_gain=_net_gain(net),
        communication_blocks=found.communication_blocks,
        multiprocessors=multiprocessors,
    )


def _net_gain(net: contention.NetGain) -> NetGainReport:
    return NetGainReport(
        word=net.word,
        reason=net.reason,
        hidden_ns=net.hidden_ns,
        compute_cost_ns=net.compute_cost_ns,
        communication_cost_ns=net.communication_cost_ns,
        net_ns=net.net_ns,
        net_low_ns=net.net_low_ns,
        net_high_ns=net.net_high_ns,
    )


def rows_of(timeline: Timeline) -> int:
    """What the cost of `explore` grows with."""
    return len(timeline.ops) + len(timeline.host)
