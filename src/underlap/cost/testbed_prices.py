"""Prices of works from what a testbed was measured to take: computation by operation, transfers by bytes on the wire.

What lacks is priced by what is most alike and said so, or refused. Does not know what else runs: `slower` is what a core's share
costs, and the event kernel knows who takes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from underlap.cost.fitting import Curve, Fit, curve, fitted
from underlap.cost.testbed import FORWARD_PHASES, AttentionPoint, Compute, ProductPoint, StreamPoint, Testbed
from underlap.cost.work import Attention, ComputeWork, Copy, Gemm, Stream, Transfer
from underlap.documents import require
from underlap.errors import OptionError

SAME_RATE = 0.001
"""Rates that differ by less are one."""
FIRST_ENDS = 0.75
"""Where the first of two transfers ends before this share of the time of both, they are carried out in order."""
FASTEST_SHARE = 0.5
"""A link that is predicted faster than measured may need at most so much of what the cores can copy: then they are the limit."""


class OperationPrice(msgspec.Struct, frozen=True):
    """A time, and what was assumed for it."""

    ns: float
    note: str | None = None


class TransferPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer while nothing else is sent."""

    ns: float
    """After a pause that let the burst gather."""
    without_burst_ns: float
    """How much longer it takes right behind another."""
    start_ns: float
    """Of it, what does not use the link."""
    link_share: float
    """Of the link that it takes, in (0, 1]."""
    cpu_share: float
    """Of the core, by the library's threads, in [0, 1]."""
    in_order: bool
    notes: tuple[str, ...] = ()


NO_TRANSFER = TransferPrice(ns=0.0, without_burst_ns=0.0, start_ns=0.0, link_share=0.0, cpu_share=0.0, in_order=True)


class HostPrice(msgspec.Struct, frozen=True):
    """What one transfer costs the thread that issues and awaits it."""

    pack_ns: float
    call_ns: float
    finish_ns: float
    note: str | None = None


def wire_bytes(transfer: Transfer) -> float:
    """Bytes that a rank puts on the wire: what the engine's ring all-reduce, direct exchanges and messages send."""
    n, payload = transfer.ranks, transfer.payload_bytes
    if transfer.collective == "send":
        return payload
    share = (n - 1) / n * payload
    return 2 * share if transfer.collective == "all_reduce" else share


