"""Why communication is exposed, on Timelines into which each cause is planted with a known amount.

compute   ..........[####]      A block is one exposed stretch of `amount` ns and the kernels that make its cause;
talk      [========]            blocks stand one after the other on the lanes of one device.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import underlap
from tests.strategies import timelines
from tests.timelines import COMMUNICATION, COMPUTE, COPY, WAIT, Call, Host, Op, build, group, info
from underlap import intervals
from underlap.analyze import accounting, causes, steps
from underlap.analyze.latencies import of_rank
from underlap.analyze.verdicts import ADVICE
from underlap.report import Report
from underlap.timeline import HostKind, Timeline

amounts = st.integers(1, 5_000_000)
few = settings(max_examples=25, deadline=None)
"""For cheap arithmetic that few examples pin down."""

EARLY = -1
"""The launch of kernels that were submitted long ago."""


@dataclasses.dataclass
class Plan:
    """Rows of one device, in order of time."""

    at: int = 0
    ops: list[Op] = dataclasses.field(default_factory=list)
    host: list[Host] = dataclasses.field(default_factory=list)
    calls: int = 0

    def compute(self, start: int, end: int, launch: int = EARLY) -> None:
        self.ops.append(Op(COMPUTE, start, end, launch=launch))

    def talk(self, start: int, end: int, launch: int | None = None, lane: str = "20") -> None:
        self.ops.append(Op(COMMUNICATION, start, end, self.calls, start if launch is None else launch, lane=lane))
        self.calls += 1

    def timeline(self) -> Timeline:
        return build(self.ops, calls=[Call()] * self.calls, host=self.host)


def dependent(plan: Plan, amount: int) -> int:
    end = plan.at + amount
    plan.talk(plan.at, end)
    plan.compute(end + 15, end + 25)
    return end + 25


def too_little_compute(plan: Plan, amount: int) -> int:
    begin = plan.at + 10
    plan.compute(plan.at, begin)
    plan.talk(plan.at, begin + amount)
    plan.compute(begin + amount, begin + amount + 10)
    return begin + amount + 10


def serialized(plan: Plan, amount: int) -> int:
    end = plan.at + amount
    plan.talk(plan.at, end + 10)
    plan.ops.append(Op(COPY, plan.at, end, launch=EARLY))
    plan.compute(end, end + 10)
    return end + 10


def serialized_or_dependent(plan: Plan, amount: int) -> int:
    end = plan.at + amount
    plan.talk(plan.at, end, lane="7")
    plan.compute(end, end + 10)
    return end + 10


def late_launch(plan: Plan, amount: int) -> int:
    end = plan.at + amount
    plan.talk(plan.at, end)
    plan.compute(end, end + 10, launch=end)
    return end + 10


def throttled(plan: Plan, amount: int) -> int:
    plan.host.append(Host("cudaStreamSynchronize", plan.at, plan.at + amount, HostKind.SYNC))
    return late_launch(plan, amount)


def queued_behind(plan: Plan, amount: int) -> int:
    """The first collective is hidden; the second could have been hidden beside it."""
    border = plan.at + 10 + amount
    # Launched after it, so the second collective did not need it.
    plan.compute(plan.at, border, launch=plan.at)
    plan.talk(plan.at, border)
    plan.talk(border, border + amount, launch=plan.at - 1)
    plan.compute(border + amount, border + amount + 10)
    return border + amount + 10


PLANTS: dict[str, Callable[[Plan, int], int]] = {
    plant.__name__: plant
    for plant in (queued_behind, late_launch, throttled, serialized, serialized_or_dependent, dependent, too_little_compute)
}


def planted(blocks: Sequence[tuple[str, int]]) -> Timeline:
    plan = Plan()
    for cause, amount in blocks:
        plan.at = PLANTS[cause](plan, amount) + 5
    return plan.timeline()


def whole(timeline: Timeline) -> Report:
    return underlap.analyze(timeline, window="whole")


def found_in(timeline: Timeline) -> dict[str, int]:
    """Cause -> ns, largest first."""
    return {row.cause: row.exposed_ns for row in whole(timeline).causes}


def slices_of(timeline: Timeline, waiting: causes.Waiting | None = None) -> dict[tuple[int, int], list[causes.Slice]]:
    """Per device, of the whole window."""
    ops, selection = timeline.ops, steps.select(timeline, steps.find(timeline), "whole", None)
    result = {}
    for key, stretches in selection.stretches.items():
        rows = np.flatnonzero((ops.rank == key[0]) & (ops.device == key[1]))
        result[key] = causes.device_causes(timeline, rows, accounting.device_sets(ops.take(rows)), stretches, waiting)
    return result


def two_ranks(late: int, transfer: int, *, entry: bool = False, pipeline: bool = False) -> Timeline:
    """Rank 1 comes `late` ns after rank 0 to a collective that then takes `transfer` ns."""
    ops, calls = [], []
    names = [("send", "recv")] if pipeline else [("all_reduce", "all_reduce")]
    begin = 1_000_000
    if not entry:
        # They met before, so it is not their entry into the window.
        names = [("all_reduce", "all_reduce"), *names]
    for rank in (0, 1):
        entered = late if entry and rank else 0
        ops.append(Op(COMPUTE, entered, entered + 10, launch=entered - 5, rank=rank))
        start = begin + late if rank else begin
        spans = [(start, begin + late + transfer)] if entry else [(100, 200), (start, begin + late + transfer)]
        for at, (low, high) in enumerate(spans):
            ops.append(Op(COMMUNICATION, low, high, len(calls), low - 5, rank=rank, lane="20"))
            calls.append(Call(names[at][rank], 8, 0, at, rank=rank, peer=1 - rank if names[at][rank] != "all_reduce" else None))
        # Longer than all transfer, so that the link is not what decides.
        after = begin + late + transfer + 15
        ops.append(Op(COMPUTE, after, after + transfer + 300, launch=0, rank=rank))
    return build(ops, calls=calls, groups=[group(0, 1, description="mesh_pp" if pipeline else "mesh_dp")])


def test_a_timeline_without_communication_has_no_causes() -> None:
    report = whole(build([Op(COMPUTE, 0, 10)]))

    assert (report.causes, report.coverage, report.headline) == ([], None, None)


def test_every_cause_has_advice_and_nothing_else_has() -> None:
    assert set(causes.CAUSES) == set(ADVICE)


@pytest.mark.parametrize("cause", PLANTS)
@few
@given(amount=amounts)
def test_a_planted_cause_is_the_only_one_and_exact(cause: str, amount: int) -> None:
    assert found_in(planted([(cause, amount)])) == {cause: amount}


@settings(deadline=None)
@given(blocks=st.lists(st.tuples(st.sampled_from(sorted(PLANTS)), amounts), min_size=1, max_size=12))
def test_planted_causes_in_any_mixture_come_back_exactly(blocks: list[tuple[str, int]]) -> None:
    expected: Counter[str] = Counter()
    for cause, amount in blocks:
        expected[cause] += amount
    found = found_in(planted(blocks))

    assert found == dict(expected)
    assert list(found.values()) == sorted(expected.values(), reverse=True)


@few
@given(amount=amounts)
def test_without_any_launch_the_cause_is_unknown(amount: int) -> None:
    report = whole(build([Op(COMMUNICATION, 0, amount, 0, lane="20"), Op(COMPUTE, amount, amount + 9)], calls=[Call()]))

    assert [(row.cause, row.exposed_ns) for row in report.causes] == [("unknown", amount)]
    assert report.coverage == 0


@few
@given(late=amounts, transfer=amounts)
def test_compute_launched_midway_is_late_until_then_and_dependent_after(late: int, transfer: int) -> None:
    plan = Plan()
    plan.talk(0, late + transfer)
    plan.compute(late + transfer, late + transfer + 10, launch=late)

    assert found_in(plan.timeline()) == {"late_launch": late, "dependent": transfer}


@few
@given(free=amounts, blocked=amounts)
def test_only_the_time_in_the_blocking_call_is_throttled(free: int, blocked: int) -> None:
    plan = Plan(host=[Host("cudaMalloc", free, free + blocked, HostKind.RUNTIME)])
    plan.talk(0, free + blocked)
    plan.compute(free + blocked, free + blocked + 10, launch=free + blocked)

    assert found_in(plan.timeline()) == {"late_launch": free, "throttled": blocked}


@pytest.mark.parametrize("name", ["cudaMallocAsync", "cudaLaunchKernel", "aten::mm"])
def test_calls_that_do_not_block_are_not_throttling(name: str) -> None:
    plan = Plan(host=[Host(name, 0, 100, HostKind.RUNTIME)])
    plan.talk(0, 100)
    plan.compute(100, 110, launch=100)

    assert found_in(plan.timeline()) == {"late_launch": 100}


def test_blocking_of_another_thread_is_not_throttling() -> None:
    plan = Plan(host=[Host("cudaDeviceSynchronize", 0, 100, HostKind.SYNC, thread="2")])
    plan.talk(0, 100)
    plan.compute(100, 110, launch=100)

    assert found_in(plan.timeline()) == {"late_launch": 100}


@few
@given(delay=amounts, length=amounts)
def test_a_queue_costs_what_it_delayed_and_inherits_the_rest(delay: int, length: int) -> None:
    plan = Plan()
    plan.compute(0, delay, launch=0)
    plan.talk(0, delay)
    plan.talk(delay, delay + length, launch=-1)
    plan.compute(delay + length, delay + length + 10)
    rows = {row.cause: (row.exposed_ns, row.inherited) for row in whole(plan.timeline()).causes}

    queued = min(delay, length)
    assert rows.pop("queued_behind") == (queued, {"dependent": queued})
    assert rows == ({"dependent": (length - queued, {})} if length > queued else {})


def test_compute_that_may_have_made_its_input_delays_a_queued_collective() -> None:
    """Launched before it, in another lane: what the queue cost begins when that compute is over."""
    plan = Plan()
    plan.compute(0, 60_000, launch=-9)
    plan.talk(0, 100_000)
    plan.talk(100_000, 300_000, launch=-5)
    plan.compute(300_000, 300_010)

    assert found_in(plan.timeline()) == {"dependent": 160_000, "queued_behind": 40_000, "too_little_compute": 40_000}


def test_a_collective_behind_a_kernel_of_its_lane_is_not_queued_behind_the_collective_before() -> None:
    plan = Plan()
    for at in range(0, 4_000_000, 400_000):
        plan.talk(at, at + 300_000, launch=-1_000_000, lane="7")
        plan.compute(at + 300_000, at + 400_000)

    assert set(found_in(plan.timeline())) == {"serialized_or_dependent"}


@pytest.mark.parametrize(("gap", "queued"), [(18_000, True), (39_000, True), (41_000, False)])
def test_the_yardstick_of_a_queue_is_the_lane_s_own_usual_gap(gap: int, queued: bool) -> None:
    """Collectives that stand 18 us apart in their lane queue all the same; twice what any device needs is no queue."""
    plan = Plan()
    at = 0
    for _ in range(4):
        plan.talk(at, at + 100_000, launch=-400_000)
        at += 100_000 + gap
    plan.compute(at, at + 10)

    assert ("queued_behind" in found_in(plan.timeline())) == queued


@few
@given(needed=amounts, more=st.integers(2, 1_000_000))
def test_compute_after_one_collective_may_need_it_though_another_still_runs(needed: int, more: int) -> None:
    plan = Plan()
    plan.talk(0, needed)
    plan.talk(needed // 2, needed + more, lane="21")
    plan.compute(needed + more - 1, needed + more + 10)

    assert found_in(plan.timeline()) == {"dependent": needed, "serialized": more - 1}


@few
@given(amount=amounts)
def test_compute_missing_to_the_end_is_too_little_compute(amount: int) -> None:
    plan = Plan()
    plan.compute(0, 10)
    plan.talk(0, 10 + amount)

    assert found_in(plan.timeline()) == {"too_little_compute": amount}


@few
@given(overlap=st.integers(1, 40_000), gap=st.integers(0, 20_000), resolution=st.sampled_from([1, 1000]))
def test_only_an_overlap_above_the_noise_of_the_trace_is_one(overlap: int, gap: int, resolution: int) -> None:
    """Kernels that follow each other in a queue stand `gap` apart: an overlap that is no longer shows nothing."""
    ops, at = [], -10_000_000
    for _ in range(20):
        ops.append(Op(COMPUTE, at, at + 60_000, launch=-20_000_000))
        at += 60_000 + gap
    ops += [Op(COMPUTE, 0, overlap, launch=-20_000_000), Op(COMMUNICATION, 0, 100_000, 0, -5, lane="20")]
    ops.append(Op(COMPUTE, 100_000, 100_009, launch=-20_000_000))
    rank = dataclasses.replace(info(), resolution_ns=resolution)
    found = found_in(build(ops, calls=[Call()], ranks=[rank]))

    noise = max(gap, 2 * resolution)
    assert found == {"too_little_compute" if overlap > noise else "dependent": 100_000 - overlap}


def test_the_usual_launch_latency_is_the_median_of_the_device_and_is_not_waiting_for_the_host() -> None:
    ops = [Op(COMPUTE, 100 * at + 7, 100 * at + 50, launch=100 * at) for at in range(-20, 0)]
    ops += [Op(COMMUNICATION, 0, 90, 0, launch=-100, lane="20"), Op(COMPUTE, 90, 99, launch=30)]
    timeline = build(ops, calls=[Call()])

    assert of_rank(timeline.ops, 1).launch == 7
    assert found_in(timeline) == {"late_launch": 37, "dependent": 53}


@pytest.mark.parametrize(("launches", "late"), [(6, 30), (8, 37)])
def test_few_launches_give_no_usual_latency(launches: int, late: int) -> None:
    """What is seen less than eight times is not usual: then every moment after the launch counts as submitted."""
    ops = [Op(COMPUTE, 100 * at + 7, 100 * at + 50, launch=100 * at) for at in range(-launches, 0)]
    ops += [Op(COMMUNICATION, 0, 90, 0, launch=-20, lane="20"), Op(COMPUTE, 90, 99, launch=30)]

    assert found_in(build(ops, calls=[Call()]))["late_launch"] == late


@few
@given(length=amounts, replays=st.integers(1, 9))
def test_kernels_of_a_graph_are_not_late_inside_it(length: int, replays: int) -> None:
    """One launch for all of them: what comes late in the graph was not launched late."""
    ops, period = [], 3 * length + 100
    for at in range(replays):
        begin = at * period
        ops.append(Op(COMMUNICATION, begin + 10, begin + 10 + length, at, begin, lane="20", graph=at))
        ops.append(Op(COMPUTE, begin + 10 + length, begin + 10 + 2 * length, launch=begin, graph=at))

    assert found_in(build(ops, calls=[Call()] * replays)) == {"dependent": replays * length}


@few
@given(length=amounts, late=amounts)
def test_a_graph_launched_late_is_late_as_a_whole(length: int, late: int) -> None:
    ops = [Op(COMMUNICATION, 0, late + length, 0, -5, lane="20")]
    ops += [Op(COMPUTE, late + length + 9 * at, late + length + 9 * at + 9, launch=late, graph=0) for at in range(20)]

    assert found_in(build(ops, calls=[Call()])) == {"late_launch": late, "dependent": length}


@few
@given(busy=amounts, length=amounts)
def test_on_a_cpu_rank_the_thread_that_goes_on_afterwards_needed_it(busy: int, length: int) -> None:
    def run(*ops: Op) -> dict[str, int]:
        return found_in(build(ops, calls=[Call(library="gloo")], ranks=[info(on_cpu=True)]))

    talk = Op(COMMUNICATION, 0, busy + length, 0, lane="20")
    after = Op(COMPUTE, busy + length, busy + length + 9)

    assert run(talk, after) == {"dependent": busy + length}
    # An overlap of two nanoseconds is within what the times are rounded to.
    assert run(talk, Op(COMPUTE, 0, busy), after) == {"too_little_compute" if busy > 2 else "dependent": length}
    assert run(talk, Op(COMPUTE, busy, busy + length + 9)) == {"late_launch": busy}


def test_on_a_cpu_rank_only_what_outlasts_the_wait_is_late() -> None:
    ops = [Op(COMMUNICATION, 0, 100, 0, lane="20"), Op(COMMUNICATION, 50, 300, 1, lane="21"), Op(COMPUTE, 120, 300)]
    timeline = build(ops, calls=[Call(library="gloo")] * 2, ranks=[info(on_cpu=True)])

    assert found_in(timeline) == {"dependent": 100, "late_launch": 20}


@few
@given(busy=amounts, length=amounts)
def test_on_a_cpu_rank_a_call_that_was_not_asynchronous_held_what_follows_whether_needed_or_not(busy: int, length: int) -> None:
    def run(asynchronous: int) -> dict[str, int]:
        ops = [Op(COMMUNICATION, busy, busy + length, 0, lane="20"), Op(COMPUTE, busy + length, busy + length + 9)]
        return found_in(build(ops, calls=[Call(library="gloo", asynchronous=asynchronous)], ranks=[info(on_cpu=True)]))

    assert run(0) == {"serialized_or_dependent": length}
    assert run(1) == run(-1) == {"dependent": length}


def test_on_a_cpu_rank_a_call_queues_behind_another_one_from_when_it_was_asked_for() -> None:
    calls = [Call(library="gloo", issue=at) for at in (0, 20)]
    talk = [Op(COMMUNICATION, 5, 1000, 0, lane="20"), Op(COMMUNICATION, 1000, 1300, 1, lane="20")]
    timeline = build([*talk, Op(COMPUTE, 1300, 1400)], calls=calls, ranks=[info(on_cpu=True)])

    assert found_in(timeline) == {"queued_behind": 980, "dependent": 315}


@few
@given(late=st.integers(10, 900_000), transfer=st.integers(10, 5_000_000))
def test_waiting_for_a_late_rank_is_exact_and_its_transfer_is_not_waiting(late: int, transfer: int) -> None:
    found = found_in(two_ranks(late, transfer))

    assert found.pop("late_peer") == late
    assert found == {"dependent": 2 * transfer + 200}


@few
@given(late=st.integers(10, 900_000), transfer=st.integers(10, 5_000_000))
def test_waiting_for_a_rank_that_entered_late_is_apart_from_lateness(late: int, transfer: int) -> None:
    timeline = two_ranks(late, transfer, entry=True)

    assert found_in(timeline) == {"window_entry": late, "dependent": 2 * transfer}
    assert [row.straggler for row in whole(timeline).late] == [False]


@few
@given(late=st.integers(10, 900_000), transfer=st.integers(10, 5_000_000))
def test_waiting_between_pipeline_stages_is_bubble_and_blames_nobody(late: int, transfer: int) -> None:
    timeline = two_ranks(late, transfer, pipeline=True)

    assert found_in(timeline) == {"bubble": late, "dependent": 2 * transfer + 200}
    assert whole(timeline).late == []


def test_waiting_within_the_uncertainty_of_the_clocks_is_not_called_waiting() -> None:
    """Ends that differ by 400 ns between the ranks leave a skew of 300 ns unproven."""
    ops, calls = [], []
    for at in range(6):
        for rank in (0, 1):
            begin = 10_000 * at
            end = begin + 5_000 + (400 if (at + rank) % 2 else 0)
            ops.append(Op(COMMUNICATION, begin + 300 * rank, end, len(calls), begin - 5, rank=rank, lane="20"))
            calls.append(Call("all_reduce", 8, 0, at, rank=rank))
            ops.append(Op(COMPUTE, end + 15, end + 100, launch=-9, rank=rank))

    found = found_in(build(ops, calls=calls, groups=[group(0, 1)]))
    assert "late_peer" not in found
    assert sum(found.values()) > 0


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(timeline=timelines(), marks=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=6))
def test_slices_partition_the_exposed_time_without_overlap(timeline: Timeline, marks: list[tuple[int, int]]) -> None:
    def part(rows: list[tuple[int, int]]) -> intervals.Int64:
        start = np.array([low for low, _ in rows], dtype=np.int64)
        return intervals.union(start, start + np.array([length for _, length in rows], dtype=np.int64))

    selection = steps.select(timeline, steps.find(timeline), "whole", None)
    for waiting in (None, causes.Waiting(entry=part(marks[:2]), peer=part(marks[2:4]), bubble=part(marks[4:]))):
        for (rank, device), slices in slices_of(timeline, waiting).items():
            own = timeline.ops.take(np.flatnonzero((timeline.ops.rank == rank) & (timeline.ops.device == device)))
            exposed = intervals.intersect(accounting.device_sets(own).exposed, selection.stretches[rank, device])
            borders = [(piece.start_ns, piece.end_ns) for piece in slices]
            assert all(low < high for low, high in borders)
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(borders))
            merged = intervals.union(*np.array(borders, dtype=np.int64).reshape(-1, 2).T)
            assert merged.tolist() == exposed.tolist()
            assert {piece.cause for piece in slices} <= set(ADVICE)


@settings(deadline=None)
@given(timeline=timelines())
def test_every_slice_names_a_call_and_evidence_of_its_device(timeline: Timeline) -> None:
    for (rank, device), slices in slices_of(timeline).items():
        for piece in slices:
            assert piece.evidence < 0 or timeline.ops.rank[piece.evidence] == rank
            assert piece.evidence < 0 or timeline.ops.device[piece.evidence] == device
            talk = np.isin(timeline.ops.op_class, (COMMUNICATION, WAIT)) & (timeline.ops.rank == rank)
            running = talk & (timeline.ops.start_ns < piece.end_ns) & (timeline.ops.end_ns > piece.start_ns)
            assert piece.call in timeline.ops.collective[running]
            assert (piece.inherited is not None) == (piece.cause == "queued_behind")


@settings(deadline=None)
@given(timeline=timelines())
def test_causes_of_a_family_add_up_to_its_exposed_share(timeline: Timeline) -> None:
    report = whole(timeline)

    assert sum(row.exposed_ns for row in report.causes) == sum(row.exposed_ns for row in report.ranks)
    assert sum(row.share for row in report.causes) == pytest.approx(1 if report.causes else 0)
    for family in report.families:
        assert family.verdict is not None
        total = sum(row.exposed_ns for row in family.verdict.causes)
        # Each border between slices can leave a remainder of a nanosecond per family with another one.
        assert abs(total - family.exposed_share_ns) <= len(report.families) * 2 * len(timeline.ops)


@settings(deadline=None)
@given(timeline=timelines(), shift=st.integers(-(10**15), 10**15))
def test_shifting_all_clocks_changes_no_cause(timeline: Timeline, shift: int) -> None:
    ops, host = timeline.ops, timeline.host
    known = ops.launch_ns != underlap.timeline.UNKNOWN_NS
    moved = dataclasses.replace(
        timeline,
        ops=dataclasses.replace(
            ops,
            start_ns=ops.start_ns + shift,
            end_ns=ops.end_ns + shift,
            launch_ns=np.where(known, ops.launch_ns + shift, ops.launch_ns),
        ),
        host=dataclasses.replace(host, start_ns=host.start_ns + shift, end_ns=host.end_ns + shift),
    )

    assert found_in(moved) == found_in(timeline)
