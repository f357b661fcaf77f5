"""What every pass has to keep: the flow of data between computations, and the bytes of every axis."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from underlap.errors import PlanError
from underlap.expansion import expand
from underlap.hazards import pieces
from underlap.ledger import ledger
from underlap.plan import OpKind, Plan, Role


def check_kept(before: Plan, after: Plan, *, flow: bool = True) -> None:
    """Raise PlanError where a plan moves other bytes than the one it was made from, or lost or won a data dependence.

    `flow` False leaves the dependences out, which take a second per hundred thousand operations.
    """
    for axis, (sent, now) in _bytes(before, after).items():
        if not np.isclose(sent, now, rtol=1e-9):
            raise PlanError(f"{axis} moves {now:g} bytes in place of {sent:g}: that is another plan, not another schedule of it")
    for role in before.roles if flow else ():
        one, other = computed_flow(before, role), computed_flow(after, after.role(role.name))
        if one != other:
            lost, won = sorted(one - other), sorted(other - one)
            what, pair = ("lost", lost[0]) if lost else ("new", won[0])
            raise PlanError(
                f"role {role.name}: {len(lost)} data dependences lost, {len(won)} new; {what}: {pair[0]} -> {pair[1]}"
            )


def _bytes(before: Plan, after: Plan) -> dict[str, tuple[float, float]]:
    """Sent bytes per group, before and after."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for index, plan in enumerate((before, after)):
        for entry in ledger(plan):
            sums[entry.group][index] += entry.sent_bytes
    return {group: (one, other) for group, (one, other) in sums.items()}


def computed_flow(plan: Plan, role: Role) -> frozenset[tuple[str, str]]:
    """(writer, reader) over all data dependences of a role between computations, parts taken as wholes.

    A collective hands on what it was given: its n-th result is made of its n-th input, where it has as many of both.
    """
    expansion = expand(plan, role)
    uses = pieces(plan, expansion)
    sources: dict[tuple[int, int], frozenset[str]] = {}
    pairs: set[tuple[str, str]] = set()
    for row, (reads, writes) in enumerate(uses):
        if not reads and not writes:
            continue
        name = expansion.key(row).rsplit("/", 1)[0]
        given = [frozenset().union(*(sources.get(piece, frozenset()) for piece in access)) for access in reads]
        if expansion.rows.kind[row] == OpKind.ISSUE:
            outside = frozenset({f"received {name}"})
            handed = given if len(given) == len(writes) else [frozenset().union(*given)] * len(writes)
            for access, origin in zip(writes, handed, strict=True):
                sources.update(dict.fromkeys(access, origin or outside))
            continue
        pairs |= {(source, name) for origin in given for source in origin if source != name}
        for access in writes:
            sources.update(dict.fromkeys(access, frozenset({name})))
    return frozenset(pairs)
