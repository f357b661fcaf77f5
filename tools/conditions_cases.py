"""The comparisons of docs/conditions.md: models and workloads, and what each comparison came to."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import statistics

import msgspec

from underlap import inputs
from underlap.flows.run import Asked
from underlap.model import Model
from underlap.run import comparing
from underlap.run.fabric_spec import fabric_spec
from underlap.run.priority import Priority
from underlap.trial import LeftOut, Slowdown, Trial, Variant

REPETITIONS = 7
CORNER_REPETITIONS = 13
"""Where compute and communication take about as long, a step with the policy waits for whichever is late."""
MOST_SPREAD = 0.1
"""Of the steps of a comparison; beyond, it is run again."""
CORNER = (0.8, 1.25)
HIDDEN, QUICKER = 0.75, 1.1
"""Of the shorter of compute and communication: as much of it has to leave the step to call it hidden."""
SEGMENT = 1514 / 1448
"""Bytes on a link over those of TCP in it."""
HEAD = 64
DENSE = "train,gbs={0},mbs={0},seq=128,precision=fp32"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison of a policy with the baseline that overlaps nothing."""

    name: str
    section: str
    """Of the page: map, training, axes, size, contention, headroom, planted."""
    width: int
    intermediate: int
    layers: int
    workload: str
    layout: str = "tp=2"
    policy: str = "tp=split_batch"
    links: str = "500mbit"
    priority: Priority = "communication"
    experts: tuple[int, int] | None = None
    """(number, width of each)."""
    slowed: bool = False
    repetitions: int = REPETITIONS
    ceilings: tuple[tuple[str, LeftOut], ...] = ()
    """(baseline or policy, what its steps leave out), to hold promises to."""
    promised: str | None = None
    """baseline or policy: whose promises are held to measurement."""

    @property
    def launch(self) -> str:
        """Those that have it in common run in one launch."""
        return f"{self.links}{', rank 1 slowed' if self.slowed else ''}"

    @property
    def model(self) -> Model:
        """A dense model, or one with experts in every layer."""
        base = inputs.model("tiny-moe" if self.experts else "tiny-dense")
        found = msgspec.structs.replace(
            base,
            name=self.name,
            hidden=self.width,
            layers=self.layers,
            heads=self.width // HEAD,
            kv_heads=self.width // HEAD,
            head_dim=HEAD,
            intermediate=self.intermediate,
            vocab=256,
        )
        if self.experts is None:
            return found
        count, width = self.experts
        assert base.experts is not None
        experts = msgspec.structs.replace(base.experts, count=count, top_k=1, intermediate=width, shared=0, dense_layers=0)
        return msgspec.structs.replace(found, experts=experts)

    def asked(self) -> Asked:
        """For flows.run."""
        return Asked(
            model=self.model,
            layout=inputs.layout(self.layout),
            workload=inputs.workload(self.workload),
            policy=inputs.policy(self.policy),
            compared=True,
            repetitions=self.repetitions,
            fabric=fabric_spec(self.links),
            priority=self.priority,
            ceilings=self.ceilings,
            each_step=() if self.promised is None else (self.promised,),
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. Times in ms: medians over repetitions, means over ranks; steps of the slowest rank."""

    name: str
    section: str
    links: str
    priority: str
    slowed: bool
    layout: str
    policy: str
    workload: str
    shape: str
    compute: float
    """Of the baseline, which computes and communicates in turns."""
    slowest_compute: float
    """Of the baseline's rank that computes longest."""
    communication: float
    """Of the baseline."""
    link: float | None
    """What a link needs for the bytes that the plan sends, at its rate, headers included; None without a rate."""
    core: float
    """What communication takes of a rank's core in the baseline's step: gloo's threads and interrupts. Mean over repetitions."""
    base: float
    step: float
    """With the policy."""
    ratio: float
    ratio_low: float
    ratio_high: float
    outcome: str | None
    word: str | None
    base_hidden: float
    hidden: float
    sent: float
    """Communication with the policy."""
    bytes_equal: bool
    wire: tuple[float, float]
    """On the wire over planned, of baseline and policy."""
    spread: float
    """Of the steps: the middle half over the median, the larger of both."""
    others: float
    """Share of the steps for which other programs, or other virtual machines, had the cores."""
    attempts: int
    causes: tuple[list[tuple[str, float]], list[tuple[str, float]]]
    """Of exposed time, largest first, ms per step and rank; of baseline and policy."""
    late: tuple[str | None, str | None]
    promises: tuple[dict[str, tuple[float, float] | None], dict[str, tuple[float, float] | None]]
    """By lever, ms per step: medians over steps. Of planted causes."""
    more_compute: tuple[float, float, float]
    """Of the policy over that of the baseline, of steps in turns: value, low, high."""
    won: dict[str, tuple[float, float, float]]
    """By what is left out: what such steps won, of the plan that the case says: value, low, high."""
    slower: tuple[float, float, float] | None
    """What compute loses beside communication (a step with the policy, mean per rank): value, low, high. None where no difference
    is established."""
    made_with: str
    """Versions and machine."""

    @property
    def over(self) -> float:
        """compute / communication."""
        return self.compute / self.communication

    @property
    def bound(self) -> float:
        """max(compute of the slower rank + what communication takes of the core, communication), at the pace of the baseline."""
        return max(self.slowest_compute + self.core, self.communication)

    @property
    def above(self) -> float:
        """The step with the policy over the bound, minus 1."""
        return self.step / self.bound - 1

    @property
    def above_link(self) -> float:
        """The same over the bound that a link without bursts has. It is lower where bursts shortened the baseline's messages."""
        return self.step / max(self.bound, self.link or 0.0) - 1

    @property
    def allowed(self) -> float:
        """What it may be above the bound."""
        return 0.12 if CORNER[0] <= self.over <= CORNER[1] else 0.08

    @property
    def left(self) -> float:
        """Of the shorter of compute and communication: how much of it left the step."""
        return (self.base - self.step) / min(self.compute, self.communication)

    @property
    def regime(self) -> str:
        """By the established outcome."""
        if self.outcome == "gain":
            return "quicker" if self.left > QUICKER else "hidden" if self.left >= HIDDEN else "partly"
        return {"loss": "loss", "no difference": "nothing", None: "undecided"}[self.outcome]


def row(case: Case, trial: Trial, attempt: int) -> Row:
    """What a trial of a case came to."""
    base, policy = trial.variants
    ab = trial.ab
    assert ab is not None
    reports = (trial.baseline, trial.policy)
    return Row(
        name=case.name,
        section=case.section,
        links=case.links,
        priority=case.priority,
        slowed=case.slowed,
        layout=case.layout,
        policy=case.policy,
        workload=case.workload,
        shape=shape(case),
        compute=_median(base, "compute_ns"),
        slowest_compute=_median(base, "slowest_compute_ns"),
        communication=_median(base, "communication_ns"),
        link=_link(case, base),
        core=statistics.fmean(one.core_ns or 0 for one in base.parts) / 1e6,
        base=statistics.median(base.step_ns) / 1e6,
        step=statistics.median(policy.step_ns) / 1e6,
        ratio=ab.ratio,
        ratio_low=ab.ratio_low,
        ratio_high=ab.ratio_high,
        outcome=ab.outcome,
        word=ab.word,
        base_hidden=_median(base, "hidden_ns"),
        hidden=_median(policy, "hidden_ns"),
        sent=_median(policy, "communication_ns"),
        bytes_equal=ab.bytes_equal,
        wire=(_wire(base), _wire(policy)),
        spread=max(spread(each.step_ns) for each in (base, policy)),
        others=max(0.0, _others(base) + _others(policy)) / sum(base.step_ns + policy.step_ns),
        attempts=attempt,
        causes=tuple([(one.cause, one.exposed_ns / 2e6) for one in each.causes] if each else [] for each in reports),  # type: ignore[arg-type]  # two of them
        late=tuple(f"rank {each.late[0].rank}, {each.late[0].first_cause}" if each and each.late else None for each in reports),  # type: ignore[arg-type]  # two of them
        promises=(_promises(trial, base.name), _promises(trial, policy.name)),
        more_compute=_in_ms(
            *comparing.interval([two.compute_ns - one.compute_ns for one, two in zip(base.parts, policy.parts, strict=True)])
        ),
        won={one.left_out: _in_ms(one.won_ns, one.won_low_ns, one.won_high_ns) for one in trial.ceilings},
        slower=_slower(trial.slowdown),
        made_with=f"torch {importlib.metadata.version('torch')}, Python {platform.python_version()}, {os.cpu_count()} cores",
    )


def _slower(found: Slowdown | None) -> tuple[float, float, float] | None:
    if found is None or found.word != "slower":
        return None
    if found.cost_ns is None or found.cost_low_ns is None or found.cost_high_ns is None:
        return None
    return _in_ms(found.cost_ns, found.cost_low_ns, found.cost_high_ns)


def _in_ms(value: float, low: float, high: float) -> tuple[float, float, float]:
    return value / 1e6, low / 1e6, high / 1e6


def _median(variant: Variant, part: str) -> float:
    return statistics.median(getattr(one, part) for one in variant.parts) / 1e6


def _others(variant: Variant) -> int:
    return sum((part.stolen_ns or 0) + (part.others_ns or 0) for part in variant.parts)


def shape(case: Case) -> str:
    """The model in words."""
    experts = f", {case.experts[0]} experts of {case.experts[1]}" if case.experts else f", ffn {case.intermediate}"
    return f"{case.layers} layers of {case.width}{experts}"


def _link(case: Case, variant: Variant) -> float | None:
    """ms of the slowest link, which carries as much in each direction as the other."""
    ranks = inputs.layout(case.layout).world
    spec = fabric_spec(case.links)
    rates = [rate for rank in range(ranks) if (rate := spec.rate_of(rank)) is not None]
    if not rates or variant.wire is None:
        return None
    return 8e3 * SEGMENT * variant.wire.planned_bytes / ranks / min(rates)


def _wire(variant: Variant) -> float:
    assert variant.wire is not None
    assert variant.wire.ratio is not None
    return variant.wire.ratio


def spread(steps: list[int]) -> float:
    """The middle half of them over their median."""
    low, middle, high = statistics.quantiles(steps, n=4, method="inclusive")
    return (high - low) / middle


def _promises(trial: Trial, plan: str) -> dict[str, tuple[float, float] | None]:
    return {one.lever: (one.at_least_ns / 1e6, one.at_most_ns / 1e6) for one in trial.promises if one.plan == plan}


def _map(name: str, shape: tuple[int, int], prompts: int, links: str = "500mbit", intermediate: int | None = None) -> Case:
    """A prefill. Without `intermediate` attention and feed-forward take about as long, so that each message has as much compute
    beside it."""
    width, layers = shape
    work = f"prefill,batch={prompts},seq=128,precision=fp32"
    return Case(
        name=name,
        section="map",
        width=width,
        intermediate=intermediate or 3 * width // 2,
        layers=layers,
        workload=work,
        links=links,
    )


def _train(name: str, shape: tuple[int, int, int], sequences: int) -> Case:
    width, intermediate, layers = shape
    work = DENSE.format(sequences)
    return Case(name=name, section="training", width=width, intermediate=intermediate, layers=layers, workload=work)


def _independent(made: Case) -> Case:
    """Also measured without its dependences."""
    return dataclasses.replace(made, ceilings=(("baseline", "waits"),), promised="baseline")


def _short(name: str, links: str, priority: Priority = "communication") -> Case:
    """Messages of half a MiB, and a quarter with the policy: over a link of a rate worth hiding, over one without it short."""
    made = dataclasses.replace(_map(name, (512, 4), 2, links, 2048), section="contention", repetitions=21)
    return dataclasses.replace(made, priority=priority)


TRAIN = "train,gbs={0},mbs={1},seq=128,precision=fp32"
MIDDLE = {"width": 256, "intermediate": 1536, "workload": DENSE.format(8)}
"""Compute about as long as communication at 500 Mbit/s."""

CASES = (
    _map("map 0.1", (512, 2), 8, "100mbit"),
    _map("map 0.2", (768, 4), 4, "200mbit"),
    _map("map 0.4", (384, 4), 16),
    _independent(_map("map 0.55", (640, 6), 8)),
    _independent(dataclasses.replace(_map("map 0.9", (384, 16), 8, "1gbit"), repetitions=CORNER_REPETITIONS)),
    dataclasses.replace(_map("map 1.1", (512, 12), 8, "1gbit"), repetitions=CORNER_REPETITIONS),
    _map("map 2", (768, 10), 4, "2gbit"),
    _map("map 3", (1152, 6), 4, "2gbit"),
    _map("map 10", (1152, 2), 4, "2gbit", 18432),
    _train("train 0.4", (128, 128, 8), 16),
    _train("train 1.1", (256, 1536, 6), 8),
    Case(
        name="ep all-to-all",
        section="axes",
        width=512,
        intermediate=192,
        layers=2,
        workload=TRAIN.format(16, 8),
        layout="dp=2,ep=2",
        policy="ep=split_batch,dp=bucket:1MB",
        experts=(4, 768),
        links="1gbit",
    ),
    Case(
        name="dp bucket",
        section="axes",
        width=256,
        intermediate=1024,
        layers=3,
        workload=TRAIN.format(24, 12),
        layout="dp=2",
        policy="dp=bucket:2MB",
    ),
    Case(
        name="fsdp prefetch",
        section="axes",
        width=256,
        intermediate=1024,
        layers=6,
        workload=TRAIN.format(24, 12),
        layout="fsdp=2",
        policy="fsdp=prefetch:1",
        links="1gbit",
    ),
    Case(
        name="ep prefill",
        section="axes",
        width=512,
        intermediate=192,
        layers=6,
        workload="prefill,batch=16,seq=128,precision=fp32",
        layout="dp=2,ep=2",
        policy="ep=split_batch",
        experts=(4, 1024),
    ),
    Case(
        name="fsdp prefill",
        section="axes",
        width=256,
        intermediate=1024,
        layers=6,
        workload="prefill,batch=32,seq=128,precision=fp32",
        layout="fsdp=2",
        policy="fsdp=prefetch:1",
    ),
    Case(
        name="small batch",
        section="size",
        width=256,
        intermediate=1536,
        layers=8,
        workload=DENSE.format(2).replace("128", "16"),
        repetitions=21,
    ),
    Case(name="compute first", section="headroom", layers=6, priority="compute", **MIDDLE),
    Case(
        name="unshaped",
        repetitions=11,
        section="contention",
        width=256,
        intermediate=256,
        layers=4,
        workload=DENSE.format(16),
        links="unshaped",
    ),
    Case(
        name="unshaped large",
        repetitions=7,
        section="contention",
        width=256,
        intermediate=256,
        layers=2,
        workload="prefill,batch=128,seq=128,precision=fp32",
        links="unshaped",
    ),
    _short("unshaped short", "unshaped"),
    _short("unshaped short, default priority", "unshaped", "default"),
    _short("short", "500mbit"),
    Case(
        name="buckets",
        section="planted",
        width=256,
        intermediate=1024,
        layers=8,
        workload=TRAIN.format(2, 1).replace("seq=128", "seq=32"),
        layout="dp=2",
        policy="dp=bucket:1MB",
        links="unshaped",
        repetitions=81,
    ),
    # Of these two communication stays longer than compute over links of twice the rate: what that wins is the link's alone.
    dataclasses.replace(
        _train("little compute", (128, 128, 4), 16),
        section="planted",
        links="250mbit",
        ceilings=(("policy", "messages"), ("policy", "half_transfers")),
        promised="policy",
    ),
    dataclasses.replace(
        _map("slow link", (384, 4), 8, "500mbit,rank1=250mbit"),
        section="planted",
        ceilings=(("policy", "half_transfers"),),
        promised="policy",
    ),
    # Next to nothing of the communication is exposed by itself.
    dataclasses.replace(_map("even ranks", (1152, 3), 4, "2gbit"), section="planted"),
    dataclasses.replace(_map("slowed rank", (1152, 3), 4, "2gbit"), section="planted", slowed=True, promised="policy"),
)

INDEPENDENT = tuple(case.name for case in CASES if ("baseline", "waits") in case.ceilings)
"""Whose dependences are taken away as well."""
