"""Kineto traces of every age and state: what becomes of their events."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import underlap
from tests.traces import BASE_US, kernel, launch, names, notes, operator, read, text, write
from underlap.errors import NotATraceError
from underlap.read import kineto
from underlap.read.names import NameTable
from underlap.report import to_json
from underlap.timeline import HostKind, OpClass, Timeline

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
CALL = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Process Group Name": "1"}


def call(at: int = 1, **args: Any) -> dict[str, Any]:
    return kernel(at, name=NCCL, args=CALL | args)


def payload(timeline: Timeline) -> list[int]:
    return timeline.collectives.payload_bytes.tolist()


def members(timeline: Timeline) -> list[Any]:
    return [timeline.groups[group].ranks if group >= 0 else None for group in timeline.collectives.group]


@pytest.mark.parametrize("events", [[], [1, 2, None, "x"], ['{"ph": "X", "name": "cut'], [[[]]]])
def test_a_list_without_a_complete_event_is_no_trace(tmp_path: Path, events: list[Any]) -> None:
    with pytest.raises(NotATraceError, match=r"holds no complete event.*; expected a profiler trace"):
        read(tmp_path, *(event if isinstance(event, str) else json.dumps(event) for event in events))


@pytest.mark.parametrize(
    "event", [{}, {"ph": "M"}, {"ph": "X"}, {"ph": "X", "cat": "kernel"}, {"ph": "s", "cat": "kernel", "ts": 1, "dur": 1}]
)
def test_events_without_phase_category_or_time_are_no_trace(tmp_path: Path, event: dict[str, Any]) -> None:
    with pytest.raises(NotATraceError, match="none of its 1 events has a phase, a timestamp and a category"):
        read(tmp_path, event)


def test_one_kernel_with_its_launch_is_one_operation(tmp_path: Path) -> None:
    found = read(tmp_path, launch(1), kernel(1))

    assert (found.ops.start_ns[0] + found.origin_ns, found.ops.end_ns[0] - found.ops.start_ns[0]) == ((BASE_US + 10) * 1000, 5000)
    assert found.ops.launch_ns.tolist() == [0]
    assert notes(found).keys() == set()


@pytest.mark.parametrize("missing", ["name", "pid", "tid", "args"])
def test_a_kernel_without_an_inessential_field_still_counts(tmp_path: Path, missing: str) -> None:
    event = kernel(1)
    del event[missing]

    assert len(read(tmp_path, kernel(0), event).ops) == 2


@pytest.mark.parametrize("missing", ["ts", "dur"])
@pytest.mark.parametrize("value", [None, "x", [], "NaN", 1 << 70, -(1 << 70), 1e300])
def test_a_kernel_without_a_usable_time_is_left_out_and_said(tmp_path: Path, missing: str, value: Any) -> None:
    found = read(tmp_path, kernel(0), kernel(1, **{missing: value}))

    assert len(found.ops) == 1
    assert "left out: 1 event without a usable timestamp or duration" in notes(found)["events_dropped"]


def test_not_a_number_as_a_time_is_left_out_and_said(tmp_path: Path) -> None:
    broken = json.dumps(kernel(1, ts=1.0, dur=2.0)).replace("1.0", "NaN").replace("2.0", "Infinity")
    found = read(tmp_path, kernel(0), broken)

    assert len(found.ops) == 1
    assert notes(found).keys() >= {"events_dropped", "events_mended"}


def test_a_negative_duration_is_left_out_and_said(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(0), kernel(1, dur=-1), kernel(2, dur=0))

    assert len(found.ops) == 2
    assert "left out: 1 event with a negative duration" in notes(found)["events_dropped"]


@pytest.mark.parametrize("far", [0, -5, 4 * 10**15, -4 * 10**15, 10**18])
def test_a_clock_far_from_all_others_is_left_out_and_said(tmp_path: Path, far: int) -> None:
    found = read(tmp_path, *(kernel(at) for at in range(3)), kernel(5, ts=far))

    assert len(found.ops) == 3
    assert found.ops.end_ns.max() < 10**6
    assert "1 event " in notes(found)["events_dropped"]


def test_negative_timestamps_of_a_whole_trace_are_times(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(0, ts=-20.5), kernel(1, ts=-10))

    assert found.origin_ns == -20_500
    assert found.ops.start_ns.tolist() == [0, 10_500]


def test_a_duration_of_years_is_left_out_and_said(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(0), kernel(1), kernel(2, dur=10**14))

    assert len(found.ops) == 2
    assert "more than 30 days away" in notes(found)["events_dropped"]


@pytest.mark.parametrize(
    "field", ["correlation", "External id", "stream", "device", "bytes", "graph id", "Seq", "Group size", "Src Rank"]
)
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        -(1 << 40),
        1 << 31,
        1 << 40,
        1 << 63,
        1 << 64,
        1 << 90,
        1.5,
        "",
        "0x",
        "0xzz",
        "12",
        [1],
        {"a": 1},
        "x" * 5000,
    ],
)
def test_ids_of_any_type_and_size_are_no_traceback(tmp_path: Path, field: str, value: Any) -> None:
    found = read(tmp_path, launch(1), call(1, **{field: value}), call(2, **{field: value}))

    assert len(found.ops) == 2
    assert found.ops.nbytes.min() >= -1
    assert found.ops.graph.min() >= -1
    assert found.collectives.peer.min() >= -1


def test_large_graph_ids_stay_apart(tmp_path: Path) -> None:
    ids = [5, 1 << 40, (1 << 40) + 1, None, -(1 << 40)]
    found = read(tmp_path, *(kernel(at, args={"graph id": value}) for at, value in enumerate(ids)))

    assert len(set(found.ops.graph.tolist())) == 4
    assert found.ops.graph.tolist()[3:] == [-1, -1]


@pytest.mark.parametrize("value", [None, 1, "x", [], [1, 2], {"a": 1}, True, 1.5, -1, "0x10"])
def test_processes_and_threads_of_any_type_are_no_traceback(tmp_path: Path, value: Any) -> None:
    found = read(tmp_path, launch(1, pid=value, tid=value), kernel(1, pid=value, tid=value), operator(1, pid=value, tid=value))

    assert len(found.ops) == 1
    assert len(found.host) == 2


@pytest.mark.parametrize("value", [None, 1, "x", [1], True, 1.5])
def test_arguments_that_are_no_object_are_absent(tmp_path: Path, value: Any) -> None:
    found = read(tmp_path, kernel(0), kernel(1) | {"args": value})

    assert len(found.ops) == 2


def test_exact_repeats_are_dropped_and_said(tmp_path: Path) -> None:
    events = [operator(1, args={"External id": 4}), launch(1), kernel(1), kernel(2)]
    found = read(tmp_path, *events, *events, kernel(3))

    assert (len(found.ops), len(found.host)) == (3, 2)
    assert notes(found)["duplicates"] == "rank0.json: left out, as they repeat another one exactly: 2 device rows and 2 host rows"


def test_equal_calls_without_an_id_are_no_repeats(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(1), operator(1), operator(1))

    assert len(found.host) == 2
    assert "duplicates" not in notes(found)


def test_arguments_stay_with_their_row_when_a_repeat_before_it_is_dropped(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(0), kernel(0), call(1))

    assert payload(found) == [32]


def test_shuffled_events_give_the_same_report(tmp_path: Path) -> None:
    events = [launch(at, tid=at % 2) for at in range(12)] + [kernel(at, tid=at % 3, args={"stream": at % 3}) for at in range(8)]
    events += [call(at, stream=9) for at in range(8, 12)] + [operator(at, tid=at % 2) for at in range(12)]
    events += [
        {"ph": "B", "cat": "cpu_op", "name": "aten::b", "pid": 9, "tid": 9, "ts": BASE_US + 1},
        {"ph": "B", "cat": "cpu_op", "name": "aten::c", "pid": 9, "tid": 9, "ts": BASE_US + 2},
        {"ph": "E", "pid": 9, "tid": 9, "ts": BASE_US + 3},
        {"ph": "E", "pid": 9, "tid": 9, "ts": BASE_US + 4},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": "b"}},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": "a"}},
    ]

    def report() -> dict[str, Any]:
        path = write(tmp_path / "rank0.json", text(*events, distributedInfo={"rank": 0, "world_size": 2}))
        return json.loads(to_json(underlap.analyze(path)), object_hook=lambda found: found | {"source_row": None})

    expected = report()
    for seed in range(5):
        random.Random(seed).shuffle(events)
        assert report() == expected


def spans(timeline: Timeline) -> list[tuple[str, int, int]]:
    host = timeline.host
    return [
        (timeline.names[name], start // 1000, end // 1000)
        for name, start, end in zip(host.name.tolist(), host.start_ns.tolist(), host.end_ns.tolist(), strict=True)
    ]


def phase(kind: str, name: str, at: int, **fields: Any) -> dict[str, Any]:
    return {"ph": kind, "cat": "cpu_op", "name": name, "pid": 9, "tid": 9, "ts": BASE_US + at} | fields


def test_begins_and_ends_pair_like_brackets(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        kernel(0),
        phase("B", "a", 0),
        phase("B", "b", 1),
        phase("E", "b", 2),
        phase("E", "a", 5),
        phase("B", "c", 7, tid=3),
        phase("E", "", 9, tid=3),
    )

    assert spans(found) == [("a", 0, 5), ("b", 1, 2), ("c", 7, 9)]


def test_begins_and_ends_that_are_alone_are_said(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        kernel(0),
        phase("E", "x", 0),
        phase("B", "a", 1),
        phase("B", "b", 2),
        phase("E", "b", 3),
        phase("B", "c", 4, ts="NaN"),
    )
    dropped = [note.text for note in found.notes if note.code == "events_dropped"]

    assert spans(found) == [("b", 2, 3)]
    assert [text.partition("json: ")[2].partition(" are left")[0] for text in dropped] == [
        "left out: 1 event without a usable timestamp or duration",
        "left out: 1 event of an end without a begin",
        "left out: 1 event of a begin without an end",
    ]


def test_begins_and_ends_that_cross_pair_in_order_of_time(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(0), phase("B", "a", 0), phase("B", "b", 1), phase("E", "a", 2), phase("E", "b", 3))

    assert spans(found) == [("a", 0, 3), ("b", 1, 2)]


def test_begins_and_ends_of_device_rows_are_operations(tmp_path: Path) -> None:
    begin = kernel(1) | {"ph": "B"}
    del begin["dur"]
    found = read(tmp_path, begin, {"ph": "E", "pid": 0, "tid": 7, "ts": BASE_US + 14.5})

    assert (found.ops.end_ns - found.ops.start_ns).tolist() == [4500]


def test_a_trace_of_torch_1_8_is_read(tmp_path: Path) -> None:
    old = {"external id": "0x5", "correlation": 3}
    found = read(
        tmp_path,
        {
            "ph": "X",
            "cat": "Operator",
            "name": "aten::mm",
            "pid": 9,
            "tid": "8",
            "ts": 100,
            "dur": 50,
            "args": {"External id": "5"},
        },
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": "8", "ts": 110, "dur": 4, "args": old},
        {
            "ph": "X",
            "cat": "Kernel",
            "name": "gemm",
            "pid": 0,
            "tid": "stream 4294967295",
            "ts": 120,
            "dur": 9,
            "args": old | {"stream": 4294967295, "device": 0},
        },
        {
            "ph": "X",
            "cat": "Memcpy",
            "name": "Memcpy HtoD",
            "pid": 0,
            "tid": "stream 7",
            "ts": 130,
            "dur": 2,
            "args": {"stream": "0x7", "device": 0},
        },
    )

    assert names(found) == ["gemm", "Memcpy HtoD"]
    assert found.ops.op_class.tolist() == [OpClass.COMPUTE, OpClass.COPY]
    assert [lane.label for lane in found.lanes] == ["7", "4294967295"]
    assert found.ops.launch_ns.tolist()[0] == 10_000
    assert found.names[found.ops.call_site[0]] == "aten::mm"
    assert found.ranks[0].resolution_ns == 1000


def test_a_trace_of_rocm_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        launch(1, name="hipLaunchKernel", cat="hip_runtime"),
        launch(2, name="hipMemcpyAsync", cat="hip_runtime"),
        launch(3, name="hipDeviceSynchronize", cat="hip_runtime"),
        kernel(1, name="ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", args=CALL),
        kernel(2, name="CopyDeviceToHost", cat="gpu_memcpy"),
    )

    assert found.ops.op_class.tolist() == [OpClass.COMMUNICATION, OpClass.COPY]
    assert sorted(found.host.kind.tolist()) == [HostKind.LAUNCH, HostKind.LAUNCH, HostKind.SYNC]
    assert payload(found) == [32]


def test_devices_are_told_apart_however_they_are_written(tmp_path: Path) -> None:
    written = [0, "1", "mtia:2", "cuda 3", 4.0, "left", "right", [5], {"a": 6}]
    found = read(tmp_path, *(kernel(at, cat="mtia_ccp_events", args={"device": device}) for at, device in enumerate(written)))

    assert found.ops.device.tolist()[:5] == [0, 1, 2, 3, 4]
    assert len(set(found.ops.device.tolist())) == len(written)


def test_streams_of_any_spelling_are_lanes(tmp_path: Path) -> None:
    written = [7, "0x8", "0xzz", "0x", [9], "stream 10", 1.5, "0x" + "f" * 5000]
    found = read(tmp_path, *(kernel(at, args={"stream": stream}) for at, stream in enumerate(written)))

    assert len(found.lanes) == len(written)
    assert {"7", "8", "0xzz", "stream 10"} < {lane.label for lane in found.lanes}


@pytest.mark.parametrize("written", ["[0, 1]", [0, 1], "[0,1]"])
def test_members_of_a_group_in_both_spellings(tmp_path: Path, written: Any) -> None:
    assert members(read(tmp_path, call(**{"Process Group Ranks": written, "Group size": 2}))) == [(0, 1)]


@pytest.mark.parametrize(
    "written",
    [
        "[]",
        [],
        "[0, 1, ...]",
        "0, 1",
        "",
        "[0, 1",
        [0, "a"],
        [-1, 0],
        [0, 1 << 70],
        [0, 0],
        "[" * 100_000,
        {"a": 1},
        7,
        None,
        [True, False],
    ],
)
def test_members_that_are_not_listed_are_unknown(tmp_path: Path, written: Any) -> None:
    assert members(read(tmp_path, call(**{"Process Group Ranks": written}))) == [None]


def test_members_are_unknown_where_they_do_not_fit_the_size(tmp_path: Path) -> None:
    assert members(read(tmp_path, call(**{"Process Group Ranks": "[0, 1]", "Group size": 8}))) == [None]


def test_members_by_start_and_stride_are_bounded(tmp_path: Path) -> None:
    strided = {"Global rank start": 1, "Global rank stride": 4}

    assert members(read(tmp_path, call(**strided, **{"Group size": 3}))) == [(1, 5, 9)]
    for size, stride in ((1 << 62, 1), (1 << 30, 1), (8, 1 << 60)):
        assert members(read(tmp_path, call(**(strided | {"Group size": size, "Global rank stride": stride})))) == [None]


@pytest.mark.parametrize(
    "dims",
    [
        "",
        "x",
        None,
        [],
        [[]],
        [["a"]],
        [[-1, 5]],
        [[1 << 62, 8]],
        [[1 << 70]],
        [[[[[]]]]],
        [[1.5]],
        [[True]],
        {"a": 1},
        7,
        [None],
        [[None]],
    ],
)
def test_malformed_shapes_are_no_size(tmp_path: Path, dims: Any) -> None:
    host = operator(1, name="nccl:all_reduce", cat="user_annotation", args={"Input Dims": dims, "Input type": ["float"]})
    found = read(tmp_path, host, launch(1), kernel(1, name=NCCL))

    assert len(found.collectives) == 1
    assert payload(found)[0] in (-1, 4)  # a list without numbers is a scalar


def test_shapes_nested_beyond_sense_are_no_traceback(tmp_path: Path) -> None:
    deep = json.loads("[" * 400 + "1" + "]" * 400)
    host = operator(1, name="c10d::allreduce_", args={"Input Dims": deep, "Input type": deep})

    assert payload(read(tmp_path, host, launch(1), kernel(1, name=NCCL))) == [-1]


@pytest.mark.parametrize("count", [-1, 1 << 62, 1 << 70, "x", [1], 1.5])
def test_counts_of_elements_beyond_sense_are_no_payload(tmp_path: Path, count: Any) -> None:
    assert payload(read(tmp_path, call(**{"In msg nelems": count, "Out msg nelems": count}))) == [-1]


@pytest.mark.parametrize(
    "info",
    [
        None,
        7,
        "x",
        [],
        {},
        {"rank": -1},
        {"rank": "x"},
        {"rank": [0]},
        {"rank": 1 << 40},
        {"pg_config": 7},
        {"pg_config": [7, None]},
    ],
)
def test_nonsense_about_the_job_leaves_the_rank_to_the_file_name(tmp_path: Path, info: Any) -> None:
    (rank,) = kineto.read(write(tmp_path / "rank5.json", text(kernel(1), distributedInfo=info)), NameTable.default()).ranks

    assert (rank.rank, rank.rank_source, rank.world_size) == (5, "file name", None)


def test_a_rank_outside_its_world_leaves_the_world_unknown(tmp_path: Path) -> None:
    found = read(tmp_path, kernel(1), distributedInfo={"rank": 5, "world_size": 2})

    assert (found.ranks[0].rank, found.ranks[0].world_size) == (5, None)
    assert "rank 5 of a world of 2 ranks does not exist" in notes(found)["world_size"]


@pytest.mark.parametrize("field", ["pg_name", "pg_desc", "pg_size", "ranks"])
@pytest.mark.parametrize("value", [None, 7, -1, 1 << 70, [1], {"a": [1]}, "x", [], [[]], True])
def test_groups_with_nonsense_in_them_are_no_traceback(tmp_path: Path, field: str, value: Any) -> None:
    group = {"pg_name": "1", "pg_desc": "d", "pg_size": 2, "ranks": [0, 1]} | {field: value}
    found = read(tmp_path, call(), distributedInfo={"rank": 0, "world_size": 2, "pg_config": [group]})

    assert len(found.collectives) == 1


@pytest.mark.parametrize("properties", [None, 7, [7], [{"id": [0], "name": "a"}], [{"id": 0, "name": ["a"]}], [{"name": {}}]])
def test_nonsense_about_the_devices_is_no_traceback(tmp_path: Path, properties: Any) -> None:
    assert len(read(tmp_path, kernel(1), deviceProperties=properties).ranks) == 1


def test_metadata_after_the_events_counts_like_before_them(tmp_path: Path) -> None:
    after = json.dumps({"traceEvents": [kernel(1)], "distributedInfo": {"rank": 3, "world_size": 4}})

    assert kineto.read(write(tmp_path / "x.json", after), NameTable.default()).ranks[0].rank == 3


def merged(shift: int, *, device_pids: tuple[Any, ...] = (0, 1)) -> list[dict[str, Any]]:
    """Two processes with equal correlation ids; device i is process 100 + i's, whose host is `shift` * i us later."""
    events = []
    for at in range(1, 20):
        for rank, pid in enumerate(device_pids):
            moved = BASE_US + 10 * at + shift * rank
            events.append(launch(at, pid=100 + rank, tid=1, ts=moved - 3))
            events.append(kernel(at, name=f"k{rank}", pid=pid, ts=moved, args={"device": rank}))
            events.append(operator(at, pid=100 + rank, tid=1, ts=moved - 4, name=f"aten::r{rank}"))
    return events


