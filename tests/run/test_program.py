"""What is decided before any process starts: programs, memory, addresses, refusals. Needs no torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict

import pytest

from underlap import inputs
from underlap.errors import OptionError, PlanError
from underlap.plan import OpKind, Plan
from underlap.planner import plan as planned
from underlap.run.program import Program, check_in_flight, compiled, digest
from underlap.run.supported import check_runnable
from underlap.schedule import apply

TRAIN = "train,gbs=8,mbs=2,seq=16,precision=fp32"


def planned_for(model: str, layout: str, workload: str = TRAIN, policy: str = "") -> Plan:
    made = planned(inputs.model(model), inputs.layout(layout), inputs.workload(workload), domain=8)
    applied = apply(made, inputs.policy(policy))
    assert not applied.refused
    return applied.plan


def program(model: str, layout: str, rank: int = 0, workload: str = TRAIN, policy: str = "") -> Program:
    return compiled(planned_for(model, layout, workload, policy), inputs.layout(layout), rank)


SCENARIOS = [
    ("tiny-dense", "", ""),
    ("tiny-dense", "tp=2,sp", "tp=split_batch"),
    ("tiny-dense", "fsdp=2", "fsdp=prefetch:1"),
    ("tiny-dense", "cp=2", "cp=ring"),
    ("tiny-moe", "dp=2,ep=2", "ep=split_batch"),
    ("tiny-dense", "pp=2,schedule=interleaved:2", ""),
]


@pytest.mark.parametrize(("model", "layout", "policy"), SCENARIOS)
def test_cells_that_share_a_slot_are_never_alive_together(model: str, layout: str, policy: str) -> None:
    made = program(model, layout, policy=policy)
    waits = {one.issue: one.row for one in made.instructions if one.kind == OpKind.WAIT}
    alive: dict[int, tuple[int, int]] = {}
    for one in made.instructions:
        for operand in (*one.reads, *one.writes):
            first, last = alive.get(operand.cell, (one.row, one.row))
            alive[operand.cell] = (first, max(last, waits.get(one.row, one.row)))
    by_slot: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, cell in enumerate(made.cells):
        if cell.slot >= 0:
            # What persists is never given to another.
            by_slot[cell.slot].append((-1, len(made.instructions)) if cell.persistent else alive[number])
    shared = 0
    for lives in by_slot.values():
        lives.sort()
        assert all(before[1] < after[0] for before, after in itertools.pairwise(lives))
        shared += len(lives) - 1
    assert shared > 0


@pytest.mark.parametrize(("model", "layout", "policy"), SCENARIOS)
def test_every_message_has_an_other_side_with_the_same_tag(model: str, layout: str, policy: str) -> None:
    world = inputs.layout(layout).world
    sent, received = set(), set()
    for rank in range(world):
        for one in program(model, layout, rank, policy=policy).instructions:
            if one.send_to is not None:
                sent.add((rank, one.send_to, one.tag))
            if one.receive_from is not None:
                received.add((one.receive_from, rank, one.tag))
    assert sent == received


def test_each_planned_operation_is_one_instruction_with_its_own_key() -> None:
    for model, layout, policy in SCENARIOS:
        made = program(model, layout, policy=policy)
        keys = [(one.key, one.kind) for one in made.instructions]
        assert len(set(keys)) == len(keys)


def test_the_first_gradient_of_a_step_is_written_and_later_ones_are_added() -> None:
    made = program("tiny-dense", "")
    added = [
        operand.add
        for one in made.instructions
        if one.phase == "weight_grad" and one.role == "mlp.down" and one.layer == 0
        for operand in one.writes
    ]
    assert added == [False, True, True, True]


def test_parts_of_a_buffer_are_rows_of_one_cell() -> None:
    made = program("tiny-dense", "tp=2", policy="tp=split_batch")
    parts = [one.writes[0] for one in made.instructions if one.role == "mlp.up" and one.phase == "forward"][:2]
    assert [(part.begin, part.rows) for part in parts] == [(0, 16), (16, 16)]
    assert parts[0].cell == parts[1].cell
    assert made.pieces == 2


def test_a_plan_with_another_shape_or_type_has_another_digest() -> None:
    plans = [
        planned_for("tiny-dense", "tp=2"),
        planned_for("tiny-dense", "tp=2", "train,gbs=8,mbs=2,seq=32,precision=fp32"),
        planned_for("tiny-dense", "tp=2", "train,gbs=8,mbs=2,seq=16"),
        planned_for("tiny-dense", "tp=2", policy="tp=split_batch"),
    ]
    assert len({digest(plan) for plan in plans}) == len(plans)
    assert digest(plans[0]) == digest(planned_for("tiny-dense", "tp=2"))


def test_a_collective_that_builds_on_one_in_flight_is_refused() -> None:
    made = program("tiny-dense", "dp=2").instructions
    issues = [one for one in made if one.kind == OpKind.ISSUE]
    first, same = issues[0], dataclasses.replace(issues[0], row=issues[0].row + 1, key="the second")
    wait = next(one for one in made if one.issue == first.row)

    check_in_flight([first, wait, same])
    with pytest.raises(PlanError, match=r"^the second uses gradient.* while .* is in flight: expected its wait before"):
        check_in_flight([first, same, wait])


@pytest.mark.parametrize(
    ("model", "layout", "workload", "reason"),
    [
        ("deepseek-v3", "", TRAIN, "latent attention cannot be run yet"),
        ("gpt3-22b", "", TRAIN, "layer norms with a bias cannot be run yet"),
        ("tiny-moe", "tp=4,etp=2,ep=2", TRAIN, "etp=2 with tp=4 cannot be run yet: use 1 or 4"),
        ("tiny-dense", "", "train,gbs=8,mbs=2,seq=16,precision=fp8", "precision=fp8 cannot be run: use fp32 or bf16"),
        ("tiny-dense", "", f"{TRAIN},attention=unfused", "attention=unfused cannot be run"),
        ("tiny-dense", "dp=2,fsdp=2", "train,gbs=16,mbs=2,seq=16", "the plan all-reduces sums that it goes on adding to"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(model: str, layout: str, workload: str, reason: str) -> None:
    shape, spread, work = inputs.model(model), inputs.layout(layout), inputs.workload(workload)
    made = planned(shape, spread, work, domain=8)
    with pytest.raises(OptionError, match=rf"^run: .*{reason}"):
        check_runnable(shape, spread, work, made)
