"""What could be done about a scenario's communication: other layouts, closer groups, in-network reduction, fewer bytes, overlap.

Each remedy is the scenario changed in one way, with what it asks for in words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import msgspec

from underlap.errors import OptionError
from underlap.flows.simulate import Scenario
from underlap.layout import Layout, layout_text
from underlap.policy import PASSES, POLICY_AXES, AxisPolicy, Pass, Policy, Resource
from underlap.workload import Train

Kind = Literal["layout", "in_network", "bytes", "overlap"]

_MOVES = ("tp", "pp", "dp", "fsdp", "cp")
_PARAMETERS = {"bucket": 100_000_000, "decompose": 4}
"""Where a pass has no default: bytes of a bucket, chunks."""
_COSTS = {
    "bucket": "gradients in buckets: set a bucket size, hold the buckets",
    "prefetch": "parameters of one more layer in memory",
    "split_batch": "every layer as two halves: smaller products, an engine that interleaves them",
    "pair_forward_backward": "a schedule that pairs micro-batches: more activations in memory",
    "decompose": "products in chunks: fused or symmetric-memory kernels, smaller products",
    "ring": "attention block by block, with keys and values of the next block in memory",
    "async_p2p": "messages in flight beside compute: one more activation in memory",
    "delay_wgrad": "gradients of weights kept for later: their inputs stay in memory",
    "shared_expert": "a second stream for the shared experts",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A changed scenario."""

    kind: Kind
    change: str
    asked: Scenario
    costs: str
    problem: str | None = None
    """Why it cannot be tried."""


def remedies(asked: Scenario) -> Iterator[Remedy]:
    """All of them, the ones that send less or closer first."""
    yield from _layouts(asked)
    yield from _in_network(asked)
    yield from _bytes(asked)
    yield from _overlap(asked)


def joined(asked: Scenario, one: Remedy, other: Remedy) -> Scenario:
    """The scenario with both changes. Raises OptionError where they do not go together."""
    layout = one.asked.layout if one.kind == "layout" else other.asked.layout
    policy = asked.policy
    for remedy in (one, other):
        for axis in POLICY_AXES:
            before, more, base = policy.of(axis), remedy.asked.policy.of(axis), asked.policy.of(axis)
            passes = (*before.passes, *(each for each in more.passes if each not in base.passes))
            resources = (*before.resources, *(each for each in more.resources if each not in base.resources))
            policy = msgspec.structs.replace(policy, **{axis: AxisPolicy(passes=passes, resources=resources)})
    policy.check_layout(layout)
    workload = one.asked.workload if one.asked.workload != asked.workload else other.asked.workload
    model = one.asked.model if one.asked.model != asked.model else other.asked.model
    return dataclasses.replace(asked, layout=layout, policy=policy, workload=workload, model=model)


# ---- other layouts of the same devices


def _layouts(asked: Scenario) -> Iterator[Remedy]:
    seen = {asked.layout}
    for change, layout in _neighbors(asked.layout):
        if layout in seen or layout.world != asked.layout.world:
            continue
        seen.add(layout)
        try:
            layout.check_model(asked.model)
            asked.policy.check_layout(layout)
        except OptionError:
            continue
        yield Remedy(
            kind="layout",
            change=f"{change}: {layout_text(layout)}",
            asked=dataclasses.replace(asked, layout=layout),
            costs="a relaunch; checkpoints laid out anew",
        )


