"""Causes of idle time on recorded and on drawn Timelines. Planted amounts are in test_planted_causes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import underlap
from tests.strategies import timelines
from tests.timelines import COMMUNICATION, COMPUTE, COPY, Call, Host, Op, build, group, info
from underlap.analyze.idle import IDLE_CAUSES
from underlap.report import Report
from underlap.timeline import HostKind, Timeline

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "accuracy.py"))


def whole(timeline: Timeline) -> Report:
    return underlap.analyze(timeline, window="whole")


def idle_of(timeline: Timeline) -> dict[str, int]:
    return whole(timeline).ranks[0].idle_causes


@pytest.mark.parametrize("name", TOOL["RECORDED"])
def test_causes_of_idle_time_of_a_recorded_trace_add_up(name: str) -> None:
    report = TOOL["report"](name)

    assert [sum(row.idle_causes.values()) for row in report.ranks] == [row.idle_ns for row in report.ranks]
    assert sum(row.idle_ns for row in report.idle_causes) == sum(row.idle_ns for row in report.ranks)
    assert {row.cause for row in report.idle_causes} <= set(IDLE_CAUSES)


@pytest.mark.parametrize("name", ["vllm_tp8_b200", "ddp_a100"])
def test_traces_read_by_hand_as_host_bound_are_idle_as_the_host_is_busy(name: str) -> None:
    first = TOOL["report"](name).idle_causes[0]

    assert first.cause == "host_busy"
    assert first.share > 0.95


def test_the_data_loader_of_dlrm_is_seen_as_input() -> None:
    causes = {row.cause: row.idle_ns for row in TOOL["report"]("dlrm").idle_causes}

    assert 0 < causes["input"] < causes["host_busy"]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(timeline=timelines())
def test_causes_of_idle_time_are_a_partition_of_it(timeline: Timeline) -> None:
    for row in whole(timeline).ranks:
        assert sum(row.idle_causes.values()) == row.idle_ns
        assert all(amount > 0 for amount in row.idle_causes.values())
        assert list(row.idle_causes.values()) == sorted(row.idle_causes.values(), reverse=True)


def test_after_its_submission_it_is_not_the_host() -> None:
    ops = [Op(COMPUTE, 0, 100, launch=0), Op(COMPUTE, 1000, 1100, launch=400)]

    assert idle_of(build(ops)) == {"unknown": 600, "host_busy": 300}


def test_a_thread_in_the_loader_that_blocks_there_fetches_input() -> None:
    host = [
        Host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 900),
        Host("cudaStreamSynchronize", 300, 1000, HostKind.SYNC),
    ]
    ops = [Op(COMPUTE, 0, 100, launch=0), Op(COMPUTE, 1100, 1200, launch=1100)]

    assert idle_of(build(ops, host=host)) == {"input": 800, "host_blocked": 100, "host_busy": 100}


def test_what_another_thread_did_is_not_what_this_one_did() -> None:
    host = [
        Host("enumerate(DataLoader)#x", 100, 900, thread="2"),
        Host("cudaDeviceSynchronize", 100, 900, HostKind.SYNC, thread="2"),
    ]
    ops = [Op(COMPUTE, 0, 100, launch=0), Op(COMPUTE, 900, 1200, launch=900)]

    assert idle_of(build(ops, host=host)) == {"host_busy": 800}


@pytest.mark.parametrize("name", ["Memcpy DtoH (Device -> Pinned)", "Memcpy DtoD (Device -> Device)", "Memset (Device)"])
def test_copies_that_bring_nothing_to_the_device_are_no_input(name: str) -> None:
    host = [Host("cudaMemcpyAsync", 100, 900, HostKind.LAUNCH)]
    ops = [Op(COMPUTE, 0, 100, launch=0), Op(COPY, 900, 1000, launch=100, name=name), Op(COMPUTE, 1000, 1200, launch=100)]

    assert idle_of(build(ops, host=host)) == {"unknown": 800}


def test_steps_without_annotations_have_no_end_on_the_host() -> None:
    host = [Host("cudaGraphLaunch", at, at + 10, HostKind.LAUNCH) for at in (0, 1000, 2000)]
    ops = [Op(COMPUTE, at, at + 100, launch=at, graph=at) for at in (0, 1000, 2000)]

    assert idle_of(build(ops, host=host)) == {"host_busy": 1800}


def pipeline(late: int, *, collective: bool = False) -> Timeline:
    """Rank 0 posts its call at 1000; rank 1 is there at `late`."""
    ops, calls = [], []
    for rank, name in enumerate(("recv", "send")):
        begin = late if rank else 1000
        ops.append(Op(COMPUTE, 0, 100, launch=0, rank=rank))
        ops.append(Op(COMMUNICATION, begin, max(1000, late) + 50, rank, begin, rank=rank, lane="20"))
        ops.append(Op(COMPUTE, max(1000, late) + 50, max(1000, late) + 150, launch=0, rank=rank))
        calls.append(Call("all_reduce" if collective else name, 8, 0, 0, rank=rank, peer=1 - rank))
    groups = [group(0, 1, description="mesh_pp")]
    return build(ops, calls=calls, groups=groups, ranks=[info(rank, world=2) for rank in (0, 1)])


def test_a_stage_idles_for_the_schedule_only_until_its_peer_is_there() -> None:
    sure = {row.rank: row.clock_uncertainty_ns for row in whole(pipeline(1_000_000)).ranks}
    assert None not in sure.values()

    # Before the peer's arrival nothing could have been received, whenever the call was posted.
    assert idle_of(pipeline(1_000_000)) == {"bubble": 900}


def test_waiting_of_another_collective_is_no_bubble() -> None:
    assert idle_of(pipeline(1_000_000, collective=True)) == {"host_busy": 900}


def test_a_peer_within_the_uncertainty_of_the_clocks_makes_no_bubble() -> None:
    assert idle_of(pipeline(900)) == {"host_busy": 900}
