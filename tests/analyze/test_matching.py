"""Which calls meet: by sequence number, else by checked order; and what is refused, in words."""

import dataclasses

import pytest

from tests.analyze.meetings import Kernel, group, meet, timeline


def both(*calls: tuple[str, int], **more: int) -> list[Kernel]:
    """The same calls on ranks 0 and 1, one after the other."""
    return [
        Kernel(rank, 1000 * at, 1000 * at + 500, name, payload, **more)
        for rank in (0, 1)
        for at, (name, payload) in enumerate(calls)
    ]


def test_a_timeline_without_calls_has_no_instances() -> None:
    met = meet(timeline([], ranks=[0])).met

    assert len(met.instances) == 0
    assert met.unmatchable == ()
    assert met.notes == ()


def test_equal_sequences_are_matched_in_order() -> None:
    met = meet(timeline(both(("all_reduce", 8), ("all_gather", 16)))).met

    assert met.instance.tolist() == [0, 1, 0, 1]
    assert met.instances.members.tolist() == [2, 2]


def test_sequence_numbers_match_calls_whatever_their_order() -> None:
    kernels = [
        Kernel(0, 0, 500, sequence=4),
        Kernel(0, 1000, 1500, sequence=5),
        Kernel(1, 1000, 1500, sequence=5),
    ]

    met = meet(timeline(kernels)).met

    assert met.instance.tolist() == [0, 1, 1]
    assert met.instances.members.tolist() == [1, 2]
    assert (met.wait >= 0).tolist() == [False, True, True]


def test_calls_of_one_coalesced_launch_share_a_number_and_still_pair_up() -> None:
    kernels = [Kernel(rank, at, at + 10, payload=at, sequence=7) for rank in (0, 1) for at in (100, 200)]

    assert meet(timeline(kernels)).met.instance.tolist() == [0, 1, 0, 1]


def test_a_shifted_sequence_is_refused_and_the_first_difference_named() -> None:
    kernels = [kernel for kernel in both(("all_reduce", 8), ("all_gather", 16), ("all_reduce", 8)) if kernel.rank == 0]
    kernels += [
        Kernel(1, 0, 500, "all_gather", 16),
        Kernel(1, 1000, 1500, "all_reduce", 8),
        Kernel(1, 2000, 2500, "all_gather", 16),
    ]

    meeting = meet(timeline(kernels))

    assert (meeting.met.instance == -1).all()
    assert meeting.reasons == [
        "the ranks do not make the same calls: as call 1 rank 0 issues all_reduce of 8 bytes, "
        "but rank 1 issues all_gather of 16 bytes"
    ]
    assert "so that waiting is unknown" in meeting.notes()["calls_unmatched"]


def test_order_counts_over_all_collectives_so_that_swapped_calls_are_seen() -> None:
    kernels = [Kernel(0, 0, 9, "all_reduce"), Kernel(0, 10, 19, "all_gather")]
    kernels += [Kernel(1, 0, 9, "all_gather"), Kernel(1, 10, 19, "all_reduce")]

    assert "as call 1" in meet(timeline(kernels)).reasons[0]


def test_equal_sequence_numbers_with_other_payloads_are_refused() -> None:
    kernels = [Kernel(0, 0, 9, payload=8, sequence=3), Kernel(1, 0, 9, payload=16, sequence=3)]

    assert "as number 3" in meet(timeline(kernels)).reasons[0]


@pytest.mark.parametrize("name", ["all_to_all", "gather", "reduce"])
def test_payloads_that_may_differ_over_ranks_are_not_compared(name: str) -> None:
    kernels = [Kernel(0, 0, 9, name, 8), Kernel(1, 0, 9, name, 16)]

    assert meet(timeline(kernels)).met.instance.tolist() == [0, 0]


def test_unknown_payloads_contradict_nothing() -> None:
    assert meet(timeline([Kernel(0, 0, 9, payload=-1), Kernel(1, 0, 9, payload=8)])).met.instance.tolist() == [0, 0]


def test_different_counts_are_refused_though_the_calls_agree_as_far_as_they_go() -> None:
    kernels = [Kernel(0, 0, 9), Kernel(0, 10, 19), Kernel(1, 0, 9)]

    assert meet(timeline(kernels)).reasons == ["rank 0 has 2 calls, rank 1 has 1: some are missing, and which is not known"]


