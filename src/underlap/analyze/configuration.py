"""What the configuration of a job says about its trace: which rule accounts for a verdict, and what is switched on in vain.

The configuration comes as a LintReport. Nothing here changes a figure; it adds names and sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from underlap.lint_report import Expectation, LintFinding, LintReport, SettingRow
from underlap.report import ConfigurationFinding, ConfigurationReport, EngagementRow, FamilyRow, InstanceRow, Report
from underlap.timeline import OpClass, Timeline

SMALL_BYTES = 65_536
"""A reduction of less than this is a loss or a norm, and no bucket of gradients."""
_DATA_PARALLEL = ("dp", "fsdp", "shard", "replicate", "edp")
_BACKGROUND = ("internode_ll", "low_latency")
"""Kernels of transfers that go on without one: what they overlap with, the trace does not show."""


def configured(report: Report, timeline: Timeline, lint: LintReport) -> Report:
    """The Report with what the configuration says."""
    rules = [*lint.findings, *lint.limits]
    # The rules are about devices; ranks on a CPU have no streams or queues that a switch could order.
    on_cpu = all(info.on_cpu for info in timeline.ranks)
    families = [_explained(family, [] if on_cpu else rules) for family in report.families]
    rows = [_engagement(expectation, report, timeline) for expectation in lint.expectations]
    configuration = ConfigurationReport(
        files=[source.file for source in lint.sources],
        findings=[_finding(row, families) for row in rules],
        engagement=sorted(rows, key=lambda row: row.engaged is not False),
    )
    return msgspec.structs.replace(report, families=families, configuration=configuration)


def _explained(family: FamilyRow, rules: Sequence[LintFinding]) -> FamilyRow:
    if family.verdict is None or family.verdict.cause is None:
        return family
    names = [row.rule for row in rules if _accounts(row, family)]
    return msgspec.structs.replace(family, verdict=msgspec.structs.replace(family.verdict, rules=names))


def _accounts(row: LintFinding, family: FamilyRow) -> bool:
    explains = row.explains
    if explains is None or family.verdict is None or family.collective not in explains.collectives:
        return False
    # An axis that is not known excludes nothing.
    fits = not explains.axes or family.axis is None or any(part in family.axis for part in explains.axes)
    return fits and family.verdict.cause in explains.causes


def _finding(row: LintFinding, families: Sequence[FamilyRow]) -> ConfigurationFinding:
    explained = [family for family in families if family.verdict and row.rule in family.verdict.rules]
    return ConfigurationFinding(
        rule=row.rule,
        text=row.text,
        settings=[_shown(setting) for setting in row.settings],
        change=row.change,
        price=row.price,
        sources=row.sources,
        explains=[f"{_who(family)}: {family.verdict.cause}" for family in explained if family.verdict],
    )


def _shown(setting: SettingRow) -> str:
    line = "" if setting.line is None else f":{setting.line}"
    return f"{setting.name}={'?' if setting.value is None else setting.value} ({setting.file}{line})"


def _who(family: FamilyRow) -> str:
    return " ".join(part for part in (family.axis, family.collective or "communication") if part)


def _engagement(expectation: Expectation, report: Report, timeline: Timeline) -> EngagementRow:
    engaged, text = _CHECKS[expectation.id](expectation, report, timeline)
    return EngagementRow(
        feature=expectation.feature,
        settings=[_shown(setting) for setting in expectation.settings],
        expects=expectation.expects,
        engaged=engaged,
        text=text,
    )


Answer = tuple[bool | None, str]


def _families(expectation: Expectation, report: Report, *, axes: Sequence[str] = ()) -> list[FamilyRow]:
    """Families with one of the collectives, on one of the axes or on an axis that is not known."""
    return [
        family
        for family in report.families
        if family.collective in expectation.collectives
        and (not axes or family.axis is None or any(part in family.axis for part in axes))
    ]


def _beside(families: Sequence[FamilyRow], what: str) -> Answer:
    """Whether any of their communication ran beside compute."""
    if not any(family.communication_ns for family in families):
        return None, f"no {what} in the window: nothing can be said"
    hidden = sum(family.hidden_ns + family.under_fused_ns for family in families)
    total = sum(family.communication_ns for family in families)
    if hidden == 0:
        return False, f"none of the {what} ran beside compute ({total / 1e6:.2f} ms over all ranks, all of it exposed)"
    return True, f"{hidden / total:.0%} of the kernel time of the {what} is beside compute"


def _buckets(expectation: Expectation, report: Report, _timeline: Timeline) -> Answer:
    families = _families(expectation, report, axes=_DATA_PARALLEL)
    calls = [row for row in report.instances if _is_gradient(row, expectation)]
    if not calls:
        return None, "no reduction of gradients in the window: nothing can be said"
    if report.window.kind == "steps":
        per_step = Counter((row.rank, row.step) for row in calls if row.step is not None)
        if per_step and max(per_step.values()) == 1:
            return False, "one reduction of gradients per step and rank: a single bucket, ready when the backward pass is over"
    return _beside(families, "reductions of gradients")


def _is_gradient(row: InstanceRow, expectation: Expectation) -> bool:
    if row.collective not in expectation.collectives:
        return False
    if row.axis is not None and not any(part in row.axis for part in _DATA_PARALLEL):
        return False
    return row.payload_bytes is None or row.payload_bytes >= SMALL_BYTES


def _gathers(expectation: Expectation, report: Report, _timeline: Timeline) -> Answer:
    return _beside(_families(expectation, report, axes=_DATA_PARALLEL), "all-gathers of parameters")


def _fused(expectation: Expectation, report: Report, timeline: Timeline) -> Answer:
    used = {timeline.names[at] for at in _used_names(timeline)}
    found = sorted({operator for operator in expectation.operators for name in used if operator in name})
    if found:
        return True, f"found {', '.join(found)}"
    plain = _families(expectation, report, axes=("tp",))
    if not plain:
        return None, "no fused operator, and no plain collective either: nothing can be said"
    names = ", ".join(sorted({family.collective or "" for family in plain}))
    return False, f"no fused operator in the trace; plain {names} instead"


def _used_names(timeline: Timeline) -> set[int]:
    columns = (timeline.ops.name, timeline.ops.call_site, timeline.host.name, timeline.collectives.call_site)
    return {int(at) for column in columns for at in np.unique(column) if at >= 0}


def _halves(expectation: Expectation, report: Report, timeline: Timeline) -> Answer:
    families = _families(expectation, report)
    if any(info.on_cpu for info in timeline.ranks):
        return None, "the ranks have no device rows: nothing can be said"
    if any(mark in timeline.names[at] for at in _used_names(timeline) for mark in _BACKGROUND):
        return None, "low-latency transfers go on without a kernel: the trace does not show what they overlap with"
    if not any(family.communication_ns for family in families):
        return None, "no dispatch, combine or all-to-all in the window: nothing can be said"
    if _one_lane(timeline):
        return False, "compute and communication share a single stream: there is no second one for the other half"
    engaged, text = _beside(families, "dispatch and combine")
    return engaged, f"{text}: no second half" if engaged is False else text


def _one_lane(timeline: Timeline) -> bool:
    """Whether every device has all its compute and communication in one lane."""
    kinds = np.isin(timeline.ops.op_class, [OpClass.COMPUTE, OpClass.COMMUNICATION, OpClass.FUSED, OpClass.WAIT])
    lanes = {timeline.lanes[at] for at in np.unique(timeline.ops.lane[kinds]).tolist()}
    return len(lanes) == len({(lane.rank, lane.device) for lane in lanes})


_CHECKS = {"gradient_buckets": _buckets, "parameter_prefetch": _gathers, "fused_matmul": _fused, "second_batch": _halves}
