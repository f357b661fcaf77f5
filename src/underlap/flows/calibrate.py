"""Measure this machine as ranks of `underlap run` see it, and make a Cluster of it that simulations take."""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import yaml

from underlap import inputs
from underlap._version import __version__
from underlap.cluster import MEASURED
from underlap.cost.fitting import not_negative
from underlap.cost.link_fit import LEAST_SIZES, ranges
from underlap.cost.testbed import (
    AttentionPoint,
    Beside,
    Compute,
    HostCosts,
    ProductPoint,
    StreamPoint,
    Testbed,
    TransferPoint,
    Transfers,
    Value,
)
from underlap.cost.testbed_prices import residuals
from underlap.errors import OptionError
from underlap.flows import started_here
from underlap.flows.calibration_shapes import QUICK, SHAPES, divides, times
from underlap.model import Model
from underlap.planner import plan as planned
from underlap.run.comparing import interval
from underlap.run.fabric_spec import FabricSpec, fabric_spec, fabric_text
from underlap.run.priority import Priority
from underlap.workload import check_workload

if TYPE_CHECKING:
    from underlap.run.measuring import Measurements
    from underlap.run.measuring_transfers import Measuring, Sample, Small

SIZES = tuple(2**power for power in range(12, 24))
"""4 KiB to 8 MiB on the wire of each rank."""
BUDGET_S = 55.0
"""Of measuring; starting the ranks comes on top."""
LONGEST_TRANSFER_S = 0.15
"""Larger sizes are left out on slow links."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to measure."""

    ranks: int = 2
    fabric: FabricSpec | None = None
    priority: Priority = "default"
    precision: str = "fp32"
    repetitions: int = 9
    budget_s: float = BUDGET_S
    timeout_s: float = 30.0
    sizes: tuple[int, ...] = SIZES
    quick: bool = False
    """A few shapes only, for tests."""
    quiet: bool = False


def asked(*, fabric: str | None = None, **options: object) -> Asked:
    """Raises OptionError for what cannot be measured."""
    made = Asked(fabric=fabric_spec(fabric) if fabric is not None else None, **options)  # type: ignore[arg-type]  # as given
    if made.precision not in ("fp32", "bf16"):
        raise OptionError(f"precision={made.precision}: expected fp32 or bf16, which the engine computes in")
    return made


def calibrate(what: Asked) -> bytes:
    """The YAML of a Cluster, measured here. Raises OptionError where it cannot be measured, RunError where a rank fails."""
    started_here.check_network(what.fabric, what.priority, messages=False)
    _sizes(what)
    cores = started_here.cores()
    if what.ranks > cores:
        raise OptionError(
            f"ranks={what.ranks} on {cores} cores: expected a core for each, as ranks that share one measure each other"
        )
    started_here.check_torch("calibrate")
    return encoded(_cluster(what, _measured(what)))


def _measured(what: Asked) -> Measurements:
    with (
        tempfile.TemporaryDirectory(prefix="underlap-calibrate-") as folder,
        started_here.network(what.fabric, what.ranks) as made,
    ):
        from underlap.run.launch import Local, launch
        from underlap.run.measuring import Measurements, measure

        job = _job(what, Path(folder))
        how = started_here.over(made, Local(ranks=what.ranks, timeout_s=what.timeout_s))
        launch(measure, [job] * what.ranks, how)
        return msgspec.json.decode(job.outcome.read_bytes(), type=Measurements)


def _job(what: Asked, folder: Path) -> Measuring:
    from underlap.run.measuring_transfers import Measuring

    rate = _bytes_per_s(what)
    burst = what.fabric.burst if what.fabric is not None else 0
    shapes = [shape for shape in (QUICK if what.quick else SHAPES) if divides(*shape[:2], what.ranks)]
    return Measuring(
        plans=tuple(_small(*shape, what) for shape in shapes),
        sizes=_sizes(what),
        repetitions=what.repetitions,
        budget_s=what.budget_s,
        pause_s=max(0.003, 1.5 * burst / rate) if rate is not None else 0.001,
        precision=what.precision,
        priority=what.priority,
        outcome=folder / "outcome.json",
        quiet=what.quiet,
    )


def _sizes(what: Asked) -> tuple[int, ...]:
    """Of transfers, in bytes on the wire. Raises OptionError where the link is too slow for enough of them."""
    rate = _bytes_per_s(what)
    sizes = tuple(size for size in what.sizes if rate is None or size / rate <= LONGEST_TRANSFER_S)
    if len(sizes) < LEAST_SIZES:
        raise OptionError(
            f"fabric: {len(sizes)} sizes of transfers take {LONGEST_TRANSFER_S:g} s or less on the slowest link: expected "
            f"{LEAST_SIZES} or more, to tell start, burst and rate apart; calibrate on faster links"
        )
    return sizes


