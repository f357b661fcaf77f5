"""The same step time from far fewer events, for sweeps: what repeats is simulated once.

    stretch   steps between two moments with nothing in flight (`stretches`); simulated once alone, for all its repetitions
    layers    of a stretch over many equal layers a few at both ends are simulated; the rest take the period between them
    step      stretches between two messages become one operation; those and the messages are simulated together

A stretch that begins at t, when the host has submitted what came before it at r, ends at the later of t + device and
r + host. That is exact where nothing within it shares multiprocessors or links (max-plus linear); else it may be off by
what the host's lead changes in who runs beside whom. Beside a message in flight a stretch is slowed as much as it would be
on average with the message's multiprocessors gone throughout; where both need the same link it is simulated in full.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.columns import NONE, Int64
from underlap.cost.work import Work
from underlap.expansion import Expansion, expand
from underlap.intervals import intersect, length, union
from underlap.meetings import meetings
from underlap.plan import Block, Operation, OpKind, Place, Plan, Role, Step
from underlap.plan_network import PlanNetwork, plan_network
from underlap.replay import COMMUNICATION, Network, SharedRates, Times, network, replay
from underlap.simulate.pricing import Prices, price
from underlap.simulate.run import Machine, rates_of, released_of, simulate, slowed_of, works_of
from underlap.simulate.spans import Spans, boundaries, divided, spans_between
from underlap.simulate.stretches import Cutter, Stretch, held_together, in_flight
from underlap.simulate.thinning import Thinned, thinned

_SAME_NS = 2
"""Periods that differ by less are the same: ends are rounded to whole nanoseconds."""
_FOLDED = "folded."


@dataclasses.dataclass(frozen=True, slots=True)
class Alone:
    """A stretch on a device that has nothing else to do."""

    device_ns: int
    """From its begin, everything submitted before."""
    host_ns: int
    """From when the host begins to submit it, the device free."""
    spans: Spans
    slowed_ns: tuple[int, ...] = ()
    """`device_ns` with so many multiprocessors gone: one for each number asked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What a sweep wants to know of a plan."""

    step_ns: int
    spans: dict[str, Spans]
    """Per role."""
    nodes: int
    """How many operations were simulated together."""
    assumptions: tuple[str, ...]


class Known:
    """What has been simulated on one machine: stretches and prices come again from point to point of a sweep."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.blocks: dict[Block, int] = {}
        self.stretches: dict[object, Alone] = {}


def fold(plan: Plan, known: Known) -> Folded:
    """The step time of the plan on `known.machine`, as `simulate` has it. Raises as `simulate` does."""
    if known.machine.testbed is not None:
        return _whole(plan, known.machine)
    number: dict[Work, int] = {}
    for block in plan.blocks.values():
        for operation in block.operations:
            if operation.work is not None:
                number.setdefault(operation.work, len(number))
    cutters = {role.name: Cutter(plan, role, number) for role in plan.roles}  # type: ignore[arg-type]  # works are objects
    cut = {name: list(cutter.stretches()) for name, cutter in cutters.items()}
    topology = known.machine.topology
    beside = in_flight(stretch for stretches in cut.values() for stretch in stretches)
    prices = price(
        tuple(number),
        topology,
        settings=known.machine.settings,
        measured=known.machine.measured,
        held=lambda units: held_together(beside, units, topology.processor.sms),
    )
    folding = _Folding(plan, known, number, prices)
    parts = [_Shortened(folding, cutters[role.name], cut[role.name]) for role in plan.roles]
    return _together(folding, parts)


def _whole(plan: Plan, machine: Machine) -> Folded:
    """In full: on a testbed a stretch depends on how long its link has been idle, so that none is like another."""
    done = simulate(plan, machine, bounds=False)
    spans = {}
    for role in plan.roles:
        here = done.rows(role.name)
        joint = _joints(done.built, here.start, here.stop)
        end = np.where(joint >= 0, done.times.end_ns[joint], done.times.end_ns[here])
        times = Times(start_ns=done.times.start_ns[here], begin_ns=done.times.begin_ns[here], end_ns=end)
        spans[role.name] = spans_between(done.expansions[role.name], times, 0, done.step_ns)
    return Folded(step_ns=done.step_ns, spans=spans, nodes=len(done.work), assumptions=done.prices.assumptions)


