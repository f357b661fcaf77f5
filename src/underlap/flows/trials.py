"""From the records and what ranks handed in: the Trial of a run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from underlap.cluster import Cluster
from underlap.flows.analyze import analyze
from underlap.flows.foretell import foretold
from underlap.layout import Layout, layout_text
from underlap.ledger import ledger
from underlap.policy import policy_text
from underlap.report import Report
from underlap.run import comparing
from underlap.run.ceilings import LEVER
from underlap.run.fabric_spec import fabric_text
from underlap.run.job import BOTH, HandedIn, Job, Seen, SeenCeiling, steps_of
from underlap.run.timing import Account
from underlap.trial import Ceiling, Comparison, ControlBytes, Promised, RunBytes, Slowdown, StepParts, Trial, Variant, WireBytes
from underlap.workload import Train, workload_text

if TYPE_CHECKING:
    from underlap.flows.run import Asked, Planned
    from underlap.flows.simulate import Scenario

SHARED_LIMIT = 0.03
"""Share of the measured steps. Overlap gains little more in many a comparison."""
HOST_LIMIT = 0.1
"""Above this share of host work in the step a comparison measures the host."""


def trial_of(what: Asked, plans: list[Planned], job: Job, scenario: Scenario | None) -> Trial:
    """Read and removed: what rank 0 handed in. `scenario`: what the predictions of the plans are of."""
    outcome = msgspec.json.decode(job.outcome.read_bytes(), type=HandedIn)
    job.outcome.unlink()
    variants = [_variant(each, seen, outcome.barrier_bytes) for each, seen in zip(plans, outcome.seen, strict=True)]
    reports = [analyze(job.folder / each.name) for each in plans]
    promises = [one for plan in job.each_step for one in _promises(job, plan)]
    ab = _comparison(what, variants, reports, outcome) if what.compared else None
    predictions = [each.prediction for each in plans if each.prediction is not None]
    told = foretold(scenario, predictions, outcome.seen, ab) if scenario is not None else None
    if told is not None and scenario is not None:
        told = msgspec.structs.replace(told, assumptions=[*measured_otherwise(what, scenario.cluster), *told.assumptions])
    notes = [] if what.share_cores is False else ["ranks share cores: times say little, bytes and results hold"]
    notes += shared_cores(variants)
    return Trial(
        model=what.model.name,
        layout=layout_text(what.layout),
        workload=workload_text(what.workload),
        ranks=what.layout.world,
        library="nccl" if what.device == "cuda" else "gloo",
        variants=variants,
        baseline=reports[0],
        policy=reports[1] if what.compared else None,
        ab=ab,
        slowdown=_slowdown(job) if outcome.both else None,
        ceilings=[_ceiling(seen, promises, what.layout) for seen in outcome.ceilings],
        promises=promises,
        notes=notes,
        fabric=fabric_text(what.fabric) if what.fabric is not None else None,
        priority=what.priority,
        prediction=told,
    )


def _slowdown(job: Job) -> Slowdown | None:
    """From the record of both plans."""
    report = analyze(job.folder / BOTH, deep=True)
    found = report.contention
    if found is None:
        return None
    established = found.word in ("slower", "faster")
    shares = len(report.ranks) * len(report.window.steps_used) / 2  # as many steps of the baseline

    def each(cost: int | None) -> int | None:
        return round(cost / shares) if established and cost is not None else None

    return Slowdown(
        word=found.word,
        reason=found.reason,
        ratio=found.ratio,
        ratio_low=found.ratio_low,
        ratio_high=found.ratio_high,
        cost_ns=each(found.cost_ns),
        cost_low_ns=each(found.cost_low_ns),
        cost_high_ns=each(found.cost_high_ns),
    )


def measured_otherwise(what: Asked, cluster: Cluster) -> list[str]:
    """What decides most of what overlap is worth, and was another when the cluster was measured."""
    found = []
    testbed = cluster.measured
    if testbed is None:
        return []
    links = fabric_text(what.fabric) if what.fabric is not None else None
    if links != testbed.fabric:
        over = f"--fabric {links}" if links else "loopback"
        found.append(
            f"{cluster.name} was measured over {testbed.fabric or 'loopback'}, this ran over {links or 'loopback'}: "
            f"calibrate over {over}"
        )
    if what.priority != testbed.priority:
        found.append(
            f"{cluster.name} was measured with priority {testbed.priority}, this ran with {what.priority}: "
            f"calibrate with --priority {what.priority}"
        )
    return found


def _variant(made: Planned, seen: Seen, barrier_bytes: int) -> Variant:
    counted = {(group, collective): size for group, collective, size in seen.counted}
    entries = ledger(made.plan)
    rows = [
        RunBytes(
            group=entry.group,
            collective=entry.collective,
            planned_bytes=round(entry.payload_bytes),
            counted_bytes=counted.pop((entry.group, entry.collective), 0),
        )
        for entry in entries
    ]
    planned = round(sum(entry.sent_bytes for entry in entries))
    rows += [RunBytes(group=g, collective=c, planned_bytes=0, counted_bytes=size) for (g, c), size in counted.items()]
    return Variant(
        name=made.name,
        policy=policy_text(made.policy) or "none",
        step_ns=seen.step_ns,
        host_issue_share=seen.host_issue_share,
        bytes_by_axis=rows,
        control=[ControlBytes(group=g, collective=c, what=what, counted_bytes=size) for g, c, what, size in seen.control],
        unmatched_keys=seen.unmatched_keys,
        loss=seen.loss,
        tokens=seen.tokens,
        refused=[f"{one.axis}={one.name}: {one.reason}" for one in made.refused],
        wire=_wire(seen, planned, barrier_bytes) if seen.sent else None,
        parts=[_parts(ranks) for ranks in zip(*(each.accounts for each in seen.times), strict=True)],
        typical=seen.typical,
    )


def _promises(job: Job, plan: str) -> list[Promised]:
    """Of every lever that each measured step knows: the median over steps."""
    said: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number in range(job.repetitions):
        report = analyze(steps_of(job.folder, plan) / str(number), deep=True)
        others = (report.if_independent, report.if_nothing_sent, report.if_half_transfer)
        for one in (*report.levers, *(row for row in others if row is not None)):
            if one.at_least_ns is not None and one.at_most_ns is not None:
                said[one.lever].append((one.at_least_ns, one.at_most_ns))
    return [
        Promised(
            plan=plan,
            lever=lever,
            at_least_ns=round(statistics.median(least for least, _ in values)),
            at_most_ns=round(statistics.median(most for _, most in values)),
            steps=len(values),
        )
        for lever, values in said.items()
    ]


def _ceiling(seen: SeenCeiling, promises: Sequence[Promised], layout: Layout) -> Ceiling:
    won = [planned - step for planned, step in zip(seen.planned_ns, seen.step_ns, strict=True)]
    middle, low, high = comparing.interval(won)
    lever = LEVER[seen.left_out]
    # A step that sends nothing has no bubble either, which the lever keeps.
    other = seen.left_out == "messages" and layout.pp > 1
    promised = None if other else next((one for one in promises if (one.plan, one.lever) == (seen.plan, lever)), None)
    return Ceiling(
        plan=seen.plan,
        left_out=seen.left_out,
        lever=lever,
        step_ns=seen.step_ns,
        planned_step_ns=seen.planned_ns,
        won_ns=round(middle),
        won_low_ns=round(low),
        won_high_ns=round(high),
        promised_low_ns=None if promised is None else promised.at_least_ns,
        promised_ns=None if promised is None else promised.at_most_ns,
    )


def shared_cores(variants: Sequence[Variant]) -> list[str]:
    """A note where others had so much of the cores that it may decide a comparison."""
    parts = [part for each in variants for part in each.parts]
    steps = max(1, sum(sum(each.step_ns) for each in variants))
    had = {
        "other virtual machines": sum(part.stolen_ns or 0 for part in parts) / steps,
        "other programs": sum(part.others_ns or 0 for part in parts) / steps,
    }
    return [
        f"{who} had the cores for {100 * share:.0f} % of the steps: repeat more often, or on a quieter machine"
        for who, share in had.items()
        if share >= SHARED_LIMIT
    ]


def _parts(ranks: Sequence[Account]) -> StepParts:
    """Of one repetition, mean over ranks."""

    def mean(part: str) -> int | None:
        values = [getattr(each, part) for each in ranks]
        return None if None in values else round(statistics.fmean(values))

    parts = {name: mean(name) for name in StepParts.__struct_fields__ if name != "slowest_compute_ns"}
    return StepParts(slowest_compute_ns=max(each.compute_ns for each in ranks), **parts)  # type: ignore[arg-type]  # only transfer_ns and core_ns


def _wire(seen: Seen, planned_bytes: int, barrier_bytes: int) -> WireBytes:
    return WireBytes(
        planned_bytes=planned_bytes,
        sent_bytes=seen.sent,
        received_bytes=seen.received,
        ratio=statistics.median(seen.sent) / planned_bytes if planned_bytes else None,
        barrier_bytes=barrier_bytes,
    )


def _comparison(what: Asked, variants: list[Variant], reports: list[Report], outcome: HandedIn) -> Comparison:
    before, after = variants
    ratio, low, high = comparing.interval(comparing.ratios(before.step_ns, after.step_ns))
    found = comparing.outcome(low, high, len(after.step_ns))
    sent = [sum(row.counted_bytes for row in each.bytes_by_axis) for each in variants]
    hidden = tuple(report.summary.hidden.mean_ns if report.summary else 0 for report in reports)
    share = max(each.host_issue_share for each in variants)
    notes = []
    if share > HOST_LIMIT:
        whose = "GPUs wait for the host in" if what.device == "cuda" else "the host issues"
        notes.append(
            f"{whose} {100 * share:.0f} % of the step: the comparison measures the host, not the overlap; use larger operations"
        )
    if found is None:
        notes.append(f"no outcome: the ratio lies between {low:.3f} and {high:.3f}; repeat more often, or on a quieter machine")
    return Comparison(
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        outcome=found,
        same_within=comparing.SAME,
        word=comparing.word(found, bytes_removed=sent[1] < sent[0], hidden_before=hidden[0], hidden_after=hidden[1]),
        bytes_equal=sent[0] == sent[1] and all(r.planned_bytes == r.counted_bytes for v in variants for r in v.bytes_by_axis),
        bytes_by_axis=after.bytes_by_axis,
        max_output_difference=outcome.output_difference,
        max_gradient_difference=outcome.gradient_difference if isinstance(what.workload, Train) else None,
        repetitions=len(after.step_ns),
        host_issue_share=share,
        hidden_ns=(hidden[0], hidden[1]),
        notes=notes,
    )
