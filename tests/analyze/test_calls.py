"""Calls one by one: their times, where to look at them, and which are unusually long."""

from __future__ import annotations

from tests.timelines import COMMUNICATION, COMPUTE, Call, Op, build, group, info
from underlap.analyze.report import report
from underlap.report import Report


def lengths(*nanoseconds: int, payloads: tuple[int | None, ...] | None = None) -> Report:
    """One all-reduce after the other."""
    payloads = payloads or (64,) * len(nanoseconds)
    ops = [Op(COMMUNICATION, 1000 * at, 1000 * at + length, at) for at, length in enumerate(nanoseconds)]
    return report(build(ops, calls=[Call(payload=payload) for payload in payloads]))


def outliers(found: Report) -> list[int]:
    return [row.duration_ns for row in found.instances if row.outlier]


def test_a_call_without_a_kernel_is_no_instance() -> None:
    assert report(build([Op(COMPUTE, 0, 5)], calls=[Call()])).instances == []


def test_one_call_says_where_it_is_and_what_it_did() -> None:
    ops = [Op(COMPUTE, 0, 4), Op(COMMUNICATION, 2, 10, 0, 1, "ncclDevKernel_AllReduce", lane="9")]
    call = Call(payload=64, group=0, sequence=7, dtype="Float", site="backward")
    timeline = build(ops, calls=[call], groups=[group(0, 1, name="3", description="mesh_tp")], origin=1 << 60)
    (row,) = report(timeline).instances

    assert (row.collective, row.axis, row.group, row.group_size, row.sequence) == ("all_reduce", "tp", "mesh_tp", 2, 7)
    assert (row.payload_bytes, row.dtype, row.call_site, row.kernel) == (64, "Float", "backward", "ncclDevKernel_AllReduce")
    assert (row.start_ns, row.end_ns, row.duration_ns, row.hidden_ns, row.exposed_ns, row.launch_ns) == (2, 10, 8, 2, 6, 1)
    assert (row.lane, row.source_file, row.source_row, row.perfetto_ts) == ("9", "rank0.json", 1, str((1 << 60) + 2))


def test_what_a_trace_does_not_say_of_a_call_is_null() -> None:
    (row,) = report(build([Op(COMMUNICATION, 0, 4, 0)], calls=[Call(None)])).instances

    unknown = (row.collective, row.axis, row.group, row.group_size, row.sequence, row.payload_bytes, row.dtype, row.launch_ns)
    assert set(unknown) == {None}
    assert (row.call_site, row.step) == (None, None)


def test_a_call_of_several_kernels_is_shown_at_the_earliest_of_them() -> None:
    ops = [Op(COMMUNICATION, 20, 25, 0, name="second", lane="9"), Op(COMMUNICATION, 3, 9, 0, name="first")]
    (row,) = report(build(ops, calls=[Call()])).instances

    assert (row.kernel, row.lane, row.source_row) == ("first", "7", 1)
    assert (row.start_ns, row.end_ns, row.duration_ns) == (3, 25, 11)


def test_instances_come_in_order_of_their_start() -> None:
    ops = [Op(COMMUNICATION, 50, 60, 0), Op(COMMUNICATION, 0, 10, 1, rank=1), Op(COMMUNICATION, 20, 30, 2)]
    timeline = build(ops, calls=[Call(), Call(rank=1), Call()])

    assert [(row.start_ns, row.rank) for row in report(timeline).instances] == [(0, 1), (20, 0), (50, 0)]


def test_a_call_over_three_times_the_median_is_an_outlier() -> None:
    assert outliers(lengths(100, 100, 100, 301)) == [301]


def test_exactly_three_times_the_median_is_no_outlier() -> None:
    assert outliers(lengths(100, 100, 100, 300)) == []


def test_three_calls_are_too_few_for_an_outlier() -> None:
    assert outliers(lengths(100, 100, 900)) == []


def test_only_calls_of_the_same_size_are_compared() -> None:
    assert outliers(lengths(100, 100, 100, 900, payloads=(8, 8, 8, 1 << 20))) == []
    mixed = lengths(100, 100, 100, 301, 900, 900, 900, 900, payloads=(8,) * 4 + (1 << 20,) * 4)
    assert outliers(mixed) == [301]


def test_calls_of_unknown_size_are_never_outliers() -> None:
    assert outliers(lengths(100, 100, 100, 900, payloads=(None,) * 4)) == []


def test_only_calls_of_the_same_collective_are_compared() -> None:
    ops = [Op(COMMUNICATION, 1000 * at, 1000 * at + (900 if at == 3 else 100), at) for at in range(4)]
    calls = [Call("all_gather" if at == 3 else "all_reduce", 64) for at in range(4)]

    assert outliers(report(build(ops, calls=calls, ranks=[info(0)]))) == []
