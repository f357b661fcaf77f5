"""The bytes of a plan, per axis and collective, counted from its operations: what no overlap may change."""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap.cost.work import Transfer
from underlap.expansion import Expansion, expand
from underlap.plan import OpKind, Plan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one kind of collective of one group moves in one step, over all ranks of the plan."""

    group: str
    collective: str
    calls: int
    """Of one rank of each stage: issues."""
    payload_bytes: float
    """Sum over ranks of what they hand in (all-gather: of what they get)."""
    sent_bytes: float
    """Sum over ranks of what leaves them: the least that any algorithm without in-network reduction sends."""


def sent_bytes(transfer: Transfer) -> float:
    """What one rank sends, averaged over the group. Thakur et al. 2005 (ring, pairwise); a message counts at its sender."""
    others = (transfer.ranks - 1) / transfer.ranks
    factors = {"all_reduce": 2 * others, "all_gather": others, "reduce_scatter": others, "all_to_all": others}
    # The parts of a message that its receivers gather: each goes to all the others.
    return transfer.payload_bytes * factors.get(transfer.collective, 1.0) * transfer.gathered


def ledger(plan: Plan) -> tuple[Entry, ...]:
    """One entry per group and collective, in the order of the plan's groups."""
    return ledger_of(plan, {role.name: expand(plan, role) for role in plan.roles})


def ledger_of(plan: Plan, expansions: dict[str, Expansion]) -> tuple[Entry, ...]:
    """The same, from what has been expanded already."""
    found: dict[tuple[str, str], list[float]] = {}
    stages: set[int] = set()
    for role in plan.roles:
        # A stage whose ranks are not alike has several roles, which issue the same.
        once, stages = role.stage not in stages, stages | {role.stage}
        expansion = expansions[role.name]
        rows = expansion.rows
        issued = np.flatnonzero(rows.kind == OpKind.ISSUE)
        pairs, counts = np.unique(
            np.stack([rows.group[issued], rows.work[issued], _receives(expansion, issued)]), axis=1, return_counts=True
        )
        for (group, work, receives), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            transfer = expansion.works[work]
            assert isinstance(transfer, Transfer)
            if receives and transfer.collective == "send":
                continue
            entry = found.setdefault((expansion.names[group], transfer.collective), [0, 0.0, 0.0])
            entry[0] += count * once
            entry[1] += count * role.multiplicity * transfer.payload_bytes
            entry[2] += count * role.multiplicity * sent_bytes(transfer)
    order = {name: index for index, name in enumerate(plan.groups)}
    return tuple(
        Entry(group=group, collective=collective, calls=int(calls), payload_bytes=payload, sent_bytes=sent)
        for (group, collective), (calls, payload, sent) in sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    )


def _receives(expansion: Expansion, issued: np.ndarray) -> np.ndarray:
    """Whether an issue writes without reading: the receiving side of a message."""
    reads = np.zeros(len(expansion.rows), dtype=np.bool_)
    reads[expansion.accesses.row[expansion.accesses.writes == 0]] = True
    return np.asarray(~reads[issued], dtype=np.int64)
