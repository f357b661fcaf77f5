"""Device rows of a Kineto file: which process they belong to, what launched them, which calls of collectives they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int32, Int64
from underlap.read.calls import CallInfo, from_metadata, from_shapes
from underlap.read.lanes import lanes as lanes_of
from underlap.read.launches import launches
from underlap.read.names import is_copy_name, is_peer_copy_name
from underlap.read.rows import Context, FileRows, Parts
from underlap.timeline import UNKNOWN_NS, Collectives, Note, OpClass, Operations
from underlap.wording import counted

_MOST_SOURCES = 16
"""A call is a few ranges inside each other: an annotation, an operator, record_param_comms."""
_ON_DEVICE = (OpClass.COMMUNICATION, OpClass.FUSED, OpClass.WAIT)


def parts(context: Context) -> Parts:
    """The operations and collectives of a file with device rows."""
    rows = context.rows
    notes: list[Note] = []
    launch, process_rank = launches(rows, notes)
    inner, parent = _call_sites(context, launch)
    chains = _Chains(context, parent)
    op_class = _classes(context, inner, chains, notes)
    lanes, lane = lanes_of(rows, launch, process_rank, context.rank)
    rank = np.array([entry.rank for entry in lanes], dtype=np.int32)[lane]
    collectives, owner = _collectives(context, op_class, inner, chains, rank)
    device = rows.device
    host = rows.host
    name_ids = np.array([context.names(name) for name in rows.device_names], dtype=np.int32)
    site_names = np.array([*(context.names(name) for name in rows.host_names), NONE], dtype=np.int32)
    known = launch >= 0
    launching = np.zeros(len(host["start"]), dtype=bool)
    launching[launch[known]] = True
    if not known.all():
        notes.append(
            Note(
                code="launch_unknown",
                text=f"no launch in the trace for {int((~known).sum())} of {counted(len(known), 'device row')}",
            )
        )
    operations = Operations.from_columns(
        start_ns=device["start"],
        end_ns=device["end"],
        launch_ns=np.where(known, host["start"][launch] if len(host["start"]) else 0, UNKNOWN_NS),
        rank=rank,
        device=np.array([entry.device for entry in lanes], dtype=np.int32)[lane],
        lane=lane,
        thread=np.where(known, host["thread"][launch] if len(host["start"]) else 0, NONE),
        op_class=op_class,
        name=name_ids[device["name"]],
        shape=device["shape"],
        call_site=site_names[np.where(inner >= 0, host["name"][inner] if len(host["start"]) else 0, NONE)],
        collective=owner,
        graph=_small(device["graph"]),
        nbytes=device["bytes"],
        represents=np.ones(len(launch)),
        source_row=device["row"],
    )
    return Parts(
        ops=operations,
        collectives=collectives,
        lanes=lanes,
        launching=launching,
        operator=inner,
        process_rank=process_rank,
        notes=notes,
    )


def _call_sites(context: Context, launch: Int64) -> tuple[Int64, Int64]:
    """The host row of the innermost operator or annotation around each launch, and each host row's parent; -1 for none."""
    nesting, index = context.nesting
    host = context.rows.host
    inner = np.full(len(launch), NONE, dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    if len(index) and len(known):
        rows = launch[known]
        found = nesting.innermost(host["thread"][rows].astype(np.int32), host["start"][rows])
        inner[known] = np.where(found >= 0, index[found], NONE)
    parent = np.full(len(host["start"]), NONE, dtype=np.int64)
    if len(index):
        parents = nesting.parents()
        parent[index] = np.where(parents >= 0, index[parents], NONE)
    return inner, parent


class _Chains:
    """What the host ranges around a launch say about the call of a collective that it belongs to."""

    def __init__(self, context: Context, parent: Int64) -> None:
        self._rows = context.rows
        self._parent = parent
        self._found: dict[int, tuple[CallInfo, int, int]] = {}
        # Where an id repeats, the first in time wins, whatever the order of the file.
        self._by_external: dict[int, int] = {}
        host = context.rows.host
        for row in sorted(context.rows.host_args, key=lambda row: int(host["start"][row])):
            external = int(host["external"][row])
            if external >= 0:
                self._by_external.setdefault(external, row)

    def around(self, row: int) -> tuple[CallInfo, int, int]:
        """(what the call is, its outermost host row, the host row around it); -1 where there is none."""
        passed = []
        at = row
        while at >= 0 and at not in self._found and at not in self._rows.host_args:
            passed.append(at)
            at = int(self._parent[at])
        if at not in self._found:
            self._found[at] = self._call(at)
        # All rows on the way are inside the same call; remembering it keeps deep stacks cheap.
        for below in passed:
            self._found[below] = self._found[at]
        return self._found[at]

    def _call(self, row: int) -> tuple[CallInfo, int, int]:
        """The same for a row that is itself a call, or -1."""
        sources: list[tuple[int, CallInfo]] = []
        outermost, at = NONE, row
        while at in self._rows.host_args and len(sources) < _MOST_SOURCES:
            name = self._rows.host_names[self._rows.host["name"][at]]
            sources.append(_described(name, self._rows.host_args[at]))
            outermost, at = at, int(self._parent[at])
        info = CallInfo()
        for _, source in sorted(sources, key=lambda entry: entry[0]):
            info = info.filled_by(source)
        return info, outermost, at

    def by_external(self, external: int, correlation: int) -> int:
        """The call with this External id, or -1. Old traces repeat the correlation there, which says nothing."""
        if external < 0 or external == correlation:
            return NONE
        return self._by_external.get(external, NONE)


def _described(name: str, args: Any) -> tuple[int, CallInfo]:
    if name == "record_param_comms":
        return 0, from_metadata(args)
    return (1 if "::" in name else 2), from_shapes(name, args)


def _classes(context: Context, inner: Int64, chains: _Chains, notes: list[Note]) -> NDArray[np.int8]:
    """The class of each device row, by name; of copies, by kind and by the call that they belong to."""
    rows, device = context.rows, context.rows.device
    by_name = np.array([int(context.table.recognize(name).op_class) for name in rows.device_names], dtype=np.int8)
    copy_name = np.array([is_copy_name(name) for name in rows.device_names], dtype=bool)
    peer_name = np.array([is_peer_copy_name(name) for name in rows.device_names], dtype=bool)
    op_class = by_name[device["name"]]
    copies = (device["copy"] == 1) | copy_name[device["name"]]
    op_class[copies] = OpClass.COPY
    # Kineto puts the collective's arguments on the kernel, whatever the kernel is called.
    for at in rows.device_args:
        if op_class[at] == OpClass.COMPUTE and from_metadata(rows.device_args[at]).collective is not None:
            op_class[at] = OpClass.COMMUNICATION
    on_device = np.isin(op_class, _ON_DEVICE)
    called = {chains.around(int(row))[1] for row in np.unique(inner[on_device]) if row >= 0}
    peer = peer_name[device["name"]] & copies
    # Any other device-to-device copy is a collective's transfer only if its call launched no communication kernel
    # (zero-CTA collectives); else it is the library's local copy in or out.
    maybe = peer | (copies & np.array(["DtoD" in name for name in rows.device_names], dtype=bool)[device["name"]])
    for at in np.flatnonzero(maybe & (inner >= 0)).tolist():
        info, call, _ = chains.around(int(inner[at]))
        if call < 0 or info.collective is None:
            continue
        single = info.group is None or info.group.size in (None, 1)
        if peer[at] or (call not in called and not single):
            op_class[at] = OpClass.COMMUNICATION
    _note_peer_copies(device, peer & (op_class == OpClass.COPY), notes)
    return op_class


def _note_peer_copies(device: dict[str, Int64], left: NDArray[np.bool_], notes: list[Note]) -> None:
    if left.any():
        length = int((device["end"] - device["start"])[left].sum())
        text = f"{int(left.sum())} peer-to-peer copies ({length / 1e6:.3f} ms) belong to no known collective; counted as copies"
        notes.append(Note(code="peer_copies", text=text))


def _collectives(
    context: Context,
    op_class: NDArray[np.int8],
    inner: Int64,
    chains: _Chains,
    rank: Int32,
) -> tuple[Collectives, Int32]:
    """One row per call, and for each device row the call that it belongs to (-1 for none)."""
    rows, device = context.rows, context.rows.device
    owner = np.full(len(op_class), NONE, dtype=np.int32)
    calls: dict[tuple[Any, ...], int] = {}
    found: list[dict[str, int]] = []
    for at in np.flatnonzero(np.isin(op_class, _ON_DEVICE)).tolist():
        row = int(inner[at])
        if row < 0:
            row = chains.by_external(int(device["external"][at]), int(device["correlation"][at]))
        info, call, site = chains.around(row) if row >= 0 else (CallInfo(), NONE, NONE)
        args = rows.device_args.get(at)
        if args is not None:
            info = from_metadata(args).filled_by(info)
        recognition = context.table.recognize(rows.device_names[device["name"][at]])
        if info.collective is None:
            info = dataclasses.replace(info, collective=recognition.collective)
        key = (call, info.collective, info.sequence) if call >= 0 else (NONE, at)
        if key not in calls:
            calls[key] = len(found)
            library = recognition.library or "copy_engine"
            found.append(
                {
                    "rank": int(rank[at]),
                    "library": context.names(library),
                    "call_site": _site_name(context, rows, row, call, site),
                    "issue_ns": int(rows.host["start"][call]) if call >= 0 else UNKNOWN_NS,
                    **call_columns(context, info),
                }
            )
        owner[at] = calls[key]
    return collective_table(found), owner


def call_columns(context: Context, info: CallInfo) -> dict[str, int]:
    """The columns of a `Collectives` row that a CallInfo decides."""
    group = _resolved(context, info)
    payload = info.payload(group.size if group else None)
    return {
        "group": context.groups(group) if group else NONE,
        "sequence": NONE if info.sequence is None else info.sequence,
        "collective": context.names.optional(info.collective),
        "dtype": context.names.optional(info.dtype),
        "payload_bytes": NONE if payload is None else payload,
        "peer": NONE if info.peer is None else info.peer,
        "asynchronous": NONE if info.asynchronous is None else int(info.asynchronous),
    }


def collective_table(found: list[dict[str, int]]) -> Collectives:
    """The table of the calls found, in that order."""
    return Collectives.from_columns(**{name: [call[name] for call in found] for name in Collectives.dtypes()})


def _resolved(context: Context, info: CallInfo) -> Any:
    """The call's group, with what the file's metadata says of the group of that name."""
    group = info.group
    if group is None or group.name is None:
        return group
    for listed in context.config:
        if listed.name == group.name and (group.ranks is None or listed.ranks in (None, group.ranks)):
            return dataclasses.replace(
                listed,
                ranks=group.ranks or listed.ranks,
                size=group.size or listed.size,
                description=group.description or listed.description,
            )
    return group


def _site_name(context: Context, rows: FileRows, row: int, call: int, site: int) -> int:
    """What to show as the call site: the range around the call, else the call, else the innermost range."""
    for candidate in (site, call, row):
        if candidate >= 0:
            return context.names(rows.host_names[rows.host["name"][candidate]])
    return NONE


def _small(values: Int64) -> Int64:
    """Ids that fit int32; others have no use beyond equality and are numbered anew."""
    if len(values) and values.max() > np.iinfo(np.int32).max:
        unique, numbers = np.unique(values, return_inverse=True)
        return np.where(values >= 0, numbers - int((unique < 0).sum()), NONE)
    return values
