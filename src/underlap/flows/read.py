"""Read traces: files and folders, one file per rank or several ranks in one, into one Timeline."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from underlap.errors import InputError, NotATraceError, OptionError, UnreadableError
from underlap.flows.recordings import distinct_ranks, refuse_several_runs
from underlap.read import execution_trace, formats
from underlap.read.identity import rank_from_name
from underlap.read.names import NameTable
from underlap.timeline import Note, Timeline, concatenate, with_ranks
from underlap.wording import counted

_PARALLEL_BYTES = 16 << 20
"""Below this much input, starting processes costs more than it gains."""
_LISTED = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far reading has come."""

    file: str
    done_bytes: int
    """Over all files, like `total_bytes`."""
    total_bytes: int


@dataclasses.dataclass(slots=True)
class _Folder:
    """What a folder's files turned out to be, for the notes."""

    strays: list[str] = dataclasses.field(default_factory=list)
    unusable: list[str] = dataclasses.field(default_factory=list)
    below: list[Path] = dataclasses.field(default_factory=list)
    """Sub-folders with traces, beside which the folder itself has some."""


def read(
    *paths: str | os.PathLike[str],
    names: Path | None = None,
    ranks: Sequence[int] | None = None,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Timeline:
    """The Timeline of all ranks found in the files and folders.

    `names` is a YAML file with further kernel families. `ranks` keeps only these. `jobs` is the number of reading processes
    (default: one per file, at most one per CPU). Raises InputError when a file given by name, or every file of a folder,
    is unusable; other unusable files of a folder are left out and noted. Raises OptionError when `ranks` are not there.
    """
    table = NameTable.default() if names is None else NameTable.default().with_file(Path(names))
    folder = _Folder()
    # A file is read once, however often and by whatever path it is named.
    files = list({os.path.realpath(found[0]): found for found in _files(map(Path, paths), folder)}.values())
    wanted = None if ranks is None else set(ranks)
    named: set[int] = set()
    if wanted is not None:
        # Files whose name tells another rank are not opened.
        told = [rank_from_name(file[0]) for file in files]
        named = {rank for rank in told if rank is not None}
        files = [file for file, rank in zip(files, told, strict=True) if rank is None or rank in wanted] or files
    timelines = _read_all(files, table, folder, jobs, progress)
    refuse_several_runs(timelines)
    timelines, notes = distinct_ranks(timelines)
    notes += _folder_notes(folder)
    timeline = concatenate(_own_clocks(timelines))
    if wanted is not None:
        timeline = _only(timeline, wanted, named)
    return dataclasses.replace(timeline, notes=(*notes, *_merged(timeline.notes, len(timelines))))


def _files(paths: Iterable[Path], folder: _Folder) -> Iterator[tuple[Path, formats.Format, bool]]:
    """(file, format, whether it was found in a folder) of everything that the paths name."""
    for path in paths:
        if _is_folder(path):
            yield from _in_folder(path, folder)
        else:
            yield path, formats.detect(path), False


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError as error:
        raise UnreadableError(f"{path}: no such file or folder; expected {formats.READABLE}, or a folder of them") from error
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _in_folder(path: Path, folder: _Folder) -> list[tuple[Path, formats.Format, bool]]:
    files, folders = _children(path, folder)
    found = _traces_among(files, folder)
    holding = {child: traces for child in folders if (traces := _directly_in(child))}
    if holding and not any(formats.holds_events(file) for file, _, _ in found):
        # The traces are below; what lies beside them is JSON of another kind.
        folder.strays += [f"{file.name}: no trace" for file, _, _ in found]
        found = []
    if found:
        folder.below = list(holding)
        return found
    if len(holding) == 1:
        return holding.popitem()[1]
    if holding:
        raise InputError(
            f"{path}: no trace directly in this folder, but in {len(holding)} of its folders ({_some(holding)}); "
            "give the one to analyze"
        )
    first = f" ({folder.strays[0]})" if folder.strays else ""
    raise NotATraceError(f"{path}: no trace in this folder{first}; expected {formats.READABLE}")


def _directly_in(path: Path) -> list[tuple[Path, formats.Format, bool]]:
    try:
        return _traces_among(_children(path, _Folder())[0], _Folder())
    except UnreadableError:
        return []


def _some(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _traces_among(files: list[Path], folder: _Folder) -> list[tuple[Path, formats.Format, bool]]:
    found: list[tuple[Path, formats.Format, bool]] = []
    for file in files:
        if execution_trace.is_one(file):
            continue  # read with the profile that it belongs to
        try:
            found.append((file, formats.detect(file), True))
        except InputError as error:
            folder.strays.append(_without_folder(error, file))
    return found


def _children(path: Path, folder: _Folder) -> tuple[list[Path], list[Path]]:
    """The files and the folders in a folder; pipes, dangling links and the like count as strays."""
    files: list[Path] = []
    folders: list[Path] = []
    try:
        children = sorted((child for child in path.iterdir() if not child.name.startswith(".")), key=_natural)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be listed ({error.strerror or error})") from error
    for child in children:
        try:
            (folders if _is_folder(child) else files).append(child)
        except UnreadableError as error:
            folder.strays.append(_without_folder(error, child))
    return files, folders


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sorts rank2 before rank10."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(at % 2 == 1, int(part) if at % 2 == 1 else 0, part) for at, part in enumerate(parts)]


def _read_all(
    files: list[tuple[Path, formats.Format, bool]],
    table: NameTable,
    folder: _Folder,
    jobs: int | None,
    progress: Callable[[Progress], None] | None,
) -> list[Timeline]:
    sizes = [_size(file) for file, _, _ in files]
    if jobs is None:
        jobs = min(len(files), os.cpu_count() or 1) if sum(sizes) > _PARALLEL_BYTES else 1
    tell = progress or (lambda _: None)
    run = _in_processes if jobs > 1 and len(files) > 1 else _in_turn
    outcomes = run(files, sizes, table, jobs, tell)
    timelines = []
    failures: list[InputError] = []
    for (file, _, in_folder), outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, Timeline):
            timelines.append(outcome)
        elif in_folder:
            failures.append(outcome)
            # A JSON file that was never a trace is as stray as a README; a trace that cannot be used is worth a louder note.
            kind = folder.strays if isinstance(outcome, NotATraceError) else folder.unusable
            kind.append(_without_folder(outcome, file))
        else:
            raise outcome
    if not timelines:
        raise failures[0]
    return timelines


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # reading it will say what is wrong


def _in_turn(
    files: list[tuple[Path, formats.Format, bool]],
    sizes: list[int],
    table: NameTable,
    jobs: int,
    tell: Callable[[Progress], None],
) -> list[Timeline | InputError]:
    del jobs
    outcomes: list[Timeline | InputError] = []
    for at, (file, form, _) in enumerate(files):
        before, total, name = sum(sizes[:at]), sum(sizes), file.name

        def report(done: int, *, before: int = before, total: int = total, name: str = name) -> None:
            tell(Progress(file=name, done_bytes=before + done, total_bytes=total))

        outcomes.append(_read_one(file, form, table, report))
    return outcomes


def _in_processes(
    files: list[tuple[Path, formats.Format, bool]],
    sizes: list[int],
    table: NameTable,
    jobs: int,
    tell: Callable[[Progress], None],
) -> list[Timeline | InputError]:
    outcomes: dict[int, Timeline | InputError] = {}
    done = 0
    with ProcessPoolExecutor(max_workers=min(jobs, len(files)), mp_context=_context()) as pool:
        futures = {pool.submit(_read_one, file, form, table, None): at for at, (file, form, _) in enumerate(files)}
        for future in as_completed(futures):
            at = futures[future]
            outcomes[at] = _outcome(future, files[at][0])
            done += sizes[at]
            tell(Progress(file=files[at][0].name, done_bytes=done, total_bytes=sum(sizes)))
    return [outcomes[at] for at in range(len(files))]


def _outcome(future: Future[Timeline | InputError], file: Path) -> Timeline | InputError:
    try:
        return future.result()
    except BrokenProcessPool:
        # The system ends a process that takes too much memory, and the pool with it.
        return UnreadableError(f"{file}: a reading process was ended from outside, perhaps for want of memory; try --jobs 1")


def _context() -> multiprocessing.context.BaseContext:
    # Forking is quick and asks nothing of the caller's script, but Python warns of it beside threads since 3.12.
    forkable = "fork" in multiprocessing.get_all_start_methods()
    safe = sys.version_info < (3, 12) or threading.active_count() == 1
    return multiprocessing.get_context("fork" if forkable and safe else "spawn")


def _read_one(
    file: Path, form: formats.Format, table: NameTable, report_bytes: Callable[[int], None] | None
) -> Timeline | InputError:
    try:
        return form.read(file, table, report_bytes)
    except InputError as error:
        return error
    except MemoryError:
        return UnreadableError(f"{file}: reading it takes more memory than there is; record fewer steps, or select files")


def _without_folder(error: InputError, file: Path) -> str:
    return str(error).replace(str(file), file.name)


def _own_clocks(timelines: list[Timeline]) -> list[Timeline]:
    """Clocks numbered from 0: files that name the same host share one; a file that names none has its own."""
    numbers: dict[tuple[str, int], int] = {}

    def number(at: int, host: int) -> int:
        return numbers.setdefault(("host", host) if host else ("file", at), len(numbers))

    return [
        with_ranks(timeline, [dataclasses.replace(info, clock=number(at, info.clock)) for info in timeline.ranks])
        for at, timeline in enumerate(timelines)
    ]


def _only(timeline: Timeline, wanted: set[int], named: set[int]) -> Timeline:
    present = {info.rank for info in timeline.ranks}
    missing = sorted(wanted - present)
    if missing:
        present |= named - wanted
        listed = ", ".join(map(str, missing[:_LISTED])) + (", ..." if len(missing) > _LISTED else "")
        there = ", ".join(map(str, sorted(present)[:16]))
        raise OptionError(f"--ranks asks for {listed}; the input has {there}{', ...' if len(present) > 16 else ''}")
    return timeline.of_ranks(wanted)


def _merged(notes: tuple[Note, ...], files: int) -> list[Note]:
    """The readers' notes; a code that occurs in several files is said once, with their number."""
    by_code: dict[str, list[Note]] = {}
    for note in notes:
        by_code.setdefault(note.code, []).append(note)
    merged = []
    for code, same in by_code.items():
        more = f" (and {len(same) - 1} more of {files} files)" if len(same) > 1 else ""
        merged.append(Note(code=code, text=same[0].text + more))
    return merged


def _folder_notes(folder: _Folder) -> list[Note]:
    notes = []
    if folder.below:
        text = f"the folder has traces of its own; those in its folders are not read: {_some(folder.below)}"
        notes.append(Note(code="subfolders", text=text))
    if folder.unusable:
        text = f"not usable: {counted(len(folder.unusable), 'trace')} of the folder (first: {folder.unusable[0]})"
        notes.append(Note(code="unusable_files", text=text))
    if folder.strays:
        text = f"left out, as no trace: {counted(len(folder.strays), 'file')} of the folder (first: {folder.strays[0]})"
        notes.append(Note(code="stray_files", text=text))
    return notes
