"""Roles taken apart run as the folded ones do, and a slow rank tells its neighbors apart by how they lie to it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.scenarios import DENSE, mixture
from underlap import inputs
from underlap.errors import OptionError
from underlap.layout import Layout
from underlap.meetings import validate
from underlap.plan import Plan
from underlap.planner import plan, unfold
from underlap.policy import parse_policy
from underlap.schedule import apply
from underlap.simulate import Machine, simulate
from underlap.workload import Train

_LAYOUTS = [
    (Layout(dp=8, tp=4, pp=2, sp=True), "tp=split_batch,dp=bucket:20kB", False),
    (Layout(fsdp=8, cp=2, pp=4, tp=1), "fsdp=prefetch,cp=ring", False),
    (Layout(dp=4, fsdp=4, tp=2, pp=2), "pp=async_p2p", False),
    (Layout(dp=16, pp=2, tp=2, ep=8, etp=1, schedule="dualpipev"), "ep=pair_forward_backward,pp=async_p2p", True),
]


def machine(layout: Layout, slowed: dict[int, float] | None = None, *, contention: bool = True) -> Machine:
    return Machine(
        topology=inputs.cluster("dgx-h100").with_gpus(layout.world).topology, slowed=slowed or {}, contention=contention
    )


def scheduled(layout: Layout, policy: str, *, experts: bool) -> Plan:
    model = mixture(shared=1, dense_layers=1) if experts else DENSE
    made = plan(model, layout, Train(gbs=4 * layout.dp * layout.fsdp, mbs=1, seq=64), domain=8)
    done = apply(made, parse_policy(policy))
    assert done.refused == ()
    return done.plan


@pytest.mark.parametrize(("layout", "policy", "experts"), _LAYOUTS)
def test_64_roles_of_one_rank_each_take_the_times_of_the_folded_ones(layout: Layout, policy: str, experts: bool) -> None:
    folded = scheduled(layout, policy, experts=experts)
    apart = unfold(folded, layout, range(layout.world))
    assert len(apart.roles) == 64
    validate(apart)
    one = simulate(folded, machine(layout), bounds=False)
    other = simulate(apart, machine(layout), bounds=False)
    for role in folded.roles:
        for rank in role.ranks:
            name = f"{role.name}.rank{rank}"
            assert np.array_equal(one.times.end_ns[one.rows(role.name)], other.times.end_ns[other.rows(name)]), name


@pytest.mark.parametrize(("layout", "policy", "experts"), _LAYOUTS)
def test_a_slow_rank_costs_the_same_in_a_few_roles_as_in_one_for_each_rank(layout: Layout, policy: str, experts: bool) -> None:
    folded = scheduled(layout, policy, experts=experts)
    slowed = machine(layout, {5: 40.0})
    few = unfold(folded, layout, [5])
    assert len(folded.roles) < len(few.roles) < layout.world
    validate(few)
    all_apart = unfold(folded, layout, range(layout.world))
    step = simulate(few, slowed, bounds=False).step_ns
    assert step == simulate(all_apart, slowed, bounds=False).step_ns
    assert step > simulate(folded, machine(layout), bounds=False).step_ns


def test_no_rank_in_particular_leaves_the_roles_folded() -> None:
    layout = Layout(dp=8, tp=2, pp=2)
    folded = plan(DENSE, layout, Train(gbs=8, mbs=1, seq=64), domain=8)
    assert unfold(folded, layout, []) == folded


def test_with_dp_and_tp_a_slow_rank_leaves_four_kinds_of_rank() -> None:
    # Itself, its tp neighbor, the ranks of its dp group, and the rest.
    layout = Layout(dp=4, tp=2)
    apart = unfold(plan(DENSE, layout, Train(gbs=4, mbs=1, seq=64), domain=8), layout, [3])
    assert {role.ranks for role in apart.roles} == {(3,), (2,), (1, 5, 7), (0, 4, 6)}


def test_a_rank_outside_of_the_world_is_refused() -> None:
    layout = Layout(dp=4)
    with pytest.raises(OptionError, match="rank 4: expected 0 to 3"):
        unfold(plan(DENSE, layout, Train(gbs=4, mbs=1, seq=64), domain=8), layout, [4])
