"""What the questions before a run are answered with: where overlap pays (`Sweep`), what each axis adds (`Ladder`), what would
help most (`Levers`). Simulated, never measured. Their JSON is the record; it grows by adding only.

Times in ns, sizes in bytes, shares in [0, 1]. Null: not known, or it does not apply; the neighboring field says why.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["hides_fully", "hides_partly", "does_nothing", "loses", "refused", "memory", "invalid"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer says first."""

    provenance: str = "simulated"
    model: str
    cluster: str
    does_not_support: list[str]
    """What must not be concluded from it."""


# ---- sweep


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One layout, policy, batch and sequence: overlap against none of it."""

    layout: str
    policy: str
    batch: int
    seq: int
    verdict: Verdict
    reason: str | None = None
    """Of refused, memory and invalid."""
    step_ns: int | None = None
    none_step_ns: int | None = None
    """Without the policy."""
    step_ratio: float | None = None
    """step_ns / none_step_ns."""
    exposed_share: float | None = None
    """Exposed communication, mean over ranks, over the step; with the policy."""
    none_exposed_share: float | None = None
    axis_exposed_share: float | None = None
    """Of the communication of the policy's axes, what is exposed; with the policy. Null where they have none."""
    memory_bytes: int | None = None
    """Of the fullest rank, with the policy."""


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Where along one axis of the grid overlap begins or ceases to pay."""

    layout: str
    policy: str
    along: Literal["batch", "seq"]
    at: int
    """The value of the other one."""
    low: int
    """The last grid point on the one side,"""
    high: int
    """and the first on the other: the border lies between them."""
    pays: Literal["above", "below"]
    """On which side of the border the step is shorter."""


class ReasonCount(msgspec.Struct, frozen=True, kw_only=True):
    """Points that could not be computed for the same reason."""

    verdict: Verdict
    reason: str
    """Of the first of them."""
    points: int


class Sweep(Answer, frozen=True, kw_only=True):
    """The map of conditions."""

    schema: str = "underlap.sweep/1"
    workload: str
    """Of the first grid point."""
    batches: list[int]
    seqs: list[int]
    layouts: list[str]
    policies: list[str]
    same_ratio: float
    """Step ratios this close to 1 are no difference."""
    hidden_share: float
    """Of the policy's communication: with at least so much of it hidden, overlap hides fully."""
    points: list[SweepPoint]
    """Layout by layout, policy by policy, sequence by sequence, in order of batch."""
    break_even: list[BreakEven]
    reasons: list[ReasonCount]
    """Most points first."""


# ---- ladder


class RungCost(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that was not there one rung before."""

    group: str
    axis: str
    """Mesh dimensions."""
    collective: str
    link: Literal["scale_up", "scale_out"]
    calls: int
    """Of one rank of each stage, summed over stages."""
    bytes_per_gpu: int
    """Sent, mean over all ranks."""
    communication_ns: int | None
    """Of its group, mean over ranks: all collectives of one group together."""
    exposed_ns: int | None


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One step from one device to the whole layout."""

    adds: str
    """one device; tp=8; ...; overlap."""
    layout: str
    policy: str
    gpus: int
    problem: str | None = None
    """Why there are no times: it cannot be laid out."""
    fits: bool | None = None
    """Whether the fullest rank fits its memory. Times are given all the same: of a machine with more."""
    memory_bytes: int | None = None
    step_ns: int | None = None
    single_ns: int | None = None
    """The step with one micro-batch per replica (interleaved: the fewest it can be): what one request has to wait."""
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    exposed_ns: int | None = None
    """Communication of all groups, mean over ranks."""
    lifts: list[Literal["capacity", "latency", "traffic"]] = []
    """Against the last rung that could be laid out. capacity: it did not fit, and memory per rank falls; latency: single_ns
    falls; traffic: tokens_per_s rises."""
    costs: list[RungCost] = []


class Ladder(Answer, frozen=True, kw_only=True):
    """From one device to the parallel engine, an axis at a time."""

    schema: str = "underlap.ladder/1"
    workload: str
    device_memory_bytes: int
    rungs: list[Rung]


# ---- levers


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the scenario."""

    kind: Literal["layout", "in_network", "bytes", "overlap", "pair"]
    change: str
    step_ns: int | None = None
    step_ratio: float | None = None
    """Against the scenario as it is."""
    word: str | None = None
    """hidden, removed, shortened, shifted, or a loss."""
    exposed_ns: int | None = None
    sent_bytes: int | None = None
    """By all ranks in one step."""
    memory_bytes: int | None = None
    fits: bool | None = None
    costs: str
    """What it asks for, in words."""
    problem: str | None = None
    """Why it was not tried."""


class Levers(Answer, frozen=True, kw_only=True):
    """The remedies, best first."""

    schema: str = "underlap.levers/1"
    layout: str
    workload: str
    policy: str
    step_ns: int
    exposed_ns: int
    sent_bytes: int
    memory_bytes: int
    noise: float
    """Gains below this share of the step are not ranked."""
    ranked: list[Lever]
    not_ranked: list[Lever]
    """No difference, losses, what does not fit, and what could not be tried."""
    pair: Lever | None
    """The best two of different kinds together. Null where there are no two."""


def answer_json(answer: Answer) -> bytes:
    """The answer as JSON, one space of indent."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"