class _Folding:
    """One plan being folded."""

    def __init__(self, plan: Plan, known: Known, number: dict[Work, int], prices: Prices) -> None:
        self.plan, self.known, self.number, self.prices = plan, known, number, prices
        self.machine = known.machine
        self.block_number = {name: known.blocks.setdefault(block, len(known.blocks)) for name, block in plan.blocks.items()}
        self.launch_ns = self.machine.topology.processor.launch_ns if self.machine.launches else 0

    def taken(self, stretch: Stretch) -> tuple[int, ...]:
        """The numbers of multiprocessors that messages beside it may hold."""
        if not stretch.beside or not self.machine.contention:
            return ()
        return tuple(held_together([stretch.beside], self.prices.units.tolist(), self.machine.topology.processor.sms))

    def foldable(self, cutter: Cutter, stretch: Stretch) -> bool:
        """Whether nothing in it has to share a link with a message in flight."""
        if not stretch.foldable or not stretch.beside:
            return stretch.foldable
        messages = {self._link(work) for _, work in stretch.beside}
        names = {step.block for step in cutter.role.program[stretch.first : stretch.last]}
        return not messages & {self._link(work) for name in names for _, work in cutter.outlines[name].issued}

    def _link(self, work: int) -> bool:
        return bool(self.prices.scale_out[work] > self.prices.scale_up[work])

    def alone(self, cutter: Cutter, stretch: Stretch, taken: tuple[int, ...]) -> Alone:
        """The stretch simulated, unless one like it has been."""
        role = cutter.role
        steps = role.program[stretch.first : stretch.last]
        slowed = max(self.machine.slowed.get(rank, 1.0) for rank in role.ranks) if self.machine.slowed else 1.0
        key = (self._content(cutter, steps), slowed, taken, tuple(self.plan.pools.items()))
        found = self.known.stretches.get(key)
        if found is None:
            found = self.known.stretches[key] = self._simulated(cutter, steps, taken)
        return found

    def _content(self, cutter: Cutter, steps: tuple[Step, ...]) -> object:
        first = steps[0]
        if len(steps) == 1 and not cutter.outlines[first.block].moved:
            return self.block_number[first.block]

        def moved(place: Place) -> tuple[int | None, int | None]:
            return (
                place.micro_batch - first.place.micro_batch if place.micro_batch >= 0 else None,
                place.layer - first.place.layer if place.layer >= 0 else None,
            )

        return tuple(
            (
                self.block_number[step.block],
                moved(step.place),
                moved(step.second),
                tuple((operation.role, operation.part, operation.slot, operation.layer) for operation in cutter.missing(step)),
            )
            for step in steps
        )

    def _simulated(self, cutter: Cutter, steps: tuple[Step, ...], taken: tuple[int, ...]) -> Alone:
        keep = 4
        while True:
            thin = thinned(cutter.role, steps, keep)
            found = self._measured(thin, taken)
            if found is not None:
                return found
            keep *= 2

    def _measured(self, thin: Thinned, taken: tuple[int, ...]) -> Alone | None:
        """None where the stretch does not repeat itself after so few layers."""
        role = thin.role
        plan = dataclasses.replace(self.plan, roles=(role,))
        expansions = {role.name: expand(plan, role)}
        expansion = expansions[role.name]
        if not len(expansion.rows):
            return Alone(0, 0, Spans(), (0,) * len(taken))
        built = plan_network(plan, expansions, {role.name: np.full(len(expansion.rows), NONE, dtype=np.int32)})
        device = self._run(plan, expansions, built, np.zeros(len(built.lane), dtype=np.int64))
        ends = boundaries(expansion, device)
        device_ns = thin.stretched(ends, _SAME_NS)
        if device_ns is None:
            return None
        spans = spans_between(expansion, device, 0, int(ends[-1]))
        for low, high, times in thin.periods(ends):
            spans = spans.plus(spans_between(expansion, device, low, high), times)
        host_ns: int | None = 0
        if self.launch_ns:
            submitted = np.cumsum(expansion.rows.kind != OpKind.WAIT) * self.launch_ns
            # Where the device never waits for the host but for the first operation, that is all there is to it.
            if (device.start_ns + self.launch_ns >= submitted)[expansion.rows.kind != OpKind.WAIT].all():
                host_ns = device_ns + self.launch_ns
            else:
                host = self._run(plan, expansions, built, submitted.astype(np.int64))
                host_ns = thin.stretched(boundaries(expansion, host), _SAME_NS)
        slowed = []
        for units in taken:
            beside = self._run(plan, expansions, built, np.zeros(len(built.lane), dtype=np.int64), gone=units)
            slowed.append(thin.stretched(boundaries(expansion, beside), _SAME_NS))
        if host_ns is None or None in slowed:
            return None
        return Alone(device_ns, host_ns, spans, tuple(each for each in slowed if each is not None))

    def _run(self, plan: Plan, expansions: dict[str, Expansion], built: PlanNetwork, release: Int64, *, gone: int = 0) -> Times:
        _, work = works_of(plan, expansions, built, self.number)
        duration = np.where(work >= 0, self.prices.work_ns[work], 0)
        duration = slowed_of(plan, built, expansions, self.machine, duration)
        ready = network(built.lane, duration, release_ns=release, rendezvous=built.rendezvous, edges=built.edges)
        if not self.machine.contention:
            return replay(ready)
        shared = rates_of(plan, expansions, built, self.prices, work)
        if gone:
            ready, shared = _with_occupant(ready, shared, gone)
        return replay(ready, shared)


