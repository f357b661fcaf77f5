"""The conditions of a claim as something that can be simulated: what is stated is fixed, what is not is swept over stated ranges.

What has no translation is named, field by field, and then nothing is simulated in its place. It does not model what a claim does
not name: the engine, fused kernels, other traffic.
"""

# long because: one function per condition of a claim, each with what it takes for granted.
from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from underlap import inputs
from underlap.claim import Claim, listed
from underlap.cluster import Cluster
from underlap.documents import shown
from underlap.errors import InputError, OptionError
from underlap.judge import vocabulary
from underlap.layout import Layout, layout_text, parse_layout
from underlap.model import Model
from underlap.policy import POLICY_AXES, AxisPolicy, Policy, parse_policy, policy_text
from underlap.workload import Decode, Prefill, Train, Workload

BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Sequences per data-parallel rank, where none are stated."""
DECODED = (1, 4, 16, 32, 64, 128, 256)
"""The same in decode, where a sequence is one row."""
LENGTHS = (1024, 2048, 4096, 8192, 16384)
"""Tokens per sequence, or in the cache."""
IMBALANCES = (1.0, 1.25, 1.5)
PRECISIONS = ("bf16", "fp8")
MOST_POINTS = 48
"""Of one sweep; longer lists of numbers are thinned out, their ends kept."""
MOST_STEPS = 12
"""The same for training, whose steps take longer to simulate."""

NAMES = {
    "model": "model",
    "cluster": "machine",
    "layout": "layout",
    "kind": "phase",
    "batch": "sequences per data-parallel rank",
    "micro": "sequences per micro-batch",
    "tokens": "tokens per sequence",
    "precision": "precision",
    "imbalance": "imbalance of experts",
    "recompute": "recomputation",
    "policy": "overlap",
}
"""Each condition, as it is called where a person reads it."""
_IN_BOTH = "fsdp=prefetch:1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """One point: everything that a simulation needs, with the policy and what it is compared with."""

    model: Model
    cluster: Cluster
    layout: Layout
    kind: str
    """train, prefill, decode."""
    batch: int
    micro: int | None
    """None: all of the rank's sequences."""
    tokens: int
    precision: Any
    imbalance: float
    recompute: Any
    policy: Policy

    @property
    def workload(self) -> Workload:
        """Raises OptionError for numbers that make none."""
        total = self.batch * self.layout.data_parallel
        given: dict[str, Any] = {"precision": self.precision, "imbalance": self.imbalance}
        if self.kind == "train":
            return Train(gbs=total, mbs=self.micro or self.batch, seq=self.tokens, recompute=self.recompute, **given)
        if self.kind == "prefill":
            return Prefill(batch=total, mbs=self.micro, seq=self.tokens, **given)
        return Decode(batch=total, mbs=self.micro, context=self.tokens, **given)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """Conditions of which some are open: by the name of the field of Conditions, one value, or those that it is swept over."""

    fixed: dict[str, Any]
    open: dict[str, tuple[Any, ...]]

    def points(self) -> Iterator[dict[str, Any]]:
        """The values of the open conditions, at each point of the sweep."""
        for values in itertools.product(*self.open.values()):
            yield dict(zip(self.open, values, strict=True))

    def at(self, point: dict[str, Any]) -> Conditions:
        """The Conditions at one of the points."""
        return Conditions(**self.fixed, **point)


@dataclasses.dataclass(frozen=True, slots=True)
class Mapped:
    """A claim, translated as far as it goes."""

    question: Question | None
    """None where something is missing."""
    policy: Policy | None
    """Of the claim's axis alone."""
    missing: tuple[str, ...]
    assumptions: tuple[str, ...]
    unknown: tuple[str, ...]


def text_of(name: str, value: Any) -> str:
    """A value of a condition, as it is shown."""
    if isinstance(value, (Model, Cluster)):
        return value.name
    if isinstance(value, Layout):
        return layout_text(value) or "one rank"
    if isinstance(value, Policy):
        return policy_text(value) or "none"
    if name == "micro" and value is None:
        return "all of the rank's"
    return f"{value:g}" if isinstance(value, float) else str(value)


