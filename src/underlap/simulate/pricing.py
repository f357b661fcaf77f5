"""What each distinct work of a plan costs: alone, and while communication holds multiprocessors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from underlap.columns import Int8, Int32, Int64
from underlap.cost import collectives, compute
from underlap.cost.communicator import DEFAULT, Settings
from underlap.cost.hardware import Topology
from underlap.cost.measured import Measured
from underlap.cost.work import Copy, Gemm, Transfer, Work

Floats = npt.NDArray[np.float64]

_TOGETHER = 3
"""Transfers that may run side by side on one device; more hold no more multiprocessors than these."""
_COPY_START_NS = 3000.0
"""Of a copy on a copy engine, as of a kernel."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Columns over distinct works, in their order. n works."""

    work_ns: Int64
    """Alone on the device. Shape (n,)."""
    units: Int32
    """Multiprocessors that a transfer holds. Shape (n,)."""
    curve: Int32
    """Row of `curves` of compute, -1 for transfers and copies. Shape (n,)."""
    curves: Floats
    """How many times longer compute takes while transfers hold so many multiprocessors. Shape (compute works, units + 1)."""
    late: Int8
    """1 for products of persistent kernels: see `SharedRates.late`. Shape (n,)."""
    memory: Floats
    """Share of the memory bandwidth that it takes alone, in [0, 1]. Shape (n,)."""
    scale_up: Floats
    """Share of the scale-up link, in [0, 1]. Shape (n,)."""
    scale_out: Floats
    """Share of the scale-out link, in [0, 1]. Shape (n,)."""
    flops: Floats
    algorithms: tuple[str | None, ...]
    """Of transfers."""
    assumptions: tuple[str, ...]


def price(
    works: Sequence[Work],
    topology: Topology,
    *,
    settings: Settings = DEFAULT,
    measured: Measured | None = None,
    held: Callable[[Sequence[int]], list[int]] | None = None,
) -> Prices:
    """Prices of all works. `held`: from the multiprocessors that each work holds to every sum of them that compute may meet;
    None: any three transfers may run together. Raises OptionError where a group does not fit the machine."""
    size = len(works)
    columns = {name: np.zeros(size) for name in ("time", "memory", "up", "out", "flops")}
    units = np.zeros(size, dtype=np.int32)
    algorithms: list[str | None] = [None] * size
    assumptions: list[str] = []
    bandwidth = compute.MEMORY_SHARE * topology.processor.memory_bytes_per_s / 1e9
    for at, work in enumerate(works):
        if isinstance(work, Transfer):
            cost = collectives.price(work, topology, settings=settings, measured=measured)
            columns["time"][at], units[at], algorithms[at] = cost.time_ns, cost.ctas, cost.algorithm
            assumptions += cost.assumptions
            if cost.time_ns > 0:
                columns["memory"][at] = cost.hbm_bytes / cost.time_ns / bandwidth
                columns["up"][at] = cost.scale_up_bytes / cost.time_ns / (topology.scale_up.bytes_per_s / 1e9)
                if topology.scale_out is not None:
                    rate = topology.scale_out.bytes_per_s * topology.nics_per_device / 1e9
                    columns["out"][at] = cost.scale_out_bytes / cost.time_ns / rate
        elif isinstance(work, Copy):
            columns["time"][at] = _COPY_START_NS + work.bytes / bandwidth
            columns["memory"][at] = 1.0
    persistent = compute.kernels_of(topology.processor.architecture)[0].persistent
    computing = [at for at, work in enumerate(works) if not isinstance(work, Transfer | Copy)]
    curve = np.full(size, -1, dtype=np.int32)
    curve[computing] = np.arange(len(computing))
    curves = np.ones((max(1, len(computing)), 1))
    if computing:
        alone = compute.price_all([works[at] for at in computing], topology.processor)  # type: ignore[misc]  # no transfers left
        columns["time"][computing], columns["flops"][computing] = alone.time_ns, alone.flops
        busy = alone.time_ns > 0
        columns["memory"][computing] = np.where(busy, alone.hbm_bytes / np.where(busy, alone.time_ns, 1.0) / bandwidth, 0.0)
        taken = _sums(units, topology.processor.sms) if held is None else held(units.tolist())
        curves = _curves([works[at] for at in computing], alone.time_ns, topology, taken)
        assumptions += alone.assumptions
    return Prices(
        work_ns=np.rint(columns["time"]).astype(np.int64),
        units=units,
        curve=curve,
        curves=curves,
        late=np.array([persistent and isinstance(work, Gemm) for work in works], dtype=np.int8),
        memory=np.clip(columns["memory"], 0.0, 1.0),
        scale_up=np.clip(columns["up"], 0.0, 1.0),
        scale_out=np.clip(columns["out"], 0.0, 1.0),
        flops=columns["flops"],
        algorithms=tuple(algorithms),
        assumptions=tuple(dict.fromkeys(assumptions)),
    )


def _curves(works: Sequence[Work], alone: Floats, topology: Topology, taken: list[int]) -> Floats:
    """One row per compute work. Prices are taken at the numbers of multiprocessors that transfers can hold together."""
    total = topology.processor.sms
    if total is None or not taken:
        return np.ones((len(works), 1))
    curves = np.ones((len(works), taken[-1] + 1))
    before = 0
    for held in taken:
        left = compute.price_all(works, topology.processor, sms=total - held)  # type: ignore[arg-type]  # compute only
        slower = np.where(alone > 0, left.time_ns / np.where(alone > 0, alone, 1.0), 1.0)
        # Between two numbers that occur, the larger stands for both.
        curves[:, before + 1 : held + 1] = np.maximum(slower, 1.0)[:, None]
        before = held
    return curves


def _sums(units: Int32, total: int | None) -> list[int]:
    """The numbers of multiprocessors that up to three transfers hold together, less than all of them."""
    distinct = sorted({int(value) for value in units if value > 0})
    sums = {
        sum(chosen) for count in range(1, _TOGETHER + 1) for chosen in itertools.combinations_with_replacement(distinct, count)
    }
    return sorted(value for value in sums if total is not None and value < total)
