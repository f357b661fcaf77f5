"""How long each operation of a rank took in each repetition, and how much of its communication compute covered.

No torch: it reads what `recording` wrote down. Neither waits nor the calls that start a collective are operations here; a
transfer lasts as in the trace, from when a thread of the library took it to when it was done, waiting for its peers included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from underlap import intervals
from underlap.plan import OpKind
from underlap.run.program import Program
from underlap.run.recording import flights
from underlap.run.times import DeviceTimes, Record

COMPUTE, TRANSFER = "compute", "transfer"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition on one rank, as unions, in the words of a Report."""

    compute_ns: int
    communication_ns: int
    transfer_ns: int | None
    """Of it, what follows the arrival of the last rank of each transfer: no waiting. None where ranks have no common clock."""
    hidden_ns: int
    exposed_ns: int
    library_cpu_ns: int
    """CPU time of all threads but the one that computes."""
    core_ns: int | None
    """As `Record.core_ns`."""
    stolen_ns: int | None
    """As `Record.stolen_ns`."""
    others_ns: int | None
    """As `Record.others_ns`."""


class Lasted(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on one rank, by its structural key."""

    key: str
    what: str
    """compute or transfer."""
    ns: list[int]
    """Of each repetition."""


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's records of all repetitions say."""

    accounts: list[Account]
    operations: list[Lasted]
    """Empty where they were not asked for."""


def typical(step_ns: Sequence[int], accounts: Sequence[Sequence[Account]]) -> int:
    """The repetition nearest to the medians of step, compute, communication and what of it is exposed: by the sum of how far each
    is off. `accounts`: by rank, of each repetition.

    By its step alone one may be typical in which compute took half as long again, and nobody had to wait for it.
    """
    parts = [
        np.array(step_ns, dtype=np.float64),
        *(
            np.mean([[getattr(each, name) for each in rank] for rank in accounts], axis=0)
            for name in ("compute_ns", "communication_ns", "exposed_ns")
        ),
    ]
    away = sum(np.abs(part - np.median(part)) for part in parts)
    return int(np.argmin(away))


def begins(program: Program, records: Sequence[Record]) -> list[dict[str, int]]:
    """Of each record: when this rank came to each transfer, by structural key."""
    return [{key: begin for key, begin, _ in _sent(program, record)} for record in records]


def arrivals(program: Program, by_rank: Sequence[Sequence[dict[str, int]]]) -> list[dict[str, int]]:
    """Of each record: when the last rank of its group came to each transfer. `by_rank`: what `begins` gave on each rank."""
    members = {one.key: program.members[str(one.group)] for one in program.instructions if one.kind == OpKind.ISSUE and one.group}
    return [
        {
            key: max(by_rank[rank][at].get(key, begin) for rank in (program.rank, *members.get(key, ())))
            for key, begin in own.items()
        }
        for at, own in enumerate(by_rank[program.rank])
    ]


def times(
    program: Program, records: Sequence[Record], arrived: Sequence[dict[str, int]] | None = None, *, each: bool
) -> RankTimes:
    """Of records in which the whole step was run. `arrived`: what `arrivals` gave. `each`: also of every operation."""
    lasted: dict[tuple[str, str], list[int]] = defaultdict(list)
    accounts = []
    for number, record in enumerate(records):
        computed, sent, alone = [], [], []
        ran = record.device or record
        for at, instruction in enumerate(program.instructions):
            if instruction.kind in (OpKind.COMPUTE, OpKind.COPY):
                computed.append((ran.begin_ns[at], ran.end_ns[at]))
                lasted[COMPUTE, instruction.key].append(ran.end_ns[at] - ran.begin_ns[at])
        for key, begin, end in _sent(program, record):
            sent.append((begin, end))
            if arrived is not None:
                alone.append((min(end, arrived[number][key]), end))
            lasted[TRANSFER, key].append(end - begin)
        transfer_ns = None if arrived is None else intervals.length(_union(alone))
        accounts.append(_account(_union(computed), _union(sent), transfer_ns, record))
    listed = [Lasted(key=key, what=what, ns=values) for (what, key), values in lasted.items()] if each else []
    return RankTimes(accounts=accounts, operations=listed)


def _sent(program: Program, record: Record) -> list[tuple[str, int, int]]:
    """(key, begin, end) of each transfer: on a device as its lane had it, else as a thread of the library did."""
    device: DeviceTimes | None = record.device
    if device is None:
        return [(flight.instruction.key, flight.begin_ns, flight.end_ns) for flight in flights(program, record)]
    return [
        (instruction.key, device.begin_ns[at], device.end_ns[at])
        for at, instruction in enumerate(program.instructions)
        if instruction.kind == OpKind.ISSUE
    ]


def _account(compute: intervals.Int64, communication: intervals.Int64, transfer_ns: int | None, record: Record) -> Account:
    hidden = intervals.length(intervals.intersect(compute, communication))
    sent = intervals.length(communication)
    return Account(
        compute_ns=intervals.length(compute),
        communication_ns=sent,
        transfer_ns=transfer_ns,
        hidden_ns=hidden,
        exposed_ns=sent - hidden,
        library_cpu_ns=record.library_cpu_ns,
        core_ns=record.core_ns,
        stolen_ns=record.stolen_ns,
        others_ns=record.others_ns,
    )


def _union(spans: Sequence[tuple[int, int]]) -> intervals.Int64:
    rows = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return intervals.union(rows[:, 0], rows[:, 1])
