"""Rows of an Nsight Systems export: device work, calls of the runtime, synchronizations. One array per column.

Names and classes are attached here; ranks, launches and collectives are found later. Unified memory migrations, CUDA
events and GPU metrics are not read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int8, Int32, Int64, Interner
from underlap.read import nsight_tables as tables
from underlap.read.names import NameTable, Recognition
from underlap.read.nsight_tables import ROW, Export, decode, possible
from underlap.timeline import OpClass

_DEVICE = ("start", "end", "deviceId", "streamId", "globalPid")
_LINKS = ("correlationId", "graphId", "graphNodeId")
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PEER = 10
# The numbering of CUpti_ActivityMemcpyKind; the export's own table is asked about others.
_COPY_NAMES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", _PEER: "PtoP"}
# cudaLaunchKernel_v7000 is cudaLaunchKernel as of CUDA 7.0; _v2 and the like are part of the name.
_ABI = re.compile(r"_v\d{4,}$")
# CUpti_ActivitySynchronizationType without 2, the stream that waits for an event: the host goes on there.
_HOST_SYNCS = {1: "Event sync", 3: "Stream sync", 4: "Context sync"}
GRAPH_NAME = "CUDA graph"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))

    def take(self, rows: NDArray[Any]) -> Self:
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows(_Rows):
    """Kernels, copies, memsets and whole graphs."""

    start: Int64
    end: Int64
    pid: Int64
    """globalPid."""
    device: Int64
    stream: Int64
    correlation: Int64
    graph: Int64
    nbytes: Int64
    name: Int32
    shape: Int32
    op_class: Int8
    peer: NDArray[np.bool_]
    """Copies between two devices."""
    opaque: NDArray[np.bool_]
    """Whole graphs: what ran inside is not in the export."""
    row: Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calls(_Rows):
    """Calls of the CUDA runtime and driver."""

    start: Int64
    end: Int64
    tid: Int64
    """globalTid: process and thread."""
    correlation: Int64
    name: Int32
    row: Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Syncs(_Rows):
    """Waits of the host as the driver saw them. The thread is not recorded."""

    start: Int64
    end: Int64
    pid: Int64
    correlation: Int64
    name: Int32
    row: Int64


def process_of(tid: Int64) -> Int64:
    """globalPid from globalTid: the low 24 bits are the thread, the next 24 the process, the rest the machine."""
    return tid >> 24 << 24


def number_of(pid: int) -> int:
    """The process id as the operating system counts it, from a globalPid or globalTid."""
    return (pid >> 24) & 0xFFFFFF


def thread_of(tid: int) -> int:
    """The thread id as the operating system counts it, from a globalTid."""
    return tid & 0xFFFFFF


def read_device_rows(
    export: Export, names: Interner, shapes: Interner, table: NameTable
) -> tuple[DeviceRows, dict[int, Recognition]]:
    """All device work, and what the kernel table says about each name in it."""
    kernels, recognitions = _kernels(export, names, shapes, table)
    return DeviceRows.concatenate([kernels, *_copies(export, names), _graphs(export, names)]), recognitions


def read_calls(export: Export, names: Interner) -> Calls:
    """The calls of the runtime and the driver."""
    parts = []
    for table in (tables.RUNTIME, tables.DRIVER):
        columns = export.columns(table, ("start", "end", "globalTid", "nameId"), ("correlationId",))
        unique, inverse = np.unique(columns["nameId"], return_inverse=True)
        texts = export.strings(unique.tolist())
        ids = [names(_ABI.sub("", texts.get(key, "unnamed call"))) for key in unique.tolist()]
        parts.append(
            Calls(
                start=columns["start"],
                end=columns["end"],
                tid=columns["globalTid"],
                correlation=columns["correlationId"],
                name=np.array(ids, dtype=np.int32)[inverse],
                row=columns[ROW],
            )
        )
    calls = Calls.concatenate(parts)
    return calls.take(possible(calls.start, calls.end))


def read_host_syncs(export: Export, names: Interner, calls: Calls) -> Syncs:
    """Synchronizations of the host whose call is not among the calls.

    Where the call is there, the row repeats it: it lies inside the call, by a few hundred nanoseconds. Event
    synchronizations are also written for cudaEventQuery, which does not block; without the call the two look alike.
    """
    columns = export.columns(tables.SYNCHRONIZATION, ("start", "end", "syncType", "globalPid"), ("correlationId",))
    kind, pid, correlation = columns["syncType"], columns["globalPid"], columns["correlationId"]
    rows = Syncs(
        start=columns["start"],
        end=columns["end"],
        pid=pid,
        correlation=correlation,
        name=np.array([names.optional(_HOST_SYNCS.get(value)) for value in kind.tolist()], dtype=np.int32),
        row=columns[ROW],
    )
    return rows.take((rows.name >= 0) & (match_calls(pid, correlation, calls) == NONE) & possible(rows.start, rows.end))


def match_calls(pid: Int64, correlation: Int64, calls: Calls) -> Int64:
    """For each (process, correlation id): the first call with both, or -1. Correlation ids are unique per process only."""
    order = np.lexsort((calls.start, calls.correlation, process_of(calls.tid)))
    order = order[calls.correlation[order] > 0]
    if len(order) == 0:
        return np.full(len(pid), NONE, dtype=np.int64)
    pids = np.unique(process_of(calls.tid))
    # CUPTI's ids have 32 bits; the process in front of them makes one sortable key.
    keys = np.searchsorted(pids, process_of(calls.tid[order])) << 32 | (calls.correlation[order] & 0xFFFFFFFF)
    at_pid = np.minimum(np.searchsorted(pids, pid), len(pids) - 1)
    wanted = at_pid << 32 | (correlation & 0xFFFFFFFF)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = (keys[at] == wanted) & (pids[at_pid] == pid) & (correlation > 0)
    return np.where(hit, order[at], NONE)


def read_device_model(export: Export) -> str | None:
    """The model of the devices, where all in the machine are the same; which row is which device is not looked up."""
    if not export.has(tables.GPUS, "name"):
        return None
    found = {decode(name) for (name,) in export.rows(f"SELECT DISTINCT name FROM {tables.GPUS} WHERE name IS NOT NULL")}  # noqa: S608 - our constant
    return found.pop() if len(found) == 1 else None


def read_multiprocessors(export: Export) -> int | None:
    """How many multiprocessors each device has, where all in the machine have as many."""
    if not export.has(tables.GPUS, "smCount"):
        return None
    found = {count for (count,) in export.rows(f"SELECT DISTINCT smCount FROM {tables.GPUS}") if isinstance(count, int)}  # noqa: S608 - our constant
    return found.pop() if len(found) == 1 and min(found) > 0 else None


def read_session(export: Export) -> tuple[int, int] | None:
    """From when to when the report was recorded, in nanoseconds of UTC; None where the export does not say."""
    if not export.has(tables.SESSION, "utcEpochNs") or not export.has(tables.CAPTURE, "duration"):
        return None
    starts = [start for (start,) in export.rows(f"SELECT utcEpochNs FROM {tables.SESSION}") if isinstance(start, int)]  # noqa: S608 - our constant
    lengths = [length for (length,) in export.rows(f"SELECT duration FROM {tables.CAPTURE}") if isinstance(length, int)]  # noqa: S608 - our constant
    return (min(starts), max(starts) + max(lengths)) if starts and lengths else None


def _kernels(export: Export, names: Interner, shapes: Interner, table: NameTable) -> tuple[DeviceRows, dict[int, Recognition]]:
    spellings = ("demangledName", "shortName", "mangledName")
    spelling = next((name for name in spellings if export.has(tables.KERNEL, name)), spellings[0])
    columns = export.columns(tables.KERNEL, _DEVICE, (*_LINKS, *_SHAPE, spelling))
    text = columns[spelling]
    unique, inverse = np.unique(text, return_inverse=True)
    texts = export.strings(unique.tolist())
    ids = [names(texts.get(key, "unnamed kernel")) for key in unique.tolist()]
    recognitions = {index: table.recognize(names.values[index]) for index in ids}
    classes = [recognitions[index].op_class for index in ids]
    rows = _rows(columns, np.array(ids, dtype=np.int32)[inverse], np.array(classes, dtype=np.int8)[inverse])
    return dataclasses.replace(rows, shape=_shapes(columns, shapes)), recognitions


def _shapes(columns: dict[str, Int64], shapes: Interner) -> Int32:
    """The shape of each kernel; -1 where its grid and block are not three positive numbers each."""
    unique, inverse = np.unique(np.column_stack([columns[name] for name in _SHAPE]), axis=0, return_inverse=True)
    ids = [shapes((tuple(sizes[:3]), tuple(sizes[3:]))) if min(sizes) > 0 else NONE for sizes in unique.tolist()]
    return np.array(ids, dtype=np.int32)[inverse.ravel()]


def _copies(export: Export, names: Interner) -> list[DeviceRows]:
    columns = export.columns(tables.MEMCPY, (*_DEVICE, "copyKind"), (*_LINKS, "bytes", "srcDeviceId", "dstDeviceId"))
    kind, source, target = columns["copyKind"], columns["srcDeviceId"], columns["dstDeviceId"]
    unique, inverse = np.unique(kind, return_inverse=True)
    ids = [names(_copy_name(export, value)) for value in unique.tolist()]
    peer = (kind == _PEER) | ((source >= 0) & (target >= 0) & (source != target))
    copies = _rows(columns, np.array(ids, dtype=np.int32)[inverse], OpClass.COPY, peer=peer)
    columns = export.columns(tables.MEMSET, _DEVICE, (*_LINKS, "bytes"))
    return [copies, _rows(columns, names("Memset"), OpClass.COPY)]


def _copy_name(export: Export, kind: int) -> str:
    known = _COPY_NAMES.get(kind)
    if known is None and export.has(tables.COPY_KINDS, "id", "label"):
        found = export.rows(f"SELECT label FROM {tables.COPY_KINDS} WHERE id = ?", (kind,))  # noqa: S608 - our constant
        known = next((decode(label) for (label,) in found), None)
    return f"Memcpy {known or f'of kind {kind}'}"


def _graphs(export: Export, names: Interner) -> DeviceRows:
    columns = export.columns(tables.GRAPH_TRACE, _DEVICE, _LINKS)
    name = names(GRAPH_NAME) if len(columns[ROW]) else NONE
    return _rows(columns, name, OpClass.COMPUTE, opaque=True)


def _rows(
    columns: dict[str, Int64],
    name: Int32 | int,
    op_class: Int8 | int,
    *,
    peer: NDArray[np.bool_] | bool = False,
    opaque: bool = False,
) -> DeviceRows:
    rows = len(columns[ROW])
    graph, node = columns["graphId"], columns["graphNodeId"]
    return DeviceRows(
        start=columns["start"],
        end=columns["end"],
        pid=columns["globalPid"],
        device=columns["deviceId"],
        stream=columns["streamId"],
        correlation=columns["correlationId"],
        # CUPTI counts graphs from 1, in 32 bits without a sign; the top bit is dropped to fit the Timeline.
        graph=np.where(graph > 0, graph & 0x7FFFFFFF, np.where(node > 0, 0, NONE)),
        nbytes=columns.get("bytes", np.full(rows, NONE, dtype=np.int64)),
        name=np.broadcast_to(np.asarray(name, dtype=np.int32), (rows,)),
        shape=np.full(rows, NONE, dtype=np.int32),
        op_class=np.broadcast_to(np.asarray(op_class, dtype=np.int8), (rows,)),
        peer=np.broadcast_to(np.asarray(peer), (rows,)),
        opaque=np.full(rows, opaque),
        row=columns[ROW],
    )
