"""A role of a Plan -> the flat program of one rank: instructions on numbered cells. Nothing here needs torch or a process.

    cell          one life of a buffer's instance, from the operation that first writes it to its last use
    slot          memory; cells of equal size whose lives do not overlap share one
    operand       a cell, or some of its rows where a pass split the buffer
    instruction   a row of the Plan's expansion with its operands, its group, and of messages the peers

Sizes that routing decides (`expected` buffers) have no slot: their cells get a tensor as the program runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from underlap.cost.work import Transfer, Work
from underlap.errors import PlanError
from underlap.expansion import Expansion, expand
from underlap.layout import Layout
from underlap.plan import COMPUTE_LANE, Buffer, OpKind, Plan, Role, Scope, text

ADDED_UP = ("gradient.", "gradient_shard.", "grad.qkv", "grad.keys")
"""Buffers that several operations of a step add to: the first one to write overwrites what was there."""

EXCHANGES = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives in which a rank sends each other one something else than it gets."""

RESULT = "logits"
"""Where no operation reads it, it is read behind the step, so that nothing may be put over it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Memory for one life of a buffer's instance."""

    buffer: str
    micro_batch: int
    layer: int
    shape: tuple[int, ...]
    dtype: str
    slot: int
    """Index into `Program.slots`; -1 where routing decides the size."""
    persistent: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """What an instruction reads or writes: rows begin to begin + rows of a cell."""

    name: str
    """Of the buffer, without the part."""
    cell: int
    begin: int
    rows: int
    add: bool = False
    """Of a write: added to what an earlier operation of this step wrote."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One row of the Plan on one rank."""

    row: int
    key: str
    """phase/stage/micro_batch/layer/role/part, which planned and recorded operations are joined by."""
    kind: OpKind
    phase: str
    role: str
    micro_batch: int
    layer: int
    part: tuple[int, int]
    work: Work | None
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    group: str | None
    lane: str = COMPUTE_LANE
    """Where it is issued."""
    channel: str | None = None
    """Of an issue: the lane that it runs on."""
    issue: int = -1
    """Of a wait: the row of its issue."""
    send_to: int | None = None
    receive_from: int | None = None
    tag: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one rank does in one step."""

    rank: int
    world: int
    stage: int
    instructions: tuple[Instruction, ...]
    cells: tuple[Cell, ...]
    slots: tuple[int, ...]
    """Bytes of each."""
    members: dict[str, tuple[int, ...]]
    """Of each group: the ranks of the one that this rank belongs to."""
    tables: dict[str, tuple[tuple[int, ...], ...]]
    """Of each group: all of its kind, as every rank has to make them in the same order."""
    paired: frozenset[str]
    """Groups of two ranks that exchange something: over gloo each direction has a process group of its own."""
    pieces: int
    """Into how many equal pieces passes cut the tokens of a micro-batch."""


def compiled(plan: Plan, layout: Layout, rank: int) -> Program:
    """The program of a rank. Raises PlanError where the plan has no role for it, or a message has no other side."""
    role = next((role for role in plan.roles if rank in role.ranks), None)
    if role is None:
        raise PlanError(f"The plan has no role for rank {rank}: expected one of its {plan.world} ranks")
    expansions = {each.name: expand(plan, each) for each in plan.roles}
    tables = {
        name: tuple(tuple(int(member) for member in row) for row in layout.groups(*group.axis))
        for name, group in plan.groups.items()
    }
    members = {name: next(row for row in table if rank in row) for name, table in tables.items()}
    cells = _Cells(plan, expansions[role.name])
    messages = _Messages(plan, expansions, role, rank, members)
    instructions = tuple(_instruction(expansions[role.name], row, cells, messages) for row in range(cells.rows))
    check_in_flight(instructions)
    return Program(
        rank=rank,
        world=plan.world,
        stage=role.stage,
        instructions=instructions,
        cells=tuple(cells.made),
        slots=tuple(cells.slots),
        members=members,
        tables=tables,
        paired=frozenset(name for name in _exchanging(plan) if len(members[name]) == 2),
        pieces=_pieces(plan),
    )


def _exchanging(plan: Plan) -> Iterator[str]:
    """Groups in which some rank gathers, scatters or exchanges."""
    for block in plan.blocks.values():
        for operation in block.operations:
            if not isinstance(operation.work, Transfer):
                continue
            if operation.work.collective in EXCHANGES:
                yield str(operation.group)
            if operation.work.gathered > 1:
                yield "tp"  # whose ranks gather the parts of a message


def check_in_flight(instructions: Iterable[Instruction]) -> None:
    """Raise PlanError where a collective uses what another one, not yet waited for, writes or still reads.

    A Plan may say so on one channel, where one comes after the other; gloo carries out two of a group at a time.
    """
    flying: dict[int, Instruction] = {}
    for instruction in instructions:
        if instruction.kind == OpKind.WAIT:
            flying.pop(instruction.issue, None)
        if instruction.kind != OpKind.ISSUE:
            continue
        for other in flying.values():
            uses = _meet(other.writes, (*instruction.reads, *instruction.writes)) or _meet(other.reads, instruction.writes)
            if uses:
                raise PlanError(
                    f"{instruction.key} uses {uses} while {other.key} is in flight: expected its wait before, as gloo may carry "
                    "out both at once"
                )
        flying[instruction.row] = instruction


def _meet(one: Iterable[Operand], other: Iterable[Operand]) -> str | None:
    """The name of a buffer of which both have some rows."""
    listed = list(other)
    for a in one:
        for b in listed:
            if a.cell == b.cell and a.begin < b.begin + b.rows and b.begin < a.begin + a.rows:
                return a.name
    return None


def digest(plan: Plan) -> str:
    """A hash of the whole plan, shapes and element types included: ranks can work together only if theirs are equal."""
    return hashlib.sha256(text(plan).encode()).hexdigest()


def _instruction(expansion: Expansion, row: int, cells: _Cells, messages: _Messages) -> Instruction:
    rows, names = expansion.rows, expansion.names
    kind = OpKind(int(rows.kind[row]))
    work = expansion.works[rows.work[row]] if rows.work[row] >= 0 else None
    reads, writes = cells.operands[row]
    made = Instruction(
        row=row,
        key=expansion.key(row),
        kind=kind,
        phase=names[rows.phase[row]],
        role=names[rows.role[row]],
        micro_batch=int(rows.micro_batch[row]),
        layer=int(rows.layer[row]),
        part=(int(rows.part[row]), int(rows.parts[row])),
        work=work,
        reads=tuple(reads),
        writes=tuple(writes),
        group=names[rows.group[row]] if rows.group[row] >= 0 else None,
        lane=names[rows.lane[row]],
        channel=names[rows.channel[row]] if rows.channel[row] >= 0 and kind == OpKind.ISSUE else None,
        issue=int(rows.other[row]) if kind == OpKind.WAIT else -1,
    )
    if kind == OpKind.ISSUE and isinstance(work, Transfer) and work.collective == "send":
        return messages.addressed(made)
    return made


def _pieces(plan: Plan) -> int:
    """The smallest number of equal pieces in which all parts of token rows can be counted."""
    found = 1
    for buffer in plan.buffers.values():
        if buffer.part_of and buffer.scope & Scope.MICRO_BATCH and not buffer.expected:
            _, _, count = _place(plan, buffer)
            found = math.lcm(found, count)
    return found


def _place(plan: Plan, buffer: Buffer) -> tuple[Buffer, int, int]:
    """(the buffer that holds its memory, i, n): it is the i-th of n equal parts of it. Routed rows hold their own."""
    index, count = 0, 1
    while buffer.part_of is not None and not buffer.expected:
        name, i, n = buffer.part_of
        index, count = index + i * count, count * n
        buffer = plan.buffers[name]
    return buffer, index, count


# ---- memory


class _Cells:
    """Lives of instances, the operands that refer to them, and memory for them."""

    def __init__(self, plan: Plan, expansion: Expansion) -> None:
        self.rows = len(expansion.rows)
        self.made: list[Cell] = []
        self.slots: list[int] = []
        self.operands: list[tuple[list[Operand], list[Operand]]] = [([], []) for _ in range(self.rows)]
        self.places = {name: _place(plan, buffer) for name, buffer in plan.buffers.items()}
        self._walk(expansion)

    def _walk(self, expansion: Expansion) -> None:
        uses = expansion.accesses
        accesses: list[list[tuple[str, int, int, bool]]] = [[] for _ in range(self.rows)]
        parted: set[tuple[str, int, int]] = set()
        for row, instance, writes in zip(uses.row.tolist(), uses.instance.tolist(), uses.writes.tolist(), strict=True):
            name, micro_batch, layer = expansion.decode(instance)
            accesses[row].append((name, micro_batch, layer, bool(writes)))
            root = self.places[name][0]
            if root.name != name:
                parted.add((root.name, micro_batch, layer))
        current: dict[tuple[str, int, int], int] = {}
        span: list[list[int]] = []
        roots: list[tuple[Buffer, int, int]] = []
        written: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, listed in enumerate(accesses):
            read = {(self.places[name][0].name, micro, layer) for name, micro, layer, writes in listed if not writes}
            until = max(row, int(expansion.rows.other[row]))
            for name, micro_batch, layer, writes in listed:
                root, index, count = self.places[name]
                whole = (root.name, micro_batch, layer)
                again = writes and whole not in read and whole not in parted and not root.persistent
                if whole not in current or (again and span[current[whole]][2] != row):
                    current[whole] = len(span)
                    span.append([row, until, row])
                    roots.append((root, micro_batch, layer))
                cell = current[whole]
                span[cell][1] = max(span[cell][1], until)
                extent = root.shape[0] // count if root.shape else 1
                operand = Operand(name=name.partition("#")[0], cell=cell, begin=index * extent, rows=extent)
                if writes:
                    operand = self._adding(expansion, row, operand, written[cell], own=whole in read)
                self.operands[row][writes].append(operand)
        used = {operand.cell for reads, _ in self.operands for operand in reads}
        for cell, (root, _, _) in enumerate(roots):
            if root.name == RESULT and cell not in used:
                span[cell][1] = self.rows
        self._allocate(span, roots)

    def _adding(self, expansion: Expansion, row: int, operand: Operand, written: list[tuple[int, int]], *, own: bool) -> Operand:
        end = operand.begin + operand.rows
        earlier = any(begin < end and operand.begin < stop for begin, stop in written)
        written.append((operand.begin, end))
        work = expansion.works[expansion.rows.work[row]] if expansion.rows.work[row] >= 0 else None
        # The shards of a reduce-scatter are added up over micro-batches, though the plan need not read them.
        scattered = isinstance(work, Transfer) and work.collective == "reduce_scatter"
        add = operand.name.startswith(ADDED_UP) and earlier and (own or scattered)
        return dataclasses.replace(operand, add=add)

    def _allocate(self, span: list[list[int]], roots: list[tuple[Buffer, int, int]]) -> None:
        """Greedy, in order of birth: the slot of the right size that has been free for longest."""
        free: dict[int, list[int]] = defaultdict(list)
        dying: dict[int, list[tuple[int, int]]] = defaultdict(list)
        slot_of = [-1] * len(span)
        by_birth: dict[int, list[int]] = defaultdict(list)
        for cell, (born, _, _) in enumerate(span):
            by_birth[born].append(cell)
        for row in range(self.rows):
            for nbytes, slot in dying.pop(row - 1, ()):
                free[nbytes].append(slot)
            for cell in by_birth.get(row, ()):
                root = roots[cell][0]
                if root.expected:
                    continue
                size = root.nbytes
                if root.persistent or not free[size]:
                    slot_of[cell] = len(self.slots)
                    self.slots.append(size)
                else:
                    slot_of[cell] = free[size].pop(0)
                if not root.persistent:
                    dying[span[cell][1]].append((size, slot_of[cell]))
        for cell, (root, micro_batch, layer) in enumerate(roots):
            self.made.append(
                Cell(
                    buffer=root.name,
                    micro_batch=micro_batch,
                    layer=layer,
                    shape=root.shape,
                    dtype=root.dtype,
                    slot=slot_of[cell],
                    persistent=root.persistent,
                )
            )


# ---- messages


class _Messages:
    """Who a rank sends to and receives from: between stages the other side's role, in a ring the neighbors."""

    def __init__(
        self,
        plan: Plan,
        expansions: dict[str, Expansion],
        role: Role,
        rank: int,
        members: dict[str, tuple[int, ...]],
    ) -> None:
        self.role, self.rank, self.members = role, rank, members
        self.sides: dict[str, list[tuple[Role, bool]]] = defaultdict(list)
        for other in plan.roles:
            expansion = expansions[other.name]
            rows = expansion.rows
            reading = set(expansion.accesses.row[expansion.accesses.writes == 0].tolist())
            for row in range(len(rows)):
                if rows.kind[row] != OpKind.ISSUE:
                    continue
                work = expansion.works[rows.work[row]]
                if isinstance(work, Transfer) and work.collective == "send":
                    self.sides[_wire(expansion.key(row))].append((other, row in reading))
        self.tags = {key: tag for tag, key in enumerate(sorted(self.sides))}

    def addressed(self, instruction: Instruction) -> Instruction:
        """The instruction with its peers and its tag."""
        assert instruction.group is not None
        group = self.members[instruction.group]
        key = _wire(instruction.key)
        if instruction.reads and instruction.writes:
            at = group.index(self.rank)
            return dataclasses.replace(
                instruction,
                send_to=group[(at + 1) % len(group)],
                receive_from=group[at - 1],
                tag=self.tags[key],
            )
        sends = bool(instruction.reads)
        others = [role for role, reads in self.sides[key] if reads != sends]
        peers = [rank for role in others for rank in role.ranks if rank in group]
        if len(peers) != 1:
            raise PlanError(f"{instruction.key} of rank {self.rank} has {len(peers)} other sides: expected one")
        field = "send_to" if sends else "receive_from"
        return dataclasses.replace(instruction, **{field: peers[0], "tag": self.tags[key]})  # type: ignore[arg-type]  # both are int


def _wire(key: str) -> str:
    """A key without its stage, which the two sides of a message do not share."""
    phase, _, rest = key.split("/", 2)
    return f"{phase}/{rest}"
