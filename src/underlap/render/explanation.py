"""What decided, branch by branch: for --explain, below the screen. Every figure is one of the Report's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from underlap.render.plain import UNKNOWN, clean, decimals_for, milliseconds, percent, size
from underlap.report import BubbleRow, ContentionReport, FamilyRow, IssueRow, LeverRow, Report, SizeRow

FAMILIES = 6
SIZES = 8
SLOWER = 5
_BRANCHES = (
    ("waiting for a peer?", ("window_entry", "late_peer", "bubble")),
    ("behind another collective?", ("queued_behind",)),
    ("host had not submitted the compute?", ("late_launch", "throttled")),
    ("compute there, but its lane held it?", ("serialized", "serialized_or_dependent")),
    ("needed at once?", ("dependent",)),
    ("slowed by the compute beside it?", ("stretched",)),
    ("messages too small?", ("latency_bound",)),
    ("more than all compute could hide?", ("fabric_bound",)),
    ("compute beside it too short?", ("too_little_compute",)),
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
    found += [line for row in report.bubbles for line in _bubble(row, decimals)]
    found += _idle(report, decimals) + _contention(report, decimals)
    return found + _path(report, decimals) + _prediction(report) + _levers(report, decimals)


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
    if family.verdict and family.verdict.loss:
        rows.append(f"  {'a loss':<38}{clean(family.verdict.loss)}")
    rows += _issue(family.issue, decimals) if family.issue else []
    rows += _sizes(family.sizes, decimals)
    rows += [f"  {'not known':<38}{clean(text)}" for text in (family.verdict.unknown if family.verdict else [])]
    return rows


def _idle(report: Report, decimals: int) -> list[str]:
    listed = ", ".join(f"{clean(row.cause)} {milliseconds(row.idle_ns, decimals)}" for row in report.idle_causes)
    return [f"idle: {listed} ms"] if listed else []


def _issue(issue: IssueRow, decimals: int) -> list[str]:
    """When its exposed calls were launched, and how long a call is against the compute around it."""
    parts = [
        f"{number} {what}"
        for number, what in (
            (issue.no_lead, "without lead (launched when nothing was left beside it)"),
            (issue.held, "held after their launch"),
            (issue.ran_out, "outlasted the compute beside them"),
            (issue.launch_unknown, "of unknown launch"),
        )
        if number
    ]
    rows = []
    if parts:
        rows.append(f"  {f'launch of its {issue.exposed_calls} exposed calls':<38}{', '.join(parts)}")
    if issue.median_lead_ns is not None:
        lead = milliseconds(issue.median_lead_ns, 3)
        rows.append(f"  {'lead of a launch, median':<38}{lead} ms before the call is exposed")
    if issue.median_held_ns is not None:
        behind = ", ".join(f"{clean(name)[:40]} ({calls})" for name, calls in issue.behind.items()) or UNKNOWN
        rows.append(f"  {'held, median':<38}{milliseconds(issue.median_held_ns, 3)} ms; last to end before: {behind}")
    if issue.blocked_in:
        blocked = ", ".join(f"{clean(name)} {milliseconds(ns, decimals)}" for name, ns in issue.blocked_in.items())
        rows.append(f"  {'host blocked before those, no lead':<38}{blocked} ms")
    call = milliseconds(issue.median_call_ns, 3)
    compute = UNKNOWN if issue.median_compute_ns is None else milliseconds(issue.median_compute_ns, 3)
    rows.append(f"  {'one call against compute per call':<38}{call} ms against {compute} ms (medians)")
    if issue.last_of_step_exposed_ns:
        exposed = milliseconds(issue.last_of_step_exposed_ns, decimals)
        rows.append(f"  {'exposed in the last call of a step':<38}{exposed} ms, {size(issue.last_of_step_bytes)} each (median)")
    return rows


def _sizes(sizes: Sequence[SizeRow], decimals: int) -> list[str]:
    """One line per class of payload."""
    return [
        f"  {f'{row.calls} x {size(row.median_bytes)}':<38}{milliseconds(row.median_ns, max(decimals, 3))} ms, "
        f"{row.algbw_gbps:.3g} GB/s ({UNKNOWN if row.busbw_gbps is None else f'{row.busbw_gbps:.3g}'} of bus bandwidth)"
        + (", waiting inside" if row.waiting_inside else "")
        for row in sizes[:SIZES]
    ]


def _bubble(bubble: BubbleRow, decimals: int) -> list[str]:
    who = clean(bubble.group or "pipeline")
    counts = f"{UNKNOWN if bubble.stages is None else bubble.stages} stages, "
    counts += f"{UNKNOWN if bubble.micro_batches is None else bubble.micro_batches} micro-batches"
    waiting = [
        f"rank {clean(rank)} {milliseconds(bubble.waiting_ns[rank], decimals)} ms ({percent(share)} %)"
        for rank, share in bubble.waiting_share.items()
        if rank in bubble.waiting_ns
    ]
    shares = ", ".join(waiting) or UNKNOWN
    ideal = f"plain 1F1B or GPipe has {percent(bubble.ideal_share)} % of bubble"
    return [f"pipeline {who}: {counts}; {ideal}", f"  waiting for other stages, of the steps: {shares}"]


def _multiprocessors(found: ContentionReport) -> list[str]:
    if found.communication_blocks is None:
        return []
    of = UNKNOWN if found.multiprocessors is None else str(found.multiprocessors)
    held = found.communication_blocks
    return [f"  multiprocessors that communication holds: at most {held} (blocks of its largest grid) of {of}"]


def _slower(found: ContentionReport, decimals: int) -> list[str]:
    """The kernels that lose most, and whether multiprocessors can be why."""
    words = {
        None: "",
        False: "; not for want of multiprocessors: memory bandwidth, cache or power",
        True: "; multiprocessors may be short",
    }
    return [
        f"  {clean(row.name)[:60]}: {row.ratio:.2f} times as long beside communication, "
        f"{milliseconds(row.beside_ns, decimals)} ms there{words[row.multiprocessors_short]}"
        for row in found.kernels[:SLOWER]
        if row.ratio is not None
    ]


def _contention(report: Report, decimals: int) -> list[str]:
    found = report.contention
    if found is None:
        return []
    if found.ratio is None:
        return [f"compute beside communication: {clean(found.word)}: {clean(found.reason or '')}", *_multiprocessors(found)]
    low, high = (UNKNOWN if end is None else f"{end:.2f}" for end in (found.ratio_low, found.ratio_high))
    ratio = f"{found.ratio:.2f} times as long ({low} to {high})"
    rows = [f"compute beside communication: {clean(found.word)}, {ratio}, by {clean(found.method or '')}"]
    if found.cost_ns is not None:
        net = found.net_gain
        gain = UNKNOWN if net.net_ns is None else f"{milliseconds(net.net_ns, decimals)} ms"
        hidden = milliseconds(net.hidden_ns, decimals)
        cost = milliseconds(found.cost_ns, decimals)
        rows.append(f"  price {cost} ms of device time; net of hiding {hidden} ms: {clean(net.word)} {gain}")
    return rows + _slower(found, decimals) + _multiprocessors(found)


def _path(report: Report, decimals: int) -> list[str]:
    path = report.critical_path
    if path is None:
        return []
    parts = ", ".join(f"{clean(name)} {milliseconds(ns, decimals)}" for name, ns in path.parts.items() if ns)
    explained = percent(path.explained_share)
    rows = [f"critical path (ends on rank {path.rank}): {parts} ms; {explained} % of it explained by real edges"]
    rows.append(f"  exposed communication on it: {milliseconds(path.exposed_on_path_ns, decimals)} ms")
    return rows


def _prediction(report: Report) -> list[str]:
    found = report.step_prediction
    if found is None:
        return []
    rows = []
    if found.error is not None:
        pairs = f"{found.pairs} pair" if found.pairs == 1 else f"{found.pairs} pairs"
        size, still = percent(found.error), percent(found.error_of_no_change)
        rows.append(f"the graph predicts the next step to {size} % (median of {pairs}); assuming no change: {still} %")
    if found.rests_on is not None:
        rows.append(f"promises rest on {clean(found.rests_on)}")
    return rows


def _levers(report: Report, decimals: int) -> list[str]:
    rows = [f"  without {clean(lever.lever):<16} {_gain(lever, decimals)}" for lever in report.levers]
    if report.joint_lever:
        rows.append(f"  {'all together':<24} {_gain(report.joint_lever, decimals)}")
    if report.if_independent:
        rows.append(f"  {'ceiling, if independent':<24} {_gain(report.if_independent, decimals)}")
    if report.if_nothing_sent:
        rows.append(f"  {'ceiling, nothing sent':<24} {_gain(report.if_nothing_sent, decimals)}")
    if report.if_half_transfer:
        rows.append(f"  {'transfers half as long':<24} {_gain(report.if_half_transfer, decimals)}")
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
