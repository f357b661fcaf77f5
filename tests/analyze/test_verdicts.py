"""From amounts to words: outcomes, what is worth a finding, the sentence to hear first, and what stays unknown.

Cases from public issue trackers are read by their id; the small input that each describes is built here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import underlap
from tests.strategies import timelines
from tests.timelines import COMMUNICATION, COMPUTE, FUSED, Call, Host, Op, build, group, info
from underlap.analyze.verdicts import ADVICE, FINDINGS, FLOOR_SHARE
from underlap.report import FamilyRow, Report
from underlap.timeline import RankInfo, Timeline

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case["test_input"]
    for case in yaml.safe_load((Path(__file__).parents[2].parent / "shared" / "cases.yaml").read_text())
}
TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
MS, S = 1_000_000, 1_000_000_000


def whole(timeline: Timeline) -> Report:
    return underlap.analyze(timeline, window="whole")


def one_rank(*ops: Op, calls: int = 1) -> Report:
    return whole(build(ops, calls=[Call()] * calls))


def family_of(report: Report) -> FamilyRow:
    (family,) = report.families
    assert family.verdict is not None
    return family


def causes_of(report: Report) -> dict[str, int]:
    return {row.cause: row.exposed_ns for row in report.causes}


def promised(report: Report) -> int:
    return sum(row.exposed_ns for row in report.findings)


def exposed(report: Report) -> int:
    return sum(row.exposed_ns for row in report.ranks)


def meeting(
    spans: Sequence[Sequence[tuple[int, int]]],
    *,
    ranks: Sequence[RankInfo] | None = None,
    host: Sequence[Host] = (),
    begin: Sequence[int] = (0, 0),
    description: str = "mesh_dp",
    collectives: tuple[str, str] = ("all_reduce", "all_reduce"),
) -> Timeline:
    """All-reduces of two ranks: per rank the spans of its kernels, each followed by a kernel that waited for it."""
    ops, calls = [], []
    for rank, own in enumerate(spans):
        ops.append(Op(COMPUTE, begin[rank], begin[rank] + 1, launch=begin[rank], rank=rank))
        for at, (start, end) in enumerate(own):
            ops.append(Op(COMMUNICATION, start, end, len(calls), start, rank=rank, lane="20"))
            peer = None if collectives[0] == "all_reduce" else 1 - rank
            calls.append(Call(collectives[rank], 8, 0, at, rank=rank, peer=peer))
            ops.append(Op(COMPUTE, end + 10, end + 20, launch=begin[rank], rank=rank))
        # As much compute as there is communication, so that the link is not what decides.
        after = max(end for _, end in own) + 20
        ops.append(Op(COMPUTE, after, after + sum(end - start for start, end in own), launch=begin[rank], rank=rank))
    return build(ops, calls=calls, groups=[group(0, 1, description=description)], ranks=ranks, host=host)


def test_without_communication_nothing_is_said() -> None:
    report = whole(build([Op(COMPUTE, 0, 10)]))

    assert (report.families, report.findings, report.headline, report.coverage) == ([], [], None, None)


def test_a_call_without_duration_transfers_nothing() -> None:
    report = one_rank(Op(COMPUTE, 0, 10), Op(COMMUNICATION, 5, 5, 0, lane="20"))

    assert family_of(report).verdict.outcome == "nothing transferred"
    assert report.headline is None


@pytest.mark.parametrize(
    ("hidden", "outcome"),
    [(0, "exposed"), (10, "exposed"), (11, "partly hidden"), (400, "partly hidden"), (989, "partly hidden"), (990, "hidden")],
)
def test_outcome_is_by_the_hidden_and_the_exposed_share_of_one_percent(hidden: int, outcome: str) -> None:
    report = one_rank(Op(COMPUTE, 0, hidden, launch=-9), Op(COMMUNICATION, 0, 1000, 0, lane="20"), Op(COMPUTE, 1000, 2000))

    assert family_of(report).verdict.outcome == outcome


def test_all_hidden_has_no_cause_and_nothing_to_gain() -> None:
    report = one_rank(Op(COMPUTE, 0, 100), Op(COMMUNICATION, 10, 90, 0, lane="20"))
    verdict = family_of(report).verdict

    assert (verdict.outcome, verdict.cause, verdict.causes, verdict.evidence) == ("hidden", None, [], None)
    assert (verdict.recoverable_ns, verdict.would_change, verdict.price) == (None, None, None)
    assert report.findings == []
    assert report.headline == "All communication is hidden: there is nothing to gain from hiding more."


def test_a_kernel_that_also_computes_is_fused_and_neither_hidden_nor_exposed() -> None:
    report = one_rank(Op(FUSED, 0, 100, 0))

    assert family_of(report).verdict.outcome == "fused"
    assert report.headline == (
        "All communication is inside fused kernels, which compute as well (100.0% of the window): "
        "nothing is left to hide, and no overlap is missing."
    )


def test_communication_under_a_fused_kernel_is_hidden() -> None:
    report = one_rank(Op(FUSED, 0, 100), Op(COMMUNICATION, 0, 100, 0, lane="20"))

    assert family_of(report).verdict.outcome == "hidden"


def test_the_verdict_names_the_event_it_rests_on() -> None:
    ops = [Op(COMMUNICATION, 0, 100, 0, -5, lane="20", name="nccl"), Op(COMPUTE, 115, 150, launch=-4, name="needs it")]
    verdict = family_of(one_rank(*ops)).verdict

    assert verdict.evidence is not None
    assert (verdict.evidence.name, verdict.evidence.source_row) == ("needs it", 1)
    assert (verdict.evidence.rank, verdict.evidence.source_file) == (0, "rank0.json")
    assert (verdict.cause, verdict.recoverable_ns) == ("dependent", 100)
    assert (verdict.would_change, verdict.price) == (ADVICE["dependent"].would_change, ADVICE["dependent"].price)


def test_of_one_rank_waiting_bytes_and_dependence_are_listed_as_unknown() -> None:
    ops = [Op(COMMUNICATION, 0, 100, 0, -5, lane="20"), Op(COMPUTE, 115, 150, launch=-4)]

    assert [line.partition(":")[0] for line in family_of(one_rank(*ops)).verdict.unknown] == [
        "how much of it is waiting for a late peer",
        "its bytes",
        "whether the next compute really needs its result",
    ]


def test_of_matched_ranks_with_bytes_only_the_dependence_is_unknown() -> None:
    (line,) = family_of(whole(meeting([[(100, 200)], [(100, 200)]]))).verdict.unknown

    assert "shown by timing only" in line


def test_of_several_unmatched_ranks_the_notes_say_why() -> None:
    ops = [Op(COMMUNICATION, 0, 100, rank, -5, rank=rank, lane="20") for rank in (0, 1)]
    report = whole(build(ops, calls=[Call(rank=0), Call("all_gather", rank=1)]))

    for family in report.families:
        assert family.verdict is not None
        assert "how much of it is waiting for a late peer: see the notes on matching" in family.verdict.unknown


def test_forty_percent_hidden_is_reported() -> None:
    case = CASES["E07"]
    nccl = 1000
    hidden, compute = nccl * case["overlap_pct"] // 100, round(nccl * case["compute_over_nccl"])
    ops = [Op(COMPUTE, 0, hidden, launch=-9), Op(COMMUNICATION, 0, nccl, 0, -9, lane="20")]
    report = one_rank(*ops, Op(COMPUTE, nccl, nccl + compute - hidden, launch=-8))
    (finding,) = report.findings

    assert case["expect"] == "reported"
    assert family_of(report).verdict.outcome == "partly hidden"
    assert (finding.cause, finding.exposed_ns) == ("too_little_compute", nccl - hidden)
    assert finding.share_of_window == (nccl - hidden) / report.ranks[0].span_ns


@given(share=st.integers(1, 60))
def test_findings_begin_at_two_percent_of_the_window_and_causes_at_nothing(share: int) -> None:
    assert CASES["E07"]["floor_share"] == FLOOR_SHARE
    report = one_rank(Op(COMMUNICATION, 0, share, 0, -9, lane="20"), Op(COMPUTE, share, 1000, launch=-9))

    assert causes_of(report) == {"dependent": share}
    assert [finding.exposed_ns for finding in report.findings] == ([share] if share >= 20 else [])
    assert report.headline is not None
    assert report.headline.endswith("there is little to gain from hiding more.") == (share < 20)


def test_two_findings_never_promise_the_same_microsecond() -> None:
    case = CASES["E05"]
    total, straggling = (round(claim * MS) for claim in case["claims_ms"])
    assert case["overlap_ms"] == 0
    assert sum(case["claims_ms"]) > case["expect_total_le_ms"]
    start, late = 1000, 1000 + straggling
    report = whole(meeting([[(100, 200), (start, start + total)], [(100, 200), (late, start + total)]]))

    assert report.ranks[0].exposed_ns == round(case["nccl_only_ms"] * MS) + 100
    assert causes_of(report) == {"late_peer": straggling, "dependent": 2 * (total - straggling) + 200}
    assert straggling <= promised(report) <= exposed(report)
    assert causes_of(report)["late_peer"] + report.ranks[0].exposed_transfer_ns - 100 <= case["expect_total_le_ms"] * MS


@settings(max_examples=60)
@given(timeline=timelines())
def test_findings_are_few_and_promise_at_most_the_exposed_time(timeline: Timeline) -> None:
    report = whole(timeline)

    assert len(report.findings) <= FINDINGS
    # A slice shared by families leaves each remainder to one of them, a few ns off the family's share.
    assert promised(report) <= exposed(report) + 2 * len(report.families) * len(timeline.ops)
    assert [row.exposed_ns for row in report.findings] == sorted((row.exposed_ns for row in report.findings), reverse=True)
    assert all(row.share_of_window >= FLOOR_SHARE for row in report.findings)


def test_communication_on_the_compute_stream_is_the_first_finding_among_many() -> None:
    """All of it on the one stream, 40 % of the span, and hundreds of small rows beside it."""
    ops, calls = [], []
    for at in range(400):
        begin = 1000 * at
        ops.append(Op(COMPUTE, begin, begin + 600, launch=-9))
        ops.append(Op(COMMUNICATION, begin + 600, begin + 1000, at, -9))
        calls.append(Call("all_gather" if at % 2 else "reduce_scatter"))
    ops.append(Op(COMPUTE, 400_000, 400_100, launch=-9))
    report = whole(build(ops, calls=calls))

    assert len(report.findings) == 2
    assert {row.cause for row in report.findings} == {"serialized_or_dependent"}
    assert sum(row.share_of_window for row in report.findings) == pytest.approx(0.4, rel=0.01)
    assert "a stream of its own for the communication" in (report.findings[0].would_change or "")
    assert "stands behind it in the same lane" in (report.headline or "")


def test_at_most_five_of_many_findings_are_kept_largest_first() -> None:
    ops, calls, at = [], [], 0
    for number, name in enumerate(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather")):
        length = 100 + number
        ops += [
            Op(COMMUNICATION, at, at + length, number, at, lane="20"),
            Op(COMPUTE, at + length + 15, at + length + 20, launch=-9),
        ]
        calls.append(Call(name))
        at += length + 30
    report = whole(build(ops, calls=calls))

    assert len(report.families) == 7
    assert [row.collective for row in report.findings] == ["gather", "reduce", "broadcast", "all_to_all", "reduce_scatter"]


def test_a_host_bound_window_hears_that_hiding_gains_almost_nothing() -> None:
    ops = [Op(COMPUTE, 0, 10, launch=-1), Op(COMMUNICATION, 100, 150, 0, 100, lane="20"), Op(COMPUTE, 1000, 1010, launch=999)]
    report = one_rank(*ops)

    assert report.headline == (
        "The host is the limit: 93% of the window is idle. 100% of the communication is exposed (5.0% of the window), "
        "for 100% of that the host had not submitted the compute: hiding more communication gains almost nothing."
    )


def test_late_launches_in_a_busy_window_are_not_called_the_limit() -> None:
    ops = [
        Op(COMPUTE, 0, 900, launch=-1),
        Op(COMMUNICATION, 900, 1000, 0, 900, lane="20"),
        Op(COMPUTE, 1000, 1900, launch=1000),
    ]
    headline = one_rank(*ops).headline

    assert headline is not None
    assert headline.startswith("100% of the exposed communication (5.3% of the window is exposed): the host had not submitted")


def test_the_headline_of_one_rank_admits_that_waiting_is_unknown() -> None:
    headline = one_rank(Op(COMMUNICATION, 0, 100, 0, -5, lane="20"), Op(COMPUTE, 115, 150, launch=-4)).headline

    assert headline == (
        "100% of the exposed communication (66.7% of the window is exposed): the next compute starts when it is over: "
        "its result is needed at once (by timing alone). How much of it is waiting for other ranks is not known; "
        "the traces of the others would tell."
    )


def test_the_headline_of_matched_dependent_ranks_has_no_such_reserve() -> None:
    headline = whole(meeting([[(100, 200)], [(100, 200)]])).headline

    assert headline is not None
    assert "its result is needed at once" in headline
    assert "not known" not in headline


def test_the_headline_tells_the_late_entry_apart_from_other_waiting() -> None:
    headline = underlap.analyze(TRACES / "dlrm_v100_8ranks", window="whole").headline or ""

    assert "97% of the exposed time is waiting for late ranks, 56% at their entry into the recording" in headline
    assert "rank 7 is waited for longest in 1 of 1 steps" in headline
    assert "at their entry" not in (underlap.analyze(TRACES / "nsys_2gpu" / "mfu_2gpu_before.sqlite").headline or "")


def test_a_pipeline_that_waits_hears_of_its_bubble() -> None:
    spans = [[(1 * MS, 2 * MS), (20 * MS, 100 * MS)], [(1 * MS, 2 * MS), (95 * MS, 100 * MS)]]
    report = whole(meeting(spans, description="mesh_pp", collectives=("send", "recv")))

    assert causes_of(report)["bubble"] == 75 * MS
    assert (report.headline or "").startswith("Mostly pipeline bubble: 86% of the exposed time")


def test_an_excess_of_kernel_time_in_one_all_reduce_is_waiting() -> None:
    case = CASES["D01"]
    assert case["expect"] == "wait_in_collective"
    excess = round((case["v1_sum_ms"] - case["v1_with_v0_allreduce_ms"]) * MS)
    begin, wire = round(15 * MS), round((case["v1_with_v0_allreduce_ms"] - 15) * MS)
    end = begin + excess + wire
    report = whole(meeting([[(100, 200), (begin, end)], [(100, 200), (begin + excess, end)]]))
    late, *_ = report.late

    assert report.ranks[0].wait_ns == report.ranks[0].exposed_wait_ns == excess
    assert report.ranks[0].exposed_transfer_ns == wire + 100
    assert (late.rank, late.caused_wait_ns) == (1, excess)
    assert (report.headline or "").startswith("Mostly waiting, not transfer:")


def test_waiting_that_swaps_sides_has_no_fixed_straggler() -> None:
    case = CASES["D04"]
    first = [round(case["iter_a"][f"gpu{gpu}_s"] * S) for gpu in (1, 2)]
    second = [round(case["iter_b"][f"gpu{gpu}_s"] * S) for gpu in (1, 2)]
    ends = (2 * S, 4 * S)
    spans = [
        [(100, 200), *((end - length, end) for end, length in zip(ends, own, strict=True))]
        for own in zip(first, second, strict=True)
    ]
    marks = [
        Host(f"ProfilerStep#{step}", step * 2 * S - 1, step * 2 * S + 2 * S - 1, rank=rank) for step in (0, 1) for rank in (0, 1)
    ]
    report = whole(meeting(spans, host=marks))
    transfer = round(case["expect"]["transfer_s"] * S)

    assert case["expect"]["fixed_straggler"] is False
    assert [row.exposed_transfer_ns for row in report.ranks] == [2 * transfer + 100] * 2
    assert [row.wait_ns for row in report.ranks] == [S - transfer] * 2
    assert {(row.rank, row.times_last, row.straggler) for row in report.late} == {(0, 1, False), (1, 1, False)}


def two_hosts() -> list[RankInfo]:
    return [info(0), dataclasses.replace(info(1), clock=1)]


def test_the_skew_of_the_first_collective_is_entry_and_not_the_steady_state() -> None:
    case = CASES["D13"]
    long, wire, offset = case["nccl_ms"] * MS, case["transfer_us"] * 1000, 300_000
    steady = [(20 * MS + at * MS, 20 * MS + at * MS + wire) for at in range(10)]
    mine = [(1 * MS, 1 * MS + long), *steady]
    other = [(1 * MS + long - wire, 1 * MS + long), *steady]
    spans = [mine, [(start + offset, end + offset) for start, end in other]]
    report = whole(meeting(spans, ranks=two_hosts(), begin=(0, offset + long - wire)))

    assert case["expect"] == "first_collective_is_skew"
    assert causes_of(report) == {"window_entry": long - wire, "dependent": 2 * 11 * wire}
    assert report.late[0].caused_wait_ns == 0
    assert not report.late[0].straggler
    assert abs(report.clocks[0].offset_ns - report.clocks[1].offset_ns) == offset


def test_clocks_that_are_seconds_apart_do_not_become_waiting() -> None:
    """Hosts 11.56 s apart, a rank that comes 1.60 ms late: the waiting is the skew, not the offset."""
    offset, skew, wire = 11_560 * MS, 1_600_000, 200_000
    mine, other = [(1000, 2000)], [(1000, 2000)]
    for at in range(1, 9):
        begin = at * 10 * MS
        mine.append((begin, begin + skew + wire))
        other.append((begin + skew, begin + skew + wire))
    spans = [mine, [(start + offset, end + offset) for start, end in other]]
    report = whole(meeting(spans, ranks=two_hosts(), begin=(0, offset)))

    assert causes_of(report)["late_peer"] == report.ranks[0].wait_ns == 8 * skew
    assert report.ranks[1].wait_ns == 0
    assert abs(report.clocks[0].offset_ns - report.clocks[1].offset_ns) == offset
    assert [row.clock_uncertainty_ns is not None for row in report.ranks] == [True, True]
