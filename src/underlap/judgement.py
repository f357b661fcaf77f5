"""`Judgement`: what a Claim supports, what it does not, what stays unknown. `underlap judge --json` writes this record.

Schemas `underlap.judgement/1` and `underlap.comparison/1` grow by adding only; readers ignore keys that they do not know.
Every answer names the fields or figures that it rests on. What is not known is null or `unknown`, never a pass.
"""

from __future__ import annotations

import msgspec

SCHEMA = "underlap.judgement/1"
COMPARISON_SCHEMA = "underlap.comparison/1"

HELD = "held"
REFUTED = "refuted"
NOT_DECIDABLE = "not decidable"

YES = "yes"
NO = "no"
UNKNOWN = "unknown"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One of the four questions."""

    question: str
    """workload, axis, bytes, contention."""
    text: str
    answer: str
    """yes, no, unknown."""
    why: str
    rests_on: list[str]
    """Fields of the Claim, as paths."""


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """Words that mix hidden with removed."""

    field: str
    words: str
    problem: str
    instead: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a Report can settle."""

    about: str
    """A metric, or bytes."""
    of: str | None
    claimed: str
    outcome: str
    """held, refuted, not decidable."""
    measured: float | None
    """In `unit`. Null where only bounds are known, or nothing."""
    low: float | None
    high: float | None
    """What it can be, with uncertainty and unclassified kernels taken at their worst. Null: no limit known."""
    unit: str
    formula: str
    fields: list[str]
    """Fields of the Report."""
    why: str


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The claim against a Report of one's own run."""

    outcome: str
    """held: every check. refuted: one at least, on a run that the claim is about. Else not decidable."""
    provenance: str
    """measured or simulated: a simulated Report says what a model gives, not what a run did."""
    window: str
    checks: list[Check]
    conditions: list[str]
    """Conditions of the claim that the Report was held against, and those taken on trust."""
    notes: list[str]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """See the module docstring."""

    schema: str = SCHEMA
    claim_id: str | None
    statement: str
    claimed: str | None
    """The figure with its unit. Null where the claim has none."""
    metric: str | None
    of: str | None
    source: str
    answers: list[Answer]
    wording: list[Wording]
    supports: list[str]
    does_not_support: list[str]
    unknown: list[str]
    settlement: Settlement | None = None


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of two claims."""

    name: str
    first: str | None
    second: str | None
    verdict: str
    """same, different, unknown."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the figures of two claims may be put side by side."""

    schema: str = COMPARISON_SCHEMA
    first_id: str | None
    second_id: str | None
    comparable: str
    """yes: all conditions are the same. no: one at least is different. unknown: one at least is not stated."""
    why: str
    first_claimed: str | None
    second_claimed: str | None
    side_by_side: bool
    """Whether the two figures measure the same thing in the same unit with the same denominator."""
    conditions: list[Condition]
    subject: list[Condition]
    """What the claims are about (software): allowed to differ."""


def to_json(record: Judgement | Comparison) -> bytes:
    """The record as JSON, keys in declared order, one space of indent."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