def _bytes_per_s(what: Asked) -> float | None:
    """Of the slowest link, headers included."""
    if what.fabric is None:
        return None
    rates = [what.fabric.rate_of(rank) for rank in range(what.ranks)]
    held = [rate for rate in rates if rate is not None]
    return min(held) / 8 if held else None


def _small(model: Model, layout: str, workload: str, sends: bool, what: Asked) -> Small:
    from underlap.run.measuring_transfers import Small

    made_layout = inputs.layout(layout.replace("R", str(what.ranks)))
    text = ",".join(times(part, what.ranks) for part in workload.split(","))
    made_workload = inputs.workload(f"{text},precision={what.precision}")
    check_workload(made_workload, made_layout, model)
    plan = planned(model, made_layout, made_workload, domain=what.ranks)
    return Small(model=model, layout=made_layout, workload=made_workload, plan=plan, sends=sends)


# ---- figures of the samples


def _cluster(what: Asked, found: Measurements) -> dict[str, object]:
    """The document: a Cluster with its `measured` section."""
    by_kind: dict[str, list[Sample]] = {}
    for sample in found.samples:
        by_kind.setdefault(sample.kind, []).append(sample)
    compute = _compute(by_kind, found)
    rate = _bytes_per_s(what)
    transfers = {name: _transfers(name, by_kind, found) for name in dict.fromkeys(one.name for one in by_kind["transfer"])}
    testbed = Testbed(
        library="gloo",
        source=f"underlap calibrate {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, torch {found.torch}, "
        f"{what.ranks} ranks, {found.repeated} further repetitions where times scattered",
        ranks=what.ranks,
        precision=what.precision,
        fabric=fabric_text(what.fabric) if what.fabric is not None else None,
        fabric_bytes_per_s=rate,
        priority=what.priority,
        compute=compute,
        transfers=transfers,
        host=_host(by_kind),
        beside=Beside(
            compute_stretch=_value(found.compute_stretch, least=1.0),
            transfer_stretch=_value(found.transfer_stretch, least=1.0),
            cpu_share=_value([min(0.99, share) for share in found.beside_cpu_share]),
        ),
    )
    fastest = max(2e3 * p.m * p.n * p.k / p.us for points in compute.products.values() for p in points)
    widest = max(1e6 * p.bytes / p.us for points in compute.streams.values() for p in points)
    return {
        "name": f"{what.ranks} cores, gloo over {testbed.fabric or 'loopback'}",
        "gpus": what.ranks,
        "domain": what.ranks,
        "processor": {
            "name": "one core",
            "architecture": "cpu",
            "sms": None,
            "peak_flops": {what.precision: f"{fastest / 1e3:.4g} GFLOP/s"},
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // what.ranks,
            "memory_bandwidth": f"{widest / 1e9:.4g} GB/s",
            "copy_engines": 0,
            "launch": f"{1e3 * compute.between_us.value:.0f} ns",
        },
        "scale_up": {
            "name": testbed.fabric or "loopback",
            "bytes_per_s": testbed.link_bytes_per_s,
            "latency": f"{1e3 * min(one.start_us.value for one in transfers.values()):.0f} ns",
            "switched": True,
        },
        MEASURED: msgspec.to_builtins(testbed),
    }


def encoded(document: dict[str, object]) -> bytes:
    """As YAML: points one per line."""
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=200, allow_unicode=True)
    return text.encode()


class _Dumper(yaml.SafeDumper):
    """Writes mappings without mappings in them on one line."""

    def represent_mapping(self, tag: str, mapping: object, flow_style: bool | None = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)  # type: ignore[arg-type]  # a mapping
        flat = all(isinstance(value, yaml.ScalarNode) for _, value in node.value)
        node.flow_style = (flat and len(node.value) > 1 and "value" in str(node.value[0][0].value)) or _is_point(node)
        return node


def _is_point(node: yaml.MappingNode) -> bool:
    return bool(node.value) and str(node.value[0][0].value) == "us"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _point(ns: Sequence[int]) -> dict[str, float | int]:
    middle, low, high = interval([float(value) for value in ns])
    return {"us": _rounded(middle / 1e3), "low_us": _rounded(low / 1e3), "high_us": _rounded(high / 1e3), "repetitions": len(ns)}


def _value(values: Sequence[float], least: float = 0.0) -> Value:
    middle, low, high = (_rounded(max(least, value)) for value in interval(list(values)))
    return Value(value=middle, low=low, high=high)


