"""What holds for every command: flags, help, exit codes, pipes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import underlap
from underlap.cli import main

ROOT = Path(__file__).parent.parent.parent

FLAGS = {
    "underlap": ["--version"],
    "underlap analyze": [
        "--config",
        "--explain",
        "--force",
        "--instances",
        "--jobs",
        "--json",
        "--like",
        "--mesh",
        "--names",
        "--no-progress",
        "--ranks",
        "--steps",
        "--window",
    ],
    "underlap calibrate": ["--fabric", "--force", "--out", "--precision", "--priority", "--ranks"],
    "underlap ladder": [
        "--cluster",
        "--force",
        "--gpus",
        "--json",
        "--layout",
        "--model",
        "--no-contention",
        "--overlap",
        "--workload",
    ],
    "underlap levers": [
        "--cluster",
        "--force",
        "--gpus",
        "--json",
        "--layout",
        "--model",
        "--no-contention",
        "--overlap",
        "--workload",
    ],
    "underlap run": [
        "--ab",
        "--ceilings",
        "--device",
        "--fabric",
        "--force",
        "--graph",
        "--json",
        "--layout",
        "--model",
        "--nproc",
        "--overlap",
        "--port",
        "--predict",
        "--priority",
        "--profile",
        "--record",
        "--repetitions",
        "--share-cores",
        "--timeout",
        "--workload",
    ],
    "underlap simulate": [
        "--cluster",
        "--compare",
        "--force",
        "--gpus",
        "--jitter",
        "--json",
        "--layout",
        "--model",
        "--no-contention",
        "--overlap",
        "--straggler",
        "--workload",
    ],
    "underlap sweep": [
        "--batch",
        "--cluster",
        "--compare",
        "--csv",
        "--force",
        "--gpus",
        "--jobs",
        "--json",
        "--layout",
        "--model",
        "--no-contention",
        "--overlap",
        "--seq",
        "--workload",
    ],
    "underlap lint": ["--env", "--force", "--gpu", "--json", "--together", "--version"],
    "underlap claims": [],
    "underlap claims list": ["--axis", "--force", "--framework", "--hardware", "--json", "--phase"],
    "underlap claims search": ["--axis", "--force", "--framework", "--hardware", "--json", "--phase"],
    "underlap claims show": ["--force", "--json"],
    "underlap judge": ["--baseline-report", "--compare", "--force", "--json", "--mine", "--report"],
}


def commands(command=main, name="underlap"):
    found = {name: command}
    for word, sub in getattr(command, "commands", {}).items():
        found |= commands(sub, f"{name} {word}")
    return found


def subprocess_of(module, *words, **options):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), *sys.path])),
        **options.pop("env", {}),
    }
    return subprocess.run(
        [sys.executable, "-m", module, *words], cwd=ROOT, env=environment, check=False, capture_output=True, timeout=60, **options
    )


def test_the_set_of_flags_is_frozen():
    found = {
        name: sorted(flag for option in command.params if isinstance(option, click.Option) for flag in option.opts)
        for name, command in commands().items()
    }
    assert found == FLAGS


@pytest.mark.parametrize("name", FLAGS)
def test_every_help_text_ends_with_an_example_that_works(run, name):
    if name == "underlap run":
        pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")
    result = run(*name.split()[1:], "--help")
    assert result.exit_code == 0
    heading, example = result.output.rstrip().rpartition("Example:\n")[1:]
    assert heading
    program, *words = shlex.split(example.replace("\\\n", " "))
    assert program == "underlap"
    if name == "underlap calibrate":
        words.append("--help")  # it takes both cores for a minute, and root: that it is understood is all that is checked here
    assert run(*words).exit_code == 0


@pytest.mark.parametrize("name", FLAGS)
def test_help_is_ascii_of_at_most_100_columns(run, name):
    text = run(*name.split()[1:], "--help").output
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100


def test_the_version_is_that_of_the_package(run):
    assert run("--version").output == f"underlap {underlap.__version__}\n"


def test_help_loads_neither_numpy_nor_rich_nor_a_flow():
    code = "import sys, underlap.cli; print([m for m in ('numpy', 'rich', 'underlap.flows.read', 'msgspec') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "[]\n"


def test_python_dash_m_underlap_is_the_command():
    result = subprocess_of("underlap", "--version", text=True)
    assert (result.returncode, result.stdout) == (0, f"underlap {underlap.__version__}\n")


def test_an_unknown_command_is_a_usage_error(run):
    result = run("annalyze")
    assert result.exit_code == 2
    assert "No such command 'annalyze'" in result.stderr


def test_a_run_in_a_pipe_writes_plain_text_and_nothing_to_standard_error(tmp_path):
    result = subprocess_of("tests.cli.stubbed", "analyze", str(tmp_path))
    assert result.returncode == 0
    assert result.stdout.startswith(b"measured: rank0_trace.json.gz + 7 files")
    assert b"\x1b" not in result.stdout
    assert result.stderr == b""


def test_an_interrupt_ends_with_130_and_without_a_traceback(tmp_path):
    result = subprocess_of("tests.cli.stubbed", "analyze", str(tmp_path), env={"INTERRUPT": "1"}, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "Interrupted\n")


@pytest.mark.parametrize("words", [[], ["--json", "-"]])
def test_a_reader_that_leaves_early_is_no_failure(tmp_path, words):
    read_end, write_end = os.pipe()
    os.close(read_end)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [
        sys.executable,
        "-m",
        "tests.cli.stubbed",
        "analyze",
        str(tmp_path),
        "--instances",
        str(tmp_path / "out.csv"),
        *words,
    ]
    try:
        result = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (0, f"Wrote {tmp_path / 'out.csv'}\n")
    assert (tmp_path / "out.csv").exists()
