"""What transfers take of the compute beside them is conserved, moves with them, and is gone where they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.drawn import COMMUNICATION, COMPUTE, US, Op, timeline, waits_by_order, whole
from underlap import intervals, replay
from underlap.analyze import graph, rebuilt
from underlap.analyze.interference import interference, links, shared, stretch
from underlap.analyze.rebuilt import Changes
from underlap.columns import Int64
from underlap.timeline import Timeline


def with_core(drawn: Timeline, core: float) -> Timeline:
    """Each rank's communication took `core` us of its core."""
    ranks = tuple(dataclasses.replace(info, core_ns=round(core * US)) for info in drawn.ranks)
    return dataclasses.replace(drawn, ranks=ranks)


def length(drawn: Timeline, **changes: object) -> float:
    """Of the whole window, in us, with what transfers take."""
    built = graph.build(drawn, waits_by_order(drawn))
    part = rebuilt.window(drawn, built, whole(drawn))
    found = interference(drawn, built.wait_ns[: len(drawn.ops)])
    return rebuilt.length(drawn, built, part, Changes(**{"interference": found, **changes})) / US


def in_turns(compute: int, transfer: int, core: float) -> Timeline:
    """Compute and then a transfer that nothing holds back but its lane, each launched long before."""
    return with_core(
        timeline(
            Op(0, 0, compute, launch=-500),
            Op(0, compute, compute + transfer, launch=-500, op_class=COMMUNICATION),
        ),
        core,
    )


def test_a_recording_without_core_times_says_nothing_of_interference() -> None:
    drawn = timeline(Op(0, 0, 100), Op(1, 0, 100, op_class=COMMUNICATION))
    assert interference(drawn, graph.build(drawn).wait_ns[: len(drawn.ops)]) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(50, 400), st.integers(50, 400), st.floats(0.05, 0.6))
def test_a_transfer_moved_beside_compute_makes_it_longer_by_what_it_takes(compute: int, transfer: int, share: float) -> None:
    core = share * transfer
    found = length(in_turns(compute, transfer, core), serialized=False)

    # The transfer takes `share` of the time that both run: all of it where compute is long enough, else as long as compute lasts.
    longer = core if compute / (1 - share) >= transfer else compute / (1 - share) - compute
    assert found == pytest.approx(max(compute + longer, transfer), rel=3e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(50, 400), st.floats(0.05, 0.6))
def test_without_transfers_compute_is_as_short_as_alone(transfer: int, share: float) -> None:
    compute = 600
    drawn = with_core(
        timeline(Op(0, 0, compute, launch=-500), Op(1, 10, 10 + transfer, launch=-500, op_class=COMMUNICATION)),
        share * transfer,
    )

    assert length(drawn) == compute
    assert length(drawn, transfer=0.0) == pytest.approx(compute - share * transfer, abs=0.01)


def test_a_core_that_nothing_is_taken_of_changes_nothing() -> None:
    drawn = in_turns(100, 80, 0)
    assert length(drawn, serialized=False) == length(drawn, serialized=False, interference=None) == 100


def test_with_a_rank_whose_core_nobody_measured_nothing_is_known() -> None:
    drawn = timeline(*(Op(0, 0, 100, op_class=COMMUNICATION, rank=rank) for rank in (0, 1)))
    one = dataclasses.replace(drawn.ranks[0], core_ns=20 * US)
    built = graph.build(drawn)

    assert interference(dataclasses.replace(drawn, ranks=(one, drawn.ranks[1])), built.wait_ns[: len(drawn.ops)]) is None


def test_waiting_for_a_peer_takes_nothing() -> None:
    # Rank 0 waits 60 us beside its compute, and sends for 40.
    ops = [
        Op(1, 0, 100, launch=-9, op_class=COMMUNICATION, rank=0, call=0),
        Op(0, 0, 60, launch=-9, rank=0),
        Op(1, 60, 100, launch=-9, op_class=COMMUNICATION, rank=1, call=1),
    ]
    drawn = with_core(timeline(*ops, calls=(0, 1)), 20)
    built = graph.build(drawn, waits_by_order(drawn))
    found = interference(drawn, built.wait_ns[: len(drawn.ops)])
    assert found is not None
    assert found.stretch_ns.tolist() == [0, 0, 0]
    assert found.taken_ns.tolist() == [20 * US, 0, 20 * US]


