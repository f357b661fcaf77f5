"""Files to the ranks of one recording: which files belong together, and which rank each one is."""

from __future__ import annotations

import re
from collections import Counter

from underlap.errors import InputError
from underlap.timeline import Note, Timeline, renumber
from underlap.wording import counted

_LISTED = 4
_APART_NS = 60_000_000_000
"""Recordings that are further apart than clocks of hosts ever are were not made at the same time."""
_RANK_IN_NAME = re.compile(r"(?<=rank|work)(?:er)?[-_ ]?\d+", re.IGNORECASE)
# Six digits or more are a time; the profiler's own names have one per rank.
_RANK_OR_NUMBER_IN_NAME = re.compile(rf"{_RANK_IN_NAME.pattern}|[0-9]{{6,}}", re.IGNORECASE)


def distinct_ranks(timelines: list[Timeline]) -> tuple[list[Timeline], list[Note]]:
    """One Timeline per set of ranks: assumed ranks numbered anew, files that repeat a rank left out, both noted."""
    known = [timeline for timeline in timelines if _stated(timeline)]
    assumed = [timeline for timeline in timelines if not _stated(timeline)]
    by_coordinates = len(assumed) > 1 and all(timeline.ranks[0].coordinates for timeline in assumed)
    if by_coordinates:
        assumed.sort(key=lambda timeline: _place(timeline.ranks[0].coordinates))
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
        order = "the coordinates in their names" if by_coordinates else "name"
        text = f"{counted(len(assumed), 'file')} without a rank, numbered in order of {order}: {listed}"
        notes.append(Note(code="rank_assumed", text=text))
    elif assumed and assumed[0].ranks[0].rank_source == "assumed":
        notes.append(Note(code="rank_assumed", text=f"{assumed[0].ranks[0].source} does not say its rank; taken as rank 0"))
    return [*kept, *renumbered], notes


def _place(coordinates: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Where ranks of these coordinates stand, the tensor dimension varying fastest, as frameworks number them."""
    given = dict(coordinates)
    return tuple(given.get(axis, 0) for axis in ("pp", "dp", "cp", "sp", "tp", "ep"))


def refuse_several_runs(timelines: list[Timeline]) -> None:
    """Files that name no rank and were recorded one after another are runs to compare, not ranks to put together."""
    sessions = sorted(
        (info.session_ns, info.source)
        for info in (timeline.ranks[0] for timeline in timelines if not _stated(timeline))
        if info.session_ns is not None
    )
    last = sessions[0] if sessions else None
    for (start, end), file in sessions:
        assert last is not None
        (_, last_end), last_file = last
        if start - last_end > _APART_NS:
            raise InputError(
                f"{file}: recorded {(start - last_end) / 60e9:.0f} min after {last_file} had ended, so they are different runs "
                "and not ranks of one; give the files of one run"
            )
        last = max(last, ((start, end), file), key=lambda entry: entry[0][1])


def _stated(timeline: Timeline) -> bool:
    return timeline.ranks[0].rank_source in ("distributedInfo", "file name")


def _one_recording(timelines: list[Timeline]) -> tuple[list[Timeline], list[Note]]:
    """Where a rank occurs twice: the files of one recording, told by their names, else the earliest file of each rank."""
    ranks = [timeline.ranks[0].rank for timeline in timelines]
    files = Counter(ranks)
    if not files or files.most_common(1)[0][1] == 1:
        return timelines, []
    chosen = list(range(len(timelines)))
    used = "the earliest of each rank"
    for pattern in (_RANK_IN_NAME, _RANK_OR_NUMBER_IN_NAME):
        recordings: dict[str, list[int]] = {}
        for at, timeline in enumerate(timelines):
            recordings.setdefault(pattern.sub("*", timeline.ranks[0].source), []).append(at)
        best = max(recordings, key=lambda stem: len({ranks[at] for at in recordings[stem]}))
        if len({ranks[at] for at in recordings[best]}) > 1:
            chosen, used = recordings[best], best
            break
    kept: dict[int, int] = {}
    for at in sorted(chosen, key=lambda at: timelines[at].origin_ns):
        kept.setdefault(ranks[at], at)
    left = [timeline.ranks[0].source for at, timeline in enumerate(timelines) if kept.get(ranks[at]) != at]
    listed = ", ".join(left[:_LISTED]) + (", ..." if len(left) > _LISTED else "")
    repeated = min(rank for rank in files if files[rank] > 1)
    text = f"rank {repeated} occurs in {files[repeated]} files; used {used}, left out {len(left)}: {listed}"
    return [timelines[at] for at in sorted(kept.values())], [Note(code="duplicate_ranks", text=text)]