def thinned(choices: dict[str, tuple[Any, ...]], *, most: int) -> dict[str, tuple[Any, ...]]:
    """At most so many combinations, if lists of numbers can be shortened that far; ends stay."""
    kept = dict(choices)
    while math.prod(map(len, kept.values())) > most:
        long = [name for name, values in kept.items() if len(values) > 2 and isinstance(values[0], (int, float))]
        if not long:
            break
        name = max(long, key=lambda each: len(kept[each]))
        values = kept[name]
        count = len(values) - 1
        kept[name] = tuple(values[round(index * (len(values) - 1) / (count - 1))] for index in range(count))
    return kept


def without(policy: Policy, axis: str) -> Policy:
    """The policy with nothing on this axis: what the claim's change is compared with."""
    return Policy(**{each: AxisPolicy() if each == axis else policy.of(each) for each in POLICY_AXES})


def joined(policy: Policy, axis: str, more: Policy) -> Policy:
    """The policy with `more`'s part for this axis."""
    return Policy(**{each: more.of(each) if each == axis else policy.of(each) for each in POLICY_AXES})


def axis_of(claim: Claim) -> tuple[str | None, str]:
    """The one axis that a simulation overlaps, or why there is none."""
    axes = listed(claim.axis)
    if not axes:
        return None, "axis is not stated; would do: one of " + ", ".join(POLICY_AXES)
    if len(axes) > 1:
        return None, f"axis is {', '.join(axes)}: one figure for several, and not which pass is on which; would do: one of them"
    if axes[0] not in POLICY_AXES:
        return None, f"axis {shown(axes[0])} is none of those that can be planned: {', '.join(POLICY_AXES)}"
    return axes[0], ""


def of_claim(claim: Claim) -> Mapped:
    """The claim's conditions."""
    return _Translation(claim).mapped()


