"""Streams and events of a program: every dependence is ordered, nothing is waited for twice, and one capture holds the step.

The checks here know nothing of how streams are chosen: they multiply out what precedes what, and compare all pairs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run import test_program
from tests.run.test_program import SCENARIOS, TRAIN
from underlap import inputs
from underlap.cost.work import Transfer
from underlap.errors import PlanError
from underlap.expansion import expand
from underlap.hazards import dependences
from underlap.meetings import meetings
from underlap.plan import OpKind, Plan
from underlap.plan_network import plan_network
from underlap.run.program import Cell, Instruction, Operand, Program, compiled
from underlap.run.streams import (
    BEGIN,
    HIGH,
    NORMAL,
    Link,
    StreamPlan,
    against_capture,
    link_of,
    links,
    stream_plan,
    thread_blocks,
)

MORE = [
    *SCENARIOS,
    ("tiny-dense", "tp=2,pp=2", ""),
    ("tiny-dense", "dp=2", "dp=bucket:100kB"),
    ("tiny-dense", "dp=2,zero=1", "dp=bucket:100kB"),
    ("tiny-dense", "tp=2,sp", "tp=decompose:4"),
    ("tiny-dense", "cp=2:ulysses", ""),
    ("tiny-dense", "pp=2,schedule=interleaved:2", "pp=async_p2p"),
    ("tiny-dense", "pp=2,schedule=dualpipev", ""),
    ("tiny-dense", "tp=2,dp=2", "tp=split_batch,dp=bucket:100kB"),
]


@functools.cache
def planned_for(model: str, layout: str, policy: str) -> Plan:
    """Kept, as most tests look at each plan."""
    return test_program.planned_for(model, layout, TRAIN, policy)


@functools.cache
def program(model: str, layout: str, policy: str, rank: int = 0) -> Program:
    return compiled(planned_for(model, layout, policy), inputs.layout(layout), rank)


# ---- what precedes what, by streams and events alone


def preceding(plan: StreamPlan, *, without: tuple[int, int] | None = None) -> list[int]:
    """Of each instruction a bit set of those that have ended when it begins; the last entry is that of the end of the step.

    `without` leaves one wait out: (instruction, event).
    """
    recorded = {placed.event: at for at, placed in enumerate(plan.placed) if placed.event >= 0}
    state = [0] * len(plan.streams)
    ended: dict[int, int] = {}
    found = []
    for at, placed in enumerate(plan.placed):
        for event in placed.waits:
            if event != BEGIN and (at, event) != without:
                assert recorded[event] < at, "waited for before it is recorded"
                state[placed.stream] |= ended[event]
        found.append(state[placed.stream])
        state[placed.stream] |= 1 << at
        if placed.event >= 0:
            ended[placed.event] = state[placed.stream]
    for event in plan.joins:
        if (len(plan.placed), event) != without:
            state[0] |= ended[event]
    return [*found, state[0]]


def memory(made: Program, operand: Operand) -> int:
    slot = made.cells[operand.cell].slot
    return slot if slot >= 0 else -1 - operand.cell


def excluding(made: Program, one: Instruction, other: Instruction) -> bool:
    """Whether two instructions use the same bytes and one of them writes."""
    for a, b in itertools.product((*one.reads, *one.writes), (*other.reads, *other.writes)):
        if memory(made, a) != memory(made, b) or not (a in one.writes or b in other.writes):
            continue
        if a.cell != b.cell or (a.begin < b.begin + b.rows and b.begin < a.begin + a.rows):
            return True
    return False


def needed(made: Program) -> set[tuple[int, int]]:
    """(source, target): all pairs of instructions that memory, an issue or a wait puts in order."""
    found = set()
    users: dict[int, set[int]] = defaultdict(set)
    for target, one in enumerate(made.instructions):
        used = {memory(made, operand) for operand in (*one.reads, *one.writes)}
        # The others cannot exclude it: they use none of its memory.
        for source in set().union(*(users[each] for each in used)):
            if excluding(made, made.instructions[source], one):
                found.add((source, target))
        for each in used:
            users[each].add(target)
        if one.kind == OpKind.WAIT:
            found.add((next(at for at, other in enumerate(made.instructions) if other.row == one.issue), target))
        if one.kind == OpKind.ISSUE:
            found |= {(s, target) for s in range(target) if made.instructions[s].kind != OpKind.ISSUE}
    return found


def check(made: Program, plan: StreamPlan) -> None:
    before = preceding(plan)
    for source, target in needed(made):
        assert before[target] >> source & 1, (made.instructions[source].key, made.instructions[target].key)
    assert before[-1] == (1 << len(plan.placed)) - 1, "the root does not join all"


def check_forks(plan: StreamPlan) -> None:
    """A capture begins on the root alone: another stream is drawn in by waiting for one that is in it."""
    inside = {0}
    recorded_on = {placed.event: placed.stream for placed in plan.placed if placed.event >= 0} | {BEGIN: 0}
    for placed in plan.placed:
        if placed.stream not in inside:
            assert any(recorded_on[event] in inside for event in placed.waits)
            inside.add(placed.stream)
    assert inside == set(range(len(plan.streams)))


def check_minimal(plan: StreamPlan) -> None:
    """Without any one of its waits, something would not be ordered that now is; BEGIN is waited for by a first one only."""
    whole = preceding(plan)
    seen: set[int] = set()
    for at, placed in enumerate(plan.placed):
        for event in placed.waits:
            if event == BEGIN:
                assert placed.stream not in seen
                assert placed.waits == (BEGIN,)
            else:
                assert preceding(plan, without=(at, event))[at] != whole[at]
        seen.add(placed.stream)
    for event in plan.joins:
        assert preceding(plan, without=(len(plan.placed), event))[-1] != whole[-1]
    waited = {event for placed in plan.placed for event in placed.waits} | set(plan.joins)
    assert {placed.event for placed in plan.placed} - {-1} == waited - {BEGIN}, "recorded for nobody"


@pytest.mark.parametrize(("model", "layout", "policy"), MORE)
def test_all_that_shares_memory_is_in_order_on_streams(model: str, layout: str, policy: str) -> None:
    world = inputs.layout(layout).world
    for rank in {0, world - 1}:
        made = program(model, layout, policy, rank)
        plan = stream_plan(made)
        check(made, plan)
        check_forks(plan)


@pytest.mark.parametrize(("model", "layout", "policy"), MORE[:6])
def test_no_wait_can_be_left_out_of_a_plan(model: str, layout: str, policy: str) -> None:
    check_minimal(stream_plan(program(model, layout, policy)))


@pytest.mark.parametrize(("model", "layout", "policy"), MORE)
def test_dependences_that_the_plan_derives_from_its_buffers_are_in_order(model: str, layout: str, policy: str) -> None:
    plan = planned_for(model, layout, policy)
    made = compiled(plan, inputs.layout(layout), 0)
    edges = dependences(plan, expand(plan, next(role for role in plan.roles if 0 in role.ranks)))
    before = preceding(stream_plan(made))
    at_row = {one.row: at for at, one in enumerate(made.instructions)}
    assert len(edges) > 0
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        assert before[at_row[target]] >> at_row[source] & 1


@pytest.mark.parametrize(("model", "layout", "policy"), MORE)
def test_lanes_are_those_that_the_simulator_uses(model: str, layout: str, policy: str) -> None:
    plan = planned_for(model, layout, policy)
    expansions = {role.name: expand(plan, role) for role in plan.roles}
    network = plan_network(plan, expansions, meetings(plan, expansions))
    role = next(role for role in plan.roles if 0 in role.ranks)
    first, rows = network.first[role.name], len(expansions[role.name].rows)
    simulated = [network.lanes[number][1] for number in network.lane[first : first + rows].tolist()]
    made = compiled(plan, inputs.layout(layout), 0)
    streams = stream_plan(made)
    assert [streams.lane_of(at) for at in range(rows)] == simulated


def test_a_step_without_communication_has_one_stream_and_no_event() -> None:
    made = stream_plan(program("tiny-dense", "", ""))
    assert [stream.lane for stream in made.streams] == ["compute"]
    assert made.events == 1
    assert all((placed.stream, placed.waits, placed.event) == (0, (), -1) for placed in made.placed)


def test_communication_has_a_higher_priority_than_compute() -> None:
    made = stream_plan(program("tiny-dense", "tp=2,dp=2", ""))
    assert {stream.lane: stream.priority for stream in made.streams} == {"compute": NORMAL, "tp": HIGH, "dp": HIGH}


def test_each_direction_between_stages_has_a_stream_of_its_own() -> None:
    made = stream_plan(program("tiny-dense", "pp=2", ""))
    assert {stream.lane for stream in made.streams} == {"compute", "pp.send.forward", "pp.receive.backward"}


# ---- programs that no plan has


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Computations and copies on two lanes, collectives on three channels, parts of a few cells that share fewer slots."""
    cells = draw(st.lists(st.tuples(st.integers(-1, 2), st.sampled_from((2, 4))), min_size=1, max_size=5))
    made: list[Instruction] = []
    flying: list[int] = []

    def operands(count: int) -> tuple[Operand, ...]:
        found = []
        for _ in range(draw(st.integers(0, count))):
            cell = draw(st.integers(0, len(cells) - 1))
            begin = draw(st.integers(0, 1)) * cells[cell][1] // 2
            found.append(Operand(name=f"cell{cell}", cell=cell, begin=begin, rows=draw(st.integers(1, cells[cell][1] - begin))))
        return tuple(found)

    def add(kind: OpKind, **fields: object) -> None:
        plain = {"work": None, "reads": (), "writes": (), "group": None}
        row = len(made)
        made.append(
            Instruction(
                row=row, key=f"row {row}", kind=kind, phase="forward", role="any", micro_batch=0, layer=0, part=(0, 1),
                **(plain | fields),  # type: ignore[arg-type]  # fields of several types
            )
        )  # fmt: skip

    for what in draw(st.lists(st.sampled_from("ccpiiw"), max_size=14)):
        if what == "w" and flying:
            add(OpKind.WAIT, issue=flying.pop(draw(st.integers(0, len(flying) - 1))))
        elif what == "i":
            flying.append(len(made))
            group = draw(st.sampled_from(("tp", "dp", "pp")))
            add(OpKind.ISSUE, reads=operands(2), writes=operands(2), group=group, channel=group)
        else:
            lane = "copy" if what == "p" else "compute"
            add(OpKind.COPY if what == "p" else OpKind.COMPUTE, reads=operands(2), writes=operands(2), lane=lane)
    for issue in flying:
        add(OpKind.WAIT, issue=issue)
    return Program(
        rank=0,
        world=2,
        stage=0,
        instructions=tuple(made),
        cells=tuple(
            Cell(buffer=f"cell{at}", micro_batch=0, layer=0, shape=(rows,), dtype="fp32", slot=slot, persistent=False)
            for at, (slot, rows) in enumerate(cells)
        ),
        slots=(16, 16, 16),
        members={},
        tables={},
        paired=frozenset(),
        pieces=1,
    )


