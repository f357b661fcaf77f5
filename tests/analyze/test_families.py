"""Families: counts once per group, bytes only where known, bus bandwidth with nccl-tests' factors."""

from __future__ import annotations

import pytest

from tests.timelines import COMMUNICATION, COMPUTE, FUSED, Call, Op, build, group, info
from underlap.analyze.report import report
from underlap.report import FamilyRow, Report
from underlap.timeline import Timeline

PAIR = group(0, 1, name="0", description="mesh_tp")


def of_ranks(calls: list[Call], *, groups: tuple[object, ...] = (PAIR,), length: int = 10) -> Timeline:
    """One kernel per call, one call after the other on each rank."""
    ops = [Op(COMMUNICATION, 20 * at, 20 * at + length, at, rank=call.rank) for at, call in enumerate(calls)]
    ranks = [info(rank, world=8) for rank in sorted({call.rank for call in calls})]
    return build(ops, calls=calls, groups=groups, ranks=ranks)  # type: ignore[arg-type]  # a stand-in


def only(found: Report) -> FamilyRow:
    (row,) = found.families
    return row


def test_a_timeline_without_calls_has_no_family() -> None:
    assert report(build([Op(COMPUTE, 0, 5)])).families == []


def test_a_call_outside_the_window_makes_no_family() -> None:
    assert report(build(calls=[Call()], ranks=[info(0)])).families == []


def test_one_rank_counts_its_own_calls() -> None:
    row = only(report(of_ranks([Call(), Call()], groups=())))

    assert (row.count, row.kernels, row.ranks_counted) == (2, 2, 1)


def test_calls_of_a_group_count_once_by_sequence_number() -> None:
    calls = [Call(group=0, sequence=sequence, rank=rank) for rank in (0, 1) for sequence in (4, 5, 6)]
    row = only(report(of_ranks(calls)))

    assert (row.axis, row.count, row.kernels) == ("tp", 3, 6)


def test_calls_without_sequence_numbers_count_once_by_order() -> None:
    assert only(report(of_ranks([Call(group=0, rank=rank) for rank in (0, 1, 1)]))).count == 2


