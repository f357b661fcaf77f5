"""`underlap lint`: what it prints, writes and returns."""

from __future__ import annotations

import json

import msgspec
import pytest

from underlap.lint_report import LintReport, from_json

LOSING = "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun pretrain_gpt.py --use-distributed-optimizer --overlap-grad-reduce\n"


def test_nothing_found_says_what_was_checked(run):
    result = run("lint", "train.sh", "--env", "job.env")

    assert result.exit_code == 0
    assert "nothing found that keeps communication from overlapping" in result.output
    assert "read: job.env (environment), train.sh (script)" in result.output
    assert "rules applied (connections-" in result.output
    assert "settings read: CUDA_DEVICE_MAX_CONNECTIONS, tensor_model_parallel_size, sequence_parallel" in result.output


def test_a_finding_has_its_settings_reason_change_price_and_source(run, tmp_path):
    (tmp_path / "losing.sh").write_text(LOSING)
    result = run("lint", "losing.sh")

    assert result.exit_code == 1
    for piece in (
        "finding connections-dp:",
        "CUDA_DEVICE_MAX_CONNECTIONS=1 (losing.sh:1)",
        "why: ",
        "change: unset",
        "price: ",
        "holds for: ",
    ):
        assert piece in result.output
    assert "source: https://github.com/NVIDIA/Megatron-LM/issues/1468" in result.output
    assert "nothing found" not in result.output


def test_an_unknown_version_is_said_to_be_assumed(run, tmp_path):
    (tmp_path / "losing.sh").write_text(LOSING)

    printed = " ".join(run("lint", "losing.sh").output.split())
    assert "assumed Megatron from its launcher on line 2; version of Megatron unknown: rules hold as each says" in printed


def test_without_arguments_the_environment_of_the_process_is_looked_at(run, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    result = run("lint")

    assert result.exit_code == 1
    assert "finding launch-blocking" in result.output
    assert "CUDA_LAUNCH_BLOCKING=1" in result.output


def test_with_files_the_environment_of_the_process_is_left_alone(run, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")

    assert run("lint", "train.sh").exit_code == 0


def test_json_on_standard_output_is_the_report(run, tmp_path):
    (tmp_path / "losing.sh").write_text(LOSING)
    result = run("lint", "losing.sh", "--json", "-")

    report = from_json(result.stdout)
    assert result.exit_code == 1
    assert (report.schema, [finding.rule for finding in report.findings]) == ("underlap.lint/1", ["connections-dp"])
    assert msgspec.convert(json.loads(result.stdout), LintReport) == report


def test_json_in_a_file_comes_with_the_screen(run, tmp_path):
    result = run("lint", "train.sh", "--json", "out.json")

    assert (result.exit_code, "nothing found" in result.stdout) == (0, True)
    assert result.stderr == "Wrote out.json\n"
    assert from_json((tmp_path / "out.json").read_text()).found is False
    assert run("lint", "train.sh", "--json", "out.json").exit_code == 2
    assert run("lint", "train.sh", "--json", "out.json", "--force").exit_code == 0
    assert run("lint", "train.sh", "--json", "train.sh", "--force").exit_code == 2


@pytest.mark.parametrize("name", ["H100", "9.0", "sm_90", "gpu:h200:8"])
def test_the_device_can_be_named(run, name):
    assert "compute capability 9" in run("lint", "train.sh", "--gpu", name).output


def test_unusable_options_are_usage_errors(run):
    assert run("lint", "train.sh", "--gpu", "toaster").exit_code == 2
    assert run("lint", "train.sh", "--version", "vllm").exit_code == 2
    assert run("lint", "nothing.sh").exit_code == 2
    assert "Cannot read nothing.sh" in run("lint", "nothing.sh").output


def test_lines_are_at_most_100_columns_of_printable_text(run, tmp_path):
    (tmp_path / "losing\x1b[31m.sh").write_text(LOSING)
    result = run("lint", "losing\x1b[31m.sh")

    assert "\x1b" not in result.output
    assert max(len(line) for line in result.output.splitlines() if "https://" not in line) <= 100


def test_analyze_takes_the_configuration_of_the_job(run, flows, tmp_path):
    (tmp_path / "losing.sh").write_text(LOSING)
    assert run("analyze", "traces", "--config", "losing.sh", "--config", "job.env").exit_code == 0

    (_, options), *_ = flows.analyze_calls
    assert [str(path) for path in options["config"]] == ["losing.sh", "job.env"]


def test_a_configuration_that_is_missing_is_refused_before_the_traces_are_read(run, flows):
    result = run("analyze", "traces", "--config", "nothing.sh")

    assert (result.exit_code, flows.read_calls) == (2, [])
