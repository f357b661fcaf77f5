"""Isolated time of compute work on the SMs that are left to it: a roofline with tiles and waves.

    time = start + max(waves x time of a tile, memory traffic / bandwidth)

A product is cut into tiles, one per thread block; the library takes the tile (and the split of k) that is quickest on the SMs
that the kernel is sized for, and the tiles then run in waves on the SMs that it gets. Attention: a block per 128 rows.
Shares of the peak are in compute.yaml with their sources. Does not model clocks, power, sparsity or the order of tiles.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from importlib import resources

import msgspec
import numpy as np
import numpy.typing as npt
import yaml

from underlap.cost.hardware import Processor
from underlap.cost.work import Attention, ComputeWork, Gemm, Stream, element_bytes
from underlap.errors import OptionError

Floats = npt.NDArray[np.float64]

START_NS = 3000.0
"""Of a kernel on the device, and MEMORY_SHARE of the peak bandwidth: ai-dynamo/aiconfigurator, systems/*.yaml."""
MEMORY_SHARE = 0.8

_FILL_K = 128
"""Filling and draining a tile's pipeline, as steps of k: two stages of 64 (CUTLASS' default depth of a stage for 16 bits)."""
_SPLITS = (1, 2, 4, 8)
_SMALLER_TILES = ((128, 128), (64, 256), (64, 128), (64, 64))
_QUERY_ROWS = 128
_STREAM_SHARE = 0.5
"""Of the SMs, enough to fill the memory bandwidth (assumed: two blocks' loads in flight cover the latency)."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the kernels of an architecture reach; see compute.yaml."""

    matmul_share: float
    attention_forward: float
    attention_backward: float
    tile: tuple[int, int]
    persistent: bool
    l2_bytes: int


class ComputeCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Columns over works, in their order."""

    time_ns: Floats
    flops: Floats
    hbm_bytes: Floats
    compute_ns: Floats
    """Of the tiles in their waves, without memory and start."""
    memory_ns: Floats
    tiles: Floats
    """Pieces of work of about the same length."""
    ctas: Floats
    """Thread blocks launched: SMs wanted, up to the processor's."""
    waves: Floats
    """Rounds in which the SMs work the tiles off."""
    assumptions: tuple[str, ...] = ()


class ComputeCost(msgspec.Struct, frozen=True, kw_only=True):
    """One work's row of ComputeCosts."""

    time_ns: float
    flops: float
    hbm_bytes: float
    compute_ns: float
    memory_ns: float
    tiles: int
    ctas: int
    waves: int
    assumptions: tuple[str, ...] = ()


@functools.cache
def _file() -> dict[str, Kernels]:
    text = (resources.files("underlap.cost") / "compute.yaml").read_text()
    return msgspec.convert(yaml.safe_load(text), dict[str, Kernels])


def kernels_of(architecture: str) -> tuple[Kernels, tuple[str, ...]]:
    """What kernels reach on an architecture, and the assumption where it is another's."""
    found = _file().get(architecture)
    if found is not None:
        return found, ()
    return _file()["ampere"], (f"no figures of compute kernels for architecture {architecture}: those of ampere were taken",)


def peak_flops(processor: Processor, precision: str) -> float:
    """Dense FLOP/s. fp16 and bf16 stand for each other (equal on every NVIDIA and AMD part). Raises OptionError if unknown."""
    for name in (precision, {"fp16": "bf16", "bf16": "fp16"}.get(precision, precision)):
        if name in processor.peak_flops:
            return processor.peak_flops[name]
    raise OptionError(
        f"{processor.name} has no peak for {precision}: known are {', '.join(sorted(processor.peak_flops))}; "
        "use one of these or add its FLOP/s to the processor's peak_flops"
    )


def price(work: ComputeWork, processor: Processor, *, sms: int | None = None, sized_for: int | None = None) -> ComputeCost:
    """Isolated cost of one work; see price_all."""
    costs = price_all([work], processor, sms=sms, sized_for=sized_for)
    return ComputeCost(
        time_ns=float(costs.time_ns[0]),
        flops=float(costs.flops[0]),
        hbm_bytes=float(costs.hbm_bytes[0]),
        compute_ns=float(costs.compute_ns[0]),
        memory_ns=float(costs.memory_ns[0]),
        tiles=int(costs.tiles[0]),
        ctas=int(costs.ctas[0]),
        waves=int(costs.waves[0]),
        assumptions=costs.assumptions,
    )


def price_all(
    works: Sequence[ComputeWork], processor: Processor, *, sms: int | None = None, sized_for: int | None = None
) -> ComputeCosts:
    """Isolated costs of works, each alone on `sms` of the processor's SMs (None: all).

    `sized_for`: the SMs that the kernels believe they have (None: all the processor's; set it to `sms` where the framework leaves
    a margin). It matters to persistent kernels: blocks that find no SM run after the others, a whole wave later.
    Raises OptionError for SMs that the processor has not, or a precision without a peak.
    """
    kernels, assumed = kernels_of(processor.architecture)
    total, whole = processor.sms, True
    if total is None:
        total, whole = 1, False
        assumed = (*assumed, f"number of SMs of {processor.name} unknown: no waves, and no SMs can be taken")
    for given in (sms, sized_for):
        if given is not None and not 1 <= given <= total:
            raise OptionError(f"{given} SMs of {processor.name}: expected 1 to {total if whole else '(unknown)'}")
    state = _State(
        processor=processor,
        kernels=kernels,
        total=total,
        left=total if sms is None else sms,
        sized=total if sized_for is None else sized_for,
        waves=whole,
    )
    columns = np.zeros((6, len(works)))
    gemms = {at: work for at, work in enumerate(works) if isinstance(work, Gemm)}
    attentions = {at: work for at, work in enumerate(works) if isinstance(work, Attention)}
    streams = {at: work for at, work in enumerate(works) if isinstance(work, Stream)}
    if gemms:
        columns[:, list(gemms)] = _gemms(list(gemms.values()), state)
    if attentions:
        columns[:, list(attentions)] = _attentions(list(attentions.values()), state)
    if streams:
        columns[:, list(streams)] = _streams(list(streams.values()), state)
    compute, memory, traffic, tiles, ctas, waves = columns
    flops = np.array([work.flops for work in works])
    if "fp32" not in processor.peak_flops and any(work.flops for work in streams.values()):
        assumed = (*assumed, f"{processor.name} has no peak for fp32: work on vectors taken as bound by memory alone")
    empty = (flops == 0) & (traffic == 0)
    return ComputeCosts(
        time_ns=np.where(empty, 0.0, START_NS + np.maximum(compute, memory)),
        flops=flops,
        hbm_bytes=traffic,
        compute_ns=compute,
        memory_ns=memory,
        tiles=tiles,
        ctas=ctas,
        waves=waves,
        assumptions=assumed,
    )


class _State(msgspec.Struct, frozen=True, kw_only=True):
    processor: Processor
    kernels: Kernels
    total: int
    left: int
    sized: int
    waves: bool
    """False where the number of SMs is unknown: work is then divided without remainder."""

    def rounds(self, pieces: Floats, sms: float) -> Floats:
        return np.ceil(pieces / sms) if self.waves else pieces

    def memory_ns(self, traffic: Floats, sms: int | None = None) -> Floats:
        share = 1.0 if sms is None else min(1.0, sms / (_STREAM_SHARE * self.total))
        return 1e9 * traffic / (MEMORY_SHARE * self.processor.memory_bytes_per_s * share)


def _intensity(rows: float, columns: float) -> float:
    return rows * columns / (rows + columns)


def _gemms(works: Sequence[Gemm], state: _State) -> Floats:
    m, n, k, batch = (np.array([getattr(work, name) for work in works], dtype=float) for name in ("m", "n", "k", "batch"))
    once = np.array([work.read_bytes + work.write_bytes for work in works])
    size = np.array([element_bytes(work.precision) for work in works])
    peaks = {work.precision: peak_flops(state.processor, work.precision) for work in works}
    rate = np.array([peaks[work.precision] for work in works]) / state.total * state.kernels.matmul_share / 1e9
    best = np.full((6, len(works)), np.inf)
    least = np.full(len(works), np.inf)
    largest = _intensity(*state.kernels.tile)
    for (rows, columns), split in itertools.product((state.kernels.tile, *_SMALLER_TILES), _SPLITS):
        row_tiles, depth, results = _tiling(works, rows, m, k)
        tiles = batch * results * row_tiles * np.ceil(n / columns) * split
        share = min(1.0, _intensity(rows, columns) / largest)
        tile_ns = 2.0 * rows * columns * (depth / split + _FILL_K) / (rate * share)
        traffic = _traffic(once, tiles, (rows, columns), depth / split * size, state)
        if split > 1:  # partial results in fp32, written and read again
            traffic = traffic + 8.0 * batch * results * m * n * split
        memory = state.memory_ns(traffic)
        time = np.maximum(state.rounds(tiles, state.sized) * tile_ns, memory)
        grid = np.minimum(tiles, state.sized) if state.kernels.persistent else tiles
        lists = state.rounds(tiles, state.sized) if state.kernels.persistent else np.ones_like(tiles)
        waves = state.rounds(grid, state.left) * lists
        found = np.stack([waves * tile_ns, memory, traffic, tiles, grid, waves])
        quicker = time < least * (1 - 1e-12)
        best[:, quicker], least[quicker] = found[:, quicker], time[quicker]
    return best


def _tiling(works: Sequence[Gemm], rows: int, m: Floats, k: Floats) -> tuple[Floats, Floats, Floats]:
    """(tiles along m, depth along k, results) of each product, over its groups.

    Along m each group is padded to whole tiles. Along k each group has a result of its own; their depths are averaged, as the
    tiles of all groups fill the SMs together.
    """
    row_tiles, depth, results = np.ceil(m / rows), k.copy(), np.ones_like(m)
    for at, work in enumerate(works):
        if work.groups == 1:
            continue
        if work.groups_along == "m":
            if isinstance(work.groups, int):
                row_tiles[at] = work.groups * np.ceil(m[at] / work.groups / rows)
            else:
                row_tiles[at] = sum(-(-group // rows) for group in work.groups)
        else:
            results[at] = work.group_count
            depth[at] = k[at] / work.group_count
    return row_tiles, depth, results


def _traffic(once: Floats, tiles: Floats, tile: tuple[int, int], depth_bytes: Floats, state: _State) -> Floats:
    """HBM bytes: each operand once where they fit the cache, else each wave's square of tiles reads its rows and columns."""
    rows, columns = tile
    width = np.sqrt(np.minimum(tiles, state.sized) * rows * columns)  # side of the square of results that a wave covers
    waves = state.rounds(tiles, state.sized)
    return np.where(once <= state.kernels.l2_bytes, once, np.maximum(once, waves * 2 * width * depth_bytes))


def _attentions(works: Sequence[Attention], state: _State) -> Floats:
    heads, kv_heads, query, batch = (
        np.array([getattr(work, name) for work in works], dtype=float) for name in ("heads", "kv_heads", "query", "batch")
    )
    flops = np.array([work.flops for work in works])
    traffic = np.array([work.read_bytes + work.write_bytes for work in works])
    share = np.array([state.kernels.attention_backward if work.backward else state.kernels.attention_forward for work in works])
    peaks = {work.precision: peak_flops(state.processor, work.precision) for work in works}
    rate = np.array([peaks[work.precision] for work in works]) / state.total * share / 1e9
    # Queries of the heads that share keys lie in one tile, so that a decode step reads the keys once; tiles are padded.
    rows = query * heads / kv_heads
    padded = np.ceil(rows / _QUERY_ROWS) * _QUERY_ROWS
    tiles = batch * kv_heads * padded / _QUERY_ROWS
    split = np.maximum(1.0, np.floor(state.sized / tiles))  # few tiles: the keys are divided too (flash decoding)
    pieces = tiles * split
    piece_ns = flops * (padded / rows) / pieces / rate
    waves = state.rounds(pieces, state.left)
    uneven = np.array([work.causal and work.query > 1 for work in works])
    # Causal tiles differ in length, and the longest go first: many of them fill the SMs without a remainder.
    compute = np.where(uneven & (pieces > state.left), pieces / state.left, waves) * piece_ns
    return np.stack([compute, state.memory_ns(traffic, state.left), traffic, pieces, pieces, waves])


def _streams(works: Sequence[Stream], state: _State) -> Floats:
    traffic = np.array([work.read_bytes + work.write_bytes for work in works])
    flops = np.array([work.flops for work in works])
    compute = np.zeros(len(works))
    if flops.any() and "fp32" in state.processor.peak_flops:  # else memory alone bounds them, as it nearly always does
        compute = 1e9 * flops / (peak_flops(state.processor, "fp32") * state.left / state.total)
    blocks = np.full(len(works), float(state.total))
    return np.stack([compute, state.memory_ns(traffic, state.left), traffic, blocks, blocks, np.ones(len(works))])
