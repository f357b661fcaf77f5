"""Recordings over gloo whose script said what it built: counts and bytes by construction, times as it measured them.

Times in truth.yaml are rounded to 0.01 ms and shares to 0.001, which is all the tolerance there is.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

import underlap
from underlap.report import FamilyRow, Report, StepRow

RECORDINGS = Path(__file__).parents[2].parent / "shared" / "traces" / "gloo_axes"
TRUTH: dict[str, Any] = yaml.safe_load((RECORDINGS / "truth.yaml").read_text())
HALF_UNIT = 0.5 + 1e-9
STEPS = [(name, number, rank) for name, built in TRUTH.items() for number in built["steps"] for rank in range(built["world"])]


@functools.cache
def report_of(name: str) -> Report:
    return underlap.analyze(RECORDINGS / name)


def step_of(name: str, number: int, rank: int) -> StepRow:
    return next(row for row in report_of(name).steps if (row.step, row.rank) == (f"ProfilerStep#{number}", rank))


def family(name: str, collective: str) -> FamilyRow:
    (found,) = [row for row in report_of(name).families if row.collective == collective]
    return found


def calls_in_step(name: str, number: int, rank: int) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for row in report_of(name).instances:
        if (row.step, row.rank) == (f"ProfilerStep#{number}", rank):
            counts[row.collective] = counts.get(row.collective, 0) + 1
    return counts


@pytest.mark.parametrize(("name", "number", "rank"), STEPS)
def test_a_step_has_the_communication_that_its_script_measured(name: str, number: int, rank: int) -> None:
    check, row = TRUTH[name]["trace_check"], step_of(name, number, rank)

    assert abs(row.communication_ns / 1e4 - 100 * check["trace_comm_union_ms"][number][rank]) <= HALF_UNIT
    assert abs(row.exposed_ns / 1e4 - 100 * check["trace_comm_exposed_ms"][number][rank]) <= HALF_UNIT
    assert abs(1000 * row.hidden_ns / row.communication_ns - 1000 * check["trace_hidden_share"][number][rank]) <= HALF_UNIT


@pytest.mark.parametrize("name", TRUTH)
def test_the_steps_of_a_recording_are_those_of_its_script(name: str) -> None:
    found = report_of(name).window

    assert found.kind == "steps"
    assert found.steps_used == [f"ProfilerStep#{number}" for number in TRUTH[name]["steps"]]


@pytest.mark.parametrize(("name", "number", "rank"), [case for case in STEPS if case[0] in ("fsdp2", "pp_1f1b")])
def test_a_step_has_the_calls_that_its_script_built(name: str, number: int, rank: int) -> None:
    assert calls_in_step(name, number, rank) == TRUTH[name]["by_construction"]["ops"]


def test_the_bytes_of_fully_shard_are_shards_times_ranks_gathered_and_inputs_reduced() -> None:
    built, steps = TRUTH["fsdp2"], len(TRUTH["fsdp2"]["steps"])
    ops, sizes, world = built["by_construction"]["ops"], built["by_construction"]["bytes_each"], built["world"]
    gathered, reduced = family("fsdp2", "all_gather"), family("fsdp2", "reduce_scatter")

    assert gathered.count == ops["all_gather"] * steps
    assert reduced.count == ops["reduce_scatter"] * steps
    assert gathered.payload_bytes == ops["all_gather"] * steps * world * world * sizes["all_gather input shard"]
    assert reduced.payload_bytes == ops["reduce_scatter"] * steps * world * sizes["reduce_scatter input"]
    assert {row.collective for row in report_of("fsdp2").families} == set(ops)


def test_a_pipeline_sends_its_micro_batches_on_the_axis_pp() -> None:
    built, steps = TRUTH["pp_1f1b"]["by_construction"], len(TRUTH["pp_1f1b"]["steps"])
    for direction in ("send", "recv"):
        found = family("pp_1f1b", direction)

        assert found.axis == built["axis"]
        assert found.count == found.kernels == built["ops"][direction] * steps * TRUTH["pp_1f1b"]["world"]
        assert found.payload_bytes == found.count * built["bytes_each"]


def test_an_uneven_all_to_all_counts_what_each_rank_sends() -> None:
    built, steps = TRUTH["moe_ep"]["by_construction"], len(TRUTH["moe_ep"]["steps"])
    found = family("moe_ep", "all_to_all")
    row_bytes = 4 * built["hidden"]
    # Dispatch sends send_rows; combine returns what was received; backward does both again.
    sent = [2 * (sum(built["send_rows"][rank]) + sum(built["recv_rows"][rank])) * row_bytes for rank in range(2)]

    assert found.axis == built["axis"]
    assert found.count == built["colls_per_step"] * steps
    assert found.payload_bytes == steps * sum(sent)
    assert calls_in_step("moe_ep", 2, 0) == {"all_to_all": built["colls_per_step"]}


def test_calls_of_a_mesh_are_counted_by_kind_and_only_those_of_fsdp_have_an_axis() -> None:
    built, steps, world = TRUTH["tp_sp_4r"]["by_construction"], len(TRUTH["tp_sp_4r"]["steps"]), TRUTH["tp_sp_4r"]["world"]
    ops, sizes = built["ops_per_step"], built["bytes_each"]
    per_step = {
        "all_gather": ops["mesh_tp all_gather"] + ops["mesh_dp all_gather"],
        "reduce_scatter": ops["mesh_tp reduce_scatter"] + ops["mesh_dp reduce_scatter"],
        "all_reduce": ops["mesh_tp all_reduce of LayerNorm gradients"],
    }

    assert calls_in_step("tp_sp_4r", 2, 0) == per_step
    found = {(row.axis, row.collective): row for row in report_of("tp_sp_4r").families}
    assert {key: row.kernels for key, row in found.items()} == {
        # fully_shard names itself in its annotations; it was built on mesh_dp.
        ("fsdp", "all_gather"): ops["mesh_dp all_gather"] * steps * world,
        ("fsdp", "reduce_scatter"): ops["mesh_dp reduce_scatter"] * steps * world,
        (None, "all_gather"): ops["mesh_tp all_gather"] * steps * world,
        (None, "reduce_scatter"): ops["mesh_tp reduce_scatter"] * steps * world,
        (None, "all_reduce"): per_step["all_reduce"] * steps * world,
    }
    # Each rank lists two groups of two ranks and the world; nothing in the trace says which one a call used.
    assert {(row.count, row.busbw_kernel_gbps) for row in found.values()} == {(None, None)}
    for axis, mesh in (("fsdp", "mesh_dp"), (None, "mesh_tp")):
        reduced = ops[f"{mesh} reduce_scatter"] * sizes[f"{mesh} reduce_scatter input"]
        assert found[axis, "reduce_scatter"].payload_bytes == reduced * steps * world
