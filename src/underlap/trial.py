"""`Trial`: what one launch of `underlap run` gave, and with `--ab` what the difference of two plans is worth. Its JSON."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

from underlap.report import Report

SCHEMA = "underlap.trial/1"

Outcome = Literal["gain", "no difference", "loss"]
LeftOut = Literal["waits", "messages", "half_transfers"]
Word = Literal["hidden", "removed", "shortened", "shifted"]


class RunBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one collective of one group moved in a step, summed over ranks."""

    group: str
    collective: str
    planned_bytes: int
    """Of the Plan's ledger."""
    counted_bytes: int
    """Of the tensors that were handed to the process groups."""


class ControlBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What a collective that is no operation of the Plan moved in a step, summed over ranks: the engine needs it to go on."""

    group: str
    collective: str
    what: str
    """What it is for."""
    counted_bytes: int
    """Payload, as of `RunBytes`."""


class WireBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What left the interfaces of all ranks in a step, beside what the plan's collectives have to send.

    Payload of TCP: what the interfaces counted, without 66 bytes of headers per packet and without what the barrier around a step
    sends. Numbers that the engine exchanges beside the plan (rows per expert), and packets that were sent again, are in it.
    """

    planned_bytes: int
    """Of the Plan's ledger: what leaves the ranks when each collective sends the least that it can."""
    sent_bytes: list[int]
    """In each measured repetition."""
    received_bytes: list[int]
    ratio: float | None
    """Median of what was sent over what was planned. Null where nothing was planned."""
    barrier_bytes: int
    """Of one barrier; subtracted."""

    @property
    def median_sent_bytes(self) -> int:
        """Of the measured repetitions."""
        return round(statistics.median(self.sent_bytes))


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition, mean over ranks: unions as in a Report."""

    compute_ns: int
    slowest_compute_ns: int
    """Of the rank that computes longest: with it no step is shorter."""
    communication_ns: int
    transfer_ns: int | None
    """Of communication, what follows the arrival of the last rank: without waiting. Null where ranks have no common clock."""
    hidden_ns: int
    exposed_ns: int
    library_cpu_ns: int
    """CPU time of all threads but the one that computes."""
    core_ns: int | None
    """What communication takes of the only core of a rank: the library's threads, and the kernel's work for the links. Without
    overlap it is what the core was busy with beside the thread that computes and beside other programs. In steps of 10 ms, so
    several repetitions are needed, and a single one can be below 0. Null where ranks may use several cores (without --fabric) or
    share one."""
    stolen_ns: int | None = None
    """How long that core was given to other virtual machines, in steps of 10 ms too. Null where core_ns is."""
    others_ns: int | None = None
    """How long other programs had it, outside the kernel. In a single repetition it can be below 0. Null where core_ns is."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One plan, as it was run."""

    name: str
    policy: str
    step_ns: list[int]
    """Of each measured repetition: the slowest rank's time from a barrier to its last operation."""
    host_issue_share: float
    """Of the step, mean over ranks and repetitions: the host neither computed nor waited. On GPUs: the compute lane had nothing
    to do, as the host had not issued it yet."""
    bytes_by_axis: list[RunBytes]
    control: list[ControlBytes]
    """Beside them: with these rows nothing of a step goes to a process group without being counted."""
    unmatched_keys: int
    """Structural keys that the plan or the record has and the other has not."""
    loss: float | None
    """Of the last step, mean over all tokens. Null without training."""
    tokens: list[int] | None = None
    """Of a decode: the likeliest second token behind the prompt of each sequence (the prefill chose the first). Else null."""
    refused: list[str]
    """Passes that were not applied, each with its reason."""
    wire: WireBytes | None = None
    """Null without --fabric: other interfaces carry the bytes of others too."""
    parts: list[StepParts] = []
    """Of each measured repetition."""
    typical: int = 0
    """The repetition nearest to the medians of step, compute, communication and exposed communication, from 0: the one that the
    record and the Report show in a comparison."""

    @property
    def median_step_ns(self) -> int:
        """Of the measured repetitions."""
        return round(statistics.median(self.step_ns))


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Policy against baseline, repetition by repetition."""

    ratio: float
    """Median over repetitions of the policy's step time over the baseline's."""
    ratio_low: float
    ratio_high: float
    """Order statistics of the ratios that hold their median with at least 95 %."""
    outcome: Outcome | None
    """Null where the interval allows more than one."""
    same_within: float
    """No difference: the whole interval lies within this of 1. As much as a ratio differs from launch to launch."""
    word: Word | None
    """What the policy did to communication. Null where no outcome is established, or none of the four fits."""
    bytes_equal: bool
    bytes_by_axis: list[RunBytes]
    """Of the policy."""
    max_output_difference: float
    """Of losses (or logits) in the first step, relative to the largest."""
    max_gradient_difference: float | None
    """Of gradients in the first step, relative to the largest of each. Null without training."""
    repetitions: int
    host_issue_share: float
    """The larger of the two."""
    hidden_ns: tuple[int, int]
    """Communication hidden behind compute, mean per rank, of baseline and policy in their typical step."""
    notes: list[str]


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """What compute loses beside communication. Of the last steps of both plans in one window, as `analyze` compares them:
    operations that ran beside communication with the policy ran alone without it."""

    word: str
    """slower, faster, no difference seen, not established, or unknown."""
    reason: str | None
    """Why it is no more than that."""
    ratio: float | None
    """Time beside communication over time alone, of the operations that ran on both sides."""
    ratio_low: float | None
    ratio_high: float | None
    cost_ns: int | None
    """By how much longer compute beside communication took than alone: of all those steps, over the number of those with the
    policy (the others hide next to nothing), mean per rank of the record. Null unless compute is slower or faster there."""
    cost_low_ns: int | None
    cost_high_ns: int | None


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Steps with something left out, in turns with steps as planned: what they won is what no schedule of the same work beats,
    or what half the bytes would win."""

    plan: str
    left_out: LeftOut
    """waits: nothing is waited for before the end of the step. messages: nothing is sent. half_transfers: links have twice their
    rate."""
    lever: str
    """Of the plan's Report, which promises as much."""
    step_ns: list[int]
    """Without it, of the slowest rank, in each repetition. What a step without waits or messages computes is wrong."""
    planned_step_ns: list[int]
    """As planned, in the step next to it."""
    won_ns: int
    """Median over repetitions of the difference of the two."""
    won_low_ns: int
    won_high_ns: int
    """Order statistics of the differences that hold their median with at least 95 %."""
    promised_low_ns: int | None
    """What `promises` say is won at least: 0 of a ceiling. Null where they do not."""
    promised_ns: int | None
    """And at most."""