class Prices:
    """Prices of works on a testbed whose link has a rate of its own, or the one that it was measured with."""

    def __init__(self, testbed: Testbed, link_bytes_per_s: float | None = None) -> None:
        self.testbed = testbed
        self.faster = 1.0
        """How many times the link's rate exceeds the measured one."""
        self.notes: tuple[str, ...] = ()
        measured = testbed.link_bytes_per_s
        if link_bytes_per_s is not None and abs(link_bytes_per_s / measured - 1) > SAME_RATE:
            require(
                testbed.fabric_bytes_per_s is not None,
                f"cluster: a link of {8e-6 * link_bytes_per_s:g} Mbit/s, but nothing held it to a rate when it was measured: "
                "the cores were the limit; calibrate with --fabric",
            )
            self.faster = link_bytes_per_s / measured
            self._check_rate(link_bytes_per_s)
            self.notes = (
                f"the link was measured at {8e-6 * measured:g} Mbit/s and is predicted at {8e-6 * link_bytes_per_s:g}: "
                "time on the wire scales with it, starts, bursts and CPU time per byte are kept",
            )
        products = testbed.compute.products
        self._products = {name: _product_fit(points) for name, points in products.items()}
        self._attention = {name: _attention_fit(points) for name, points in testbed.compute.attention.items()}
        self._streams = {name: _stream_curve(points) for name, points in testbed.compute.streams.items()}

    def _check_rate(self, rate: float) -> None:
        slowest = max(transfers.copy_ns_per_byte.value for transfers in self.testbed.transfers.values())
        limit = FASTEST_SHARE * 1e9 / slowest if slowest > 0 else math.inf
        require(
            rate <= limit,
            f"cluster: a link of {8e-6 * rate:g} Mbit/s, but the cores copy {8 / slowest if slowest else 0:.3g} Gbit/s: "
            f"up to {8e-6 * limit:.4g} Mbit/s can be predicted from what was measured; calibrate on the faster link",
        )

    # ---- computation

    def operation(self, work: ComputeWork | Copy, phase: str, role: str) -> OperationPrice:
        """The time of an operation as the engine carries it out. Raises OptionError for a precision that was not measured."""
        if isinstance(work, Gemm):
            return self._product(work, phase, role)
        if isinstance(work, Attention):
            return self._core(work, phase)
        if isinstance(work, Copy):
            return self._stream(Stream(read_bytes=work.read_bytes, write_bytes=work.write_bytes), phase, role)
        return self._stream(work, phase, role)

    def _check_precision(self, precision: str) -> None:
        own = self.testbed.precision
        if precision != own:
            raise OptionError(
                f"cluster: measured in {own}, but the workload has precision={precision}: expected precision={own}, "
                f"or a calibration with --precision {precision}"
            )

    def _product(self, work: Gemm, phase: str, role: str) -> OperationPrice:
        self._check_precision(work.precision)
        name = _forward(phase)
        grouped = role.startswith("experts.")
        wanted = f"experts.{name}" if grouped else name
        fit, note = self._products.get(wanted), None
        if fit is None:
            other = name if name in self._products else next(iter(self._products))
            fit, note = self._products[other], f"no measured products of {wanted}: those of {other} were taken"
        features = _product_features(work.m, work.n, work.k, work.group_count)
        time = work.batch * fit.time(features, 2.0 * work.m * work.n * work.k)
        return OperationPrice(1e3 * time, note)

    def _core(self, work: Attention, phase: str) -> OperationPrice:
        self._check_precision(work.precision)
        name, note = "backward" if work.backward else _forward(phase), None
        if name not in self._attention:
            other = next(iter(self._attention))
            note = f"no measured attention of {name}: that of {other} was taken"
            name = other
        keys = work.context
        features = _attention_features(work.batch, work.heads, work.query, keys, work.head_dim)
        return OperationPrice(1e3 * self._attention[name].time(features, work.batch * work.heads * work.query * keys), note)

    def _stream(self, work: Stream, phase: str, role: str) -> OperationPrice:
        moved = work.read_bytes + work.write_bytes
        for name in (f"{phase}/{role}", f"{_forward(phase)}/{role}"):
            if name in self._streams:
                return OperationPrice(1e3 * self._streams[name].time(max(moved, 1.0)))
        if moved == 0:
            return OperationPrice(0.0, f"no measured {_forward(phase)}/{role}, which moves nothing: taken as nothing")
        alike = self._alike(phase)
        time = 1e3 * alike.time(moved)
        return OperationPrice(time, f"no measured {_forward(phase)}/{role}: the middle of what was measured for its bytes")

    @functools.lru_cache(maxsize=8)  # noqa: B019  # lives as long as the prices of one simulation
    def _alike(self, phase: str) -> Curve:
        """The median over the operations of a phase, or of all."""
        chosen = [c for name, c in self._streams.items() if name.startswith(f"{_forward(phase)}/")] or list(
            self._streams.values()
        )
        sizes = [4.0**power for power in range(5, 15)]
        return curve([(size, float(np.median([one.time(size) for one in chosen]))) for size in sizes])

    # ---- transfers

    def transfer(self, work: Transfer) -> TransferPrice:
        """Raises OptionError for a collective that has no points."""
        if work.ranks == 1 or work.payload_bytes == 0:
            return NO_TRANSFER
        name = work.collective
        notes: list[str] = []
        table = self.testbed.transfers
        if name == "reduce_scatter" and name not in table:
            name = "all_to_all"  # gloo has none: the engine carries it out as one, and a sum behind the wait
        if name not in table:
            instead = {"dispatch": "all_to_all", "combine": "all_to_all", "send": "all_to_all"}
            other = instead.get(name, "")
            if other not in table:
                raise OptionError(f"cluster: no measured {name}: measured are {', '.join(table)}; calibrate again with {name}")
            notes.append(f"no measured {name}: {other} with the same bytes on the wire was taken")
            name = other
        if work.ranks != self.testbed.ranks:
            notes.append(
                f"measured with {self.testbed.ranks} ranks, predicted for groups of {work.ranks}: "
                "bytes by the algorithm, the start once per step of it"
            )
        it = table[name]
        steps = max(1.0, (work.ranks - 1) / max(1, self.testbed.ranks - 1))
        sent = wire_bytes(work) * work.uneven
        start = 1e3 * it.start_us.value * steps
        copy, wire = it.copy_ns_per_byte.value, max(it.copy_ns_per_byte.value, it.wire_ns_per_byte.value / self.faster)
        burst = it.burst_bytes.value
        alone = start + max(copy * sent, wire * (sent - burst))
        # What the burst saves: all that the link would take beyond copying.
        saved = min(wire * burst, (wire - copy) * sent)
        cpu = 1e3 * it.cpu_start_us.value * steps + it.cpu_ns_per_byte.value * sent
        return TransferPrice(
            ns=alone,
            without_burst_ns=saved,
            start_ns=start,
            link_share=min(1.0, wire * sent / (start + wire * sent)),
            cpu_share=min(1.0, cpu / alone),
            in_order=it.first_of_two.value < FIRST_ENDS,
            notes=tuple(notes),
        )

    def host(self, work: Transfer, *, weights: bool) -> HostPrice:
        """`weights`: it moves weights or gradients, of which several go together, rather than rows of tokens."""
        table = self.testbed.host
        name, other = (f"{work.collective}/{kind}" for kind in (("weights", "rows") if weights else ("rows", "weights")))
        found = table.get(name) or table.get(other)
        if found is None:
            return HostPrice(0.0, 0.0, 0.0, f"what the host does for {name} was not measured: taken as nothing")
        size = work.payload_bytes
        return HostPrice(
            1e3 * found.pack_us.value + found.pack_ns_per_byte.value * size,
            1e3 * found.call_us.value,
            1e3 * found.finish_us.value + found.finish_ns_per_byte.value * size,
        )

    @property
    def burst_ns(self) -> float:
        """What the link of a rank saves at most after a pause, in its own time."""
        return max(
            (it.burst_bytes.value * it.wire_ns_per_byte.value / self.faster for it in self.testbed.transfers.values()),
            default=0.0,
        )

    def slower(self, cpu_share: float) -> float:
        """How many times longer computation takes while transfers take so much of its core."""
        beside = self.testbed.beside
        asked = beside.cpu_share.value
        # What the caches lose comes on top of what the threads take: both are in the measured stretch.
        weight = (1 - 1 / max(1.0, beside.compute_stretch.value)) / asked if asked > 0 else 1.0
        return 1.0 / max(0.05, 1.0 - weight * cpu_share)