class _Translation:
    """Collects values, gaps and assumptions of one claim: each condition adds its own."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.choices: dict[str, tuple[Any, ...]] = {}
        self.missing: list[str] = []
        self.assumptions: list[str] = []
        self.unknown: list[str] = []

    def mapped(self) -> Mapped:
        axis, reason = axis_of(self.claim)
        if axis is None:
            self.missing.append(reason)
        self._models()
        self._cluster()
        self._kinds()
        layouts = self._layouts(axis) if axis else None
        if layouts:
            self.choices["layout"] = layouts
        policy = self._policy(axis, layouts[0] if layouts else None) if axis else None
        self._numbers()
        self._precision()
        if self.missing:
            return Mapped(None, policy, tuple(self.missing), tuple(self.assumptions), tuple(self.unknown))
        choices = thinned(self.choices, most=MOST_STEPS if "train" in self.choices["kind"] else MOST_POINTS)
        fixed = {name: values[0] for name, values in choices.items() if len(values) == 1}
        swept = {name: values for name, values in choices.items() if len(values) > 1}
        return Mapped(Question(fixed, swept), policy, (), tuple(self.assumptions), tuple(self.unknown))

    def _models(self) -> None:
        text = self.claim.workload.model
        if text is None:
            self.missing.append("workload.model is not stated; would do: a model that has a preset")
            return
        named, others, recompute = vocabulary.models(text, inputs.presets("models"))
        if not named:
            self.missing.append(f"workload.model {shown(text)} has no preset; there are {', '.join(inputs.presets('models'))}")
            return
        if others:
            self.unknown.append(f"the figure for {', '.join(others)}: no preset; simulated: {', '.join(named)}")
        self.choices["model"] = tuple(inputs.model(name) for name in named)
        self.choices["recompute"] = (self.claim.settings.get("recompute", recompute or "none"),)
        if recompute == "selective":
            self.assumptions.append("selective activation checkpointing is taken as recomputing the core of attention")

    def _cluster(self) -> None:
        gpu = self.claim.hardware.gpu
        if gpu is None:
            self.missing.append("hardware.gpu is not stated; would do: a device that has a preset")
            return
        preset, rest = vocabulary.machine(gpu, self.claim.hardware.interconnect, inputs.presets("clusters"))
        if preset is None:
            link = f" with {self.claim.hardware.interconnect}" if self.claim.hardware.interconnect else ""
            known = ", ".join(inputs.presets("clusters"))
            self.missing.append(f"hardware.gpu {shown(gpu + link)} has no preset; there are {known}")
            return
        self.choices["cluster"] = (inputs.cluster(preset),)
        if rest:
            self.assumptions.append(f"{preset} stands for the claim's device, although that is: {rest}")
        if self.claim.hardware.interconnect is None:
            self.assumptions.append(f"links are those of {preset}: hardware.interconnect is not stated")

    def _kinds(self) -> None:
        phases = listed(self.claim.workload.phase)
        if self.claim.metric == "forward_speedup":
            self.choices["kind"] = ("prefill",)
            return
        kinds = [kind for phase in phases for kind in vocabulary.PHASES.get(phase, ())]
        if not kinds:
            known = ", ".join(vocabulary.PHASES)
            self.missing.append(f"workload.phase is {', '.join(phases) or 'not stated'}; would do: one of {known}")
            return
        self.choices["kind"] = tuple(dict.fromkeys(kinds))
        if len(self.choices["kind"]) > 1:
            self.unknown.append(f"workload.phase: {', '.join(phases)} can mean {' and '.join(self.choices['kind'])}")

    def _layouts(self, axis: str) -> tuple[Layout, ...] | None:
        given = self.claim.settings.get("layout")
        if given is not None:
            try:
                return (parse_layout(str(given)),)
            except OptionError as error:
                self.missing.append(f"settings.layout cannot be read: {error}")
                return None
        degrees = self._degrees(axis)
        if degrees is None:
            return None
        found: list[Layout] = []
        for degree in degrees[axis]:
            fields = {each: values[0] for each, values in degrees.items() if each != axis} | {axis: degree}
            try:
                found += self._spread(axis, fields)
            except OptionError as error:
                self.missing.append(f"hardware.topology makes no layout: {error}")
                return None
        if len(degrees[axis]) > 1:
            self.unknown.append(f"hardware.topology names several degrees of {axis}: {', '.join(map(str, degrees[axis]))}")
        return tuple(found)

    def _degrees(self, axis: str) -> dict[str, list[int]] | None:
        claim = self.claim
        degrees = vocabulary.degrees(claim.hardware.topology or "")
        count = claim.hardware.count
        devices = count if isinstance(count, int) else int(count) if count and re.fullmatch("[0-9]{1,6}", count) else None
        others = math.prod(values[0] for each, values in degrees.items() if each not in (axis, "ep"))
        if axis not in degrees:
            if devices is None or devices % others:
                what = "is not stated" if count is None else f"is {shown(count)}"
                self.missing.append(
                    f"hardware.count {what}, and hardware.topology names no degree of {axis}; would do: {axis.upper()}=N"
                )
                return None
            cluster = self.choices.get("cluster")
            if axis == "tp" and cluster and devices // others > cluster[0].topology.domain:
                self.missing.append(f"hardware.topology names no degree of tp for {devices} devices; would do: TP=N")
                return None
            degrees[axis] = [devices // others]
            self.assumptions.append(f"{axis}={devices // others}: all devices, as hardware.topology names no degree")
        if devices is not None:
            degrees["devices"] = [devices]
        return degrees

    def _spread(self, axis: str, fields: dict[str, Any]) -> list[Layout]:
        devices = fields.pop("devices", None)
        inner = math.prod(degree for each, degree in fields.items() if each != "ep")
        experts = fields.get("ep", 1)
        world = devices if devices is not None and devices >= inner else max(inner, experts)
        if world % inner == 0 and world > inner:
            rest = world // inner
            key = axis if axis in ("fsdp", "dp") and axis not in fields else "dp"
            fields[key] = fields.get(key, 1) * rest
            if axis != "ep":
                self.assumptions.append(f"{key}={fields[key]}: the devices that hardware.topology does not give to an axis")
        collectives = set(listed(self.claim.collective))
        kinds = [bool(collectives & {"all_gather", "reduce_scatter"})] if collectives else [False, True]
        if axis != "tp" or fields.get("tp", 1) == 1:
            kinds = [False]
        if len(kinds) > 1:
            self.unknown.append("collective: all_reduce, or all_gather and reduce_scatter (sp)")
        return [Layout(**fields, sp=sp) for sp in kinds]

    def _policy(self, axis: str, layout: Layout | None) -> Policy | None:
        given = self.claim.settings.get("overlap")
        found = vocabulary.overlap(self.claim, axis, layout.degree(axis) if layout else 1) if given is None else (str(given), "")
        if found is None:
            self.missing.append(f"software and settings name no overlap pass for {axis}; would do: settings: {{overlap: ...}}")
            return None
        text, why = found
        try:
            policy = parse_policy(text)
        except (OptionError, InputError) as error:
            self.missing.append(f"settings.overlap cannot be read: {error}")
            return None
        if not policy.of(axis).steps:
            self.missing.append(f"settings.overlap {shown(text)} has nothing on {axis}, the axis of the claim")
            return None
        if why:
            self.assumptions.append(f"{text} stands for what {self.claim.software.name or 'the claim'} does: {why}")
        whole = policy
        if given is None and layout is not None and layout.fsdp > 1 and axis != "fsdp":
            whole = joined(parse_policy(_IN_BOTH), axis, policy)
            self.assumptions.append(f"{_IN_BOTH} in the baseline too, as FSDP does by itself")
        self.choices["policy"] = (whole,)
        return policy

    def _numbers(self) -> None:
        workload, settings = self.claim.workload, self.claim.settings
        kinds, layouts = self.choices.get("kind", ()), self.choices.get("layout", ())
        batch, tokens = workload.batch, workload.sequence
        micro = settings.get("mbs")
        if isinstance(batch, str) and (both := re.fullmatch(r"MBS ?(\d{1,6}) GBS ?(\d{1,6})", batch, re.IGNORECASE)) and layouts:
            micro, batch = int(both[1]), max(1, int(both[2]) // layouts[0].data_parallel)
        elif isinstance(batch, str) and (two := re.fullmatch(r"(\d{1,6}) (?:or|to|-) (\d{1,6})", batch)):
            self.choices["batch"] = (int(two[1]), int(two[2]))
            self.unknown.append(f"workload.batch is {batch}: both are simulated")
        elif isinstance(workload.rows, int) and tokens is None and len(kinds) == 1:
            batch, tokens = (workload.rows, None) if kinds == ("decode",) else (1, workload.rows)
            self.assumptions.append(f"{workload.rows} rows are {'as many sequences' if tokens is None else 'one sequence'}")
        self._number("batch", "workload.batch", batch, DECODED if kinds == ("decode",) else BATCHES)
        self._number("tokens", "workload.sequence", tokens, LENGTHS)
        self.choices["micro"] = (micro if isinstance(micro, int) and not isinstance(micro, bool) else None,)
        if "batch" in self.choices and isinstance(batch, int) and any(layout.data_parallel > 1 for layout in layouts):
            self.assumptions.append("workload.batch counts the sequences of one data-parallel rank")
        if any(layout.pp > 1 for layout in layouts) and self.choices["micro"] == (None,):
            self.choices["micro"] = (1,)
            self.assumptions.append("micro-batches of 1 sequence: a pipeline needs several, and none are stated")
        uneven = settings.get("imbalance")
        experts = any(layout.ep > 1 for layout in layouts)
        known = isinstance(uneven, (int, float)) and not isinstance(uneven, bool)
        self.choices["imbalance"] = (float(uneven),) if known else IMBALANCES if experts else (1.0,)  # type: ignore[arg-type]  # checked as known
        if experts and not known:
            self.unknown.append(f"how uneven experts are: imbalance {_listed(IMBALANCES)}")

    def _number(self, name: str, field: str, value: object, values: tuple[int, ...]) -> None:
        if name in self.choices:
            return
        if isinstance(value, int):
            self.choices[name] = (value,)
            return
        self.choices[name] = values
        stated = "not stated" if value is None else f"{shown(value)}, no number"
        self.unknown.append(f"{field} is {stated}: swept over {_listed(values)}")

    def _precision(self) -> None:
        text = self.claim.workload.precision
        known = vocabulary.precision(text) if text is not None else None
        if known is not None:
            self.choices["precision"] = (known,)
            return
        cluster = self.choices.get("cluster")
        peaks = cluster[0].topology.processor.peak_flops if cluster else {}
        self.choices["precision"] = tuple(each for each in PRECISIONS if each in peaks) or PRECISIONS[:1]
        stated = "not stated" if text is None else f"{shown(text)}, of which no single one is known"
        self.unknown.append(f"workload.precision is {stated}: swept over {', '.join(self.choices['precision'])}")


def _listed(values: tuple[Any, ...]) -> str:
    return f"{values[0]:g} to {values[-1]:g}"
