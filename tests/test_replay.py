"""The event kernel: given durations exactly, shared rates by hand, and both engines alike where numba is installed."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underlap import replay
from underlap.errors import ScheduleError
from underlap.event_kernel import compiled, plain
from underlap.reduction import join_ranks, reduce_rank
from underlap.replay import COMMUNICATION, COMPUTE, Bursts, Network, SharedRates, network


def columns(*rows: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def made(lanes: list[int], work: list[int], *edges: tuple[int, int, int], rendezvous: list[int] | None = None) -> Network:
    joined = None if rendezvous is None else np.array(rendezvous, dtype=np.int32)
    return network(np.array(lanes, dtype=np.int32), np.array(work), rendezvous=joined, edges=columns(*edges))


def ends(plan: Network, rates: SharedRates | None = None) -> list[int]:
    return replay.replay(plan, rates).end_ns.tolist()


def sharing(kinds: list[int], devices: list[int], slowdown: float, links: list[int] | None = None, demand: float = 1.0):
    count = max([*devices, 0]) + 1
    return SharedRates(
        kind=np.array(kinds, dtype=np.int8),
        device=np.array(devices, dtype=np.int32),
        units=np.ones(len(kinds), dtype=np.int32),
        curve=np.zeros(len(kinds), dtype=np.int32),
        curves=np.array([[1.0, slowdown]]),
        late=np.zeros(len(kinds), dtype=np.int8),
        memory=np.zeros(len(kinds)),
        link=np.array(links or [-1] * len(kinds), dtype=np.int32),
        demand=np.full(len(kinds), demand),
        links=2,
        devices=count,
    )


@st.composite
def plans(draw: st.DrawFn, ranks: int = 1) -> list[Network]:
    """Per rank a network whose edges lead forward, with the same number of rendezvous in the same order on one lane."""
    meetings = draw(st.integers(0, 4))
    result = []
    for _ in range(ranks):
        size = draw(st.integers(meetings, 14))
        lanes = draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size))
        places = sorted(draw(st.sets(st.integers(0, size - 1), min_size=meetings, max_size=meetings))) if size else []
        joined = [-1] * size
        for number, place in enumerate(places):
            joined[place], lanes[place] = number, 3
        pairs = [(a, b) for a, b in itertools.combinations(range(size), 2)]
        chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * size)) if pairs else []
        edges = [(a, b, draw(st.integers(0, 9))) for a, b in chosen]
        work = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
        release = draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
        plan = network(
            np.array(lanes, dtype=np.int32).reshape(-1),
            np.array(work, dtype=np.int64),
            release_ns=np.array(release, dtype=np.int64),
            rendezvous=np.array(joined, dtype=np.int32).reshape(-1),
            edges=columns(*edges),
        )
        result.append(plan)
    return result


# ---- given durations


def test_nothing_replays_to_nothing() -> None:
    assert ends(made([], [])) == []


def test_one_operation_starts_at_its_release_time() -> None:
    plan = network(np.array([0]), np.array([5]), release_ns=np.array([7]))

    assert replay.replay(plan).start_ns.tolist() == [7]
    assert ends(plan) == [12]


def test_a_lane_runs_its_rows_one_after_the_other() -> None:
    assert ends(made([0, 0, 1, 0], [5, 3, 2, 1])) == [5, 8, 2, 9]


def test_without_a_lane_only_edges_hold_an_operation() -> None:
    assert ends(made([-1, -1, -1], [5, 3, 2], (0, 2, 4))) == [5, 3, 11]


def test_the_latest_of_several_edges_decides() -> None:
    assert ends(made([0, 1, 2], [5, 3, 2], (0, 2, 0), (1, 2, 1), (1, 2, 9))) == [5, 3, 14]


def test_a_lag_may_be_negative_as_a_kernel_can_start_before_its_launch_returns() -> None:
    assert ends(made([0, 1], [5, 2], (0, 1, -3))) == [5, 4]


def test_members_of_a_rendezvous_begin_with_the_last_one_and_hold_their_lanes_while_they_wait() -> None:
    plan = made([0, 0, 0, 1, 1, 1], [2, 10, 1, 7, 11, 1], rendezvous=[-1, 0, -1, -1, 0, -1])
    times = replay.replay(plan)

    assert times.start_ns.tolist() == [0, 2, 17, 0, 7, 18]
    assert times.begin_ns.tolist() == [0, 7, 17, 0, 7, 18]
    assert times.end_ns.tolist() == [2, 17, 18, 7, 18, 19]


def test_a_circle_is_refused_with_the_operations_in_it() -> None:
    with pytest.raises(ScheduleError, match=r"3 of 4 operations never start.*circle \((1, 3, 2|3, 2, 1|2, 1, 3)\)"):
        replay.replay(made([-1] * 4, [1] * 4, (1, 2, 0), (2, 3, 0), (3, 1, 0)))


def test_rendezvous_in_opposite_orders_on_two_lanes_are_a_circle() -> None:
    with pytest.raises(ScheduleError, match="wait for one another in a circle"):
        replay.replay(made([0, 0, 1, 1], [1] * 4, rendezvous=[0, 1, 1, 0]))


def test_an_edge_from_nowhere_is_refused_with_both_ids() -> None:
    with pytest.raises(ScheduleError, match="edge 1 leads from operation 9 to operation 1; there are the operations 0 to 1"):
        made([0, 0], [1, 1], (0, 1, 0), (9, 1, 0))


def test_negative_work_is_refused_with_its_operation() -> None:
    with pytest.raises(ScheduleError, match="operation 1 has -4 ns of work"):
        replay.replay(made([0, 0], [1, -4]))


# ---- shared rates


def test_alone_everything_runs_at_full_rate() -> None:
    assert ends(made([0, 1], [10, 20]), sharing([COMPUTE, COMMUNICATION], [0, 1], 2.0)) == [10, 20]


def test_compute_and_communication_on_one_device_slow_each_other_while_both_run() -> None:
    # Both at half rate until 20, when the compute is done; the communication's other 20 run alone.
    assert ends(made([0, 1], [10, 30]), sharing([COMPUTE, COMMUNICATION], [0, 0], 2.0)) == [20, 40]


def test_two_computations_on_one_device_do_not_slow_each_other() -> None:
    assert ends(made([0, 1], [10, 30]), sharing([COMPUTE, COMPUTE], [0, 0], 2.0)) == [10, 30]


def test_one_link_is_shared_equally_by_those_who_want_all_of_it() -> None:
    rates = sharing([COMMUNICATION] * 2, [0, 1], 1.0, links=[0, 0])

    assert ends(made([0, 1], [10, 30]), rates) == [20, 40]


def test_who_wants_little_of_a_link_gets_it_and_the_rest_is_split() -> None:
    rates = sharing([COMMUNICATION] * 3, [0, 1, 2], 1.0, links=[0, 0, 0])
    rates.demand[:] = [0.2, 1.0, 1.0]

    # 0.2 for the first, 0.4 each for the others; from 40 on 0.5 each for their last 4.
    assert ends(made([0, 1, 2], [40, 20, 20]), rates) == [40, 48, 48]


def test_a_member_that_waits_holds_its_units_but_no_link() -> None:
    plan = made([0, 1, 2, 3], [10, 4, 8, 4], rendezvous=[-1, 0, -1, 0])
    plan = network(plan.lane, plan.work_ns, rendezvous=plan.rendezvous, edges=columns((2, 3, 0)))
    rates = sharing([COMPUTE, COMMUNICATION, COMPUTE, COMMUNICATION], [0, 0, 1, 1], 2.0)

    # Compute 0 is slowed from the start: by 8 it has done 4 of 10. The transfer begins then; on device 0 at half rate to 16.
    assert ends(plan, rates) == [18, 16, 8, 12]


def test_compute_slows_by_the_curve_at_the_units_that_transfers_hold_together() -> None:
    rates = sharing([COMPUTE, COMMUNICATION, COMMUNICATION], [0, 0, 0], 1.0)
    rates.units[:] = [0, 2, 3]
    rates = dataclasses.replace(rates, curves=np.array([[1.0] * 5 + [2.0], [1.0] * 6]), curve=np.array([0, 1, 1], dtype=np.int32))

    # Both transfers, 5 units, until 4; then 2 units, which the curve does not mind.
    assert ends(made([0, 1, 2], [10, 6, 4]), rates) == [12, 6, 4]


def test_a_persistent_kernel_stands_until_the_transfer_lets_go_and_then_runs_in_full() -> None:
    rates = sharing([COMPUTE, COMMUNICATION], [0, 0], 2.0)
    rates = dataclasses.replace(rates, late=np.array([1, 0], dtype=np.int8), curve=np.array([0, -1], dtype=np.int32))

    # A short transfer delays it by what is left of it; a long one by one more round of 10, and no more.
    for transfer, expected in ((6, [16, 6]), (60, [21, 60])):
        plan = network(np.array([0, 1]), np.array([10, transfer]), release_ns=np.array([1, 0]))
        assert ends(plan, rates) == expected


def test_a_persistent_kernel_that_runs_already_is_not_slowed_by_what_comes() -> None:
    rates = sharing([COMPUTE, COMMUNICATION], [0, 0], 2.0)
    rates = dataclasses.replace(rates, late=np.array([1, 0], dtype=np.int8), curve=np.array([0, -1], dtype=np.int32))
    plan = network(np.array([0, 1]), np.array([10, 6]), release_ns=np.array([0, 3]))

    assert ends(plan, rates) == [10, 9]


def test_memory_is_shared_fairly_by_all_that_run_on_a_device() -> None:
    rates = sharing([COMPUTE, COMMUNICATION], [0, 0], 1.0)
    rates.memory[:] = [1.0, 0.25]

    # The transfer gets its quarter, the compute three quarters until 8: 6 of its 12; then all.
    assert ends(made([0, 1], [12, 8]), rates) == [14, 8]


# ---- engines and reduction


@settings(max_examples=60, deadline=None)
@given(plans())
def test_both_engines_give_the_same_times(ranks: list[Network]) -> None:
    (plan,) = ranks
    kinds = (np.arange(len(plan)) % 3).tolist()
    rates = sharing(kinds, [at % 2 for at in range(len(plan))], 1.3, links=[at % 3 - 1 for at in range(len(plan))], demand=0.7)
    for shared in (None, rates):
        one = replay.run(plan, shared, plain)
        two = replay.run(plan, shared, compiled() or plain)

        assert one.start_ns.tolist() == two.start_ns.tolist()
        assert one.begin_ns.tolist() == two.begin_ns.tolist()
        assert one.end_ns.tolist() == two.end_ns.tolist()


@settings(max_examples=60, deadline=None)
@given(plans())
def test_rates_that_nobody_shares_give_the_given_durations(ranks: list[Network]) -> None:
    (plan,) = ranks
    alone = sharing([0] * len(plan), [0] * len(plan), 1.0)

    assert replay.replay(plan, alone).end_ns.tolist() == replay.replay(plan).end_ns.tolist()


@settings(max_examples=150, deadline=None)
@given(plans(ranks=3))
def test_a_replay_of_reduced_ranks_has_the_rendezvous_and_the_makespan_of_the_full_one(ranks: list[Network]) -> None:
    full = replay.replay(join_ranks(ranks))
    reduced = [reduce_rank(rank) for rank in ranks]
    small = replay.replay(join_ranks([rank.network for rank in reduced]))

    before_full = before_small = 0
    for rank, less in zip(ranks, reduced, strict=True):
        members = np.flatnonzero(less.original >= 0)
        rows = less.original[members]
        for name in ("start_ns", "begin_ns", "end_ns"):
            in_small = getattr(small, name)[before_small + members]
            assert in_small.tolist() == getattr(full, name)[before_full + rows].tolist()
        makespan = int(full.end_ns[before_full : before_full + len(rank)].max(initial=0))
        if len(rank):
            assert int(small.start_ns[before_small + len(less.original) - 1]) == makespan
        before_full += len(rank)
        before_small += len(less.original)


def test_a_long_rank_reduces_to_its_rendezvous() -> None:
    size = 1000
    joined = np.where(np.arange(size) % 100 == 50, np.arange(size) // 100, -1).astype(np.int32)
    lane = np.where(joined >= 0, 1, 0).astype(np.int32)
    after = np.flatnonzero(joined >= 0)
    plan = network(lane, np.full(size, 3), rendezvous=joined, edges=columns(*((at - 1, at, 1) for at in after.tolist())))

    assert len(reduce_rank(plan).original) <= 2 * 10 + 2


# ---- links that gather a burst, and shares of a core


def bursting(work, lanes, *, saved, depth, release=None, lead=0.0):
    size = len(work)
    shared = SharedRates(
        kind=np.full(size, COMMUNICATION, dtype=np.int8),
        device=np.zeros(size, dtype=np.int32),
        units=np.zeros(size, dtype=np.int32),
        curve=np.full(size, -1, dtype=np.int32),
        curves=np.ones((1, 1)),
        late=np.zeros(size, dtype=np.int8),
        memory=np.zeros(size),
        link=np.zeros(size, dtype=np.int32),
        demand=np.ones(size),
        links=1,
        devices=1,
        bursts=Bursts(
            saved_ns=np.full(size, float(saved)), lead_ns=np.full(size, float(lead)), depth_ns=np.array([float(depth)])
        ),
    )
    plan = network(
        np.array(lanes, dtype=np.int32),
        np.array(work, dtype=np.int64),
        release_ns=None if release is None else np.array(release, dtype=np.int64),
    )
    return replay.replay(plan, shared)


def test_a_transfer_right_behind_another_has_no_burst():
    times = bursting([100, 100], [0, 0], saved=30, depth=30)

    assert times.end_ns.tolist() == [100, 230]


def test_a_pause_gathers_as_much_as_it_lasts():
    times = bursting([100, 100, 100], [0, 0, 0], saved=30, depth=30, release=[0, 120, 1000])

    assert times.end_ns.tolist() == [100, 230, 1100]


def test_what_leaves_its_link_idle_at_the_begin_gathers_meanwhile():
    times = bursting([100, 100], [0, 0], saved=30, depth=30, lead=10)

    assert times.end_ns.tolist() == [100, 220]


def test_a_small_transfer_leaves_the_rest_of_a_burst_to_the_next():
    times = bursting([10, 10, 10, 10], [0, 0, 0, 0], saved=10, depth=30)

    assert times.end_ns.tolist() == [10, 20, 30, 50]


@pytest.mark.parametrize(("transfers", "expected"), [(1, 120), (2, 120)])
def test_what_transfers_take_of_a_core_goes_with_their_share_of_the_link(transfers, expected):
    size = 1 + transfers
    shared = SharedRates(
        kind=np.array([COMPUTE, *[COMMUNICATION] * transfers], dtype=np.int8),
        device=np.zeros(size, dtype=np.int32),
        units=np.array([0, *[20] * transfers], dtype=np.int32),
        curve=np.array([0, *[-1] * transfers], dtype=np.int32),
        curves=np.array([[1 + units / 100 for units in range(101)]]),
        late=np.zeros(size, dtype=np.int8),
        memory=np.zeros(size),
        link=np.array([-1, *[0] * transfers], dtype=np.int32),
        demand=np.ones(size),
        links=1,
        devices=1,
        proportional=True,
    )
    plan = network(np.arange(size, dtype=np.int32), np.array([100, *[500] * transfers], dtype=np.int64))

    assert replay.replay(plan, shared).end_ns[0] == expected
