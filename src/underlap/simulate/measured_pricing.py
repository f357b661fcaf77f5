"""Prices, times and what holds the host up on a testbed, whose operations were measured one by one.

On cores the host is the device: it computes, it issues a transfer before it goes on, and behind a wait it puts what came where it
belongs. So those times lie on its lane, and nothing is submitted ahead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from underlap.columns import Int32, Int64
from underlap.cost.testbed import WEIGHT_GROUPS
from underlap.cost.testbed_prices import NO_TRANSFER, HostPrice, TransferPrice
from underlap.cost.testbed_prices import Prices as Measured
from underlap.cost.work import Transfer, Work
from underlap.expansion import Expansion
from underlap.plan import OpKind, Plan
from underlap.plan_network import PlanNetwork
from underlap.replay import Bursts
from underlap.simulate.pricing import LONGEST_NS, Prices

UNITS = 1000
"""That a core has, so that shares of it are whole numbers."""


def price(works: Sequence[Work], measured: Measured) -> Prices:
    """Prices of transfers; those of computation are by operation, in `durations`, so that their columns are 0 here."""
    size = len(works)
    transfers = transfer_prices(works, measured)
    stretch = max(1.0, measured.testbed.beside.transfer_stretch.value)
    curves = np.ones((2, UNITS + 1))
    curves[0] = [measured.slower(held / UNITS) for held in range(UNITS + 1)]
    curves[1, 1:] = stretch
    computing = np.array([not isinstance(work, Transfer) for work in works], dtype=bool)
    return Prices(
        work_ns=np.array([round(one.ns) for one in transfers], dtype=np.int64),
        units=np.where(computing, 1, [round(UNITS * one.cpu_share) for one in transfers]).astype(np.int32),
        curve=np.where(computing, 0, 1).astype(np.int32),
        curves=curves,
        late=np.zeros(size, dtype=np.int8),
        memory=np.zeros(size),
        scale_up=np.array([one.link_share for one in transfers], dtype=np.float64),
        scale_out=np.zeros(size),
        flops=np.array([getattr(work, "flops", 0.0) for work in works], dtype=np.float64),
        algorithms=tuple(None for _ in works),
        assumptions=tuple(dict.fromkeys((*measured.notes, *(note for one in transfers for note in one.notes)))),
    )


def transfer_prices(works: Sequence[Work], measured: Measured) -> list[TransferPrice]:
    """One per work; of computation one of nothing."""
    return [measured.transfer(work) if isinstance(work, Transfer) else NO_TRANSFER for work in works]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a plan's rows take on the host. n nodes, m edges."""

    duration: Int64
    """Shape (n,)."""
    edges: tuple[Int64, Int64, Int64]
    """(source, target, lag in ns): nothing goes on while something is issued. Shape (m,) each."""
    release: Int64
    """Where nothing comes before an issue. Shape (n,)."""
    assumptions: tuple[str, ...]


def host(plan: Plan, expansions: dict[str, Expansion], built: PlanNetwork, measured: Measured, duration: Int64) -> Host:
    """`duration` has those of transfers. Raises OptionError for a precision that was not measured."""
    between = 1e3 * measured.testbed.compute.between_us.value
    duration = duration.copy()
    release = np.zeros(len(duration), dtype=np.int64)
    edges: list[tuple[int, int, int]] = []
    notes: list[str] = []
    for role in plan.roles:
        expansion, first = expansions[role.name], built.first[role.name]
        at = slice(first, first + len(expansion.rows))
        duration[at] += _computed(expansion, measured, between, notes)
        mine = _host_prices(expansion, measured, notes)
        duration[at] += _finished(expansion, mine)
        _held_up(expansion, mine, first, edges, release)
    source, target, lag = (np.array(column, dtype=np.int64) for column in zip(*edges, strict=True)) if edges else _none()
    return Host(
        duration=np.minimum(duration, int(LONGEST_NS)),
        edges=(source, target, lag),
        release=release,
        assumptions=tuple(dict.fromkeys(notes)),
    )


def _none() -> tuple[Int64, Int64, Int64]:
    return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)


