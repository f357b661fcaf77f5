"""`Claim`: a statement about overlap together with the conditions under which it was made. What is not known is null.

    statement: tensor-parallel communication is at least 80 % hidden, and the bytes stay the same
    metric: hidden_share
    of: transfer
    value: {at_least: 80}
    unit: "%"
    axis: tp
    bytes: {unchanged: true}
    source: {title: acceptance criterion of our nightly job}

A number has a metric (METRICS), a unit (UNITS) and, as a percentage, a denominator (`of`): without them it does not travel.
docs/claims.md documents the fields. This file knows no Report: what a claim is worth is for `judge` to say.
"""

from __future__ import annotations

import datetime

import msgspec

SCHEMA = "underlap.claim/1"

UNITS = {
    **dict.fromkeys(["ns", "us", "ms", "s"], "time"),
    **dict.fromkeys(["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"], "bytes"),
    **dict.fromkeys(["GB/s", "GiB/s"], "bandwidth"),
    **dict.fromkeys(["tokens/s", "tokens/s/GPU", "TFLOPS/GPU"], "throughput"),
    "x": "ratio",
    "%": "percent",
    "SMs": "multiprocessors",
    "tokens": "tokens",
}
"""Unit -> what it measures. kB, MB, GB are powers of 1000; KiB, MiB, GiB of 1024."""
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SCALE: dict[str, float] = {**_TIMES, **_DECIMAL, **_BINARY, "GB/s": 1, "GiB/s": 2**30 / 10**9, "x": 1, "%": 0.01}
"""What one of the unit is in ns, bytes, GB/s, or as a plain ratio."""
DENOMINATORS = {
    "transfer": "the time that data moves, waiting for peers left out",
    "kernel_time": "the time of communication kernels, waiting for peers included",
    "step": "the step, or the window that is looked at",
    "baseline_time": "the baseline's time",
    "baseline_rate": "the baseline's rate",
    "alone": "the same kernels with nothing beside them",
    "ideal_gain": "the gain with max(compute, communication) instead of their sum",
    "unhidden_communication": "the communication that the baseline leaves in the open",
    "peak": "the peak of the hardware",
}


class Metric(msgspec.Struct, frozen=True):
    """What a figure measures."""

    short: str
    """At most eight characters, for a table."""
    meaning: str
    measures: tuple[str, ...]
    """Kinds of unit (values of UNITS)."""
    of: tuple[str, ...] = ()
    """Denominators that a percentage of it can have."""
    share: bool = False
    """Between 0 and 100 %."""
    whole: bool = False
    """A time of a whole run, which the price of contention is inside of by construction."""


