"""What a claim supports as it stands, what it does not, and what stays unknown."""

from __future__ import annotations

from underlap.claim import DENOMINATORS, METRICS, Claim, Value, listed, written
from underlap.judge.wording import mixed
from underlap.judgement import NO, YES, Answer, Judgement, Settlement

_NARROW = {
    "operator_speedup": "an end-to-end gain of this size: an operator is a part of the step",
    "operator_time": "an end-to-end gain: an operator is a part of the step",
    "time_ratio": "a gain of a whole step: it is a micro-benchmark",
    "forward_speedup": "a gain of this size for a whole training step: backward and optimizer are outside",
    "collective_speedup": "that anything is hidden: the collective was measured alone",
    "collective_slowdown": "what happens beside compute: the collective was measured alone",
    "hidden_share": "that the step became shorter by what is hidden: covered time is not saved time",
    "overlap_efficiency": "an end-to-end gain: it depends on how much of the step this communication is",
    "ideal_gain_share": "how long the step is: it is relative to the ideal gain of these pairs",
    "saved_share": "the same saving where other compute stands beside the communication",
    "end_to_end_speedup": "any share of communication hidden: bytes, transfer speed and other work change the time of a run too",
    "communication_share": "how much could be hidden: it does not tell what is exposed, nor what is independent",
    "throughput": "what overlap contributed: nothing was measured without it",
    "utilization": "what overlap contributed: nothing was measured without it",
    "multiprocessors": "any gain in time: it is a price, not a time",
    "size_condition": "hiding on a real system: it is arithmetic from peak rates",
    "compute_stretch": "that overlap is a loss: what was hidden has to be set against it",
    "communication_stretch": "that overlap is a loss: what was hidden has to be set against it",
}
_TELLS = {
    "workload.model": "the model, or the shapes",
    "workload.phase": "training, prefill or decode",
    "workload.batch": "sequences or tokens per device",
    "workload.sequence": "tokens per sequence",
    "workload.precision": "the type of what is computed and sent",
    "baseline": "what it is compared with, and whether that overlaps too",
    "axis": "the mesh dimension of the groups",
    "collective": "the collective, from a trace",
    "bytes.unchanged": "payload per step, before and after",
    "hardware.gpu": "the device",
    "hardware.count": "the number of devices",
    "hardware.interconnect": "the links and their bandwidth",
    "hardware.topology": "how the groups lie on nodes",
    "software.version": "the version, or the commit",
    "contention_included": "compute beside communication against the same compute alone",
}


def judged(claim: Claim, answers: list[Answer], settlement: Settlement | None = None) -> Judgement:
    """The Judgement of a claim; `settlement` is what a Report says of it, where there is one."""
    return Judgement(
        claim_id=claim.id,
        statement=claim.statement,
        claimed=written(claim.value, claim.unit),
        metric=claim.metric,
        of=claim.of,
        source=", ".join(str(part) for part in (claim.source.title, claim.source.year, claim.source.where) if part is not None),
        answers=answers,
        wording=mixed(claim),
        supports=_supports(claim),
        does_not_support=_does_not_support(claim, {answer.question: answer for answer in answers}),
        unknown=_unknown(claim),
        settlement=settlement,
    )


def stated(claim: Claim, field: str) -> str | None:
    """A field by its path, in words. None where it is not stated."""
    value: object = claim
    for part in field.split("."):
        value = getattr(value, part)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or None
    if isinstance(value, dict):
        return ", ".join(f"{name}={setting}" for name, setting in sorted(value.items())) or None
    return None if value is None else str(value)


def _supports(claim: Claim) -> list[str]:
    if claim.metric is None:
        return ["no figure: the claim does not make clear what was measured"]
    what = METRICS[claim.metric].meaning
    figure = written(claim.value, claim.unit)
    if figure is None:
        return [f"no figure: {what}, in words only"]
    if claim.of is not None and claim.unit == "%":
        figure += f" of {DENOMINATORS[claim.of]}"
    where = [
        stated(claim, field)
        for field in ("workload.model", "workload.phase", "axis", "collective", "hardware.gpu", "hardware.topology")
    ]
    on = ", ".join(part for part in where if part)
    against = f", against {claim.baseline}" if claim.baseline else ""
    return [f"{what}: {figure}" + (f"; on {on}" if on else "") + against]


def _does_not_support(claim: Claim, answers: dict[str, Answer]) -> list[str]:
    said = []
    side = answers["workload"]
    if side.answer == YES:
        said.append("the same in decode, or with few rows: compute is shorter there than what it has to cover")
    elif side.answer == NO:
        said.append("the same in training, prefill or with many rows: compute is longer there")
    if claim.value is None:
        said.append("any figure: there is none, or none that was read")
    if claim.metric in _NARROW:
        said.append(_NARROW[claim.metric])
    if isinstance(claim.value, Value) and claim.value.up_to is not None:
        said.append("a usual value: 'up to' is the best point of the source")
    if claim.unit == "%" and claim.of is None:
        said.append("a comparison with another percentage: it does not say of what")
    if answers["bytes"].answer != NO and answers["bytes"].answer != YES:
        said.append("that fewer bytes are sent, nor that as many are")
    if len(listed(claim.axis)) > 1:
        said.append("a figure for one of these axes")
    if claim.baseline is None and claim.metric is not None and ("speedup" in claim.metric or "slowdown" in claim.metric):
        said.append("any ratio of your own: the baseline is not named")
    said.append("another device, link, topology or version than the one stated")
    return said


def _unknown(claim: Claim) -> list[str]:
    missing = [f"{field} is not stated; would tell: {what}" for field, what in _TELLS.items() if stated(claim, field) is None]
    return missing + claim.unknowns
