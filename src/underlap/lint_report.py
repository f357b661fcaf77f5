"""`LintReport`: what a configuration says about overlap. The JSON that `underlap lint --json` writes *is* this record.

Schema `underlap.lint/1` grows by adding only; readers ignore keys that they do not know. What is not known is null. Settings
that no rule knows are in no field: values of variables that could be secrets do not get here.
"""

from __future__ import annotations

import msgspec

SCHEMA = "underlap.lint/1"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records below, which repeat its options: msgspec does not inherit kw_only, nor mypy frozen."""


class LintSource(Record, frozen=True, kw_only=True):
    """A file, or an environment, that was read."""

    file: str
    """Base name only."""
    kind: str
    """script, JSON, YAML, TOML or environment."""
    jobs: int
    """Programs that it configures: the launches of a script, else 1."""


class SettingRow(Record, frozen=True, kw_only=True):
    """A setting that a rule knows."""

    name: str
    """As the configuration spells it."""
    value: str | None
    """Null where it is given, and depends on a condition or on a variable that is not known."""
    file: str
    line: int | None


class FrameworkRow(Record, frozen=True, kw_only=True):
    """A framework that was recognized."""

    name: str
    how: str
    version: str | None
    """Null where the configuration does not pin it: rules are then taken to hold as their text says."""


class ExplainsRow(Record, frozen=True, kw_only=True):
    """What a finding accounts for in a trace."""

    causes: list[str]
    collectives: list[str]
    axes: list[str]
    """Parts of an axis' name; empty for any."""


class LintFinding(Record, frozen=True, kw_only=True):
    """A rule that holds here."""

    rule: str
    job: str
    text: str
    """What was found, with the figures of this case."""
    settings: list[SettingRow]
    """The settings that show it."""
    reason: str
    change: str
    price: str
    holds_for: str
    """Versions and devices for which the rule is known to hold."""
    sources: list[str]
    without_effect: list[str]
    """Settings that do nothing because of it."""
    explains: ExplainsRow | None


class UndecidedRow(Record, frozen=True, kw_only=True):
    """A rule that may hold: what would tell."""

    rule: str
    job: str
    text: str
    needs: str
    settings: list[SettingRow]


class JobRow(Record, frozen=True, kw_only=True):
    """A program with everything that configures it."""

    name: str
    """Its files, with the line of its launch."""
    frameworks: list[FrameworkRow]
    capability: int | None
    """Major number of the compute capability, where the configuration or --gpu names the device."""
    environment_known: bool
    """Whether a variable that is not among `settings` is known to be unset."""
    settings: list[SettingRow]
    rules_applied: list[str]
    """Rules about something that is set here, in a version that they hold for."""


class DifferenceRow(Record, frozen=True, kw_only=True):
    """A setting in which the arms of a comparison differ."""

    name: str
    values: list[str | None]
    """One per arm, in order; null where unknown."""
    without_effect: bool
    """Whether a finding says that it does nothing where it is set."""


class ComparisonRow(Record, frozen=True, kw_only=True):
    """Files that configure the same framework, read as the arms of one comparison."""

    arms: list[str]
    differences: list[DifferenceRow]
    others_differ: bool
    """Whether the arms also differ in settings that no rule knows. Those are not shown."""
    one_configuration: bool
    text: str


class Expectation(Record, frozen=True, kw_only=True):
    """What a trace of this job should show, if what is switched on engages."""

    id: str
    feature: str
    settings: list[SettingRow]
    expects: str
    collectives: list[str]
    operators: list[str]
    """Names of operators or kernels, of which one should be there."""


class LintReport(Record, frozen=True, kw_only=True):
    """See the module docstring."""

    schema: str = SCHEMA
    underlap_version: str
    sources: list[LintSource]
    jobs: list[JobRow]
    findings: list[LintFinding]
    limits: list[LintFinding]
    """What is switched on does not cover this. No mistake, and not counted by the exit code."""
    undecided: list[UndecidedRow]
    comparison: ComparisonRow | None
    expectations: list[Expectation]
    rules_known: int
    notes: list[str]

    @property
    def found(self) -> bool:
        """Whether there is a finding: exit code 1."""
        return bool(self.findings) or bool(self.comparison and self.comparison.one_configuration)


def to_json(report: LintReport) -> bytes:
    """The report as JSON, keys in declared order, one space of indent."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def from_json(text: bytes | str) -> LintReport:
    """The report from its JSON. Unknown keys are ignored. Raises `msgspec.ValidationError` on wrong types."""
    return msgspec.json.decode(text, type=LintReport)
