"""Simulated times as a Timeline: one rank for each role, so that the analyzer reads it as it reads a trace."""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.columns import NONE, Int64, Interner
from underlap.cost.work import Transfer
from underlap.expansion import Expansion
from underlap.hazards import READ_AFTER_WRITE, dependences
from underlap.plan import COMPUTE_LANE, OpKind, Role
from underlap.simulate.run import Simulated
from underlap.timeline import (
    Collectives,
    Dependences,
    DependenceSource,
    EventWaits,
    Group,
    HostKind,
    HostRows,
    Lane,
    Note,
    OpClass,
    Operations,
    RankInfo,
    Thread,
    Timeline,
    concatenate,
    in_time_order,
)

LIBRARY = "simulated"


def timeline(simulated: Simulated) -> Timeline:
    """What happens on the first rank of each role. Times count from the begin of the step."""
    parts = [_of_role(simulated, role) for role in simulated.plan.roles]
    whole = concatenate(parts)
    ops, collectives = in_time_order(whole.ops, whole.collectives)
    notes = [
        Note(code="simulated", text=f"simulated, not measured: {simulated.plan.title}; one rank stands for each role"),
        *(Note(code="assumption", text=text) for text in simulated.prices.assumptions),
    ]
    return dataclasses.replace(whole, provenance="simulated", ops=ops, collectives=collectives, notes=tuple(notes))


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a role that take time: which they are, and when."""

    kept: Int64
    start: Int64
    end: Int64
    launch: Int64
    issues: np.ndarray


def _of_role(simulated: Simulated, role: Role) -> Timeline:
    expansion, rank = simulated.expansions[role.name], role.ranks[0]
    found = _timed(simulated, role, expansion)
    rows = expansion.rows.take(found.kept)
    names, lanes = Interner(), Interner()
    labels = [simulated.built.lanes[lane][1] for lane in simulated.built.lane[simulated.rows(role.name)][found.kept].tolist()]
    # The compute lane comes first, as the main stream does.
    lanes(Lane(rank=rank, device=0, label=COMPUTE_LANE))
    groups, group_of = _groups(simulated, role)
    call = np.where(found.issues, np.cumsum(found.issues) - 1, NONE)
    operation_names = [_name(expansion, int(row)) for row in found.kept]
    ops = Operations.from_columns(
        start_ns=found.start,
        end_ns=found.end,
        launch_ns=found.launch,
        rank=np.full(len(rows), rank),
        device=np.zeros(len(rows)),
        lane=[lanes(Lane(rank=rank, device=0, label=label)) for label in labels],
        thread=np.zeros(len(rows)),
        op_class=np.where(found.issues, OpClass.COMMUNICATION, np.where(rows.kind == OpKind.COPY, OpClass.COPY, OpClass.COMPUTE)),
        name=[names(name) for name in operation_names],
        shape=np.full(len(rows), NONE),
        call_site=[names(name) for name in operation_names],
        collective=call,
        graph=np.full(len(rows), NONE),
        nbytes=np.full(len(rows), NONE),
        represents=np.full(len(rows), role.multiplicity),
        source_row=found.kept,
    )
    collectives = _collectives(simulated, role, found, names, group_of)
    host = _host(found, rank, names, simulated.step_ns)
    return Timeline(
        provenance="simulated",
        origin_ns=0,
        ranks=(_info(simulated, role, tuple(range(len(groups)))),),
        lanes=tuple(lanes.values),
        threads=(Thread(rank=rank, process="plan", label="host"),),
        groups=groups,
        names=tuple(names.values),
        ops=ops,
        host=host,
        collectives=collectives,
        recognized=np.ones(len(names.values), dtype=np.bool_),
        event_waits=_event_waits(simulated, role, lanes),
        dependences=_dependences(simulated, role, found),
    )


def _timed(simulated: Simulated, role: Role, expansion: Expansion) -> _Rows:
    """Rows that take time. A transfer has ended when all members of its meeting have."""
    here = simulated.rows(role.name)
    times, built = simulated.times, simulated.built
    start, end = times.start_ns[here], times.end_ns[here].copy()
    joint_of = np.full(len(built.lane), NONE, dtype=np.int64)
    source, target, _ = built.edges
    rows_in_all = sum(len(each.rows) for each in simulated.expansions.values())
    joining = (target >= rows_in_all) & (source < rows_in_all)
    joint_of[source[joining]] = target[joining]
    joint = joint_of[here]
    end = np.where(joint >= 0, times.end_ns[joint], end)
    kept = np.flatnonzero((end > start) & (expansion.rows.kind != OpKind.WAIT))
    return _Rows(
        kept=kept,
        start=start[kept],
        end=end[kept],
        launch=simulated.release_ns[here][kept] - _launch_ns(simulated),
        issues=expansion.rows.kind[kept] == OpKind.ISSUE,
    )


def _launch_ns(simulated: Simulated) -> int:
    return simulated.machine.topology.processor.launch_ns if simulated.machine.launches else 0


def _name(expansion: Expansion, row: int) -> str:
    """phase/role, as a kernel has a name: the same for all layers and micro-batches."""
    rows = expansion.rows
    return f"{expansion.names[rows.phase[row]]}/{expansion.names[rows.role[row]]}"


def _groups(simulated: Simulated, role: Role) -> tuple[tuple[Group, ...], dict[str, int]]:
    """The groups of the role's first rank. Of stages, each is represented by its first rank."""
    first_of = {rank: other.ranks[0] for other in simulated.plan.roles for rank in other.ranks}
    made: list[Group] = []
    number: dict[str, int] = {}
    for name, ranks in role.members.items():
        if name not in simulated.plan.groups:
            continue
        number[name] = len(made)
        described = " x ".join(simulated.plan.groups[name].axis)
        standing = tuple(sorted({first_of[rank] for rank in ranks}))
        several = len(standing) > 1
        made.append(
            Group(
                name=name,
                description=described,
                size=len(ranks),
                ranks=standing if several and len(standing) == len(ranks) else ranks,
                folded=True,
            )
        )
    return tuple(made), number


