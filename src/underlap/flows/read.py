"""Read traces: files and folders, one file per rank or several ranks in one, into one Timeline."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from underlap.errors import InputError, NotATraceError, OptionError, UnreadableError
from underlap.read import formats
from underlap.read.identity import rank_from_name
from underlap.read.names import NameTable
from underlap.timeline import Note, Timeline, concatenate, renumber, with_ranks

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
    if wanted is not None:
        # Files whose name tells another rank are not opened.
        files = [file for file in files if (found := rank_from_name(file[0])) is None or found in wanted] or files
    timelines = _read_all(files, table, folder, jobs, progress)
    timelines, notes = _distinct_ranks(timelines)
    notes += _folder_notes(folder)
    timeline = concatenate(_own_clocks(timelines))
    if wanted is not None:
        timeline = _only(timeline, wanted)
    return dataclasses.replace(timeline, notes=(*_merged(timeline.notes, len(timelines)), *notes))


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
    found = _traces_directly_in(path, folder)
    if found:
        return found
    below = {child: _traces_directly_in(child, _Folder()) for child in _children(path) if child.is_dir()}
    holding = {child: traces for child, traces in below.items() if traces}
    if len(holding) == 1:
        return holding.popitem()[1]
    if holding:
        names = ", ".join(child.name for child in list(holding)[:_LISTED])
        raise InputError(
            f"{path}: no trace directly in this folder, but in {len(holding)} of its folders ({names}"
            f"{', ...' if len(holding) > _LISTED else ''}); give the one to analyze"
        )
    first = f" ({folder.strays[0]})" if folder.strays else ""
    raise NotATraceError(f"{path}: no trace in this folder{first}; expected {formats.READABLE}")


def _traces_directly_in(path: Path, folder: _Folder) -> list[tuple[Path, formats.Format, bool]]:
    found: list[tuple[Path, formats.Format, bool]] = []
    for child in _children(path):
        if not child.is_file():
            continue
        try:
            found.append((child, formats.detect(child), True))
        except InputError as error:
            folder.strays.append(_without_folder(error, child))
    return found


def _children(path: Path) -> list[Path]:
    try:
        return sorted((child for child in path.iterdir() if not child.name.startswith(".")), key=_natural)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be listed ({error.strerror or error})") from error


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sorts rank2 before rank10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", path.name)]


def _read_all(
    files: list[tuple[Path, formats.Format, bool]],
    table: NameTable,
    folder: _Folder,
    jobs: int | None,
    progress: Callable[[Progress], None] | None,
) -> list[Timeline]:
    sizes = [file.stat().st_size for file, _, _ in files]
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
            outcomes[at] = future.result()
            done += sizes[at]
            tell(Progress(file=files[at][0].name, done_bytes=done, total_bytes=sum(sizes)))
    return [outcomes[at] for at in range(len(files))]


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


def _without_folder(error: InputError, file: Path) -> str:
    return str(error).replace(str(file), file.name)


def _distinct_ranks(timelines: list[Timeline]) -> tuple[list[Timeline], list[Note]]:
    """One Timeline per set of ranks: assumed ranks numbered anew, files that repeat a rank left out, both noted."""
    known = [timeline for timeline in timelines if _stated(timeline)]
    assumed = [timeline for timeline in timelines if not _stated(timeline)]
    kept, notes = _one_recording(known)
    taken = {info.rank for timeline in kept for info in timeline.ranks}
    renumbered = []
    for timeline in assumed:
        mapping: dict[int, int] = {}
        for info in timeline.ranks:
            number = info.rank
            while number in taken:
                number += 1
            mapping[info.rank] = number
            taken.add(number)
        renumbered.append(renumber(timeline, mapping))
    if assumed and len(timelines) > 1:
        listed = ", ".join(
            f"{info.source} = rank {info.rank}" for timeline in renumbered[:_LISTED] for info in timeline.ranks[:_LISTED]
        )
        text = f"{len(assumed)} files do not say their rank; numbered in order of name: {listed}"
        notes.append(Note(code="rank_assumed", text=text))
    elif assumed and assumed[0].ranks[0].rank_source == "assumed":
        notes.append(Note(code="rank_assumed", text=f"{assumed[0].ranks[0].source} does not say its rank; taken as rank 0"))
    return [*kept, *renumbered], notes


def _stated(timeline: Timeline) -> bool:
    return timeline.ranks[0].rank_source in ("distributedInfo", "file name")


def _one_recording(timelines: list[Timeline]) -> tuple[list[Timeline], list[Note]]:
    """Where a rank occurs twice: the files of one recording (names equal but for the rank), the one with most ranks."""
    counted = Counter(info.rank for timeline in timelines for info in timeline.ranks)
    if not counted or counted.most_common(1)[0][1] == 1:
        return timelines, []
    recordings: dict[str, list[Timeline]] = {}
    for timeline in timelines:
        stem = re.sub(r"(rank|worker)([-_ ]?)\d+", r"\1\2*", timeline.ranks[0].source, flags=re.IGNORECASE)
        recordings.setdefault(stem, []).append(timeline)
    best = max(recordings, key=lambda stem: len({info.rank for timeline in recordings[stem] for info in timeline.ranks}))
    chosen = recordings[best] if len(recordings) < len(timelines) else timelines
    kept: dict[int, Timeline] = {}
    for timeline in chosen:
        kept.setdefault(timeline.ranks[0].rank, timeline)
    left = [timeline.ranks[0].source for timeline in timelines if timeline not in kept.values()]
    listed = ", ".join(left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
    repeated = max(counted, key=lambda rank: counted[rank])
    text = f"rank {repeated} occurs in {counted[repeated]} files; used {best}, left out {len(left)} files: {listed}"
    return list(kept.values()), [Note(code="duplicate_ranks", text=text)]


def _own_clocks(timelines: list[Timeline]) -> list[Timeline]:
    """Files of different hosts have different clocks, and nothing here says which hosts are the same: one clock per file."""
    return [
        with_ranks(timeline, [dataclasses.replace(info, clock=number) for info in timeline.ranks])
        for number, timeline in enumerate(timelines)
    ]


def _only(timeline: Timeline, wanted: set[int]) -> Timeline:
    present = {info.rank for info in timeline.ranks}
    missing = sorted(wanted - present)
    if missing:
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
    if folder.unusable:
        text = f"{len(folder.unusable)} traces of the folder cannot be used: {folder.unusable[0]}"
        notes.append(Note(code="unusable_files", text=text))
    if folder.strays:
        text = f"{len(folder.strays)} files of the folder are no traces and are left out: {folder.strays[0]}"
        notes.append(Note(code="stray_files", text=text))
    return notes
