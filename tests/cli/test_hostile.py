"""Hostile input at the command line: 0 where something was done, 2 and one line where nothing could be; no traceback."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.traces import kernel, launch, text, write
from underlap.cli import main

TRACE = text(*(event for at in range(6) for event in (launch(at), kernel(at))), distributedInfo={"rank": 0, "world_size": 2})


def refused(*words: str | Path) -> str:
    """What underlap says when it refuses; checks that it does so properly."""
    done = CliRunner().invoke(main, ["analyze", *map(str, words)], prog_name="underlap")
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("Error: ")
    assert sum(line.startswith("Error: ") for line in lines) == 1
    return lines[-1]


def one_line(*words: str | Path) -> str:
    """The same where the whole of standard error is that line."""
    done = CliRunner().invoke(main, ["analyze", *map(str, words)], prog_name="underlap")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return refused(*words)


def accepted(*words: str | Path) -> str:
    done = CliRunner().invoke(main, ["analyze", *map(str, words)], prog_name="underlap")
    assert done.exit_code == 0, done.output
    assert "Traceback" not in done.output
    return done.stdout


UNUSABLE: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n" * 3000,
    "text": b"hello",
    "no trace": b'{"a": 1}',
    "null events": b'{"traceEvents": null}',
    "no events": b'{"traceEvents": []}',
    "numbers": b"[1, 2, 3]",
    "brackets": b"[" * 200_000,
    "braces": b'{"a":' * 200_000,
    "memory snapshot": b'{"segments": [], "device_traces": []}',
    "pickle": pickle.dumps({"segments": []}),
    "execution trace": b'{"schema": "1.1.0", "nodes": []}',
    "own report": b'{"schema": "underlap.report/1", "families": []}',
    "utf-16": TRACE.encode("utf-16"),
    "cut gzip": gzip.compress(b"[" + bytes(range(256)) * 99)[:40],
    "cut json": TRACE.encode()[: TRACE.index("[{") + 30],
    "broken first event": b'{"traceEvents": [{"ph": nope}]}',
    "all times bad": text(kernel(1, ts="x"), kernel(2, dur=-1)).encode(),
}


@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("name", ["x.json", "new\nline.json"])
def test_an_unusable_file_is_one_line_and_code_2(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / name).write_bytes(UNUSABLE[kind])
    line = one_line(tmp_path / name)

    assert "expected" in line or "give " in line or "convert it" in line or "copy the file again" in line
    assert len(line) < 700


def test_an_nsight_report_is_refused_with_the_export_command(tmp_path: Path) -> None:
    file = write(tmp_path / "run.nsys-rep", "x")

    assert f"nsys export --type sqlite --include-blobs=true --output {tmp_path / 'run.sqlite'} {file}" in one_line(file)


def test_own_json_is_no_trace(tmp_path: Path) -> None:
    accepted(write(tmp_path / "rank0.json", TRACE), "--json", tmp_path / "report.json")

    assert "this is an underlap report, not a trace; give the trace that it was made from" in one_line(tmp_path / "report.json")


@pytest.mark.parametrize("word", ["-", "gone.json", ""])
def test_paths_of_nothing_are_refused(word: str) -> None:
    refused(word)


def test_no_path_at_all_is_refused() -> None:
    refused()


def test_folders_without_traces_are_refused(tmp_path: Path) -> None:
    assert "no trace in this folder" in one_line(tmp_path)
    write(tmp_path / "README.md", "# x")
    assert "README.md" in one_line(tmp_path)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    refused(tmp_path / "a")
    assert "no trace in this folder" in one_line(tmp_path)


def test_a_folder_that_contains_itself_is_no_endless_search(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(tmp_path)
    write(tmp_path / "rank0.json", TRACE)

    accepted(tmp_path)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")

    assert "not a regular file" in one_line(tmp_path / "pipe.json")
    assert "not a regular file" in one_line("/dev/zero")


def test_a_file_that_fails_on_reading_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "rank0.json", TRACE)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    assert "rank0.json: cannot be read (Input/output error)" in one_line(file)


def test_ranks_that_are_not_there_are_refused(tmp_path: Path) -> None:
    assert "--ranks asks for 5; the input has 0" in one_line(write(tmp_path / "x.json", TRACE), "--ranks", "5")


def test_a_trace_cut_at_every_offset_is_used_or_refused(tmp_path: Path) -> None:
    codes = []
    file = tmp_path / "rank0.json"
    for cut in range(0, len(TRACE), 7):
        file.write_text(TRACE[:cut])
        done = CliRunner().invoke(main, ["analyze", str(file)], prog_name="underlap")
        codes.append(done.exit_code)
        assert done.exit_code in (0, 2)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        if done.exit_code == 0:
            assert "is not closed" in done.stdout or "metadata after the events" in done.stdout
        else:
            assert len(done.stderr.splitlines()) == 1
    assert codes == sorted(codes, reverse=True)


def test_gzip_data_cut_at_many_offsets_is_used_or_refused(tmp_path: Path) -> None:
    packed = gzip.compress(TRACE.encode())
    file = tmp_path / "rank0.json.gz"
    for cut in range(0, len(packed), 11):
        file.write_bytes(packed[:cut])
        done = CliRunner().invoke(main, ["analyze", str(file)], prog_name="underlap")
        assert done.exit_code in (0, 2)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert ("gzip data is cut" in done.stdout) == (done.exit_code == 0)


DAMAGED: dict[str, str] = {
    "control characters": text(kernel(1), kernel(2, name="@")).replace("@", "a\x07\x1b[31mb"),
    "quotes": text(kernel(1), kernel(2, name="@")).replace("@", 'a "b" c'),
    "bad bytes": text(kernel(1), kernel(2, name="@")).replace("@", "a\udcff"),
    "NaN": text(kernel(1), kernel(2, dur=12345)).replace("12345", "NaN"),
    "far away": text(*(kernel(at) for at in range(4)), kernel(9, ts=1)),
    "wrong types": text(kernel(1), kernel(2) | {"args": [1]}, kernel(3) | {"pid": {}}),
    "no object": text(kernel(1), "17"),
    "deep": text(kernel(1), '{"args": ' + "[" * 200_000 + "]" * 200_000 + "}", kernel(2)),
    "twice": text(kernel(1), kernel(1)),
    "two lists": text(kernel(1))[:-1] + ", " + text(kernel(2))[1:],
    "not closed": text(kernel(1))[:-2],
    "trailing": text(kernel(1)) + text(kernel(2)),
    "alone": text(kernel(1), {"ph": "B", "pid": 1, "tid": 1, "ts": 1}),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_trace_is_analyzed_and_says_what_was_lost(tmp_path: Path, kind: str) -> None:
    output = accepted(write(tmp_path / "rank0.json", DAMAGED[kind]))

    said = [line for line in output.splitlines() if line.startswith("note:") and "rank0.json" in line]
    assert len(said) >= 1, output
    assert output.isascii()
    assert "\x1b" not in output


def test_the_report_of_a_damaged_trace_is_valid_json(tmp_path: Path) -> None:
    content = text(kernel(1, name='\ud800 "@'), kernel(2, name="@"), deviceProperties=[{"id": 0, "name": "\udfff"}]).replace(
        "@", "\x01"
    )

    assert json.loads(accepted(write(tmp_path / "rank0.json", content), "--json", "-"))["notes"]


def test_a_process_of_its_own_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", "{")
    done = subprocess.run([sys.executable, "-m", "underlap", "analyze", str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
