"""`Plan`: what should happen, without times. Made by planner and schedule; read by simulate, run and render.

    role        ranks that do the same, folded into one: its program is what each of them executes
    block       a short template: the operations of one layer's forward, of one layer's backward, of the optimizer
    step        one use of a block, for a micro-batch and a layer; a program is a list of steps
    operation   compute, a copy, or one of the two halves of a collective: its issue and its wait
    buffer      what operations read and write; dependences are derived from buffers, never stated

A collective is issued by one operation and waited for by another. It may begin once everything issued before it on its
issuing lane has ended; what is issued behind its wait begins after its end. Between the two it is in flight.

An operation is identified by its structural key `phase/stage/micro_batch/layer/role/part`, which passes keep: a half of
an operation keeps the key of the whole and adds its part. `underlap.expansion` turns templates into columns,
`underlap.hazards` derives dependences, races and memory from the buffers, `underlap.ledger` counts the bytes.
"""

from __future__ import annotations

import dataclasses
import math
from enum import IntEnum

from underlap.cost.work import Work

COMPUTE_LANE = "compute"


class OpKind(IntEnum):
    """What an operation of a plan is."""

    COMPUTE = 0
    COPY = 1
    ISSUE = 2
    """Starts a collective. Its reads and writes are those of the collective."""
    WAIT = 3
    """Everything issued behind it, on its lane, begins after the collective's end. Reads and writes nothing."""


