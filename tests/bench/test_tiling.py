"""The tiler of the benchmark: what it makes has to be a trace like the one it came from, only longer."""

import itertools
import json
from pathlib import Path
from typing import Any

from bench import tiling

EVENTS = """
  {
    "ph": "M", "name": "process_name", "ts": 1700000000000000.000, "pid": 7, "args": {"name": "python"}
  },
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 7, "tid": 7,
    "ts": 1700000000000100.125, "dur": 50.500, "args": {"External id": 11}
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7,
    "ts": 1700000000000110.001, "dur": 2.000, "args": {"correlation": 42, "External id": 12}
  },
  {
    "ph": "s", "id": 42, "pid": 7, "tid": 7, "ts": 1700000000000110.001, "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "name": "says \\"ts\\": 5", "pid": 0, "tid": 20,
    "ts": 1700000000000140.999, "dur": 30.000, "args": {"correlation": 42, "grid": [1, 1, 1]}
  }
  """

TRACE = '{"schemaVersion": 1, "distributedInfo": {"rank": 3},\n  "traceEvents": [' + EVENTS + '],\n  "traceName": "x.json"\n}\n'


def tiled(folder: Path, copies: float, suffix: str = ".json") -> list[dict[str, Any]]:
    source, target = folder / "short.json", folder / f"long{suffix}"
    source.write_text(TRACE)
    made = tiling.tile(tiling.load(source), target, copies)
    with tiling.open_text(target, "rt") as file:
        trace = json.load(file)
    assert trace["distributedInfo"] == {"rank": 3}
    assert trace["traceName"] == "x.json"
    assert made.events == len(trace["traceEvents"])
    return trace["traceEvents"]


def test_one_copy_is_the_trace_itself(tmp_path: Path) -> None:
    assert tiled(tmp_path, 1) == json.loads(TRACE)["traceEvents"]


def test_the_number_of_events_multiplies(tmp_path: Path) -> None:
    assert len(tiled(tmp_path, 4)) == 4 * 5


def test_a_part_of_a_copy_ends_between_two_events(tmp_path: Path) -> None:
    events = tiled(tmp_path, 2.5)

    assert 2 * 5 < len(events) < 3 * 5
    assert events[10]["name"] == "process_name"


def test_a_compressed_copy_holds_the_same_events(tmp_path: Path) -> None:
    assert tiled(tmp_path, 2, ".json.gz") == tiled(tmp_path, 2)


def test_copies_follow_one_another_in_time_without_overlap(tmp_path: Path) -> None:
    events = tiled(tmp_path, 3)
    spans = []
    for copy in range(3):
        timed = [event for event in events[5 * copy : 5 * copy + 5] if event["ph"] != "M"]
        spans.append((min(e["ts"] for e in timed), max(e["ts"] + e.get("dur", 0) for e in timed)))

    assert spans == sorted(spans)
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(spans))


def test_the_order_and_the_distances_within_a_copy_are_kept(tmp_path: Path) -> None:
    text = (tmp_path / "long.json", tiled(tmp_path, 2))[0].read_text()
    events = json.loads(text, parse_float=str)["traceEvents"]

    assert [event["name"].partition("#")[0] for event in events[:5]] == [event["name"].partition("#")[0] for event in events[5:]]
    assert [event["ts"].partition(".")[2] for event in events[:5]] == [event["ts"].partition(".")[2] for event in events[5:]]
    whole = [int(event["ts"].partition(".")[0]) for event in events]
    assert len({later - earlier for earlier, later in zip(whole[:5], whole[5:], strict=True)}) == 1


def test_what_ties_events_together_ties_only_those_of_one_copy(tmp_path: Path) -> None:
    events = tiled(tmp_path, 3)
    copies = [events[start : start + 5] for start in (0, 5, 10)]
    correlations = [{e["args"]["correlation"] for e in copy if "correlation" in e.get("args", {})} for copy in copies]

    assert all(len(found) == 1 for found in correlations)
    assert len(set.union(*correlations)) == 3
    assert [copy[3]["id"] for copy in copies] == [copy[4]["args"]["correlation"] for copy in copies]
    assert len({e["args"]["External id"] for e in events if "External id" in e.get("args", {})}) == 6


def test_every_copy_has_step_numbers_of_its_own(tmp_path: Path) -> None:
    events = tiled(tmp_path, 2)

    assert [e["name"] for e in events if e["name"].startswith("ProfilerStep")] == ["ProfilerStep#3", "ProfilerStep#7"]


def test_text_that_looks_like_a_time_stays_as_it_is(tmp_path: Path) -> None:
    assert tiled(tmp_path, 2)[9]["name"] == 'says "ts": 5'