class Promised(msgspec.Struct, frozen=True, kw_only=True):
    """What the analysis says that a lever would win of a step: medians over the measured steps, each analyzed by itself."""

    plan: str
    lever: str
    """As in a Report."""
    at_least_ns: int
    at_most_ns: int
    steps: int
    """So many of them knew."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One time, simulated and measured."""

    predicted_ns: int
    measured_ns: int
    """Median over repetitions."""
    low_ns: int
    high_ns: int
    """Order statistics of the repetitions that hold their median with at least 95 % (six or more; else the extremes)."""
    error: float | None
    """predicted / measured - 1. Null where nothing was measured to compare with: 0 ns."""
    within: bool
    """Whether the prediction lies from low to high: closer than that the measurement cannot tell."""


class FamilyBeside(msgspec.Struct, frozen=True, kw_only=True):
    """The transfers of one collective in one group."""

    group: str
    collective: str
    calls: float
    """In a step, mean per rank."""
    time: Beside
    """Of all of them in a step, one after the other, waiting for peers included; mean per rank."""


class OperationsBeside(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of one name, joined by structural key."""

    name: str
    """phase/role."""
    what: Literal["compute", "transfer"]
    calls: float
    """In a step, mean per rank."""
    time: Beside
    """Of all of them in a step; mean per rank."""
    furthest: str
    """The structural key whose prediction is furthest off."""
    furthest_time: Beside
    """Its time; mean over the ranks that have it."""


class VariantBeside(msgspec.Struct, frozen=True, kw_only=True):
    """One plan: simulated, and as it was run."""

    name: str
    step: Beside
    """Of the slowest rank, as in `Variant.step_ns`."""
    step_low_ns: int | None = None
    step_high_ns: int | None = None
    """The simulated step with every measured cost of the cluster at the quick and at the slow end of its range at once. Null
    where costs are a model."""
    compute: Beside
    """This and the next four: unions in a step as in a Report, mean per rank."""
    communication: Beside
    transfer: Beside | None
    """Of it, without waiting for a late rank: a simulation has no ranks that are late by chance. Null without a common clock."""
    hidden: Beside
    exposed: Beside
    families: list[FamilyBeside]
    operations: list[OperationsBeside]
    """Those that differ most, in ns, first."""


class ComparisonBeside(msgspec.Struct, frozen=True, kw_only=True):
    """Policy over baseline, simulated beside measured."""

    predicted_ratio: float
    measured_ratio: float
    ratio_low: float
    ratio_high: float
    predicted: Outcome
    """Gain or loss beyond 0.5 %, less than any cost here is known to; else no difference."""
    sign_agrees: bool | None
    """Whether the established outcome has the predicted sign (no difference: within 5 %). Null where none is established."""


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """The same plans, simulated, beside what was measured."""

    provenance: Literal["simulated"] = "simulated"
    cluster: str
    variants: list[VariantBeside]
    ab: ComparisonBeside | None
    """Null without --ab."""
    assumptions: list[str]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a launch gave. Times and bytes are measured on these ranks only."""

    schema: str = SCHEMA
    model: str
    layout: str
    workload: str
    ranks: int
    library: Literal["gloo", "nccl"] = "gloo"
    """What carried the collectives: gloo between CPUs, NCCL between GPUs."""
    variants: list[Variant]
    baseline: Report
    policy: Report | None = None
    """Null without --ab."""
    ab: Comparison | None = None
    slowdown: Slowdown | None = None
    """Null without --ab, and where a pass cuts operations into parts, which nothing is there to compare with."""
    ceilings: list[Ceiling] = []
    """This and the next: empty without --ceilings."""
    promises: list[Promised] = []
    notes: list[str] = []
    prediction: Foretold | None = None
    """Null without --predict. The one part that is simulated."""
    fabric: str | None = None
    """The links, as --fabric names them. Null: ranks of this machine over loopback, or the network of a job."""
    priority: str = "default"
    """Whether communication may interrupt compute, as --priority names it."""


def to_json(trial: Trial) -> bytes:
    """The Trial as JSON, keys in declared order, one space of indent."""
    return msgspec.json.format(msgspec.json.encode(trial), indent=1) + b"\n"
