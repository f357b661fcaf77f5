"""Small random plans, and a plain walker that reads them without columns: the oracle of the vectorized derivations."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from hypothesis import strategies as st

from underlap.cost.work import Stream, Transfer
from underlap.plan import Access, Block, Buffer, Group, Operation, OpKind, Place, Plan, Role, Scope, Step

SIZE = 4


def buffers() -> dict[str, Buffer]:
    """One buffer of each scope, an activation in halves and a half in halves, and a persistent one."""
    plain = [Buffer(name=scope.name.lower(), shape=(SIZE, 2), dtype="bf16", scope=scope) for scope in Scope]
    held = Buffer(name="held", shape=(SIZE,), dtype="fp32", scope=Scope.LAYER, persistent=True)
    halves = [
        Buffer(name=f"half{i}", shape=(SIZE // 2, 2), dtype="bf16", scope=Scope.ACTIVATION, part_of=("activation", i, 2))
        for i in range(2)
    ]
    quarter = Buffer(name="quarter", shape=(SIZE // 4, 2), dtype="bf16", scope=Scope.ACTIVATION, part_of=("half1", 0, 2))
    return {buffer.name: buffer for buffer in (*plain, held, *halves, quarter)}


@st.composite
def blocks(draw: st.DrawFn, name: str) -> Block:
    accesses = st.lists(
        st.builds(Access, st.sampled_from(sorted(buffers())), st.sampled_from((0, 0, 1))), max_size=3, unique=True
    ).map(tuple)
    operations: list[Operation] = []
    for index in range(draw(st.integers(1, 4))):
        reads, writes = draw(accesses), draw(accesses)
        common = {"role": f"{name}{index}", "phase": "forward", "slot": draw(st.integers(0, 1))}
        if draw(st.booleans()):
            work = Stream(read_bytes=1.0, write_bytes=1.0)
            operations.append(Operation(**common, work=work, reads=reads, writes=writes))
            continue
        work = Transfer(collective="all_reduce", payload_bytes=8.0, ranks=2)
        operations.append(Operation(**common, kind=OpKind.ISSUE, group="tp", work=work, reads=reads, writes=writes))
        operations.append(Operation(**common, kind=OpKind.WAIT))
    return Block(name=name, operations=tuple(operations))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One role, two blocks, a handful of steps at distinct places."""
    made = {name: draw(blocks(name)) for name in ("a", "b")}
    cells = [(m, layer) for m in range(3) for layer in range(3)]
    spots = draw(st.lists(st.tuples(st.sampled_from(cells), st.sampled_from(cells)), min_size=1, max_size=6, unique=True))
    used: set[tuple[str, int, tuple[int, int]]] = set()
    program: list[Step] = []
    for first, second in spots:
        block = draw(st.sampled_from(("a", "b")))
        if {(block, 0, first), (block, 1, second)} & used or first == second:
            continue
        used |= {(block, slot, place) for slot in (0, 1) for place in (first, second)}
        program.append(Step(block, Place(*first), Place(*second)))
    role = Role(name="all", stage=0, ranks=(0, 1), program=tuple(program), chunks=(range(3),), members={"tp": (0, 1)})
    group = Group(name="tp", axis=("tp",), size=2, ranks_per_domain=2, domains=1)
    return Plan(title="drawn", roles=(role,), blocks=made, buffers=buffers(), groups={"tp": group}, world=2)


@dataclasses.dataclass
class Row:
    """One operation of a walked plan."""

    operation: Operation
    reads: list[tuple[object, ...]]
    writes: list[tuple[object, ...]]


def walk(plan: Plan) -> list[Row]:
    """The rows of the plan's only role, each with the (buffer, micro-batch, layer, quarter) pieces that it reads and writes."""
    rows = []
    for step in plan.roles[0].program:
        for operation in plan.blocks[step.block].operations:
            place = step.second if operation.slot else step.place
            layer = place.layer + operation.layer
            rows.append(
                Row(
                    operation,
                    [piece for access in operation.reads for piece in _pieces(plan, access, place.micro_batch, layer)],
                    [piece for access in operation.writes for piece in _pieces(plan, access, place.micro_batch, layer)],
                )
            )
    return rows


def _pieces(plan: Plan, access: Access, micro_batch: int, layer: int) -> list[tuple[object, ...]]:
    quarters = {"half0": [0, 1], "half1": [2, 3], "quarter": [2]}.get(access.buffer, [0, 1, 2, 3])
    whole = "activation" if access.buffer in ("half0", "half1", "quarter") else access.buffer
    scope = plan.buffers[whole].scope
    m = micro_batch if scope in (Scope.MICRO_BATCH, Scope.ACTIVATION) else None
    at = layer + access.layer if scope in (Scope.LAYER, Scope.ACTIVATION) else None
    return [(whole, m, at, quarter) for quarter in quarters]


def walked_dependences(plan: Plan) -> set[tuple[int, int, int]]:
    """(source, target, hazard) by one pass with sets, in the order of rows."""
    writer: dict[object, int] = {}
    readers: dict[object, set[int]] = defaultdict(set)
    found: set[tuple[int, int, int]] = set()
    for index, row in enumerate(walk(plan)):
        for piece in row.reads:
            if piece in writer:
                found.add((writer[piece], index, 0))
            readers[piece].add(index)
        for piece in row.writes:
            if readers[piece]:
                found |= {(reader, index, 1) for reader in readers[piece]}
            elif piece in writer:
                found.add((writer[piece], index, 2))
            writer[piece] = index
            readers[piece] = set()
    return {(source, target, hazard) for source, target, hazard in found if source != target}
