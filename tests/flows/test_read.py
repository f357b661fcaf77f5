"""Files and folders to one Timeline: strays, ranks, recordings, and what cannot be read."""

from __future__ import annotations

import gzip
import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from tests.traces import kernel, launch, notes, text, write
from underlap.errors import InputError, NotATraceError, OptionError, UnreadableError
from underlap.flows import read as flow
from underlap.flows.read import Progress, read
from underlap.read import kineto


def trace(path: Path, rank: int | None = None, *, at: int = 0, world: int = 4, kernels: int = 2) -> Path:
    """A trace whose metadata names the rank, or does not."""
    events = [event for place in range(at, at + kernels) for event in (launch(place), kernel(place))]
    return write(path, text(*events, **({} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world}})))


def ranks(*paths: Path, **options: Any) -> list[tuple[int, str]]:
    return [(info.rank, info.source) for info in read(*paths, **options).ranks]


def test_an_empty_folder_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="no trace in this folder; expected a PyTorch profiler trace"):
        read(tmp_path)


def test_a_folder_of_strays_has_no_trace_and_names_one(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "# hello")
    with pytest.raises(NotATraceError, match=r"no trace in this folder \(README.md: not a trace"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["gone.json", "-", "a/b/c.json"])
def test_a_path_of_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableError, match="no such file or folder; expected a PyTorch profiler trace"):
        read(name)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_path_that_no_system_takes_is_said(name: str) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"):
        read(name)


def test_one_file_is_one_rank(tmp_path: Path) -> None:
    assert ranks(trace(tmp_path / "a.json", 3)) == [(3, "a.json")]


def test_a_file_that_does_not_say_its_rank_is_rank_0_and_said(tmp_path: Path) -> None:
    found = read(trace(tmp_path / "host_1.1700.pt.trace.json"))

    assert found.ranks[0].rank == 0
    assert notes(found)["rank_assumed"] == "host_1.1700.pt.trace.json does not say its rank; taken as rank 0"