def needed_anyhow(made: Program) -> set[tuple[int, int]]:
    """As `needed`; an issue follows what its own lane did, not what others did."""
    issued = {at for at, one in enumerate(made.instructions) if one.kind == OpKind.ISSUE}
    return {
        (source, target)
        for source, target in needed(made)
        if target not in issued
        or made.instructions[source].lane == made.instructions[target].lane
        or excluding(made, made.instructions[source], made.instructions[target])
    }


@given(programs())
@settings(max_examples=100, deadline=None)
def test_any_program_is_in_order_without_a_wait_too_many(made: Program) -> None:
    plan = stream_plan(made)
    before = preceding(plan)
    for source, target in needed_anyhow(made):
        assert before[target] >> source & 1
    assert before[-1] == (1 << len(plan.placed)) - 1
    check_forks(plan)
    check_minimal(plan)


def test_a_channel_of_two_groups_is_refused() -> None:
    made = program("tiny-dense", "tp=2,dp=2", "")
    other = tuple(dataclasses.replace(one, channel="one") if one.kind == OpKind.ISSUE else one for one in made.instructions)
    with pytest.raises(PlanError, match=r"^channel one serves dp, tp: expected one group, on a channel of its own"):
        stream_plan(dataclasses.replace(made, instructions=other))


