"""Nsight Systems export (SQLite) -> Timeline.

A rank is a process with device work; ranks are numbered in the order of their first device and process id, which is an
assumption that a note states: an export names no rank. `source_row` is the rowid of the event in its own table (kernel,
copy, memset, graph, runtime call, NVTX), so it is unique together with the class or kind of the row only.

Device rows are kernels, copies, memsets and whole graphs. `graph` is the graph id; 0 where the export says only that a
graph launched the row. What is not modeled: unified memory migration, GPU metrics, CUDA events, contexts (streams are
told apart by device and id), and the host rows of processes without device work.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int32, Int64, Interner
from underlap.errors import NotATraceError
from underlap.read import nsight_tables as tables
from underlap.read.names import NameTable, Recognition
from underlap.read.nsight_collectives import COPY_ENGINE, Found, Work, find_collectives
from underlap.read.nsight_payloads import Payload, read_payloads
from underlap.read.nsight_ranges import UNKNOWN_END, Ranges, is_operator, read_ranges
from underlap.read.nsight_rows import (
    Calls,
    DeviceRows,
    Syncs,
    match_calls,
    number_of,
    process_of,
    read_calls,
    read_device_model,
    read_device_rows,
    read_host_syncs,
    read_multiprocessors,
    read_session,
    thread_of,
)
from underlap.read.nsight_tables import Export
from underlap.timeline import UNKNOWN_NS, HostKind, HostRows, Lane, Note, OpClass, Operations, RankInfo, Thread, Timeline
from underlap.wording import counted

# These return when the device is done. cudaStreamWaitEvent and cudaEventQuery return at once.
_BLOCKING = re.compile(r"(cuda|cu|hip)\w*Synchronize")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """Processes with device work, in rank order."""

    pids: Int64
    devices: tuple[tuple[int, ...], ...]
    """Per rank, ascending."""

    def of(self, pids: Int64) -> Int32:
        """The rank per process, -1 for processes without device work."""
        order = np.argsort(self.pids)
        at = np.minimum(np.searchsorted(self.pids[order], pids), len(order) - 1)
        return np.where(self.pids[order[at]] == pids, order[at], NONE).astype(np.int32)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What was read from the file. Names are ids of the interner that was given."""

    device: DeviceRows
    """Sorted by start."""
    untimed: int
    """Device rows that were left out because their times make no sense."""
    calls: Calls
    ranges: Ranges
    syncs: Syncs
    kernels: dict[int, Recognition]
    payloads: dict[int, Payload]
    model: str | None
    multiprocessors: int | None
    session: tuple[int, int] | None


def read(path: Path, table: NameTable) -> Timeline:
    """The Timeline of an export made by `nsys export --type sqlite`. The file is not written to."""
    names, shapes = Interner(), Interner()
    rows = _load(path, table, names, shapes)
    ranks = _rank_processes(rows.device)
    work = _work(rows, ranks)
    found = find_collectives(work, rows.ranges, ranks.of(process_of(rows.ranges.tid)), names, rows.kernels, rows.payloads)
    origin = min(int(part.start.min()) for part in (rows.device, rows.calls, rows.ranges) if len(part))
    threads = _threads(rows, ranks)
    lanes, lane = _lanes(rows.device, work.rank)
    return Timeline(
        provenance="measured",
        origin_ns=origin,
        ranks=tuple(_rank(rank, path, rows) for rank in range(len(ranks.pids))),
        lanes=lanes,
        threads=tuple(
            Thread(rank=rank, process=str(number_of(tid)), label=str(thread_of(tid)))
            for tid, rank in zip(threads.tolist(), ranks.of(process_of(threads)).tolist(), strict=True)
        ),
        groups=found.groups,
        names=tuple(names.values),
        shapes=tuple(shapes.values),
        ops=_operations(rows.device, work, found, lane, threads, origin),
        host=_host_rows(rows, work, ranks, threads, names, origin),
        collectives=found.collectives.replace(issue_ns=_relative(found.collectives.issue_ns, origin)),
        recognized=_recognized(rows, names),
        notes=tuple(_notes(rows, ranks, found, work, names)),
    )


