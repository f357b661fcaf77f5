"""Cases from public issue trackers of the kind "wait or wire": long kernels of collectives that mostly wait for a late rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import underlap
from tests.cases.given import CASES, US, Ranks, causes, family, kernel, screen, whole, written
from underlap.report import Report


def decode(offsets: list[int], steps: int = 8) -> Report:
    """Decode steps of four all-reduces: the ranks begin at these offsets, as their host hands out the work."""
    job, now = Ranks(len(offsets)), 0
    for step in range(steps):
        begin = now
        now = job.meet([now + offset + 20 * US for offset in offsets], 30 * US, computed=10 * US)
        for _ in range(3):
            now = job.meet([now + 20 * US] * len(offsets), 30 * US, computed=10 * US)
        job.step(step, begin, now + 50 * US)
        now += 60 * US
    return underlap.analyze(job.timeline())


def test_the_rank_with_long_kernels_is_the_one_that_waits_for_hosts_of_others() -> None:
    case = CASES["D02"]
    assert case["pattern"] == "one rank long, others short"
    offsets = [0, 900 * US, 880 * US, 950 * US]
    assert len(offsets) == case["tp"]
    report = decode(offsets)
    rows = [row for row in report.instances if row.step == report.window.steps_used[1]][: case["tp"]]
    longest = max(rows, key=lambda row: row.duration_ns)
    starts = {row.rank: row.start_ns - longest.start_ns for row in rows}

    assert longest.rank == 0
    assert starts == dict(enumerate(offsets))
    assert (report.late[0].rank, report.late[0].first_cause, report.late[0].straggler) == (3, "launched_late", True)
    assert report.ranks[0].wait_ns is not None
    assert report.ranks[0].wait_ns > 6 * 950 * US > (report.ranks[3].wait_ns or 0)
    assert "Mostly waiting, not transfer" in screen(report)
    assert "rank 3 comes last" in screen(report)
    assert "mostly because: launched late" in screen(report)


@given(
    lateness=st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=2, max_size=6),
    transfer=st.integers(50, 400),
)
def test_the_straggler_time_of_every_rank_is_its_latency_less_the_shortest(lateness: list[list[int]], transfer: int) -> None:
    assert CASES["D06"]["rule"] == "straggler_ms = latency_ms - min_over_ranks(latency_ms)"
    job, now = Ranks(3), job_start(3)
    for late in lateness:
        now = job.meet([now + US + at * US for at in late], transfer * US)
    report = whole(job.timeline())

    by_meeting: dict[int | None, list[tuple[int, int | None]]] = {}
    for row in report.instances:
        by_meeting.setdefault(row.meets, []).append((row.duration_ns, row.wait_ns))
    assert len(by_meeting) == len(lateness)
    for rows in by_meeting.values():
        shortest = min(latency for latency, _ in rows)
        assert [wait for _, wait in rows] == [latency - shortest for latency, _ in rows]
    assert sum(row.wait_ns or 0 for row in report.ranks) == sum(wait or 0 for rows in by_meeting.values() for _, wait in rows)


def job_start(ranks: int) -> int:
    """A moment after the first, with one for each rank."""
    return ranks * US


@pytest.mark.parametrize("name", CASES["D11"]["kernels"])
def test_notify_kernels_are_waiting_and_never_transfer_or_compute(name: str, tmp_path: Path) -> None:
    assert CASES["D11"]["expect_class"] == "wait"
    transfer = "dispatch" if "dispatch" in name else "combine"
    events = [
        kernel("nvjet_tst_128x64", 0, 10, grid=[1, 1, 1]),
        kernel(f"void deep_ep::internode::{name}<4, false>(int const*, int*)", 10, 90),
        kernel(f"void deep_ep::internode::{transfer}<false, 4, false>(int4*, float*)", 100, 40),
    ]
    report = whole(written(tmp_path / "rank0.json", events))
    (rank,) = report.ranks

    (waiting,) = [row for row in report.families if row.collective is None]

    assert (rank.compute_ns, rank.communication_kernels) == (10 * US, 2)
    assert (waiting.wait_ns, waiting.exposed_wait_ns, waiting.exposed_transfer_ns) == (90 * US, 90 * US, 0)
    assert causes(waiting) == {"late_peer": 90 * US}
    assert family(report, transfer).wait_ns is None
    assert "Mostly waiting, not transfer: 69% of the exposed time" in screen(report)


def drifting(ranks: int, layers: int, loss: int, *, steps: int = 4) -> Report:
    """Decode with expert parallelism: the last rank loses `loss` more ns in each layer, and catches up between steps."""
    job, now = Ranks(ranks, description="mesh_ep", collective="dispatch", library="deepep"), ranks * US
    for step in range(steps):
        begin = now
        for layer in range(layers):
            arrivals = [now + 30 * US] * (ranks - 1) + [now + 30 * US + loss * layer]
            now = job.meet(arrivals, 20 * US, computed=15 * US)
        job.step(step, begin - 1, now + 100 * US)
        now += 150 * US
    return underlap.analyze(job.timeline())


def test_dispatch_that_grows_with_the_layer_is_told_as_a_rank_that_drifts() -> None:
    case = CASES["D12"]
    assert case["trend"] == "dispatch grows with layer"
    report = drifting(case["ranks"], 24, 5 * US)
    (note,) = [note for note in report.notes if note.code == "drift_in_step"]

    assert note.text == (
        "rank 15 drifts within the step: the ranks arrive 0.018 ms apart in the first third of the ep dispatch calls of a step, "
        "0.058 in the second and 0.098 in the last (medians), where it comes last in 32 of 32"
    )
    assert report.late[0].rank == case["ranks"] - 1


def test_dispatch_of_equal_skew_in_every_layer_is_no_drift() -> None:
    assert not [note for note in drifting(CASES["D12"]["ranks"], 24, 0).notes if note.code == "drift_in_step"]