# ---- communicators


@pytest.mark.parametrize(
    ("model", "layout", "policy"),
    [one for one in MORE if "pp" in one[1]] + [("tiny-dense", "pp=4,schedule=1f1b", ""), ("tiny-dense", "pp=2,tp=2", "")],
)
def test_both_ends_of_a_link_have_its_messages_in_the_same_order(model: str, layout: str, policy: str) -> None:
    """NCCL knows no tags: the first message that is sent is the first to arrive."""
    world = inputs.layout(layout).world
    sent: dict[Link, list[int]] = {}
    received: dict[Link, list[int]] = {}
    for rank in range(world):
        made = program(model, layout, policy, rank)
        assert list(links(made)) == sorted(links(made))
        for one in made.instructions:
            link = link_of(made, one) if one.kind == OpKind.ISSUE else None
            if link is not None:
                (sent if one.send_to is not None else received).setdefault(link, []).append(one.tag)
    assert sent == received
    assert sent


@pytest.mark.parametrize(("model", "layout", "policy"), MORE)
def test_members_of_a_group_issue_the_same_collectives_in_the_same_order(model: str, layout: str, policy: str) -> None:
    """A communicator carries out what it is given in order; two ranks that differ would wait for each other for ever."""
    orders: dict[tuple[str, tuple[int, ...]], list[list[str]]] = {}
    for rank in range(inputs.layout(layout).world):
        made = program(model, layout, policy, rank)
        by_group: dict[str, list[str]] = {}
        for one in made.instructions:
            if one.kind == OpKind.ISSUE and link_of(made, one) is None:
                by_group.setdefault(str(one.group), []).append(one.key)
        for group, keys in by_group.items():
            orders.setdefault((group, made.members[group]), []).append(keys)
    for (_, members), found in orders.items():
        assert len(found) == len(members)
        assert all(keys == found[0] for keys in found)


