"""Does a published claim carry over to my deployment? Both are simulated, with and without the overlap that the claim is about.

First the claim's own conditions: unless the model gives the claim's figure there, to within its error, it has no say about
another place. Then mine, then each difference alone. What is open on either side is swept, and the answer is a range.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import msgspec

from underlap import inputs
from underlap.claim import METRICS, Claim
from underlap.cluster import Cluster
from underlap.errors import UnderlapError
from underlap.flows import simulate as flow
from underlap.flows.deployment import deployment
from underlap.hazards import memory_peak
from underlap.judge import carrying, conditions
from underlap.judge.carrying import Claimed, Simulated
from underlap.judge.conditions import NAMES, Conditions, Mapped, Question
from underlap.judge.selection import select
from underlap.judgement import CARRIES, CARRIES_NOT, NOT_DECIDABLE, CarriedCondition, Carry, Span
from underlap.model import Model
from underlap.policy import Policy

_MOST_REASONS = 3
_OVER = "by the model it needs more memory than a device has"


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """What is simulated at every point, wherever that is."""

    claim: Claim
    axis: str
    target: Claimed


def carry(claim: Claim, mine: str | os.PathLike[str]) -> Carry:
    """The Carry of a claim to the deployment in a file. Raises InputError for a file that cannot be used."""
    own = deployment(mine)
    mapped = conditions.of_claim(claim)
    target = carrying.claimed(claim)
    axis, reason = conditions.axis_of(claim)
    if isinstance(target, str) or axis is None:
        missing = [*([target] if isinstance(target, str) else []), *mapped.missing]
        return _carry(claim, mapped, None, missing, "; ".join(missing) or reason)
    asked = _Asked(claim, axis, target)
    own = _as_asked(own, asked, mapped)
    if mapped.question is None:
        points = _sweep(own, asked) if mapped.policy is not None or own.fixed["policy"].of(axis).steps else []
        why = f"the claim's own conditions cannot be simulated: {'; '.join(mapped.missing)}"
        found = _carry(claim, mapped, target, list(mapped.missing), why)
        unknown = [*mapped.unknown, *_left_open(own, points)]
        rows = [_unmapped(name, own) for name in NAMES]
        return msgspec.structs.replace(found, mine=_span(points, own), conditions=rows, unknown=unknown)
    theirs = _sweep(mapped.question, asked)
    ours = _sweep(own, asked)
    outcome, why, decided_by = _decide(asked, theirs, ours)
    rows = _differences(asked, mapped.question, theirs, own)
    found = _carry(claim, mapped, target, [], why)
    return msgspec.structs.replace(
        found,
        outcome=outcome,
        decided_by=decided_by,
        claim_simulated=_span(theirs, mapped.question),
        mine=_span(ours, own),
        conditions=rows,
        unknown=[*mapped.unknown, *_in_doubt(target, theirs, outcome, rows), *_left_open(own, ours)],
    )


def _as_asked(own: Question, asked: _Asked, mapped: Mapped) -> Question:
    """Mine, with the claim's pass where mine says nothing on that axis; the forward pass alone where the claim is about that."""
    fixed = dict(own.fixed)
    policy: Policy = fixed["policy"]
    if not policy.of(asked.axis).steps and mapped.policy is not None:
        fixed["policy"] = conditions.joined(policy, asked.axis, mapped.policy)
    if asked.claim.metric == "forward_speedup" and fixed["kind"] == "train":
        fixed["kind"] = "prefill"
    return Question(fixed, own.open)


def _carry(claim: Claim, mapped: Mapped, target: Claimed | None, missing: list[str], why: str) -> Carry:
    """What is known before anything is simulated: not decidable."""
    of = f" of {claim.of}" if claim.of else ""
    meaning = METRICS[claim.metric].meaning if claim.metric else "not stated"
    return Carry(
        outcome=NOT_DECIDABLE,
        provenance="simulated",
        why=why,
        figure=f"{claim.metric or 'figure'}{of}: {meaning}",
        unit=target.unit if target else "x",
        claimed_low=target.low if target else None,
        claimed_high=target.high if target else None,
        model_error=target.error if target else None,
        model_error_from=carrying.ERROR_FROM,
        claim_simulated=None,
        mine=None,
        decided_by=None,
        conditions=[],
        missing=missing,
        assumptions=list(mapped.assumptions),
        unknown=list(mapped.unknown),
    )


# ---- figures


def _sweep(question: Question, asked: _Asked) -> list[Simulated]:
    return [_at(question, point, asked) for point in question.points()]


def _at(question: Question, point: dict[str, Any], asked: _Asked) -> Simulated:
    try:
        figure, why = _figure(question.at(point), asked)
    except UnderlapError as error:
        return Simulated(point, None, str(error))
    return Simulated(point, figure, why)