def test_a_core_on_which_something_else_ran_is_not_taken_for_communication() -> None:
    # Both ranks send for 100 us beside their compute; on rank 1's core another program ran as well.
    ops = [
        Op(lane, 0, 100, launch=-9, op_class=COMMUNICATION if lane else COMPUTE, rank=rank) for rank in (0, 1) for lane in (0, 1)
    ]
    drawn = timeline(*ops)
    quiet, busy = (dataclasses.replace(info, core_ns=ns * US) for info, ns in zip(drawn.ranks, (20, 300), strict=True))
    found = interference(dataclasses.replace(drawn, ranks=(quiet, busy)), graph.build(drawn).wait_ns[: len(drawn.ops)])

    assert found is not None
    assert found.taken_ns.tolist() == [0, 20 * US, 0, 20 * US]
    assert found.stretch_ns.tolist() == [20 * US, 0, 20 * US, 0]


@st.composite
def recordings(draw: st.DrawFn) -> Timeline:
    """Compute and communication of one or two ranks in a few lanes, as it may come."""
    ops, calls = [], []
    for rank in range(draw(st.integers(1, 2))):
        for lane, kind in ((0, COMPUTE), (1, COMMUNICATION), (2, COMMUNICATION)):
            at = draw(st.integers(0, 20))
            for _ in range(draw(st.integers(1, 5))):
                begin = at + draw(st.integers(0, 30))
                at = begin + draw(st.integers(1, 60))
                call = len(calls) if kind == COMMUNICATION else -1
                ops.append(
                    Op(lane, begin, at, launch=draw(st.none() | st.integers(0, begin)), op_class=kind, rank=rank, call=call)
                )
                calls += [rank] if kind == COMMUNICATION else []
    return with_core(timeline(*ops, calls=tuple(calls)), draw(st.integers(0, 40)))


@settings(max_examples=80, deadline=None)
@given(recordings())
def test_unchanged_a_recording_lasts_as_long_as_it_did(drawn: Timeline) -> None:
    assert length(drawn) == length(drawn, interference=None)


@settings(max_examples=80, deadline=None)
@given(recordings())
def test_no_more_is_taken_of_compute_than_transfers_take_and_than_there_is(drawn: Timeline) -> None:
    found = interference(drawn, graph.build(drawn).wait_ns[: len(drawn.ops)])
    if found is None:
        return
    for info in drawn.ranks:
        own = drawn.ops.rank == info.rank
        assert found.taken_ns[own].sum() <= (info.core_ns or 0) + 1
        assert found.stretch_ns[own].sum() <= found.taken_ns[own].sum() + own.sum()
    assert (found.stretch_ns >= 0).all()
    assert (found.stretch_ns <= drawn.ops.end_ns - drawn.ops.start_ns).all()