def test_a_step_of_a_ring_has_no_link() -> None:
    made = program("tiny-dense", "cp=2", "cp=ring")
    assert links(made) == ()


def test_thread_blocks_are_those_of_the_policy() -> None:
    assert thread_blocks(program("tiny-dense", "tp=2,dp=2", "dp=ctas:8")) == {"dp": 8}
    assert thread_blocks(program("tiny-dense", "tp=2", "")) == {}


def test_what_a_communicator_cannot_be_asked_is_refused() -> None:
    with pytest.raises(PlanError, match="copy engines cannot be asked of a communicator"):
        thread_blocks(program("tiny-dense", "fsdp=2", "fsdp=copy_engine"))
    with pytest.raises(PlanError, match="reduction in the switches cannot be asked of a communicator"):
        thread_blocks(program("tiny-dense", "tp=2", "tp=in_network"))


def test_two_numbers_of_thread_blocks_on_one_group_are_refused() -> None:
    made = program("tiny-dense", "tp=2", "tp=ctas:8")
    at = next(at for at, one in enumerate(made.instructions) if one.kind == OpKind.ISSUE)
    one = made.instructions[at]
    assert isinstance(one.work, Transfer)
    changed = dataclasses.replace(one, work=Transfer(**{**_fields(one.work), "ctas": 4}))
    instructions = (*made.instructions[:at], changed, *made.instructions[at + 1 :])
    with pytest.raises(PlanError, match="tp has 4 and 8 thread blocks: expected one"):
        thread_blocks(dataclasses.replace(made, instructions=instructions))


def _fields(work: Transfer) -> dict[str, object]:
    return {name: getattr(work, name) for name in work.__struct_fields__}


def test_a_step_of_fixed_sizes_can_be_captured() -> None:
    for model, layout, policy in MORE:
        found = against_capture(program(model, layout, policy))
        assert (found is None) == (model != "tiny-moe"), found


def test_a_step_with_routing_cannot_be_captured_and_says_why() -> None:
    found = against_capture(program("tiny-moe", "", ""))
    assert found is not None
    assert "router.choose" in found
    assert "the host reads how many rows each expert gets" in found
