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
from underlap.cost.testbed import ENDS, End, Testbed
from underlap.documents import nearest
from underlap.errors import OptionError
from underlap.expansion import Expansion
from underlap.hazards import memory_peak
from underlap.layout import Layout, layout_text
from underlap.ledger import Entry, ledger_of
from underlap.model import Model
from underlap.plan import Plan
from underlap.planner import plan as planned
from underlap.planner.roles import unfold
from underlap.policy import PASSES, RESOURCES, AxisPolicy, Policy, policy_text
from underlap.report import AxisBytes, PolicyRefusal, Prediction, Report, RoleMemory
from underlap.schedule import Refusal, apply, check_kept
from underlap.simulate import Machine, Simulated
from underlap.simulate import simulate as simulated_plan
from underlap.simulate.recording import timeline
from underlap.text_form import pairs, whole
from underlap.workload import Decode, Train, Workload, check_workload, workload_text

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
    jitter: float = 0.0
    """Standard deviation of each operation's time over its mean. Sweeps, ladders and levers leave it out, as stragglers."""
    stragglers: tuple[tuple[int, float], ...] = ()
    """(rank, how many times longer its compute takes)."""


def scenario(  # noqa: PLR0913 - a question has so many parts
    *,
    model: Model | str,
    cluster: Cluster | str,
    layout: Layout | str,
    workload: Workload | str,
    policy: Policy | str = "",
    gpus: int | None = None,
    contention: bool = True,
    jitter: float = 0.0,
    stragglers: Sequence[str] = (),
    divisible: bool = True,
) -> Scenario:
    """A Scenario from records, or from what a user names: presets, files, one-line forms.

    `gpus` None: as many as the layout has ranks. `divisible` False: the workload's sizes need not fit the layout, as they will
    be replaced. Raises OptionError or InputError of one line.
    """
    found_layout = inputs.layout(layout) if isinstance(layout, str) else layout
    found_cluster = inputs.cluster(cluster) if isinstance(cluster, str) else cluster
    found_model = inputs.model(model) if isinstance(model, str) else model
    found_policy = inputs.policy(policy) if isinstance(policy, str) else policy
    found_layout.check_gpus(gpus if gpus is not None else found_layout.world)
    found_layout.check_model(found_model)
    found_policy.check_layout(found_layout)
    found_workload = inputs.workload(workload) if isinstance(workload, str) else workload
    if divisible:
        check_workload(found_workload, found_layout, found_model)
    # A factor that is no number passes every comparison with a limit.
    if not 0.0 <= jitter <= 1.0:
        raise OptionError(f"jitter is {jitter}: expected a share from 0 to 1, such as 0.03")
    slowed = tuple(_straggler(text, found_layout) for text in stragglers)
    twice = next((rank for at, (rank, _) in enumerate(slowed) if rank in dict(slowed[:at])), None)
    if twice is not None:
        raise OptionError(f"straggler: rank={twice} is given twice: expected each rank once")
    return Scenario(
        model=found_model,
        cluster=found_cluster.with_gpus(found_layout.world),
        layout=found_layout,
        workload=found_workload,
        policy=found_policy,
        contention=contention,
        jitter=jitter,
        stragglers=slowed,
    )


def _straggler(text: str, layout: Layout) -> tuple[int, float]:
    """(rank, factor) of `rank=3,compute=1.2`. Raises OptionError."""
    given = pairs(text, "straggler", ("rank", "compute"))
    missing = [name for name in ("rank", "compute") if not given.get(name)]
    if missing:
        raise OptionError(f"straggler: {text!r} does not say {missing[0]}: expected such as rank=3,compute=1.2")
    rank = whole(given["rank"] or "", "straggler", "rank")
    if rank >= layout.world:
        raise OptionError(f"straggler: rank={rank}: expected 0 to {layout.world - 1}, as the layout has {layout.world} ranks")
    try:
        factor = float(given["compute"] or "")
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor <= 1000.0:
        raise OptionError(f"straggler: compute={given['compute']}: expected how many times longer its compute takes, 1 to 1000")
    return rank, factor


def policies(asked: Scenario, text: str) -> list[Policy]:
    """The policies of a list such as `none,split_batch,decompose:4+delay_wgrad`, each beside what the scenario's policy does on
    other axes.

    An item without an axis goes to the first axis that knows its pass and has something to send. Raises OptionError, also for
    a policy that is there twice: it would be compared with itself.
    """
    items = [item.strip() for item in text.split(",")]
    found: list[Policy] = []
    for item in items:
        one = _policy(asked, item)
        if one in found:
            first = items[found.index(one)]
            same = "is given twice" if first == item else f"is the same policy as {first!r}"
            raise OptionError(f"compare: {item!r} {same}: expected each policy once")
        found.append(one)
    return found