_FOREVER_NS = 10**15


def _with_occupant(ready: Network, shared: SharedRates, units: int) -> tuple[Network, SharedRates]:
    """The same, while something holds so many multiprocessors of the device throughout."""
    more = dataclasses.replace(
        ready,
        lane=np.append(ready.lane, NONE).astype(np.int32),
        work_ns=np.append(ready.work_ns, _FOREVER_NS),
        release_ns=np.append(ready.release_ns, 0),
        rendezvous=np.append(ready.rendezvous, NONE).astype(np.int32),
        first_edge=np.append(ready.first_edge, ready.first_edge[-1]),
    )
    return more, dataclasses.replace(
        shared,
        kind=np.append(shared.kind, COMMUNICATION).astype(np.int8),
        device=np.append(shared.device, 0).astype(np.int32),
        units=np.append(shared.units, units).astype(np.int32),
        curve=np.append(shared.curve, NONE).astype(np.int32),
        late=np.append(shared.late, 0).astype(np.int8),
        memory=np.append(shared.memory, 0.0),
        link=np.append(shared.link, NONE).astype(np.int32),
        demand=np.append(shared.demand, 1.0),
    )


class _Shortened:
    """A role whose foldable stretches have become one operation each, or one for several in a row."""

    def __init__(self, folding: _Folding, cutter: Cutter, stretches: list[Stretch]) -> None:
        self.program: list[Step] = []
        self.submitted: list[int] = []
        """Operations that the host has submitted before each step of the program."""
        self.alone: dict[int, Alone] = {}
        """Of folded steps, by place in the program."""
        self.slower: dict[int, dict[int, float]] = {}
        """Of folded steps beside messages: multiprocessors gone -> how many times longer."""
        before = 0
        run: list[tuple[Alone, int]] = []
        taken: tuple[int, ...] = ()
        for stretch in stretches:
            if folding.foldable(cutter, stretch):
                # Messages begin and end in steps that are not folded: all stretches of a run are beside the same.
                taken = folding.taken(stretch)
                run.append((folding.alone(cutter, stretch, taken), stretch.rows))
                continue
            before += self._close(run, before, folding.launch_ns, taken)
            run, taken = [], ()
            for at in range(stretch.first, stretch.last):
                step = cutter.role.program[at]
                self.submitted.append(before)
                self.program.append(step)
                missing = cutter.missing(step)
                before += cutter.outlines[step.block].submitted - sum(o.kind != OpKind.WAIT for o in missing)
        self._close(run, before, folding.launch_ns, taken)
        self.role = dataclasses.replace(cutter.role, program=tuple(self.program))

    def _close(self, run: list[tuple[Alone, int]], before: int, launch_ns: int, taken: tuple[int, ...]) -> int:
        """One after the other: what each adds to the device, and by when the host lets it end."""
        if not run:
            return 0
        device, host, rows, spans = 0, 0, 0, Spans()
        for alone, submitted in run:
            host = max(host + alone.device_ns, rows * launch_ns + alone.host_ns)
            device += alone.device_ns
            spans = spans.plus(alone.spans)
            rows += submitted
        at = len(self.program)
        self.alone[at] = Alone(device, host, spans)
        if taken and device:
            slowed = np.array([alone.slowed_ns for alone, _ in run], dtype=np.int64).sum(axis=0)
            self.slower[at] = {units: max(1.0, time / device) for units, time in zip(taken, slowed.tolist(), strict=True)}
        self.submitted.append(before)
        self.program.append(Step(_FOLDED, Place()))
        return rows