def _figure(at: Conditions, asked: _Asked) -> tuple[float | None, str]:
    """(the claim's metric at these conditions, why there is none or what to know of it). Raises UnderlapError."""
    axis = asked.axis
    baseline = conditions.without(at.policy, axis)
    if at.layout.degree(axis) == 1 and not (axis == "dp" and at.layout.cp > 1):
        alone = f"the layout has {axis}=1: nothing is sent on that axis, so that there is nothing to overlap"
        return (1.0 if asked.claim.metric in carrying.SPEEDUPS else None), alone
    scenario = flow.scenario(
        model=at.model, cluster=at.cluster, layout=at.layout, workload=at.workload, policy=_fitting(at.policy, at, axis)
    )
    inputs.check(scenario.model, scenario.layout, scenario.workload, scenario.policy, scenario.cluster)
    done, refused = flow.run(scenario, scenario.policy)
    for one in refused:
        if one.axis == axis:
            return None, f"{axis}={one.name} cannot be applied: {one.reason}"
    # A note, and no more: what is planned here does not free and shard as the engine of a claim may.
    peak = max(memory_peak(done.plan, expansion) for expansion in done.expansions.values())
    room = at.cluster.topology.processor.memory_bytes
    why = "" if peak <= room else _OVER
    if asked.claim.metric not in carrying.SPEEDUPS:
        figure, reason = _share(asked, scenario)
        return figure, reason or why
    before, _ = flow.run(scenario, _fitting(baseline, at, axis))
    return before.step_ns / done.step_ns, why


def _fitting(policy: Policy, at: Conditions, axis: str) -> Policy:
    """Without axes that the layout does not have: only the claim's own may be asked for in vain."""
    for each in ("tp", "cp", "ep", "pp", "fsdp", "dp"):
        if each != axis and at.layout.degree(each) == 1 and not (each == "dp" and at.layout.cp > 1):
            policy = conditions.without(policy, each)
    return policy


def _share(asked: _Asked, scenario: flow.Scenario) -> tuple[float | None, str]:
    """A share in percent, from the Report of the simulated step; a reason where there is none."""
    report = flow.simulate(scenario, deep=False)
    part = select(msgspec.structs.replace(asked.claim, collective=None), report)
    if isinstance(part, str):
        return None, part
    if asked.claim.metric != "hidden_share":
        amount = part.exposed if asked.claim.metric == "exposed_share" else part.communication
        return 100 * amount / part.span, ""
    kernel = 100 * part.hidden / part.communication
    if asked.claim.of == "kernel_time":
        return kernel, ""
    if part.wait is None or part.hidden_transfer is None or part.wait == part.communication:
        return None, "waiting for peers is not known"
    transfer = 100 * part.hidden_transfer / (part.communication - part.wait)
    if asked.claim.of is None and abs(transfer - kernel) > 1:
        return None, f"of what is not stated, and it matters: {transfer:.1f} % of transfer, {kernel:.1f} % of kernel time"
    return transfer, ""


def _span(points: list[Simulated], question: Question) -> Span | None:
    known = [point.figure for point in points if point.figure is not None]
    if not known:
        return None
    return Span(
        low=min(known),
        high=max(known),
        points=len(known),
        left_out=len(points) - len(known),
        swept=[
            f"{NAMES[name]}: {', '.join(conditions.text_of(name, value) for value in values)}"
            for name, values in question.open.items()
        ],
    )


# ---- the answer


def _decide(asked: _Asked, theirs: list[Simulated], ours: list[Simulated]) -> tuple[str, str, str | None]:
    """(outcome, why, the condition that decides)."""
    target = asked.target
    doubt = _doubt(target, theirs)
    if doubt:
        return NOT_DECIDABLE, doubt, None
    figures = [point.figure for point in ours if point.figure is not None]
    gaps = [point for point in ours if point.figure is None]
    if not figures:
        return NOT_DECIDABLE, f"there is no figure for mine: {_reasons(ours)}", None
    held = [target.held(figure) for figure in figures]
    words = f"{_range(figures, target.unit)} at mine, {_claim_words(target)} claimed, error {_error(target)}"
    notes = _notes(ours)
    signs = carrying.deciding(ours, NAMES, lambda figure: figure > 1) if target.unit == "x" else None
    notes = (f"; gain for {signs[0]}, loss for {signs[1]}" if signs else "") + notes
    if len(set(held)) > 1:
        sides = carrying.deciding(ours, NAMES, target.held)
        by = f"carries over for {sides[0]}, not for {sides[1]}" if sides else None
        share = f"{sum(held)} of {len(held)} points hold it, and no single condition decides"
        return NOT_DECIDABLE, f"it depends on what is open: {by or share}; {words}{notes}", by
    if gaps:
        side = "hold it" if held[0] else "do not hold it"
        why = f"the points that have a figure {side}, but others have none: {_reasons(gaps)}; {words}{notes}"
        return NOT_DECIDABLE, why, None
    return (CARRIES if held[0] else CARRIES_NOT), words + notes, None


def _notes(points: list[Simulated]) -> str:
    """What there is to know of points that have a figure, with their number where it is not all of them."""
    known = [point for point in points if point.figure is not None]
    said = ""
    for why in dict.fromkeys(point.why for point in known if point.why):
        count = sum(point.why == why for point in known)
        said += f"; {why}" + (f" (at {count} of {len(points)} points)" if count < len(points) else "")
    return said


