"""What the buffers of a plan imply, against a plain walker and by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from tests.plan.drawn import plans, walk, walked_dependences
from underlap.cost.work import Gemm, Stream, Transfer
from underlap.errors import PlanError
from underlap.expansion import expand
from underlap.hazards import check, dependences, lives_of_pools, memory_peak
from underlap.ledger import ledger
from underlap.meetings import validate
from underlap.plan import Access, Block, Buffer, Group, Operation, OpKind, Place, Plan, Role, Scope, Step, text
from underlap.replay import network, replay

LAYERS, TOKENS, HIDDEN = 3, 8, 4
PAYLOAD = TOKENS * HIDDEN * 2


def chain(*, wait_late: bool = False, layers: int = LAYERS) -> Plan:
    """A product and an all-reduce per layer, the next layer needing the sum; on two ranks of one domain."""
    buffers = [
        Buffer(name="hidden", shape=(TOKENS, HIDDEN), dtype="bf16", scope=Scope.ACTIVATION),
        Buffer(name="partial", shape=(TOKENS, HIDDEN), dtype="bf16", scope=Scope.ACTIVATION),
        Buffer(name="weight", shape=(HIDDEN, HIDDEN), dtype="bf16", scope=Scope.LAYER, persistent=True),
    ]
    product = Operation(
        role="mlp.up",
        phase="forward",
        work=Gemm(m=TOKENS, n=HIDDEN, k=HIDDEN),
        reads=(Access("hidden"), Access("weight")),
        writes=(Access("partial"),),
    )
    issue = Operation(
        role="mlp.reduce",
        phase="forward",
        kind=OpKind.ISSUE,
        group="tp",
        work=Transfer(collective="all_reduce", payload_bytes=PAYLOAD, ranks=2),
        reads=(Access("partial"),),
        writes=(Access("hidden", 1),),
    )
    wait = Operation(role="mlp.reduce", phase="forward", kind=OpKind.WAIT)
    use = Operation(
        role="use", phase="forward", work=Stream(read_bytes=PAYLOAD, write_bytes=0), reads=(Access("hidden", 1),), writes=()
    )
    behind = (use, wait) if wait_late else (wait, use)
    embed = Operation(role="embed", phase="forward", work=Stream(read_bytes=0, write_bytes=PAYLOAD), writes=(Access("hidden"),))
    return Plan(
        title="chain",
        roles=(
            Role(
                name="all",
                stage=0,
                ranks=(0, 1),
                program=(Step("embed", Place(0, 0)), *(Step("layer", Place(0, layer)) for layer in range(layers))),
                chunks=(range(layers),),
                members={"tp": (0, 1)},
            ),
        ),
        blocks={
            "embed": Block(name="embed", operations=(embed,)),
            "layer": Block(name="layer", operations=(product, issue, *behind)),
        },
        buffers={buffer.name: buffer for buffer in buffers},
        groups={"tp": Group(name="tp", axis=("tp",), size=2, ranks_per_domain=2, domains=1)},
        world=2,
    )


@given(plans())
def test_dependences_equal_those_of_a_plain_walk_over_the_rows(plan: Plan) -> None:
    expansion = expand(plan, plan.roles[0])
    found = dependences(plan, expansion)
    assert len(expansion.rows) == len(walk(plan))
    assert set(zip(found.source.tolist(), found.target.tolist(), found.hazard.tolist(), strict=True)) == walked_dependences(plan)


@given(plans())
def test_every_operation_of_a_drawn_plan_has_a_key_of_its_own(plan: Plan) -> None:
    expansion = expand(plan, plan.roles[0])
    keys = [(expansion.key(row), int(expansion.rows.kind[row])) for row in range(len(expansion.rows))]
    assert len(set(keys)) == len(keys)


def test_the_chain_is_valid_and_its_keys_name_phase_stage_micro_batch_layer_role_and_part() -> None:
    plan = chain()
    validate(plan)
    expansion = expand(plan, plan.roles[0])
    assert [expansion.key(row) for row in range(5)] == [
        "forward/0/0/0/embed/0of1",
        "forward/0/0/0/mlp.up/0of1",
        "forward/0/0/0/mlp.reduce/0of1",
        "forward/0/0/0/mlp.reduce/0of1",
        "forward/0/0/0/use/0of1",
    ]
    assert expansion.rows.other.tolist()[:5] == [-1, -1, 3, 2, -1]


def test_the_bytes_of_the_chain_are_those_of_a_ring_all_reduce_per_layer() -> None:
    (entry,) = ledger(chain())
    assert (entry.group, entry.collective, entry.calls) == ("tp", "all_reduce", LAYERS)
    assert entry.payload_bytes == LAYERS * 2 * PAYLOAD
    assert entry.sent_bytes == LAYERS * 2 * PAYLOAD  # 2 (n - 1) / n = 1 on two ranks


def test_reading_a_result_before_its_wait_is_named_as_a_race() -> None:
    plan = chain(wait_late=True)
    with pytest.raises(PlanError, match=r"forward/0/0/0/use/0of1 reads its result while .*mlp\.reduce.* is in flight"):
        check(plan, expand(plan, plan.roles[0]))


def test_reading_what_nothing_wrote_names_the_buffer_and_the_operation() -> None:
    plan = chain()
    role = dataclasses.replace(plan.roles[0], program=plan.roles[0].program[1:])
    with pytest.raises(PlanError, match=r"forward/0/0/0/mlp\.up/0of1 of role all reads hidden, which nothing wrote before"):
        check(plan, expand(plan, role))


def test_an_issue_without_a_wait_is_refused_with_its_key() -> None:
    plan = chain()
    layer = plan.blocks["layer"]
    unwaited = dataclasses.replace(layer, operations=tuple(op for op in layer.operations if op.kind != OpKind.WAIT))
    with pytest.raises(PlanError, match="issued but never waited for"):
        expand(plan.replace_blocks({"layer": unwaited}), plan.roles[0])


def test_a_buffer_that_the_plan_lacks_is_named_when_expanding() -> None:
    plan = chain()
    embed = dataclasses.replace(plan.blocks["embed"].operations[0], writes=(Access("hiden"),))
    with pytest.raises(PlanError, match="'hiden'"):
        expand(plan.replace_blocks({"embed": Block(name="embed", operations=(embed,))}), plan.roles[0])


def test_the_memory_peak_of_the_chain_is_weights_and_the_three_activations_of_a_reduction() -> None:
    # While the all-reduce of a layer runs: its input and its result. hidden of the layer ended with the product.
    plan = chain()
    weights = LAYERS * HIDDEN * HIDDEN * 2
    assert memory_peak(plan, expand(plan, plan.roles[0])) == weights + 2 * PAYLOAD


def test_roles_that_issue_different_bytes_on_one_group_do_not_match() -> None:
    plan = chain()
    one = dataclasses.replace(plan.roles[0], ranks=(0,))
    other_issue = dataclasses.replace(
        plan.blocks["layer"].operations[1], work=Transfer(collective="all_reduce", payload_bytes=1.0, ranks=2)
    )
    layer = plan.blocks["layer"]
    wrong = dataclasses.replace(layer, name="wrong", operations=(layer.operations[0], other_issue, *layer.operations[2:]))
    steps = tuple(dataclasses.replace(step, block="wrong" if step.block == "layer" else step.block) for step in one.program)
    other = dataclasses.replace(one, name="other", ranks=(1,), program=steps)
    plan = dataclasses.replace(plan.replace_blocks({"wrong": wrong}), roles=(one, other))
    with pytest.raises(
        PlanError, match="does not match: role all issues all_reduce of 64 bytes, role other all_reduce of 1 bytes"
    ):
        validate(plan)


def test_two_roles_that_issue_two_collectives_in_opposite_orders_wait_in_a_circle() -> None:
    plan = chain(layers=2)
    issue, wait = plan.blocks["layer"].operations[1], plan.blocks["layer"].operations[2]
    bare = {"reads": (), "writes": ()}
    blocks = {
        name: Block(
            name=name,
            operations=tuple(dataclasses.replace(op, role=role, **bare) for role in order for op in (issue, wait)),
        )
        for name, order in (("ab", ("a", "b")), ("ba", ("b", "a")))
    }
    roles = tuple(
        dataclasses.replace(plan.roles[0], name=name, ranks=(rank,), program=(Step(name, Place(0, 0)),))
        for rank, name in enumerate(("ab", "ba"))
    )
    with pytest.raises(PlanError, match="waits in a circle"):
        validate(dataclasses.replace(plan, roles=roles, blocks=blocks))


def test_a_pool_of_two_makes_the_third_instance_wait_for_the_first_ones_last_use() -> None:
    plan = chain()
    pooled = {**plan.buffers, "partial": dataclasses.replace(plan.buffers["partial"], pool="scratch")}
    plan = dataclasses.replace(plan, buffers=pooled, pools={"scratch": 2})
    source, target = lives_of_pools(plan, expand(plan, plan.roles[0]))
    # Row 1 writes the first, whose reduction (row 2) ends with its wait (row 3); row 9 writes the third.
    assert (source.tolist(), target.tolist()) == ([3], [9])


def test_the_text_of_a_plan_names_groups_buffers_blocks_and_runs_of_steps() -> None:
    lines = text(chain()).splitlines()
    assert "group tp: 2 ranks over tp, 2 per domain" in lines
    assert "buffer weight: 4x4 bf16, 32 bytes per layer, persistent" in lines
    assert "  issue forward/mlp.reduce on tp reads partial writes hidden+1" in lines
    assert lines[-1] == "  layer micro_batch 0 layer 0..2"


def test_steps_that_come_again_a_micro_batch_later_are_written_once_with_how_often() -> None:
    plan = chain()
    order = [Step(name, Place(m, layer)) for m in range(5) for name, layer in (("embed", 0), ("layer", 0), ("layer", 1))]
    role = dataclasses.replace(plan.roles[0], program=(*order, Step("embed", Place(7, 0))))
    assert text(dataclasses.replace(plan, roles=(role,))).splitlines()[-4:] == [
        "  5 times, each 1 micro-batch later:",
        "    embed micro_batch 0 layer 0",
        "    layer micro_batch 0 layer 0..1",
        "  embed micro_batch 7 layer 0",
    ]


def test_a_dependent_chain_runs_as_long_as_the_sum_of_its_parts() -> None:
    from underlap.meetings import meetings
    from underlap.plan_network import plan_network

    plan = chain()
    expansions = {"all": expand(plan, plan.roles[0])}
    built = plan_network(plan, expansions, meetings(plan, expansions))
    rows = expansions["all"].rows
    work = np.select([rows.kind == OpKind.COMPUTE, rows.kind == OpKind.ISSUE], [10, 7], 0).astype(np.int64)
    times = replay(network(built.lane, work, rendezvous=built.rendezvous, edges=built.edges))
    assert times.end_ns.max() == 10 + LAYERS * (10 + 7 + 10)
