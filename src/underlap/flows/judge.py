"""A claim judged: as it stands, against another claim, or against Reports of one's own runs."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from underlap.claim import Claim
from underlap.errors import InputError, UnreadableError
from underlap.flows.claims import load
from underlap.judge import comparison, evidence, questions, settlement, standing
from underlap.judgement import Comparison, Judgement
from underlap.report import SCHEMA, Report, from_json

Given = Report | str | os.PathLike[str]
_EXPECTED = "the JSON that underlap analyze --json writes"


def judge(claim: Claim | str | os.PathLike[str], report: Given | None = None, *, baseline: Given | None = None) -> Judgement:
    """What a claim supports and what not; with a Report, also whether this run holds it.

    `claim` is a Claim, a YAML file, or an id of the catalog. `report` and `baseline` (the run without the change) are
    Reports, or files that `underlap analyze --json` wrote. Raises InputError for what cannot be used.

    >>> underlap.judge("claim.yaml", "report.json").settlement.outcome  # doctest: +SKIP
    """
    claim = claim if isinstance(claim, Claim) else load(claim)
    if report is None:
        return standing.judged(claim, questions.ask(claim))
    own = _report(report)
    before = None if baseline is None else _report(baseline)
    settled = settlement.settle(claim, own, before)
    return standing.judged(claim, evidence.ask_with(claim, own, settled.checks, before), settled)


def compare(first: Claim | str | os.PathLike[str], second: Claim | str | os.PathLike[str]) -> Comparison:
    """Whether the figures of two claims may be put side by side, condition by condition."""
    one, two = (claim if isinstance(claim, Claim) else load(claim) for claim in (first, second))
    return comparison.compared(one, two)


def _report(given: Given) -> Report:
    if isinstance(given, Report):
        report, name = given, "report"
    else:
        name = os.fspath(given)
        report = _read(Path(given))
    if report.schema != SCHEMA:
        raise InputError(f"{name}: Expected schema `{SCHEMA}`, got {report.schema[:80]!r} - at `$.schema`")
    _check_sums(report, name)
    return report


def _read(path: Path) -> Report:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {getattr(error, 'strerror', None) or error}; expected {_EXPECTED}") from error
    try:
        if "schema" not in msgspec.json.decode(content, type=dict[str, msgspec.Raw]):
            raise InputError(f"{path}: Expected schema `{SCHEMA}`, got none - at `$.schema`")
        return from_json(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no Report: {error}; expected {_EXPECTED}") from error


def _check_sums(report: Report, name: str) -> None:
    """Refuse a Report whose parts do not add up: whoever wrote it, nothing can be settled on it."""
    for index, row in enumerate(report.ranks):
        parts = (row.hidden_ns, row.under_fused_ns, row.exposed_ns)
        _check_parts(parts, row.communication_ns, row.wait_ns, name, f"$.ranks[{index}]")
    for index, family in enumerate(report.families):
        parts = (family.hidden_ns, family.under_fused_ns, family.exposed_ns)
        _check_parts(parts, family.communication_ns, family.wait_ns, name, f"$.families[{index}]")


def _check_parts(parts: tuple[int, ...], total: int, wait: int | None, name: str, path: str) -> None:
    if min(parts) < 0 or sum(parts) != total or not 0 <= (wait or 0) <= total:
        raise InputError(
            f"{name}: hidden, under_fused and exposed are {', '.join(map(str, parts))} ns, wait {wait}; "
            f"Expected them to add up to communication_ns, {total} - at `{path}`; take the Report as underlap analyze wrote it"
        )
