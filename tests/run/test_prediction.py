"""`underlap run --predict`: the same plan simulated, beside what its ranks recorded, joined by structural key."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from underlap.cli import main  # noqa: E402 - only with torch
from underlap.report import Report  # noqa: E402 - only with torch

MODEL = """
name: wide
hidden: 128
layers: 2
heads: 4
kv_heads: 2
head_dim: 32
intermediate: 512
vocab: 256
"""
CLUSTER = """
name: two-cores
domain: 2
processor:
  name: core
  architecture: none
  sms: 1
  peak_flops: {fp32: 60 GFLOP/s}
  memory: 4 GiB
  memory_bandwidth: 10 GB/s
  copy_engines: 0
  launch: 10 us
scale_up:
  name: slow
  bandwidth: 100 MB/s
  latency: 200 us
  switched: true
  in_network_reduction: false
"""


def command(folder: Path, *more: str) -> list[str]:
    (folder / "wide.yaml").write_text(MODEL)
    (folder / "cluster.yaml").write_text(CLUSTER.replace("none", "hopper"))
    asked = ["run", "--model", str(folder / "wide.yaml"), "--layout", "tp=2", "--overlap", "tp=split_batch"]
    workload = ["--workload", "train,gbs=4,mbs=4,seq=64,precision=fp32"]
    return [*asked, *workload, "--predict", str(folder / "cluster.yaml"), *more]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("predicted")
    result = CliRunner().invoke(main, command(folder, "--ab", "--json", "-", "--record", str(folder / "record")))
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    found["folder"] = str(folder)
    return found


def test_the_measured_side_is_what_the_report_of_the_median_step_says(trial: dict[str, Any]) -> None:
    for variant, name in zip(trial["prediction"]["variants"], ("baseline", "policy"), strict=True):
        steps = next(one["step_ns"] for one in trial["variants"] if one["name"] == name)
        assert variant["step"]["measured_ns"] == sorted(steps)[len(steps) // 2]
        assert (variant["step"]["low_ns"], variant["step"]["high_ns"]) == (min(steps), max(steps))
        summary = trial[name]["summary"]
        for part in ("compute", "communication", "hidden", "exposed"):
            seen = variant[part]
            # The Report shows one repetition of those that the interval is about.
            assert seen["low_ns"] - 2000 <= summary[part]["mean_ns"] <= seen["high_ns"] + 2000, (name, part)


def test_the_simulated_side_is_what_underlap_simulate_says(trial: dict[str, Any]) -> None:
    folder = Path(trial["folder"])
    asked = command(folder)[1:]
    asked[asked.index("--predict")] = "--cluster"
    result = CliRunner().invoke(main, ["simulate", *asked, "--json", "-"])
    assert result.exit_code == 0, result.output
    alone = json.loads(result.stdout)["prediction"]
    beside = trial["prediction"]["variants"][1]
    assert beside["step"]["predicted_ns"] == alone["step_ns"]
    for part in ("compute", "hidden", "exposed"):
        assert beside[part]["predicted_ns"] == alone[f"{part}_ns"]
    assert trial["prediction"]["provenance"] == "simulated"


def test_families_and_operations_are_joined_by_key_with_none_left_over(trial: dict[str, Any]) -> None:
    folder = Path(trial["folder"])
    for name, variant in zip(("baseline", "policy"), trial["prediction"]["variants"], strict=True):
        events = json.loads((folder / "record" / name / "rank0.json").read_text())["traceEvents"]
        kinds = Counter(event["args"].get("what") for event in events)
        (family,) = variant["families"]
        assert (family["group"], family["collective"], family["calls"]) == ("tp", "all_reduce", kinds["transfer"])
        assert family["time"]["predicted_ns"] > 0
        keys = {(event["args"]["what"], event["args"]["key"]) for event in events if "key" in event.get("args", {})}
        assert {(row["what"], row["furthest"]) for row in variant["operations"]} <= keys
        away = [abs(row["time"]["predicted_ns"] - row["time"]["measured_ns"]) for row in variant["operations"]]
        assert away == sorted(away, reverse=True)


def test_errors_and_signs_follow_from_the_figures(trial: dict[str, Any]) -> None:
    found = trial["prediction"]
    ab, steps = found["ab"], [variant["step"] for variant in found["variants"]]
    for beside in steps:
        assert beside["error"] == pytest.approx(beside["predicted_ns"] / beside["measured_ns"] - 1)
        assert beside["within"] == (beside["low_ns"] <= beside["predicted_ns"] <= beside["high_ns"])
    assert ab["predicted_ratio"] == pytest.approx(steps[1]["predicted_ns"] / steps[0]["predicted_ns"])
    assert ab["measured_ratio"] == trial["ab"]["ratio"]
    agrees = {"gain": ab["predicted_ratio"] < 1, "loss": ab["predicted_ratio"] > 1, None: None}
    agrees["no difference"] = 0.95 <= ab["predicted_ratio"] <= 1.05
    assert ab["sign_agrees"] == agrees[trial["ab"]["outcome"]]


def test_the_screen_marks_what_is_simulated_and_what_is_measured(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, command(tmp_path, "--repetitions", "2"))
    assert result.exit_code == 0, result.output
    assert "MEASURED wide on 2 ranks over gloo" in result.stdout
    assert "SIMULATED on two-cores beside MEASURED" in result.stdout
    assert "policy / baseline: simulated" not in result.stdout  # one plan only
    line = next(line for line in result.stdout.splitlines() if line.startswith(" step, slowest rank"))
    assert len(line.split()) == 9
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_a_plan_that_the_cluster_cannot_price_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [*command(tmp_path)[:-1], "dgx-h100"])
    assert result.exit_code == 2
    assert "fp32" in result.output
    assert "warm-up" not in result.output


def test_reports_read_with_and_without_a_prediction(trial: dict[str, Any]) -> None:
    import msgspec

    from underlap.trial import Trial

    found = msgspec.convert({key: value for key, value in trial.items() if key != "folder"}, Trial)
    assert isinstance(found.baseline, Report)
    assert found.prediction is not None