def test_files_that_do_not_say_their_rank_are_numbered_in_order_of_name(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        trace(tmp_path / f"host_{number}.json")
    trace(tmp_path / "z.json", 1)
    found = read(tmp_path)

    assert [(info.rank, info.source) for info in found.ranks] == [
        (1, "z.json"),
        (0, "host_1.json"),
        (2, "host_9.json"),
        (3, "host_10.json"),
    ]
    assert "3 files without a rank, numbered in order of name: host_1.json = rank 0" in notes(found)["rank_assumed"]


def test_strays_of_a_folder_are_left_out_and_said_once(tmp_path: Path) -> None:
    for rank in range(3):
        trace(tmp_path / f"rank{rank}.json.gz", rank)
    write(tmp_path / "README", "hello")
    write(tmp_path / "config.yaml", "a: 1")
    write(tmp_path / "summary.json", '{"a": 1}')
    write(tmp_path / "empty.json", "")
    write(tmp_path / ".hidden.json", "junk")
    trace(tmp_path / ".cache" / "rank9.json", 9)
    (tmp_path / "notes").mkdir()
    (tmp_path / "rank7.json").mkdir()
    (tmp_path / "rank8.json").symlink_to(tmp_path / "gone.json")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe.json")
    found = read(tmp_path)

    assert [info.rank for info in found.ranks] == [0, 1, 2]
    assert notes(found)["stray_files"].startswith("left out, as no trace: 7 files of the folder (first: ")
    assert "hidden" not in str(found.notes)


def test_a_damaged_trace_of_a_folder_is_said_more_loudly_than_a_stray(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json", 0)
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(b"{" + b" " * 8000, mtime=0)[:30])
    (tmp_path / "rank2.json").write_text("{}")
    found = read(tmp_path)

    assert [info.rank for info in found.ranks] == [0]
    assert any("rank1.json.gz" in note.text for note in found.notes)
    assert any("rank2.json" in note.text or "2 files" in note.text for note in found.notes)


def test_a_damaged_file_given_by_name_is_refused(tmp_path: Path) -> None:
    good = trace(tmp_path / "rank0.json", 0)
    with pytest.raises(NotATraceError, match=r"bad.json"):
        read(good, write(tmp_path / "bad.json", "{}"))


def test_a_folder_of_unusable_traces_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", text())
    with pytest.raises(NotATraceError, match=r"rank0.json: the list of trace events holds no complete event"):
        read(tmp_path)


def test_the_only_folder_below_is_taken(tmp_path: Path) -> None:
    trace(tmp_path / "iteration_10" / "rank0_trace.json", 0)
    write(tmp_path / "job.json", '{"steps": 10}')
    (tmp_path / "empty").mkdir()
    found = read(tmp_path)

    assert [info.source for info in found.ranks] == ["rank0_trace.json"]
    assert notes(found)["stray_files"] == "left out, as no trace: 1 file of the folder (first: job.json: no trace)"


def test_of_several_folders_below_one_has_to_be_given(tmp_path: Path) -> None:
    for step in range(10, 70, 10):
        trace(tmp_path / f"iteration_{step}" / "rank0.json", 0)
    with pytest.raises(
        InputError, match=r"in 6 of its folders \(iteration_10, iteration_20, iteration_30, iteration_40, ...\); give the one"
    ):
        read(tmp_path)


def test_folders_below_a_folder_with_traces_are_not_read_and_said(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json", 0)
    trace(tmp_path / "old" / "rank1.json", 1)
    found = read(tmp_path)

    assert [info.rank for info in found.ranks] == [0]
    assert notes(found)["subfolders"].endswith("those in its folders are not read: old")


def test_a_folder_that_cannot_be_listed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UnreadableError, match=r"cannot be listed \(Permission denied\)"):
        read(tmp_path)


def test_a_folder_below_that_cannot_be_listed_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace(tmp_path / "rank0.json", 0)
    (tmp_path / "locked").mkdir()
    listed = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert ranks(tmp_path) == [(0, "rank0.json")]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    file = trace(tmp_path / "rank0.json", 0)
    (tmp_path / "link").symlink_to(tmp_path)
    found = read(file, tmp_path / "link" / "rank0.json", tmp_path, tmp_path / "." / "rank0.json")

    assert [info.rank for info in found.ranks] == [0]
    assert "duplicate_ranks" not in notes(found)


def test_equal_copies_of_one_trace_count_once_and_are_said(tmp_path: Path) -> None:
    files = [trace(tmp_path / folder / "rank0.json", 0) for folder in "abc"]
    found = read(*files)

    assert [info.rank for info in found.ranks] == [0]
    assert "rank 0 occurs in 3 files" in notes(found)["duplicate_ranks"]
    assert "left out 2" in notes(found)["duplicate_ranks"]


@pytest.mark.parametrize("form", ["rank{rank}_step{step}.json", "worker{rank}_step_{step}.16941282015{rank}{step}.pt.trace.json"])
def test_of_two_recordings_of_the_same_ranks_the_fuller_one_is_read(tmp_path: Path, form: str) -> None:
    for step, count in ((12, 2), (20, 4)):
        for rank in range(count):
            trace(tmp_path / form.format(rank=rank, step=step), rank, at=step * 1000)
    found = read(tmp_path)

    assert [info.rank for info in found.ranks] == [0, 1, 2, 3]
    assert all("20" in info.source for info in found.ranks)
    assert "rank 0 occurs in 2 files" in notes(found)["duplicate_ranks"]
    assert "left out 2" in notes(found)["duplicate_ranks"]


def test_recordings_that_names_do_not_tell_apart_are_told_by_time(tmp_path: Path) -> None:
    for rank in range(3):
        for cycle, stamp in ((0, 1694128201545 + rank), (1, 1694128101545 + rank)):
            trace(tmp_path / f"host_{100 + rank}.{stamp}.pt.trace.json", rank, at=cycle * 1000)
    found = read(tmp_path)

    assert [(info.rank, info.source) for info in found.ranks] == [
        (rank, f"host_{100 + rank}.{1694128201545 + rank}.pt.trace.json") for rank in range(3)
    ]
    assert "used the earliest of each rank, left out 3" in notes(found)["duplicate_ranks"]


def test_selected_ranks_are_the_only_ones(tmp_path: Path) -> None:
    for rank in range(4):
        trace(tmp_path / f"rank{rank}.json", rank)

    assert ranks(tmp_path, ranks=[1, 3]) == [(1, "rank1.json"), (3, "rank3.json")]


def test_selected_ranks_that_are_not_there_are_said_with_those_that_are(tmp_path: Path) -> None:
    for rank in (0, 2):
        trace(tmp_path / f"rank{rank}.json", rank)
    with pytest.raises(OptionError, match="--ranks asks for 1, 7; the input has 0, 2"):
        read(tmp_path, ranks=[0, 1, 7])


def test_the_metadata_decides_where_the_name_of_a_file_disagrees(tmp_path: Path) -> None:
    assert ranks(trace(tmp_path / "rank3.json", 1)) == [(1, "rank3.json")]


@pytest.mark.parametrize(
    "name", ["5\u00b2.json", "\u0663.json", "1" * 200 + ".json", "a\nb.json", "\u202e.json", "rank0 (copy).json"]
)
def test_file_names_of_any_characters_are_sorted(tmp_path: Path, name: str) -> None:
    trace(tmp_path / name, 5)
    trace(tmp_path / "x1.json", 6)

    assert sorted(rank for rank, _ in ranks(tmp_path)) == [5, 6]


def test_many_tiny_files_are_all_read(tmp_path: Path) -> None:
    for rank in range(150):
        trace(tmp_path / f"rank{rank}.json", rank, world=150, kernels=1)

    assert [rank for rank, _ in ranks(tmp_path)] == list(range(150))


def test_processes_read_the_same_as_one_does(tmp_path: Path) -> None:
    for rank in range(3):
        trace(tmp_path / f"rank{rank}.json", rank)
    write(tmp_path / "stray.json", "{}")
    told: list[Progress] = []
    parallel, serial = read(tmp_path, jobs=2, progress=told.append), read(tmp_path, jobs=1)

    assert parallel.ranks == serial.ranks
    assert parallel.notes == serial.notes
    assert (parallel.ops.start_ns == serial.ops.start_ns).all()
    assert told[-1].done_bytes == told[-1].total_bytes


def test_a_reading_process_that_is_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        trace(tmp_path / f"rank{rank}.json", rank)

    class Ended:
        def result(self) -> None:
            raise BrokenProcessPool

    assert "a reading process was ended from outside" in str(flow._outcome(Ended(), tmp_path / "rank0.json"))  # type: ignore[arg-type]  # a stand-in


def test_want_of_memory_is_an_error_of_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kineto, "read", fail)
    with pytest.raises(UnreadableError, match="takes more memory than there is"):
        read(trace(tmp_path / "rank0.json", 0))


def test_a_file_that_vanishes_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = trace(tmp_path / "rank0.json", 0)
    size = flow._size

    def vanish(path: Path) -> int:
        path.unlink()
        return size(path)

    monkeypatch.setattr(flow, "_size", vanish)
    with pytest.raises(UnreadableError, match=r"rank0.json: cannot be read"):
        read(file)


def test_notes_of_several_files_are_said_once(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", text(kernel(1), distributedInfo={"rank": rank, "world_size": 3})[:-2])
    found = read(tmp_path)

    assert (
        notes(found)["truncated"]
        == "rank0.json: the list of events is not closed; complete events used: 1 (and 2 more of 3 files)"
    )
