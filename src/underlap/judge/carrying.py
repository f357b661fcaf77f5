"""Whether simulated figures of a deployment hold what a claim says of its own: arithmetic on figures, no simulation here.

A claim carries over where every point of the deployment has the claim's figure, or a better one, to within the model's error.
It can only be told where the model gives the claim's figure under the claim's own conditions, and where the figure is larger
than the error. Everything else is not decidable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from underlap.claim import METRICS, Claim, Value, numbers

SPEEDUPS = ("end_to_end_speedup", "end_to_end_slowdown", "forward_speedup")
SHARES = ("hidden_share", "exposed_share", "communication_share")
SIMULATED = (*SPEEDUPS, *SHARES)
"""The metrics that a simulated step has."""
ERRORS = {"x": 0.05, "%": 10.0}
"""By unit, in points of it: how far a simulated figure may be from a measured one before it counts as another."""
ERROR_FROM = (
    "a stated band; most published speed-ups of docs/accuracy.md are simulated to within it, some are up to 0.19 x off; "
    "shares have not been compared"
)
_NEUTRAL = {"end_to_end_speedup": 1.0, "end_to_end_slowdown": 1.0, "forward_speedup": 1.0, "hidden_share": 0.0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A claim's figure in the unit that is compared, and what of a deployment would hold it."""

    unit: str
    low: float | None
    high: float | None
    least: float | None
    """What a deployment needs, before the model's error: at least this. None: no limit."""
    most: float | None
    neutral: float | None
    """No effect at all. None where a figure has no direction."""

    @property
    def error(self) -> float:
        """In points of `unit`."""
        return ERRORS[self.unit]

    def held(self, figure: float) -> bool:
        """Whether a figure is the claim's, or better, to within the error."""
        above = self.least is None or figure >= self.least - self.error
        return above and (self.most is None or figure <= self.most + self.error)

    def reproduced(self, low: float, high: float) -> bool:
        """Whether figures from low to high can be the claim's, to within the error."""
        above = self.low is None or high >= self.low - self.error
        return above and (self.high is None or low <= self.high + self.error)

    @property
    def lost_in_error(self) -> bool:
        """Whether no effect at all would be within the error too: the model cannot tell the claim from nothing."""
        return self.neutral is not None and self.held(self.neutral)


@dataclasses.dataclass(frozen=True, slots=True)
class Simulated:
    """One point of a sweep."""

    open: dict[str, Any]
    """Values of the open conditions."""
    figure: float | None
    why: str
    """Why there is no figure; else what to know of it."""


def claimed(claim: Claim) -> Claimed | str:
    """The figure, or why a simulation cannot be compared with it."""
    metric = claim.metric
    if metric is None:
        return "metric is not stated; would do: one of " + ", ".join(SIMULATED)
    if metric not in SIMULATED:
        return f"metric {metric} ({METRICS[metric].meaning}) is none that a simulated step has: {', '.join(SIMULATED)}"
    if claim.value is None:
        return "value is not stated; would do: the figure that is claimed"
    low, high = _ends(claim.value)
    if metric in SHARES:
        return _wanted("%", low, high, _NEUTRAL.get(metric))
    turns = _turns(claim)
    at_low = [] if low is None else [turn(low) for turn in turns]
    at_high = [] if high is None else [turn(high) for turn in turns]
    if metric == "end_to_end_slowdown":
        at_low, at_high = at_high, at_low
    return _wanted("x", min(at_low, default=None), max(at_high, default=None), 1.0)


def _ends(value: float | Value) -> tuple[float | None, float | None]:
    if isinstance(value, Value):
        if value.at_least is not None or value.at_most is not None:
            return value.at_least, value.at_most
        if value.up_to is not None:
            return value.up_to, value.up_to
    found = numbers(value)
    return min(found), max(found)


def _turns(claim: Claim) -> list[Callable[[float], float]]:
    """What makes a ratio of times (without over with) of the claim's figure; two where it does not say of what it is a share."""
    slower = claim.metric == "end_to_end_slowdown"
    if claim.unit != "%":
        return [(lambda ratio: 1 / ratio) if slower else (lambda ratio: ratio)]
    of_time: Callable[[float], float] = (lambda more: 1 / (1 + more / 100)) if slower else (lambda less: 1 / (1 - less / 100))
    of_rate: Callable[[float], float] = (lambda less: 1 - less / 100) if slower else (lambda more: 1 + more / 100)
    if claim.of == "baseline_time":
        return [of_time]
    return [of_rate] if claim.of == "baseline_rate" else [of_rate, of_time]


def _wanted(unit: str, low: float | None, high: float | None, neutral: float | None) -> Claimed:
    """A gain is also held by a larger one, a loss by a worse one; what has no direction only by itself."""
    least, most = low, high
    if neutral is not None and low is not None and low > neutral:
        most = None
    elif neutral is not None and high is not None and high < neutral:
        least = None
    return Claimed(unit=unit, low=low, high=high, least=least, most=most, neutral=neutral)


def nearest(points: Sequence[Simulated], target: Claimed) -> Simulated | None:
    """The point whose figure comes nearest to the claim's; the first of equals."""
    known = [point for point in points if point.figure is not None]
    return min(known, key=lambda point: _distance(point.figure or 0.0, target), default=None)


def _distance(figure: float, target: Claimed) -> float:
    below = 0.0 if target.low is None else max(target.low - figure, 0.0)
    return below + (0.0 if target.high is None else max(figure - target.high, 0.0))


def deciding(points: Sequence[Simulated], names: dict[str, str], good: Callable[[float], bool]) -> tuple[str, str] | None:
    """(the values of the one condition at which `good` holds, those at which it does not), where one condition decides.

    >>> points = [Simulated({"batch": 1}, 0.9, ""), Simulated({"batch": 8}, 1.2, ""), Simulated({"batch": 64}, 1.3, "")]
    >>> deciding(points, {"batch": "batch"}, lambda figure: figure > 1)
    ('batch >= 8', 'batch = 1')
    """
    known = [point for point in points if point.figure is not None]
    for name in dict.fromkeys(key for point in known for key in point.open):
        by_value: dict[Any, set[bool]] = {}
        for point in known:
            by_value.setdefault(point.open[name], set()).add(good(point.figure or 0.0))
        sides = [[value for value, seen in by_value.items() if seen == {side}] for side in (True, False)]
        if all(sides) and all(len(seen) == 1 for seen in by_value.values()):
            return _words(names[name], sides[0], sides[1]), _words(names[name], sides[1], sides[0])
    return None


def _words(name: str, mine: list[Any], others: list[Any]) -> str:
    if len(mine) == 1:
        return f"{name} = {mine[0]}"
    if all(isinstance(value, (int, float)) for value in (*mine, *others)):
        if min(mine) > max(others):
            return f"{name} >= {min(mine):g}"
        if max(mine) < min(others):
            return f"{name} <= {max(mine):g}"
    return f"{name} of {', '.join(map(str, mine))}"
