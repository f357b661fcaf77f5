"""Whether two claims may be compared: condition by condition, and no two percentages of different things side by side."""

from __future__ import annotations

from underlap.claim import METRICS, UNITS, Claim, written
from underlap.judge.standing import stated
from underlap.judgement import NO, UNKNOWN, YES, Comparison, Condition

SAME = "same"
DIFFERENT = "different"

CONDITIONS = (
    "metric",
    "of",
    "baseline",
    "workload.model",
    "workload.phase",
    "workload.batch",
    "workload.sequence",
    "workload.precision",
    "workload.rows",
    "axis",
    "collective",
    "bytes.unchanged",
    "contention_included",
    "settings",
    "hardware.gpu",
    "hardware.count",
    "hardware.interconnect",
    "hardware.topology",
)
SUBJECT = ("software.name", "software.version")
"""What is compared may be the software, so that it differs is no objection."""


def compared(first: Claim, second: Claim) -> Comparison:
    """The Comparison of two claims."""
    conditions = [_unit(first, second)]
    conditions += [_condition(name, first, second) for name in CONDITIONS if _asked(name, first, second)]
    different = [row.name for row in conditions if row.verdict == DIFFERENT]
    unknown = [row.name for row in conditions if row.verdict == UNKNOWN]
    if different:
        comparable, why = NO, f"{_count(different)}: {', '.join(different)}"
        if "metric" in different:
            meanings = [METRICS[claim.metric].meaning if claim.metric else "not clear" for claim in (first, second)]
            why = f"they measure different things ({meanings[0]}; {meanings[1]}). {why}"
    elif unknown:
        comparable, why = UNKNOWN, f"not stated in one or both: {', '.join(unknown)}"
    else:
        comparable, why = YES, "all conditions are the same"
    of_figure = [row for row in conditions if row.name in ("metric", "of", "unit")]
    return Comparison(
        first_id=first.id,
        second_id=second.id,
        comparable=comparable,
        why=why,
        first_claimed=written(first.value, first.unit),
        second_claimed=written(second.value, second.unit),
        side_by_side=all(row.verdict == SAME for row in of_figure),
        conditions=conditions,
        subject=[_condition(name, first, second) for name in SUBJECT],
    )


def _count(names: list[str]) -> str:
    return "one condition differs" if len(names) == 1 else f"{len(names)} conditions differ"


def _asked(name: str, first: Claim, second: Claim) -> bool:
    """A denominator is asked of percentages only, rows and settings where one claim gives them."""
    if name == "of":
        return "%" in (first.unit, second.unit)
    if name in ("workload.rows", "settings"):
        return stated(first, name) is not None or stated(second, name) is not None
    return True


def _unit(first: Claim, second: Claim) -> Condition:
    row = _condition("unit", first, second)
    kinds = [UNITS.get(claim.unit or "") for claim in (first, second)]
    # 3 ms and 2 us can be put side by side; a ratio and a percentage cannot before both are one of them.
    if row.verdict == DIFFERENT and kinds[0] == kinds[1]:
        return Condition(name=row.name, first=row.first, second=row.second, verdict=SAME)
    return row


def _condition(name: str, first: Claim, second: Claim) -> Condition:
    one, two = stated(first, name), stated(second, name)
    return Condition(name=name, first=one, second=two, verdict=_verdict(one, two, name))


def _verdict(one: str | None, two: str | None, name: str) -> str:
    if one is None or two is None:
        return UNKNOWN
    return SAME if _folded(one, name) == _folded(two, name) else DIFFERENT


def _folded(text: str, name: str) -> object:
    if name in ("axis", "collective", "workload.phase"):
        return frozenset(" ".join(part.lower().split()) for part in text.split(","))
    return " ".join(text.lower().split())
