"""One point of a sweep: step time, what is exposed and the memory of a scenario, by folding, without a Timeline or a Report."""

from __future__ import annotations

import collections
import dataclasses

import msgspec
import numpy as np

from underlap.cost.work import Transfer
from underlap.expansion import Expansion, expand
from underlap.flows.simulate import Scenario, machine
from underlap.hazards import memory_peak
from underlap.layout import Layout
from underlap.ledger import Entry, sent_bytes
from underlap.plan import OpKind, Plan, Scope
from underlap.planner import plan as planned
from underlap.policy import Policy
from underlap.schedule import Refusal, apply
from underlap.simulate import Folded, Known, fold
from underlap.workload import Train, Workload, check_workload, micro_batch_size, micro_batches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a scenario. Times are means over ranks."""

    plan: Plan
    step_ns: int
    compute_ns: int
    hidden_ns: int
    exposed_ns: int
    groups: dict[str, tuple[int, int]]
    """group -> (its communication, what of that is exposed), in ns."""
    memory_bytes: int
    """Of the fullest rank."""
    fits: bool
    refused: tuple[Refusal, ...]
    entries: tuple[Entry, ...]
    """What is sent, per group and collective. Passes change none of it (their tests), so it is counted before them."""

    @property
    def sent_bytes(self) -> int:
        """By all ranks."""
        return round(sum(entry.sent_bytes for entry in self.entries))

    @property
    def communication_ns(self) -> int:
        """Of all groups, each for itself: what overlaps counts twice."""
        return sum(total for total, _ in self.groups.values())


_PLANS = 4
"""Kept at a time: a large one takes tens of megabytes."""


class Quick:
    """Scenarios one after the other, with what they have in common computed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._memory: dict[bytes, list[tuple[int, int]]] = {}
        self._last: dict[bytes, Plan] = {}
        """The plans planned last: the policies of one point start from the same one."""

    def outcome(self, asked: Scenario, policy: Policy) -> Outcome:
        """Raises OptionError where the scenario cannot be: something does not divide, or does not fit the machine."""
        made, refused = self.plan(asked, policy)
        memory = self.memory(asked, policy)
        folded = fold(made, self._of_machine(asked))
        return Outcome(
            plan=made,
            step_ns=folded.step_ns,
            **_means(made, folded),
            groups=_groups(made, folded),
            memory_bytes=memory,
            fits=memory <= asked.cluster.topology.processor.memory_bytes,
            refused=refused,
            entries=_entries(self._planned(asked)),
        )

    def plan(self, asked: Scenario, policy: Policy) -> tuple[Plan, tuple[Refusal, ...]]:
        """The scenario's plan after the policy's passes, and those refused."""
        check_workload(asked.workload, asked.layout, asked.model)
        applied = apply(self._planned(asked), policy)
        return applied.plan, applied.refused

    def _planned(self, asked: Scenario) -> Plan:
        domain = asked.cluster.topology.domain
        key = msgspec.json.encode([asked.model, asked.layout, asked.workload, domain])
        if key not in self._last:
            while len(self._last) >= _PLANS:
                del self._last[next(iter(self._last))]
            self._last[key] = planned(asked.model, asked.layout, asked.workload, domain=domain)
        return self._last[key]

    def memory(self, asked: Scenario, policy: Policy) -> int:
        """The peak of the fullest rank. More micro-batches than are ever in flight do not change it, so no more are planned."""
        check_workload(asked.workload, asked.layout, asked.model)
        few = dataclasses.replace(asked, workload=_few_micro_batches(asked.workload, asked.layout))
        key = msgspec.json.encode([few.model.name, few.layout, few.workload, policy])
        if key not in self._memory:
            made, _ = self.plan(few, policy)
            self._memory[key] = [_peak(made, expand(made, role)) for role in made.roles]
        more = micro_batches(asked.workload, asked.layout) - micro_batches(few.workload, few.layout)
        return max(peak + more * each for peak, each in self._memory[key])

    def _of_machine(self, asked: Scenario) -> Known:
        runs_on = machine(asked)
        key = msgspec.json.encode([runs_on.topology, runs_on.settings, runs_on.contention, runs_on.launches])
        if runs_on.measured is not None:
            return Known(runs_on)
        return self._known.setdefault(key, Known(runs_on))


def _peak(plan: Plan, expansion: Expansion) -> tuple[int, int]:
    """The peak of a role, and what every further micro-batch adds to it: its tokens lie there from the begin on."""
    per_buffer = (expansion.micro_batches + 1) * (expansion.layers + 3)
    used = {expansion.buffers[number] for number in np.unique(expansion.accesses.instance // per_buffer).tolist()}
    lasting = [plan.buffers[name] for name in used if plan.buffers[name].persistent and plan.buffers[name].part_of is None]
    each = sum(buffer.nbytes for buffer in lasting if buffer.scope == Scope.MICRO_BATCH and buffer.place == "device")
    return memory_peak(plan, expansion), each


def _few_micro_batches(workload: Workload, layout: Layout) -> Workload:
    """The workload with as many micro-batches as a pipeline holds at a time, if that is fewer. All stages of gpipe hold all."""
    count = micro_batches(workload, layout)
    if layout.schedule == "gpipe" and isinstance(workload, Train):
        return workload
    # Interleaved: 2 (pp - 1) + (chunks - 1) pp forwards ahead, in rounds of pp (arXiv 2104.04473); +1 for the one under way.
    most = layout.pp * (layout.chunks + 2)
    if count <= most:
        return workload
    total = most * layout.data_parallel * micro_batch_size(workload, layout)
    return msgspec.structs.replace(workload, **{"gbs" if isinstance(workload, Train) else "batch": total})


def _means(plan: Plan, folded: Folded) -> dict[str, int]:
    found = {"compute_ns": 0.0, "hidden_ns": 0.0, "exposed_ns": 0.0}
    for role in plan.roles:
        for name in found:
            found[name] += getattr(folded.spans[role.name], name) * role.multiplicity / plan.world
    return {name: round(value) for name, value in found.items()}


def _groups(plan: Plan, folded: Folded) -> dict[str, tuple[int, int]]:
    found: dict[str, list[float]] = {}
    for role in plan.roles:
        for name, total, exposed in folded.spans[role.name].groups:
            entry = found.setdefault(name, [0.0, 0.0])
            entry[0] += total * role.multiplicity / plan.world
            entry[1] += exposed * role.multiplicity / plan.world
    return {name: (round(total), round(exposed)) for name, (total, exposed) in found.items()}


def _entries(plan: Plan) -> tuple[Entry, ...]:
    """The ledger of a plan without moved operations, from how often each block is used: no operation is expanded."""
    found: dict[tuple[str, str], list[float]] = {}
    for role in plan.roles:
        for name, count in collections.Counter(step.block for step in role.program).items():
            for operation in plan.blocks[name].operations:
                work = operation.work
                receives = bool(operation.writes) and not operation.reads
                if operation.kind != OpKind.ISSUE or not isinstance(work, Transfer) or (work.collective == "send" and receives):
                    continue
                assert operation.group is not None
                entry = found.setdefault((operation.group, work.collective), [0, 0.0, 0.0])
                entry[0] += count
                entry[1] += count * role.multiplicity * work.payload_bytes
                entry[2] += count * role.multiplicity * sent_bytes(work)
    return tuple(
        Entry(group=group, collective=collective, calls=int(calls), payload_bytes=payload, sent_bytes=sent)
        for (group, collective), (calls, payload, sent) in found.items()
    )