_RATIO = ("ratio", "percent")
METRICS = {
    "hidden_share": Metric(
        "hidden", "communication that coincides with compute", ("percent",), ("transfer", "kernel_time"), share=True
    ),
    "exposed_share": Metric("exposed", "exposed communication as a part of the step", ("percent",), ("step",), share=True),
    "communication_share": Metric(
        "comm", "communication, hidden or not, as a part of the step", ("percent",), ("step",), share=True
    ),
    "waiting_share": Metric(
        "waiting", "waiting for peers inside communication kernels", ("percent",), ("kernel_time",), share=True
    ),
    "saved_share": Metric("saved", "time saved, of the communication that was moved", ("percent",), ("unhidden_communication",)),
    "overlap_efficiency": Metric(
        "overlap",
        "1 - (time beyond the fastest unsplit compute) / (the same without overlap)",
        ("percent",),
        ("unhidden_communication",),
    ),
    "ideal_gain_share": Metric("of ideal", "gain realized of the ideal gain", ("percent",), ("ideal_gain",)),
    "exposed_time": Metric("exposed", "exposed communication per step, mean over ranks", ("time",)),
    "step_time": Metric("step", "time of a step", ("time",), whole=True),
    "bytes_per_step": Metric("bytes", "payload per step, mean over ranks", ("bytes",)),
    "bus_bandwidth": Metric("bandw.", "bus bandwidth over transfer time", ("bandwidth",)),
    "end_to_end_speedup": Metric(
        "run", "speed-up of a whole step or request", _RATIO, ("baseline_time", "baseline_rate"), whole=True
    ),
    "end_to_end_slowdown": Metric(
        "slower", "a whole step or request gets slower", _RATIO, ("baseline_time", "baseline_rate"), whole=True
    ),
    "forward_speedup": Metric(
        "forward", "speed-up of the forward pass alone", _RATIO, ("baseline_time", "baseline_rate"), whole=True
    ),
    "operator_speedup": Metric(
        "operator", "speed-up of one operator, pair, layer or block", _RATIO, ("baseline_time", "baseline_rate")
    ),
    "operator_time": Metric("operator", "time of one operator or pair", ("time",)),
    "time_ratio": Metric("ratio", "time with overlap / time without, of a micro-benchmark", _RATIO, ("baseline_time",)),
    "collective_speedup": Metric("alone", "a collective alone gets faster", _RATIO, ("baseline_time", "baseline_rate")),
    "collective_slowdown": Metric("slower", "a collective alone gets slower", _RATIO, ("baseline_time", "baseline_rate")),
    "compute_stretch": Metric("stretch", "compute beside communication gets slower", _RATIO, ("alone",)),
    "communication_stretch": Metric("stretch", "communication beside compute gets slower", _RATIO, ("alone",)),
    "throughput": Metric("rate", "throughput of a whole run, as such", ("throughput",), whole=True),
    "utilization": Metric("of peak", "arithmetic of a whole run, of the peak", ("percent",), ("peak",), share=True, whole=True),
    "multiprocessors": Metric("held", "multiprocessors that communication holds", ("multiprocessors",)),
    "size_condition": Metric("size", "size from which communication can be hidden, by arithmetic", ("tokens",)),
}
PHASES = (
    "train",
    "forward",
    "backward",
    "prefill",
    "decode",
    "inference",
    "serving",
    "rollout",
    "operator",
    "micro_benchmark",
)
EFFECTS = {
    "hidden": "same bytes, less of them on the critical path",
    "removed": "fewer bytes",
    "shortened": "same bytes, faster on the wire",
    "shifted": "covered in the picture, step time unchanged",
}
COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "combine",
    "dispatch",
    "gather",
    "permute",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "send_recv",
)


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is claimed of the metric: one of the forms. A plain number is a point, meant as precisely as it is written."""

    at_least: float | None = None
    at_most: float | None = None
    low: float | None = None
    high: float | None = None
    """With low: the range that all of what was measured lies in."""
    up_to: float | None = None
    """The best case of a source: nothing is said of the others."""
    points: list[float] | None = None
    """Several figures, for several systems or sizes; as_stated.unit says which is which."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """On what it was measured."""

    model: str | None = None
    phase: str | list[str] | None = None
    """One or several of PHASES."""
    batch: int | str | None = None
    sequence: int | str | None = None
    """Tokens per sequence."""
    precision: str | None = None
    rows: int | list[int] | None = None
    """Rows of the matrix multiplications (tokens that go through at once): one, or the smallest and the largest."""


class Bytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent."""

    reported: int | str | None = None
    unchanged: bool | None = None
    """Whether exactly the bytes of the baseline are sent."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it ran on."""

    gpu: str | None = None
    count: int | str | None = None
    interconnect: str | None = None
    topology: str | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With what."""

    name: str | None = None
    version: str | None = None


class SourceOfClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who says so."""

    title: str
    year: int | None = None
    where: str | None = None
    checked: datetime.date | None = None
    """When somebody last compared the claim with its source."""


class AsStated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source's own words, where they say more than the field of the same name."""

    metric: str | None = None
    unit: str | None = None
    phase: str | None = None
    axis: str | None = None
    collective: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module docstring."""

    schema: str = SCHEMA
    id: str | None = None
    statement: str
    value: float | Value | None = None
    unit: str | None = None
    metric: str | None = None
    """One of METRICS. Null where the source does not make clear what was measured."""
    of: str | None = None
    """The denominator of a percentage: one of DENOMINATORS. Null where the source does not say."""
    baseline: str | None = None
    workload: Workload = Workload()
    axis: str | list[str] | None = None
    """Names as in a Report: tp, dp, ep, `dp x cp`. Several where the figure covers several."""
    collective: str | list[str] | None = None
    """One or several of COLLECTIVES."""
    bytes: Bytes = Bytes()
    effect: list[str] = []
    """What happened to the communication, as far as the source tells: some of EFFECTS."""
    slack: str | None = None
    """How long after the communication its result is needed."""
    contention_included: bool | None = None
    """Whether the figure contains what compute and communication lose beside each other."""
    hardware: Hardware = Hardware()
    software: Software = Software()
    settings: dict[str, bool | int | float | str] = {}
    """Flags and environment variables that the figure depends on."""
    source: SourceOfClaim
    unknowns: list[str] = []
    note: str | None = None
    as_stated: AsStated = AsStated()


def listed(value: str | list[str] | None) -> list[str]:
    """One, several or none, as a list."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def numbers(value: float | Value | None) -> list[float]:
    """All figures of a value, in the order of its fields."""
    if value is None or not isinstance(value, Value):
        return [] if value is None else [value]
    single = (value.at_least, value.at_most, value.low, value.high, value.up_to)
    return [number for number in single if number is not None] + (value.points or [])


def written(value: float | Value | None, unit: str | None) -> str | None:
    """`at least 80 %`, `1.14 to 1.38 x`: how a value is said. None without one."""
    if value is None:
        return None
    tail = f" {unit}" if unit else ""
    if not isinstance(value, Value):
        return f"{value:.12g}{tail}"
    if value.low is not None:
        return f"{value.low:.12g} to {value.high:.12g}{tail}"
    if value.points is not None:
        return ", ".join(f"{point:.12g}" for point in value.points) + tail
    for words, number in (("at least", value.at_least), ("at most", value.at_most), ("up to", value.up_to)):
        if number is not None:
            return f"{words} {number:.12g}{tail}"
    return None