@pytest.mark.parametrize("shift", [0, 1, 5000, -5000, 10**6, -(10**6)])
def test_each_device_of_a_merged_file_goes_to_its_process(tmp_path: Path, shift: int) -> None:
    found = read(tmp_path, *merged(shift))

    assert [rank.rank_source for rank in found.ranks] == ["process order"] * 2
    assert {(names(found)[at], int(found.ops.rank[at])) for at in range(len(found.ops))} == {("k0", 0), ("k1", 1)}
    assert {
        (found.names[name], int(rank))
        for name, rank in zip(found.host.name, found.host.rank, strict=True)
        if "aten" in found.names[name]
    } == {
        ("aten::r0", 0),
        ("aten::r1", 1),
    }
    assert (found.ops.launch_ns == found.ops.start_ns - 3000).all()
    assert "process 100 = rank 0, process 101 = rank 1" in notes(found)["rank_assumed"]


def test_a_rank_in_the_metadata_of_a_merged_file_is_no_rank_of_its_rows(tmp_path: Path) -> None:
    stray = [call(50, device=1), launch(60, pid=500), operator(61, pid=501)]
    found = read(tmp_path, *merged(1000), *stray, distributedInfo={"rank": 7, "world_size": 8})

    ranks = {0, 1}
    assert {rank.rank for rank in found.ranks} == ranks
    for column in (found.ops.rank, found.host.rank, found.collectives.rank):
        assert set(column.tolist()) <= ranks
    assert {thread.rank for thread in found.threads} <= ranks
    assert "left out: 2 events of processes without a device" in notes(found)["events_dropped"]