def _together(folding: _Folding, parts: list[_Shortened]) -> Folded:
    """All roles, their messages and what was not folded."""
    block = Block(name=_FOLDED, operations=(Operation(role="stretch", phase=""), Operation(role="host", phase="")))
    roles: tuple[Role, ...] = tuple(part.role for part in parts)
    plan = dataclasses.replace(folding.plan, roles=roles, blocks=folding.plan.blocks | {_FOLDED: block})
    expansions = {role.name: expand(plan, role) for role in roles}
    built = plan_network(plan, expansions, meetings(plan, expansions))
    _, work = works_of(plan, expansions, built, folding.number)
    duration = np.where(work >= 0, folding.prices.work_ns[work], 0)
    duration = slowed_of(plan, built, expansions, folding.machine, duration)
    release = released_of(plan, built, expansions, folding.machine)
    for part in parts:
        rows, first = expansions[part.role.name].rows, built.first[part.role.name]
        if folding.launch_ns:
            release[first : first + len(rows)] = _submitted(rows.kind, rows.step, part.submitted) * folding.launch_ns
        stretch = first + np.flatnonzero(np.isin(rows.step, list(part.alone)))[0::2]
        duration[stretch] = [alone.device_ns for alone in part.alone.values()]
        duration[stretch + 1] = 0
        release[stretch] = 0
        release[stretch + 1] = (
            [part.submitted[at] * folding.launch_ns + alone.host_ns for at, alone in part.alone.items()]
            if folding.launch_ns
            else 0
        )
    ready = network(built.lane, duration, release_ns=release, rendezvous=built.rendezvous, edges=built.edges)
    shared = rates_of(plan, expansions, built, folding.prices, work) if folding.machine.contention else None
    times = replay(ready, _with_slower(shared, parts, expansions, built) if shared is not None else None)
    step_ns = int(times.end_ns.max(initial=0))
    return Folded(
        step_ns=step_ns,
        spans={part.role.name: _of_role(part, expansions[part.role.name], built, times) for part in parts},
        nodes=len(built.lane),
        assumptions=folding.prices.assumptions,
    )


def _with_slower(
    shared: SharedRates, parts: list[_Shortened], expansions: dict[str, Expansion], built: PlanNetwork
) -> SharedRates:
    """Folded stretches are slowed by messages beside them."""
    curve, curves = shared.curve.copy(), [shared.curves]
    number, width = len(shared.curves), shared.curves.shape[1]
    rows: dict[tuple[tuple[int, float], ...], int] = {}
    for part in parts:
        steps = expansions[part.role.name].rows.step
        for at, slower in part.slower.items():
            key = tuple(slower.items())
            if key not in rows:
                rows[key] = number + len(rows)
                line, last = np.ones(width), 0
                for units, factor in key:
                    line[last + 1 : units + 1] = factor
                    last = units
                line[last + 1 :] = key[-1][1]
                curves.append(line[None, :])
            curve[built.first[part.role.name] + int(np.searchsorted(steps, at))] = rows[key]
    return dataclasses.replace(shared, curve=curve, curves=np.concatenate(curves))


def _submitted(kind: np.ndarray, step: np.ndarray, before: list[int]) -> Int64:
    """How many operations the host has submitted with each row."""
    count = np.cumsum(kind != OpKind.WAIT)
    first = np.concatenate(([True], step[1:] != step[:-1]))
    at_first = np.where(kind != OpKind.WAIT, count - 1, count)
    start = at_first[np.maximum.accumulate(np.where(first, np.arange(len(step)), 0))]
    return np.asarray(count - start + np.asarray(before, dtype=np.int64)[step], dtype=np.int64)


def _of_role(part: _Shortened, expansion: Expansion, built: PlanNetwork, times: Times) -> Spans:
    """The folded stretches as they divide alone; the rest as it was simulated. A transfer ends when its meeting does."""
    first = built.first[part.role.name]
    here = slice(first, first + len(expansion.rows))
    end = times.end_ns[here].copy()
    issues = np.flatnonzero(expansion.rows.kind == OpKind.ISSUE)
    end[issues] = np.maximum(end[issues], times.start_ns[here][issues])
    joint = _joints(built, here.start, here.stop)
    end = np.where(joint >= 0, times.end_ns[joint], end)
    rows = expansion.rows
    work = rows.work >= 0
    # What was folded has no work, so that only the rest is counted.
    computing, sent = (rows.kind == OpKind.COMPUTE) & work, rows.kind == OpKind.ISSUE
    start = times.start_ns[here]
    at = np.flatnonzero(np.isin(rows.step, list(part.alone)))[0::2]
    folded = union(start[at], end[at])
    beside = intersect(union(start[sent], end[sent]), folded)
    spans = divided(expansion, start, end, union(start[computing], end[computing]), folded)
    inside = Spans()
    for alone in part.alone.values():
        inside = inside.plus(alone.spans)
    # What a stretch computes is spread evenly over it; a message beside its exposed communication adds none.
    share = inside.compute_ns / length(folded) if len(folded) else 0.0
    slower = length(folded) - sum(alone.device_ns for alone in part.alone.values())
    return spans.plus(inside).plus(Spans(max(0, slower), round(length(beside) * share), 0))


def _joints(built: PlanNetwork, first: int, last: int) -> Int64:
    """Per row the node that stands for the end of its meeting; -1 where it meets nobody."""
    met = built.rendezvous[first:last]
    joints = len(built.lane) - (int(built.rendezvous.max(initial=NONE)) + 1)
    return np.where(met >= 0, joints + met, NONE).astype(np.int64)
