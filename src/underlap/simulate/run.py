"""Running a plan on a machine: prices, the network of all roles, the event kernel with shared rates."""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.columns import NONE, Int32, Int64
from underlap.cost.communicator import DEFAULT, Settings
from underlap.cost.hardware import Topology
from underlap.cost.measured import Measured
from underlap.cost.testbed import Testbed
from underlap.cost.testbed_prices import Prices as TestbedPrices
from underlap.cost.work import Work
from underlap.errors import ScheduleError
from underlap.expansion import Expansion, expand
from underlap.hazards import READ_AFTER_WRITE, dependences
from underlap.meetings import meetings
from underlap.plan import OpKind, Plan
from underlap.plan_network import PlanNetwork, plan_network
from underlap.replay import COMMUNICATION, COMPUTE, NEITHER, SharedRates, Times, network, replay
from underlap.simulate import measured_pricing
from underlap.simulate.jitter import waiting
from underlap.simulate.pricing import Prices, price


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a plan is run on, and what is assumed about how."""

    topology: Topology
    settings: Settings = DEFAULT
    measured: Measured | None = None
    testbed: Testbed | None = None
    """Where the machine was measured operation by operation: its times are used, and none of the models."""
    contention: bool = True
    """False: overlap is free, as most tools assume."""
    launches: bool = True
    """False: the device never waits for its host (device graphs)."""
    slowed: dict[int, float] = dataclasses.field(default_factory=dict)
    """rank -> how many times longer its compute takes. The plan has to have a role of its own for it."""
    jitter: float = 0.0
    """Standard deviation of each operation's time over its mean: collectives wait for their last rank. `fold` has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """When everything happens, role by role, and the two times that any schedule of this plan lies between."""

    plan: Plan
    machine: Machine
    expansions: dict[str, Expansion]
    prices: Prices
    built: PlanNetwork
    work: Int32
    """Per node: index into the works that `prices` is about, -1 for waits and meetings. Shape (n,)."""
    works: tuple[Work, ...]
    release_ns: Int64
    """When the host has submitted each node. Shape (n,)."""
    times: Times
    step_ns: int
    serial_ns: int | None
    """The same operations, each role doing one at a time in issue order, undisturbed; None where that order waits in a circle,
    or where bounds were not asked for."""
    bound_ns: int | None
    """No order of these operations is shorter: the longest chain of data, the compute of one rank, the transfers on one link.
    None where it was not asked for."""

    def rows(self, role: str) -> slice:
        """The nodes of a role's rows."""
        first = self.built.first[role]
        return slice(first, first + len(self.expansions[role].rows))


def simulate(plan: Plan, machine: Machine, *, bounds: bool = True) -> Simulated:
    """Run the plan. `bounds` False leaves the serial sum and the lower bound out (None), for sweeps.

    Raises PlanError for a plan that contradicts itself, OptionError where it does not fit the machine.
    """
    expansions = {role.name: expand(plan, role) for role in plan.roles}
    built = plan_network(plan, expansions, meetings(plan, expansions))
    works, work = works_of(plan, expansions, built, {})
    costs = testbed_prices(machine)
    prices = (
        measured_pricing.price(works, costs)
        if costs is not None
        else price(works, machine.topology, settings=machine.settings, measured=machine.measured)
    )
    duration = np.where(work >= 0, prices.work_ns[work], 0) if works else np.zeros(len(work), dtype=np.int64)
    release = released_of(plan, built, expansions, machine)
    if costs is not None:
        built, prices, duration, release = _on_testbed(plan, expansions, built, prices, works, costs, duration)
    duration = slowed_of(plan, built, expansions, machine, duration)
    if machine.jitter > 0:
        duration = duration + _waiting(plan, built, expansions, machine.jitter, duration)
    ready = network(built.lane, duration, release_ns=release, rendezvous=built.rendezvous, edges=built.edges)
    rates = rates_of(plan, expansions, built, prices, work) if machine.contention else None
    if rates is not None and costs is not None:
        bursts = measured_pricing.bursts(work, works, costs, rates.links)
        rates = dataclasses.replace(rates, proportional=True, bursts=bursts)
    times = replay(ready, rates)
    return Simulated(
        plan=plan,
        machine=machine,
        expansions=expansions,
        prices=prices,
        built=built,
        work=work,
        works=works,
        release_ns=release,
        times=times,
        step_ns=int(times.end_ns.max(initial=0)),
        serial_ns=_serial(plan, built, duration, release) if bounds else None,
        bound_ns=_bound(plan, expansions, built, duration, prices, work) if bounds else None,
    )


