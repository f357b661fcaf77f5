"""Two files of one framework are arms of a comparison: which settings differ, and whether any differs in effect."""

from __future__ import annotations

from pathlib import Path

from tests.lint.inputs import findings, lint

DEEP = "vllm serve model --tensor-parallel-size 8"
OFF, ON = '\'{"pass_config": {"fuse_gemm_comms": false}}\'', '\'{"pass_config": {"fuse_gemm_comms": true}}\''


def test_arms_that_differ_are_told_apart_by_name(tmp_path: Path) -> None:
    report = lint(tmp_path, {"a.sh": f"{DEEP}\n", "b.sh": f"{DEEP} --enforce-eager\n"})

    assert report.comparison is not None
    assert [(row.name, row.values) for row in report.comparison.differences] == [("enforce_eager", ["false", "true"])]
    assert (report.comparison.one_configuration, report.found) == (False, False)


def test_arms_that_are_the_same_are_a_finding(tmp_path: Path) -> None:
    report = lint(tmp_path, {"a.sh": f"{DEEP}\n", "b.sh": f"{DEEP}\n"})

    assert report.comparison is not None
    assert (report.comparison.one_configuration, report.comparison.differences, report.found) == (True, [], True)


def test_a_default_written_out_makes_no_difference(tmp_path: Path) -> None:
    arms = {"a.sh": f"{DEEP} --port 1\n", "b.sh": f"{DEEP} --port 1 --data-parallel-size 1\n"}
    comparison = lint(tmp_path, arms).comparison

    assert comparison is not None
    assert (comparison.one_configuration, comparison.differences) == (True, [])


def test_arms_set_apart_by_a_switch_without_effect_are_one_configuration(tmp_path: Path) -> None:
    files = {
        "a.sh": f"{DEEP} --enforce-eager --port 1 --compilation-config {OFF}\n",
        "b.sh": f"{DEEP} --enforce-eager --port 2 --compilation-config {ON}\n",
    }
    report = lint(tmp_path, files)

    assert findings(report) == ["vllm-async-tp"]
    assert report.comparison is not None
    assert report.comparison.one_configuration
    assert [(row.name, row.without_effect) for row in report.comparison.differences] == [("fuse_gemm_comms", True)]


def test_arms_that_differ_only_in_what_no_rule_knows_are_no_finding(tmp_path: Path) -> None:
    report = lint(tmp_path, {"a.sh": f"{DEEP} --block-size 16\n", "b.sh": f"{DEEP} --block-size 64\n"})

    assert report.comparison is not None
    assert (report.comparison.one_configuration, report.comparison.others_differ, report.found) == (False, True, False)
    assert "block" not in report.comparison.text


def test_a_switch_whose_value_is_not_known_decides_nothing(tmp_path: Path) -> None:
    report = lint(tmp_path, {"a.sh": f"{DEEP} --enforce-eager=$X\n", "b.sh": f"{DEEP} --enforce-eager=true\n"})

    assert report.comparison is not None
    assert [(row.name, row.values) for row in report.comparison.differences] == [("enforce_eager", [None, "true"])]
    assert not report.comparison.one_configuration


def test_the_scheduler_that_is_called_overlap_is_said_to_be_another_thing(tmp_path: Path) -> None:
    serve = "python -m sglang.launch_server --model-path m"
    report = lint(tmp_path, {"a.sh": f"{serve}\n", "b.sh": f"{serve} --disable-overlap-schedule\n"})

    assert report.comparison is not None
    assert "CPU scheduling, not about communication" in report.comparison.text


def test_a_script_and_a_deepspeed_configuration_are_one_job(tmp_path: Path) -> None:
    files = {
        "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\ndeepspeed train.py --deepspeed ds.json\n",
        "ds.json": '{"zero_optimization": {"stage": 2, "overlap_comm": true}}',
    }
    report = lint(tmp_path, files)

    assert [job.name for job in report.jobs] == ["train.sh + ds.json"]
    assert findings(report) == ["connections-dp"]
    assert report.comparison is None


def test_the_environment_belongs_to_every_arm(tmp_path: Path) -> None:
    fsdp = "torchrun train.py --fsdp_version 2"
    report = lint(tmp_path, {"environment": "CUDA_DEVICE_MAX_CONNECTIONS=1\n", "a.sh": f"{fsdp}\n", "b.sh": f"{fsdp} --lr 2\n"})

    assert findings(report) == ["connections-fsdp", "connections-fsdp"]
    assert [finding.job for finding in report.findings] == ["a.sh", "b.sh"]
