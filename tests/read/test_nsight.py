"""Nsight Systems exports: the figures of a real pair, small files for each rule, and hostile ones."""

from __future__ import annotations

import pickle
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underlap import intervals
from underlap.errors import NotATraceError, UnreadableError
from underlap.read.names import NameTable
from underlap.read.nsight import read
from underlap.read.nsight_ranges import UNKNOWN_END, Ranges, _parents, ancestor, clean, innermost, is_operator
from underlap.timeline import UNKNOWN_NS, HostKind, OpClass, Timeline

TRACES = Path(__file__).parents[2].parent / "shared/traces/nsys_2gpu"
BEFORE, AFTER = TRACES / "mfu_2gpu_before.sqlite", TRACES / "mfu_2gpu_after.sqlite"
TABLE = NameTable.default()
NCCL, GEMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "sm90_xmma_gemm_bf16"

Rows = dict[str, list[dict[str, Any]]]


def pid(process: int) -> int:
    return 1 << 48 | process << 24


def tid(process: int, thread: int = 1) -> int:
    return pid(process) | thread


def kernel(
    start: int, end: int, name: int, *, correlation: int = 0, process: int = 5, device: int = 0, **more: int
) -> dict[str, Any]:
    place = {"deviceId": device, "streamId": 7, "globalPid": pid(process)}
    return {"start": start, "end": end, **place, "correlationId": correlation, "demangledName": name, **more}


def copy(start: int, end: int, kind: int, *, correlation: int = 0, **more: int) -> dict[str, Any]:
    place = {"deviceId": 0, "streamId": 9, "globalPid": pid(5), "copyKind": kind, "bytes": 64}
    return {"start": start, "end": end, **place, "correlationId": correlation, **more}


def call(start: int, end: int, correlation: int, *, name: int = 3, process: int = 5, thread: int = 1) -> dict[str, Any]:
    return {"start": start, "end": end, "globalTid": tid(process, thread), "correlationId": correlation, "nameId": name}


def span(start: int, end: int | None, text: str, *, process: int = 5, thread: int = 1, kind: int = 59) -> dict[str, Any]:
    more = {"eventType": kind, "globalTid": tid(process, thread), "textId": None}
    return {"start": start, "end": end, "text": text, **more}


STRINGS = {1: NCCL, 2: GEMM, 3: "cudaLaunchKernel_v7000", 4: "cudaStreamSynchronize_v3020", 5: "registered range"}


def write(path: Path, tables: Rows, strings: dict[int, str] = STRINGS) -> Path:
    """An export with these tables; a column is what any row of the table names."""
    all_tables = {"StringIds": [{"id": key, "value": value} for key, value in strings.items()], **tables}
    with sqlite3.connect(path) as connection:
        for table, rows in all_tables.items():
            columns = list(dict.fromkeys(name for row in rows for name in row))
            texts = {"text": "TEXT", "value": "TEXT", "name": "TEXT", "label": "TEXT", "binaryData": "BLOB"}
            declared = ", ".join(f'"{name}" {texts.get(name, "INTEGER")}' for name in columns)
            connection.execute(f"CREATE TABLE {table} ({declared})")
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", [[row.get(c) for c in columns] for row in rows])
    connection.close()
    return path


def load(tmp_path: Path, *, strings: dict[int, str] = STRINGS, **tables: list[dict[str, Any]]) -> Timeline:
    whole = ("NVTX_", "TARGET_", "ENUM_", "ANALYSIS_")
    prefixed = {name if name.startswith(whole) else f"CUPTI_ACTIVITY_KIND_{name}": rows for name, rows in tables.items()}
    timeline = read(write(tmp_path / "report.sqlite", prefixed, strings), TABLE)
    timeline.validate()
    return timeline


def names_of(timeline: Timeline, ids: Any) -> list[str | None]:
    return [timeline.name_of(index) for index in ids.tolist()]


def notes_of(timeline: Timeline) -> dict[str, str]:
    return {note.code: note.text for note in timeline.notes}


# The real pair.