def _collectives(simulated: Simulated, role: Role, found: _Rows, names: Interner, group_of: dict[str, int]) -> Collectives:
    expansion = simulated.expansions[role.name]
    issued = found.kept[found.issues]
    rows = expansion.rows.take(issued)
    works = [expansion.works[number] for number in rows.work.tolist()]
    transfers = [work for work in works if isinstance(work, Transfer)]
    groups = [expansion.names[number] for number in rows.group.tolist()]
    peers, ways = _peers(simulated, role, expansion, issued)
    kinds = [way or transfer.collective for way, transfer in zip(ways, transfers, strict=True)]
    seen: dict[tuple[str, str], int] = {}
    sequence = []
    for group, kind in zip(groups, kinds, strict=True):
        sequence.append(seen.get((group, kind), 0))
        seen[group, kind] = sequence[-1] + 1
    return Collectives.from_columns(
        rank=np.full(len(rows), role.ranks[0]),
        group=[group_of[group] for group in groups],
        sequence=sequence if not any(ways) else [NONE] * len(rows),
        collective=[names(kind) for kind in kinds],
        library=[names(LIBRARY)] * len(rows),
        dtype=np.full(len(rows), NONE),
        payload_bytes=[round(transfer.payload_bytes) for transfer in transfers],
        peer=peers,
        call_site=[names(_name(expansion, int(row))) for row in issued],
        issue_ns=found.launch[found.issues],
        asynchronous=rows.other != issued + 1,
    )


def _peers(simulated: Simulated, role: Role, expansion: Expansion, issued: Int64) -> tuple[list[int], list[str]]:
    """Of each message between stages the other stage's rank, and send or recv; -1 and nothing for collectives."""
    built, here = simulated.built, simulated.rows(role.name)
    together = built.rendezvous
    peers, ways = [], []
    owner = np.concatenate(
        [np.full(len(simulated.expansions[other.name].rows), number) for number, other in enumerate(simulated.plan.roles)]
    )
    reads = np.zeros(len(expansion.rows), dtype=np.bool_)
    reads[expansion.accesses.row[expansion.accesses.writes == 0]] = True
    met = together[: len(owner)]
    order = np.argsort(met, kind="stable")
    begin = np.searchsorted(met[order], met[here][issued])
    end = np.searchsorted(met[order], met[here][issued], side="right")
    mine = simulated.plan.roles.index(role)
    for row, low, high in zip(issued.tolist(), begin.tolist(), end.tolist(), strict=True):
        transfer = expansion.works[expansion.rows.work[row]]
        between = isinstance(transfer, Transfer) and transfer.collective == "send" and met[here][row] >= 0
        others = [int(owner[at]) for at in order[low:high] if owner[at] != mine] if between else []
        peers.append(simulated.plan.roles[others[0]].ranks[0] if others else NONE)
        ways.append(("send" if reads[row] else "recv") if others else "")
    return peers, ways


def _info(simulated: Simulated, role: Role, groups: tuple[int, ...]) -> RankInfo:
    return RankInfo(
        rank=role.ranks[0],
        rank_source="plan",
        world_size=simulated.plan.world,
        source=role.name,
        on_cpu=False,
        clock=0,
        resolution_ns=1,
        device_model=simulated.machine.topology.processor.name,
        multiprocessors=simulated.machine.topology.processor.sms,
        groups=groups,
    )


def _host(found: _Rows, rank: int, names: Interner, step_ns: int) -> HostRows:
    """One launch per operation, and the step around all of it."""
    size = len(found.kept)
    launch = found.launch
    return HostRows.from_columns(
        start_ns=np.concatenate([[0], launch]),
        end_ns=np.concatenate([[step_ns], launch]),
        rank=np.full(size + 1, rank),
        thread=np.zeros(size + 1),
        kind=np.concatenate([[HostKind.ANNOTATION], np.full(size, HostKind.LAUNCH)]),
        name=[names("plan step"), *([names("launch")] * size)],
        source_row=np.concatenate([[NONE], found.kept]),
    )


def _dependences(simulated: Simulated, role: Role, found: _Rows) -> Dependences:
    """What the buffers of the plan say: the surest grade there is."""
    edges = dependences(simulated.plan, simulated.expansions[role.name])
    timed = np.isin(edges.source, found.kept) & np.isin(edges.target, found.kept)
    kept = edges.take(timed & (edges.hazard == READ_AFTER_WRITE))
    return Dependences.from_columns(
        rank=np.full(len(kept), role.ranks[0]),
        before_row=kept.source,
        after_row=kept.target,
        source=np.full(len(kept), DependenceSource.DATA),
    )


def _event_waits(simulated: Simulated, role: Role, lanes: Interner) -> EventWaits:
    """What is waited for, as a trace tells it: the waiting lane, the other lane, and the host times of both."""
    expansion, rank = simulated.expansions[role.name], role.ranks[0]
    rows = expansion.rows
    waits = np.flatnonzero(rows.kind == OpKind.WAIT)
    issues = rows.other[waits]
    release = simulated.release_ns[simulated.rows(role.name)]

    def lane(number: int) -> int:
        return int(lanes(Lane(rank=rank, device=0, label=expansion.names[number])))

    return EventWaits.from_columns(
        lane=[lane(number) for number in rows.lane[waits].tolist()],
        wait_ns=release[waits],
        on_lane=[lane(number) for number in rows.channel[issues].tolist()],
        record_ns=release[issues],
        source_row=waits,
    )
