"""`underlap run` from the outside: its JSON, its records, and its place in a job of torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

import underlap  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402
from underlap.cli import main  # noqa: E402
from underlap.expansion import expand  # noqa: E402
from underlap.planner import plan as planned  # noqa: E402
from underlap.run import comparing  # noqa: E402
from underlap.run.worker import PROFILED  # noqa: E402
from underlap.schedule import apply  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
MODEL = """
name: wide
hidden: 256
layers: 2
heads: 8
kv_heads: 4
head_dim: 32
intermediate: 1024
vocab: 512
"""
TRAIN = "train,gbs=4,mbs=4,seq=128,precision=fp32"
CLOCKS = 0.02
"""What two ways of reading the same clock may differ by, as a share of a step."""


def command(folder: Path, *more: str) -> list[str]:
    (folder / "wide.yaml").write_text(MODEL)
    return ["run", "--model", str(folder / "wide.yaml"), "--layout", "tp=2", "--nproc", "2", "--workload", TRAIN, *more]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """(JSON, folder of records) of one comparison."""
    folder = tmp_path_factory.mktemp("compared")
    options = ["--overlap", "tp=split_batch", "--ab", "--record", str(folder / "record"), "--json", "-"]
    result = CliRunner().invoke(main, command(folder, *options))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), folder / "record"


def test_the_json_has_both_reports_and_what_the_difference_is_worth(compared: tuple[dict[str, Any], Path]) -> None:
    trial, _ = compared
    assert trial["schema"] == "underlap.trial/1"
    assert [variant["policy"] for variant in trial["variants"]] == ["none", "tp=split_batch"]
    assert [len(variant["step_ns"]) for variant in trial["variants"]] == [7, 7]
    assert [len(trial[name]["ranks"]) for name in ("baseline", "policy")] == [2, 2]
    ab = trial["ab"]
    assert ab["ratio_low"] <= ab["ratio"] <= ab["ratio_high"]
    # How it comes out is the machine's business; that it follows from the interval is not.
    assert ab["outcome"] == comparing.outcome(ab["ratio_low"], ab["ratio_high"], 7)
    assert ab["same_within"] == 0.05
    assert ab["repetitions"] == 7
    assert 0 <= ab["host_issue_share"] < 1
    assert any("measures the host" in note for note in ab["notes"]) == (ab["host_issue_share"] > 0.1)


def test_the_comparison_moved_the_same_bytes_and_came_to_the_same(compared: tuple[dict[str, Any], Path]) -> None:
    trial, _ = compared
    assert trial["ab"]["bytes_equal"]
    rows = trial["ab"]["bytes_by_axis"]
    assert [(row["group"], row["collective"]) for row in rows] == [("tp", "all_reduce")]
    assert all(row["planned_bytes"] == row["counted_bytes"] > 0 for row in rows)
    assert trial["ab"]["max_output_difference"] < 1e-6
    assert trial["ab"]["max_gradient_difference"] < 1e-5


def test_recorded_operations_join_planned_ones_by_key_with_none_left_over(compared: tuple[dict[str, Any], Path]) -> None:
    trial, folder = compared
    assert [variant["unmatched_keys"] for variant in trial["variants"]] == [0, 0]
    base = planned(inputs.model(str(folder.parent / "wide.yaml")), inputs.layout("tp=2"), inputs.workload(TRAIN), domain=2)
    plans = {"baseline": base, "policy": apply(base, inputs.policy("tp=split_batch")).plan}
    for name, plan in plans.items():
        expansion = expand(plan, plan.roles[0])
        wanted = Counter(
            (kind, expansion.key(row))
            for row, number in enumerate(expansion.rows.kind.tolist())
            for kind in {0: ("compute",), 2: ("issue", "transfer"), 3: ("wait",)}[number]
        )
        for rank in range(2):
            events = json.loads((folder / name / f"rank{rank}.json").read_text())["traceEvents"]
            found = Counter((e["args"]["what"], e["args"]["key"]) for e in events if "key" in e.get("args", {}))
            assert found == wanted


def test_the_analyzer_reads_the_record_as_a_trace(compared: tuple[dict[str, Any], Path]) -> None:
    _, folder = compared
    report = underlap.analyze(folder / "baseline")
    assert [row.rank for row in report.ranks] == [0, 1]
    family = report.families[0]
    assert family.collective == "all_reduce"
    # 4 per layer and two layers; embedding, head, and two of the loss.
    assert family.count == 12
    assert report.summary is not None
    assert report.summary.hidden.mean_ns == 0


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """(what was shown, folder of records) of one plan under the profiler too."""
    folder = tmp_path_factory.mktemp("profiled")
    options = ["--overlap", "tp=split_batch", "--repetitions", "2", "--record", str(folder / "record"), "--profile"]
    result = CliRunner().invoke(main, command(folder, *options))
    assert result.exit_code == 0, result.output
    return result, folder / "record"


def test_the_screen_says_measured_and_as_planned(profiled: tuple[Result, Path]) -> None:
    result, _ = profiled
    assert "MEASURED wide on 2 ranks over gloo: tp=2" in result.stdout
    assert "tp all_reduce: " in result.stdout
    assert "all ranks, as planned" in result.stdout
    assert "underlap run: baseline: step 2 of 2" in result.stderr


def test_the_own_record_sees_all_that_the_profiler_sees_and_what_surrounds_it(profiled: tuple[Result, Path]) -> None:
    _, record = profiled
    for step in range(1, PROFILED):
        seen = underlap.analyze(f"{record / 'baseline'}-profile", steps=[step])
        own = underlap.analyze(f"{record / 'baseline'}-profiled", steps=[step])
        assert [(row.collective, row.count) for row in seen.families] == [(row.collective, row.count) for row in own.families]
        assert seen.summary is not None
        assert own.summary is not None
        assert seen.summary.hidden.mean_ns > 0
        # The record begins a collective when it is called and ends it when that is known, and takes an operation with what
        # lies between its kernels. A neighbor makes that more; nothing makes it less, but what lies between two clocks.
        communication = [each.hidden.mean_ns + each.exposed.mean_ns for each in (seen.summary, own.summary)]
        assert communication[0] <= communication[1] + CLOCKS * own.summary.span.mean_ns
        assert seen.summary.hidden.mean_ns <= own.summary.hidden.mean_ns + CLOCKS * own.summary.span.mean_ns


def test_under_torchrun_it_takes_its_place_in_the_job(tmp_path: Path) -> None:
    out = tmp_path / "trial.json"
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "underlap"]
    asked = ["run", "--model", "tiny-dense", "--layout", "pp=2", "--workload", "train,gbs=4,mbs=2,seq=16", "--repetitions", "2"]
    environment = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: PLW1510 - its code is looked at below
        [*job, *asked, "--json", str(out)], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    trial = json.loads(out.read_text())
    assert trial["ranks"] == 2
    assert [row["rank"] for row in trial["baseline"]["ranks"]] == [0, 1]
    # One rank speaks for all.
    assert done.stdout.count("MEASURED") == 1


def test_a_policy_of_which_nothing_applies_is_no_comparison(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, command(tmp_path, "--ab"))
    assert result.exit_code == 2
    assert "Error: ab: nothing to compare: name a policy with --overlap" in result.output
