"""Waiting for the last of several ranks whose times vary, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from underlap import inputs
from underlap.errors import OptionError
from underlap.expansion import expand
from underlap.flows import simulate as flow
from underlap.plan import OpKind, Plan
from underlap.planner import plan
from underlap.simulate import Machine, simulate
from underlap.simulate.jitter import expected_maximum

MACHINE = Machine(topology=inputs.cluster("dgx-h100").topology, contention=False, launches=False)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 3 / (2 * math.sqrt(math.pi))),
        # Harter 1961, table of expected values of normal order statistics.
        (5, 1.16296),
        (10, 1.53875),
    ],
)
def test_the_expected_last_of_several_is_that_of_the_tables(count: int, expected: float) -> None:
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-4)


def asked(layout: str) -> flow.Scenario:
    return flow.scenario(model="tiny-dense", cluster="dgx-h100", layout=layout, workload="prefill,batch=2,seq=512")


def planned(question: flow.Scenario) -> Plan:
    return plan(question.model, question.layout, question.workload, domain=8)


def test_one_device_waits_for_nobody() -> None:
    made = planned(asked("tp=1"))
    loose = Machine(topology=MACHINE.topology, contention=False, launches=False, jitter=0.5)
    assert simulate(made, loose).step_ns == simulate(made, MACHINE).step_ns


def test_each_collective_waits_sigma_of_the_compute_before_it_times_the_expected_last() -> None:
    made = planned(asked("tp=2"))
    loose = Machine(topology=MACHINE.topology, contention=False, launches=False, jitter=0.1)
    before, after = simulate(made, MACHINE), simulate(made, loose)
    (role,) = made.roles
    rows, waited, squares = expand(made, role).rows, 0.0, 0.0
    for row, length in enumerate(before.times.end_ns - before.times.start_ns):
        if rows.kind[row] == OpKind.COMPUTE:
            squares += float(0.1 * length) ** 2
        if rows.kind[row] == OpKind.ISSUE:
            waited += math.sqrt(squares) / math.sqrt(math.pi)
            squares = 0.0
    assert after.step_ns - before.step_ns == pytest.approx(waited, abs=len(rows))


def test_a_slow_rank_adds_what_its_compute_takes_longer_and_the_others_wait_for_it() -> None:
    def question(*stragglers: str) -> flow.Scenario:
        return flow.scenario(
            model="llama3-8b",
            cluster="dgx-h100",
            layout="tp=2",
            workload="prefill,batch=1,seq=4096",
            contention=False,
            stragglers=stragglers,
        )

    plain, late = (flow.simulate(asked, deep=False) for asked in (question(), question("rank=1,compute=2")))
    assert plain.prediction is not None
    assert late.prediction is not None
    assert len(late.ranks) == 2
    # Every layer is a chain of compute and all-reduces: the whole of the slow rank's extra compute is added.
    added = late.prediction.step_ns - plain.prediction.step_ns
    assert added == pytest.approx(plain.prediction.compute_ns, rel=0.001)
    assert late.prediction.bytes_by_axis == plain.prediction.bytes_by_axis


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=2,compute=2", "expected 0 to 1"),
        ("rank=0", "does not say compute"),
        ("compute=2", "does not say rank"),
        ("rank=0,compute=0.5", "expected how many times longer"),
        ("rank=0,speed=2", "unknown part"),
    ],
)
def test_a_straggler_that_cannot_be_is_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        flow.scenario(
            model="tiny-dense", cluster="dgx-h100", layout="tp=2", workload="prefill,batch=2,seq=512", stragglers=[text]
        )
