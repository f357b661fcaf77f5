"""Step times that can be said beforehand: hidden, half hidden, dependent, contended, and between their bounds."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings

import underlap
from tests.schedule.scenarios import Drawn, scenarios
from tests.simulate.machines import MACHINE, PROCESSOR, beside, stream, transfer_ns
from underlap.cost import compute
from underlap.cost.hardware import Topology
from underlap.cost.work import Gemm, Transfer
from underlap.errors import UnderlapError
from underlap.flows import simulate as flow
from underlap.simulate import Machine, simulate
from underlap.simulate.recording import timeline

FREE = Machine(topology=MACHINE, contention=False)
SHARED = Machine(topology=MACHINE)
TRANSFER_MS = transfer_ns() / 1e6
MS = 1_000_000


def step_ms(first_ms: float, second_ms: float, *, waited_first: bool = False, machine: Machine = FREE) -> float:
    return simulate(beside(stream(first_ms), stream(second_ms), waited_first=waited_first), machine).step_ns / MS


def test_longer_independent_compute_hides_the_transfer_completely() -> None:
    assert step_ms(1, 2 * TRANSFER_MS) == pytest.approx(2 + 2 * TRANSFER_MS, abs=1e-4)


def test_half_as_long_independent_compute_hides_half_of_the_transfer() -> None:
    assert step_ms(1, TRANSFER_MS / 2) == pytest.approx(2 + TRANSFER_MS, abs=1e-4)


def test_a_result_that_is_waited_for_at_once_hides_nothing() -> None:
    assert step_ms(1, TRANSFER_MS, waited_first=True) == pytest.approx(2 + 2 * TRANSFER_MS, abs=1e-4)


def test_the_serial_sum_and_the_bound_are_what_they_say() -> None:
    done = simulate(beside(stream(1), stream(TRANSFER_MS), waited_first=False), FREE)
    assert done.serial_ns == pytest.approx((2 + 2 * TRANSFER_MS) * MS, abs=100)
    assert done.bound_ns == pytest.approx((2 + TRANSFER_MS) * MS, abs=100)


def test_memory_traffic_of_the_transfer_slows_memory_bound_compute_beside_it() -> None:
    alone, shared = step_ms(1, 2 * TRANSFER_MS), step_ms(1, 2 * TRANSFER_MS, machine=SHARED)
    assert 1.02 * alone < shared < 1.5 * alone


def test_overlap_loses_where_a_product_stands_for_the_transfer_and_slows_it_too() -> None:
    # One tile per multiprocessor: with some of them held, the last tiles wait for the transfer to end, and then run in full.
    # The transfer shares the memory meanwhile with what runs, so that in the end both took longer than one after the other.
    tile = compute.kernels_of(PROCESSOR.architecture)[0].tile
    full = Gemm(m=tile[0] * 10, n=tile[1] * 10, k=1_000_000)
    assert compute.price(full, PROCESSOR).time_ns > 2 * transfer_ns()
    beside_it = simulate(beside(stream(1), full, waited_first=False), SHARED)
    apart = simulate(beside(stream(1), full, waited_first=True), SHARED)
    assert beside_it.step_ns >= apart.step_ns, "a maximum of both could never show this"


def test_the_analyzer_reads_a_simulated_timeline_to_the_same_times() -> None:
    done = simulate(beside(stream(1), stream(TRANSFER_MS / 2), waited_first=False), FREE)
    report = underlap.analyze(timeline(done), window="whole")
    (rank,) = report.ranks
    assert report.provenance.kind == "simulated"
    assert rank.span_ns == done.step_ns
    assert rank.hidden_ns == pytest.approx(TRANSFER_MS / 2 * MS, abs=100)
    assert rank.exposed_ns == pytest.approx(TRANSFER_MS / 2 * MS, abs=100)


def test_without_contention_more_bandwidth_never_makes_the_step_longer() -> None:
    steps = []
    for factor in (1, 2, 4, 8):
        link = msgspec.structs.replace(MACHINE.scale_up, bytes_per_s=factor * 100e9)
        machine = Machine(topology=msgspec.structs.replace(MACHINE, scale_up=link), contention=False)
        held = Transfer(collective="all_reduce", payload_bytes=2**28, ranks=2, algorithm="ring", protocol="Simple")
        steps.append(simulate(beside(stream(1), stream(0.1), waited_first=False, transfer=held), machine).step_ns)
    assert steps == sorted(steps, reverse=True)


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_every_step_lies_between_its_bound_and_its_serial_sum(drawn: Drawn) -> None:
    done = simulate(drawn.plan(), dataclasses.replace(FREE, topology=_with_fabric()))
    assert done.bound_ns <= done.step_ns
    assert done.serial_ns is None or done.step_ns <= done.serial_ns


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_with_contention_no_step_is_shorter_than_without(drawn: Drawn) -> None:
    free, shared = (simulate(drawn.plan(), Machine(topology=_with_fabric(), contention=on), bounds=False) for on in (False, True))
    assert free.step_ns <= shared.step_ns + 10


def _with_fabric() -> Topology:
    return msgspec.structs.replace(MACHINE, domain=4, scale_out=MACHINE.scale_up)


@pytest.mark.parametrize(
    ("layout", "workload", "named"),
    [
        ("dp=1", "train,gbs=1099511627776,mbs=1,seq=8", "micro-batches per rank"),
        ("tp=8", "prefill,batch=1,seq=1099511627776", "lower seq, context, batch or mbs"),
    ],
)
def test_work_beyond_all_measure_is_refused_in_one_line_that_says_what_to_lower(layout: str, workload: str, named: str) -> None:
    with pytest.raises(UnderlapError, match=named):
        flow.simulate(flow.scenario(model="llama3-8b", cluster="dgx-h100", layout=layout, workload=workload))
