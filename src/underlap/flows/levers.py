"""The remedies of a scenario, ranked by the step time that each would give."""

from __future__ import annotations

import itertools

import msgspec

from underlap.answers import Lever, Levers
from underlap.errors import OptionError
from underlap.flows.quick import Outcome, Quick
from underlap.flows.remedies import Remedy, joined, remedies
from underlap.flows.simulate import SAME, Scenario
from underlap.layout import layout_text
from underlap.policy import policy_text
from underlap.workload import workload_text

_PAIRED = 3
"""Of each kind, so many of the best are tried together with those of other kinds."""


def levers(asked: Scenario) -> Levers:
    """Every remedy tried alone, and the best pairs. Raises OptionError where the scenario itself cannot be."""
    quick = Quick()
    base = quick.outcome(asked, asked.policy)
    tried = [(remedy, _tried(base, remedy, quick)) for remedy in remedies(asked)]
    useful = [(remedy, lever) for remedy, lever in tried if _gains(lever)]
    useful.sort(key=lambda pair: pair[1].step_ns or 0)
    others = [lever for _, lever in tried if not _gains(lever)]
    others.sort(key=lambda lever: (lever.problem is not None, lever.fits is False, lever.step_ns or 0))
    return Levers(
        model=asked.model.name,
        cluster=asked.cluster.name,
        layout=layout_text(asked.layout),
        workload=workload_text(asked.workload),
        policy=policy_text(asked.policy) or "none",
        step_ns=base.step_ns,
        exposed_ns=base.exposed_ns,
        sent_bytes=base.sent_bytes,
        memory_bytes=base.memory_bytes,
        noise=SAME,
        ranked=[lever for _, lever in useful],
        not_ranked=others,
        pair=_pair(asked, base, useful, quick),
        does_not_support=[
            "the sum of two gains: levers are not additive; the pair shown was simulated together",
            "gains smaller than the error of the costs, which is in docs/accuracy.md",
            "convergence: a change of precision or routing is another training",
        ],
    )


def _gains(lever: Lever) -> bool:
    return lever.problem is None and lever.fits is True and lever.step_ratio is not None and lever.step_ratio < 1 - SAME


def _tried(base: Outcome, remedy: Remedy, quick: Quick) -> Lever:
    lever = Lever(kind=remedy.kind, change=remedy.change, costs=remedy.costs, problem=remedy.problem)
    if remedy.problem is not None:
        return lever
    try:
        outcome = quick.outcome(remedy.asked, remedy.asked.policy)
    except OptionError as error:
        return msgspec.structs.replace(lever, problem=str(error))
    before = {(one.axis, one.name) for one in base.refused}
    refused = [one.reason for one in outcome.refused if (one.axis, one.name) not in before]
    return msgspec.structs.replace(lever, problem="; ".join(refused)) if refused else _compared(lever, base, outcome)


def _compared(lever: Lever, base: Outcome, outcome: Outcome) -> Lever:
    return msgspec.structs.replace(
        lever,
        step_ns=outcome.step_ns,
        step_ratio=outcome.step_ns / base.step_ns,
        word=word(base, outcome),
        exposed_ns=outcome.exposed_ns,
        sent_bytes=outcome.sent_bytes,
        memory_bytes=outcome.memory_bytes,
        fits=outcome.fits,
    )


def word(base: Outcome, outcome: Outcome) -> str:
    """What became of the communication, by step time, bytes and time: one of the four words, or that it is none of them."""
    ratio = outcome.step_ns / base.step_ns
    if ratio > 1 + SAME:
        return "a loss"
    fewer = outcome.sent_bytes < base.sent_bytes * (1 - 1e-6)
    if ratio >= 1 - SAME:
        return "shifted" if outcome.exposed_ns < base.exposed_ns * (1 - SAME) else "no difference"
    if outcome.exposed_ns >= base.exposed_ns:
        return "less compute or idle"
    if fewer:
        return "removed"
    quicker = outcome.communication_ns < base.communication_ns * (1 - SAME)
    return "shortened" if quicker and outcome.hidden_ns <= base.hidden_ns * (1 + SAME) else "hidden"


def _pair(asked: Scenario, base: Outcome, useful: list[tuple[Remedy, Lever]], quick: Quick) -> Lever | None:
    """The best two remedies of different kinds, or overlap of two axes, simulated together."""
    best: list[tuple[Remedy, Lever]] = []
    for kind in ("layout", "in_network", "bytes", "overlap"):
        best += [pair for pair in useful if pair[0].kind == kind][:_PAIRED]
    found: Lever | None = None
    for (one, _), (other, _) in itertools.combinations(best, 2):
        if one.kind == other.kind and one.kind != "overlap":
            continue
        lever = Lever(kind="pair", change=f"{one.change} and {other.change}", costs=f"{one.costs}; {other.costs}")
        try:
            both = joined(asked, one, other)
            outcome = quick.outcome(both, both.policy)
        except OptionError:
            continue
        if len(outcome.refused) > len(base.refused):
            continue
        lever = _compared(lever, base, outcome)
        if _gains(lever) and (found is None or (lever.step_ns or 0) < (found.step_ns or 0)):
            found = lever
    return found
