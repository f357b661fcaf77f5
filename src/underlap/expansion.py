"""A role's program as columns: templates are repeated by NumPy, so that a million operations need no object each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from underlap.columns import NONE, Int8, Int32, Int64, Interner, Table
from underlap.cost.work import Work
from underlap.errors import PlanError
from underlap.plan import Operation, OpKind, Plan, Role

_NOWHERE = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanRows(Table):
    """The operations of one role, in issue order."""

    kind: Int8
    """An `OpKind`."""
    phase: Int32
    """Index into `Expansion.names`, as are role, lane, group and channel."""
    micro_batch: Int32
    """-1 where the operation belongs to none, as for layer."""
    layer: Int32
    role: Int32
    part: Int32
    parts: Int32
    lane: Int32
    group: Int32
    channel: Int32
    """The lane that a collective runs on; -1 but for issues."""
    work: Int32
    """Index into `Expansion.works`; -1 for waits."""
    other: Int32
    """Of an issue the row of its wait, of a wait the row of its issue; -1 for the rest."""
    step: Int32
    """Index into the role's program."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accesses(Table):
    """What the rows read and write. Sorted by row; of one row, reads before writes."""

    row: Int32
    instance: Int64
    """Which buffer, micro-batch and layer: see `Expansion.decode`."""
    writes: Int8
    """1 for a write."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """One role of a plan, row by row."""

    role: Role
    rows: PlanRows
    accesses: Accesses
    names: tuple[str, ...]
    works: tuple[Work, ...]
    buffers: tuple[str, ...]
    micro_batches: int
    layers: int

    def key(self, row: int) -> str:
        """The structural key phase/stage/micro_batch/layer/role/part of a row."""
        rows = self.rows
        return "/".join(
            (
                self.names[rows.phase[row]],
                str(self.role.stage),
                _coordinate(rows.micro_batch[row]),
                _coordinate(rows.layer[row]),
                self.names[rows.role[row]],
                f"{rows.part[row]}of{rows.parts[row]}",
            )
        )

    def decode(self, instance: int) -> tuple[str, int, int]:
        """(buffer, micro-batch, layer) of an instance; -1 where its scope has no such coordinate."""
        rest, layer = divmod(instance, self.layers + 3)
        buffer, micro_batch = divmod(rest, self.micro_batches + 1)
        return self.buffers[buffer], micro_batch - 1, layer - 1


def expand(plan: Plan, role: Role) -> Expansion:
    """Every operation of the role in issue order, with what it reads and writes.

    Raises PlanError where a collective is issued twice or waited for without an issue.
    """
    names, works = Interner(), Interner()
    buffers = tuple(plan.buffers)
    program = role.program
    blocks = Interner()
    block_of = np.array([blocks(step.block) for step in program], dtype=np.int64)
    places = np.array(
        [(s.place.micro_batch, s.place.layer, s.second.micro_batch, s.second.layer) for s in program], dtype=np.int64
    ).reshape(-1, 4)
    micro_batches, layers = _extent(plan, places)
    code = _Codes(plan, buffers, micro_batches, layers)
    lengths = np.array([len(plan.blocks[name].operations) for name in blocks.values], dtype=np.int64)
    first_row = np.concatenate(([0], np.cumsum(lengths[block_of])))[:-1] if len(program) else np.empty(0, dtype=np.int64)
    tiles: list[PlanRows] = []
    accesses: list[Accesses] = []
    position: list[Int64] = []
    for index, name in enumerate(blocks.values):
        steps = np.flatnonzero(block_of == index)
        operations = plan.blocks[name].operations
        tile, uses = _tile(operations, steps, places[steps], first_row[steps], names, works, code)
        tiles.append(tile)
        accesses.append(uses)
        position.append((first_row[steps][:, None] + np.arange(len(operations))[None, :]).ravel())
    rows = PlanRows.concatenate(tiles)
    at = np.concatenate(position) if position else np.empty(0, dtype=np.int64)
    order = np.argsort(at, kind="stable")
    uses = Accesses.concatenate(accesses)
    rows, uses = _kept(rows.take(order), uses, _on_rank(role, rows.take(order), places))
    expansion = Expansion(
        role=role,
        rows=rows,
        accesses=uses.take(np.lexsort((uses.writes, uses.row))),
        names=tuple(names.values),
        works=tuple(works.values),
        buffers=buffers,
        micro_batches=micro_batches,
        layers=layers,
    )
    return dataclasses.replace(expansion, rows=rows.replace(other=_pairs(expansion)))


def _coordinate(value: int) -> str:
    return "-" if value < 0 else str(value)


def _extent(plan: Plan, places: Int64) -> tuple[int, int]:
    chunks = [chunk.stop for role in plan.roles for chunk in role.chunks]
    micro_batches = int(places[:, [0, 2]].max(initial=0)) + 1
    return micro_batches, max([int(places[:, [1, 3]].max(initial=0)) + 1, *chunks])


@dataclasses.dataclass(frozen=True, slots=True)
class _Codes:
    """Numbers for instances of buffers. Those of layer `layers` are what the last layer writes."""

    plan: Plan
    buffers: tuple[str, ...]
    micro_batches: int
    layers: int

    def of(self, name: str, micro_batch: Int64, layer: Int64) -> Int64:
        buffer = self.plan.buffers.get(name)
        if buffer is None:
            raise PlanError(f"An operation uses the buffer {name!r}, which the plan does not have")
        by_micro_batch = micro_batch if buffer.scope & 2 else np.full_like(micro_batch, _NOWHERE)
        by_layer = layer if buffer.scope & 1 else np.full_like(layer, _NOWHERE)
        number = self.buffers.index(name) * (self.micro_batches + 1) + by_micro_batch + 1
        return np.asarray(number * (self.layers + 3) + by_layer + 1, dtype=np.int64)


def _tile(
    operations: Sequence[Operation],
    steps: Int64,
    places: Int64,
    first_row: Int64,
    names: Interner,
    works: Interner,
    code: _Codes,
) -> tuple[PlanRows, Accesses]:
    """The rows of all steps that use one block, step by step, and what they access (rows numbered over the whole role)."""
    count = len(steps)
    slot = np.array([operation.slot for operation in operations], dtype=np.int64)
    offset = np.array([operation.layer for operation in operations], dtype=np.int64)
    micro_batch, layer = places[:, 2 * slot], places[:, 2 * slot + 1]
    layer = np.where(layer >= 0, layer + offset, layer)

    def repeated(values: list[int]) -> list[int] | Int64:
        return np.tile(np.asarray(values, dtype=np.int64), count)

    rows = PlanRows.from_columns(
        kind=repeated([operation.kind for operation in operations]),
        phase=repeated([names(operation.phase) for operation in operations]),
        micro_batch=micro_batch.ravel(),
        layer=layer.ravel(),
        role=repeated([names(operation.role) for operation in operations]),
        part=repeated([operation.part for operation in operations]),
        parts=repeated([operation.parts for operation in operations]),
        lane=repeated([names(operation.lane) for operation in operations]),
        group=repeated([names.optional(operation.group) for operation in operations]),
        channel=repeated([names.optional(operation.channel or operation.group) for operation in operations]),
        work=repeated([works.optional(operation.work) for operation in operations]),
        other=np.full(count * len(operations), NONE),
        step=np.repeat(steps, len(operations)),
    )
    parts = [
        Accesses.from_columns(
            row=first_row + index,
            instance=code.of(access.buffer, micro_batch[:, index], layer[:, index] + access.layer),
            writes=np.full(count, written),
        )
        for index, operation in enumerate(operations)
        for written, accesses in ((0, operation.reads), (1, operation.writes))
        for access in accesses
    ]
    return rows, Accesses.concatenate(parts)


def _on_rank(role: Role, rows: PlanRows, places: Int64) -> np.ndarray:
    """Which rows to keep: an operation moved to another layer goes where that layer is not in its step's chunk."""
    chunk_of = np.full(max([chunk.stop for chunk in role.chunks], default=0) + 2, NONE, dtype=np.int64)
    for number, chunk in enumerate(role.chunks):
        chunk_of[chunk.start : chunk.stop] = number
    inside = np.clip(rows.layer, 0, len(chunk_of) - 1)
    known = (rows.layer >= 0) & (rows.layer < len(chunk_of))
    here = np.where(known, chunk_of[inside], NONE)
    own = np.stack([places[rows.step, 1], places[rows.step, 3]])
    moved = (rows.layer != own[0]) & (rows.layer != own[1])
    return np.asarray(~moved | (here >= 0), dtype=np.bool_)