def _forward(phase: str) -> str:
    return "forward" if phase in FORWARD_PHASES else phase


def _product_features(m: int, n: int, k: int, groups: int) -> tuple[float, ...]:
    """A start per group, operations, and the three operands."""
    return (float(groups), 2.0 * m * n * k, float(m * k), float(k * n * groups), float(m * n))


def _attention_features(batch: int, heads: int, query: int, context: int, dim: int) -> tuple[float, ...]:
    """A start, one per pair of small products, scores, operations on them, and the rows of queries and keys."""
    scores = float(batch * heads * query * context)
    return (1.0, float(batch * heads), scores, scores * dim, float(batch * heads * (query + context) * dim))


def _product_fit(points: Sequence[ProductPoint]) -> Fit:
    features = np.array([_product_features(point.m, point.n, point.k, point.groups) for point in points])
    return fitted(features, [2.0 * point.m * point.n * point.k for point in points], [point.us for point in points])


def _attention_fit(points: Sequence[AttentionPoint]) -> Fit:
    features = np.array([_attention_features(p.batch, p.heads, p.query, p.context, p.head_dim) for p in points])
    sizes = [float(p.batch * p.heads * p.query * p.context) for p in points]
    return fitted(features, sizes, [point.us for point in points])


def _stream_curve(points: Sequence[StreamPoint]) -> Curve:
    return curve([(max(point.bytes, 1.0), point.us) for point in points])


def residuals(compute: Compute) -> dict[str, float]:
    """Root mean square of (predicted / measured - 1) over the points of each kind."""
    missed: dict[str, list[float]] = {"products": [], "attention": [], "streams": []}
    for products in compute.products.values():
        fit = _product_fit(products)
        missed["products"] += [
            fit.time(_product_features(p.m, p.n, p.k, p.groups), 2.0 * p.m * p.n * p.k) / p.us for p in products
        ]
    for cores in compute.attention.values():
        fit = _attention_fit(cores)
        missed["attention"] += [
            fit.time(
                _attention_features(p.batch, p.heads, p.query, p.context, p.head_dim), p.batch * p.heads * p.query * p.context
            )
            / p.us
            for p in cores
        ]
    for streams in compute.streams.values():
        line = _stream_curve(streams)
        missed["streams"] += [line.time(max(p.bytes, 1.0)) / p.us for p in streams]
    return {name: float(np.sqrt(np.mean((np.array(ratios) - 1) ** 2))) for name, ratios in missed.items() if ratios}