def test_a_member_in_the_input_without_any_call_makes_the_group_unmatchable() -> None:
    assert "rank 1 has 0" in meet(timeline([Kernel(0, 0, 9)], ranks=[0, 1])).reasons[0]


def test_groups_are_matched_apart_from_each_other() -> None:
    kernels = both(("all_reduce", 8)) + [Kernel(rank, 5000, 5500, "all_gather", group=1) for rank in (0, 2)]
    kernels.append(Kernel(2, 7000, 7500, "all_gather", group=1))

    meeting = meet(timeline(kernels, [group(0, 1), group(0, 2, name="1")]))

    assert meeting.met.instance[:2].tolist() == [0, 0]
    assert [entry.group for entry in meeting.met.unmatchable] == [1]


def test_a_group_known_by_size_is_whole_when_as_many_ranks_call_it() -> None:
    meeting = meet(timeline(both(("all_reduce", 8)), [group(size=2)]))

    assert meeting.met.instances.expected.tolist() == [2]
    assert (meeting.met.wait >= 0).all()


def test_several_groups_under_one_name_are_not_mixed_up() -> None:
    kernels = [Kernel(rank, 0, 9) for rank in range(4)]

    assert "4 ranks of the input have calls under its name" in meet(timeline(kernels, [group(size=2)])).reasons[0]


def test_calls_of_an_unknown_group_are_not_matched() -> None:
    kernels = [dataclasses.replace(kernel, group=-1) for kernel in both(("all_reduce", 8))]
    kernels.append(Kernel(2, 0, 9, "all_gather", group=-1))

    assert "the trace does not say their group" in meet(timeline(kernels)).reasons[0]


def test_a_send_meets_the_receive_of_the_same_pair_in_the_same_place() -> None:
    kernels = [
        Kernel(0, 0, 100, "send", 8, peer=1),
        Kernel(0, 200, 300, "recv", 16, peer=1),
        Kernel(1, 50, 100, "recv", 8, peer=0),
        Kernel(1, 150, 300, "send", 16, peer=0),
    ]

    assert meet(timeline(kernels)).met.instance.tolist() == [0, 1, 0, 1]


def test_in_a_group_of_two_the_peer_is_the_other() -> None:
    kernels = [Kernel(0, 0, 100, "send"), Kernel(1, 50, 100, "recv")]

    assert meet(timeline(kernels)).met.instance.tolist() == [0, 0]


def test_an_unknown_peer_in_a_larger_group_is_refused() -> None:
    kernels = [Kernel(0, 0, 100, "send"), Kernel(1, 50, 100, "recv"), Kernel(2, 50, 100, "recv")]

    assert "does not say with which of the members" in meet(timeline(kernels, [group(0, 1, 2)])).reasons[0]


def test_peers_numbered_in_the_group_are_understood_where_only_that_fits() -> None:
    kernels = [Kernel(4, 0, 100, "send", peer=1), Kernel(6, 50, 100, "recv", peer=0)]

    assert meet(timeline(kernels, [group(4, 6, 8)])).met.instance.tolist() == [0, 0]


def test_a_send_and_a_receive_of_other_sizes_are_refused() -> None:
    kernels = [Kernel(0, 0, 100, "send", 8), Kernel(1, 50, 100, "recv", 16)]

    assert "a send and its receive differ" in meet(timeline(kernels)).reasons[0]


def test_batches_of_sends_and_receives_meet_in_a_group_of_two() -> None:
    kernels = [Kernel(rank, 10 * rank, 100, "send_recv") for rank in (0, 1)]

    assert meet(timeline(kernels, clocks={0: 0, 1: 0})).waits(0) == [10]


def test_point_to_point_calls_do_not_disturb_the_order_of_collectives() -> None:
    kernels = both(("all_reduce", 8), ("all_reduce", 8))
    kernels += [
        Kernel(0, 600, 700, "send"),
        Kernel(0, 800, 900, "send"),
        Kernel(1, 600, 700, "recv"),
        Kernel(1, 800, 900, "recv"),
    ]

    assert (meet(timeline(kernels)).met.instance >= 0).all()