def test_a_process_of_many_is_natural_in_order(tmp_path: Path) -> None:
    events = [event for at in (2, 10) for event in (launch(at, pid=at), kernel(at, args={"device": at}))]
    found = read(tmp_path, *events)

    assert "process 2 = rank 0, process 10 = rank 1" in notes(found)["rank_assumed"]


def test_a_repeated_correlation_belongs_to_the_last_launch_before_the_kernel(tmp_path: Path) -> None:
    events = [launch(at, args={"correlation": 5}) for at in (0, 1000, 2000)] + [
        kernel(at, args={"correlation": 5}) for at in (0, 1000, 2000)
    ]
    found = read(tmp_path, *events)

    assert (found.ops.start_ns - found.ops.launch_ns).tolist() == [3000] * 3


def test_of_launches_inside_each_other_the_outer_one_counts(tmp_path: Path) -> None:
    inner = launch(1, name="cuLaunchKernel", cat="cuda_driver", dur=0.5)
    inner["ts"] += 0.25
    found = read(tmp_path, inner, launch(1), kernel(1))

    assert (found.ops.start_ns - found.ops.launch_ns).tolist() == [3000]


def test_a_deep_stack_of_operators_knows_the_call_around_it(tmp_path: Path) -> None:
    depth = 3000
    stack = [operator(0, name=f"aten::o{at}", ts=BASE_US - depth + at, dur=3 * depth - 2 * at) for at in range(depth)]
    around = operator(0, name="nccl:all_reduce", cat="user_annotation", ts=BASE_US - depth - 1, dur=4 * depth)
    found = read(tmp_path, around, *stack, launch(1), kernel(1, name=NCCL))

    assert found.names[found.ops.call_site[0]] == f"aten::o{depth - 1}"
    assert found.names[found.collectives.collective[0]] == "all_reduce"


