"""Puts together why communication is exposed: waiting (rendezvous), causes of each slice, and their sums per rank and family."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.analyze import causes, dependences, fabric, idle, lateness, message_sizes, rendezvous, stragglers, transfer_causes
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.bubbles import Bubble, bubbles, pipeline_calls
from underlap.analyze.calls import CallTimes
from underlap.analyze.causes import Slice, Waiting
from underlap.analyze.contention import Contention, contention
from underlap.analyze.families import FamilyKey
from underlap.analyze.groups import Calls
from underlap.analyze.host_time import HostTime
from underlap.analyze.rendezvous import Rendezvous, WaitSplit
from underlap.analyze.slower_calls import stretch_of_calls
from underlap.analyze.steps import Selection, Steps
from underlap.columns import NONE, Int32, Int64
from underlap.timeline import OpClass, Operations, Timeline

Device = tuple[int, int]
"""(rank, device)"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CauseSum:
    """Exposed nanoseconds of one cause, and its largest slice."""

    exposed_ns: int
    inherited: Mapping[str, int]
    largest: Slice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What is known about waiting and about the causes of exposed time."""

    met: Rendezvous
    splits: dict[Device, WaitSplit | None]
    family_splits: dict[int, list[WaitSplit | None]]
    """Per family one entry per device that has some of it."""
    causes: dict[str, CauseSum]
    family_causes: dict[int, dict[str, CauseSum]]
    """Each slice split equally among the families in it: adds up to the family's exposed share."""
    late: tuple[stragglers.Verdict, ...]
    lateness: lateness.Late
    """One row per instance in which a rank kept others waiting."""
    bubbles: tuple[Bubble, ...]
    compared: bool
    """Whether any call was matched over ranks."""
    idle: dict[Device, dict[str, int]]
    """Causes of idle time; those of a device add up to its idle time."""
    priced: Contention | None
    """The price of hiding, where it was looked for."""


def explain(  # noqa: PLR0913 - everything that the account has found
    timeline: Timeline,
    calls: Calls,
    times: CallTimes,
    steps: Steps,
    selection: Selection,
    rows: dict[Device, Int64],
    sets: dict[Device, DeviceSets],
    families: tuple[list[FamilyKey], Int32],
    *,
    deep: bool,
) -> Why:
    """Everything in `Why`, for the operations of each device (`rows`) and its interval sets. `deep` looks for contention,
    without which no transfer is called stretched."""
    met = rendezvous.meet(timeline, calls, times)
    pipeline = pipeline_calls(timeline, calls, times, steps)
    family_of_op = np.append(families[1], NONE)[timeline.ops.collective]
    compared = bool((met.instances.members > 1).any())
    transfer = met.transfer if compared else None
    priced = contention(timeline, steps, selection, sets, calls, times, families[1], transfer) if deep and sets else None
    stretch = stretch_of_calls(priced.communication if priced else (), calls, times, families[1], transfer)
    latency = message_sizes.latency_bound(calls, times, transfer)
    host, edges = HostTime(timeline), _event_edges(timeline)
    forward, backward = fabric.successors(edges), fabric.successors([(target, source) for source, target in edges])
    awaited = {target: frozenset(sources) for target, sources in backward.items()}
    gaps = idle.Idle(timeline, calls, times, steps, met, pipeline, host)
    idle_causes: dict[Device, dict[str, int]] = {}
    total, per_family = _Sums(), {number: _Sums() for number in range(len(families[0]))}
    splits: dict[Device, WaitSplit | None] = {}
    family_splits: dict[int, list[WaitSplit | None]] = {}
    for key, stretches in selection.stretches.items():
        own = timeline.ops.take(rows[key])
        halves = rendezvous.halves(own, met)
        splits[key] = rendezvous.split(sets[key], halves, stretches)
        known = _waiting(own, met, pipeline, halves.transferring) if splits[key] is not None else Waiting()
        waiting = dataclasses.replace(known, peer=intervals.merge(known.peer, _spinning(own, halves)))
        family = family_of_op[rows[key]]
        unions = {}
        for number in np.unique(family[family >= 0]).tolist():
            part = own.take(family == number)
            split = rendezvous.split(sets[key], rendezvous.halves(part, met), stretches)
            family_splits.setdefault(number, []).append(split)
            talk = part.op_class != OpClass.FUSED
            unions[number] = intervals.union(part.start_ns[talk], part.end_ns[talk])
        found = causes.device_causes(timeline, rows[key], sets[key], stretches, waiting, host=host, awaited=awaited)
        evidence = transfer_causes.Evidence(
            stretch_ns=stretch,
            latency_ns=latency,
            group=calls.table.group,
            excess_ns=fabric.excess(timeline, calls, met, rows[key], sets[key], stretches, forward, backward),
        )
        idle_causes[key] = gaps.causes(rows[key], sets[key], stretches)
        for piece in transfer_causes.refined(found, evidence):
            total.add(piece, piece.end_ns - piece.start_ns)
            for number, amount in _shared(piece, unions):
                per_family[number].add(piece, amount)
    late = lateness.find_late(timeline, calls, times, sets, met)
    return Why(
        met=met,
        splits=splits,
        family_splits=family_splits,
        causes=total.result(),
        family_causes={number: sums.result() for number, sums in per_family.items()},
        late=stragglers.verdicts(late, met, times, steps, families, pipeline),
        lateness=late,
        bubbles=bubbles(timeline, calls, times, steps, met),
        compared=compared,
        idle=idle_causes,
        priced=priced,
    )


