"""From amounts to words: the verdict per family, the findings worth acting on, and the sentence to hear first.

Words only; every amount comes from the accounting, the rendezvous and the causes. What is said of a gain is an upper bound.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from underlap.analyze.idle import IDLE_CAUSES
from underlap.analyze.why import CauseSum, Why
from underlap.report import (
    CauseRow,
    Evidence,
    FamilyRow,
    FindingRow,
    IdleCauseRow,
    LateRow,
    NetGainReport,
    RankRow,
    Verdict,
)
from underlap.timeline import Timeline

FLOOR_SHARE = 0.02
"""Findings below this share of the window stay in the JSON's causes and are no findings."""
FINDINGS = 5
_SLIVER = 0.01
"""A family with less than this share exposed is called hidden, one with less hidden exposed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a cause means, what would change it, and at what price."""

    means: str
    would_change: str
    price: str


ADVICE = {
    "window_entry": Advice(
        means="a rank entered the recorded window late; the reason lies before it",
        would_change="nothing in this window: start the profiler on all ranks at the same step, or record more steps",
        price="none",
    ),
    "late_peer": Advice(
        means="waiting for a rank that arrives late",
        would_change="make the late rank arrive earlier (see who is late and why); hiding waiting earns nothing",
        price="none to the communication",
    ),
    "bubble": Advice(
        means="waiting for another pipeline stage where the schedule puts it",
        would_change="more micro-batches, or an interleaved or zero-bubble schedule",
        price="memory for activations in flight; more and smaller sends",
    ),
    "queued_behind": Advice(
        means="queued behind another collective in the same lane",
        would_change="a communicator of its own, another order of issue, or fewer collectives",
        price="the two share the link; all ranks must issue in the same order",
    ),
    "late_launch": Advice(
        means="the host had not submitted the compute that could have run beside it",
        would_change="submit earlier: fewer or larger kernels, device graphs, compilation, less Python between them",
        price="graphs fix shapes and hold memory",
    ),
    "throttled": Advice(
        means="the host was blocked (synchronize, allocator, .item()) and had not submitted the compute",
        would_change="take the blocking call off the path, or raise the prefetch limit",
        price="prefetching holds memory",
    ),
    "serialized": Advice(
        means="independent compute was submitted, and its lane or a hardware queue held it",
        would_change="a stream of its own, more hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), no copies between the kernels",
        price="kernels that share the device slow each other",
    ),
    "serialized_or_dependent": Advice(
        means="the next compute stands behind it in the same lane; whether it needs the result is not known",
        would_change="a stream of its own for the communication, if the next kernel does not need the result",
        price="none where it is independent; nothing gained where it is not",
    ),
    "dependent": Advice(
        means="the next compute starts when it is over: its result is needed at once",
        would_change="independent work beside it (prefetch, two half-batches, decomposition), or sending less or closer",
        price="memory for what is in flight; smaller kernels run less efficiently",
    ),
    "stretched": Advice(
        means="the compute beside it slowed the transfer, and what that added sticks out",
        would_change="fewer channels or multiprocessors for one of the two, copy engines, or other compute beside it",
        price="with fewer channels the transfer alone takes longer",
    ),
    "latency_bound": Advice(
        means="its messages are below half-peak size: their latency takes longer than their bytes",
        would_change="fewer, larger messages (larger buckets, several tensors in one call)",
        price="a larger message starts later and is harder to hide; memory for the bucket",
    ),
    "fabric_bound": Advice(
        means="more transfer on this link than all compute that could run beside it: no schedule hides the rest",
        would_change="sending less or closer: another layout or placement, compression, in-network reduction",
        price="another layout moves bytes to another axis; compression changes numerics",
    ),
    "too_little_compute": Advice(
        means="the independent compute beside it ran out, or none was left",
        would_change="issue it earlier, move independent compute beside it, or send less or closer",
        price="memory for what is in flight",
    ),
    "unknown": Advice(
        means="the trace does not say",
        would_change="record launches (activities CPU and CUDA) and all ranks",
        price="a larger trace",
    ),
}


def cause_rows(sums: dict[str, CauseSum]) -> list[CauseRow]:
    """The causes as rows of the report, largest first."""
    total = sum(entry.exposed_ns for entry in sums.values())
    return [
        CauseRow(
            cause=cause,
            exposed_ns=entry.exposed_ns,
            share=entry.exposed_ns / total if total else 0.0,
            inherited=dict(entry.inherited),
        )
        for cause, entry in sums.items()
    ]


def coverage(sums: dict[str, CauseSum]) -> float | None:
    """Share of the exposed time with a cause other than unknown."""
    total = sum(entry.exposed_ns for entry in sums.values())
    return 1 - sums["unknown"].exposed_ns / total if total and "unknown" in sums else (1.0 if total else None)


