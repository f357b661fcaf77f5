"""Cutting a role's program into stretches that begin and end with nothing in flight: what lies within depends on its begin alone.

A stretch is one step whose collectives are all issued and waited for within it, or several where a prefetch, a bucket or
the tail of a split layer is in flight over the borders between them. Steps that meet other roles are never part of a
foldable stretch: when they end depends on others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from underlap.plan import COMPUTE_LANE, Block, Operation, OpKind, Place, Plan, Role, Step

Flying = frozenset[tuple[str, int]]
"""Transfers in flight: (channel, number of the work) of each."""

_Key = tuple[str, str, int, int, int, int]
_TOGETHER = 3
"""Transfers counted as running side by side, as in `pricing`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps first .. last - 1 of a program."""

    first: int
    last: int
    foldable: bool
    rows: int
    """Operations that the host submits in it."""
    beside: Flying
    """Messages between stages that may be in flight during it."""
    overlapped: frozenset[Flying]
    """What is in flight beside its compute, one set for each combination."""


@dataclasses.dataclass(slots=True)
class Outline:
    """What a block leaves open, and what it needs of its surroundings."""

    open: list[tuple[Operation, int]]
    """Issues without their wait and waits without their issue, with their position."""
    foldable: bool
    meets: bool
    submitted: int
    moved: list[Operation]
    """Operations of another layer than their step's: left out where that layer is not on the rank."""
    issued: list[tuple[str, int]]
    overlapped: frozenset[Flying]
    """What of its own is in flight beside its own compute."""


def outline(block: Block, meeting: frozenset[str], number: dict[object, int]) -> Outline:
    """What a program has to know of a block. `meeting`: groups of which other roles are members."""
    waiting: dict[tuple[object, ...], int] = {}
    left: list[tuple[Operation, int]] = []
    flying: dict[int, tuple[str, int]] = {}
    beside: set[Flying] = set()
    for at, operation in enumerate(block.operations):
        key = (operation.phase, operation.role, operation.part, operation.parts, operation.layer, operation.slot)
        if operation.kind == OpKind.ISSUE:
            waiting[key] = at
            flying[at] = (_channel(operation), number[operation.work])
        elif operation.kind == OpKind.WAIT:
            if key in waiting:
                flying.pop(waiting.pop(key))
            else:
                left.append((operation, at))
        elif flying:
            beside.add(frozenset(flying.values()))
    left += [(block.operations[at], at) for at in waiting.values()]
    return Outline(
        open=sorted(left, key=lambda pair: pair[1]),
        foldable=all(operation.lane == COMPUTE_LANE for operation in block.operations),
        meets=any(operation.group in meeting for operation in block.operations if operation.group is not None),
        submitted=sum(operation.kind != OpKind.WAIT for operation in block.operations),
        moved=[operation for operation in block.operations if operation.layer != 0],
        issued=[(_channel(o), number[o.work]) for o in block.operations if o.kind == OpKind.ISSUE],
        overlapped=frozenset(beside),
    )


def _channel(operation: Operation) -> str:
    return operation.channel or operation.group or operation.lane


class Cutter:
    """The blocks of a plan as one role uses them."""

    def __init__(self, plan: Plan, role: Role, number: dict[object, int]) -> None:
        role_of = {rank: other.name for other in plan.roles for rank in other.ranks}
        partners = {group: {role_of[rank] for rank in ranks} for group, ranks in role.members.items()}
        self.meeting = frozenset(group for group, names in partners.items() if len(names) > 1 and group in plan.groups)
        self._layers = {layer for chunk in role.chunks for layer in chunk}
        used = dict.fromkeys(step.block for step in role.program)
        self.outlines = {name: outline(plan.blocks[name], self.meeting, number) for name in used}
        self._number = number
        self.role = role

    def missing(self, step: Step) -> tuple[Operation, ...]:
        """The operations of a step's block that are left out, because their layer is not on this rank."""
        moved = self.outlines[step.block].moved
        return tuple(operation for operation in moved if not self._here(step, operation)) if moved else ()

    def _here(self, step: Step, operation: Operation) -> bool:
        place = _place(step, operation)
        if place.layer < 0:
            return True
        layer = place.layer + operation.layer
        return layer in self._layers or layer in (step.place.layer, step.second.layer)

    def stretches(self) -> Iterator[Stretch]:
        """The whole program, stretch after stretch."""
        flying: dict[_Key, tuple[str, int]] = {}
        messages: dict[_Key, tuple[str, int]] = {}
        begin, foldable, rows = 0, True, 0
        beside: set[tuple[str, int]] = set()
        overlapped: set[Flying] = set()
        for at, step in enumerate(self.role.program):
            found = self.outlines[step.block]
            rows += found.submitted
            foldable = foldable and found.foldable and not found.meets
            if found.moved:
                missing = self.missing(step)
                rows -= sum(operation.kind != OpKind.WAIT for operation in missing)
            else:
                missing = ()
            overlapped |= found.overlapped
            beside.update(messages.values())
            if flying or found.open:
                around = set(flying.values())
                for operation, _ in found.open:
                    if operation in missing:
                        continue
                    foldable = self._open(step, operation, flying, messages) and foldable
                # What is in flight at either border, and what the step itself has in flight, may run together.
                together = around | set(flying.values()) | (set(found.issued) if around or flying else set())
                if together and not found.meets:
                    overlapped.add(frozenset(together))
            if not flying:
                yield Stretch(
                    first=begin,
                    last=at + 1,
                    foldable=foldable,
                    rows=rows,
                    beside=frozenset(beside),
                    overlapped=frozenset(overlapped),
                )
                begin, foldable, rows = at + 1, True, 0
                beside, overlapped = set(), set()
        assert not flying, "expand() refuses a collective that is never waited for"

    def _open(
        self, step: Step, operation: Operation, flying: dict[_Key, tuple[str, int]], messages: dict[_Key, tuple[str, int]]
    ) -> bool:
        """Put an issue into what is in flight, or take a wait's out. False where it is a message's."""
        place = _place(step, operation)
        layer = place.layer + operation.layer if place.layer >= 0 else place.layer
        key = (operation.phase, operation.role, operation.part, operation.parts, place.micro_batch, layer)
        if operation.kind == OpKind.ISSUE:
            into = messages if operation.group in self.meeting else flying
            into[key] = (_channel(operation), self._number[operation.work])
            return into is flying
        if flying.pop(key, None) is not None:
            return True
        messages.pop(key, None)
        return False


def _place(step: Step, operation: Operation) -> Place:
    return step.second if operation.slot else step.place


def in_flight(stretches: Iterable[Stretch]) -> set[Flying]:
    """All that may be in flight beside compute: what stretches put beside their own, and messages beside both."""
    found: set[Flying] = set()
    for stretch in stretches:
        found |= (
            stretch.overlapped
            if not stretch.beside
            else {stretch.beside, *(each | stretch.beside for each in stretch.overlapped)}
        )
    return found


def held_together(overlapped: Iterable[Flying], units: Sequence[int], total: int | None) -> list[int]:
    """Every number of multiprocessors that transfers hold together beside some compute: one at a time on each channel."""
    sums: set[int] = set()
    for entry in set(overlapped):
        by_channel: dict[str, set[int]] = {}
        for channel, work in entry:
            by_channel.setdefault(channel, set()).add(units[work])
        choices = [sorted(values) for values in by_channel.values()]
        for count in range(1, min(_TOGETHER, len(choices)) + 1):
            for channels in itertools.combinations(choices, count):
                sums |= {sum(chosen) for chosen in itertools.product(*channels)}
    return sorted(value for value in sums if value > 0 and (total is None or value < total))
