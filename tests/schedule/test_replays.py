"""Plans run in their fixed order: what makes every operation no longer makes no step longer."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.scenarios import Drawn, scenarios
from underlap import inputs
from underlap.cost.hardware import Link, Topology
from underlap.expansion import expand
from underlap.meetings import meetings
from underlap.plan import Plan
from underlap.plan_network import plan_network
from underlap.policy import PASSES, POLICY_AXES, parse_policy
from underlap.replay import network, replay
from underlap.schedule import apply
from underlap.simulate import Machine, simulate

_TEXTS = [
    f"{axis}={name}" + {"bucket": ":4kB", "prefetch": ":1", "decompose": ":2"}.get(name, "")
    for name, known in PASSES.items()
    for axis in known.axes
    if axis in POLICY_AXES
]
policies = st.lists(st.sampled_from(_TEXTS), max_size=3, unique_by=lambda text: text.split("=")[0]).map(",".join)


def topology(drawn: Drawn, *, times: float = 1.0) -> Topology:
    """A DGX H100 cluster whose links carry so many times more."""
    found = inputs.cluster("dgx-h100").with_gpus(drawn.layout.world).topology
    assert found.scale_out is not None

    def faster(link: Link) -> Link:
        return msgspec.structs.replace(link, bytes_per_s=link.bytes_per_s * times)

    return msgspec.structs.replace(found, scale_up=faster(found.scale_up), scale_out=faster(found.scale_out))


def scheduled(drawn: Drawn, policy: str) -> Plan:
    return apply(drawn.plan(), parse_policy(policy)).plan


@settings(max_examples=60, deadline=None)
@given(scenarios(), policies, st.floats(1.0, 4.0))
def test_without_contention_more_bandwidth_never_makes_a_step_longer(drawn: Drawn, policy: str, times: float) -> None:
    made = scheduled(drawn, policy)
    slow, fast = (
        simulate(made, Machine(topology=topology(drawn, times=factor), contention=False), bounds=False) for factor in (1.0, times)
    )
    assert fast.step_ns <= slow.step_ns


@settings(max_examples=60, deadline=None)
@given(scenarios(), policies, st.integers(0, 2**32 - 1))
def test_shorter_operations_of_any_kind_never_make_a_fixed_order_longer(drawn: Drawn, policy: str, seed: int) -> None:
    made = scheduled(drawn, policy)
    expansions = {role.name: expand(made, role) for role in made.roles}
    built = plan_network(made, expansions, meetings(made, expansions))
    random = np.random.default_rng(seed)
    long = random.integers(0, 100, len(built.lane))
    short = random.integers(0, long + 1)

    def step(durations: np.ndarray) -> int:
        return int(replay(network(built.lane, durations, rendezvous=built.rendezvous, edges=built.edges)).end_ns.max())

    assert step(short) <= step(long)


@settings(max_examples=40, deadline=None)
@given(scenarios(), policies)
def test_without_contention_no_policy_is_faster_than_the_bound_of_the_plan_before_it(drawn: Drawn, policy: str) -> None:
    machine = Machine(topology=topology(drawn), contention=False)
    before = simulate(drawn.plan(), machine)
    after = simulate(scheduled(drawn, policy), machine)
    assert before.bound_ns <= before.step_ns
    assert after.bound_ns <= after.step_ns
