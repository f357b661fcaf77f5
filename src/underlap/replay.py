"""When operations start and end, given what each waits for: one event kernel, two providers of rates.

    given durations    an operation lasts as long as its work says; exact in integer nanoseconds
    shared rates       work is done at a rate that depends on what else runs: compute and communication take units of one device
                       from each other, and operations share its memory and their link max-min fairly

An operation starts when its lane is free (lanes run in row order), its release time has come and each edge's source has
ended, plus the edge's lag. Members of a rendezvous occupy their lanes from their start on, but work only from the last
member's start: `begin_ns - start_ns` is the waiting. The kernel is one function: plain Python runs it on lists; with
numba installed (`pip install underlap[fast]`) the same source is compiled and runs on arrays, with the same result. Without
it, given durations of rows that wait for earlier rows only take one pass over them (`row_order`), with the same result again.

Not modeled: priorities and preemption, links in series (an operation crosses at most one), members of a rendezvous that
slow each other down.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap import row_order
from underlap.columns import NONE, Int8, Int32, Int64
from underlap.errors import ScheduleError
from underlap.event_kernel import Engine, Prepared, Sharing, State, compiled, plain

NO_RELEASE = int(np.iinfo(np.int64).min) // 4
"""The release time of an operation that only waits for others. An operation without any edge needs a real one."""

NEITHER, COMPUTE, COMMUNICATION = 0, 1, 2
"""Kinds of work that slow each other: compute and communication do; what is neither is left alone."""

_LISTED = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Operations and what each of them waits for. n operations, m edges."""

    lane: Int32
    """Where it runs, one after the other in row order; -1 where nothing but its edges holds it. Shape (n,)."""
    work_ns: Int64
    """How long it takes alone, >= 0. Shape (n,)."""
    release_ns: Int64
    """Not before this time. Shape (n,)."""
    rendezvous: Int32
    """Operations with the same number >= 0 begin jointly; -1 for none. Shape (n,)."""
    first_edge: Int64
    """Operation i waits for the edges first_edge[i] .. first_edge[i + 1] - 1. Shape (n + 1,)."""
    source: Int32
    """The operation that has to end before. Shape (m,)."""
    lag_ns: Int64
    """How long after that end, at the earliest. Shape (m,)."""

    def __len__(self) -> int:
        return len(self.lane)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When each operation starts, begins to work and ends. All of shape (n,)."""

    start_ns: Int64
    begin_ns: Int64
    """Later than its start where it waits for the other members of its rendezvous."""
    end_ns: Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedRates:
    """What slows down what. n operations, d devices, k links."""

    kind: Int8
    """NEITHER, COMPUTE or COMMUNICATION. Shape (n,)."""
    device: Int32
    """-1 for none. Shape (n,)."""
    units: Int32
    """Multiprocessors that it takes from the other kind, from its start to its end: also while it waits. Shape (n,)."""
    curve: Int32
    """Row of `curves`, -1 where it does not care what is taken. Shape (n,)."""
    curves: np.ndarray
    """How many times longer it takes while the other kind holds so many units, >= 1. float64, shape (curves, units + 1);
    more than the last column counts as the last."""
    late: Int8
    """1 for a persistent kernel: at its start all blocks get a multiprocessor or wait for one, and those that wait run after
    the others or once the other kind lets go, whichever comes first. It is not slowed by what comes later. Shape (n,)."""
    memory: np.ndarray
    """What it takes of its device's memory bandwidth when alone, in [0, 1]. float64, shape (n,)."""
    link: Int32
    """The link that it crosses, -1 for none. Shape (n,)."""
    demand: np.ndarray
    """What it takes of its link's capacity when alone, in (0, 1]. float64, shape (n,)."""
    links: int
    devices: int
    proportional: bool = False
    """Units go with the operation's share of its link, and are taken while it works rather than from its start on."""
    bursts: Bursts | None = None
    """None: a link that was idle is as fast as one that was not."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Links that let a burst pass which has gathered while they were idle (token buckets). n operations, k links."""

    saved_ns: np.ndarray
    """How much longer an operation takes than its work where nothing has gathered. float64, shape (n,)."""
    lead_ns: np.ndarray
    """What it leaves its link idle for at its begin. float64, shape (n,)."""
    depth_ns: np.ndarray
    """What a pause gathers at most, as time of the link. At the begin all is there. float64, shape (k,)."""