def verdict(timeline: Timeline, row: FamilyRow, sums: dict[str, CauseSum], *, one_rank: bool) -> Verdict:
    """The verdict of one family."""
    first = next(iter(sums), None)
    evidence = _evidence(timeline, sums[first]) if first is not None else None
    advice = ADVICE.get(first or "")
    unknown = []
    if row.wait_ns is None and row.communication_ns:
        what = "give the traces of the other ranks of its group" if one_rank else "see the notes on matching"
        unknown.append(f"how much of it is waiting for a late peer: {what}")
    if row.payload_bytes is None:
        unknown.append("its bytes: record shapes (record_shapes=True), or export with payloads")
    if first in ("dependent", "serialized_or_dependent") and sums[first].largest.grade != "sync":
        on_device = first == "dependent" and not any(info.on_cpu for info in timeline.ranks)
        looks = " (a full hardware queue looks the same, as with CUDA_DEVICE_MAX_CONNECTIONS=1)" if on_device else ""
        unknown.append(
            f"whether the next compute really needs its result: shown by timing only{looks}; event or data edges would tell"
        )
    return Verdict(
        outcome=_outcome(row),
        cause=first,
        causes=cause_rows(sums),
        evidence=evidence,
        recoverable_ns=sums[first].exposed_ns if first is not None else None,
        would_change=advice.would_change if advice else None,
        price=advice.price if advice else None,
        unknown=unknown,
    )


def with_gain(row: FamilyRow, gain: NetGainReport | None) -> FamilyRow:
    """The family with the net gain of hiding it; where that is an established loss, so is its outcome."""
    if row.verdict is None or gain is None:
        return row
    lost = gain.word == "loss"
    verdict = msgspec.structs.replace(
        row.verdict,
        outcome="a loss" if lost else row.verdict.outcome,
        net_gain=gain,
        loss=_loss(gain) if lost else None,
    )
    return msgspec.structs.replace(row, verdict=verdict)


def _loss(gain: NetGainReport) -> str:
    """The figures of a loss, in device time."""
    compute, talk = (
        "an unknown time" if cost is None else f"{cost / 1e6:.2f} ms"
        for cost in (gain.compute_cost_ns, gain.communication_cost_ns)
    )
    low, high = ("?" if end is None else f"{-end / 1e6:.2f}" for end in (gain.net_high_ns, gain.net_low_ns))
    return (
        f"hiding {gain.hidden_ns / 1e6:.2f} ms of communication made compute longer by {compute} and communication by {talk}: "
        f"{low} to {high} ms of device time lost; one after the other, or with fewer channels, would be faster"
    )


def idle_rows(idle: Mapping[tuple[int, int], Mapping[str, int]]) -> list[IdleCauseRow]:
    """The causes of idle time of all devices together, largest first."""
    sums: Counter[str] = Counter()
    for of_device in idle.values():
        sums.update(of_device)
    total = sum(sums.values())
    order = sorted(sums, key=lambda cause: (-sums[cause], IDLE_CAUSES.index(cause)))
    return [IdleCauseRow(cause=cause, idle_ns=sums[cause], share=sums[cause] / total) for cause in order if sums[cause]]


def _outcome(row: FamilyRow) -> str:
    if not row.communication_ns:
        return "fused" if row.fused_ns else "nothing transferred"
    if row.exposed_ns <= _SLIVER * row.communication_ns:
        return "hidden"
    return "exposed" if row.hidden_ns + row.under_fused_ns <= _SLIVER * row.communication_ns else "partly hidden"


def _evidence(timeline: Timeline, entry: CauseSum) -> Evidence | None:
    piece, ops = entry.largest, timeline.ops
    op = piece.evidence
    if op < 0:
        rows = (ops.collective == piece.call).nonzero()[0]
        if piece.call < 0 or len(rows) == 0:
            return None
        op = min(rows.tolist(), key=lambda row: (int(ops.start_ns[row]), int(ops.source_row[row])))
    rank = int(ops.rank[op])
    return Evidence(
        rank=rank,
        source_file=next(info.source for info in timeline.ranks if info.rank == rank),
        source_row=int(ops.source_row[op]),
        name=timeline.names[ops.name[op]],
    )


def findings(families: Sequence[FamilyRow], ranks: Sequence[RankRow]) -> list[FindingRow]:
    """Families and causes with at least FLOOR_SHARE of the window, largest first, at most FINDINGS."""
    span = sum(row.span_ns for row in ranks)
    found = [
        _finding(family, cause, span, len(ranks))
        for family in families
        for cause in (family.verdict.causes if family.verdict else ())
        if span and cause.exposed_ns >= FLOOR_SHARE * span
    ]
    return sorted(found, key=lambda finding: -finding.exposed_ns)[:FINDINGS]