def _policy(asked: Scenario, item: str) -> Policy:
    if item == "none":
        return asked.policy
    found = asked.policy
    for part in item.split("+"):
        named = part if "=" in part else f"{_axis_for(asked.layout, part)}={part}"
        one = inputs.policy(named)
        one.check_layout(asked.layout)
        axis = named.partition("=")[0]
        before, more = found.of(axis), one.of(axis)
        joined = AxisPolicy(passes=(*before.passes, *more.passes), resources=(*before.resources, *more.resources))
        found = msgspec.structs.replace(found, **{axis: joined})
    return found


def _axis_for(layout: Layout, part: str) -> str:
    name = part.partition(":")[0]
    known = PASSES.get(name) or RESOURCES.get(name)
    if known is None:
        raise OptionError(f"compare: unknown policy {part!r}: {nearest(name, (*PASSES, *RESOURCES, 'none'))}")
    fitting = [axis for axis in _FIRST if axis in known.axes and layout.degree(axis) > 1]
    if not fitting:
        raise OptionError(
            f"compare: {name} is for {', '.join(known.axes)}, and the layout has 1 of each: nothing to overlap there"
        )
    return fitting[0]


_FIRST = ("tp", "ep", "cp", "fsdp", "dp", "pp")
"""Which axis a pass without one is meant for: the one nearest to the layer's own work."""


def simulate(asked: Scenario, *, deep: bool | None = None) -> Report:
    """The Report of the scenario's plan, simulated. `deep` as `underlap.analyze` has it."""
    done, refused = run(asked, asked.policy)
    found = analyzed(timeline(done), window="whole", deep=deep)
    return msgspec.structs.replace(found, prediction=_prediction(asked, asked.policy, done, refused, found))


def compare(asked: Scenario, policies: Sequence[Policy], *, deep: bool | None = None) -> Report:
    """The Report of the last policy, with a Prediction for each, and the ratio of its step time to that of the first."""
    if len(policies) < 2:
        raise OptionError("nothing to compare with: name two policies or more, such as none,split_batch")
    reports = [simulate(dataclasses.replace(asked, policy=policy), deep=False) for policy in policies[:-1]]
    reports.append(simulate(dataclasses.replace(asked, policy=policies[-1]), deep=deep))
    made = [report.prediction for report in reports if report.prediction is not None]
    rows = [msgspec.structs.replace(one, step_ratio=one.step_ns / made[0].step_ns, word=_word(made[0], one)) for one in made]
    rows[0] = msgspec.structs.replace(rows[0], word=None)
    return msgspec.structs.replace(reports[-1], prediction=rows[-1], predictions=rows)


SAME = 0.005
"""Ratios this close to 1 are no difference: less than any cost here is known to."""


def _word(first: Prediction, one: Prediction) -> str:
    """One of the four words, by bytes and by step time; shorter transfers (resource changes) are shortened."""
    sent, now = (sum(row.sent_bytes for row in each.bytes_by_axis) for each in (first, one))
    ratio = one.step_ns / first.step_ns
    if abs(now - sent) > 1e-6 * sent:
        return "removed" if now < sent else "more bytes"
    if ratio > 1 + SAME:
        return "a loss"
    if ratio >= 1 - SAME:
        return "shifted" if one.hidden_ns > first.hidden_ns else "no difference"
    return "hidden" if one.hidden_ns > first.hidden_ns else "shortened"


def run(asked: Scenario, policy: Policy) -> tuple[Simulated, tuple[Refusal, ...]]:
    """Plan the scenario, apply the policy's passes, and run it. Raises PlanError if a pass changed bytes or dependences."""
    made = planned(asked.model, asked.layout, asked.workload, domain=asked.cluster.topology.domain)
    applied = apply(made, policy)
    if applied.plan is not made:
        check_kept(made, applied.plan, flow=sum(len(role.program) for role in made.roles) <= _CHECKED_STEPS)
    slow = [rank for rank, _ in asked.stragglers]
    split = unfold(applied.plan, asked.layout, slow) if slow else applied.plan
    return simulated_plan(split, machine(asked)), applied.refused


