"""A Trial on the screen, from hand-written ones: what went over links beside what was planned."""

from __future__ import annotations

import io
from typing import Any

import pytest

from underlap.render.trial import print_trial
from underlap.trial import RunBytes, Slowdown, Trial, Variant, WireBytes


def screen(wire: WireBytes | None, **options: Any) -> list[str]:
    variant = Variant(
        name="baseline",
        policy="none",
        step_ns=[2_000_000, 1_000_000, 3_000_000],
        host_issue_share=0.05,
        bytes_by_axis=[RunBytes(group="tp", collective="all_reduce", planned_bytes=1000, counted_bytes=1000)],
        control=[],
        unmatched_keys=0,
        loss=None,
        refused=[],
        wire=wire,
    )
    trial = Trial(model="m", layout="tp=2", workload="w", ranks=2, variants=[variant], baseline=None, **options)  # type: ignore[arg-type]  # options of several types; the Report is not looked at
    file = io.StringIO()
    print_trial(trial, file)
    return file.getvalue().splitlines()


def wire(planned: int, ratio: float | None) -> WireBytes:
    return WireBytes(
        planned_bytes=planned, sent_bytes=[3_000_000, 1_010_000, 1_020_000], received_bytes=[], ratio=ratio, barrier_bytes=288
    )


def test_without_a_fabric_nothing_is_said_of_links() -> None:
    lines = screen(None)
    assert not any("link" in line or "wire" in line or "priority" in line for line in lines)


def test_bytes_on_the_wire_stand_beside_the_planned_ones_in_one_line() -> None:
    lines = screen(wire(1_000_000, 1.02), fabric="500mbit,rank1=250mbit")
    assert "links 500mbit,rank1=250mbit, priority default" in lines
    assert "  on the wire: 1.02 MB per step without headers, all ranks, 1.0200 of the planned 1.00 MB" in lines


def test_a_plan_that_sends_nothing_has_no_ratio() -> None:
    lines = screen(wire(0, None), fabric="unshaped")
    assert "  on the wire: 1.02 MB per step without headers, all ranks, nothing planned" in lines


@pytest.mark.parametrize("priority", ["communication", "compute"])
def test_a_priority_over_loopback_is_said(priority: str) -> None:
    assert f"links as loopback has them, priority {priority}" in screen(None, priority=priority)


def slowdown(word: str, ratio: float | None, cost_ns: int | None, reason: str | None = None) -> Slowdown:
    low, high = (None, None) if ratio is None else (ratio - 0.1, ratio + 0.1)
    return Slowdown(
        word=word,
        reason=reason,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        cost_ns=cost_ns,
        cost_low_ns=cost_ns,
        cost_high_ns=cost_ns,
    )


def test_what_compute_loses_beside_communication_is_one_line() -> None:
    lines = screen(None, slowdown=slowdown("slower", 1.25, 12_340_000))
    assert "compute beside communication: slower, 1.25 times as long as alone (1.15 to 1.35): 12.34 ms of a step" in lines
    assert "  with the policy, mean per rank" in lines


def test_a_slowdown_that_is_not_established_has_no_cost() -> None:
    lines = screen(None, slowdown=slowdown("not established", 1.25, None))
    assert "compute beside communication: not established, 1.25 times as long as alone (1.15 to 1.35)" in lines


def test_where_nothing_can_be_compared_the_reason_is_said() -> None:
    lines = screen(None, slowdown=slowdown("unknown", None, None, "nothing ran alone"))
    assert "compute beside communication: unknown: nothing ran alone" in lines
