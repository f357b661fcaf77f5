"""The commands that simulate, on the screen and in files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from underlap.cli import main

SCENARIO = ["--model", "tiny-dense", "--cluster", "dgx-h100"]
GRID = ["--compare", "none,split_batch", "--batch", "1..4", "--seq", "256,512", "--jobs", "1"]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words, prog_name="underlap")


def swept(*more: str) -> Result:
    return run("sweep", *SCENARIO, "--layout", "tp=2", "--workload", "prefill,batch=1,seq=256", *GRID, *more)


def test_a_sweep_shows_a_map_with_a_row_for_each_sequence_and_says_that_it_is_simulated() -> None:
    result = swept()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "SIMULATED tiny-dense on dgx-h100: prefill, 6 points, 6 computed"
    at = next(number for number, line in enumerate(lines) if line.endswith("seq \\ batch 1 2 4"))
    assert [line.split()[0] for line in lines[at + 1 : at + 3]] == ["256", "512"]
    assert "does not support: " in result.output
    assert max(map(len, lines)) <= 100


def test_json_and_csv_of_a_sweep_hold_the_same_points(tmp_path: Path) -> None:
    result = swept("--json", str(tmp_path / "a.json"), "--csv", str(tmp_path / "a.csv"))
    assert result.exit_code == 0
    answer = json.loads((tmp_path / "a.json").read_text())
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert (answer["schema"], answer["provenance"], len(answer["points"])) == ("underlap.sweep/1", "simulated", 6)
    assert [(int(row["batch"]), int(row["seq"]), row["verdict"]) for row in rows] == [
        (point["batch"], point["seq"], point["verdict"]) for point in answer["points"]
    ]
    assert swept("--csv", str(tmp_path / "a.csv")).exit_code == 2


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("4..1", "has to go upward"),
        ("0..4", "has to go upward"),
        ("5..7", "no power of two"),
        ("a", "no number and no range"),
        ("1,,2", "no number and no range"),
        ("", "no number and no range"),
        ("1..9999999999999", "has to go upward"),
    ],
)
def test_a_grid_that_is_none_is_refused_with_what_was_expected(grid: str, message: str) -> None:
    result = run(
        "sweep",
        *SCENARIO,
        "--layout",
        "tp=2",
        "--workload",
        "prefill,batch=1,seq=256",
        *GRID[:2],
        "--batch",
        grid,
        "--seq",
        "256",
    )
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("layout", "compare", "message"),
    [
        ("tp=2;tp=3", "none,split_batch", "tp=3 does not divide"),
        ("tp=2;", "none,split_batch", "layout"),
        ("tp=2", "none", "two policies or more"),
        ("tp=2", "none,nothing", "unknown policy"),
        ("dp=1", "none,split_batch", "nothing to overlap there"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line_on_standard_error(layout: str, compare: str, message: str) -> None:
    result = run(
        "sweep",
        *SCENARIO,
        "--layout",
        layout,
        "--workload",
        "prefill,batch=1,seq=256",
        "--compare",
        compare,
        "--batch",
        "2",
        "--seq",
        "256",
    )
    if layout == "tp=2;":
        # An empty layout is one device: then there is nothing to overlap on it.
        message = "nothing to overlap there"
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert message in result.stderr


def test_a_ladder_shows_each_rung_with_what_it_adds_below() -> None:
    result = run("ladder", *SCENARIO, "--layout", "tp=2,dp=2", "--workload", "train,gbs=4,mbs=1,seq=256")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("+ tp=2"))
    assert lines[at + 1].startswith("adds all_reduce over tp, scale-up: ")
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize("command", ["ladder", "levers"])
def test_the_json_of_an_answer_names_its_schema_and_what_it_does_not_support(command: str) -> None:
    result = run(command, *SCENARIO, "--layout", "tp=2", "--workload", "prefill,batch=4,seq=256", "--json", "-")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["schema"] == f"underlap.{command}/1"
    assert answer["provenance"] == "simulated"
    assert answer["does_not_support"]


def test_levers_show_what_each_asks_for_and_list_what_was_not_ranked() -> None:
    result = run("levers", *SCENARIO, "--layout", "tp=2,dp=2", "--workload", "train,gbs=4,mbs=1,seq=256")
    assert result.exit_code == 0
    assert "what it asks for" in result.output
    assert "not ranked" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


def test_a_straggler_and_jitter_lengthen_the_step_that_is_shown() -> None:
    words = ["simulate", *SCENARIO, "--layout", "tp=2", "--workload", "decode,batch=4,context=256"]
    steps = [
        next(line for line in run(*words, *more).output.splitlines() if line.startswith("step "))
        for more in ([], ["--jitter", "0.1"], ["--straggler", "rank=0,compute=3"])
    ]
    plain, loose, slow = (float(line.split()[1]) for line in steps)
    assert plain < loose < slow
    assert run(*words, "--jitter", "2").exit_code == 2
    assert "expected 0 to 1" in run(*words, "--straggler", "rank=2,compute=2").stderr
