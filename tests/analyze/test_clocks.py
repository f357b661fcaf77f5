"""Clocks: moved where the ends of common collectives demand it, left alone where they agree, apart where nothing links them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.meetings import Kernel, Meeting, group, meet, timeline
from underlap.timeline import Timeline

MS, US = 1_000_000, 1_000


def rounds(
    seed: int,
    ranks: int = 2,
    count: int = 12,
    skew: int = 2 * MS,
    transfer: int = 200 * US,
    jitter: int = 0,
    period: int = 50 * MS,
) -> tuple[list[Kernel], dict[int, list[int]]]:
    """All-reduces in which ranks arrive at random and end together, up to the jitter; and the true waiting per rank."""
    random = np.random.default_rng(seed)
    kernels, waits = [], {rank: [] for rank in range(ranks)}
    for at in range(count):
        arrival = at * period + random.integers(0, skew + 1, ranks)
        for rank in range(ranks):
            end = int(arrival.max()) + transfer + int(random.integers(-jitter, jitter + 1))
            kernels.append(Kernel(rank, int(arrival[rank]), end))
            waits[rank].append(int(arrival.max() - arrival[rank]))
    return kernels, waits


def moved(kernels: list[Kernel], offset: dict[int, int], drift_ppm: dict[int, float] | None = None) -> list[Kernel]:
    """The kernels as clocks that are off would show them."""

    def shown(rank: int, time: int) -> int:
        return time + offset.get(rank, 0) + round((drift_ppm or {}).get(rank, 0.0) * 1e-6 * time)

    return [
        dataclasses.replace(kernel, start=shown(kernel.rank, kernel.start), end=shown(kernel.rank, kernel.end))
        for kernel in kernels
    ]


def of(kernels: list[Kernel], ranks: int = 2) -> Timeline:
    return timeline(kernels, [group(*range(ranks))])


def errors(meeting: Meeting, waits: dict[int, list[int]]) -> int:
    """The largest error of a wait beyond what is printed as its uncertainty."""
    worst = 0
    for rank, true in waits.items():
        own = np.flatnonzero(meeting.calls.table.rank == rank)
        own = own[np.argsort(meeting.times.start[own])]
        assert (meeting.met.wait[own] >= 0).all(), meeting.met.notes
        worst = max(worst, int((np.abs(meeting.met.wait[own] - true) - meeting.met.uncertainty[own]).max()))
    return worst


def test_one_rank_has_a_clock_and_nothing_to_compare_it_with() -> None:
    clocks = meet(timeline([Kernel(0, 0, 9)], [group(0, 1)])).met.clocks

    assert (clocks.offset_ns.tolist(), clocks.residual_ns.tolist()) == ([0], [-1])


def test_clocks_that_agree_within_some_microseconds_are_not_moved() -> None:
    kernels, waits = rounds(1, jitter=5 * US)

    meeting = meet(of(moved(kernels, {1: 15 * US})))

    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]
    assert 7 * US < meeting.met.clocks.residual_ns.max() < 20 * US
    assert errors(meeting, waits) <= 0


def test_an_offset_of_seconds_does_not_hide_a_skew_of_a_millisecond() -> None:
    skew, offset = 1_600 * US, 11_560 * MS
    kernels = [
        kernel
        for at in range(8)
        for kernel in (
            Kernel(0, at * 40 * MS, at * 40 * MS + 1_900 * US),
            Kernel(1, at * 40 * MS + skew, at * 40 * MS + 1_900 * US + at % 3 * US),
        )
    ]

    meeting = meet(of(moved(kernels, {1: offset})))

    assert abs(int(meeting.met.clocks.offset_ns[1]) - offset) <= 2 * US
    assert meeting.met.clocks.residual_ns.max() <= 2 * US
    assert all(abs(wait - skew) <= 2 * US for wait in meeting.waits(0))
    assert meeting.waits(1) == [0] * 8
    assert "11560.00" in meeting.notes()["clock_moved"]


def test_an_offset_that_one_instance_shows_is_not_believed() -> None:
    meeting = meet(of(moved([Kernel(0, 0, 100 * US), Kernel(1, 0, 100 * US)], {1: 5 * MS})))

    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]
    assert (meeting.met.wait == -1).all()
    assert "ends before another arrives" in meeting.reasons[0]


def test_an_outlier_end_does_not_bend_the_offset() -> None:
    kernels, _ = rounds(3, count=9)
    kernels = moved(kernels, {1: 3 * MS})
    straight = int(meet(of(kernels)).met.clocks.offset_ns[1])
    kernels[1] = dataclasses.replace(kernels[1], end=kernels[1].end + 400 * MS)

    assert int(meet(of(kernels)).met.clocks.offset_ns[1]) == straight


def test_clocks_of_one_host_move_together() -> None:
    kernels, _ = rounds(5, ranks=6, jitter=4 * US)
    meeting = meet(of(moved(kernels, dict.fromkeys((3, 4, 5), 2 * MS)), 6))

    offsets = meeting.met.clocks.offset_ns.tolist()
    assert offsets[:3] == [0, 0, 0]
    assert offsets[3] == offsets[4] == offsets[5]
    assert abs(offsets[3] - 2 * MS) < 5 * US


def test_ranks_that_share_a_clock_are_never_moved_apart() -> None:
    kernels, _ = rounds(5)
    meeting = meet(timeline(moved(kernels, {1: 100 * US}), clocks={0: 0, 1: 0}))

    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]
    assert meeting.met.clocks.residual_ns.tolist() == [50 * US, 50 * US]


def test_drift_is_found_over_many_instances_and_a_long_time() -> None:
    kernels, waits = rounds(7, count=60, period=500 * MS, jitter=3 * US)

    meeting = meet(of(moved(kernels, {1: 40 * MS}, {1: 50.0})))

    assert abs(int(meeting.met.clocks.drift_ppb[1]) - 50_000) < 500
    assert errors(meeting, waits) <= US


def test_drift_is_not_looked_for_in_a_short_window() -> None:
    kernels, _ = rounds(7, count=8, period=50 * MS)

    assert meet(of(moved(kernels, {1: 40 * MS}, {1: 50.0}))).met.clocks.drift_ppb.tolist() == [0, 0]


def test_a_clock_that_wanders_is_no_reason_to_refuse_the_matching() -> None:
    kernels, _ = rounds(13, count=200, skew=50 * US, transfer=20 * US, jitter=2 * US)
    kernels = [
        dataclasses.replace(kernel, start=kernel.start + wander, end=kernel.end + wander)
        for kernel in kernels
        for wander in [round(80 * US * np.sin(kernel.end / (800 * MS))) if kernel.rank else 0]
    ]

    meeting = meet(of(kernels))

    assert meeting.reasons == []
    assert meeting.met.clocks.residual_ns.max() > 30 * US
    assert "waiting_uncertain" in meeting.notes()


def test_on_cpu_ends_that_differ_are_no_offset_as_long_as_everyone_can_have_been_there() -> None:
    kernels = [
        kernel for at in range(6) for kernel in (Kernel(0, at * MS, at * MS + 500 * US), Kernel(1, at * MS, at * MS + 800 * US))
    ]

    meeting = meet(timeline(kernels, on_cpu=True))

    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]
    assert meeting.met.clocks.residual_ns.tolist() == [150 * US, 150 * US]


def test_on_cpu_a_clock_is_moved_where_calls_would_end_before_a_peer_came() -> None:
    kernels, _ = rounds(9)

    meeting = meet(timeline(moved(kernels, {1: 30 * MS}), on_cpu=True))

    assert abs(int(meeting.met.clocks.offset_ns[1]) - 30 * MS) < 10 * US


def test_ranks_that_share_no_collective_stay_apart_and_say_nothing_of_each_other() -> None:
    kernels = [Kernel(rank, at * MS, at * MS + 100 * US, group=rank // 2) for at in range(4) for rank in range(4)]
    kernels += [Kernel(rank, 9 * MS, 9 * MS + 100 * US, "broadcast", group=2, peer=0) for rank in (0, 2)]

    meeting = meet(timeline(kernels, [group(0, 1), group(2, 3, name="1"), group(0, 2, name="2")]))

    assert meeting.met.clocks.component.tolist() == [0, 0, 2, 2]
    assert meeting.waits(2) == [0, 0, 0, 0, -1]
    assert "cannot be compared" in meeting.notes()["clocks_apart"]


def test_a_chain_of_groups_links_clocks_that_never_meet_directly() -> None:
    kernels, offset = [], {1: 4 * MS, 2: -7 * MS}
    for at in range(6):
        kernels += [Kernel(rank, at * 20 * MS, at * 20 * MS + 100 * US, group=0) for rank in (0, 1)]
        kernels += [Kernel(rank, at * 20 * MS + 9 * MS, at * 20 * MS + 9 * MS + 100 * US, group=1) for rank in (1, 2)]

    clocks = meet(timeline(moved(kernels, offset), [group(0, 1), group(1, 2, name="1")])).met.clocks

    assert clocks.offset_ns.tolist() == [0, 4 * MS, -7 * MS]
    assert clocks.component.tolist() == [0, 0, 0]


def exchange(offset: int, latency: int) -> list[Kernel]:
    """Sends in both directions between ranks 0 and 1."""
    kernels = []
    for at in range(4):
        begin = at * 10 * MS
        kernels += [Kernel(0, begin, begin + latency, "send"), Kernel(1, begin, begin + latency, "recv")]
        kernels += [Kernel(1, begin + MS, begin + MS + latency, "send"), Kernel(0, begin + MS, begin + MS + latency, "recv")]
    return moved(kernels, {1: offset})


def test_exchanges_in_both_directions_bound_an_offset() -> None:
    clocks = meet(timeline(exchange(200 * MS, 60 * US))).met.clocks

    assert clocks.component.tolist() == [0, 0]
    assert abs(int(clocks.offset_ns[1]) - 200 * MS) <= clocks.residual_ns[1] <= 60 * US


def test_exchanges_that_are_possible_with_equal_clocks_move_nothing() -> None:
    clocks = meet(timeline(exchange(20 * US, 60 * US))).met.clocks

    assert clocks.offset_ns.tolist() == [0, 0]
    assert clocks.residual_ns[1] >= 60 * US


def test_sends_in_one_direction_do_not_link_clocks() -> None:
    kernels = [Kernel(0, 0, 100, "send"), Kernel(1, 0, 100, "recv")]

    meeting = meet(timeline(kernels))

    assert meeting.met.clocks.component.tolist() == [0, 1]
    assert meeting.waits(0) == [-1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(2, 5),
    jitter=st.integers(0, 100 * US),
    offsets=st.lists(st.integers(-(10**11), 10**11), min_size=5, max_size=5),
)
def test_waits_are_recovered_within_the_printed_uncertainty(seed: int, ranks: int, jitter: int, offsets: list[int]) -> None:
    kernels, waits = rounds(seed, ranks, count=15, jitter=jitter)

    meeting = meet(of(moved(kernels, dict(enumerate(offsets))), ranks))

    assert errors(meeting, waits) <= 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), jitter=st.integers(0, 20 * US), offset=st.integers(-(10**12), 10**12))
def test_shifting_one_clock_by_any_constant_changes_no_wait_beyond_the_uncertainty(seed: int, jitter: int, offset: int) -> None:
    kernels, _ = rounds(seed, 3, count=10, jitter=jitter)
    before, after = meet(of(kernels, 3)).met, meet(of(moved(kernels, {1: offset}), 3)).met

    assert (after.wait >= 0).all()
    assert (np.abs(before.wait - after.wait) <= np.maximum(before.uncertainty, after.uncertainty)).all()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), late=st.integers(0, 3))
def test_a_planted_late_rank_is_found_whatever_the_clocks_show(seed: int, late: int) -> None:
    random = np.random.default_rng(seed)
    kernels, _ = rounds(seed, 4, count=10, skew=100 * US, jitter=2 * US)
    kernels = [
        dataclasses.replace(kernel, start=kernel.start + (MS if kernel.rank == late else 0), end=kernel.end + MS)
        for kernel in kernels
    ]
    offset = {rank: int(random.integers(-(10**10), 10**10)) for rank in range(4)}

    assert set(meet(of(moved(kernels, offset), 4)).met.instances.last_rank.tolist()) == {late}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), jitter=st.integers(0, 30 * US))
def test_over_unconnected_groups_with_roots_what_is_known_is_right(seed: int, jitter: int) -> None:
    random = np.random.default_rng(seed)
    members = [(0, 1, 2), (2, 3), (4, 5), (1, 4)]
    kernels: list[Kernel] = []
    true: list[int] = []
    for at in range(60):
        # The last group has broadcasts only, which link no clocks.
        number = int(random.integers(0, 4))
        name = "broadcast" if number == 3 or random.integers(0, 4) == 0 else "all_reduce"
        root = members[number][0]
        arrival = {rank: at * 20 * MS + int(random.integers(0, 3 * MS)) for rank in members[number]}
        needed = arrival[root] if name == "broadcast" else max(arrival.values())
        for rank, start in arrival.items():
            end = max(arrival.values()) + 300 * US + int(random.integers(-jitter, jitter + 1))
            kernels.append(Kernel(rank, start, end, name, group=number, peer=root if name == "broadcast" else -1))
            true.append(max(0, needed - start) if rank != root or name != "broadcast" else 0)
    offset = {rank: int(random.integers(-(10**10), 10**10)) for rank in range(6)}
    kernels = moved(kernels, offset)

    # A root is given in the job: groups in which that could also be a place in the group leave it unknown.
    meeting = meet(timeline(kernels, [group(*ranks, name=str(at)) for at, ranks in enumerate(members)], ranks=range(6)))

    assert meeting.met.clocks.component.tolist() == [0, 0, 0, 0, 4, 4]
    known = meeting.met.wait >= 0
    reduces = np.array([kernel.collective == "all_reduce" for kernel in kernels])
    assert known[reduces].all(), meeting.met.notes
    assert (np.abs(meeting.met.wait - true) <= meeting.met.uncertainty)[known].all()
    across = np.array([kernel.group == 3 and kernel.rank == 4 for kernel in kernels])
    assert not known[across].any()


@pytest.mark.parametrize("shift", [3 * MS, -3 * MS])
def test_a_group_matched_wrongly_is_refused_and_bends_no_other_clock(shift: int) -> None:
    kernels, _ = rounds(11, count=12)
    random = np.random.default_rng(2)
    for at in range(12):
        # Calls of equal look that never overlap: the second rank's are of another time each.
        begin = at * 50 * MS + 20 * MS
        kernels.append(Kernel(0, begin, begin + 50 * US, "all_gather", group=1))
        other = begin + shift + int(random.integers(0, 9 * MS)) * (1 if shift > 0 else -1)
        kernels.append(Kernel(1, other, other + 50 * US, "all_gather", group=1))

    meeting = meet(timeline(kernels, [group(0, 1), group(0, 1, name="1")]))

    assert [entry.group for entry in meeting.met.unmatchable] == [1]
    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]
    assert meeting.met.clocks.residual_ns.max() < US