def test_two_groups_on_one_axis_count_apart() -> None:
    groups = (group(0, 1, name="3", description="mesh_tp"), group(2, 3, name="4", description="mesh_tp"))
    calls = [Call(group=rank // 2, sequence=1, rank=rank) for rank in range(4)]
    row = only(report(of_ranks(calls, groups=groups)))

    assert (row.axis, row.count, row.kernels) == ("tp", 2, 4)


def test_the_count_is_unknown_where_groups_are_unknown() -> None:
    assert only(report(of_ranks([Call(rank=0), Call(rank=1)], groups=()))).count is None


def test_point_to_point_calls_count_each_by_itself() -> None:
    calls = [Call("send", group=0, rank=0), Call("recv", group=0, rank=1), Call("send", group=0, rank=1)]

    assert {row.collective: row.count for row in report(of_ranks(calls)).families} == {"send": 2, "recv": 1}


def test_several_kernels_of_one_call_are_one_instance() -> None:
    row = only(report(build([Op(COMMUNICATION, 0, 4, 0), Op(COMMUNICATION, 6, 9, 0)], calls=[Call()])))

    assert (row.count, row.kernels, row.communication_ns) == (1, 2, 7)


def test_bytes_add_up_over_ranks_and_their_mean_is_per_row() -> None:
    row = only(report(of_ranks([Call(payload=100, group=0, rank=0), Call(payload=100, group=0, rank=1)])))

    assert (row.payload_bytes, row.mean_payload_bytes, row.payload_known_share) == (200, 100, 1.0)


def test_one_unknown_size_makes_the_sum_unknown_but_not_the_share() -> None:
    timeline = of_ranks([Call(payload=100, group=0), Call(group=0), Call(payload=0, group=0), Call(payload=7, group=0)])
    row = only(report(timeline))

    assert (row.payload_bytes, row.mean_payload_bytes, row.payload_known_share) == (None, None, 0.75)
    assert row.busbw_kernel_gbps == pytest.approx(107 / 20)


@pytest.mark.parametrize(
    ("collective", "members", "length", "gbps"),
    [
        ("all_reduce", 4, 1500, 1.0),
        ("all_gather", 4, 750, 1.0),
        ("reduce_scatter", 4, 750, 1.0),
        ("all_to_all", 4, 750, 1.0),
        ("broadcast", 4, 1000, 1.0),
        ("reduce", 4, 500, 2.0),
        ("send", 2, 1000, 1.0),
        ("all_reduce", 2, 500, 2.0),
        ("all_reduce", 1, 1000, 0.0),
        ("dispatch", 4, 1000, None),
        ("barrier", 4, 1000, None),
    ],
)
def test_bus_bandwidth_has_the_factor_of_its_collective(collective: str, members: int, length: int, gbps: float | None) -> None:
    calls = [Call(collective, 1000, group=0)]
    found = only(report(of_ranks(calls, groups=(group(*range(members)),), length=length))).busbw_kernel_gbps

    assert found == (None if gbps is None else pytest.approx(gbps))


def test_bus_bandwidth_needs_the_size_of_the_group() -> None:
    assert only(report(of_ranks([Call(payload=1000)], groups=()))).busbw_kernel_gbps is None
    assert only(report(of_ranks([Call("broadcast", 1000)], groups=()))).busbw_kernel_gbps == pytest.approx(100)


def test_bus_bandwidth_needs_bytes_and_never_invents_them() -> None:
    assert only(report(of_ranks([Call(group=0)]))).busbw_kernel_gbps is None
    assert only(report(of_ranks([Call(payload=0, group=0)]))).busbw_kernel_gbps is None


def test_an_uneven_all_to_all_runs_at_the_speed_of_its_largest_sender() -> None:
    calls = [Call("all_to_all", 100, group=0, rank=0), Call("all_to_all", 300, group=0, rank=1)]
    row = only(report(of_ranks(calls)))

    # Half of 300 bytes crosses the link in 10 ns, on each of the two ranks.
    assert (row.payload_bytes, row.busbw_kernel_gbps) == (400, pytest.approx(15.0))


def test_the_family_with_the_largest_share_of_exposed_time_comes_first() -> None:
    calls = [Call("all_gather"), Call("all_reduce"), Call("broadcast")]
    ops = [Op(COMMUNICATION, 0, 5, 0), Op(COMMUNICATION, 10, 30, 1), Op(COMMUNICATION, 40, 45, 2)]

    assert [row.collective for row in report(build(ops, calls=calls)).families] == ["all_reduce", "all_gather", "broadcast"]


def test_an_exposed_slice_is_split_equally_and_the_odd_nanosecond_goes_to_the_first() -> None:
    calls = [Call("all_gather"), Call("all_reduce")]
    ops = [Op(COMMUNICATION, 0, 10, 1), Op(COMMUNICATION, 3, 8, 0, lane="9")]
    rows = {row.collective: row for row in report(build(ops, calls=calls)).families}

    # 3 alone, 5 in two, 2 alone.
    assert (rows["all_reduce"].exposed_share_ns, rows["all_gather"].exposed_share_ns) == (3 + 3 + 2, 2)
    assert (rows["all_reduce"].exposed_ns, rows["all_gather"].exposed_ns) == (10, 5)


def test_of_families_that_start_together_the_first_by_name_takes_the_odd_nanosecond() -> None:
    for order in ((0, 1), (1, 0)):
        calls = [Call(("all_gather", "broadcast")[at]) for at in order]
        ops = [Op(COMMUNICATION, 0, 5, 0), Op(COMMUNICATION, 0, 5, 1, lane="9")]
        rows = {row.collective: row.exposed_share_ns for row in report(build(ops, calls=calls)).families}

        assert rows == {"all_gather": 3, "broadcast": 2}


def test_a_fused_kernel_is_neither_communication_nor_exposed_in_its_family() -> None:
    row = only(report(build([Op(FUSED, 0, 9, 0), Op(COMMUNICATION, 5, 12, 0)], calls=[Call()])))

    assert (row.fused_ns, row.communication_ns, row.under_fused_ns, row.exposed_ns) == (9, 7, 4, 3)


def test_of_equally_frequent_axis_sources_the_first_by_name_is_shown() -> None:
    listed = group(0, 1, name=None)
    for order in ((0, 1), (1, 0)):
        calls = [(Call(group=0, site="DistributedDataParallel.forward"), Call(group=1))[at] for at in order]
        row = only(report(of_ranks(calls, groups=(listed, group(0, 1, name="1", description="mesh_dp")))))

        assert (row.axis, row.axis_source, row.count) == ("dp", "group description", 2)


def test_libraries_of_a_family_are_listed_in_order_of_name() -> None:
    calls = [Call(library="nccl", group=0), Call(library="custom_all_reduce", group=0)]

    assert only(report(of_ranks(calls))).library == ["custom_all_reduce", "nccl"]
