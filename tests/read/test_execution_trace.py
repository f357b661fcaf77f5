"""Data dependences from an execution trace beside a profile: the bytes that one operator wrote and another used."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests import traces
from underlap.analyze import graph
from underlap.analyze.graph import EdgeKind, Grade
from underlap.flows.read import read
from underlap.timeline import DependenceSource, Timeline

EXAMPLE = Path(__file__).parents[2] / "examples" / "traces" / "async_all_reduce"
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
MUL = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"
ADD_IN_PLACE = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
TRANSPOSE = "aten::t(Tensor(a) self) -> Tensor(a)"


def tensor(storage: int, first: int = 0, elements: int = 100) -> list[Any]:
    return [1000 + storage, storage, first, elements, 4, "cpu"]


def node(record: int, name: str, inputs: list[Any], outputs: list[Any], schema: str = "") -> dict[str, Any]:
    values = [{"values": part, "shapes": [], "types": [], "strides": []} for part in (inputs, outputs)]
    attrs = [{"name": "rf_id", "type": "uint64", "value": record}, {"name": "op_schema", "type": "string", "value": schema}]
    return {"id": record + 100, "name": name, "inputs": values[0], "outputs": values[1], "attrs": attrs}


def row(record: int, name: str, start: int, length: int, thread: int = 9, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """Times in us; the process is 9."""
    known = {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": thread, "ts": traces.BASE_US + start, "dur": length}
    return known | {"args": {"Record function id": record, **args}}


def all_reduce(record: int, start: int, length: int, issued: int) -> list[dict[str, Any]]:
    """The call and its span on another thread."""
    sizes = {"Input Dims": [[100]], "Input type": ["float"]}
    call = row(record, "c10d::allreduce_", issued, 5, **sizes)
    return [call, row(record + 1, "gloo:all_reduce", start, length, thread=10, cat="user_annotation", **sizes)]


def recorded(
    folder: Path, events: list[dict[str, Any]], nodes: list[dict[str, Any]], pid: int = 9, schema: str = "1.1.1-chakra.0.0.4"
) -> Timeline:
    traces.write(folder / "rank0.json", traces.text(*events))
    text = json.dumps({"schema": schema, "pid": pid, "nodes": nodes})
    traces.write(folder / "rank0_et.json", text)
    return read(folder)


def pairs(timeline: Timeline) -> list[tuple[str, str]]:
    """Names of (the operation that writes, the one that needs it)."""
    names = {int(at): timeline.names[name] for at, name in zip(timeline.ops.source_row, timeline.ops.name, strict=True)}
    table = timeline.dependences
    return [(names[a], names[b]) for a, b in zip(table.before_row.tolist(), table.after_row.tolist(), strict=True)]


EVENTS = [*all_reduce(1, 110, 100, 100), row(3, "aten::mm", 120, 50), row(4, "aten::mul", 220, 30)]


def nodes(reads: list[Any], name: str = "aten::mul", schema: str = MUL, outputs: list[Any] | None = None) -> list[dict[str, Any]]:
    """An all-reduce of storage 1, a product of others, and an operator with these inputs."""
    return [
        node(1, "c10d::allreduce_", [[tensor(1)]], [[tensor(1)]]),
        node(2, "gloo:all_reduce", [tensor(1)], []),
        node(3, "aten::mm", [tensor(2), tensor(3)], [tensor(4)], MM),
        node(4, name, reads, outputs if outputs is not None else [tensor(5)], schema),
    ]


def test_who_reads_what_a_collective_wrote_needs_it_and_others_do_not(tmp_path: Path) -> None:
    timeline = recorded(tmp_path, EVENTS, nodes([tensor(1), tensor(4)]))

    assert pairs(timeline) == [("gloo:all_reduce", "aten::mul")]
    assert timeline.dependences.source.tolist() == [DependenceSource.DATA]
    assert "rank0_et.json" in traces.notes(timeline)["execution_trace"]
    assert "stray_files" not in traces.notes(timeline)


def test_an_edge_of_grade_data_leads_from_the_span_to_its_user(tmp_path: Path) -> None:
    edges = graph.build(recorded(tmp_path, EVENTS, nodes([tensor(1)]))).edges
    data = edges.kind == EdgeKind.DATA

    assert data.sum() == 1
    assert edges.grade[data].tolist() == [Grade.DATA]


def test_other_bytes_of_the_same_storage_are_not_needed(tmp_path: Path) -> None:
    assert pairs(recorded(tmp_path, EVENTS, nodes([tensor(1, first=100)]))) == []


def test_a_storage_id_that_is_used_again_begins_anew(tmp_path: Path) -> None:
    events = [*EVENTS[:2], row(3, "aten::mm", 215, 3), row(4, "aten::mul", 220, 30)]
    told = nodes([tensor(1)])
    told[2] = node(3, "aten::mm", [tensor(2)], [tensor(1)], MM)

    # The product makes a new tensor, to which the allocator gave the freed storage of the reduced one.
    assert pairs(recorded(tmp_path, events, told)) == []


def test_an_argument_that_the_schema_marks_is_written(tmp_path: Path) -> None:
    told = nodes([tensor(1), tensor(4)], "aten::add_", ADD_IN_PLACE, outputs=[tensor(1)])
    events = [*EVENTS[:3], row(4, "aten::add_", 220, 30), *all_reduce(5, 270, 20, 260)]
    told += [node(5, "c10d::allreduce_", [[tensor(1)]], []), node(6, "gloo:all_reduce", [tensor(1)], [])]

    assert pairs(recorded(tmp_path, events, told)) == [
        ("gloo:all_reduce", "aten::add_"),
        ("aten::add_", "gloo:all_reduce"),
    ]


def test_a_view_of_the_result_needs_nothing(tmp_path: Path) -> None:
    told = nodes([tensor(1)], "aten::t", TRANSPOSE, outputs=[tensor(1)])

    assert pairs(recorded(tmp_path, [*EVENTS[:3], row(4, "aten::t", 220, 30)], told)) == []


def test_a_kernel_uses_what_the_operator_that_launched_it_uses(tmp_path: Path) -> None:
    operators = [row(1, "c10d::allreduce_", 90, 18), row(2, "record_param_comms", 92, 15), row(3, "aten::mul", 115, 8)]
    operators[1]["args"] |= {"Collective name": "allreduce", "In msg nelems": 100, "dtype": "Float"}
    told = [
        node(1, "c10d::allreduce_", [[tensor(1)]], []),
        node(2, "record_param_comms", [[tensor(1)], 0], []),
        node(3, "aten::mul", [tensor(1)], [tensor(2)], MUL),
    ]
    kernels = [traces.kernel(10, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"), traces.kernel(12, name="mul_kernel")]
    timeline = recorded(tmp_path, [*operators, traces.launch(10), traces.launch(12), *kernels], told)

    assert pairs(timeline) == [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "mul_kernel")]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pid": 8}, "it is of process 8, which the profile does not have"),
        ({"schema": "1.0.1"}, "schema '1.0.1'; expected 1.1.x, as torch 2.1 and later write"),
    ],
)
def test_an_execution_trace_of_something_else_is_not_used_and_the_reason_is_said(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    timeline = recorded(tmp_path, EVENTS, nodes([tensor(1)]), **changed)

    assert pairs(timeline) == []
    assert traces.notes(timeline)["execution_trace_unused"] == f"no data dependences are read: rank0_et.json: {reason}"


def test_one_name_that_differs_makes_the_whole_execution_trace_unused(tmp_path: Path) -> None:
    told = nodes([tensor(1)])
    told[2]["name"] = "aten::bmm"
    timeline = recorded(tmp_path, EVENTS, told)

    assert pairs(timeline) == []
    assert "id 3 is aten::bmm there and aten::mm in the profile" in traces.notes(timeline)["execution_trace_unused"]


def test_two_execution_traces_that_fit_are_one_too_many(tmp_path: Path) -> None:
    recorded(tmp_path, EVENTS, nodes([tensor(1)]))
    traces.write(tmp_path / "rank0.et.json.gz", (tmp_path / "rank0_et.json").read_bytes())
    timeline = read(tmp_path)

    assert pairs(timeline) == []
    assert "both fit rank0.json" in traces.notes(timeline)["execution_trace_unused"]


def test_a_damaged_execution_trace_costs_the_dependences_and_nothing_else(tmp_path: Path) -> None:
    recorded(tmp_path, EVENTS, nodes([tensor(1)]))
    whole = (tmp_path / "rank0_et.json").read_bytes()
    (tmp_path / "rank0_et.json").unlink()
    (tmp_path / "rank0_et.json.gz").write_bytes(gzip.compress(whole)[:-20])
    timeline = read(tmp_path)

    assert len(timeline.ops) == 3
    assert pairs(timeline) == []


# ---- a real recording


def test_in_a_real_recording_the_product_is_independent_of_the_all_reduce_and_the_scaling_is_not() -> None:
    timeline = read(EXAMPLE)
    found = pairs(timeline.of_ranks({0}))

    assert len(timeline.ranks) == 2
    assert ("gloo:all_reduce", "aten::mul") in found
    assert not any(user in ("aten::matmul", "aten::relu") for _, user in found)
    assert found.count(("gloo:all_reduce", "aten::mul")) == 3
