"""From inputs to a predicted Report: plan, overlap passes, simulation, and the analyzer that also reads traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from underlap import inputs
from underlap.analyze.report import report as analyzed
from underlap.cluster import Cluster
from underlap.cost.communicator import DEFAULT, Settings
from underlap.cost.measured import Measured
from underlap.errors import OptionError
from underlap.expansion import Expansion
from underlap.hazards import memory_peak
from underlap.layout import Layout, layout_text
from underlap.ledger import Entry, ledger_of
from underlap.model import Model
from underlap.plan import Plan
from underlap.planner import plan as planned
from underlap.policy import Policy, policy_text
from underlap.report import AxisBytes, PolicyRefusal, Prediction, Report, RoleMemory
from underlap.schedule import Refusal, apply, check_kept
from underlap.simulate import Machine, Simulated
from underlap.simulate import simulate as simulated_plan
from underlap.simulate.recording import timeline
from underlap.workload import Decode, Train, Workload, workload_text

_CHECKED_STEPS = 5000
"""Programs up to this length have their flow of data compared before and after; the tests compare it for all passes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A question: this model, on this machine, laid out like this, doing that, overlapping so."""

    model: Model
    cluster: Cluster
    layout: Layout
    workload: Workload
    policy: Policy = Policy()  # noqa: RUF009  # frozen
    settings: Settings = DEFAULT
    measured: Measured | None = None
    contention: bool = True


def scenario(
    *,
    model: Model | str,
    cluster: Cluster | str,
    layout: Layout | str,
    workload: Workload | str,
    policy: Policy | str = "",
    gpus: int | None = None,
) -> Scenario:
    """A Scenario from records, or from what a user names: presets, files, one-line forms.

    `gpus` None: as many as the layout has ranks. Raises OptionError or InputError of one line.
    """
    found_layout = inputs.layout(layout) if isinstance(layout, str) else layout
    found_cluster = inputs.cluster(cluster) if isinstance(cluster, str) else cluster
    found_model = inputs.model(model) if isinstance(model, str) else model
    found_policy = inputs.policy(policy) if isinstance(policy, str) else policy
    found_layout.check_gpus(gpus if gpus is not None else found_layout.world)
    found_layout.check_model(found_model)
    found_policy.check_layout(found_layout)
    return Scenario(
        model=found_model,
        cluster=found_cluster.with_gpus(found_layout.world),
        layout=found_layout,
        workload=inputs.workload(workload) if isinstance(workload, str) else workload,
        policy=found_policy,
    )


def simulate(asked: Scenario, *, deep: bool | None = None) -> Report:
    """The Report of the scenario's plan, simulated. `deep` as `underlap.analyze` has it."""
    done, refused = run(asked, asked.policy)
    found = analyzed(timeline(done), window="whole", deep=deep)
    return msgspec.structs.replace(found, prediction=prediction(asked, asked.policy, done, refused))


def compare(asked: Scenario, policies: Sequence[Policy]) -> list[Prediction]:
    """One Prediction per policy, each with the ratio of its step time to that of the first."""
    if not policies:
        raise OptionError("nothing to compare: name policies, such as none,tp=split_batch")
    made = [prediction(asked, policy, *run(asked, policy)) for policy in policies]
    first = made[0].step_ns
    return [msgspec.structs.replace(one, step_ratio=one.step_ns / first if first else None) for one in made]


def run(asked: Scenario, policy: Policy) -> tuple[Simulated, tuple[Refusal, ...]]:
    """Plan the scenario, apply the policy's passes, and run it. Raises PlanError if a pass changed bytes or dependences."""
    made = planned(asked.model, asked.layout, asked.workload, domain=asked.cluster.topology.domain)
    applied = apply(made, policy)
    if applied.plan is not made:
        check_kept(made, applied.plan, flow=sum(len(role.program) for role in made.roles) <= _CHECKED_STEPS)
    machine = Machine(
        topology=asked.cluster.topology,
        settings=asked.settings,
        measured=asked.measured,
        contention=asked.contention,
        # A decode step is replayed as one device graph, as serving engines do; else its kernels are shorter than their launches.
        launches=not isinstance(asked.workload, Decode),
    )
    return simulated_plan(applied.plan, machine), applied.refused


def prediction(asked: Scenario, policy: Policy, done: Simulated, refused: Sequence[Refusal]) -> Prediction:
    """What the run means: step time and what it lies between, throughput, memory, bytes."""
    memory = [_memory(done.plan, done.expansions[role.name], asked.cluster) for role in done.plan.roles]
    tokens = _tokens(asked)
    seconds = done.step_ns / 1e9
    return Prediction(
        model=asked.model.name,
        cluster=asked.cluster.name,
        layout=layout_text(asked.layout),
        workload=workload_text(asked.workload),
        policy=policy_text(policy) or "none",
        step_ns=done.step_ns,
        serial_ns=done.serial_ns,
        bound_ns=done.bound_ns,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        mfu=_utilization(asked, tokens, seconds),
        parameters=asked.model.parameters,
        activated_parameters=asked.model.activated_parameters,
        memory_bytes=max(row.peak_bytes for row in memory),
        device_memory_bytes=asked.cluster.topology.processor.memory_bytes,
        memory=memory,
        bytes_by_axis=[_axis_bytes(done.plan, entry) for entry in ledger_of(done.plan, done.expansions)],
        # A pass that moved other bytes would not have got this far.
        bytes_unchanged=True if done.plan.passes else None,
        refused=[PolicyRefusal(axis=one.axis, name=one.name, reason=one.reason) for one in refused],
        assumptions=list(done.prices.assumptions),
    )


def _memory(plan: Plan, expansion: Expansion, cluster: Cluster) -> RoleMemory:
    peak = memory_peak(plan, expansion)
    return RoleMemory(
        role=expansion.role.name,
        ranks=expansion.role.multiplicity,
        peak_bytes=peak,
        fits=peak <= cluster.topology.processor.memory_bytes,
    )


def _axis_bytes(plan: Plan, entry: Entry) -> AxisBytes:
    return AxisBytes(
        axis=" x ".join(plan.groups[entry.group].axis),
        group=entry.group,
        collective=entry.collective,
        calls=entry.calls,
        payload_bytes=round(entry.payload_bytes),
        sent_bytes=round(entry.sent_bytes),
    )


def _tokens(asked: Scenario) -> int:
    """Tokens that one step gets through, over all ranks."""
    workload = asked.workload
    if isinstance(workload, Train):
        return workload.gbs * workload.seq
    return workload.batch if isinstance(workload, Decode) else workload.batch * workload.seq


def _utilization(asked: Scenario, tokens: int, seconds: float) -> float | None:
    """MFU, by full attention: what a causal kernel saves is not taken off, as the published figures do not."""
    workload, peaks = asked.workload, asked.cluster.topology.processor.peak_flops
    if workload.precision not in peaks or not seconds:
        return None
    keys = workload.context if isinstance(workload, Decode) else workload.seq
    per_token = (
        asked.model.train_flops_per_token(keys) if isinstance(workload, Train) else asked.model.forward_flops_per_token(keys)
    )
    return tokens * per_token / (seconds * peaks[workload.precision] * asked.layout.world)