def testbed_prices(machine: Machine) -> TestbedPrices | None:
    """Raises OptionError where the link is too fast for what was measured."""
    if machine.testbed is None:
        return None
    return TestbedPrices(machine.testbed, machine.topology.scale_up.bytes_per_s)


def _on_testbed(
    plan: Plan,
    expansions: dict[str, Expansion],
    built: PlanNetwork,
    prices: Prices,
    works: tuple[Work, ...],
    costs: TestbedPrices,
    duration: Int64,
) -> tuple[PlanNetwork, Prices, Int64, Int64]:
    """(network, prices, durations, release times) with what the host does on its own core."""
    host = measured_pricing.host(plan, expansions, built, costs, duration)
    source, target, lag = (np.concatenate(pair) for pair in zip(built.edges, host.edges, strict=True))
    lane = measured_pricing.two_workers(plan, expansions, built, works, costs)
    assumptions = tuple(dict.fromkeys((*prices.assumptions, *host.assumptions)))
    lanes = (*built.lanes, *((role, f"{name} beside") for role, name in built.lanes))
    return (
        dataclasses.replace(built, edges=(source, target, lag), lane=lane, lanes=lanes),
        dataclasses.replace(prices, assumptions=assumptions),
        host.duration,
        host.release,
    )


def works_of(
    plan: Plan, expansions: dict[str, Expansion], built: PlanNetwork, number: dict[Work, int]
) -> tuple[tuple[Work, ...], Int32]:
    """The distinct works of all roles, and which each node does. `number` has those that have one already, and gets the rest."""
    column = np.full(len(built.lane), NONE, dtype=np.int32)
    for role in plan.roles:
        expansion = expansions[role.name]
        mine = np.array([number.setdefault(work, len(number)) for work in expansion.works] + [NONE], dtype=np.int32)
        first = built.first[role.name]
        column[first : first + len(expansion.rows)] = mine[expansion.rows.work]
    return tuple(number), column


def slowed_of(plan: Plan, built: PlanNetwork, expansions: dict[str, Expansion], machine: Machine, duration: Int64) -> Int64:
    """Compute of slow ranks takes longer."""
    duration = duration.copy()
    for role in plan.roles:
        factors = [machine.slowed.get(rank, 1.0) for rank in role.ranks]
        if max(factors) == 1.0:
            continue
        rows = expansions[role.name].rows
        at = built.first[role.name] + np.flatnonzero(rows.kind == OpKind.COMPUTE)
        duration[at] = np.rint(duration[at] * max(factors)).astype(np.int64)
    return duration


def _waiting(plan: Plan, built: PlanNetwork, expansions: dict[str, Expansion], spread: float, duration: Int64) -> Int64:
    """What the collectives of each role wait for the last of their ranks."""
    extra = np.zeros(len(duration), dtype=np.int64)
    for role in plan.roles:
        expansion, first = expansions[role.name], built.first[role.name]
        here = slice(first, first + len(expansion.rows))
        extra[here] = waiting(plan, expansion, duration[here], spread)
    return extra


def released_of(plan: Plan, built: PlanNetwork, expansions: dict[str, Expansion], machine: Machine) -> Int64:
    """The host submits the rows of its role one after the other, and is never held up."""
    release = np.zeros(len(built.lane), dtype=np.int64)
    if not machine.launches:
        return release
    for role in plan.roles:
        rows = expansions[role.name].rows
        first = built.first[role.name]
        submitted = np.cumsum(rows.kind != OpKind.WAIT)
        release[first : first + len(rows)] = submitted * machine.topology.processor.launch_ns
    return release


