"""A LintReport as plain text: findings first, then limits, what could not be decided, and what was checked."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import IO

from underlap.lint_report import ComparisonRow, JobRow, LintFinding, LintReport, SettingRow, UndecidedRow
from underlap.render.plain import clean

WIDTH = 100
SETTINGS = 24


def print_lint(report: LintReport, file: IO[str]) -> None:
    """Write the report."""
    file.write("\n".join(lines(report)) + "\n")


def lines(report: LintReport) -> list[str]:
    """The report, line by line, at most 100 columns but for addresses."""
    sources = ", ".join(_source(source.file, source.kind, source.jobs) for source in report.sources)
    found = _wrapped(f"read: {sources}")
    found += [line for job in report.jobs for line in _frameworks(job, several=len(report.jobs) > 1)]
    several = len(report.jobs) > 1
    for finding in report.findings:
        found += ["", *_finding(finding, "finding", several=several)]
    if report.comparison:
        found += ["", *_comparison(report.comparison)]
    for limit in report.limits:
        found += ["", *_finding(limit, "limit", several=several)]
    for row in report.undecided:
        found += ["", *_undecided(row, several=several)]
    found.append("")
    if not report.found:
        found.append("nothing found that keeps communication from overlapping")
    for job in report.jobs:
        found += _checked(job, report.rules_known, several=several)
    return found + [line for note in report.notes for line in _wrapped(f"note: {note}")]


def _source(file: str, kind: str, jobs: int) -> str:
    return f"{clean(file)} ({kind}{f', {jobs} programs' if jobs > 1 else ''})"


def _frameworks(job: JobRow, *, several: bool) -> list[str]:
    where = f" in {clean(job.name)}" if several else ""
    device = "" if job.capability is None else f"; compute capability {job.capability}"
    if not job.frameworks:
        return _wrapped(f"framework{where}: none recognized, so only rules about the environment and the layout apply{device}")
    named = [f"{row.name}{f' {row.version}' if row.version else ''} {row.how}" for row in job.frameworks]
    unknown = [row.name for row in job.frameworks if row.version is None]
    versions = f"; version of {', '.join(unknown)} unknown: rules hold as each says" if unknown else ""
    return _wrapped(f"framework{where}: assumed {', and '.join(named)}{versions}{device}")


def _finding(finding: LintFinding, word: str, *, several: bool) -> list[str]:
    where = f" ({clean(finding.job)})" if several else ""
    rows = _wrapped(f"{word} {finding.rule}{where}: {finding.text}")
    if finding.settings:
        rows += _wrapped(f"set: {_settings(finding.settings)}", indent=2)
    rows += _wrapped(f"why: {finding.reason}", indent=2)
    if word == "limit":
        return rows + [f"  source: {source}" for source in finding.sources[:1]]
    rows += _wrapped(f"change: {finding.change}", indent=2)
    rows += _wrapped(f"price: {finding.price}", indent=2)
    rows += _wrapped(f"holds for: {finding.holds_for}", indent=2)
    return rows + [f"  source: {source}" for source in finding.sources[:2]]


def _undecided(row: UndecidedRow, *, several: bool) -> list[str]:
    where = f" ({clean(row.job)})" if several else ""
    return _wrapped(f"not decided {row.rule}{where}: {_settings(row.settings)}. It would take {row.needs}.")


def _comparison(row: ComparisonRow) -> list[str]:
    word = "finding arms-are-one: " if row.one_configuration else "comparison: "
    rows = _wrapped(f"{word}{row.text}")
    for difference in row.differences[:SETTINGS]:
        values = " | ".join("unknown" if value is None else clean(value) for value in difference.values)
        rows += _wrapped(f"{difference.name}: {values}" + (" (without effect)" if difference.without_effect else ""), indent=2)
    return rows + _wrapped(f"arms: {' | '.join(map(clean, row.arms))}; read as one job with --together", indent=2)


def _checked(job: JobRow, rules: int, *, several: bool) -> list[str]:
    where = f" in {clean(job.name)}" if several else ""
    names = list(dict.fromkeys(row.name for row in job.settings))
    more = f", {len(names) - SETTINGS} more" if len(names) > SETTINGS else ""
    read = ", ".join(names[:SETTINGS]) + more if names else "none"
    applied = ", ".join(job.rules_applied) if job.rules_applied else "none"
    return [
        *_wrapped(f"checked{where}: {len(job.rules_applied)} of {rules} rules applied ({applied})"),
        *_wrapped(f"settings read{where}: {read}"),
    ]


def _settings(settings: Sequence[SettingRow]) -> str:
    return ", ".join(
        f"{row.name}={'?' if row.value is None else row.value} ({clean(row.file)}{'' if row.line is None else f':{row.line}'})"
        for row in settings
    )


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
