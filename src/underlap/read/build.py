"""The rows of one Kineto file to a Timeline: ranks, launches, call sites, collectives, notes."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from underlap.columns import Int64, Interner
from underlap.errors import NotATraceError
from underlap.read import calls, cpu, device, execution_trace
from underlap.read.event_waits import event_waits
from underlap.read.identity import coordinates_from_name, core_time, rank_from_metadata, rank_from_name
from underlap.read.json_events import EventFile
from underlap.read.names import NameTable
from underlap.read.nesting import Nesting
from underlap.read.numbers import integer
from underlap.read.rows import Context, FileRows, Parts
from underlap.read.sieve import drop_impossible
from underlap.timeline import UNKNOWN_NS, HostKind, HostRows, Note, Operations, RankInfo, Thread, Timeline, in_time_order
from underlap.wording import counted

_SYNC_NAME = re.compile(r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize$|(?:cuda|hip)Memcpy$|aclrtSynchronize")
_NO_HOST = ("", "localhost", "localhost.localdomain", "unknown", "(none)")
"""Names that many hosts have."""


def build(path: Path, file: EventFile, rows: FileRows, table: NameTable) -> Timeline:
    """See the module docstring. Raises NotATraceError when the rows say nothing about a device or a CPU rank."""
    names, groups = Interner(), Interner()
    info = file.metadata.get("distributedInfo")
    config = calls.groups_from_config(info.get("pg_config")) if isinstance(info, dict) else []
    rank, world = rank_from_metadata(file.metadata)
    source = "distributedInfo"
    if rank is None:
        rank, source = rank_from_name(path), "file name"
    if rank is None:
        rank, source = 0, "assumed"
    notes = []
    if world is not None and rank >= world:
        text = f"{path.name}: rank {rank} of a world of {world} ranks does not exist; the size of the world is taken as unknown"
        notes.append(Note(code="world_size", text=text))
        world = None
    drop_impossible(rows)
    on_cpu = len(rows.device["start"]) == 0
    nesting = _nesting(rows)
    context = Context(rows=rows, table=table, names=names, groups=groups, config=config, nesting=nesting, rank=rank)
    if on_cpu:
        _check_cpu(path, rows)
        parts = cpu.parts(context)
    else:
        parts = device.parts(context)
    rank_numbers = sorted(set(parts.process_rank.values())) or [rank]
    if len(rank_numbers) > 1:
        source = "process order"
    host, threads = _host_rows(rows, parts, rank, names)
    ops, collectives = in_time_order(parts.ops, parts.collectives)
    origin = min([int(column.min()) for column in (ops.start_ns, host.start_ns) if len(column)])
    listed = tuple(groups(group) for group in config)
    infos = tuple(
        RankInfo(
            rank=number,
            rank_source=source,
            world_size=world,
            source=path.name,
            on_cpu=on_cpu,
            clock=_host_clock(file.metadata),
            resolution_ns=_resolution(ops),
            device_model=_device_model(file.metadata, parts, number),
            multiprocessors=_multiprocessors(file.metadata, parts, number),
            coordinates=tuple(coordinates_from_name(path).items()) if source == "assumed" else (),
            groups=listed,
            core_ns=core_time(file.metadata) if on_cpu else None,
        )
        for number in rank_numbers
    )
    waits = event_waits(rows, parts.lanes)
    known, told = execution_trace.dependences(path, rows, ops, collectives, names.values, parts.operator)
    timeline = Timeline(
        provenance="measured",
        origin_ns=origin,
        ranks=infos,
        lanes=tuple(parts.lanes),
        threads=threads,
        groups=tuple(groups.values),
        names=tuple(names.values),
        shapes=tuple(rows.shapes),
        ops=_relative(ops, origin),
        host=host.replace(start_ns=host.start_ns - origin, end_ns=host.end_ns - origin),
        collectives=collectives.replace(issue_ns=_relative_times(collectives.issue_ns, origin)),
        recognized=np.fromiter((table.recognize(name).known for name in names.values), dtype=bool, count=len(names.values)),
        dependences=known,
        notes=(*_notes(path, file, rows), *notes, *parts.notes, *told),
        event_waits=waits.replace(wait_ns=waits.wait_ns - origin, record_ns=waits.record_ns - origin),
    )
    timeline.validate()
    return timeline


def _check_cpu(path: Path, rows: FileRows) -> None:
    launches = [name for name in rows.host_names if re.match(r"(?:cuda|hip|cu)(?:Launch|GraphLaunch|Memcpy)", name)]
    if launches:
        raise NotATraceError(
            f"{path}: no device events in this trace, though its host launches device work ({launches[0]}); "
            "record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        )
    if HostKind.OPERATOR not in rows.host["kind"] and not any(map(cpu.SPAN.match, rows.host_names)):
        raise NotATraceError(
            f"{path}: no device events, no operators and no gloo spans among its {rows.events} events; "
            "record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        )


def _nesting(rows: FileRows) -> tuple[Nesting, Int64]:
    """The tree of operators and annotations, and the host row of each of its rows."""
    host = rows.host
    # Spans of asynchronous work (gloo:send) overlap their thread's other ranges and nest in nothing.
    spans = {number for number, name in enumerate(rows.host_names) if cpu.SPAN.match(name)}
    named = (host["kind"] == HostKind.OPERATOR) | (host["kind"] == HostKind.ANNOTATION)
    if spans:
        named &= ~np.isin(host["name"], list(spans))
    index = np.flatnonzero(named)
    return Nesting(host["thread"][index].astype(np.int32), host["start"][index], host["end"][index]), index


def _host_rows(rows: FileRows, parts: Parts, rank: int, names: Interner) -> tuple[HostRows, tuple[Thread, ...]]:
    host = rows.host
    kind = host["kind"].copy()
    runtime = kind == HostKind.RUNTIME
    kind[runtime & parts.launching] = HostKind.LAUNCH
    blocking = [number for number, name in enumerate(rows.host_names) if _SYNC_NAME.match(name)]
    kind[runtime & np.isin(host["name"], blocking)] = HostKind.SYNC
    name_ids = np.array([names(name) for name in rows.host_names], dtype=np.int32)
    ranks = parts.process_rank
    other = min(ranks.values(), default=rank)
    thread_rank = np.array([ranks.get(process, other) for process, _ in rows.threads], dtype=np.int32)
    threads = tuple(
        Thread(rank=int(number), process=str(process), label=rows.thread_names.get((process, thread), str(thread)))
        for number, (process, thread) in zip(thread_rank, rows.threads, strict=True)
    )
    table = HostRows.from_columns(
        start_ns=host["start"],
        end_ns=host["end"],
        rank=thread_rank[host["thread"]] if len(host["thread"]) else [],
        thread=host["thread"],
        kind=kind,
        name=name_ids[host["name"]] if len(host["name"]) else [],
        source_row=host["row"],
    )
    if not ranks or not len(table):
        return table, threads
    owned = np.array([process in ranks for process, _ in rows.threads])[table.thread]
    if not owned.all():
        rows.dropped["of processes without a device"] = int((~owned).sum())
    return table.take(owned), threads


def _relative(ops: Operations, origin: int) -> Operations:
    return ops.replace(
        start_ns=ops.start_ns - origin,
        end_ns=ops.end_ns - origin,
        launch_ns=_relative_times(ops.launch_ns, origin),
    )


def _relative_times(times: Int64, origin: int) -> Int64:
    return np.where(times == UNKNOWN_NS, times, times - origin)


def _resolution(ops: Operations) -> int:
    whole = (ops.start_ns % 1000 == 0).all() and (ops.end_ns % 1000 == 0).all()
    return 1000 if len(ops) and whole else 1


def _host_clock(metadata: dict[str, Any]) -> int:
    """A number for the host's clock, equal for files of one host; 0 where the trace does not name it. No name goes further."""
    host = metadata.get("host_name")
    if not isinstance(host, str) or host.lower() in _NO_HOST:
        return 0
    return zlib.crc32(host.encode(errors="replace")) or 1


