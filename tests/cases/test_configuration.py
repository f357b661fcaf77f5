"""Cases from public issue trackers that a configuration decides: each gets the finding that would have answered it.

The input is read by id from the shared file. Where a case gives only some of its settings, the rest is its context, in words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import underlap
from tests.cases.given import CASES, host, kernel, written
from tests.lint.inputs import findings, limits, lint


def test_data_parallel_overlap_beside_an_offloaded_optimizer_is_put_in_its_place(tmp_path: Path) -> None:
    case = CASES["A03"]
    switches = " ".join(f"--{flag.replace('_', '-')}" for flag in case["flags"])
    launch = (
        f"torchrun pretrain_gpt.py --tensor-model-parallel-size {case['tp']} --expert-model-parallel-size {case['ep']} "
        f"--pipeline-model-parallel-size {case['pp']} --sequence-parallel --use-distributed-optimizer --optimizer-cpu-offload "
        f"--optimizer-offload-fraction {case['optimizer_cpu_offload']} {switches}\n"
    )
    report = lint(tmp_path, {"train.sh": launch})

    assert "optimizer-on-host" in limits(report)
    # Without virtual stages one of the three switches is silently off.
    assert [(row.rule, row.without_effect) for row in report.findings] == [("pp-overlap-interleaving", ["align_param_gather"])]


def test_the_same_case_as_a_list_of_names_says_what_would_decide(tmp_path: Path) -> None:
    report = lint(tmp_path, {"case.yaml": yaml.safe_dump(CASES["A03"])})

    assert "optimizer-on-host" in limits(report)
    assert [row.rule for row in report.undecided] == ["pp-overlap-interleaving"]


@pytest.mark.parametrize("row", CASES["A08"]["matrix"], ids=lambda row: row["broken"])
def test_timing_events_and_one_connection_break_overlap_together(row: dict[str, Any], tmp_path: Path) -> None:
    variables = "".join(f"{name}={value}\n" for name, value in row.items() if name != "broken")
    # The report's second set-up: FSDP on 8 devices.
    report = lint(tmp_path, {"environment": variables, "job.yaml": "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n"})
    expected = {"none": [], "reduce_scatter": ["connections-fsdp"], "all": ["connections-fsdp", "timing-connections"]}[
        row["broken"]
    ]

    assert findings(report) == expected
    assert all("reduce_scatter" in finding.explains.collectives for finding in report.findings if finding.explains)


@pytest.mark.parametrize("row", CASES["A08"]["matrix"], ids=lambda row: row["broken"])
def test_the_pair_of_variables_is_seen_in_an_environment_alone(row: dict[str, Any], tmp_path: Path) -> None:
    variables = "".join(f"{name}={value}\n" for name, value in row.items() if name != "broken")
    report = lint(tmp_path, {"environment": variables})

    assert findings(report) == (["timing-connections"] if row["broken"] == "all" else [])
    assert [entry.rule for entry in report.undecided] == ([] if row["broken"] == "none" else ["connections-dp"])


def test_the_variable_that_serializes_fsdp2_is_named_with_its_place(tmp_path: Path) -> None:
    (finding,) = lint(tmp_path, {"case.yaml": yaml.safe_dump(CASES["A09"])}).findings

    assert finding.rule == "connections-fsdp"
    assert ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "case.yaml") in [(row.name, row.value, row.file) for row in finding.settings]
    assert finding.explains is not None
    assert set(CASES["A09"]["exposed"]) <= set(finding.explains.collectives)


def test_zero_without_contiguous_gradients_is_found(tmp_path: Path) -> None:
    case = dict(CASES["A15"])
    nested = {"zero_optimization": case}

    assert findings(lint(tmp_path / "nested", {"ds.json": json.dumps(nested)})) == ["zero-contiguous"]
    assert findings(lint(tmp_path / "flat", {"ds.json": json.dumps(case)})) == ["zero-contiguous"]


def test_the_disabled_logger_block_is_named_with_the_version_of_the_report(tmp_path: Path) -> None:
    (finding,) = lint(tmp_path, {"ds.json": json.dumps(CASES["A16"])}).findings

    assert finding.rule == "zero-comms-logger"
    assert [row.name for row in finding.settings] == ["comms_logger.enabled", "overlap_comm"]
    assert "0.7.7" in finding.holds_for


def test_the_gather_after_the_step_is_said_to_have_no_switch(tmp_path: Path) -> None:
    case = {name: CASES["A18"][name] for name in ("stage", "overlap_comm")}
    report = lint(tmp_path, {"ds.json": json.dumps({"zero_optimization": case})})

    assert findings(report) == []
    (limit,) = report.limits
    assert limit.rule == "zero-gather-after-step"
    assert limit.explains is not None
    assert limit.explains.collectives == ["all_gather"]


@pytest.mark.parametrize("connections", [1, 32])
def test_an_experiment_on_expert_overlap_under_one_connection_is_warned_about(connections: int, tmp_path: Path) -> None:
    gains = CASES["B14"]["expect_gain_pct"]
    launch = (
        f"export CUDA_DEVICE_MAX_CONNECTIONS={connections}\ntorchrun pretrain_gpt.py --pipeline-model-parallel-size 4 "
        "--expert-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 1 --moe-token-dispatcher-type alltoall "
        "--overlap-moe-expert-parallel-comm\n"
    )
    report = lint(tmp_path, {"train.sh": launch})

    assert findings(report) == (["connections-ep"] if connections == 1 else [])
    for finding in report.findings:
        assert all(f"{gains[key]} %" in finding.reason for key in ("conn1", "conn32"))


def test_the_variable_that_limits_an_all_to_all_is_named(tmp_path: Path) -> None:
    (finding,) = lint(tmp_path, {"case.yaml": yaml.safe_dump(CASES["H01"])}).findings

    assert finding.rule == "nccl-channels-alltoall"
    assert CASES["H01"]["expect_knob"] in finding.change


def test_tensor_parallel_overlap_without_sequence_parallelism_is_invalid(tmp_path: Path) -> None:
    assert CASES["H04"]["expect"] == "invalid"
    report = lint(tmp_path, {"case.yaml": yaml.safe_dump(CASES["H04"])})

    assert findings(report) == ["tp-overlap-sequence"]
    assert report.findings[0].without_effect == ["tp_comm_overlap"]


@pytest.mark.parametrize(("arch", "expected"), [(CASES["H05"]["arch"], ["connections-order"]), (10, [])])
def test_whether_one_connection_is_needed_depends_on_the_architecture(arch: int, expected: list[str], tmp_path: Path) -> None:
    case = CASES["H05"] | {"arch": arch}
    report = lint(tmp_path, {"case.yaml": yaml.safe_dump(case), "environment": "HOME=/home/user\n"})

    assert findings(report) == expected
    assert all(f"CUDA_DEVICE_MAX_CONNECTIONS={CASES['H05']['expect_env']}" in finding.change for finding in report.findings)


def test_without_an_environment_the_missing_variable_is_asked_for(tmp_path: Path) -> None:
    (row,) = lint(tmp_path, {"case.yaml": yaml.safe_dump(CASES["H05"])}).undecided

    assert row.rule == "connections-order"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in row.needs


@pytest.mark.parametrize("queues", sorted(CASES["H07"]["tok_s"], key=int))
def test_hardware_queues_are_the_next_power_of_two_of_the_lanes(queues: str, tmp_path: Path) -> None:
    case, best = CASES["H07"], max(CASES["H07"]["tok_s"], key=CASES["H07"]["tok_s"].get)
    text = f"gpu: MI355X\nlanes: {case['lanes']}\nenv: {{GPU_MAX_HW_QUEUES: {queues}}}\n"
    report = lint(tmp_path, {"case.yaml": text})

    assert findings(report) == ([] if queues == best else ["hardware-queues"])
    assert all(f"GPU_MAX_HW_QUEUES={case['expect_Q']}" in finding.text for finding in report.findings)


def test_the_bytes_of_a_layer_are_given_for_the_combine_threshold(tmp_path: Path) -> None:
    (limit,) = lint(tmp_path, {"case.yaml": yaml.safe_dump(CASES["H08"])}).limits

    assert limit.rule == "xla-combine-threshold"
    assert f"{CASES['H08']['expect_MB']} MB" in limit.text


def test_a_switch_that_did_not_engage_is_told_from_the_trace_and_its_configuration(tmp_path: Path) -> None:
    case = CASES["A22"]
    assert case["expect"] == "not_engaged"
    config = tmp_path / "job.toml"
    switches = "tensor_parallel_degree = 8\nenable_async_tensor_parallel = true\ndata_parallel_shard_degree = 1\n"
    config.write_text(f"[parallelism]\n{switches}[compile]\nenable = true\n")

    def analyzed(operators: list[str]) -> bool | None:
        events = [host(f"aten::{name}", 0, 5) if "." not in name else host(name.replace(".", "::"), 0, 5) for name in operators]
        events += [kernel("ncclDevKernel_AllGather_RING_LL", 10, 10, stream=9), kernel("gemm", 20, 30)]
        report = underlap.analyze(written(tmp_path / "rank0.json", events), window="whole", config=[config])
        assert report.configuration is not None
        (row,) = report.configuration.engagement
        return row.engaged

    assert analyzed(case["found"]) is False
    assert all(analyzed([*case["found"], operator]) is True for operator in case["expect_ops"])
