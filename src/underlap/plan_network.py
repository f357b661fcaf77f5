"""The rows of a plan as nodes that wait for each other: the form in which the event kernel runs it."""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.columns import NONE, Int32, Int64, Interner
from underlap.expansion import Expansion
from underlap.hazards import dependences, lives_of_pools
from underlap.plan import COMPUTE_LANE, OpKind, Plan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanNetwork:
    """One node per row, role after role, in the order of the plan; then one for each meeting of several roles, which stands for
    the end of all its members. n nodes, m edges."""

    lane: Int32
    """Index into lanes. Shape (n,)."""
    rendezvous: Int32
    """Nodes with one number >= 0 begin jointly. Shape (n,)."""
    edges: tuple[Int64, Int64, Int64]
    """(source, target, lag in ns) beside the order of lanes. Shape (m,) each."""
    first: dict[str, int]
    """Per role: the node of its first row."""
    lanes: tuple[tuple[str, str], ...]
    """(role, lane): compute, a channel, copy, ..."""


def plan_network(plan: Plan, expansions: dict[str, Expansion], meet: dict[str, Int32]) -> PlanNetwork:
    """The network of all roles. A collective runs on its channel; its wait holds the lane that issued it."""
    lanes = Interner()
    lane: list[Int32] = []
    sources: list[Int64] = []
    targets: list[Int64] = []
    first: dict[str, int] = {}
    size = 0
    for role in plan.roles:
        expansion = expansions[role.name]
        rows = expansion.rows
        first[role.name] = size
        issued = rows.kind == OpKind.ISSUE
        number = np.array([lanes((role.name, name)) for name in expansion.names], dtype=np.int32)
        lane.append(np.where(issued, number[rows.channel], number[rows.lane]).astype(np.int32))
        for source, target in (_issue_edges(expansion), _wait_edges(expansion), _other_edges(plan, expansion)):
            sources.append(source + size)
            targets.append(target + size)
        size += len(rows)
    together = np.concatenate([meet[role.name] for role in plan.roles]).astype(np.int32)
    other = np.concatenate([_shifted(expansions[role.name].rows.other, first[role.name]) for role in plan.roles])
    members = np.flatnonzero(together >= 0)
    joint = (size + together[members]).astype(np.int64)
    joints = int(together.max(initial=NONE)) + 1
    # Members of a meeting may be slowed by different things; nobody has the result before the last of them has ended.
    sources += [members, joint]
    targets += [joint, other[members]]
    source, target = np.concatenate(sources).astype(np.int64), np.concatenate(targets).astype(np.int64)
    return PlanNetwork(
        lane=np.concatenate([*lane, np.full(joints, NONE, dtype=np.int32)]),
        rendezvous=np.concatenate([together, np.full(joints, NONE, dtype=np.int32)]),
        edges=(source, target, np.zeros(len(source), dtype=np.int64)),
        first=first,
        lanes=tuple(lanes.values),
    )


def _shifted(rows: Int32, first: int) -> Int64:
    return np.where(rows >= 0, rows.astype(np.int64) + first, NONE)


def _issue_edges(expansion: Expansion) -> tuple[Int64, Int64]:
    """A collective begins once all that was issued before it on its issuing lane has ended."""
    rows = expansion.rows
    index = np.arange(len(rows))
    source: list[Int64] = []
    target: list[Int64] = []
    for lane in np.unique(rows.lane).tolist():
        on_lane = (rows.lane == lane) & (rows.kind != OpKind.ISSUE)
        last = np.maximum.accumulate(np.where(on_lane, index, NONE))
        issued = np.flatnonzero((rows.kind == OpKind.ISSUE) & (rows.lane == lane) & (last >= 0))
        source.append(last[issued])
        target.append(issued)
    return np.concatenate(source).astype(np.int64), np.concatenate(target).astype(np.int64)


def _wait_edges(expansion: Expansion) -> tuple[Int64, Int64]:
    waits = np.flatnonzero(expansion.rows.kind == OpKind.WAIT)
    return expansion.rows.other[waits].astype(np.int64), waits.astype(np.int64)


def _other_edges(plan: Plan, expansion: Expansion) -> tuple[Int64, Int64]:
    """Dependences between lanes that no issue or wait orders (copies), and the slots of pools."""
    rows = expansion.rows
    source, target = lives_of_pools(plan, expansion)
    names = expansion.names
    apart = [number for number in np.unique(rows.lane).tolist() if names[number] != COMPUTE_LANE]
    if apart:
        edges = dependences(plan, expansion)
        free = (rows.kind[edges.source] != OpKind.ISSUE) & (rows.kind[edges.target] != OpKind.ISSUE)
        crossing = free & (rows.lane[edges.source] != rows.lane[edges.target])
        source = np.concatenate([source, edges.source[crossing]])
        target = np.concatenate([target, edges.target[crossing]])
    return source.astype(np.int64), target.astype(np.int64)