def _finding(family: FamilyRow, cause: CauseRow, span: int, devices: int) -> FindingRow:
    advice = ADVICE[cause.cause]
    who = " ".join(part for part in (family.axis, family.collective or "communication") if part)
    each = " per rank" if devices > 1 else ""
    share = cause.exposed_ns / span
    amount = f"{cause.exposed_ns / devices / 1e6:.2f} ms{each} ({share:.1%} of the window)"
    return FindingRow(
        text=f"{who}, {cause.cause}: {amount}: {advice.means}",
        axis=family.axis,
        collective=family.collective,
        cause=cause.cause,
        exposed_ns=cause.exposed_ns,
        share_of_window=share,
        would_change=advice.would_change,
        price=advice.price,
    )


def headline(  # noqa: PLR0911 - one return per sentence
    ranks: Sequence[RankRow], sums: dict[str, CauseSum], late: Sequence[LateRow], gain: NetGainReport | None = None
) -> str | None:
    """The one sentence that decides what to look at next; None where there is no communication to speak of."""
    span = sum(row.span_ns for row in ranks)
    communication = sum(row.communication_ns for row in ranks)
    exposed = sum(row.exposed_ns for row in ranks)
    idle = sum(row.idle_ns for row in ranks)
    fused = sum(row.fused_ns for row in ranks)
    if span and fused and not communication:
        return (
            f"All communication is inside fused kernels, which compute as well ({fused / span:.1%} of the window): "
            "nothing is left to hide, and no overlap is missing."
        )
    if not span or not communication:
        return None
    if gain is not None and gain.word == "loss":
        return f"Hiding costs more than it hides: {_loss(gain)}."
    if not exposed:
        return "All communication is hidden: there is nothing to gain from hiding more."
    of_window = f"{exposed / span:.1%} of the window"
    host = _sum(sums, "late_launch", "throttled")
    if idle > span / 2 and 2 * host >= exposed:
        return (
            f"The host is the limit: {idle / span:.0%} of the window is idle. {exposed / communication:.0%} of the communication "
            f"is exposed ({of_window}), for {host / exposed:.0%} of that the host had not submitted the compute: "
            "hiding more communication gains almost nothing."
        )
    if exposed < FLOOR_SHARE * span:
        return f"Exposed communication is {of_window}: there is little to gain from hiding more."
    waiting = _sum(sums, "window_entry", "late_peer")
    if 2 * waiting >= exposed:
        entry = _sum(sums, "window_entry")
        apart = f", {entry / exposed:.0%} at their entry into the recording" if entry >= FLOOR_SHARE * exposed else ""
        return (
            f"Mostly waiting, not transfer: {waiting / exposed:.0%} of the exposed time is waiting for late ranks{apart}"
            f"{_who(late)}."
        )
    if 2 * _sum(sums, "bubble") >= exposed:
        return f"Mostly pipeline bubble: {_sum(sums, 'bubble') / exposed:.0%} of the exposed time ({of_window})."
    first = next(iter(sums))
    share = sums[first].exposed_ns / exposed
    unknown = any(row.communication_ns and row.wait_ns is None for row in ranks)
    what = "the traces of the others would tell" if len({row.rank for row in ranks}) == 1 else "the notes say why"
    rest = f" How much of it is waiting for other ranks is not known; {what}." if unknown else ""
    inferred = first == "dependent" and sums[first].largest.grade == "timing"
    means = ADVICE[first].means + (" (by timing alone)" if inferred else "")
    return f"{share:.0%} of the exposed communication ({of_window} is exposed): {means}.{rest}"


def _sum(sums: dict[str, CauseSum], *names: str) -> int:
    return sum(sums[name].exposed_ns for name in names if name in sums)


def _who(late: Sequence[LateRow]) -> str:
    if not late:
        return ""
    first = late[0]
    why = f", mostly because: {first.first_cause.replace('_', ' ')}" if first.first_cause else ""
    kind = "a straggler" if first.straggler else "not called a straggler"
    return f"; rank {first.rank} comes last in {first.times_last} of {first.of}{why} ({kind}: {first.how})"


def late_rows(why: Why) -> list[LateRow]:
    """Who was waited for, over all families, most waiting caused first."""
    overall = next((entry for entry in why.late if entry.family is None), None)
    if overall is None:
        return []
    return [
        LateRow(
            rank=row.rank,
            times_last=row.times_last,
            of=overall.instances,
            caused_wait_ns=row.caused_ns,
            entry_wait_ns=row.entry_caused_ns,
            causes=dict(row.causes),
            first_cause=row.first_cause,
            straggler=overall.straggler == row.rank,
            how=overall.how,
        )
        for row in overall.ranks
    ]
