"""What a file is, told from its content; what no reader takes is named, with what to give instead."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import pytest

from tests.traces import kernel, text, write
from underlap.errors import InputError, NotATraceError, UnreadableError
from underlap.read import formats

TRACE = text(kernel(1))


def refusal(path: Path, content: bytes, name: str = "x.json") -> str:
    file = path / name
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        formats.detect(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("content", [b"", b" ", b"\n\r\t " * 20])
def test_a_file_of_nothing_is_called_empty(tmp_path: Path, content: bytes) -> None:
    assert "the file is empty; expected a PyTorch profiler trace" in refusal(tmp_path, content)


@pytest.mark.parametrize("content", [TRACE.encode(), b"\xef\xbb\xbf" + TRACE.encode(), b" \r\n" * 5000 + TRACE.encode(), b"[]"])
def test_json_is_read_as_kineto(tmp_path: Path, content: bytes) -> None:
    for name, data in (("a", content), ("b.gz", gzip.compress(content)), ("c.sqlite", content)):
        (tmp_path / name).write_bytes(data)
        assert formats.detect(tmp_path / name) is formats.KINETO


def test_a_database_is_read_as_nsight(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"SQLite format 3\x00" + bytes(100))

    assert formats.detect(tmp_path / "x.json") is formats.NSIGHT


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep", ".qdstrm"])
@pytest.mark.parametrize("content", [b"", b"\x00binary", TRACE.encode()])
def test_an_nsight_report_comes_with_the_command_that_exports_it(tmp_path: Path, suffix: str, content: bytes) -> None:
    message = refusal(tmp_path, content, f"report.0{suffix}")

    report, target = tmp_path / f"report.0{suffix}", tmp_path / "report.0.sqlite"
    command = f"nsys export --type sqlite --include-blobs=true --output {target} {report}"
    assert message.endswith(command)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"segments": [], "device_traces": []}), "a Python pickle (a CUDA memory snapshot"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x28\xb5\x2f\xfd12", "zstd -d FILE"),
        (b"BZh9", "bunzip2 FILE"),
        (b"\xfd7zXZ\x00", "unxz FILE"),
        (b"\xff\xfe" + TRACE.encode("utf-16-le"), "the text is UTF-16"),
        (TRACE.encode("utf-16-be"), "iconv -f UTF-16 -t UTF-8"),
        (b"hello", "not a trace that underlap knows (starts with b'hello')"),
        (bytes(5000), "not a trace that underlap knows"),
    ],
)
def test_other_kinds_are_named_packed_or_not(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content)
    assert words in refusal(tmp_path, gzip.compress(content), "x.json.gz")


def test_a_packed_database_is_to_be_unpacked(tmp_path: Path) -> None:
    assert "gunzip " in refusal(tmp_path, gzip.compress(b"SQLite format 3\x00" + bytes(100)))


def test_gzip_data_cut_at_its_start_is_said_or_left_to_the_reader(tmp_path: Path) -> None:
    packed = gzip.compress(TRACE.encode())
    for cut in range(2, len(packed)):
        (tmp_path / "x.json.gz").write_bytes(packed[:cut])
        try:
            assert formats.detect(tmp_path / "x.json.gz") is formats.KINETO
        except UnreadableError as error:
            assert "cut at its start" in str(error)  # noqa: PT017 - most cuts raise nothing


def test_gzip_data_of_nonsense_is_damaged(tmp_path: Path) -> None:
    assert "the gzip data is damaged at its start" in refusal(tmp_path, b"\x1f\x8b" + b"\xff" * 100)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UnreadableError, match="not a regular file"):
        formats.detect(tmp_path / "pipe.json")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/stdin"])
def test_a_device_is_refused_without_reading_it(device: str) -> None:
    with pytest.raises(UnreadableError, match=r"not a regular file|the file is empty|cannot be read"):
        formats.detect(Path(device))


def test_a_folder_named_like_a_trace_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").mkdir()
    with pytest.raises(UnreadableError, match="not a regular file"):
        formats.detect(tmp_path / "rank0.json")


def test_a_dangling_link_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").symlink_to(tmp_path / "gone.json")
    with pytest.raises(UnreadableError, match="cannot be read"):
        formats.detect(tmp_path / "rank0.json")


def test_a_file_without_permission_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "rank0.json", TRACE)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnreadableError, match=r"rank0.json: cannot be read \(Permission denied\)"):
        formats.detect(file)


@pytest.mark.parametrize(
    ("content", "holds"), [(TRACE, True), ("{}", False), ("[1]", False), ("{nope", False), ('{"a": [1]}', False)]
)
def test_the_start_of_a_file_tells_whether_it_holds_events(tmp_path: Path, content: str, holds: bool) -> None:
    assert formats.holds_events(write(tmp_path / "x.json", content)) == holds


def test_a_trace_is_no_zip_because_of_its_name(tmp_path: Path) -> None:
    write(tmp_path / "x.zip", TRACE)

    assert formats.detect(tmp_path / "x.zip") is formats.KINETO


def test_both_errors_are_input_errors() -> None:
    assert issubclass(NotATraceError, InputError)
    assert issubclass(UnreadableError, InputError)