def _computed(expansion: Expansion, measured: Measured, between: float, notes: list[str]) -> Int64:
    """Of each row that computes or copies: its time by work, phase and role, and the host's way to the next."""
    rows = expansion.rows
    found = np.zeros(len(rows), dtype=np.int64)
    busy = np.flatnonzero((rows.work >= 0) & (rows.kind != OpKind.ISSUE) & (rows.kind != OpKind.WAIT))
    known: dict[tuple[int, int, int], int] = {}
    for row in busy.tolist():
        key = (int(rows.work[row]), int(rows.phase[row]), int(rows.role[row]))
        if key not in known:
            work = expansion.works[key[0]]
            assert not isinstance(work, Transfer)
            priced = measured.operation(work, expansion.names[key[1]], expansion.names[key[2]])
            known[key] = round(priced.ns + between)
            if priced.note is not None:
                notes.append(priced.note)
        found[row] = known[key]
    return found


def _host_prices(expansion: Expansion, measured: Measured, notes: list[str]) -> dict[int, HostPrice]:
    """By row of each issue."""
    rows, found = expansion.rows, {}
    known: dict[tuple[int, bool], HostPrice] = {}
    for row in np.flatnonzero((rows.kind == OpKind.ISSUE) & (rows.work >= 0)).tolist():
        key = int(rows.work[row]), expansion.names[rows.group[row]] in WEIGHT_GROUPS
        if key not in known:
            work = expansion.works[key[0]]
            assert isinstance(work, Transfer)
            known[key] = measured.host(work, weights=key[1])
            notes += [note] if (note := known[key].note) is not None else []
        found[row] = known[key]
    return found


def _finished(expansion: Expansion, prices: dict[int, HostPrice]) -> Int64:
    """Of each wait: what is done behind it."""
    rows = expansion.rows
    found = np.zeros(len(rows), dtype=np.int64)
    waits = np.flatnonzero(rows.kind == OpKind.WAIT)
    for row, issue in zip(waits.tolist(), rows.other[waits].tolist(), strict=True):
        found[row] = round(prices[issue].finish_ns) if issue in prices else 0
    return found


def _held_up(
    expansion: Expansion, prices: dict[int, HostPrice], first: int, edges: list[tuple[int, int, int]], release: Int64
) -> None:
    """What is packed and issued between two rows of a lane holds up what comes behind it."""
    rows = expansion.rows
    before: dict[int, int] = {}
    spent: dict[int, float] = {}
    for row, (lane, kind) in enumerate(zip(rows.lane.tolist(), rows.kind.tolist(), strict=True)):
        if kind == OpKind.ISSUE and row in prices:
            spent[lane] = spent.get(lane, 0.0) + prices[row].pack_ns
        lag = round(spent.get(lane, 0.0))
        if lag and lane in before:
            edges.append((first + before[lane], first + row, lag))
        elif lag:
            release[first + row] = lag
        if kind == OpKind.ISSUE and row in prices:
            spent[lane] += prices[row].call_ns
        if kind != OpKind.ISSUE:
            before[lane], spent[lane] = row, 0.0


def bursts(work: Int32, works: Sequence[Work], measured: Measured, links: int) -> Bursts | None:
    """Per node and link, what a pause of the link saves. None where nothing holds it to a rate."""
    depth = measured.burst_ns
    if depth == 0:
        return None
    transfers = transfer_prices(works, measured)
    saved = np.array([one.without_burst_ns for one in transfers] + [0.0])
    lead = np.array([one.start_ns for one in transfers] + [0.0])
    return Bursts(saved_ns=saved[work], lead_ns=lead[work], depth_ns=np.full(links, depth))


def two_workers(
    plan: Plan, expansions: dict[str, Expansion], built: PlanNetwork, works: Sequence[Work], measured: Measured
) -> Int32:
    """The lanes of all nodes: of collectives that a library carries out two at a time, every second one has a lane beside."""
    transfers = transfer_prices(works, measured)
    number = {work: at for at, work in enumerate(works)}
    lane = built.lane.copy()
    for role in plan.roles:
        expansion, first = expansions[role.name], built.first[role.name]
        rows = expansion.rows
        seen: dict[int, int] = {}
        for row in np.flatnonzero(rows.kind == OpKind.ISSUE).tolist():
            at = int(built.lane[first + row])
            count = seen[at] = seen.get(at, -1) + 1
            together = rows.work[row] >= 0 and not transfers[number[expansion.works[rows.work[row]]]].in_order
            if together and count % 2:
                lane[first + row] = at + len(built.lanes)
    return lane