def network(
    lane: Int32,
    work_ns: Int64,
    *,
    release_ns: Int64 | None = None,
    rendezvous: Int32 | None = None,
    edges: tuple[Int64, Int64, Int64] | None = None,
) -> Network:
    """A Network from edges in any order, as (source, target, lag) columns. Without release times everything may start at 0."""
    size = len(lane)
    source, target, lag = edges if edges is not None else (np.empty(0, np.int64),) * 3
    wrong = (source < 0) | (source >= size) | (target < 0) | (target >= size)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ScheduleError(
            f"edge {at} leads from operation {int(source[at])} to operation {int(target[at])}; "
            f"there are the operations 0 to {size - 1}"
        )
    order = np.argsort(target, kind="stable")
    return Network(
        lane=np.asarray(lane, dtype=np.int32),
        work_ns=np.asarray(work_ns, dtype=np.int64),
        release_ns=np.zeros(size, dtype=np.int64) if release_ns is None else np.asarray(release_ns, dtype=np.int64),
        rendezvous=np.full(size, NONE, dtype=np.int32) if rendezvous is None else np.asarray(rendezvous, dtype=np.int32),
        first_edge=np.concatenate(([0], np.cumsum(np.bincount(target, minlength=size)))).astype(np.int64),
        source=source[order].astype(np.int32),
        lag_ns=lag[order].astype(np.int64),
    )


def replay(plan: Network, rates: SharedRates | None = None) -> Times:
    """When everything happens. Compiled where numba is installed. Raises ScheduleError on cycles."""
    engine = compiled()
    found = _in_row_order(plan) if rates is None and engine is None else None
    return found or run(plan, rates, engine or plain)


def _in_row_order(plan: Network) -> Times | None:
    """The times of a plan whose rows wait for earlier rows only; None for any other."""
    _check(plan, None)
    source, target = plan.source.astype(np.int64), np.repeat(np.arange(len(plan)), np.diff(plan.first_edge))
    lag = plan.lag_ns
    before, behind = lane_edges(plan.lane)
    if len(before):
        target = np.concatenate([target, behind])
        order = np.argsort(target, kind="stable")
        source, target = np.concatenate([source, before])[order], target[order]
        lag = np.concatenate([lag, np.zeros(len(before), dtype=np.int64)])[order]
    found = row_order.run(
        row_order.Waits(
            source=source,
            target=target,
            lag_ns=lag,
            release_ns=plan.release_ns,
            work_ns=plan.work_ns,
            rendezvous=plan.rendezvous.astype(np.int64),
        )
    )
    return None if found is None else Times(start_ns=found[0], begin_ns=found[1], end_ns=found[2])


def run(plan: Network, rates: SharedRates | None, engine: Engine) -> Times:
    """`replay` on the engine of one's choice: `plain`, or what `compiled()` returns."""
    _check(plan, rates)
    prepared, state = _prepared(plan), _state(plan)
    done, start, begin, end = engine(prepared, state, _sharing(plan, rates))
    if done < len(plan):
        raise ScheduleError(_deadlock(plan, end))
    return Times(start_ns=start, begin_ns=begin, end_ns=end)


# ---- preparing and checking


def lane_edges(lane: Int32) -> tuple[Int64, Int64]:
    """(source, target) of the order of each lane: every row waits for the previous row of its lane."""
    held = np.flatnonzero(lane >= 0)
    order = held[np.argsort(lane[held], kind="stable")]
    same = lane[order[1:]] == lane[order[:-1]]
    return order[:-1][same], order[1:][same]


def _prepared(plan: Network) -> Prepared:
    size = len(plan)
    before, behind = lane_edges(plan.lane)
    waits = np.diff(plan.first_edge)
    source = np.concatenate([plan.source, before.astype(np.int32)])
    target = np.concatenate([np.repeat(np.arange(size, dtype=np.int32), waits), behind.astype(np.int32)])
    lag = np.concatenate([plan.lag_ns, np.zeros(len(before), dtype=np.int64)])
    order = np.argsort(source, kind="stable")
    joined = np.flatnonzero(plan.rendezvous >= 0)
    counts = np.bincount(plan.rendezvous[joined]) if len(joined) else np.empty(0, dtype=np.int64)
    members = joined[np.argsort(plan.rendezvous[joined], kind="stable")]
    return Prepared(
        first=np.concatenate(([0], np.cumsum(np.bincount(source, minlength=size)))).astype(np.int64),
        target=target[order].astype(np.int64),
        lag=lag[order],
        work=plan.work_ns,
        rendezvous=plan.rendezvous.astype(np.int64),
        first_member=size + np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        members=np.concatenate([np.arange(size), members]).astype(np.int64),
    )


def _state(plan: Network) -> State:
    size = len(plan)
    pending = np.diff(plan.first_edge)
    pending[lane_edges(plan.lane)[1]] += 1
    joined = plan.rendezvous[plan.rendezvous >= 0]
    missing = np.bincount(joined).astype(np.int64) if len(joined) else np.empty(0, dtype=np.int64)
    unset = int(np.iinfo(np.int64).min)
    return State(
        start=np.full(size, unset),
        begin=np.full(size, unset),
        end=np.full(size, unset),
        ready=plan.release_ns.copy(),
        pending=pending,
        version=np.zeros(size, dtype=np.int64),
        missing=missing,
        gathered=np.full(len(missing), unset),
    )


