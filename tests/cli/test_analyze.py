"""`underlap analyze`: what it passes on, what it writes, what it refuses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.render.hand_written import HOSTILE, hostile_report, replace
from underlap.errors import MissingExtraError, NotATraceError, OptionError, UnreadableError
from underlap.render.terminal import render
from underlap.report import from_json, to_json


def test_a_folder_alone_leaves_every_choice_to_the_flows(run, flows):
    result = run("analyze", "traces")
    assert result.exit_code == 0
    assert flows.read_calls == [((Path("traces"),), {"names": None, "ranks": None, "jobs": None, "progress": None})]
    assert flows.analyze_calls == [
        (flows.timeline, {"window": None, "steps": None, "mesh": None, "deep": None, "like": None, "config": ()})
    ]
    assert result.stdout == render(flows.report).plain + "\n"
    assert result.stderr == ""


def test_every_option_reaches_its_flow(run, flows):
    Path("names.yaml").touch()
    words = "--ranks 0-2,5 --jobs 3 --names names.yaml --window steps --steps 2-3,6 --mesh dp=2,tp=4 --no-progress --explain"
    assert run("analyze", "traces", "trace.json", *words.split()).exit_code == 0
    ((paths, reading),) = flows.read_calls
    assert paths == (Path("traces"), Path("trace.json"))
    assert reading == {"names": Path("names.yaml"), "ranks": (0, 1, 2, 5), "jobs": 3, "progress": None}
    ((_, analysis),) = flows.analyze_calls
    assert analysis == {
        "window": "steps",
        "steps": (2, 3, 6),
        "mesh": {"dp": 2, "tp": 4},
        "deep": True,
        "like": None,
        "config": (),
    }
    assert list(analysis["mesh"]) == ["dp", "tp"]


def test_a_recording_to_borrow_from_is_read_whole_with_the_same_names(run, flows):
    Path("names.yaml").touch()
    Path("eager").mkdir()
    words = ("--like", "eager", "--names", "names.yaml", "--ranks", "3", "--no-progress")
    assert run("analyze", "traces", *words).exit_code == 0
    _, (paths, reading) = flows.read_calls
    assert paths == (Path("eager"),)
    assert reading == {"names": Path("names.yaml"), "jobs": None, "progress": None}
    assert flows.analyze_calls[0][1]["like"] is flows.timeline


def test_the_recording_to_borrow_from_is_an_input_that_no_output_replaces(run, flows):
    Path("eager").mkdir()
    Path("eager/rank0.json").write_text("{}")
    result = run("analyze", "traces", "--like", "eager", "--json", "eager/rank0.json", "--force")
    assert result.exit_code == 2
    assert Path("eager/rank0.json").read_text() == "{}"


def test_a_file_in_an_input_folder_is_not_replaced_even_by_force(run, flows):
    trace = Path("traces") / "rank0.json"
    trace.parent.mkdir(exist_ok=True)
    trace.write_text("{}")
    result = run("analyze", "traces", "--json", str(trace), "--force")
    assert result.exit_code == 2
    assert "lies in a folder that is an input" in result.stderr
    assert trace.read_text() == "{}"


def test_json_to_standard_output_is_the_report_and_nothing_else(run, flows):
    result = run("analyze", "traces", "--json", "-")
    assert result.stdout_bytes == to_json(flows.report)
    assert from_json(result.stdout_bytes) == flows.report
    assert result.stderr == ""


def test_json_survives_hostile_names(run, flows):
    flows.report = hostile_report()
    assert from_json(run("analyze", "traces", "--json", "-").stdout_bytes) == flows.report


def test_files_are_written_beside_the_screen_and_announced_last(run, flows):
    result = run("analyze", "traces", "--json", "report.json", "--instances", "out.csv")
    assert result.exit_code == 0
    assert from_json(Path("report.json").read_bytes()) == flows.report
    assert len(Path("out.csv").read_text().splitlines()) == 1 + len(flows.report.instances)
    assert result.stdout == render(flows.report).plain + "\n"
    assert result.stderr == "Wrote report.json\nWrote out.csv\n"
    assert result.output.endswith("Wrote out.csv\n")


@pytest.mark.parametrize("option", ["--json", "--instances"])
def test_an_existing_file_is_refused_before_anything_is_read(run, flows, option):
    Path("out.csv").write_text("old")
    result = run("analyze", "traces", option, "out.csv")
    assert result.exit_code == 2
    assert result.stderr == "Error: out.csv exists: name another file, or pass --force to replace it.\n"
    assert Path("out.csv").read_text() == "old"
    assert flows.read_calls == []


def test_a_folder_that_may_not_be_written_to_is_refused_before_anything_is_read(run, flows, monkeypatch):
    monkeypatch.setattr("underlap.cli.outputs.os.access", lambda _, mode: mode != os.W_OK)
    result = run("analyze", "traces", "--json", "out.json")
    assert result.exit_code == 2
    assert result.stderr.endswith("of out.json cannot be written to: name another file.\n")
    assert flows.read_calls == []


def test_force_replaces_an_existing_file(run, flows):
    Path("report.json").write_text("old")
    assert run("analyze", "traces", "--json", "report.json", "--force").exit_code == 0
    assert from_json(Path("report.json").read_bytes()) == flows.report


def test_an_input_is_never_overwritten_not_even_by_force(run, flows):
    result = run("analyze", "trace.json", "--json", "trace.json", "--force")
    assert result.exit_code == 2
    assert "trace.json is an input" in result.stderr
    assert Path("trace.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json", "a.csv", "--instances", "a.csv"], "a.csv is named for two outputs"),
        (["--json", ".", "--force"], ". exists and is no regular file"),
        (["--json", "/dev/null", "--force"], "/dev/null exists and is no regular file"),
        (["--json", "missing/report.json"], "missing/report.json does not exist"),
        (["--instances", "out.xlsx"], "expected a name that ends in .csv or .parquet, got the suffix '.xlsx'"),
        (["--steps", "2", "--window", "whole"], "pass one of them"),
        (["--jobs", "0"], "0 is not in the range x>=1"),
        (["--window", "half"], "'half' is not one of 'whole', 'steps'"),
        (["--names", "missing.yaml"], "'missing.yaml' does not exist"),
        (["--steps", "5-2"], "Write 2-5."),
        (["--mesh", "dp"], "Expected name=size"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(run, flows, words, message):
    result = run("analyze", "traces", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert flows.read_calls == []


def test_parquet_without_pyarrow_is_refused_before_anything_is_read(run, flows, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("analyze", "traces", "--instances", "out.parquet")
    assert result.exit_code == 2
    assert "pip install 'underlap[parquet]'" in result.stderr
    assert flows.read_calls == []


@pytest.mark.parametrize("words", [[], ["missing.json"]])
def test_no_path_or_a_path_that_does_not_exist_is_a_usage_error(run, words):
    result = run("analyze", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: underlap analyze")


@pytest.mark.parametrize("kind", [NotATraceError, UnreadableError, OptionError, MissingExtraError])
def test_an_error_raised_on_purpose_is_one_line_and_exit_code_2(run, flows, kind):
    flows.fail = kind(f"{HOSTILE}: found\nthis, expected that")
    result = run("analyze", "traces", "--json", "report.json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: evil[31m")
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr
    assert not Path("report.json").exists()


def test_a_bug_is_not_taken_for_an_unusable_input(run, flows):
    flows.fail = AssertionError("ours")
    assert isinstance(run("analyze", "traces").exception, AssertionError)


def test_a_failure_while_writing_leaves_no_file(run, flows):
    flows.report = replace(flows.report, instances=[None])
    assert run("analyze", "traces", "--instances", "out.csv").exit_code != 0
    assert not Path("out.csv").exists()
    assert sorted(path.name for path in Path().iterdir()) == ["job.env", "trace.json", "traces", "train.sh"]