def _doubt(target: Claimed, theirs: list[Simulated]) -> str | None:
    """Why the model has no say, if so."""
    figures = [point.figure for point in theirs if point.figure is not None]
    if not figures:
        return f"the claim's own conditions give no figure: {_reasons(theirs)}"
    claimed, simulated, error = _claim_words(target), _range(figures, target.unit), _error(target)
    if not target.reproduced(min(figures), max(figures)):
        return (
            f"the model does not give the claim's figure under the claim's own conditions: {claimed} claimed, {simulated} "
            f"simulated, error {error}"
        )
    if target.lost_in_error:
        return f"the claim, {claimed}, is no further from no effect than the model's error, {error}: it cannot tell them apart"
    return None


def _reasons(points: list[Simulated]) -> str:
    found = list(dict.fromkeys(point.why for point in points if point.figure is None))
    return "; ".join(found[:_MOST_REASONS]) + (f"; {len(found) - _MOST_REASONS} more" if len(found) > _MOST_REASONS else "")


def _range(figures: list[float], unit: str) -> str:
    low, high = (f"{end:.4g}" for end in (min(figures), max(figures)))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _claim_words(target: Claimed) -> str:
    if target.low is None or target.high is None:
        return f"at least {target.low:.4g} {target.unit}" if target.high is None else f"at most {target.high:.4g} {target.unit}"
    return _range([target.low, target.high], target.unit)


def _error(target: Claimed) -> str:
    return f"{target.error:g} {target.unit}"


def _in_doubt(target: Claimed, theirs: list[Simulated], outcome: str, rows: list[CarriedCondition]) -> list[str]:
    """What the claim's open conditions leave in doubt."""
    said = []
    agreeing = [point for point in theirs if point.figure is not None and target.reproduced(point.figure, point.figure)]
    gaps = [point for point in theirs if point.figure is None]
    if len(theirs) > 1:
        said.append(f"which conditions the claim is about: {len(agreeing)} of {len(theirs)} points of its sweep have its figure")
    if gaps:
        said.append(f"the claim: {len(gaps)} of {len(theirs)} without a figure: {_reasons(gaps)}")
    if outcome == CARRIES_NOT and not any(row.verdict == "different" for row in rows):
        said.append("whether mine is what the claim is about: no condition is known to differ, and then the model is wrong here")
    return said


def _left_open(own: Question, ours: list[Simulated]) -> list[str]:
    left = [
        f"mine: {NAMES[name]} is open: swept over {conditions.text_of(name, values[0])} to {conditions.text_of(name, values[-1])}"
        for name, values in own.open.items()
    ]
    gaps = [point for point in ours if point.figure is None]
    return left + ([f"mine: {len(gaps)} of {len(ours)} without a figure: {_reasons(gaps)}"] if gaps else [])


# ---- condition by condition


def _unmapped(name: str, own: Question) -> CarriedCondition:
    return CarriedCondition(
        name=NAMES[name], claim=None, mine=_said(name, own), verdict="unknown", before=None, after=None,
        why="",
    )  # fmt: skip


def _said(name: str, question: Question) -> str | None:
    """None where the condition is open."""
    return conditions.text_of(name, question.fixed[name]) if name in question.fixed else None


def _differences(asked: _Asked, theirs: Question, points: list[Simulated], own: Question) -> list[CarriedCondition]:
    """Each condition of the claim replaced by mine, alone, at the point that comes nearest to the claim."""
    base = carrying.nearest(points, asked.target)
    rows = []
    for name in NAMES:
        open_side = [side for side, question in (("the claim", theirs), ("mine", own)) if name in question.open]
        verdict = "unknown" if open_side else "same" if _same(name, theirs, own) else "different"
        row = CarriedCondition(
            name=NAMES[name],
            claim=_said(name, theirs),
            mine=_said(name, own),
            verdict=verdict,
            before=base.figure if base else None,
            after=None,
            why=f"open for {' and '.join(open_side)}" if open_side else "",
        )
        rows.append(_replaced(row, name, asked, theirs, base, own) if base and verdict != "same" else row)
    return rows


def _same(name: str, theirs: Question, own: Question) -> bool:
    """Of machines the hardware counts: how many of them is the layout's."""
    one, two = theirs.fixed[name], own.fixed[name]
    if isinstance(one, Cluster):
        return bool(one.topology == two.topology)
    if isinstance(one, Model):
        return bool(msgspec.structs.replace(one, name="", source="") == msgspec.structs.replace(two, name="", source=""))
    return bool(one == two)


def _replaced(
    row: CarriedCondition, name: str, asked: _Asked, theirs: Question, base: Simulated, own: Question
) -> CarriedCondition:
    """The row with the figure that this condition alone gives."""
    if name in own.open:
        return row
    values = {**theirs.fixed, **base.open}
    held = conditions.text_of(name, values[name])
    alone = _at(Question({**values, name: own.fixed[name]}, {}), {}, asked)
    held_words = f"{row.why}: {held} at the nearest point" if name in theirs.open else ""
    why = "; ".join(part for part in (held_words, alone.why) if part)
    return msgspec.structs.replace(row, after=alone.figure, why=why)
