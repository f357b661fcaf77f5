"""Folding gives the step time of the full simulation: exactly where the device is ahead of nobody, else within a bound."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.schedule.scenarios import DENSE, Drawn, scenarios
from underlap import inputs
from underlap.intervals import intersect, length, union
from underlap.layout import Layout
from underlap.plan import OpKind, Plan
from underlap.planner import plan
from underlap.policy import PASSES, POLICY_AXES, parse_policy
from underlap.schedule import apply
from underlap.simulate import Known, Machine, fold, simulate
from underlap.workload import Train

H100 = inputs.cluster("dgx-h100").topology
MACHINE = Machine(topology=H100)
GRAPHS = Machine(topology=H100, launches=False)
UNDISTURBED = Machine(topology=H100, contention=False)
_TEXTS = [
    f"{axis}={name}" + {"bucket": ":4kB", "prefetch": ":1", "decompose": ":2"}.get(name, "")
    for name, known in PASSES.items()
    for axis in known.axes
    if axis in POLICY_AXES
]
_ROUNDING_NS = 20
_BOUND = 0.02
"""What the host's lead and a message in flight may change in who runs beside whom, of the step."""


def both(made: Plan, machine: Machine) -> tuple[int, int]:
    return fold(made, Known(machine)).step_ns, simulate(made, machine, bounds=False).step_ns


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.sampled_from(["", *_TEXTS]))
def test_without_contention_folding_changes_nothing_but_rounding(drawn: Drawn, text: str) -> None:
    folded, full = both(apply(drawn.plan(), parse_policy(text)).plan, UNDISTURBED)
    assert abs(folded - full) <= _ROUNDING_NS


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.sampled_from([text for text in ["", *_TEXTS] if "pp=" not in text]))
def test_with_device_graphs_folding_changes_nothing_but_rounding(drawn: Drawn, text: str) -> None:
    folded, full = both(apply(drawn.plan(), parse_policy(text)).plan, GRAPHS)
    assert abs(folded - full) <= _ROUNDING_NS


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.sampled_from(["", *_TEXTS]))
def test_where_the_host_is_slower_than_the_device_folding_stays_within_its_bound(drawn: Drawn, text: str) -> None:
    folded, full = both(apply(drawn.plan(), parse_policy(text)).plan, MACHINE)
    assert folded == pytest.approx(full, rel=_BOUND)


def deep(layout: Layout, *, gbs: int, seq: int = 4096) -> Plan:
    model = inputs.model("llama3-70b")
    return plan(model, layout, Train(gbs=gbs, mbs=1, seq=seq), domain=8)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(tp=8, pp=4, dp=16, sp=True), ""),
        (Layout(tp=8, pp=4, dp=16, sp=True), "tp=split_batch"),
        (Layout(tp=8, pp=4, dp=16, sp=True), "tp=decompose:4,dp=bucket:100MB"),
        (Layout(tp=8, pp=4, dp=16), "tp=delay_wgrad"),
        (Layout(fsdp=64), "fsdp=prefetch"),
    ],
)
def test_layers_in_the_middle_of_a_large_model_take_the_period_between_the_others(layout: Layout, text: str) -> None:
    done = apply(deep(layout, gbs=2 * layout.dp * layout.fsdp), parse_policy(text))
    assert done.refused == ()
    folded, full = both(done.plan, MACHINE)
    assert abs(folded - full) <= _ROUNDING_NS


def test_a_message_in_flight_slows_a_folded_stretch_as_it_slows_its_operations() -> None:
    done = apply(deep(Layout(tp=8, pp=4, dp=16, sp=True), gbs=64), parse_policy("pp=async_p2p"))
    folded, full = both(done.plan, MACHINE)
    assert folded == pytest.approx(full, rel=1e-3)


def test_folding_leaves_few_operations_to_simulate() -> None:
    made = deep(Layout(tp=8, pp=4, dp=16, sp=True), gbs=64)
    assert fold(made, Known(MACHINE)).nodes < len(simulate(made, MACHINE, bounds=False).built.lane) / 50


@settings(max_examples=40, deadline=None)
@given(scenarios(), st.sampled_from([text for text in ["", *_TEXTS] if "pp=" not in text]))
def test_hidden_and_exposed_of_folded_roles_are_those_of_their_operations(drawn: Drawn, text: str) -> None:
    # The other schedules have sends in flight throughout, of which folding only knows an even share.
    assume(drawn.layout.schedule in ("1f1b", "gpipe"))
    made = apply(drawn.plan(), parse_policy(text)).plan
    folded, full = fold(made, Known(GRAPHS)), simulate(made, GRAPHS, bounds=False)
    for role in made.roles:
        rows, here = full.expansions[role.name].rows, full.rows(role.name)
        start, end = full.times.start_ns[here], full.times.end_ns[here].copy()
        met = full.built.rendezvous[here]
        joints = len(full.built.lane) - (int(full.built.rendezvous.max(initial=-1)) + 1)
        end[met >= 0] = full.times.end_ns[joints + met[met >= 0]]
        compute = union(start[rows.kind == OpKind.COMPUTE], end[rows.kind == OpKind.COMPUTE])
        sent = union(start[rows.kind == OpKind.ISSUE], end[rows.kind == OpKind.ISSUE])
        hidden = length(intersect(compute, sent))
        found = folded.spans[role.name]
        for got, expected in (
            (found.compute_ns, length(compute)),
            (found.hidden_ns, hidden),
            (found.exposed_ns, length(sent) - hidden),
        ):
            assert abs(got - expected) <= max(_ROUNDING_NS, 1e-3 * full.step_ns)


def test_a_stretch_that_was_simulated_once_is_not_simulated_again() -> None:
    known = Known(MACHINE)
    made = plan(DENSE, Layout(tp=2, pp=2), Train(gbs=4, mbs=1, seq=64), domain=8)
    fold(made, known)
    before = len(known.stretches)
    fold(plan(DENSE, Layout(tp=2, pp=2), Train(gbs=16, mbs=1, seq=64), domain=8), known)
    assert len(known.stretches) == before