def naive_figures(path: Path, device: int) -> tuple[float, float, float, int]:
    """Compute, exposed communication and span in ms, and communication kernels: a sweep over the raw rows, not the reader's."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    rows = connection.execute(
        "SELECT start, end, value LIKE 'nccl%' FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName "
        "WHERE deviceId = ?",
        (device,),
    ).fetchall()
    connection.close()
    edges = sorted([(start, 1, nccl) for start, _, nccl in rows] + [(end, -1, nccl) for _, end, nccl in rows])
    running, last, compute, exposed = [0, 0], edges[0][0], 0, 0
    for time, step, nccl in edges:
        compute += (time - last) * (running[0] > 0)
        exposed += (time - last) * (running[1] > 0 and running[0] == 0)
        running[nccl] += step
        last = time
    return compute / 1e6, exposed / 1e6, (last - edges[0][0]) / 1e6, sum(nccl for *_, nccl in rows)


def figures(timeline: Timeline, rank: int) -> tuple[float, float, float, int]:
    """The same from the Timeline; the span is that of the kernels, as copies belong to neither class."""
    ops = timeline.ops.take((timeline.ops.rank == rank) & (timeline.ops.op_class != OpClass.COPY))
    talks = ops.op_class == OpClass.COMMUNICATION
    compute = intervals.union(ops.start_ns[~talks], ops.end_ns[~talks])
    exposed = intervals.subtract(intervals.union(ops.start_ns[talks], ops.end_ns[talks]), compute)
    span_ns = int(ops.end_ns.max() - ops.start_ns.min())
    return intervals.length(compute) / 1e6, intervals.length(exposed) / 1e6, span_ns / 1e6, int(talks.sum())


@pytest.mark.parametrize(
    ("path", "rank", "expected"),
    [
        (BEFORE, 0, (253.69, 17.17, 299.85, 33)),
        (BEFORE, 1, (256.10, 8.23, 298.66, 33)),
        (AFTER, 0, (227.48, 9.99, 299.22, 31)),
        (AFTER, 1, (227.61, 23.75, 299.24, 31)),
    ],
)
def test_the_real_pair_gives_the_known_figures(path: Path, rank: int, expected: tuple[float, float, float, int]) -> None:
    assert naive_figures(path, rank) == pytest.approx(expected, abs=0.005)
    assert figures(read(path, TABLE), rank) == naive_figures(path, rank)


@pytest.mark.parametrize("path", [BEFORE, AFTER])
def test_every_kernel_of_the_real_pair_keeps_its_times_rank_and_launch(path: Path) -> None:
    timeline = read(path, TABLE)
    timeline.validate()
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    rows = connection.execute(
        "SELECT k.rowid, k.start, k.end, k.deviceId, (SELECT r.start FROM CUPTI_ACTIVITY_KIND_RUNTIME r WHERE "
        "r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24) FROM CUPTI_ACTIVITY_KIND_KERNEL k"
    ).fetchall()
    connection.close()
    ops = timeline.ops.take(timeline.ops.op_class != OpClass.COPY)
    origin = timeline.origin_ns
    launches = [None if value == UNKNOWN_NS else value + origin for value in ops.launch_ns.tolist()]
    times = ((ops.start_ns + origin).tolist(), (ops.end_ns + origin).tolist(), ops.rank.tolist())
    assert sorted(zip(ops.source_row.tolist(), *times, launches, strict=True)) == sorted(rows)


def test_a_send_recv_kernel_of_an_all_to_all_is_an_all_to_all_and_only_the_range_tells() -> None:
    timeline = read(BEFORE, TABLE)
    calls = timeline.collectives
    assert len(calls) == 66
    told = calls.take(calls.issue_ns != UNKNOWN_NS)
    assert set(names_of(timeline, told.collective)) == {"all_to_all"}
    assert set(names_of(timeline, told.call_site)) == {"c10d::alltoall_base_"}
    # The first one of each GPU was launched before the capture began.
    untold = calls.take(calls.issue_ns == UNKNOWN_NS)
    assert names_of(timeline, untold.collective) == ["send_recv", "send_recv"]
    assert "31 of 5299" in notes_of(timeline)["unlaunched"]


def test_the_export_says_how_to_get_message_sizes() -> None:
    timeline = read(BEFORE, TABLE)
    assert (timeline.collectives.payload_bytes == -1).all()
    assert "nsys export --type sqlite --include-blobs=true" in notes_of(timeline)["nccl_blobs"]


def test_ranks_are_numbered_by_gpu_and_the_report_says_that_this_is_assumed() -> None:
    timeline = read(BEFORE, TABLE)
    assert [(rank.rank, rank.rank_source, rank.world_size, rank.clock) for rank in timeline.ranks] == [
        (0, "process order", None, 0),
        (1, "process order", None, 0),
    ]
    assert "rank 0 is process 144 on GPU 0; rank 1 is process 145 on GPU 1" in notes_of(timeline)["rank_assumed"]


@pytest.mark.parametrize("path", [BEFORE, AFTER])
def test_nothing_of_the_environment_the_host_or_the_program_output_gets_into_the_timeline(path: Path) -> None:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    private = [
        value
        for query in (
            "SELECT value FROM TARGET_INFO_SYSTEM_ENV",
            "SELECT value FROM META_DATA_CAPTURE",
            "SELECT value FROM META_DATA_EXPORT",
            "SELECT filename FROM ANALYSIS_FILE",
            "SELECT value FROM StringIds WHERE id IN (SELECT filenameId FROM ProcessStreams)",
            "SELECT value FROM StringIds WHERE id IN (SELECT nameId FROM ThreadNames)",
        )
        for (value,) in connection.execute(query)
        if value is not None and len(value) > 8
    ]
    connection.close()
    secrets = {part for value in private for part in (value, value.partition("=")[2]) if len(part) > 8}
    assert any("SECRET" in secret for secret in secrets)
    timeline = read(path, TABLE)
    held = pickle.dumps(timeline).decode("latin-1")
    assert not [secret for secret in secrets if secret in held or any(secret in name for name in timeline.names)]


def test_reading_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a #1?.sqlite"
    path.write_bytes(BEFORE.read_bytes())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    before = path.read_bytes()
    read(path, TABLE)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


# Device rows.


def test_one_kernel_is_enough(tmp_path: Path) -> None:
    timeline = load(tmp_path, KERNEL=[kernel(100, 200, 2)])
    assert names_of(timeline, timeline.ops.name) == [GEMM]
    assert (timeline.origin_ns, timeline.ops.start_ns.tolist(), timeline.ops.end_ns.tolist()) == (100, [0], [100])
    assert timeline.ops.launch_ns.tolist() == [UNKNOWN_NS]
    assert {"rank_assumed", "unlaunched", "no_annotations"} == set(notes_of(timeline))


def test_correlation_ids_are_told_apart_by_process(tmp_path: Path) -> None:
    timeline = load(
        tmp_path,
        KERNEL=[
            kernel(100, 200, 2, correlation=9, process=8, device=1),
            kernel(100, 200, 2, correlation=9, process=9, device=0),
            kernel(300, 400, 2, correlation=9, process=7, device=2),
        ],
        RUNTIME=[call(10, 12, 9, process=8), call(20, 22, 9, process=9), call(5, 6, 9, process=3)],
    )
    ops = timeline.ops
    assert timeline.origin_ns == 5
    assert dict(zip(ops.device.tolist(), ops.launch_ns.tolist(), strict=True)) == {1: 5, 0: 15, 2: UNKNOWN_NS}
    assert dict(zip(ops.device.tolist(), ops.rank.tolist(), strict=True)) == {0: 0, 1: 1, 2: 2}
    assert [thread.process for thread in timeline.threads] == ["8", "9"]


def test_a_process_with_two_devices_is_one_rank_with_a_lane_per_device(tmp_path: Path) -> None:
    timeline = load(tmp_path, KERNEL=[kernel(100, 200, 2, device=3), kernel(100, 200, 2, device=1)])
    assert len(timeline.ranks) == 1
    assert [(lane.rank, lane.device, lane.label) for lane in timeline.lanes] == [(0, 1, "7"), (0, 3, "7")]
    assert "rank 0 is process 5 on GPUs 1, 3" in notes_of(timeline)["rank_assumed"]


def test_copies_and_memsets_have_bytes_and_readable_names(tmp_path: Path) -> None:
    kinds = [{"id": 11, "name": "CUDA_MEMCPY_KIND_UVM_HTOD", "label": "Unified Host-to-Device"}]
    memset = {"start": 50, "end": 60, "deviceId": 0, "streamId": 9, "globalPid": pid(5), "bytes": 8}
    timeline = load(
        tmp_path,
        MEMCPY=[copy(10, 20, 1), copy(20, 30, 2), copy(30, 40, 11), copy(40, 50, 77)],
        MEMSET=[memset],
        ENUM_CUDA_MEMCPY_OPER=kinds,
    )
    assert names_of(timeline, timeline.ops.name) == [
        "Memcpy HtoD",
        "Memcpy DtoH",
        "Memcpy Unified Host-to-Device",
        "Memcpy of kind 77",
        "Memset",
    ]
    assert set(timeline.ops.op_class.tolist()) == {OpClass.COPY}
    assert timeline.ops.nbytes.tolist() == [64, 64, 64, 64, 8]


def test_a_peer_copy_is_communication_only_under_a_range_that_names_a_collective(tmp_path: Path) -> None:
    timeline = load(
        tmp_path,
        MEMCPY=[
            copy(100, 2_000_100, 10, correlation=1),
            copy(110, 120, 8, correlation=2, srcDeviceId=0, dstDeviceId=1),
            copy(120, 130, 10, correlation=3),
            copy(130, 140, 8, correlation=2, srcDeviceId=0, dstDeviceId=0),
        ],
        RUNTIME=[call(10, 11, 1), call(20, 21, 2), call(30, 31, 3)],
        NVTX_EVENTS=[
            span(9, 12, "aten::copy_"),
            span(19, 25, "symm_mem::one_shot_all_reduce, op_id = 4"),
            span(29, 35, "ncclAllGather"),
        ],
    )
    assert timeline.ops.op_class.tolist() == [OpClass.COPY, OpClass.COMMUNICATION, OpClass.COMMUNICATION, OpClass.COPY]
    calls = timeline.collectives
    assert names_of(timeline, calls.collective) == ["all_reduce", "all_gather"]
    assert names_of(timeline, calls.library) == ["copy_engine", "copy_engine"]
    assert "1 copy (2.000 ms) between devices" in notes_of(timeline)["peer_copies"]


def test_a_graph_recorded_as_a_whole_is_compute_that_nobody_recognized(tmp_path: Path) -> None:
    graph = {"start": 50, "end": 3_000_050, "deviceId": 0, "streamId": 9, "globalPid": pid(5), "graphId": 12, "correlationId": 4}
    timeline = load(
        tmp_path,
        KERNEL=[kernel(10, 20, 2, graphId=7), kernel(20, 30, 2, graphNodeId=3), kernel(30, 40, 2, graphId=0, graphNodeId=0)],
        GRAPH_TRACE=[graph],
        RUNTIME=[call(5, 6, 4)],
    )
    ops = timeline.ops
    assert ops.graph.tolist() == [7, 0, -1, 12]
    assert names_of(timeline, ops.name)[3] == "CUDA graph"
    assert ops.op_class[3] == OpClass.COMPUTE
    assert not timeline.recognized[ops.name[3]]
    assert "1 CUDA graph launch (3.000 ms) recorded as a whole" in notes_of(timeline)["opaque_graphs"]
    assert "--cuda-graph-trace=node" in notes_of(timeline)["opaque_graphs"]


def test_old_exports_with_fewer_columns_are_read(tmp_path: Path) -> None:
    bare = {"start": 10, "end": 20, "deviceId": 0, "streamId": 7, "globalPid": pid(5), "shortName": 2}
    ranges = [{"start": 1, "end": 9, "eventType": 59, "globalTid": tid(5), "text": "step"}]
    timeline = load(tmp_path, KERNEL=[bare], NVTX_EVENTS=ranges)
    assert names_of(timeline, timeline.ops.name) == [GEMM]
    assert names_of(timeline, timeline.host.name) == ["step"]


def test_rows_without_times_are_left_out_and_counted(tmp_path: Path) -> None:
    timeline = load(tmp_path, KERNEL=[kernel(0, 0, 2), kernel(30, 20, 2), kernel(30, 40, 2)])
    assert len(timeline.ops) == 1
    assert notes_of(timeline)["untimed_rows"].startswith("left out: 2 device rows")


def test_the_device_model_is_given_where_all_devices_are_the_same(tmp_path: Path) -> None:
    alike = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H200"}]
    assert load(tmp_path, KERNEL=[kernel(1, 2, 2)], TARGET_INFO_GPU=alike).ranks[0].device_model == "NVIDIA H200"
    (tmp_path / "report.sqlite").unlink()
    mixed = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA T4"}]
    assert load(tmp_path, KERNEL=[kernel(1, 2, 2)], TARGET_INFO_GPU=mixed).ranks[0].device_model is None


def test_multiprocessors_are_given_where_all_devices_have_as_many(tmp_path: Path) -> None:
    for at, (counts, expected) in enumerate([((132, 132), 132), ((132, 108), None), ((0, 0), None)]):
        rows = [{"id": device, "name": "NVIDIA H200", "smCount": count} for device, count in enumerate(counts)]
        folder = tmp_path / str(at)
        folder.mkdir()
        assert load(folder, KERNEL=[kernel(1, 2, 2)], TARGET_INFO_GPU=rows).ranks[0].multiprocessors == expected


def test_the_time_of_recording_needs_its_start_and_its_length(tmp_path: Path) -> None:
    start, length = [{"utcEpochNs": 1_000}], [{"duration": 50}]
    tables = (
        {"TARGET_INFO_SESSION_START_TIME": start, "ANALYSIS_DETAILS": length},
        {"TARGET_INFO_SESSION_START_TIME": start},
        {},
    )
    for at, (given, expected) in enumerate(zip(tables, [(1_000, 1_050), None, None], strict=True)):
        folder = tmp_path / str(at)
        folder.mkdir()
        assert load(folder, KERNEL=[kernel(1, 2, 2)], **given).ranks[0].session_ns == expected


# Host rows.


def test_host_rows_are_launches_blocking_calls_other_calls_and_ranges(tmp_path: Path) -> None:
    strings = STRINGS | {6: "cudaStreamWaitEvent_v3020", 7: "cudaStreamGetCaptureInfo_v2_v11030"}
    timeline = load(
        tmp_path,
        strings=strings,
        KERNEL=[kernel(100, 200, 2, correlation=1)],
        RUNTIME=[
            call(10, 11, 1),
            call(20, 90, 2, name=4),
            call(12, 13, 3, name=6),
            call(14, 15, 4, name=7),
            call(1, 2, 5, process=99),
        ],
        NVTX_EVENTS=[
            span(5, 95, "FSDP::pre_forward (blocks.1), op_id = 3"),
            span(8, 12, "aten::mm, seq = 4, op_id = 5, sizes = [[2, 3]]"),
            span(16, 18, "crossing", kind=60),
            span(17, 18, "a mark", kind=34),
            {**span(19, None, ""), "text": None, "textId": 5},
        ],
    )
    host = timeline.host
    assert list(zip(names_of(timeline, host.name), [HostKind(kind).name for kind in host.kind], strict=True)) == [
        ("FSDP::pre_forward (blocks.1)", "ANNOTATION"),
        ("aten::mm", "OPERATOR"),
        ("cudaLaunchKernel", "LAUNCH"),
        ("cudaStreamWaitEvent", "RUNTIME"),
        ("cudaStreamGetCaptureInfo_v2", "RUNTIME"),
        ("crossing", "ANNOTATION"),
        ("registered range", "ANNOTATION"),
        ("cudaStreamSynchronize", "SYNC"),
    ]
    # The range that never ended ends with the last event, and process 99 did no device work.
    assert host.end_ns[6] + timeline.origin_ns == 200
    assert names_of(timeline, timeline.ops.call_site) == ["aten::mm"]


def test_a_synchronization_row_repeats_its_call_and_stands_in_for_a_missing_one(tmp_path: Path) -> None:
    def sync(kind: int, correlation: int) -> dict[str, Any]:
        return {"start": 21, "end": 89, "syncType": kind, "globalPid": pid(5), "correlationId": correlation}

    timeline = load(
        tmp_path,
        KERNEL=[kernel(100, 200, 2)],
        RUNTIME=[call(20, 90, 2, name=4)],
        SYNCHRONIZATION=[sync(3, 2), sync(3, 77), sync(2, 78)],
    )
    assert names_of(timeline, timeline.host.name) == ["cudaStreamSynchronize", "Stream sync"]
    assert set(timeline.host.kind.tolist()) == {HostKind.SYNC}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("aten::mm, seq = 3, op_id = 9", "aten::mm"),
        ("nccl:all_to_all, op_id = 9", "nccl:all_to_all"),
        ("step 3, epoch 4", "step 3, epoch 4"),
        ("load, fast, op_id = 9", "load, fast"),
        ("", ""),
    ],
)
def test_marks_of_emit_nvtx_are_no_part_of_a_name(text: str, name: str) -> None:
    assert clean(text.encode()).decode() == name


def test_operators_are_namespace_and_name() -> None:
    assert all(map(is_operator, ("aten::mm", "c10d::alltoall_base_", "flash_attn::_flash_attn_forward", "aten::add.Tensor")))
    assert not any(map(is_operator, ("step", "FSDP::pre_forward (a)", "autograd::engine::evaluate_function: Mul", "a::b c")))


def test_the_innermost_range_is_the_one_that_a_plain_search_finds() -> None:
    random = np.random.default_rng(3)
    for _ in range(60):
        rows = [(thread, *edges) for thread in (1, 2) for edges in nested(random)]
        thread, start, end = np.array(sorted(rows, key=lambda row: (row[0], row[1], -row[2])), dtype=np.int64).reshape(-1, 3).T
        nests, zero = np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=np.int64)
        parent = _parents(start, end, thread, nests)
        ranges = Ranges(start=start, end=end, tid=thread, name=zero.astype(np.int32), row=zero, nests=nests, parent=parent)
        threads, times = np.repeat([1, 2, 3], 60), np.tile(np.arange(60), 3)
        found = innermost(ranges, threads, times)
        questions = list(zip(threads.tolist(), times.tolist(), strict=True))
        assert found.tolist() == [_plain(ranges, nests, *question) for question in questions]
        wanted = random.random(len(rows)) < 0.3
        assert ancestor(ranges, found, wanted).tolist() == [_plain(ranges, wanted, *question) for question in questions]


def nested(random: np.random.Generator) -> list[tuple[int, int]]:
    """Ranges as pushes and pops make them: at most one edge per time, some never closed."""
    stack: list[int] = []
    closed = []
    for time in range(random.integers(0, 50)):
        if random.random() < 0.5 or not stack:
            stack.append(time)
        else:
            closed.append((stack.pop(), time))
    return [*closed, *((start, UNKNOWN_END) for start in stack)]


def test_pops_that_are_forgotten_do_not_make_reading_slow(tmp_path: Path) -> None:
    rows = 20_000
    timeline = load(
        tmp_path,
        KERNEL=[kernel(10 * n + 5, 10 * n + 9, 1, correlation=n) for n in range(1, rows)],
        RUNTIME=[call(10 * n + 1, 10 * n + 2, n) for n in range(1, rows)],
        NVTX_EVENTS=[span(10 * n, None, "step") for n in range(1, rows)],
    )
    assert set(names_of(timeline, timeline.ops.call_site)) == {"step"}


def _plain(ranges: Ranges, wanted: Any, thread: int, time: int) -> int:
    around = (ranges.tid == thread) & (ranges.start <= time) & (ranges.end > time) & wanted
    return int(np.flatnonzero(around)[-1]) if around.any() else -1


def test_an_open_range_encloses_what_follows(tmp_path: Path) -> None:
    assert UNKNOWN_END > 2**62
    timeline = load(
        tmp_path, KERNEL=[kernel(9, 10, 2, correlation=1)], RUNTIME=[call(5, 6, 1)], NVTX_EVENTS=[span(1, None, "forever")]
    )
    assert names_of(timeline, timeline.ops.call_site) == ["forever"]


# Collectives and NCCL's own ranges.


def group_of(*calls: str, start: int, **more: Any) -> list[dict[str, Any]]:
    """ncclGroupStart, the calls, ncclGroupEnd; each takes 2, the end 6."""
    spans = [
        span(start + 2 * index, start + 2 * index + 1, name, **more) for index, name in enumerate(("ncclGroupStart", *calls))
    ]
    end = start + 2 * len(spans)
    return [*spans, span(end, end + 6, "ncclGroupEnd", **more)]


def test_kernels_of_one_framework_range_are_one_collective(tmp_path: Path) -> None:
    timeline = load(
        tmp_path,
        KERNEL=[kernel(100, 200, 1, correlation=1), kernel(200, 300, 1, correlation=2), kernel(300, 400, 1, correlation=3)],
        RUNTIME=[call(12, 13, 1), call(14, 15, 2), call(32, 33, 3)],
        NVTX_EVENTS=[
            span(9, 25, "train step"),
            span(10, 20, "c10d::_reduce_scatter_base_, op_id = 7"),
            span(11, 19, "nccl:_reduce_scatter_base, op_id = 8"),
        ],
    )
    calls = timeline.collectives
    assert timeline.ops.collective.tolist() == [0, 0, 1]
    assert names_of(timeline, calls.collective) == ["reduce_scatter", "all_reduce"]
    assert names_of(timeline, calls.call_site) == ["c10d::_reduce_scatter_base_", None]
    assert calls.issue_ns.tolist() == [10 - timeline.origin_ns, UNKNOWN_NS]


def test_what_a_group_asks_for_is_known_at_its_end(tmp_path: Path) -> None:
    strings = STRINGS | {1: "ncclDevKernel_Generic(ncclDevKernelArgs)"}
    timeline = load(
        tmp_path,
        strings=strings,
        KERNEL=[kernel(100, 200, 1, correlation=1), kernel(200, 300, 1, correlation=2), kernel(300, 400, 1, correlation=3)],
        RUNTIME=[call(6, 7, 1), call(16, 17, 2), call(41, 42, 3)],
        # A nested group, a stray end of a group that began before the capture, a call of its own.
        NVTX_EVENTS=[
            span(0, 1, "ncclGroupEnd"),
            *group_of("ncclAllReduce", start=1),
            *group_of("ncclGroupStart", "ncclSend", "ncclGroupEnd", start=8),
            span(40, 43, "ncclBroadcast"),
        ],
    )
    assert names_of(timeline, timeline.collectives.collective) == ["all_reduce", "send", "broadcast"]
    assert timeline.collectives.issue_ns.tolist() == [1, 8, 40]


def test_a_kernel_of_a_launched_graph_takes_nothing_from_the_ranges_around_the_launch(tmp_path: Path) -> None:
    timeline = load(
        tmp_path,
        KERNEL=[kernel(100, 200, 1, correlation=1, graphId=4)],
        RUNTIME=[call(12, 13, 1)],
        NVTX_EVENTS=[span(10, 20, "nccl:all_to_all")],
    )
    assert names_of(timeline, timeline.collectives.collective) == ["all_reduce"]
    assert timeline.collectives.issue_ns.tolist() == [UNKNOWN_NS]


INIT, REDUCE, P2P = 100, 101, 102
COMMUNICATOR = 0xABCDEF0123456789
FIELDS = {
    INIT: [("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12)],
    REDUCE: [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Reduction operation", 16777232, 16)],
    P2P: [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)],
}
ENTRIES = [
    {"domainId": 1, "schemaId": schema, "idx": index, "type": kind, "name": label, "offset": offset}
    for _ in range(2)  # nsys repeats them per process
    for schema, entries in FIELDS.items()
    for index, (label, kind, offset) in enumerate(entries)
]


def with_blob(row: dict[str, Any], schema: int, body: bytes) -> dict[str, Any]:
    return {**row, "binaryData": struct.pack("<4Q", 1, schema, len(body), 32) + body}


def test_payload_blobs_give_bytes_communicator_and_peer(tmp_path: Path) -> None:
    def init(process: int, rank: int) -> dict[str, Any]:
        return with_blob(span(1, 2, "ncclCommInitRankConfig", process=process), INIT, struct.pack("<Qii", COMMUNICATOR, 2, rank))

    def reduce(name: str, start: int) -> dict[str, Any]:
        return with_blob(span(start, start + 4, name), REDUCE, struct.pack("<QQI", COMMUNICATOR, 1000, 0))

    def p2p(name: str, start: int, peer: int) -> dict[str, Any]:
        return with_blob(span(start, start + 1, name), P2P, struct.pack("<QQi", COMMUNICATOR, 500, peer))

    timeline = load(
        tmp_path,
        KERNEL=[*(kernel(100 * n, 100 * n + 50, 1, correlation=n) for n in range(1, 6)), kernel(10, 20, 2, process=6, device=1)],
        RUNTIME=[call(11, 12, 1), call(21, 22, 2), call(31, 32, 3), call(47, 48, 4), call(61, 62, 5)],
        NVTX_EVENTS=[
            init(5, 1),
            init(6, 0),
            reduce("ncclAllReduce", 10),
            reduce("ncclAllGather", 20),
            reduce("ncclReduceScatter", 30),
            span(40, 49, "nccl:all_to_all, op_id = 1"),
            span(41, 42, "ncclGroupStart"),
            *(p2p(name, 42 + index, index // 2) for index, name in enumerate(("ncclSend", "ncclRecv", "ncclSend", "ncclRecv"))),
            span(46, 49, "ncclGroupEnd"),
            p2p("ncclSend", 60, 0) | {"end": 65},
        ],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=ENTRIES,
    )
    calls = timeline.collectives
    assert names_of(timeline, calls.collective) == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    # All-gather counts its output, reduce-scatter its input, the all-to-all all that is sent, to itself too.
    assert calls.payload_bytes.tolist() == [1000, 2000, 2000, 1000, 500]
    assert set(calls.group.tolist()) == {0}
    (group,) = timeline.groups
    # Process 5 is rank 0 here and rank 1 of the communicator.
    assert (group.name, group.size, group.ranks) == (f"{COMMUNICATOR:#018x}", 2, (1, 0))
    assert calls.peer.tolist() == [-1, -1, -1, -1, 1]
    assert "nccl_blobs" not in notes_of(timeline)


@pytest.mark.parametrize(
    "blob", [b"", b"short", struct.pack("<4Q", 1, REDUCE, 2**60, 32), struct.pack("<4Q", 1, 999, 0, 32), "zz"]
)
def test_a_blob_that_makes_no_sense_leaves_the_payload_unknown(tmp_path: Path, blob: bytes | str) -> None:
    timeline = load(
        tmp_path,
        KERNEL=[kernel(100, 200, 1, correlation=1)],
        RUNTIME=[call(11, 12, 1)],
        NVTX_EVENTS=[{**span(10, 15, "ncclAllReduce"), "binaryData": blob}],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=ENTRIES,
    )
    assert timeline.collectives.payload_bytes.tolist() == [-1]
    assert "nccl_blobs" in notes_of(timeline)


def test_two_kernels_of_one_group_do_not_share_a_payload(tmp_path: Path) -> None:
    body = struct.pack("<QQI", COMMUNICATOR, 1000, 0)
    rows = group_of("ncclAllReduce", "ncclAllReduce", start=1)
    timeline = load(
        tmp_path,
        KERNEL=[kernel(100, 200, 1, correlation=1), kernel(200, 300, 1, correlation=2)],
        RUNTIME=[call(8, 9, 1), call(10, 11, 2)],
        NVTX_EVENTS=[rows[0], *(with_blob(row, REDUCE, body) for row in rows[1:3]), rows[3]],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=ENTRIES,
    )
    assert names_of(timeline, timeline.collectives.collective) == ["all_reduce", "all_reduce"]
    assert timeline.collectives.payload_bytes.tolist() == [-1, -1]


# Files that cannot be used.


def test_a_database_of_something_else_is_named_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "shop.sqlite", {"orders": [{"id": 1}]})
    with pytest.raises(
        NotATraceError, match=r"shop\.sqlite: a SQLite file, but no export.*found StringIds, orders; .*nsys export"
    ):
        read(path, TABLE)


def test_an_export_without_device_work_says_how_to_record_it(tmp_path: Path) -> None:
    path = write(tmp_path / "cpu.sqlite", {"NVTX_EVENTS": [span(1, 2, "a")]})
    with pytest.raises(NotATraceError, match=r"no device events in this export: .*nsys profile --trace=cuda,nvtx"):
        read(path, TABLE)


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "TARGET_INFO_GPU"])
def test_a_view_in_place_of_a_table_is_refused_before_it_runs(tmp_path: Path, table: str) -> None:
    path = tmp_path / "view.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE NVTX_EVENTS (start INTEGER)")
        endless = "WITH RECURSIVE c(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM c) SELECT * FROM c"
        connection.execute(f"CREATE VIEW {table} AS {endless}")
    connection.close()
    with pytest.raises(NotATraceError, match=f"{table} is a view"):
        read(path, TABLE)


def test_a_virtual_table_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "virtual.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, 2)]})
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(text)")
    connection.close()
    with pytest.raises(NotATraceError, match="NVTX_EVENTS is a virtual table"):
        read(path, TABLE)


@pytest.mark.parametrize(("value", "kind"), [("soon", "text"), (1.5, "real"), (None, "null"), (b"x", "blob")])
def test_a_wrong_type_in_a_column_is_named_with_its_table_and_row(tmp_path: Path, value: Any, kind: str) -> None:
    rows = [kernel(1, 2, 2), kernel(1, 2, 2) | {"start": value}]
    with pytest.raises(
        NotATraceError, match=rf"report\.sqlite: table CUPTI_ACTIVITY_KIND_KERNEL, row 2: column start holds {kind}"
    ):
        load(tmp_path, KERNEL=rows)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    row = kernel(1, 2, 2)
    del row["globalPid"]
    with pytest.raises(NotATraceError, match=r"KERNEL has no column globalPid.*nsys export"):
        load(tmp_path, KERNEL=[row])


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_truncated_export_is_one_message(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "cut.sqlite"
    whole = BEFORE.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UnreadableError, match=r"cut\.sqlite: SQLite cannot read this file .*nsys export"):
        read(path, TABLE)


def test_damaged_pages_are_one_message_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "damaged.sqlite"
    random = np.random.default_rng(1)
    write(path, {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(n, n + 1, 2) for n in range(1, 400)], "NVTX_EVENTS": [span(1, 2, "a")]})
    whole = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    for _ in range(60):
        damaged = whole.copy()
        at = random.integers(100, len(whole), size=40)
        damaged[at] = random.integers(0, 256, size=40)
        path.write_bytes(damaged.tobytes())
        try:
            read(path, TABLE).validate()
        except (UnreadableError, NotATraceError) as error:
            assert "damaged.sqlite" in str(error)  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_file_that_is_still_being_written_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "live.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, 2)]})
    (tmp_path / f"live.sqlite{suffix}").write_bytes(b"pages")
    with pytest.raises(UnreadableError, match=f"live.sqlite{suffix} beside it holds changes"):
        read(path, TABLE)


def test_names_that_are_not_utf8_are_read_with_a_replacement(tmp_path: Path) -> None:
    path = write(tmp_path / "latin.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, 9)]})
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO StringIds VALUES (9, CAST(x'6bff' AS TEXT))")
    connection.close()
    timeline = read(path, TABLE)
    assert names_of(timeline, timeline.ops.name) == ["k\N{REPLACEMENT CHARACTER}"]