def _sharing(plan: Network, rates: SharedRates | None) -> Sharing:
    size = len(plan) if rates is not None else 0
    devices = rates.devices if rates is not None else 0
    none, nothing = np.empty(0), np.empty(0, dtype=np.int64)
    width = rates.curves.shape[1] if rates else 1
    links, bursts = (rates.links, rates.bursts) if rates else (0, None)
    return Sharing(
        on=rates is not None,
        kind=rates.kind.astype(np.int64) if rates else nothing,
        device=rates.device.astype(np.int64) if rates else nothing,
        units=np.where((rates.kind > 0) & (rates.device >= 0), rates.units.astype(np.int64), 0) if rates else nothing,
        curve=np.where(rates.curve >= 0, rates.curve.astype(np.int64) * width, -1) if rates else nothing,
        curves=rates.curves.astype(np.float64).ravel() if rates else none,
        width=width,
        late=rates.late.astype(np.int64) if rates else nothing,
        stall=np.zeros(size),
        link=rates.link.astype(np.int64) if rates else nothing,
        demand=np.asarray(rates.demand, dtype=np.float64) if rates else none,
        share=np.ones(size),
        memory=np.asarray(rates.memory, dtype=np.float64) if rates else none,
        memory_share=np.ones(size),
        rate=np.zeros(size),
        remaining=np.zeros(size),
        since=np.zeros(size, dtype=np.int64),
        held=np.zeros(2 * devices, dtype=np.int64),
        heads=np.full(2 * devices + (rates.links if rates else 0), -1, dtype=np.int64),
        after=np.full(3 * size, -1, dtype=np.int64),
        before=np.full(3 * size, -1, dtype=np.int64),
        proportional=rates.proportional if rates else False,
        saved=bursts.saved_ns.astype(np.float64) if bursts else np.zeros(size),
        lead=bursts.lead_ns.astype(np.float64) if bursts else np.zeros(size),
        depth=bursts.depth_ns.astype(np.float64) if bursts else np.zeros(links),
        gathered=bursts.depth_ns.astype(np.float64) if bursts else np.zeros(links),
        idle_since=np.zeros(links, dtype=np.int64),
    )


def _check(plan: Network, rates: SharedRates | None) -> None:
    if len(plan.source) and (plan.source.min() < 0 or plan.source.max() >= len(plan)):
        at = int(np.flatnonzero((plan.source < 0) | (plan.source >= len(plan)))[0])
        target = int(np.searchsorted(plan.first_edge, at, side="right")) - 1
        raise ScheduleError(
            f"operation {target} waits for operation {int(plan.source[at])}; there are the operations 0 to {len(plan) - 1}"
        )
    if (plan.work_ns < 0).any():
        at = int(np.flatnonzero(plan.work_ns < 0)[0])
        raise ScheduleError(f"operation {at} has {int(plan.work_ns[at])} ns of work; expected 0 or more")
    if rates is not None and (plan.lag_ns < 0).any():
        at = int(np.flatnonzero(plan.lag_ns < 0)[0])
        raise ScheduleError(f"edge {at} has a lag of {int(plan.lag_ns[at])} ns; shared rates need 0 or more")


def _deadlock(plan: Network, end: Int64) -> str:
    """Names a circle of operations that wait for one another, found by following what is unfinished backwards."""
    unfinished = end == np.iinfo(np.int64).min
    earlier = dict(zip(*(column.tolist() for column in reversed(lane_edges(plan.lane))), strict=True))
    path: dict[int, int] = {}
    # Arrived members of a rendezvous wait for the one that has not: begin with what waits for something unfinished.
    op = int(np.flatnonzero(unfinished)[0])
    while op not in path:
        path[op] = len(path)
        waits = plan.source[plan.first_edge[op] : plan.first_edge[op + 1]].tolist()
        waits += [earlier[op]] if op in earlier else []
        blocked = [other for other in waits if unfinished[other]]
        if not blocked:
            same = np.flatnonzero((plan.rendezvous == plan.rendezvous[op]) & unfinished)
            blocked = [other for other in same.tolist() if other not in path] or [next(iter(path))]
        op = blocked[0]
    circle = list(path)[path[op] :]
    shown = ", ".join(map(str, circle[:_LISTED])) + (", ..." if len(circle) > _LISTED else "")
    return f"{int(unfinished.sum())} of {len(plan)} operations never start: they wait for one another in a circle ({shown})"