def _device_model(metadata: dict[str, Any], parts: Parts, rank: int) -> str | None:
    models = {str(entry["name"]) for entry in _devices(metadata, parts, rank) if entry.get("name")}
    return models.pop() if len(models) == 1 else None


def _multiprocessors(metadata: dict[str, Any], parts: Parts, rank: int) -> int | None:
    counts = {integer(entry.get("numSms")) for entry in _devices(metadata, parts, rank)}
    return counts.pop() if len(counts) == 1 and min(counts) > 0 else None


def _devices(metadata: dict[str, Any], parts: Parts, rank: int) -> list[dict[str, Any]]:
    """What the trace says about the devices that the rank uses."""
    used = {lane.device for lane in parts.lanes if lane.rank == rank}
    listed = metadata.get("deviceProperties")
    entries = listed if isinstance(listed, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and integer(entry.get("id")) in used]


def _notes(path: Path, file: EventFile, rows: FileRows) -> list[Note]:
    damage, notes = file.damage, []
    if damage.truncated:
        notes.append(Note(code="truncated", text=f"{path.name}: {damage.truncated}; complete events used: {rows.events}"))
    if damage.skipped:
        text = f"{path.name}: left out, as unreadable: {counted(damage.skipped, 'event')} (first: {damage.first_skipped})"
        notes.append(Note(code="events_skipped", text=text))
    if damage.mended:
        text = f"{path.name}: mended, as no valid JSON (control characters, quotes, NaN): {counted(damage.mended, 'event')}"
        notes.append(Note(code="events_mended", text=text))
    if damage.mistyped:
        text = f"{path.name}: taken as absent: fields of a wrong type in {counted(damage.mistyped, 'event')}"
        notes.append(Note(code="events_mistyped", text=text))
    if damage.metadata:
        notes.append(Note(code="metadata_lost", text=f"{path.name}: {damage.metadata}"))
    if damage.lists > 1:
        text = f"{path.name}: {damage.lists} lists of events in the file; all of them were read"
        notes.append(Note(code="several_lists", text=text))
    repeated = [counted(count, f"{kind} row") for count, kind in zip(rows.repeated, ("device", "host"), strict=True) if count]
    if repeated:
        text = f"{path.name}: left out, as they repeat another one exactly: {' and '.join(repeated)}"
        notes.append(Note(code="duplicates", text=text))
    for what, count in rows.dropped.items():
        notes.append(Note(code="events_dropped", text=f"{path.name}: left out: {counted(count, 'event')} {what}"))
    return notes
