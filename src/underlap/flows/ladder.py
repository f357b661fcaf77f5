"""From one device to the parallel engine, an axis at a time: which limit each axis lifts, and what it sends for that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from underlap.answers import Ladder, Rung, RungCost
from underlap.errors import OptionError
from underlap.flows.quick import Outcome, Quick
from underlap.flows.remedies import remedies
from underlap.flows.simulate import SAME, Scenario, tokens_of
from underlap.layout import Layout, layout_text
from underlap.policy import AxisPolicy, Policy, policy_text
from underlap.workload import Train, micro_batch_size, workload_text

Limit = Literal["capacity", "latency", "traffic"]


def ladder(asked: Scenario) -> Ladder:
    """The rungs of the scenario's layout, and last its policy; where it has none, the pass of each axis that gains most.

    Raises OptionError where the scenario itself cannot be.
    """
    quick = Quick()
    quick.plan(asked, asked.policy)
    rungs: list[Rung] = []
    before: _Climbed | None = None
    for adds, layout in _layouts(asked.layout):
        lower = dataclasses.replace(asked, layout=layout, policy=Policy(), cluster=asked.cluster.with_gpus(layout.world))
        rung, climbed = _rung(lower, adds, before, quick)
        rungs.append(rung)
        before = climbed or before
    policy = asked.policy if asked.policy != Policy() else _best_policy(asked, quick)
    if policy != Policy():
        rung, _ = _rung(dataclasses.replace(asked, policy=policy), "overlap", before, quick)
        rungs.append(rung)
    return Ladder(
        model=asked.model.name,
        cluster=asked.cluster.name,
        workload=workload_text(asked.workload),
        device_memory_bytes=asked.cluster.topology.processor.memory_bytes,
        rungs=rungs,
        does_not_support=[
            "times of rungs that do not fit: they are of a device with as much memory as they need",
            "another batch or sequence: every rung has the same, over more devices",
            "a measured speed-up: costs are a model, whose errors are in docs/accuracy.md",
        ],
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Climbed:
    """What the next rung is compared with."""

    outcome: Outcome
    single_ns: int
    tokens_per_s: float


def _layouts(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """One device; then tp, pp, replicas, sequence and context, experts, as far as the layout has them."""
    fields: dict[str, Any] = {"order": layout.order}
    yield "one device", Layout(**fields)
    steps: list[tuple[str, dict[str, Any]]] = [
        (f"tp={layout.tp}", {"tp": layout.tp}),
        (f"pp={layout.pp}", {"pp": layout.pp, "schedule": layout.schedule, "virtual": layout.virtual, "split": layout.split}),
        (
            ",".join(f"{axis}={layout.degree(axis)}" for axis in ("dp", "fsdp") if layout.degree(axis) > 1),
            {"dp": layout.dp, "fsdp": layout.fsdp, "zero": layout.zero if layout.data_parallel > 1 else None},
        ),
        ("sp", {"sp": layout.sp}),
        (f"cp={layout.cp}", {"cp": layout.cp, "context": layout.context, "zero": layout.zero}),
        (f"ep={layout.ep}", {"ep": layout.ep, "etp": layout.etp}),
    ]
    defaults = Layout()
    for adds, more in steps:
        if all(value == getattr(defaults, name) for name, value in more.items() if name != "zero"):
            continue
        fields |= more
        yield adds, Layout(**fields)


def _rung(asked: Scenario, adds: str, before: _Climbed | None, quick: Quick) -> tuple[Rung, _Climbed | None]:
    rung = Rung(
        adds=adds,
        layout=layout_text(asked.layout) or "one device",
        policy=policy_text(asked.policy) or "none",
        gpus=asked.layout.world,
    )
    try:
        outcome = quick.outcome(asked, asked.policy)
        single = quick.outcome(_single(asked), asked.policy)
    except OptionError as error:
        return msgspec.structs.replace(rung, problem=str(error)), None
    rate = tokens_of(asked) * 1e9 / outcome.step_ns
    climbed = _Climbed(outcome, single.step_ns, rate)
    rung = msgspec.structs.replace(
        rung,
        fits=outcome.fits,
        memory_bytes=outcome.memory_bytes,
        step_ns=outcome.step_ns,
        single_ns=single.step_ns,
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / asked.layout.world,
        exposed_ns=outcome.exposed_ns,
        lifts=_lifts(before, climbed) if before is not None else [],
        costs=_costs(before.outcome if before is not None else None, outcome, asked.layout.world),
    )
    return rung, climbed


def _single(asked: Scenario) -> Scenario:
    """One micro-batch per replica: what a single one has to wait."""
    size = asked.layout.data_parallel * micro_batch_size(asked.workload, asked.layout)
    if asked.layout.schedule in ("interleaved", "dualpipev"):
        size *= asked.layout.pp * (2 if asked.layout.schedule == "dualpipev" else 1)
    name = "gbs" if isinstance(asked.workload, Train) else "batch"
    return dataclasses.replace(asked, workload=msgspec.structs.replace(asked.workload, **{name: size}))


def _lifts(before: _Climbed, now: _Climbed) -> list[Limit]:
    found: list[Limit] = []
    if not before.outcome.fits and now.outcome.memory_bytes < before.outcome.memory_bytes * (1 - SAME):
        found.append("capacity")
    if now.single_ns < before.single_ns * (1 - SAME):
        found.append("latency")
    if now.tokens_per_s > before.tokens_per_s * (1 + SAME):
        found.append("traffic")
    return found


def _costs(before: Outcome | None, now: Outcome, world: int) -> list[RungCost]:
    """Collectives that were not there before; where there are none, those that the rung changed."""
    had = {(entry.group, entry.collective) for entry in before.entries} if before is not None else set()
    costs = []
    for entry in now.entries:
        if (entry.group, entry.collective) in had:
            continue
        group = now.plan.groups[entry.group]
        total, exposed = now.groups.get(entry.group, (None, None))
        costs.append(
            RungCost(
                group=entry.group,
                axis=" x ".join(group.axis),
                collective=entry.collective,
                link="scale_out" if group.domains > 1 else "scale_up",
                calls=entry.calls,
                bytes_per_gpu=round(entry.sent_bytes / world),
                communication_ns=total,
                exposed_ns=exposed,
            )
        )
    return costs


def _best_policy(asked: Scenario, quick: Quick) -> Policy:
    """Axis by axis the pass that shortens the step most beside those chosen before it."""
    chosen = asked.policy
    best = quick.outcome(asked, chosen).step_ns
    candidates: dict[str, list[AxisPolicy]] = {}
    for remedy in remedies(asked):
        if remedy.kind == "overlap":
            axis = remedy.change.partition("=")[0]
            candidates.setdefault(axis, []).append(remedy.asked.policy.of(axis))
    for axis, policies in candidates.items():
        start = chosen
        for policy in policies:
            tried = msgspec.structs.replace(start, **{axis: policy})
            outcome = quick.outcome(asked, tried)
            if not outcome.refused and outcome.step_ns < best * (1 - SAME):
                chosen, best = tried, outcome.step_ns
    return chosen