def gloo(at: float, name: str, size: int, **fields: Any) -> dict[str, Any]:
    args = {"Input Dims": [[size]], "Input type": ["float"]}
    return operator(name=name, cat="user_annotation", tid=77, ts=BASE_US + at, dur=1, args=args) | fields


def asked(at: float, name: str, size: int) -> dict[str, Any]:
    return operator(name=name, ts=BASE_US + at, dur=0.5, args={"Input Dims": [[size]], "Input type": ["float"]})


def test_gloo_calls_get_the_first_span_that_fits(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        asked(1, "c10d::allreduce_", 4),
        asked(2, "c10d::allreduce_", 8),
        asked(3, "c10d::_reduce_scatter_base_", 4),
        gloo(0.5, "gloo:all_reduce", 8),
        gloo(4, "gloo:all_reduce", 8),
        gloo(5, "gloo:all_reduce", 4),
        gloo(6, "gloo:all_reduce", 4),
    )

    issued = found.collectives.issue_ns - int(found.collectives.issue_ns[1]) + 2000
    assert issued.tolist()[1:] == [2000, 1000, 3000]
    assert found.collectives.issue_ns[0] == np.iinfo(np.int64).min


@pytest.mark.parametrize(
    ("concrete", "expected"),
    [
        (["", "", "", "", "True", "-1"], 1),
        (["", "", "", "", "False", "-1"], 0),
        (["", "True", "False"], -1),
        ([], -1),
        ("True", -1),
        (None, -1),
    ],
)
def test_whether_a_call_was_asynchronous_is_its_one_boolean(tmp_path: Path, concrete: Any, expected: int) -> None:
    call = asked(1, "c10d::allreduce_", 4)
    call["args"]["Concrete Inputs"] = concrete

    assert read(tmp_path, call, gloo(2, "gloo:all_reduce", 4)).collectives.asynchronous.tolist() == [expected]


