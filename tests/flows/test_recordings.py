"""Which files are ranks of one recording, by when they were recorded."""

from __future__ import annotations

import dataclasses

import pytest

from tests.timelines import COMPUTE, Op, build, info
from underlap.errors import InputError
from underlap.flows.recordings import refuse_several_runs
from underlap.timeline import Timeline

MINUTE = 60_000_000_000


def recorded(name: str, session: tuple[int, int] | None, source: str = "process order") -> Timeline:
    rank = dataclasses.replace(info(), source=name, session_ns=session, rank_source=source)
    return build([Op(COMPUTE, 0, 1)], ranks=[rank])


def test_recordings_one_after_another_are_different_runs() -> None:
    files = [recorded("after", (10 * MINUTE, 12 * MINUTE)), recorded("before", (0, 3 * MINUTE))]

    with pytest.raises(InputError, match="after: recorded 7 min after before had ended"):
        refuse_several_runs(files)


@pytest.mark.parametrize("other", [(MINUTE, 2 * MINUTE), (0, 90 * MINUTE), (3 * MINUTE + MINUTE // 2, 5 * MINUTE), None])
def test_recordings_at_about_the_same_time_can_be_ranks_of_one_job(other: tuple[int, int] | None) -> None:
    refuse_several_runs([recorded("node0", (0, 3 * MINUTE)), recorded("node1", other)])


def test_the_longest_recording_so_far_decides_and_not_the_last() -> None:
    refuse_several_runs(
        [recorded("a", (0, 20 * MINUTE)), recorded("b", (MINUTE, 2 * MINUTE)), recorded("c", (15 * MINUTE, 16 * MINUTE))]
    )


def test_files_that_name_their_rank_are_told_apart_by_it() -> None:
    refuse_several_runs([recorded(name, (at * 10 * MINUTE, at * 10 * MINUTE + 1), "file name") for at, name in enumerate("ab")])


def test_one_file_or_none_is_one_run() -> None:
    refuse_several_runs([])
    refuse_several_runs([recorded("a", (0, 1))])