def rates_of(plan: Plan, expansions: dict[str, Expansion], built: PlanNetwork, prices: Prices, work: Int32) -> SharedRates:
    """A role is a device, with two links: into its scale-up domain and out of it. A transfer crosses the one it fills more."""
    size, roles = len(work), len(plan.roles)
    kind = np.full(size, NEITHER, dtype=np.int8)
    device = np.full(size, NONE, dtype=np.int32)
    receiving = np.zeros(size, dtype=np.bool_)
    for number, role in enumerate(plan.roles):
        rows = expansions[role.name].rows
        here = slice(built.first[role.name], built.first[role.name] + len(rows))
        kind[here] = np.select([rows.kind == OpKind.COMPUTE, rows.kind == OpKind.ISSUE], [COMPUTE, COMMUNICATION], NEITHER)
        device[here] = number
        receiving[here] = _receives(expansions[role.name])
    known = work >= 0
    pick = np.where(known, work, 0)
    up, out = np.where(known, prices.scale_up[pick], 0.0), np.where(known, prices.scale_out[pick], 0.0)
    crosses = known & ((up > 0) | (out > 0)) & ~receiving
    link = np.where(crosses, 2 * device + (out > up), NONE).astype(np.int32)
    return SharedRates(
        kind=kind,
        device=device,
        units=np.where(known, prices.units[pick], 0).astype(np.int32),
        curve=np.where(known, prices.curve[pick], NONE).astype(np.int32),
        curves=prices.curves,
        late=np.where(known, prices.late[pick], 0).astype(np.int8),
        memory=np.where(known, prices.memory[pick], 0.0),
        link=link,
        demand=np.where(crosses, np.maximum(up, out), 1.0),
        links=2 * roles,
        devices=roles,
    )


def _receives(expansion: Expansion) -> np.ndarray:
    """Issues that only write: the receiving end of a message takes nothing from its own way out."""
    reads = np.zeros(len(expansion.rows), dtype=np.bool_)
    reads[expansion.accesses.row[expansion.accesses.writes == 0]] = True
    return np.asarray((expansion.rows.kind == OpKind.ISSUE) & ~reads, dtype=np.bool_)


# ---- what any schedule of these operations lies between


def _serial(plan: Plan, built: PlanNetwork, duration: Int64, release: Int64) -> int | None:
    """One lane per role for all but messages between stages, which would wait in a circle."""
    role_of = {role.name: number for number, role in enumerate(plan.roles)}
    apart = {lane for lane in built.lanes if lane[1].startswith("pp.")}
    numbers = [len(role_of) + at if lane in apart else role_of[lane[0]] for at, lane in enumerate(built.lanes)]
    table = np.array([*numbers, NONE], dtype=np.int32)
    try:
        ready = network(table[built.lane], duration, release_ns=release, rendezvous=built.rendezvous, edges=built.edges)
        times = replay(ready)
    except ScheduleError:
        return None
    return int(times.end_ns.max(initial=0))


def _bound(plan: Plan, expansions: dict[str, Expansion], built: PlanNetwork, duration: Int64, prices: Prices, work: Int32) -> int:
    """The largest of: longest chain of data dependences, compute of one role, transfers on one link of one role."""
    known = work >= 0
    pick = np.where(known, work, 0)
    least = 0
    sources, targets = [], []
    for role in plan.roles:
        expansion, first = expansions[role.name], built.first[role.name]
        here = slice(first, first + len(expansion.rows))
        computing = expansion.rows.kind == OpKind.COMPUTE
        least = max(least, int(duration[here][computing].sum()))
        for share in (prices.scale_up, prices.scale_out):
            least = max(least, int((duration[here] * np.where(known[here], share[pick[here]], 0.0))[~computing].sum()))
        edges = dependences(plan, expansion)
        kept = edges.hazard == READ_AFTER_WRITE
        sources.append(edges.source[kept].astype(np.int64) + first)
        targets.append(edges.target[kept].astype(np.int64) + first)
    source, target = np.concatenate(sources), np.concatenate(targets)
    free = np.full(len(built.lane), NONE, dtype=np.int32)
    zero = np.zeros(len(source), dtype=np.int64)
    chain = replay(network(free, duration, rendezvous=built.rendezvous, edges=(source, target, zero)))
    return max(least, int(chain.end_ns.max(initial=0)))
