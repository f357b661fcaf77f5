"""The plans of a trial, simulated, beside what their ranks recorded: joined by structural key, operation by operation."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from underlap.analyze.report import report as analyzed
from underlap.cost.work import Transfer
from underlap.flows.simulate import SAME, Scenario, machine, step_range
from underlap.plan import Plan
from underlap.report import Report
from underlap.run import comparing
from underlap.simulate import simulate as simulated_plan
from underlap.simulate.recording import timeline
from underlap.timeline import OpClass
from underlap.trial import (
    Beside,
    Comparison,
    ComparisonBeside,
    FamilyBeside,
    Foretold,
    OperationsBeside,
    Outcome,
    VariantBeside,
)

if TYPE_CHECKING:
    from underlap.run.job import Seen
    from underlap.run.timing import RankTimes

MOST_OPERATIONS = 20
What = Literal["compute", "transfer"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Operation:
    """One structural key of the plan, over all ranks that have it."""

    ranks: int
    predicted_ns: int
    """Mean over those ranks."""
    family: tuple[str, str] | None
    """(group, collective) of a transfer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says of one plan."""

    world: int
    step_ns: int
    step_range_ns: tuple[int, int] | tuple[None, None]
    report: Report
    operations: dict[tuple[str, str], _Operation]
    """By (what, structural key)."""
    assumptions: tuple[str, ...]


def predict(plan: Plan, asked: Scenario) -> Prediction:
    """Simulate the plan on the scenario's cluster. Raises OptionError where it does not fit."""
    done = simulated_plan(plan, machine(asked), bounds=False)
    found = timeline(done)
    roles = {role.ranks[0]: role for role in plan.roles}
    operations: dict[tuple[str, str], _Operation] = {}
    for role in plan.roles:
        expansion = done.expansions[role.name]
        for row in range(len(expansion.rows)):
            # Both an issue and its wait carry the key of the transfer: only the issue has work.
            number = int(expansion.rows.work[row])
            if number < 0:
                continue
            work = expansion.works[number]
            sent = (expansion.names[expansion.rows.group[row]], work.collective) if isinstance(work, Transfer) else None
            key = ("transfer" if sent else "compute", expansion.key(row))
            operations[key] = _Operation(role.multiplicity, 0, sent)
    ops = found.ops
    columns = (ops.rank, ops.source_row, ops.op_class, ops.start_ns, ops.end_ns)
    for rank, row, kind, start, end in zip(*(column.tolist() for column in columns), strict=True):
        what = "transfer" if kind == OpClass.COMMUNICATION else "compute"
        key = (what, done.expansions[roles[rank].name].key(row))
        operations[key] = dataclasses.replace(operations[key], predicted_ns=end - start)
    return Prediction(
        world=plan.world,
        step_ns=done.step_ns,
        step_range_ns=step_range(asked, plan),
        report=analyzed(found, window="whole", deep=False),
        operations=operations,
        assumptions=done.prices.assumptions,
    )


def foretold(asked: Scenario, predictions: Sequence[Prediction], seen: Sequence[Seen], ab: Comparison | None) -> Foretold:
    """The predictions, in the order of the plans, beside what all ranks saw of these plans."""
    variants = [_variant(one, other) for one, other in zip(predictions, seen, strict=True)]
    return Foretold(
        cluster=asked.cluster.name,
        variants=variants,
        ab=None if ab is None else _comparison(predictions[-1].step_ns / predictions[0].step_ns, ab),
        assumptions=list(dict.fromkeys(text for one in predictions for text in one.assumptions)),
    )


def _comparison(ratio: float, ab: Comparison) -> ComparisonBeside:
    return ComparisonBeside(
        predicted_ratio=ratio,
        measured_ratio=ab.ratio,
        ratio_low=ab.ratio_low,
        ratio_high=ab.ratio_high,
        predicted=_predicted(ratio),
        sign_agrees=agrees(ab.outcome, ratio),
    )


def _predicted(ratio: float) -> Outcome:
    return "gain" if ratio < 1 - SAME else "loss" if ratio > 1 + SAME else "no difference"


def agrees(outcome: Outcome | None, ratio: float) -> bool | None:
    """Whether a predicted ratio has the sign of an established outcome. None where none is established."""
    if outcome is None:
        return None
    return {"gain": ratio < 1, "loss": ratio > 1, "no difference": abs(ratio - 1) <= comparing.SAME}[outcome]


def beside_again(one: VariantBeside, now: Prediction) -> VariantBeside:
    """What was measured, beside another prediction of the same plan. Single operations are left out."""
    summary = now.report.summary
    assert summary is not None
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for operation in now.operations.values():
        if operation.family is not None:
            sums[operation.family] += operation.ranks * operation.predicted_ns
    return msgspec.structs.replace(
        one,
        step=_again(one.step, now.step_ns),
        step_low_ns=now.step_range_ns[0],
        step_high_ns=now.step_range_ns[1],
        compute=_again(one.compute, summary.compute.mean_ns),
        communication=_again(one.communication, summary.communication.mean_ns),
        transfer=None if one.transfer is None else _again(one.transfer, _without_waiting(now)),
        hidden=_again(one.hidden, summary.hidden.mean_ns),
        exposed=_again(one.exposed, summary.exposed.mean_ns),
        families=[
            msgspec.structs.replace(row, time=_again(row.time, sums[row.group, row.collective] / now.world))
            for row in one.families
        ],
        operations=[],
    )