def test_several_processes_without_devices_are_said(tmp_path: Path) -> None:
    found = read(tmp_path, operator(1), operator(2, pid=10))

    assert notes(found)["processes_merged"] == "2 processes in one file without device rows are taken as one rank"


def test_threads_of_one_name_stay_apart(tmp_path: Path) -> None:
    named = [{"ph": "M", "name": "thread_name", "pid": 9, "tid": tid, "args": {"name": "worker"}} for tid in (1, 2)]
    found = read(tmp_path, *named, operator(1, tid=1), operator(1, tid=2))

    assert [lane.label for lane in found.lanes] == ["worker 9/1", "worker 9/2"]


def test_a_thread_of_two_names_has_the_same_whatever_their_order(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": name}} for name in ("python", "pt_gloo_runloop")
    ]
    found = {read(tmp_path, *order, operator(1)).lanes[0].label for order in (named, named[::-1])}

    assert found == {"pt_gloo_runloop"}


@pytest.mark.parametrize("name", ["x" * 1_000_000, "a\x00b\x1b[31m", "\ud83d\ude00", "", "a\nb", "</script>", "}, {"])
def test_names_of_any_content_stay_names(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, kernel(1, name=name))

    assert names(found) == [name.encode("utf-16", "surrogatepass").decode("utf-16")]


