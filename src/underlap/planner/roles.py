"""Roles taken apart: ranks that are no longer alike, because one of them is slow, get roles of their own.

A slow rank holds up its neighbors along tp, which hold up theirs along dp, and so on. Which ranks still do the same is found
by color refinement (Weisfeiler and Leman 1968): ranks of one color have, in each of their groups, as many of each color.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from underlap.columns import Int64
from underlap.layout import Layout
from underlap.plan import Plan, Role
from underlap.planner.groups import kinds, members


def unfold(plan: Plan, layout: Layout, ranks: Iterable[int]) -> Plan:
    """The plan with a role of its own for each of these ranks, and for each kind of rank that differs in how it lies to them.

    Apply passes before: they expect one role per stage. Raises OptionError for a rank outside of the world.
    """
    color = np.zeros(layout.world, dtype=np.int64)
    for number, role in enumerate(plan.roles):
        color[list(role.ranks)] = number
    for number, rank in enumerate(sorted(set(ranks))):
        layout.coordinates(rank)
        color[rank] = len(plan.roles) + number
    color = _refined(color, [layout.groups(*dimensions) for dimensions in kinds(layout).values() if dimensions])
    return dataclasses.replace(plan, roles=tuple(part for role in plan.roles for part in _parts(role, layout, color)))


def _refined(color: Int64, tables: list[Int64]) -> Int64:
    """The coarsest colors that tell apart what `color` does, and ranks whose groups have other colors. Shape (world,)."""
    count = 0
    while True:
        columns = [color]
        for table in tables:
            _, kind = np.unique(np.sort(color[table], axis=1), axis=0, return_inverse=True)
            column = np.empty_like(color)
            column[table] = kind.reshape(-1, 1)
            columns.append(column)
        _, found = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        color = found.reshape(-1).astype(np.int64)
        if color.max() == count:
            return color
        count = int(color.max())


def _parts(role: Role, layout: Layout, color: Int64) -> list[Role]:
    """The role by colors of its ranks, in the order of their first ranks; itself where it has one color."""
    found: dict[int, list[int]] = {}
    for rank in role.ranks:
        found.setdefault(int(color[rank]), []).append(rank)
    if len(found) == 1:
        return [role]
    return [
        dataclasses.replace(role, name=f"{role.name}.rank{ranks[0]}", ranks=tuple(ranks), members=members(layout, ranks[0]))
        for ranks in found.values()
    ]