def compared_again(ab: ComparisonBeside, outcome: Outcome | None, now: Sequence[Prediction]) -> ComparisonBeside:
    """What was measured of a comparison, and what it established, beside other predictions of its two plans."""
    ratio = now[-1].step_ns / now[0].step_ns
    return msgspec.structs.replace(ab, predicted_ratio=ratio, predicted=_predicted(ratio), sign_agrees=agrees(outcome, ratio))


def _again(beside: Beside, predicted_ns: float) -> Beside:
    return _beside(predicted_ns, (beside.low_ns, beside.measured_ns, beside.high_ns))


_Lasted = list[dict[tuple[str, str], list[int]]]
"""By rank: of each (what, structural key) its time in each repetition."""


def _variant(one: Prediction, seen: Seen) -> VariantBeside:
    summary = one.report.summary
    assert summary is not None
    lasted = [{(row.what, row.key): row.ns for row in times.operations} for times in seen.times]
    return VariantBeside(
        name=seen.name,
        step=_beside(one.step_ns, seen.step_ns),
        step_low_ns=one.step_range_ns[0],
        step_high_ns=one.step_range_ns[1],
        compute=_beside(summary.compute.mean_ns, _means(seen.times, lambda each: each.compute_ns)),
        communication=_beside(summary.communication.mean_ns, _means(seen.times, lambda each: each.communication_ns)),
        transfer=_transfer(one, seen.times),
        hidden=_beside(summary.hidden.mean_ns, _means(seen.times, lambda each: each.hidden_ns)),
        exposed=_beside(summary.exposed.mean_ns, _means(seen.times, lambda each: each.exposed_ns)),
        families=_families(one, lasted),
        operations=_operations(one, lasted)[:MOST_OPERATIONS],
    )


def _transfer(one: Prediction, times: Sequence[RankTimes]) -> Beside | None:
    if any(account.transfer_ns is None for each in times for account in each.accounts):
        return None
    return _beside(_without_waiting(one), _means(times, lambda each: each.transfer_ns or 0))


def _without_waiting(one: Prediction) -> float:
    """Mean over ranks of the communication of which no part waits for a rank that the plan lets come later."""
    return statistics.fmean(rank.communication_ns - (rank.wait_ns or 0) for rank in one.report.ranks)


def _beside(predicted_ns: float, measured_ns: Sequence[float]) -> Beside:
    middle, low, high = comparing.interval(measured_ns)
    return Beside(
        predicted_ns=round(predicted_ns),
        measured_ns=round(middle),
        low_ns=round(low),
        high_ns=round(high),
        error=predicted_ns / middle - 1 if middle else None,
        within=low <= predicted_ns <= high,
    )


def _means(times: Sequence[RankTimes], part: Callable[..., int]) -> list[float]:
    """Of each repetition: mean over ranks."""
    return [statistics.fmean(map(part, accounts)) for accounts in zip(*(each.accounts for each in times), strict=True)]


def _families(one: Prediction, lasted: _Lasted) -> list[FamilyBeside]:
    by_family: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for key, operation in one.operations.items():
        if operation.family is not None:
            by_family[operation.family].append(key)
    return [
        FamilyBeside(group=group, collective=collective, calls=_calls(one, keys, lasted), time=_sum(one, keys, lasted))
        for (group, collective), keys in by_family.items()
    ]


def _operations(one: Prediction, lasted: _Lasted) -> list[OperationsBeside]:
    by_name: dict[tuple[What, str], list[tuple[str, str]]] = defaultdict(list)
    for what, key in one.operations:
        phase, _, _, _, role, _ = key.split("/")
        by_name["transfer" if what == "transfer" else "compute", f"{phase}/{role}"].append((what, key))
    rows = []
    for (what, name), keys in by_name.items():
        besides = {key: _one(one, key, lasted) for key in keys}
        furthest = max(keys, key=lambda key: _distance(besides[key]))
        rows.append(
            OperationsBeside(
                name=name,
                what=what,
                calls=_calls(one, keys, lasted),
                time=_sum(one, keys, lasted),
                furthest=furthest[1],
                furthest_time=besides[furthest],
            )
        )
    return sorted(rows, key=lambda row: -_distance(row.time))


def _calls(one: Prediction, keys: Iterable[tuple[str, str]], lasted: _Lasted) -> float:
    return sum(one.operations[key].ranks for key in keys) / len(lasted)


def _one(one: Prediction, key: tuple[str, str], lasted: _Lasted) -> Beside:
    """Of one operation, mean over the ranks that have it."""
    measured = zip(*(rank[key] for rank in lasted if key in rank), strict=True)
    return _beside(one.operations[key].predicted_ns, [statistics.fmean(repetition) for repetition in measured])


def _distance(beside: Beside) -> int:
    return abs(beside.predicted_ns - beside.measured_ns)


def _sum(one: Prediction, keys: Sequence[tuple[str, str]], lasted: _Lasted) -> Beside:
    """Of all these operations together, mean per rank."""
    predicted = sum(one.operations[key].ranks * one.operations[key].predicted_ns for key in keys)
    measured = zip(*(rank[key] for key in keys for rank in lasted if key in rank), strict=True)
    return _beside(predicted / len(lasted), [sum(repetition) / len(lasted) for repetition in measured])