class Scope(IntEnum):
    """Which coordinates tell the instances of a buffer apart."""

    STEP = 0
    """One per role: the token embedding, the loss."""
    LAYER = 1
    """One per layer: weights, gradients, optimizer states."""
    MICRO_BATCH = 2
    """One per micro-batch: the input tokens."""
    ACTIVATION = 3
    """One per micro-batch and layer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A named piece of memory, on one rank of the roles that use it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """bf16, fp16, fp32, fp8, int64, ..."""
    scope: Scope
    persistent: bool = False
    """There before the first operation and after the last: weights, states, a key-value cache."""
    place: str = "device"
    """device or host."""
    part_of: tuple[str, int, int] | None = None
    """(buffer, i, n): the i-th of n equal parts of its rows. It occupies no memory of its own."""
    pool: str | None = None
    """Instances in a pool share its slots: an instance is made only once a slot is free (`Plan.pools`)."""
    expected: bool = False
    """True where the size is an expectation (tokens per expert without a capacity limit), not a fact."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """Which instance of a buffer an operation uses: that of the operation's micro-batch and of its layer, moved by an offset."""

    buffer: str
    layer: int = 0
    """hidden of layer l + 1 is what layer l writes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A template of an operation; steps of a program give it its micro-batch and layer."""

    role: str
    """What it is within its layer: attention.qkv, mlp.down, grad_reduce. An issue and its wait have the same."""
    phase: str
    """forward, recompute, backward (gradients of inputs), weight_grad, optimizer, prefill, decode."""
    kind: OpKind = OpKind.COMPUTE
    lane: str = COMPUTE_LANE
    """Where it is issued. A collective runs on its channel, whatever lane issues it."""
    work: Work | None = None
    """None for waits."""
    group: str | None = None
    """Of a collective: the name of its group."""
    channel: str | None = None
    """Of an issue: the lane that it runs on; None: the one named after its group. Sends and receives have their own."""
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    layer: int = 0
    """Added to the layer of its step: a prefetch is issued one layer early. Left out where that layer is not on this rank."""
    slot: int = 0
    """Which of its step's two places it belongs to: a step that pairs a forward with a backward has two."""
    part: int = 0
    parts: int = 1
    """It is the part-th of so many parts of the operation that was planned first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Operations in issue order, to be used for many micro-batches and layers."""

    name: str
    operations: tuple[Operation, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A micro-batch and a layer; -1 where that coordinate means nothing."""

    micro_batch: int = -1
    layer: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One use of a block."""

    block: str
    place: Place
    second: Place = Place()
    """Of the operations in slot 1, in blocks that pair two."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate, as one kind: every role that uses it belongs to one group of this kind."""

    name: str
    """Also the lane that its collectives run on: tp, dp, fsdp, pp, cp, ep, ..."""
    axis: tuple[str, ...]
    """Mesh dimensions, in order."""
    size: int
    ranks_per_domain: int
    """How many of its members share a scale-up domain."""
    domains: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Ranks that do the same."""

    name: str
    stage: int
    ranks: tuple[int, ...]
    program: tuple[Step, ...]
    chunks: tuple[range, ...]
    """Ranges of layers on these ranks: one, or one per virtual stage."""
    members: dict[str, tuple[int, ...]]
    """For each group it uses: the ranks of the one that ranks[0] belongs to."""

    @property
    def multiplicity(self) -> int:
        """How many ranks it stands for."""
        return len(self.ranks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What should happen in one training step, prefill or decode step."""

    title: str
    roles: tuple[Role, ...]
    blocks: dict[str, Block]
    buffers: dict[str, Buffer]
    groups: dict[str, Group]
    pools: dict[str, int] = dataclasses.field(default_factory=dict)
    """How many instances a pool holds at a time."""
    world: int
    """Number of ranks over all roles."""
    passes: tuple[str, ...] = ()
    """What was done to it, in order."""

    def role(self, name: str) -> Role:
        """The role of that name."""
        return next(role for role in self.roles if role.name == name)

    def replace_blocks(self, changed: dict[str, Block], buffers: dict[str, Buffer] | None = None) -> Plan:
        """This plan with some blocks exchanged or added, and buffers added."""
        return dataclasses.replace(self, blocks=self.blocks | changed, buffers=self.buffers | (buffers or {}))


def text(plan: Plan) -> str:
    """The plan as lines that a person can read and compare: groups, buffers, blocks, and each role's program."""
    lines = [f"plan {plan.title}", f"ranks {plan.world}"]
    lines += [f"pass {name}" for name in plan.passes]
    lines += [
        f"group {group.name}: {group.size} ranks over {' x '.join(group.axis)}, {group.ranks_per_domain} per domain"
        for group in plan.groups.values()
    ]
    lines += [_buffer_line(buffer, plan.pools) for buffer in plan.buffers.values()]
    for block in plan.blocks.values():
        lines += [f"block {block.name}", *(f"  {_operation_line(operation)}" for operation in block.operations)]
    for role in plan.roles:
        lines += [f"role {role.name}: stage {role.stage}, {role.multiplicity} ranks", *_program_lines(role.program)]
    return "\n".join(lines) + "\n"


def _buffer_line(buffer: Buffer, pools: dict[str, int]) -> str:
    shape = "x".join(str(size) for size in buffer.shape)
    line = f"buffer {buffer.name}: {shape} {buffer.dtype}, {buffer.nbytes} bytes per {buffer.scope.name.lower()}"
    if buffer.part_of:
        whole, index, count = buffer.part_of
        line += f", part {index} of {count} of {whole}"
    if buffer.pool:
        line += f", pool {buffer.pool} of {pools[buffer.pool]}"
    return line + (", persistent" if buffer.persistent else "")


def _operation_line(operation: Operation) -> str:
    where = f" layer{operation.layer:+d}" if operation.layer else ""
    part = f" part {operation.part} of {operation.parts}" if operation.parts > 1 else ""
    lane = operation.channel or operation.group or operation.lane
    line = f"{operation.kind.name.lower()} {operation.phase}/{operation.role}{part}{where} on {lane}"
    for word, accesses in (("reads", operation.reads), ("writes", operation.writes)):
        if accesses:
            line += f" {word} " + " ".join(a.buffer + (f"{a.layer:+d}" if a.layer else "") for a in accesses)
    return line


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """Steps of one block whose layers go up or down by one, or whose micro-batches do."""

    first: Step
    last: Step

    def moved(self, micro_batches: int) -> _Run:
        """The same, so many micro-batches later."""
        return _Run(_later(self.first, micro_batches), _later(self.last, micro_batches))

    def line(self) -> str:
        first, last = self.first, self.last
        return f"{first.block} {_spread(first.place, last.place)} {_spread(first.second, last.second)}".rstrip()


def _later(step: Step, micro_batches: int) -> Step:
    places = (
        dataclasses.replace(place, micro_batch=place.micro_batch + micro_batches) if place.micro_batch >= 0 else place
        for place in (step.place, step.second)
    )
    return Step(step.block, *places)


_LONGEST = 256
"""Runs in a loop, at most: what is longer is written out."""


def _program_lines(program: tuple[Step, ...]) -> list[str]:
    """One line per run of steps; loops over micro-batches once, with how often they go round."""
    runs = _runs(program)
    lines: list[str] = []
    at = 0
    while at < len(runs):
        length, rounds, move = _loop(runs, at)
        if rounds > 1:
            lines.append(f"  {rounds} times, each {move} micro-batch{'es' if move > 1 else ''} later:")
            lines += [f"    {run.line()}" for run in runs[at : at + length]]
        else:
            lines.append(f"  {runs[at].line()}")
        at += length * rounds
    return lines


def _loop(runs: list[_Run], at: int) -> tuple[int, int, int]:
    """(runs in a round, rounds, micro-batches from one to the next) of the loop from here that saves most lines; one round of
    one run where none does."""
    best, saved = (1, 1, 0), 0
    for length in range(1, min(_LONGEST, (len(runs) - at) // 2) + 1):
        head, following = runs[at].first, runs[at + length].first
        move = following.place.micro_batch - head.place.micro_batch
        if following.block != head.block or move < 1:
            continue
        rounds = 1
        while all(
            at + rounds * length + i < len(runs) and runs[at + i].moved(rounds * move) == runs[at + rounds * length + i]
            for i in range(length)
        ):
            rounds += 1
        if length * (rounds - 1) - 1 > saved:
            best, saved = (length, rounds, move), length * (rounds - 1) - 1
    return best


def _runs(program: tuple[Step, ...]) -> list[_Run]:
    runs: list[_Run] = []
    begin = 0
    for end in range(1, len(program) + 1):
        if end < len(program) and _continues(program, begin, end):
            continue
        runs.append(_Run(program[begin], program[end - 1]))
        begin = end
    return runs


def _continues(program: tuple[Step, ...], begin: int, at: int) -> bool:
    if program[at].block != program[begin].block:
        return False
    move = _move(program[begin], program[begin + 1])
    if at > begin + 1:
        return _move(program[at - 1], program[at]) == move
    return max(map(abs, move)) <= 1 and not any(a and b for a, b in (move[:2], move[2:]))


def _move(one: Step, other: Step) -> tuple[int, ...]:
    pairs = ((one.place, other.place), (one.second, other.second))
    return tuple(value for a, b in pairs for value in (b.micro_batch - a.micro_batch, b.layer - a.layer))


def _spread(first: Place, last: Place) -> str:
    parts = []
    for word, one, other in (("micro_batch", first.micro_batch, last.micro_batch), ("layer", first.layer, last.layer)):
        if one >= 0:
            parts.append(f"{word} {one}" if one == other else f"{word} {one}..{other}")
    return " ".join(parts)