def plainly(drawn: Timeline, taken: np.ndarray, transfer: Int64) -> list[float]:
    """The same, microsecond by microsecond: every bound of these recordings is a whole one."""
    ops, found = drawn.ops, [0.0] * len(drawn.ops)
    for one in range(len(ops)):
        if ops.op_class[one] != COMPUTE:
            continue
        for moment in range(int(ops.start_ns[one]) // US, int(ops.end_ns[one]) // US):
            for other in range(len(ops)):
                begin, end = (ops.end_ns[other] - transfer[other]) // US, ops.end_ns[other] // US
                if ops.rank[other] == ops.rank[one] and transfer[other] > 0 and begin <= moment < end:
                    found[one] += taken[other] * US / transfer[other]
        found[one] = min(found[one], float(ops.end_ns[one] - ops.start_ns[one]))
    return found


@settings(max_examples=40, deadline=None)
@given(recordings())
def test_what_is_taken_is_the_sum_over_every_moment(drawn: Timeline) -> None:
    ops = drawn.ops
    transfer = np.where(ops.op_class == COMMUNICATION, ops.end_ns - ops.start_ns, 0)
    taken = np.where(transfer > 0, 7 * US, 0).astype(np.float64)

    found = stretch(drawn, taken, transfer, ops.start_ns, ops.end_ns)

    assert found.tolist() == pytest.approx(plainly(drawn, taken, transfer), abs=2)


@settings(max_examples=40, deadline=None)
@given(recordings(), st.integers(-1_000_000, 1_000_000))
def test_another_origin_of_the_clock_changes_nothing(drawn: Timeline, shift: int) -> None:
    ops = drawn.ops
    moved = dataclasses.replace(drawn, ops=ops.replace(start_ns=ops.start_ns + shift, end_ns=ops.end_ns + shift))
    waits = graph.build(drawn).wait_ns[: len(ops)]
    one, other = interference(drawn, waits), interference(moved, waits)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert np.abs(one.stretch_ns - other.stretch_ns).max() <= 1


# ---- transfers of one group share its link


def over_gloo(drawn: Timeline) -> Timeline:
    """Ranks that compute on cores, all calls in one group."""
    ranks = tuple(dataclasses.replace(info, on_cpu=True) for info in drawn.ranks)
    calls = drawn.collectives
    return dataclasses.replace(drawn, ranks=ranks, collectives=calls.replace(group=np.zeros(len(calls), dtype=np.int32)))


def two_at_once(first: tuple[int, int], second: tuple[int, int]) -> Timeline:
    ops = [Op(lane, *span, op_class=COMMUNICATION, call=lane - 1) for lane, span in ((1, first), (2, second))]
    return over_gloo(timeline(*ops, calls=(0, 0)))


def longer(drawn: Timeline) -> list[float]:
    transfer = drawn.ops.end_ns - drawn.ops.start_ns
    return (shared(links(drawn), transfer, drawn.ops.end_ns) / US).tolist()


def test_two_transfers_at_once_take_half_of_the_time_from_each_other() -> None:
    assert longer(two_at_once((0, 100), (0, 100))) == [50, 50]
    assert longer(two_at_once((0, 100), (60, 160))) == [20, 20]
    assert longer(two_at_once((0, 100), (100, 160))) == [0, 0]


def test_messages_between_two_ranks_and_lanes_of_a_device_share_nothing() -> None:
    drawn = two_at_once((0, 100), (0, 100))
    calls = drawn.collectives
    messages = dataclasses.replace(drawn, collectives=calls.replace(peer=np.ones(len(calls), dtype=np.int32)))
    device = dataclasses.replace(drawn, ranks=tuple(dataclasses.replace(info, on_cpu=False) for info in drawn.ranks))

    assert longer(messages) == longer(device) == [0, 0]


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_what_a_link_carries_is_as_long_as_it_is_busy(drawn: Timeline) -> None:
    drawn = over_gloo(drawn)
    ops = drawn.ops
    transfer = np.where(ops.op_class == COMMUNICATION, ops.end_ns - ops.start_ns, 0)
    alone = transfer - shared(links(drawn), transfer, ops.end_ns)
    for info in drawn.ranks:
        own = (ops.rank == info.rank) & (transfer > 0)
        busy = intervals.length(intervals.union(ops.start_ns[own], ops.end_ns[own]))
        assert alone[own].sum() == pytest.approx(busy, abs=len(ops))


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_unchanged_a_recording_over_gloo_lasts_as_long_as_it_did(drawn: Timeline) -> None:
    drawn = over_gloo(drawn)

    assert length(drawn) == length(drawn, shared=False)


def test_transfers_that_come_to_run_at_once_are_no_shorter_together() -> None:
    # One after the other, each 100 us; then nothing holds the second any more.
    drawn = over_gloo(
        timeline(
            Op(1, 0, 100, op_class=COMMUNICATION, call=0),
            Op(0, 100, 150),
            Op(2, 150, 250, op_class=COMMUNICATION, call=1),
            calls=(0, 0),
        )
    )
    built = graph.build(drawn)
    part = rebuilt.window(drawn, built, whole(drawn))
    plan = rebuilt.network(drawn, built, part, Changes())
    free = replay.network(plan.lane, plan.work_ns)
    times = replay.replay(free)
    settled = rebuilt.settled(drawn, built, part, Changes(), rebuilt.Unsettled(free, times, links(drawn)))

    assert max(times.end_ns) == 100 * US
    assert max(settled.end_ns) == pytest.approx(200 * US, rel=0.01)