def _kept(rows: PlanRows, uses: Accesses, keep: np.ndarray) -> tuple[PlanRows, Accesses]:
    if keep.all():
        return rows, uses
    place = np.cumsum(keep) - 1
    uses = uses.take(keep[uses.row])
    return rows.take(keep), uses.replace(row=place[uses.row].astype(np.int32))


def _pairs(expansion: Expansion) -> Int32:
    """For each issue its wait and the other way round: they share a key."""
    rows = expansion.rows
    other = np.full(len(rows), NONE, dtype=np.int32)
    halves = np.flatnonzero((rows.kind == OpKind.ISSUE) | (rows.kind == OpKind.WAIT))
    columns: tuple[Int32, ...] = (rows.part, rows.role, rows.layer, rows.micro_batch, rows.phase)
    keys: list[Int32 | Int8] = [rows.kind[halves], *(column[halves] for column in columns)]
    order = halves[np.lexsort(keys)]
    same = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    same &= rows.parts[order[1:]] == rows.parts[order[:-1]]
    _check_pairs(expansion, order, same)
    other[order[0::2]], other[order[1::2]] = order[1::2], order[0::2]
    return other


def _check_pairs(expansion: Expansion, order: Int64, same: np.ndarray) -> None:
    """Assert by PlanError that equal keys come in twos, an issue and a later wait."""
    starts = np.concatenate(([True], ~same)) if len(order) else np.empty(0, dtype=np.bool_)
    sizes = np.diff(np.append(np.flatnonzero(starts), len(order)))
    first = order[starts]
    for size, row in zip(sizes[sizes != 2].tolist(), first[sizes != 2].tolist(), strict=True):
        what = "is issued but never waited for" if expansion.rows.kind[row] == OpKind.ISSUE else "is waited for but never issued"
        raise PlanError(f"{expansion.key(row)} of role {expansion.role.name} " + (what if size == 1 else f"occurs {size} times"))
    issue, wait = order[0::2], order[1::2]
    kinds = (expansion.rows.kind[issue] == OpKind.ISSUE) & (expansion.rows.kind[wait] == OpKind.WAIT) & (issue < wait)
    if not kinds.all():
        row = int(issue[int(np.flatnonzero(~kinds)[0])])
        raise PlanError(f"{expansion.key(row)} of role {expansion.role.name} is waited for before it is issued, or issued twice")
