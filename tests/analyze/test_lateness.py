"""Why a rank came late, told from its own lanes: the causes add up, and each planted one is found."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.meetings import Kernel, compute, group, meet, timeline
from underlap.analyze.lateness import CAUSES, Late
from underlap.timeline import UNKNOWN_NS, OpClass

ONE_CLOCK = dict.fromkeys(range(8), 0)
US = 1000


def after_a_meeting(*rows: Kernel) -> Late:
    """What made rank 1 late for the second of two calls; times in microseconds, the first call ends at 100 on both."""
    first = [Kernel(rank, 0, 100) for rank in (0, 1)]
    kernels = [
        dataclasses.replace(
            kernel,
            start=kernel.start * US,
            end=kernel.end * US,
            launch=kernel.launch * US if kernel.launch != UNKNOWN_NS else UNKNOWN_NS,
        )
        for kernel in (*first, *rows)
    ]
    return meet(timeline(kernels, [group(0, 1), group(1, name="1")], clocks=ONE_CLOCK)).late()


def only(late: Late) -> dict[str, int]:
    """The causes of the one late call, in microseconds, without those of nothing."""
    assert len(late) == 1
    assert (late.rank[0], late.than[0]) == (1, 0)
    assert late.causes().sum() == late.late_ns[0]
    return {name: int(amount) // US for name, amount in zip(CAUSES, late.causes()[0], strict=True) if amount}


def test_where_nobody_waits_nobody_is_late() -> None:
    assert len(after_a_meeting()) == 0


def test_a_host_that_launches_late_onto_an_idle_device_is_the_cause() -> None:
    late = after_a_meeting(Kernel(0, 210, 900, launch=200), Kernel(1, 810, 900, launch=800))

    assert only(late) == {"launched_late": 600}
    assert late.since.tolist() == [0]
    assert late.caused_ns.tolist() == [600 * US]


def test_more_compute_before_the_launch_is_the_cause() -> None:
    late = after_a_meeting(
        compute(0, 100, 200), Kernel(0, 210, 900, launch=200), compute(1, 100, 800), Kernel(1, 810, 900, launch=800)
    )

    assert only(late) == {"more_compute": 600}


def test_a_call_launched_early_and_queued_behind_compute_is_told_apart() -> None:
    late = after_a_meeting(
        compute(0, 100, 200), Kernel(0, 200, 900, launch=100), compute(1, 100, 800), Kernel(1, 800, 900, launch=100)
    )

    assert only(late) == {"queued_behind_compute": 600}


def test_compute_that_only_moved_from_before_the_launch_to_after_it_is_no_cause() -> None:
    late = after_a_meeting(
        compute(0, 100, 300), Kernel(0, 310, 900, launch=300), compute(1, 100, 300), Kernel(1, 700, 900, launch=150)
    )

    assert only(late) == {"blocked": 390}


def test_another_collective_before_it_is_the_cause() -> None:
    late = after_a_meeting(
        Kernel(0, 210, 900, launch=100), Kernel(1, 110, 800, group=1, launch=100), Kernel(1, 810, 900, launch=100)
    )

    assert only(late)["behind_collective"] == 690


def test_copies_before_it_are_the_cause() -> None:
    copy = dataclasses.replace(compute(1, 100, 700), op_class=OpClass.COPY)

    assert only(after_a_meeting(Kernel(0, 100, 900, launch=100), copy, Kernel(1, 700, 900, launch=100))) == {"copying": 600}


def test_without_launches_an_idle_device_stays_unexplained() -> None:
    assert only(after_a_meeting(Kernel(0, 200, 900), Kernel(1, 800, 900))) == {"unexplained": 600}


def test_a_rank_that_left_the_last_meeting_later_is_late_for_that() -> None:
    kernels = [Kernel(0, 0, 100 * US), Kernel(1, 0, 400 * US)]
    kernels += [Kernel(0, 600 * US, 2000 * US, launch=600 * US), Kernel(1, 900 * US, 2000 * US, launch=900 * US)]
    kernels += [Kernel(rank, at * 5000 * US, at * 5000 * US + 9) for rank in (0, 1) for at in range(1, 9)]

    late = meet(timeline(kernels, clocks=ONE_CLOCK)).late()

    assert only(late) == {"released_later": 300}


def test_the_last_meeting_is_one_that_each_left_even_if_the_other_left_it_later() -> None:
    # Rank 0 leaves each meeting a little sooner, and is at the next one before rank 1 has left.
    kernels = []
    for at in range(0, 5000, 1000):
        kernels += [
            Kernel(0, at * US, (at + 990) * US, launch=at * US),
            compute(1, (at - 5) * US, (at + 900) * US),
            Kernel(1, (at + 900) * US, (at + 995) * US, launch=(at + 900) * US),
        ]
    late = meet(timeline(kernels[3:], clocks=ONE_CLOCK)).late()

    assert late.since.tolist() == [-1, 0, 1, 2]
    assert set(late.more_compute[1:].tolist()) <= {900 * US, 905 * US}


def test_late_entry_is_a_cause_of_its_own_and_the_rest_is_told_after_it() -> None:
    kernels = [compute(0, 0, 50), Kernel(0, 110, 900, launch=100), compute(1, 500, 550), Kernel(1, 810, 900, launch=800)]
    kernels = [
        dataclasses.replace(
            kernel,
            start=kernel.start * US,
            end=kernel.end * US,
            launch=max(kernel.launch, -1) * US if kernel.launch > 0 else kernel.launch,
        )
        for kernel in kernels
    ]

    late = meet(timeline(kernels, clocks=ONE_CLOCK)).late()

    assert only(late) == {"window_entry": 500, "launched_late": 200}
    assert late.since.tolist() == [-1]


def test_the_root_is_the_late_one_where_all_wait_for_it() -> None:
    kernels = [Kernel(rank, start * US, 900 * US, "broadcast", peer=1) for rank, start in ((0, 0), (1, 300), (2, 500))]

    late = meet(timeline(kernels, [group(0, 1, 2)], clocks=ONE_CLOCK)).late()

    assert (late.rank.tolist(), late.caused_ns.tolist()) == ([1], [300 * US])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_the_causes_always_add_up_to_the_lateness(seed: int) -> None:
    random = np.random.default_rng(seed)
    kernels, begin = [], np.zeros(3, dtype=np.int64)
    for _ in range(6):
        for rank in range(3):
            for _ in range(int(random.integers(0, 3))):
                start, length = int(begin[rank] + random.integers(0, 90)) * US, int(random.integers(1, 90)) * US
                kernels.append(compute(rank, start, start + length))
        arrival = begin + random.integers(100, 900, 3)
        launch = arrival - random.integers(0, 300, 3)
        begin = np.full(3, arrival.max() + 50)
        for rank in range(3):
            known = int(launch[rank]) * US if random.integers(0, 4) else UNKNOWN_NS
            kernels.append(Kernel(rank, int(arrival[rank]) * US, int(begin[rank]) * US, launch=known))

    late = meet(timeline(kernels, [group(0, 1, 2)], clocks=ONE_CLOCK)).late()

    assert len(late)
    assert (late.causes().sum(axis=1) == late.late_ns).all()
