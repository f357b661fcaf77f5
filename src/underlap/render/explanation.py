"""What decided, branch by branch: for --explain, below the screen. Every figure is one of the Report's."""

from __future__ import annotations

from typing import IO

from underlap.render.plain import UNKNOWN, clean, decimals_for, milliseconds, percent
from underlap.report import FamilyRow, LeverRow, Report

FAMILIES = 6
_BRANCHES = (
    ("waiting for a peer?", ("window_entry", "late_peer", "bubble")),
    ("behind another collective?", ("queued_behind",)),
    ("host had not submitted the compute?", ("late_launch", "throttled")),
    ("compute there, but its lane held it?", ("serialized", "serialized_or_dependent")),
    ("needed at once?", ("dependent",)),
    ("compute beside it too short?", ("stretched", "latency_bound", "fabric_bound", "too_little_compute")),
    ("not explained", ("unknown",)),
)


def print_explanation(report: Report, file: IO[str]) -> None:
    """Write the explanation as plain text."""
    file.write("\n".join(lines(report)) + "\n")


def lines(report: Report) -> list[str]:
    """The explanation, line by line. Times are summed over ranks."""
    decimals = decimals_for(report.summary.span.mean_ns if report.summary else 0)
    found = [""]
    for family in report.families[:FAMILIES]:
        found += [*_family(family, decimals), ""]
    return found + _contention(report, decimals) + _path(report, decimals) + _levers(report, decimals)


def _family(family: FamilyRow, decimals: int) -> list[str]:
    who = " ".join(clean(part) for part in (family.axis, family.collective) if part) or "communication"
    total = milliseconds(family.communication_ns, decimals)
    outcome = clean(family.verdict.outcome) if family.verdict else UNKNOWN
    rows = [f"{who}: {outcome}; {total} ms in its kernels, {milliseconds(family.exposed_share_ns, decimals)} ms exposed"]
    amounts = {cause.cause: cause.exposed_ns for cause in family.verdict.causes} if family.verdict else {}
    for question, causes in _BRANCHES:
        named = [f"{cause} {milliseconds(amounts[cause], decimals)}" for cause in causes if amounts.get(cause)]
        if named:
            rows.append(f"  {question:<38}{', '.join(named)} ms")
    rows.append(f"  {'else hidden':<38}{milliseconds(family.hidden_ns, decimals)} ms")
    if family.verdict and family.verdict.evidence:
        evidence = family.verdict.evidence
        place = f"rank {evidence.rank}, {clean(evidence.source_file)}, event {evidence.source_row}"
        rows.append(f"  {'evidence':<38}{place}: {clean(evidence.name)[:60]}")
    rows += [f"  {'not known':<38}{clean(text)}" for text in (family.verdict.unknown if family.verdict else [])]
    return rows


def _contention(report: Report, decimals: int) -> list[str]:
    found = report.contention
    if found is None:
        return []
    if found.ratio is None:
        return [f"compute beside communication: {clean(found.word)}: {clean(found.reason or '')}"]
    low, high = (UNKNOWN if end is None else f"{end:.2f}" for end in (found.ratio_low, found.ratio_high))
    ratio = f"{found.ratio:.2f} times as long ({low} to {high})"
    rows = [f"compute beside communication: {clean(found.word)}, {ratio}, by {clean(found.method or '')}"]
    if found.cost_ns is not None:
        net = found.net_gain
        gain = UNKNOWN if net.net_ns is None else f"{milliseconds(net.net_ns, decimals)} ms"
        hidden = milliseconds(net.hidden_ns, decimals)
        cost = milliseconds(found.cost_ns, decimals)
        rows.append(f"  price {cost} ms of device time; net of hiding {hidden} ms: {clean(net.word)} {gain}")
    return rows


def _path(report: Report, decimals: int) -> list[str]:
    path = report.critical_path
    if path is None:
        return []
    parts = ", ".join(f"{clean(name)} {milliseconds(ns, decimals)}" for name, ns in path.parts.items() if ns)
    explained = percent(path.explained_share)
    rows = [f"critical path (ends on rank {path.rank}): {parts} ms; {explained} % of it explained by real edges"]
    rows.append(f"  exposed communication on it: {milliseconds(path.exposed_on_path_ns, decimals)} ms")
    return rows


def _levers(report: Report, decimals: int) -> list[str]:
    rows = [f"  without {clean(lever.lever):<16} {_gain(lever, decimals)}" for lever in report.levers]
    if report.joint_lever:
        rows.append(f"  {'all together':<24} {_gain(report.joint_lever, decimals)}")
    if report.if_independent:
        rows.append(f"  {'ceiling, if independent':<24} {_gain(report.if_independent, decimals)}")
    if report.if_nothing_sent:
        rows.append(f"  {'ceiling, nothing sent':<24} {_gain(report.if_nothing_sent, decimals)}")
    rows = ["by replay the window would be shorter by (not additive):", *rows] if rows else []
    if report.levers_unknown:
        rows.append(f"what each lever would win is not known: {clean(report.levers_unknown)}")
    bound = report.bound
    if bound is not None:
        least, seen = milliseconds(bound.lower_bound_ns, decimals), milliseconds(bound.observed_ns, decimals)
        rows.append(f"no schedule of this work is shorter than {least} ms, as far as the trace tells; observed {seen} ms")
        if bound.hidden_of_possible is not None:
            rows.append(f"  {percent(bound.hidden_of_possible)} % of what any schedule could hide is hidden")
    return rows


def _gain(lever: LeverRow, decimals: int) -> str:
    reason = f" ({clean(lever.reason)})" if lever.reason else ""
    if lever.at_most_ns is None:
        return f"{UNKNOWN}{reason}"
    most = milliseconds(lever.at_most_ns, decimals)
    if lever.at_least_ns is not None and lever.at_least_ns != lever.at_most_ns:
        return f"{milliseconds(lever.at_least_ns, decimals)} to {most} ms{reason}"
    return f"{most} ms{reason}"