def machine(asked: Scenario) -> Machine:
    """What the scenario runs on."""
    return Machine(
        topology=asked.cluster.topology,
        settings=asked.settings,
        measured=asked.measured,
        testbed=asked.cluster.measured,
        contention=asked.contention,
        jitter=asked.jitter,
        slowed=dict(asked.stragglers),
        # A decode step is replayed as one device graph, as serving engines do; else its kernels are shorter than their launches.
        # On a testbed the host is the device, and what it does between operations was measured.
        launches=not isinstance(asked.workload, Decode) and asked.cluster.measured is None,
    )


def step_range(asked: Scenario, plan: Plan) -> tuple[int, int] | tuple[None, None]:
    """The step with all measured costs at the quick, and at the slow end of their ranges. None without measured costs."""
    testbed = asked.cluster.measured
    if testbed is None:
        return None, None
    on = machine(asked)
    steps = [simulated_plan(plan, _at_end(on, testbed, end), bounds=False).step_ns for end in ENDS]
    return min(steps), max(steps)


def _at_end(on: Machine, testbed: Testbed, end: End) -> Machine:
    """The machine with its measured costs at that end, and a link as much faster or slower than the measured one as before."""
    ended, link = testbed.at_end(end), on.topology.scale_up
    link = msgspec.structs.replace(link, bytes_per_s=link.bytes_per_s * ended.link_bytes_per_s / testbed.link_bytes_per_s)
    return dataclasses.replace(on, testbed=ended, topology=msgspec.structs.replace(on.topology, scale_up=link))


def _prediction(asked: Scenario, policy: Policy, done: Simulated, refused: Sequence[Refusal], found: Report) -> Prediction:
    """What the run means: step time and what it lies between, throughput, memory, bytes."""
    assert found.summary is not None
    assert done.bound_ns is not None
    memory = [_memory(done.plan, done.expansions[role.name], asked.cluster) for role in done.plan.roles]
    memory.sort(key=lambda row: -row.peak_bytes)
    tokens = tokens_of(asked)
    low, high = step_range(asked, done.plan)
    seconds = done.step_ns / 1e9
    return Prediction(
        model=asked.model.name,
        cluster=asked.cluster.name,
        layout=layout_text(asked.layout),
        workload=workload_text(asked.workload),
        policy=policy_text(policy) or "none",
        step_ns=done.step_ns,
        step_low_ns=low,
        step_high_ns=high,
        serial_ns=done.serial_ns,
        bound_ns=done.bound_ns,
        compute_ns=found.summary.compute.mean_ns,
        hidden_ns=found.summary.hidden.mean_ns,
        exposed_ns=found.summary.exposed.mean_ns,
        idle_ns=found.summary.idle.mean_ns,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        mfu=_utilization(asked, tokens, seconds),
        parameters=asked.model.parameters,
        activated_parameters=asked.model.activated_parameters,
        memory_bytes=memory[0].peak_bytes,
        device_memory_bytes=asked.cluster.topology.processor.memory_bytes,
        memory=memory,
        bytes_by_axis=[_axis_bytes(done.plan, entry) for entry in ledger_of(done.plan, done.expansions)],
        # A pass that moved other bytes would not have got this far.
        bytes_unchanged=True if done.plan.passes else None,
        refused=[PolicyRefusal(axis=one.axis, name=one.name, reason=one.reason) for one in refused],
        assumptions=list(done.prices.assumptions),
        does_not_support=_unsupported(asked, done.plan),
    )


def _unsupported(asked: Scenario, plan: Plan) -> list[str]:
    """What must not be concluded: the conditions that this one figure rests on."""
    phase = type(asked.workload).__name__.lower()
    listed = [
        f"another batch, sequence or phase: this is {workload_text(asked.workload)}, and overlap depends on it",
        "a measured speed-up: costs are a model, whose errors are in docs/accuracy.md",
    ]
    if not any(group.size > 1 for group in plan.groups.values()):
        listed.append("anything about communication: this layout sends nothing")
    if plan.passes:
        listed.append('"communication removed": every byte is still sent; what changes is when')
    if asked.model.experts is not None and asked.workload.imbalance == 1.0:
        listed.append("uneven experts: every rank is taken to get the same number of tokens (imbalance=1)")
    if asked.jitter:
        listed.append("a slow rank: jitter makes any rank the last by chance, and none again and again")
    if not asked.contention:
        listed.append("the price of overlap: contention is switched off")
    if phase == "decode":
        listed.append("the engine's host work between steps: one step is taken as one device graph")
    return listed


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


def tokens_of(asked: Scenario) -> int:
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