def _load(path: Path, table: NameTable, names: Interner, shapes: Interner) -> _Rows:
    with Export(path) as export:
        device, kernels = read_device_rows(export, names, shapes, table)
        # CUPTI writes 0 for both where it has no times.
        timed = (device.end >= device.start) & ((device.start != 0) | (device.end != 0))
        timed &= tables.possible(device.start, device.end)
        if not timed.any():
            raise NotATraceError(
                f"{path}: no device events in this export: expected kernels in {tables.KERNEL} or copies in {tables.MEMCPY}. "
                "Record them with: nsys profile --trace=cuda,nvtx"
            )
        device = device.take(timed)
        calls = read_calls(export, names)
        return _Rows(
            device=device.take(np.lexsort((device.pid, device.start))),
            untimed=int((~timed).sum()),
            calls=calls,
            ranges=read_ranges(export, names),
            syncs=read_host_syncs(export, names, calls),
            kernels=kernels,
            payloads=read_payloads(export),
            model=read_device_model(export),
            multiprocessors=read_multiprocessors(export),
            session=read_session(export),
        )


def _work(rows: _Rows, ranks: _Ranks) -> Work:
    device, calls = rows.device, rows.calls
    launch = match_calls(device.pid, device.correlation, calls)
    return Work(
        launch=launch,
        # The extra last entry is for -1, no launch.
        time=np.append(calls.start, UNKNOWN_NS)[launch],
        tid=np.append(calls.tid, NONE)[launch],
        rank=ranks.of(device.pid),
        device=device.device.astype(np.int32),
        name=device.name,
        op_class=device.op_class,
        in_graph=device.graph >= 0,
        peer=device.peer,
    )


def _operations(device: DeviceRows, work: Work, found: Found, lane: Int64, threads: Int64, origin: int) -> Operations:
    return Operations.from_columns(
        start_ns=device.start - origin,
        end_ns=device.end - origin,
        launch_ns=_relative(work.time, origin),
        rank=work.rank,
        device=work.device,
        lane=lane,
        thread=_index(threads, work.tid),
        op_class=found.op_class,
        name=device.name,
        shape=device.shape,
        call_site=found.call_site,
        collective=found.collective_of_op,
        graph=device.graph,
        nbytes=device.nbytes,
        represents=np.ones(len(device), dtype=np.int32),
        source_row=device.row,
    )


def _recognized(rows: _Rows, names: Interner) -> NDArray[np.bool_]:
    known = np.zeros(len(names.values), dtype=bool)
    known[[index for index, kernel in rows.kernels.items() if kernel.known]] = True
    # Copies have tables of their own, so nothing about them is a guess from a name.
    known[rows.device.name[rows.device.op_class == OpClass.COPY]] = True
    return known


def _rank_processes(device: DeviceRows) -> _Ranks:
    used = {pid: np.unique(device.device[device.pid == pid]).tolist() for pid in np.unique(device.pid).tolist()}
    order = sorted(used, key=lambda pid: (used[pid][0], pid))
    return _Ranks(pids=np.array(order, dtype=np.int64), devices=tuple(tuple(used[pid]) for pid in order))


def _rank(rank: int, path: Path, rows: _Rows) -> RankInfo:
    return RankInfo(
        rank=rank,
        rank_source="process order",
        world_size=None,
        source=path.name,
        on_cpu=False,
        clock=0,
        resolution_ns=1,
        device_model=rows.model,
        multiprocessors=rows.multiprocessors,
        session_ns=rows.session,
    )


