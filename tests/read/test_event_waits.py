"""cuda_sync rows: which lane, or the host, waited for which record."""

import json
from pathlib import Path
from typing import Any

from underlap.flows.read import read
from underlap.timeline import EventWaits, Timeline

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def event(cat: str, name: str, ts: int, dur: int, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def kernel(ts: int, stream: int, correlation: int) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts - 9, 4, 70, 71, correlation=correlation),
        event("kernel", "gemm", ts, 20, 0, stream, correlation=correlation, device=0, stream=stream),
    ]


def sync(kind: str, ts: int, correlation: int, stream: int, on: int, record: int) -> dict[str, Any]:
    args = {"correlation": correlation, "device": 0, "stream": stream}
    names = {"wait_on_stream": on, "wait_on_cuda_event_record_corr_id": record}
    return event("cuda_sync", kind, ts, 2, 0, stream, **args, **names)


def waits(folder: Path, *events: dict[str, Any]) -> tuple[Timeline, EventWaits]:
    file = folder / "t.json"
    shared = [*kernel(1000, 7, 1), *kernel(1030, 20, 2)]
    file.write_text(json.dumps({"traceEvents": [*shared, *events]}))
    timeline = read(file)
    return timeline, timeline.event_waits


RECORD = event("cuda_runtime", "cudaEventRecord", 1005, 1, 70, 71, correlation=10)
WAIT = event("cuda_runtime", "cudaStreamWaitEvent", 1008, 1, 70, 71, correlation=11)


def test_a_trace_without_such_rows_has_no_waits(tmp_path: Path) -> None:
    assert len(waits(tmp_path)[1]) == 0


def test_a_stream_wait_names_both_lanes_and_both_host_calls(tmp_path: Path) -> None:
    timeline, found = waits(tmp_path, RECORD, WAIT, sync("Stream Wait Event", 1009, 11, 20, 7, 10))
    lanes = [lane.label for lane in timeline.lanes]

    assert [lanes[found.on_lane[0]], lanes[found.lane[0]]] == ["7", "20"]
    # The first launch, at 991, is time 0.
    assert (found.record_ns.tolist(), found.wait_ns.tolist()) == ([14_000], [17_000])


def test_the_host_waits_as_lane_minus_one(tmp_path: Path) -> None:
    call = event("cuda_runtime", "cudaEventSynchronize", 1010, 30, 70, 71, correlation=12)
    _, found = waits(tmp_path, RECORD, call, sync("Event Sync", 1011, 12, -1, 7, 10))

    assert found.lane.tolist() == [-1]
    assert found.wait_ns.tolist() == [19_000]


def test_a_stream_synchronize_waits_for_all_of_its_stream_up_to_the_call(tmp_path: Path) -> None:
    call = event("cuda_runtime", "cudaStreamSynchronize", 1010, 30, 70, 71, correlation=12)
    timeline, found = waits(tmp_path, call, sync("Stream Sync", 1011, 12, 20, -1, -1))

    assert timeline.lanes[found.on_lane[0]].label == "20"
    assert found.record_ns.tolist() == found.wait_ns.tolist() == [19_000]


def test_a_wait_whose_record_lies_outside_the_trace_is_left_out(tmp_path: Path) -> None:
    assert len(waits(tmp_path, WAIT, sync("Stream Wait Event", 1009, 11, 20, 7, 999))[1]) == 0
    assert len(waits(tmp_path, WAIT, sync("Stream Wait Event", 1009, 11, 20, -1, -1))[1]) == 0


def test_values_of_other_types_do_no_harm(tmp_path: Path) -> None:
    odd = sync("Stream Wait Event", 1009, 11, 20, 7, 10)
    odd["args"] |= {"wait_on_stream": {"a": 1}, "wait_on_cuda_event_record_corr_id": "x", "stream": [3]}

    assert len(waits(tmp_path, RECORD, WAIT, odd)[1]) == 0


def test_ranks_that_are_left_out_take_their_waits_along() -> None:
    timeline = read(TRACES / "cuda_sync_events" / "cuda_event_sync_multi_stream.json.gz")

    assert len(timeline.event_waits) > 0
    assert len(timeline.of_ranks({0}).event_waits) == len(timeline.event_waits)
    assert len(timeline.of_ranks({5}).event_waits) == 0