def _compute(by_kind: dict[str, list[Sample]], found: Measurements) -> Compute:
    products: dict[str, list[ProductPoint]] = {}
    for one in by_kind["product"]:
        m, n, k, groups = (int(value) for value in one.size)
        if m and n and k:
            products.setdefault(one.name, []).append(_made(ProductPoint, one, m=m, n=n, k=k, groups=groups))
    attention: dict[str, list[AttentionPoint]] = {}
    for one in by_kind["attention"]:
        batch, heads, query, context, dim = (int(value) for value in one.size)
        point = _made(AttentionPoint, one, batch=batch, heads=heads, query=query, context=context, head_dim=dim)
        attention.setdefault(one.name, []).append(point)
    streams: dict[str, list[StreamPoint]] = {}
    for one in sorted(by_kind["stream"], key=lambda one: one.size):
        streams.setdefault(one.name, []).append(_made(StreamPoint, one, bytes=one.size[0]))
    made = Compute(
        products=products,
        attention=attention,
        streams=dict(sorted(streams.items())),
        between_us=_value([ns / 1e3 for ns in found.between_ns]),
    )
    return msgspec.structs.replace(made, residuals={name: _rounded(value) for name, value in residuals(made).items()})


def _made(kind: type, sample: Sample, **size: object):  # type: ignore[no-untyped-def]  # a point of that kind
    return kind(**_point(sample.ns), **size)


def _transfers(name: str, by_kind: dict[str, list[Sample]], found: Measurements) -> Transfers:
    samples, late = ([one for one in by_kind[kind] if one.name == name] for kind in ("transfer", "late"))
    by_size = {one.size: one for one in late}
    points = [_transfer_point(one, by_size[one.size]) for one in sorted(samples, key=lambda one: one.size)]
    fit, moved = ranges([(p.bytes, 1e3 * p.us, 1e3 * p.low_us, 1e3 * p.high_us) for p in points])
    cpu_start, cpu_per_byte = _affine([(one.size[0], float(ns)) for one in samples for ns in one.cpu_ns])
    first = found.first_of_two.get(name, [1.0])

    def value(field: str, factor: float = 1.0) -> Value:
        low, high = moved[field]
        return Value(value=_rounded(getattr(fit, field) * factor), low=_rounded(low * factor), high=_rounded(high * factor))

    return Transfers(
        start_us=value("start_ns", 1e-3),
        copy_ns_per_byte=value("copy_ns_per_byte"),
        wire_ns_per_byte=value("wire_ns_per_byte"),
        burst_bytes=value("burst_bytes"),
        cpu_start_us=_scaled(cpu_start, 1e-3),
        cpu_ns_per_byte=cpu_per_byte,
        first_of_two=_value(first),
        residual=_rounded(fit.residual),
        points=points,
    )


def _transfer_point(together: Sample, late: Sample) -> TransferPoint:
    """With one rank late, as ranks of a step seldom begin within 0.1 ms. The range holds what was seen of either."""
    one, other = interval(together.ns), interval(late.ns)
    low, high = min(one[1], other[1]), max(one[2], other[2])
    return TransferPoint(
        us=_rounded(other[0] / 1e3),
        low_us=_rounded(low / 1e3),
        high_us=_rounded(high / 1e3),
        repetitions=len(together.ns) + len(late.ns),
        bytes=together.size[0],
    )


def _host(by_kind: dict[str, list[Sample]]) -> dict[str, HostCosts]:
    found = {}
    for name in dict.fromkeys(one.name for one in by_kind.get("pack", [])):
        figures = {}
        for kind in ("pack", "call", "finish"):
            pairs = [(one.size[0], statistics.median(one.ns)) for one in by_kind[kind] if one.name == name]
            figures[kind] = _affine(pairs)
        found[name] = HostCosts(
            pack_us=_scaled(figures["pack"][0], 1e-3),
            pack_ns_per_byte=figures["pack"][1],
            call_us=_value([ns / 1e3 for one in by_kind["call"] if one.name == name for ns in one.ns]),
            finish_us=_scaled(figures["finish"][0], 1e-3),
            finish_ns_per_byte=figures["finish"][1],
        )
    return found


def _affine(pairs: Sequence[tuple[float, float]]) -> tuple[Value, Value]:
    """(start, per byte) of (bytes, ns), each with the range that leaving out a tenth of the points gives."""

    sizes = np.array([size for size, _ in pairs])
    times = np.maximum(np.array([time for _, time in pairs]), 1.0)
    features = np.stack([np.ones_like(sizes), sizes], axis=1)
    middle = not_negative(features, times)
    tried = [middle]
    for part in range(min(10, len(pairs)) if len(pairs) > 2 else 0):
        kept = np.arange(len(pairs)) % 10 != part
        if kept.sum() > 1:
            tried.append(not_negative(features[kept], times[kept]))
    low, high = np.min(tried, axis=0), np.max(tried, axis=0)
    start, slope = (
        Value(value=_rounded(float(middle[at])), low=_rounded(float(low[at])), high=_rounded(float(high[at]))) for at in (0, 1)
    )
    return start, slope


def _scaled(value: Value, factor: float) -> Value:
    return Value(value=_rounded(value.value * factor), low=_rounded(value.low * factor), high=_rounded(value.high * factor))
