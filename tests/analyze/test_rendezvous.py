"""Waiting by the rule of needed arrivals, and what of hidden and exposed time it is."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.meetings import Kernel, compute, group, meet, timeline
from underlap.analyze import rendezvous
from underlap.timeline import OpClass

ONE_CLOCK = dict.fromkeys(range(8), 0)


def three(name: str, root: int = -1) -> list[Kernel]:
    """One call on ranks 0, 1 and 2, which arrive at 0, 100 and 250 and all end at 1000."""
    return [Kernel(rank, start, 1000, name, peer=root) for rank, start in enumerate((0, 100, 250))]


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_everyone_waits_for_the_last_of_all(name: str) -> None:
    meeting = meet(timeline(three(name), [group(0, 1, 2)], clocks=ONE_CLOCK))

    assert meeting.met.wait.tolist() == [250, 150, 0]
    assert meeting.met.transfer.tolist() == [750, 750, 750]
    assert meeting.met.wait_end.tolist() == [250, 250, 250]
    assert (meeting.met.instances.first_rank[0], meeting.met.instances.last_rank[0]) == (0, 2)
    assert meeting.met.instances.start_skew_ns.tolist() == [250]


@pytest.mark.parametrize("name", ["broadcast", "scatter"])
def test_all_wait_for_the_root_and_it_waits_for_nobody(name: str) -> None:
    assert meet(timeline(three(name, root=1), [group(0, 1, 2)], clocks=ONE_CLOCK)).met.wait.tolist() == [100, 0, 0]


def test_without_a_known_root_the_waiting_of_a_broadcast_is_unknown() -> None:
    assert meet(timeline(three("broadcast"), [group(0, 1, 2)], clocks=ONE_CLOCK)).met.wait.tolist() == [-1, -1, -1]


def test_a_root_that_could_be_a_rank_of_the_job_or_of_the_group_is_unknown() -> None:
    kernels = [dataclasses.replace(kernel, rank=kernel.rank + 1) for kernel in three("broadcast", root=1)]

    assert meet(timeline(kernels, [group(1, 2, 3)], clocks=ONE_CLOCK)).met.wait.tolist() == [-1, -1, -1]


@pytest.mark.parametrize("name", ["reduce", "gather"])
def test_the_root_waits_for_all_and_the_others_for_nobody(name: str) -> None:
    assert meet(timeline(three(name, root=1), [group(0, 1, 2)], clocks=ONE_CLOCK)).met.wait.tolist() == [0, 150, 0]


def test_both_ends_of_a_send_wait_for_each_other() -> None:
    kernels = [Kernel(0, 0, 300, "send"), Kernel(1, 200, 300, "recv"), Kernel(0, 900, 1000, "recv"), Kernel(1, 600, 1000, "send")]

    meeting = meet(timeline(kernels, clocks=ONE_CLOCK))

    assert meeting.waits(0) == [200, 0]
    assert meeting.waits(1) == [0, 300]


def test_waiting_ends_with_the_call_even_if_the_peer_comes_later() -> None:
    kernels = [Kernel(0, 0, 300_000, "send"), Kernel(1, 500_000, 600_000, "recv")]

    meeting = meet(timeline(kernels, clocks=ONE_CLOCK))

    assert meeting.waits(0) == [300_000]
    assert meeting.met.transfer.tolist() == [0, 100_000]


def test_a_receive_that_ends_before_its_send_began_is_no_match() -> None:
    kernels = [Kernel(0, 500_000, 600_000, "send"), Kernel(1, 0, 300_000, "recv")]

    meeting = meet(timeline(kernels, clocks=ONE_CLOCK))

    assert meeting.waits(1) == [-1]
    assert "ends before another arrives" in meeting.reasons[0]


def test_an_unknown_collective_has_unknown_waiting() -> None:
    kernels = [dataclasses.replace(kernel, collective=None) for kernel in three("x")]

    assert meet(timeline(kernels, [group(0, 1, 2)], clocks=ONE_CLOCK)).met.wait.tolist() == [-1, -1, -1]


def test_a_group_of_one_waits_for_nobody() -> None:
    assert meet(timeline([Kernel(0, 0, 9)], [group(0)])).met.wait.tolist() == [0]


def test_a_missing_member_makes_waiting_unknown_but_leaves_a_lower_bound() -> None:
    meeting = meet(timeline(three("all_reduce"), [group(0, 1, 2, 3)], clocks=ONE_CLOCK))

    assert meeting.met.wait.tolist() == [-1, -1, -1]
    assert meeting.met.wait_at_least.tolist() == [250, 150, 0]
    assert meeting.met.transfer_at_most.tolist() == [750, 750, -1]
    assert meeting.met.instances.last_rank.tolist() == [-1]
    assert "The traces of rank 3 for the same steps would tell" in meeting.notes()["waiting_unknown"]


def test_one_rank_alone_gives_the_shortest_equal_call_as_an_upper_bound() -> None:
    kernels = [Kernel(0, at, at + length) for at, length in ((0, 300), (1000, 120), (2000, 500))]
    kernels += [Kernel(0, 3000, 3010, payload=7), Kernel(0, 4000, 4010, payload=7)]

    met = meet(timeline(kernels, [group(0, 1)])).met

    assert met.wait.tolist() == [-1] * 5
    assert met.transfer_at_most.tolist() == [120, 120, 120, -1, -1]


def test_a_spin_kernel_is_waiting_whoever_is_in_the_input() -> None:
    meeting = meet(timeline([Kernel(0, 0, 70, "barrier", op_class=OpClass.WAIT)], [group(0, 1)]))

    assert meeting.met.wait.tolist() == [70]
    assert meeting.met.transfer.tolist() == [0]
    assert meeting.split(0) == rendezvous.WaitSplit(
        hidden_transfer=0, hidden_wait=0, under_fused_transfer=0, under_fused_wait=0, exposed_transfer=0, exposed_wait=70
    )


def test_hidden_and_exposed_are_split_into_waiting_and_transfer() -> None:
    kernels = [Kernel(0, 0, 1000), Kernel(1, 400, 1000), compute(0, 300, 600)]

    split = meet(timeline(kernels, clocks=ONE_CLOCK)).split(0)

    assert split == rendezvous.WaitSplit(
        hidden_transfer=200, hidden_wait=100, under_fused_transfer=0, under_fused_wait=0, exposed_transfer=400, exposed_wait=300
    )


def test_a_moment_in_which_one_call_waits_while_another_transfers_is_transfer() -> None:
    kernels = [Kernel(0, 0, 1000), Kernel(1, 800, 1000)]
    kernels += [Kernel(0, 100, 500, group=1, lane="21"), Kernel(2, 100, 500, group=1)]

    split = meet(timeline(kernels, [group(0, 1), group(0, 2, name="1")], clocks=ONE_CLOCK)).split(0)

    assert split is not None
    assert (split.exposed_transfer, split.exposed_wait) == (600, 400)


def test_one_call_that_is_not_matched_makes_the_split_unknown() -> None:
    kernels = [Kernel(0, 0, 1000), Kernel(1, 800, 1000), Kernel(0, 2000, 2100, group=-1)]

    assert meet(timeline(kernels, clocks=ONE_CLOCK)).split(0) is None


def test_under_a_fused_kernel_both_parts_are_kept_apart() -> None:
    kernels = [Kernel(0, 0, 1000), Kernel(1, 400, 1000)]
    kernels.append(dataclasses.replace(compute(0, 300, 600), op_class=OpClass.FUSED))

    split = meet(timeline(kernels, clocks=ONE_CLOCK)).split(0)

    assert split is not None
    assert (split.under_fused_wait, split.under_fused_transfer) == (100, 200)


def test_late_entry_into_the_window_is_marked_in_the_first_common_instance_only() -> None:
    kernels = [compute(0, 0, 500), Kernel(0, 1000, 9100), compute(1, 8000, 8500), Kernel(1, 9000, 9100)]
    kernels += [Kernel(0, 10_000, 12_000), Kernel(1, 11_900, 12_000)]

    instances = meet(timeline(kernels, clocks=ONE_CLOCK)).met.instances

    assert instances.entry.tolist() == [1, 0]
    assert instances.entry_ns.tolist() == [8000, 0]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_the_four_amounts_add_up_to_hidden_and_exposed(seed: int) -> None:
    random = np.random.default_rng(seed)
    kernels = []
    for number in range(2):
        begin = 0
        for _ in range(5):
            start = begin + random.integers(0, 50, 2)
            begin = int(start.max() + random.integers(10, 100))
            kernels += [Kernel(rank, int(start[rank]), begin, group=number, lane=str(number)) for rank in (0, 1)]
    for begin in random.integers(0, 500, 8).tolist():
        fused = OpClass.FUSED if random.integers(0, 3) == 0 else OpClass.COMPUTE
        kernels.append(dataclasses.replace(compute(0, begin, begin + 40), op_class=fused))

    meeting = meet(timeline(kernels, [group(0, 1), group(0, 1, name="1")], clocks=ONE_CLOCK))
    split, key = meeting.split(0), meeting.device(0)

    parts: dict[str, int] = {
        name: int(values.sum()) for name, values in meeting.sets[key].amounts(meeting.selection.stretches[key]).items()
    }
    assert split is not None
    assert split.hidden_transfer + split.hidden_wait == parts["hidden"]
    assert split.under_fused_transfer + split.under_fused_wait == parts["under_fused"]
    assert split.exposed_transfer + split.exposed_wait == parts["exposed"]
