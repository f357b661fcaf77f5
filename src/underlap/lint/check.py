"""All rules against the programs: the LintReport."""

from __future__ import annotations

from collections.abc import Sequence

from underlap._version import __version__
from underlap.lint import arms, expectations
from underlap.lint.catalog import NAMES
from underlap.lint.jobs import Program, Programs
from underlap.lint.reading import Reading
from underlap.lint.rule import Match, Rule, Undecided
from underlap.lint.rules import RULES
from underlap.lint.settings import Setting
from underlap.lint_report import (
    ExplainsRow,
    FrameworkRow,
    JobRow,
    LintFinding,
    LintReport,
    LintSource,
    SettingRow,
    UndecidedRow,
)

UNRULED = {"tensorrt_llm"}
"""Frameworks that are recognized, and that no rule is about yet."""


def check(readings: Sequence[Reading], programs: Programs) -> LintReport:
    """Every rule on every program."""
    findings: list[LintFinding] = []
    limits: list[LintFinding] = []
    undecided: list[UndecidedRow] = []
    jobs: list[JobRow] = []
    for program in programs.programs:
        applied = [rule for rule in RULES if rule.applies(program.settings)]
        for rule in applied:
            answer = rule.check(program.settings)
            if isinstance(answer, Match):
                (limits if rule.limit else findings).append(_finding(rule, answer, program))
            elif isinstance(answer, Undecided):
                undecided.append(_undecided(rule, answer, program))
        jobs.append(_job(program, applied))
    return LintReport(
        underlap_version=__version__,
        sources=[LintSource(file=reading.file, kind=reading.kind, jobs=len(reading.jobs)) for reading in readings],
        jobs=jobs,
        findings=findings,
        limits=limits,
        undecided=undecided,
        comparison=arms.compare(programs.programs, findings) if programs.arms else None,
        expectations=[row for program in programs.programs for row in expectations.of(program.settings)],
        rules_known=len(RULES),
        notes=_notes(readings, jobs),
    )


def row_of(setting: Setting) -> SettingRow:
    """A setting for a report."""
    value = None if setting.value is None or not setting.certain else str(setting).partition("=")[2]
    return SettingRow(name=setting.spelled, value=value, file=setting.place.file, line=setting.place.line)


def _rows(program: Program, names: Sequence[str]) -> list[SettingRow]:
    return [row_of(setting) for setting in program.settings.shown(*dict.fromkeys(names))]


def _finding(rule: Rule, match: Match, program: Program) -> LintFinding:
    explains = rule.explains
    return LintFinding(
        rule=rule.id,
        job=program.name,
        text=rule.says + (f": {match.detail}" if match.detail else ""),
        settings=_rows(program, match.because),
        reason=rule.reason,
        change=rule.change,
        price=rule.price,
        holds_for=rule.holds_for,
        sources=list(rule.sources),
        without_effect=[name for name in match.voids if program.settings.mentioned(name)],
        explains=ExplainsRow(causes=list(explains.causes), collectives=list(explains.collectives), axes=list(explains.axes))
        if explains
        else None,
    )


def _undecided(rule: Rule, answer: Undecided, program: Program) -> UndecidedRow:
    return UndecidedRow(
        rule=rule.id, job=program.name, text=rule.says, needs=answer.needs, settings=_rows(program, answer.because)
    )


def _job(program: Program, applied: Sequence[Rule]) -> JobRow:
    settings = program.settings
    return JobRow(
        name=program.name,
        frameworks=[
            FrameworkRow(name=NAMES[framework], how=how, version=_version(settings.versions, framework))
            for framework, how in settings.frameworks.items()
        ],
        capability=settings.capability,
        environment_known=settings.environment_known,
        settings=[row_of(setting) for setting in settings.of.values()],
        rules_applied=[rule.id for rule in applied],
    )


_PRODUCTS = {"megatron": "megatron_core", "fsdp": "torch", "torchtitan": "torchtitan"}


def _version(versions: dict[str, str], framework: str) -> str | None:
    return versions.get(_PRODUCTS.get(framework, framework))


def _notes(readings: Sequence[Reading], jobs: Sequence[JobRow]) -> list[str]:
    notes = [
        f"{reading.file}: no setting in it is known to a rule"
        for reading in readings
        if reading.kind != "environment" and not any(job.settings for job in reading.jobs)
    ]
    known = {row.name for job in jobs for row in job.frameworks}
    notes += [f"{NAMES[name]} is recognized, and no rule is about it yet" for name in sorted(UNRULED) if NAMES[name] in known]
    return notes