def _neighbors(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """One factor of two moved between axes, one feature switched, or the axes in another order."""
    for source in _MOVES:
        for target in _MOVES:
            if source == target or layout.degree(source) % 2:
                continue
            changed = {source: layout.degree(source) // 2, target: layout.degree(target) * 2}
            yield from _made(layout, f"{target} x 2, {source} / 2", **changed)
    if layout.tp > 1 and not layout.sp:
        yield from _made(layout, "sequence parallelism", sp=True)
    if layout.zero_stage == 0:
        yield from _made(layout, "optimizer states sharded", zero=1)
    if layout.pp > 1 and layout.schedule == "1f1b":
        yield from _made(layout, "interleaved stages", schedule="interleaved", virtual=2)
    if layout.ep > 1:
        yield from _made(layout, "ep / 2", ep=layout.ep // 2)
        if layout.expert_tensor > 1:
            yield from _made(layout, "whole experts", etp=1)
    wide = [axis for axis in layout.axis_order if layout.degree(axis) > 1]
    for at in range(1, len(wide)):
        order = (*wide[: at - 1], wide[at], wide[at - 1], *wide[at + 1 :])
        yield from _made(layout, f"{wide[at]} closer than {wide[at - 1]}", order=order)


def _made(layout: Layout, change: str, **fields: object) -> Iterator[tuple[str, Layout]]:
    if fields.get("tp") == 1:
        fields["sp"] = False
    if fields.get("pp") == 1:
        fields |= {"schedule": "1f1b", "virtual": 1}
    if fields.get("cp") == 1:
        fields["context"] = "ring"
    if layout.split is not None and "pp" in fields:
        fields["split"] = None
    try:
        yield change, msgspec.structs.replace(layout, **fields)
    except OptionError:
        return


# ---- the same layout


def _in_network(asked: Scenario) -> Iterator[Remedy]:
    topology = asked.cluster.topology
    fabric = topology.scale_out is not None and topology.scale_out.in_network_reduction
    if not topology.scale_up.in_network_reduction and not fabric:
        return
    for axis in ("tp", "ep", "fsdp", "dp"):
        if asked.layout.degree(axis) > 1 and not asked.policy.of(axis).resources:
            policy = _with(asked.policy, axis, Resource("in_network"))
            yield Remedy(
                kind="in_network",
                change=f"{axis}=in_network",
                asked=dataclasses.replace(asked, policy=policy),
                costs="switches that reduce (NVLS, SHARP), switched on and allotted to the job",
            )


def _bytes(asked: Scenario) -> Iterator[Remedy]:
    workload, experts = asked.workload, asked.model.experts
    if isinstance(workload, Train) and workload.gradients == "fp32":
        yield Remedy(
            kind="bytes",
            change="gradients=bf16",
            asked=dataclasses.replace(asked, workload=msgspec.structs.replace(workload, gradients="bf16")),
            costs="gradients reduced in 16 bits: a question of convergence",
        )
    domains = asked.layout.placement(asked.cluster.topology.domain, "ep").domains if asked.layout.ep > 1 else 1
    if experts is not None and domains > 1:
        yield Remedy(
            kind="bytes",
            change="each token to few scale-up domains only",
            asked=asked,
            costs="a router trained with that limit: another model",
            problem="plans send a token once for each of its experts; dispatch with a limit on domains is not planned yet",
        )


def _overlap(asked: Scenario) -> Iterator[Remedy]:
    for axis in POLICY_AXES:
        if asked.layout.degree(axis) == 1 and not (axis == "dp" and asked.layout.cp > 1):
            continue
        have = {step.name for step in asked.policy.of(axis).passes}
        for name, known in PASSES.items():
            if axis not in known.axes or name in have:
                continue
            one = Pass(name, _PARAMETERS.get(name))  # type: ignore[arg-type]  # a name of PASSES
            policy = _with(asked.policy, axis, one)
            parameter = ":100MB" if name == "bucket" else f":{one.parameter}" if one.parameter else ""
            yield Remedy(
                kind="overlap",
                change=f"{axis}={name}{parameter}",
                asked=dataclasses.replace(asked, policy=policy),
                costs=_COSTS[name],
            )


def _with(policy: Policy, axis: str, more: Pass | Resource) -> Policy:
    before = policy.of(axis)
    if isinstance(more, Pass):
        changed = AxisPolicy(passes=(*before.passes, more), resources=before.resources)
    else:
        changed = AxisPolicy(passes=before.passes, resources=(*before.resources, more))
    return msgspec.structs.replace(policy, **{axis: changed})
