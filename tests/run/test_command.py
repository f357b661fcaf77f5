"""`underlap run` from the outside: its JSON, its records, and its place in a job of torchrun."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

import underlap  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402 - only with torch
from underlap.expansion import expand  # noqa: E402 - only with torch
from underlap.planner import plan as planned  # noqa: E402 - only with torch
from underlap.run import comparing  # noqa: E402 - only with torch
from underlap.run.worker import PROFILED  # noqa: E402 - only with torch
from underlap.schedule import apply  # noqa: E402 - only with torch

CLOSE = 0.03
"""Of a step: what profiler and own record may differ by."""

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


def replicated(folder: Path, *more: str) -> list[str]:
    """The same with dp=2."""
    words = command(folder, *more)
    return [{"tp=2": "dp=2", TRAIN: TRAIN.replace("mbs=4", "mbs=2")}.get(word, word) for word in words]


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


def test_where_a_pass_cuts_operations_nothing_is_said_of_compute_beside_communication(
    compared: tuple[dict[str, Any], Path],
) -> None:
    trial, folder = compared
    assert trial["slowdown"] is None
    assert not (folder / "both").exists()


def test_the_steps_of_both_plans_lie_in_one_record_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    record, out = tmp_path / "record", tmp_path / "trial.json"
    words = replicated(tmp_path, "--overlap", "dp=bucket:100kB", "--ab", "--record", str(record), "--json", str(out))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())["slowdown"]
    assert found["word"] in ("slower", "faster", "no difference seen", "not established")
    assert f"compute beside communication: {found['word']}" in result.output
    for rank in range(2):
        events = json.loads((record / "both" / f"rank{rank}.json").read_text())["traceEvents"]
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        # All seven of each plan, in turns; which goes first changes each time.
        assert [event["name"] for event in steps] == [f"ProfilerStep#{number}" for number in range(14)]
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in itertools.pairwise(steps))
        buckets = [any("bucket" in event["args"].get("key", "") for event in _inside(events, step)) for step in steps]
        assert sorted(buckets) == [False] * 7 + [True] * 7
        assert all(sorted(pair) == [False, True] for pair in zip(buckets[::2], buckets[1::2], strict=True))
    report = underlap.analyze(record / "both", deep=True)
    assert report.contention is not None
    assert report.contention.method == "positions"


def test_a_record_of_both_plans_that_an_earlier_run_left_is_not_read_for_another_one(tmp_path: Path) -> None:
    record = tmp_path / "record"
    for options in (["--overlap", "dp=bucket:100kB", "--ab"], []):
        words = replicated(tmp_path, *options, "--repetitions", "1", "--record", str(record), "--force", "--json", "-")
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert (json.loads(result.stdout)["slowdown"] is not None) == bool(options)


def _inside(events: list[dict[str, Any]], step: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and step["ts"] <= event["ts"] < step["ts"] + step["dur"]]


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


def test_what_is_sent_beside_the_plan_is_counted_and_shown_apart(tmp_path: Path) -> None:
    asked = ["run", "--model", "tiny-moe", "--layout", "dp=2,ep=2", "--workload", "train,gbs=4,mbs=2,seq=16"]
    out = tmp_path / "trial.json"
    result = CliRunner().invoke(main, [*asked, "--repetitions", "1", "--share-cores", "--json", str(out)])
    assert result.exit_code == 0, result.output
    (variant,) = json.loads(out.read_text())["variants"]
    # Of each layer with experts each of the two ranks says, in int64, how many rows each expert gets.
    model = inputs.model("tiny-moe")
    assert model.experts is not None
    numbers = sum(kind != "dense" for kind in model.layer_kinds) * 2 * model.experts.count
    assert variant["control"] == [
        {"group": "ep", "collective": "all_to_all", "what": "numbers of rows", "counted_bytes": numbers * 8}
    ]
    assert "control, not in the plan: ep all_to_all: " in result.stdout
    assert all(row["planned_bytes"] == row["counted_bytes"] > 0 for row in variant["bytes_by_axis"])


@pytest.mark.parametrize(
    ("layout", "overlap", "workload"),
    [
        ("tp=2", "tp=split_batch", "train,gbs=4,mbs=4,seq=512,precision=fp32"),
        # Of one layer prefetching hides nothing: here exposed times are compared.
        ("fsdp=2", "fsdp=prefetch:1", "train,gbs=8,mbs=4,seq=512,precision=fp32"),
    ],
    ids=["tp2", "fsdp2"],
)
def test_traces_of_the_profiler_and_the_own_record_tell_the_same_times(
    tmp_path: Path, layout: str, overlap: str, workload: str
) -> None:
    record = tmp_path / "record"
    (tmp_path / "wide.yaml").write_text(MODEL.replace("layers: 2", "layers: 1").replace("256", "512"))
    asked = ["run", "--model", str(tmp_path / "wide.yaml"), "--layout", layout, "--overlap", overlap, "--workload", workload]
    result = CliRunner().invoke(main, [*asked, "--repetitions", "1", "--record", str(record), "--profile"])
    assert result.exit_code == 0, result.output
    # Between the call and its begin a thread of gloo waits for a core, on a busy machine for a millisecond or several. Only
    # the profiler sees that. So steps are long here, of few collectives. The first step meets whatever the profiler sets up.
    gaps = [_gap(record / "baseline", step) for step in range(1, PROFILED)]
    assert statistics.median(gap for gap, _ in gaps) <= CLOSE, gaps
    assert min(of_hidden for _, of_hidden in gaps) <= 0.1, gaps


def _gap(folder: Path, step: int) -> tuple[float, float]:
    """The larger difference of hidden and exposed time, mean per rank, as share of the step; that of hidden also of itself, where
    anything is hidden: what a rank keeps of an exchange is copied while it is called, which the profiler takes for compute."""
    profiled = underlap.analyze(f"{folder}-profile", steps=[step]).summary
    own = underlap.analyze(f"{folder}-profiled", steps=[step]).summary
    assert profiled is not None
    assert own is not None
    assert profiled.hidden.mean_ns + profiled.exposed.mean_ns > 0
    hidden = abs(profiled.hidden.mean_ns - own.hidden.mean_ns)
    exposed = abs(profiled.exposed.mean_ns - own.exposed.mean_ns)
    longer = max(profiled.hidden.mean_ns, own.hidden.mean_ns)
    return max(hidden, exposed) / own.span.mean_ns, hidden / longer if longer > 0.01 * own.span.mean_ns else 0.0


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
