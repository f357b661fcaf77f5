"""What passes share: which operations conflict, moving collectives apart within a block, splitting work and buffers.

A block is a short sequence of templates. Two operations of it conflict where one writes what the other uses; then their
order stays. An issue may move up and its wait down as far as nothing conflicts: what comes to lie between them runs beside
the collective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction

import msgspec

from underlap.cost.work import Attention, Gemm, Stream, Transfer, Work
from underlap.plan import Access, Block, Buffer, Operation, OpKind, Plan


class Refused(Exception):  # noqa: N818 - it is an answer, caught where passes are applied
    """Why a pass cannot be applied, and what would let it."""


# ---- conflicts


@dataclasses.dataclass(frozen=True, slots=True)
class _Extent:
    """A part of a buffer instance: which, and from where to where of its rows."""

    whole: tuple[str, int, int]
    begin: Fraction
    end: Fraction

    def meets(self, other: _Extent) -> bool:
        return self.whole == other.whole and self.begin < other.end and other.begin < self.end


def extents(buffers: dict[str, Buffer], operation: Operation, accesses: Iterable[Access]) -> list[_Extent]:
    """What accesses of an operation cover, relative to the places of its step."""
    found = []
    for access in accesses:
        name, begin, length = access.buffer, Fraction(0), Fraction(1)
        while (part := buffers[name].part_of) is not None:
            whole, index, count = part
            begin, length = (begin + index) / count, length / count
            name = whole
        # Which layer and micro-batch: only where the buffer has one of each.
        layer = operation.layer + access.layer if buffers[name].scope & 1 else 0
        slot = operation.slot if buffers[name].scope else 0
        found.append(_Extent((name, layer, slot), begin, begin + length))
    return found


def conflict(buffers: dict[str, Buffer], one: Operation, other: Operation) -> bool:
    """Whether one of the two writes what the other reads or writes."""

    def meet(left: Sequence[Access], right: Sequence[Access]) -> bool:
        mine, theirs = extents(buffers, one, left), extents(buffers, other, right)
        return any(a.meets(b) for a in mine for b in theirs)

    return meet(one.writes, (*other.reads, *other.writes)) or meet(one.reads, other.writes)


def key(operation: Operation) -> tuple[str, str, int, int, int, int]:
    """What an issue and its wait share within a block."""
    return operation.phase, operation.role, operation.part, operation.parts, operation.layer, operation.slot


def issues_of(operations: Iterable[Operation]) -> dict[tuple[str, str, int, int, int, int], Operation]:
    """The issue of each collective of a block, by key."""
    return {key(operation): operation for operation in operations if operation.kind == OpKind.ISSUE}


def channel(operation: Operation) -> str | None:
    """The lane that an issue runs on."""
    return operation.channel or operation.group


# ---- moving


def spread(plan: Plan, operations: Sequence[Operation], wanted: Callable[[Operation], bool]) -> list[Operation]:
    """Issues of the wanted collectives as early, waits as late, as the block's dependences allow.

    Issues of one channel keep their order: other ranks issue the same.
    """
    made = list(operations)
    issues = issues_of(made)
    for at in range(len(made)):
        if made[at].kind == OpKind.ISSUE and wanted(made[at]):
            _rise(plan, made, at, issues)
    for at in range(len(made) - 1, -1, -1):
        if made[at].kind == OpKind.WAIT and key(made[at]) in issues and wanted(issues[key(made[at])]):
            _sink(plan, made, at, issues)
    return made


def _rise(plan: Plan, made: list[Operation], at: int, issues: dict[tuple[str, str, int, int, int, int], Operation]) -> None:
    issue = made[at]
    while at > 0:
        above = made[at - 1]
        standing = issues.get(key(above)) if above.kind == OpKind.WAIT else above
        if standing is None or (
            standing.kind == OpKind.ISSUE and above.kind == OpKind.ISSUE and channel(above) == channel(issue)
        ):
            return
        if conflict(plan.buffers, standing, issue):
            return
        made[at - 1], made[at] = issue, above
        at -= 1


def _sink(plan: Plan, made: list[Operation], at: int, issues: dict[tuple[str, str, int, int, int, int], Operation]) -> None:
    wait = made[at]
    issue = issues[key(wait)]
    while at + 1 < len(made):
        below = made[at + 1]
        if below.kind == OpKind.WAIT:
            return  # waits keep their order; those below have sunk before
        if conflict(plan.buffers, issue, below):
            return
        made[at], made[at + 1] = below, wait
        at += 1


# ---- splitting


def part_name(name: str, index: int, count: int) -> str:
    """The name of a part of a buffer."""
    return f"{name}#{index}of{count}"


def part_of(plan_buffers: dict[str, Buffer], name: str, index: int, count: int) -> Buffer:
    """The buffer that is the index-th of count equal parts of another's rows. Raises Refused where these do not come out even."""
    whole = plan_buffers[name]
    if not whole.shape or whole.shape[0] % count:
        rows = whole.shape[0] if whole.shape else 0
        raise Refused(f"{name} has {rows} rows, which {count} does not divide: choose another number of parts")
    return dataclasses.replace(
        whole,
        name=part_name(name, index, count),
        shape=(whole.shape[0] // count, *whole.shape[1:]),
        part_of=(name, index, count),
        pool=None,
    )


def split_work(operation: Operation, index: int, count: int, *, by_sequence: bool) -> Work:
    """The work of the index-th of count parts of an operation's rows. `by_sequence` False: of each sequence, by position.

    By position, causal attention of part i sees the keys of parts 0 to i; the parts add up to the whole up to their diagonals.
    """
    work = operation.work
    if isinstance(work, Gemm):
        return _split_product(work, index, count, "k" if operation.phase == "weight_grad" else "m")
    if isinstance(work, Stream):
        return msgspec.structs.replace(
            work, read_bytes=work.read_bytes / count, write_bytes=work.write_bytes / count, flops=work.flops / count
        )
    if isinstance(work, Transfer):
        return msgspec.structs.replace(work, payload_bytes=work.payload_bytes / count)
    if isinstance(work, Attention):
        if by_sequence:
            if work.batch % count:
                raise Refused(f"{work.batch} sequences in a micro-batch, which {count} does not divide: choose mbs as a multiple")
            return msgspec.structs.replace(work, batch=work.batch // count)
        if work.query % count:
            raise Refused(f"{work.query} positions, which {count} does not divide: choose another number of parts")
        query = work.query // count
        context = work.context - (count - 1 - index) * query if work.causal else work.context
        return msgspec.structs.replace(work, query=query, context=context)
    raise Refused(f"a {type(work).__name__} cannot be split")


def _split_product(work: Gemm, index: int, count: int, along: str) -> Gemm:
    """Along the rows of tokens: m, or of a weight gradient k; what does not come out even goes to the first parts."""
    whole = getattr(work, along)
    if not isinstance(work.groups, int):
        raise Refused("a product with given rows for each expert cannot be split evenly")
    return msgspec.structs.replace(work, **{along: whole // count + (index < whole % count)})


def rows_of(plan: Plan, operation: Operation) -> bool:
    """Whether an operation works on token rows, as against weights and states only."""
    return any(plan.buffers[access.buffer].scope & 2 for access in (*operation.reads, *operation.writes))


def layer_blocks(plan: Plan, directions: Collection[str]) -> dict[str, Block]:
    """The blocks of layers, by name, of the given directions: dense.forward, experts.backward, ..."""
    return {
        name: block
        for name, block in plan.blocks.items()
        if name.split(".")[0] in ("dense", "experts") and any(f".{direction}" in name for direction in directions)
    }
