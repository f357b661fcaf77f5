"""Which roles take part in one collective, and that they agree on it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from underlap.columns import NONE, Int32
from underlap.cost.work import Transfer
from underlap.errors import PlanError, ScheduleError
from underlap.expansion import Expansion, expand
from underlap.hazards import check
from underlap.plan import OpKind, Plan, Role
from underlap.plan_network import plan_network
from underlap.replay import network, replay

_Key = tuple[int | str, ...]


def meetings(plan: Plan, expansions: dict[str, Expansion]) -> dict[str, Int32]:
    """Per role and row: a number that the issues of one collective on several roles share; -1 where a role meets only itself.

    Ranks that are folded into one role arrive together. Raises PlanError where roles do not issue the same.
    """
    role_of = {rank: role.name for role in plan.roles for rank in role.ranks}
    found: dict[_Key, list[tuple[str, int]]] = defaultdict(list)
    parties: dict[_Key, frozenset[str]] = {}
    for role in plan.roles:
        rows = expansions[role.name].rows
        for group, roles in _partners(plan, role, role_of).items():
            number = expansions[role.name].names.index(group) if group in expansions[role.name].names else NONE
            for row in np.flatnonzero((rows.kind == OpKind.ISSUE) & (rows.group == number)).tolist():
                key = (group, *sorted(roles), *_coordinates(expansions[role.name], row))
                found[key].append((role.name, row))
                parties[key] = roles
    result = {name: np.full(len(expansion.rows), NONE, dtype=np.int32) for name, expansion in expansions.items()}
    for number, (key, members) in enumerate(found.items()):
        _check_agreement(expansions, key, members, parties[key])
        for name, row in members:
            result[name][row] = number
    return result


def validate(plan: Plan) -> None:
    """Raise PlanError where a buffer dangles or races, collectives do not match, or their order on the lanes is a cycle."""
    expansions = {role.name: expand(plan, role) for role in plan.roles}
    for expansion in expansions.values():
        check(plan, expansion)
    meet = meetings(plan, expansions)
    _check_order(plan, expansions, meet)


def _partners(plan: Plan, role: Role, role_of: dict[int, str]) -> dict[str, frozenset[str]]:
    """Per group of the role: the roles of its members, where that is more than this one."""
    partners = {group: frozenset(role_of[rank] for rank in ranks) for group, ranks in role.members.items()}
    return {group: roles for group, roles in partners.items() if len(roles) > 1 and group in plan.groups}


def _coordinates(expansion: Expansion, row: int) -> _Key:
    rows = expansion.rows
    return (
        expansion.names[rows.phase[row]],
        int(rows.micro_batch[row]),
        int(rows.layer[row]),
        expansion.names[rows.role[row]],
        int(rows.part[row]),
        int(rows.parts[row]),
    )


def _check_agreement(
    expansions: dict[str, Expansion], key: _Key, members: list[tuple[str, int]], parties: frozenset[str]
) -> None:
    name, row = members[0]
    transfers = [expansions[member].works[expansions[member].rows.work[at]] for member, at in members]
    first = transfers[0]
    assert isinstance(first, Transfer)
    # A message between two of a group has channels of its own; what goes round a ring is issued by all.
    expansion = expansions[name]
    message = first.collective == "send" and expansion.names[expansion.rows.channel[row]] != key[0]
    expected = 2 if message else len(parties)
    if len(members) != expected:
        raise PlanError(
            f"{expansions[name].key(row)} on {key[0]} is issued by {', '.join(member for member, _ in members)} only: "
            f"expected {expected} of the roles {', '.join(sorted(parties))}"
        )
    for (member, at), other in zip(members[1:], transfers[1:], strict=True):
        if not isinstance(other, Transfer) or (other.collective, other.payload_bytes) != (first.collective, first.payload_bytes):
            raise PlanError(
                f"{expansions[member].key(at)} on {key[0]} does not match: "
                f"role {name} issues {_said(first)}, role {member} {_said(other)}"
            )


def _said(work: object) -> str:
    return f"{work.collective} of {work.payload_bytes:g} bytes" if isinstance(work, Transfer) else type(work).__name__


def _check_order(plan: Plan, expansions: dict[str, Expansion], meet: dict[str, Int32]) -> None:
    """Run the plan with work of no length: what never starts waits in a circle."""
    try:
        built = plan_network(plan, expansions, meet)
        replay(network(built.lane, np.zeros(len(built.lane), dtype=np.int64), rendezvous=built.rendezvous, edges=built.edges))
    except ScheduleError as error:
        raise PlanError(f"The plan waits in a circle: {error}") from error
