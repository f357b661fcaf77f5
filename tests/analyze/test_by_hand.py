"""The causes of recorded traces against those that an engineer read by hand: sums within 10 %, and the first sentence.

The expected figures are read from the table in the traces' README, which says how far to trust them.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "accuracy.py"))
SENTENCE = "the sentence its owner should hear first"


def report_of(name: str) -> Any:
    return TOOL["report"](name)


def headline_of(name: str) -> str:
    text = report_of(name).headline
    assert text is not None
    return text


def percent_in(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_every_row_of_the_table_by_hand_is_compared() -> None:
    assert {figure.row for figure in TOOL["BY_HAND"]} == set(TOOL["causes_table"]())


@pytest.mark.parametrize("figure", TOOL["BY_HAND"], ids=lambda figure: f"{figure.trace}, {figure.what}")
def test_causes_sum_to_the_figure_read_by_hand(figure: Any) -> None:
    assert TOOL["product_ms"](figure.trace, figure.causes) == pytest.approx(TOOL["by_hand_ms"](figure), rel=0.1)


def test_no_exposed_time_of_ddp_mi300x_blames_the_host() -> None:
    # By hand: dependent through copies that follow 15 us later; a rule of a few microseconds would find nothing.
    assert report_of("ddp_mi300x").causes[0].cause == "dependent"
    assert TOOL["product_ms"]("ddp_mi300x", TOOL["HOST"]) == 0


def test_exposed_transfer_of_dlrm_is_what_is_left_beside_waiting() -> None:
    left = sum(row.exposed_transfer_ns for row in report_of("dlrm").ranks) / 1e6

    assert left == pytest.approx(TOOL["product_ms"]("dlrm", TOOL["TRANSFER"]), abs=1e-6)


@pytest.mark.parametrize("name", ["ddp_a100", "vllm_tp8_b200"])
def test_owner_of_a_host_bound_trace_hears_that_hiding_gains_nothing(name: str) -> None:
    assert headline_of(name).startswith("The host is the limit:")
    assert headline_of(name).endswith("hiding more communication gains almost nothing.")


def test_headline_of_vllm_has_the_idle_share_read_by_hand() -> None:
    by_hand = percent_in(TOOL["causes_table"]()["vllm_tp8_b200"][SENTENCE], r"(\d+) % of the span is idle")

    assert by_hand == percent_in(headline_of("vllm_tp8_b200"), r"(\d+)% of the window is idle")
    assert "100% of the communication is exposed" in headline_of("vllm_tp8_b200")


def test_headline_of_recsys_asks_for_more_independent_compute() -> None:
    assert "the independent compute beside it ran out" in headline_of("recsys_a100")


def test_headline_of_dlrm_is_the_late_host_of_a_rank_and_no_straggler() -> None:
    assert headline_of("dlrm").startswith("Mostly waiting, not transfer: 97%")
    assert "rank 7 comes last in 5 of 8, mostly because: launched late (not called a straggler" in headline_of("dlrm")
    # By hand: the culprit shows the least exposed time.
    assert min(report_of("dlrm").ranks, key=lambda row: row.exposed_ns).rank == report_of("dlrm").late[0].rank == 7


@pytest.mark.parametrize(("name", "rank"), [("nsys before", 1), ("nsys after", 0)])
def test_late_side_of_the_nsight_pair_changes_and_its_host_is_why(name: str, rank: int) -> None:
    first = report_of(name).late[0]

    assert (first.rank, first.first_cause, first.straggler) == (rank, "launched_late", False)


def test_nothing_across_ranks_is_claimed_of_sampled_traces() -> None:
    found = report_of("recsys_sampled")

    assert [row.wait_ns for row in [*found.ranks, *found.families]] == [None] * (len(found.ranks) + len(found.families))
    assert found.late == []
    assert not {row.cause for row in found.causes} & set(TOOL["WAITING"])
    assert "How much of it is waiting for other ranks is not known" in (found.headline or "")
    (note,) = [note.text for note in found.notes if note.code == "calls_unmatched"]
    assert "the trace does not say their group, and the ranks do not make the same calls" in note
    assert all(any("waiting for a late peer" in line for line in row.verdict.unknown) for row in found.families)
