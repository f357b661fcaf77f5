"""A policy applied to a plan: its passes one after the other, each checked, each refusal with its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from underlap.plan import Plan
from underlap.policy import Pass, Policy, Resource
from underlap.schedule import within
from underlap.schedule.async_p2p import async_p2p
from underlap.schedule.bucket import bucket
from underlap.schedule.decompose import decompose
from underlap.schedule.pair_forward_backward import pair_forward_backward
from underlap.schedule.prefetch import prefetch
from underlap.schedule.resources import copy_engine, ctas, in_network
from underlap.schedule.rewriting import Refused
from underlap.schedule.split_batch import split_batch

ORDER = ("cp", "tp", "ep", "fsdp", "dp", "pp")
"""Passes within layers come before those that move gradients and weights between them, and messages between stages last."""

GROUPS = {
    "tp": frozenset({"tp", "etp"}),
    "cp": frozenset({"cp"}),
    "ep": frozenset({"ep"}),
    "pp": frozenset({"pp"}),
    "fsdp": frozenset({"fsdp", "expert_fsdp"}),
    "dp": frozenset({"dp", "fsdp", "expert_dp", "expert_fsdp"}),
}
"""The groups that an axis of a policy speaks of. With fsdp=1 sharded states are dp's (Megatron's distributed optimizer)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A pass that was not applied."""

    axis: str
    name: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """The plan after all passes that could be applied."""

    plan: Plan
    refused: tuple[Refusal, ...]


def apply(plan: Plan, policy: Policy) -> Applied:
    """Every pass and resource change of the policy, in ORDER of axes; what cannot be applied is left out, with the reason."""
    refused: list[Refusal] = []
    for axis in ORDER:
        for step in policy.of(axis).steps:
            try:
                plan = _applied(plan, axis, step)
            except Refused as reason:
                refused.append(Refusal(axis, step.name, str(reason)))
            else:
                parameter = "" if step.parameter is None else f":{step.parameter}"
                plan = dataclasses.replace(plan, passes=(*plan.passes, f"{axis}={step.name}{parameter}"))
    return Applied(plan, tuple(refused))


def _applied(plan: Plan, axis: str, step: Pass | Resource) -> Plan:
    groups = GROUPS[axis]
    number = step.parameter
    made: dict[str, Callable[[], Plan]] = {
        "bucket": lambda: bucket(plan, number or 0),
        "prefetch": lambda: prefetch(plan, number),
        "split_batch": lambda: split_batch(plan, number, axis),
        "decompose": lambda: decompose(plan, number, axis),
        "ring": lambda: within.ring(plan, axis),
        "delay_wgrad": lambda: within.delay_wgrad(plan, axis),
        "shared_expert": lambda: within.shared_expert(plan, axis),
        "async_p2p": lambda: async_p2p(plan),
        "pair_forward_backward": lambda: pair_forward_backward(plan, axis),
        "copy_engine": lambda: copy_engine(plan, groups),
        "ctas": lambda: ctas(plan, groups, number or 1),
        "in_network": lambda: in_network(plan, groups),
    }
    if step.name not in made:
        raise Refused(f"{step.name} cannot be planned yet")
    return made[step.name]()