def test_a_host_that_launches_without_device_rows_says_how_to_record(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match=r"no device events in this trace.*ProfilerActivity.CUDA"):
        read(tmp_path, launch(1), operator(1))


def test_what_was_lost_is_in_the_notes(tmp_path: Path) -> None:
    content = text(kernel(1), json.dumps(kernel(2, name="@")).replace("@", "a\tb"), "7", kernel(3) | {"pid": [1]})[:-2] + ", {"
    found = kineto.read(write(tmp_path / "rank0.json", content), NameTable.default())

    assert len(found.ops) == 3
    assert notes(found)["truncated"] == "rank0.json: the list of events is not closed; complete events used: 3"
    assert "left out, as unreadable: 1 event (first: not an object)" in notes(found)["events_skipped"]
    assert "mended, as no valid JSON (control characters, quotes, NaN): 1 event" in notes(found)["events_mended"]
    assert "fields of a wrong type in 1 event" in notes(found)["events_mistyped"]


def test_two_lists_of_events_are_said(tmp_path: Path) -> None:
    content = text(kernel(1))[:-1] + ", " + text(kernel(2))[1:]
    found = kineto.read(write(tmp_path / "rank0.json", content), NameTable.default())

    assert len(found.ops) == 2
    assert notes(found)["several_lists"] == "rank0.json: 2 lists of events in the file; all of them were read"