def _event_edges(timeline: Timeline) -> list[tuple[int, int]]:
    """(operation, operation that waits for an event recorded after it)."""
    if len(timeline.event_waits) == 0:
        return []
    edges = dependences.event_edges(timeline)
    return list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))


class _Sums:
    """Adds up slices per cause."""

    def __init__(self) -> None:
        self._amount: Counter[str] = Counter()
        self._inherited: dict[str, Counter[str]] = {}
        self._largest: dict[str, tuple[int, Slice]] = {}

    def add(self, piece: Slice, amount: int) -> None:
        self._amount[piece.cause] += amount
        if piece.inherited is not None:
            self._inherited.setdefault(piece.cause, Counter())[piece.inherited] += amount
        if amount > self._largest.get(piece.cause, (NONE, piece))[0]:
            self._largest[piece.cause] = (amount, piece)

    def result(self) -> dict[str, CauseSum]:
        """Largest first; ties in the order of `causes.CAUSES`."""
        order = sorted(self._amount, key=lambda cause: (-self._amount[cause], causes.CAUSES.index(cause)))
        return {
            cause: CauseSum(
                exposed_ns=self._amount[cause],
                inherited=dict(self._inherited.get(cause, {})),
                largest=self._largest[cause][1],
            )
            for cause in order
        }


def _spinning(own: Operations, halves: rendezvous.Halves) -> Int64:
    """Spin kernels (barriers, notify) wait for peers whether or not they could be matched, while nothing else communicates."""
    spin = own.op_class == OpClass.WAIT
    alone = intervals.subtract(intervals.union(own.start_ns[spin], own.end_ns[spin]), halves.transferring)
    return intervals.subtract(alone, halves.unknown)


def _waiting(own: Operations, met: Rendezvous, pipeline: NDArray[np.bool_], transferring: Int64) -> Waiting:
    """The waiting of one device by kind. Waiting that the clocks are too uncertain to show is not called waiting."""
    talk = np.isin(own.op_class, (OpClass.COMMUNICATION, OpClass.WAIT)) & (own.collective >= 0)
    own = own.take(talk)
    call = own.collective
    instance = met.instance[call]
    shown = (met.wait[call] > 0) & (met.wait[call] > met.uncertainty[call])
    entry = np.append(met.instances.entry, 0)[instance] > 0

    def part(chosen: NDArray[np.bool_]) -> Int64:
        until = np.clip(met.wait_end[call[chosen]], own.start_ns[chosen], own.end_ns[chosen])
        return intervals.subtract(intervals.union(own.start_ns[chosen], until), transferring)

    return Waiting(
        entry=part(shown & entry),
        peer=part(shown & ~entry & ~pipeline[call]),
        bubble=part(shown & ~entry & pipeline[call]),
    )


def _shared(piece: Slice, unions: dict[int, Int64]) -> list[tuple[int, int]]:
    """The slice split equally among the families that run in it, as accounting.exposed_shares does; (family, ns)."""
    inside = {number: intervals.clip(own, piece.start_ns, piece.end_ns) for number, own in unions.items()}
    inside = {number: own for number, own in inside.items() if len(own)}
    if len(inside) == 1:
        return [(next(iter(inside)), piece.end_ns - piece.start_ns)]
    borders = np.unique(np.concatenate([own.ravel() for own in inside.values()])).tolist() if inside else []
    amounts: Counter[int] = Counter()
    for start, end in itertools.pairwise(borders):
        running = [number for number, own in inside.items() if len(intervals.clip(own, start, end))]
        if running:
            each, rest = divmod(end - start, len(running))
            for number in running:
                amounts[number] += each
            first = min(running, key=lambda number: (_began(unions[number], start), number))
            amounts[first] += rest
    return list(amounts.items())


def _began(union: Int64, time: int) -> int:
    at = int(np.searchsorted(union[:, 0], time, side="right")) - 1
    return int(union[at, 0])