def _lanes(device: DeviceRows, rank: Int32) -> tuple[tuple[Lane, ...], Int64]:
    devices, device_index = np.unique(device.device, return_inverse=True)
    streams, stream_index = np.unique(device.stream, return_inverse=True)
    key = (rank.astype(np.int64) * len(devices) + device_index) * len(streams) + stream_index
    keys, lane = np.unique(key, return_inverse=True)
    lanes = tuple(
        Lane(
            rank=value // len(streams) // len(devices),
            device=int(devices[value // len(streams) % len(devices)]),
            label=str(streams[value % len(streams)]),
        )
        for value in keys.tolist()
    )
    return lanes, lane


def _threads(rows: _Rows, ranks: _Ranks) -> Int64:
    """globalTid of the threads of ranks, ascending."""
    threads = np.unique(np.concatenate((rows.calls.tid, rows.ranges.tid)))
    return threads[ranks.of(process_of(threads)) >= 0]


def _index(values: Int64, wanted: Int64) -> Int64:
    """Position of each wanted value among the sorted ones, -1 where it is not there."""
    if len(values) == 0:
        return np.full(len(wanted), NONE, dtype=np.int64)
    at = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[at] == wanted, at, NONE)


def _relative(times: Int64, origin: int) -> Int64:
    return np.where(times == UNKNOWN_NS, times, times - origin)


def _host_rows(rows: _Rows, work: Work, ranks: _Ranks, threads: Int64, names: Interner, origin: int) -> HostRows:
    calls, ranges, syncs = rows.calls, rows.ranges, rows.syncs
    blocks = np.fromiter((_BLOCKING.match(name) is not None for name in names.values), dtype=bool, count=len(names.values))
    operator = np.fromiter((is_operator(name) for name in names.values), dtype=bool, count=len(names.values))
    kind = np.where(blocks[calls.name], HostKind.SYNC, HostKind.RUNTIME)
    kind[work.launch[work.launch >= 0]] = HostKind.LAUNCH
    # A range that was open at the end of the capture ends with the last thing that was seen.
    last = max(int(part.end[part.end < UNKNOWN_END].max(initial=0)) for part in (rows.device, calls, ranges))
    start = np.concatenate((calls.start, ranges.start, syncs.start))
    end = np.concatenate((calls.end, np.where(ranges.end == UNKNOWN_END, last, ranges.end), syncs.end))
    tid = np.concatenate((calls.tid, ranges.tid, np.full(len(syncs), NONE)))
    rank = ranks.of(np.concatenate((process_of(calls.tid), process_of(ranges.tid), syncs.pid)))
    table = HostRows.from_columns(
        start_ns=start - origin,
        end_ns=np.maximum(end, start) - origin,
        rank=rank,
        thread=_index(threads, tid),
        kind=np.concatenate(
            (
                kind,
                np.where(operator[ranges.name], HostKind.OPERATOR, HostKind.ANNOTATION),
                np.full(len(syncs), HostKind.SYNC),
            )
        ),
        name=np.concatenate((calls.name, ranges.name, syncs.name)),
        source_row=np.concatenate((calls.row, ranges.row, syncs.row)),
    )
    keep = np.flatnonzero(rank >= 0)
    return table.take(keep[np.argsort(start[keep], kind="stable")])


def _notes(rows: _Rows, ranks: _Ranks, found: Found, work: Work, names: Interner) -> list[Note]:
    device = rows.device
    notes = [Note(code="rank_assumed", text=_ranks_in_words(ranks))]
    if rows.untimed:
        text = f"left out: {counted(rows.untimed, 'device row')} without a start, or with an end before it"
        notes.append(Note(code="untimed_rows", text=text))
    unlaunched = int((work.time == UNKNOWN_NS).sum())
    if unlaunched:
        text = (
            f"no launching call in the export for {unlaunched} of {counted(len(device), 'device row')}, most likely because of "
            "launches before the capture began"
        )
        notes.append(Note(code="unlaunched", text=text))
    if device.opaque.any():
        text = (
            f"{_count(device, device.opaque, 'CUDA graph launch', 'CUDA graph launches')} recorded as a whole and counted as "
            "compute: the kernels inside, communication too, are not in the export. Record them with: "
            "nsys profile --cuda-graph-trace=node"
        )
        notes.append(Note(code="opaque_graphs", text=text))
    alone = device.peer & (found.op_class == OpClass.COPY)
    if alone.any():
        text = (
            f"{_count(device, alone, 'copy', 'copies')} between devices under no range that names a collective: counted as copy, "
            "though it may be communication."
        )
        notes.append(Note(code="peer_copies", text=text))
    libraries = {names.values[index] for index in np.unique(found.collectives.library).tolist() if index >= 0}
    if libraries & {"nccl", COPY_ENGINE} and (found.collectives.payload_bytes == NONE).all() and not found.groups:
        text = (
            "Message sizes and communicators of NCCL are not in this export: payloads, bandwidths and groups are unknown. "
            "Export again with: nsys export --type sqlite --include-blobs=true REPORT.nsys-rep (recorded with --trace=cuda,nvtx)."
        )
        notes.append(Note(code="nccl_blobs", text=text))
    if len(rows.ranges) == 0:
        text = "No NVTX ranges: call sites are unknown. Record them with: nsys profile --trace=cuda,nvtx"
        notes.append(Note(code="no_annotations", text=text))
    return notes


def _ranks_in_words(ranks: _Ranks) -> str:
    def devices(used: tuple[int, ...]) -> str:
        return ("GPU " if len(used) == 1 else "GPUs ") + ", ".join(map(str, used))

    each = "; ".join(
        f"rank {rank} is process {number_of(pid)} on {devices(used)}"
        for rank, (pid, used) in enumerate(zip(ranks.pids.tolist(), ranks.devices, strict=True))
    )
    return (
        "An export of Nsight Systems does not name ranks: processes are numbered by their first GPU, then by process id. "
        f"Assumed: {each}. How many ranks the job had is unknown."
    )


def _count(device: DeviceRows, chosen: NDArray[np.bool_], one: str, many: str) -> str:
    spent = int((device.end - device.start)[chosen].sum()) / 1e6
    count = int(chosen.sum())
    return f"{count} {one if count == 1 else many} ({spent:.3f} ms)"
