"""What was planted, what the analyzer found and promised, and what removing the cause did: one `Outcome` per scenario.

Found and promised come from one recording with the cause alone: the calmest by the clock, whose steps differ least, as a single
step that a neighbor disturbed is in the recording's sum and not in a median. Planted is what the program's own clock saw in it,
and measured the change of the median step between the turns with and without the cause. A scenario whose turns spread too far is
run again, twice at most; what still spreads is undecided, which is neither right nor wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import underlap
from tests.real import launch
from underlap.report import Report

TURNS = 4
ATTEMPTS = 3
MOST_SPREAD = 0.1
TOLERANCE = 0.15


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the analyzer should say of a scenario."""

    causes: tuple[str, ...]
    """The cause of most of the exposed time of the all-reduces: any of these."""
    lever: str
    """The promise that removing it is held to: a lever, or a ceiling (if_independent, if_nothing_sent)."""
    late: str | None = None
    """Why rank 1 is late, where that is what was planted."""


EXPECTED = {
    "sleeping_rank": Expected(("late_peer",), "stragglers", late="launched_late"),
    "extra_compute": Expected(("late_peer",), "stragglers", late="more_compute"),
    "late_launch": Expected(("late_peer",), "stragglers", late="launched_late"),
    "late_submission": Expected(("late_launch",), "host"),
    "dependent": Expected(("dependent",), "if_independent"),
    "serialized": Expected(("serialized", "serialized_or_dependent"), "if_independent"),
    # The transfer exceeds all compute there is, so that on a link of its own no schedule could hide it.
    "too_short": Expected(("too_little_compute", "fabric_bound"), "if_nothing_sent"),
    "queued": Expected(("queued_behind",), "queue"),
    "mixture": Expected(("late_peer",), "stragglers", late="launched_late"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Times in ms per step."""

    scenario: str
    cause: str
    """As named, with the reason of lateness where that was planted."""
    cause_right: bool
    planted: float
    found: float
    lever: str
    promised: tuple[float, float] | None
    """None where the promise is unknown."""
    step: float
    """The median step with the cause."""
    measured: float
    """By how much the median step is shorter without it."""
    spread: float
    """Of the steps: the middle half over the median, the larger of both variants; or how far the recording is from all."""
    attempts: int

    @property
    def decided(self) -> bool:
        """Whether the turns agree well enough to say anything."""
        return self.spread <= MOST_SPREAD

    @property
    def amount_right(self) -> bool:
        """Whether what was found is near what was planted."""
        return abs(self.found - self.planted) <= TOLERANCE * self.planted

    @property
    def high_off(self) -> float | None:
        """(high end - measured) / measured."""
        return None if self.promised is None or not self.measured else self.promised[1] / self.measured - 1

    @property
    def kept(self) -> str:
        """How the promise was kept: `inside` its range, `within 15 %` of its nearer end, or `no`."""
        if self.promised is None:
            return "no promise"
        low, high = self.promised
        if low <= self.measured <= high:
            return "inside"
        off = max(low - self.measured, self.measured - high)
        return "within 15 %" if off <= TOLERANCE * abs(self.measured) else "no"


def settle(folder: Path, scenarios: list[str], most_spread: float = MOST_SPREAD) -> dict[str, Outcome]:
    """All scenarios, those that spread too far again."""
    found: dict[str, Outcome] = {}
    left = scenarios
    for attempt in range(1, ATTEMPTS + 1):
        launched = launch.launch(folder / f"launch{attempt}", left, TURNS)
        found.update({name: outcome(launched, name, attempt) for name in left})
        left = [name for name in left if found[name].spread > most_spread]
        if not left:
            break
    return {name: found[name] for name in scenarios}


def outcome(launched: launch.Launched, name: str, attempt: int = 1) -> Outcome:
    """What one scenario of a launch came to."""
    expected, seen = EXPECTED[name], launched.seen[name]
    steps = {variant: _steps(seen, variant) for variant in ("planted", "removed")}
    calmest = int(np.ptp(steps["planted"], axis=1).argmin())
    report = underlap.analyze(launched.out / f"{name}_planted_{calmest}")
    cause, right, found = _named(report, expected)
    low_high = _promise(report, expected.lever)
    count = len(report.window.steps_used)
    return Outcome(
        scenario=name,
        cause=cause,
        cause_right=right,
        planted=(_clock(seen, expected, "planted", calmest) - _clock(seen, expected, "removed")) / 1e6,
        found=found / count / 1e6,
        lever=expected.lever,
        promised=None if low_high is None else (low_high[0] / count / 1e6, low_high[1] / count / 1e6),
        step=_median(steps["planted"]) / 1e6,
        measured=(_median(steps["planted"]) - _median(steps["removed"])) / 1e6,
        spread=max(*(_spread(own) for own in steps.values()), _off(steps["planted"], calmest)),
        attempts=attempt,
    )


def _steps(seen: list[dict[str, Any]], variant: str) -> np.ndarray:
    """Lengths of the steps, of the rank that took longer. Shape (turns, steps)."""
    lengths: np.ndarray = np.array([[block["steps_ns"] for block in of[variant]] for of in seen]).max(axis=0)
    return lengths


def _clock(seen: list[dict[str, Any]], expected: Expected, variant: str, turn: int | None = None) -> float:
    """The median that the clocks saw, in one turn or in all: of rank 1 where its lateness was planted, else the mean of both."""
    medians = []
    for rank in (1,) if expected.late else (0, 1):
        blocks = seen[rank][variant] if turn is None else [seen[rank][variant][turn]]
        values = [value for block in blocks for value in block["planted_ns"]]
        medians.append(_median(np.array(values)) if values else 0.0)
    return float(np.mean(medians))


def _named(report: Report, expected: Expected) -> tuple[str, bool, float]:
    """(the cause named first, whether that is what was planted, its amount in ns): of the all-reduces, which are all there is."""
    (family,) = [row for row in report.families if row.collective == "all_reduce"]
    cause = (family.verdict.cause if family.verdict else None) or "none"
    amount = sum(row.exposed_ns for row in report.causes if row.cause in expected.causes) / len(report.ranks)
    if expected.late is None:
        return cause, cause in expected.causes, amount
    late = report.late[0] if report.late else None
    why = f"{cause}: rank {late.rank}, {late.first_cause}" if late else cause
    right = late is not None and cause in expected.causes and (late.rank, late.first_cause) == (1, expected.late)
    return why, right, late.causes.get(expected.late, 0) if late else 0.0


def _promise(report: Report, lever: str) -> tuple[int, int] | None:
    rows = [*report.levers, report.if_independent, report.if_nothing_sent]
    row = next((row for row in rows if row is not None and row.lever == lever), None)
    return None if row is None or row.at_least_ns is None or row.at_most_ns is None else (row.at_least_ns, row.at_most_ns)


def _median(values: np.ndarray) -> float:
    return float(np.median(values))


def _spread(steps: np.ndarray) -> float:
    low, high = np.percentile(steps, [25, 75])
    return float(high - low) / _median(steps)


def _off(steps: np.ndarray, turn: int) -> float:
    """How far the mean step of the recording that the promise comes from is from the median of all."""
    return abs(float(steps[turn].mean()) / _median(steps) - 1)


HEAD: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("scenario", lambda one: one.scenario),
    ("cause named first", lambda one: f"{one.cause}{'' if one.cause_right else ' (wrong)'}"),
    ("planted", lambda one: f"{one.planted:.2f}"),
    ("found", lambda one: f"{one.found:.2f}{'' if one.amount_right else ' (wrong)'}"),
    ("lever", lambda one: one.lever),
    ("promised", lambda one: "unknown" if one.promised is None else _range(*one.promised)),
    ("step", lambda one: f"{one.step:.2f}"),
    ("measured change", lambda one: f"{one.measured:.2f}"),
    ("spread %", lambda one: f"{100 * one.spread:.1f}"),
    ("runs", lambda one: str(one.attempts)),
    ("kept?", lambda one: one.kept if one.decided else f"undecided ({one.kept})"),
    ("high end off by %", lambda one: "" if one.high_off is None else f"{100 * one.high_off:+.0f}"),
)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a Markdown table; times in ms per step."""
    lines = [[title for title, _ in HEAD], ["---"] * len(HEAD), *([cell(one) for _, cell in HEAD] for one in outcomes)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("|--- |", "|---|")


def _range(low: float, high: float) -> str:
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
