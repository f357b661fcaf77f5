"""Collectives of an Nsight Systems export: which call of a framework or of NCCL a kernel or peer copy belongs to.

A framework names the collective in the range around the launch (nccl:all_to_all, c10d::allreduce_; torch writes them
under emit_nvtx). NCCL makes a range per call of its own API, and attaches what the call is about: message size,
communicator and peer, in an export made with --include-blobs=true. Element types and sequence numbers are nowhere in an
export.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int8, Int32, Int64, Interner
from underlap.read.collective import normalize, payload_bytes
from underlap.read.names import Recognition
from underlap.read.nsight_payloads import Payload
from underlap.read.nsight_ranges import Ranges, ancestor, innermost
from underlap.timeline import UNKNOWN_NS, Collectives, Group, OpClass

GROUP_MARKS = {"ncclGroupStart": 1, "ncclGroupEnd": -1}
COPY_ENGINE = "copy_engine"
_FRAMEWORK = re.compile(r"(nccl:|c10d::|_?c10d_functional(_autograd)?::|symm_mem::).*", re.DOTALL)
_NCCL_CALL = re.compile(r"nccl[A-Z]\w*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The ranges that NCCL made, one per call of its API, sorted by thread and start."""

    range: Int64
    """Index into the ranges."""
    unit: Int64
    """Calls between one ncclGroupStart and its ncclGroupEnd share a unit: NCCL submits them as one. Any other is its own."""
    name: list[str]
    payload: list[Payload | None]

    def __len__(self) -> int:
        return len(self.range)


def find_calls(ranges: Ranges, is_call: NDArray[np.bool_], names: Sequence[str], payloads: Mapping[int, Payload]) -> Calls:
    """NCCL's ranges among the ranges. `is_call` says per range whether it is one."""
    index = np.flatnonzero(is_call)
    called = [names[name] for name in ranges.name[index].tolist()]
    step = np.fromiter((GROUP_MARKS.get(name, 0) for name in called), dtype=np.int64, count=len(called))
    return Calls(
        range=index,
        unit=_units(ranges.tid[index], step),
        name=called,
        payload=[payloads.get(row) for row in ranges.row[index].tolist()],
    )


def _units(tid: Int64, step: Int64) -> Int64:
    unit = np.arange(len(tid), dtype=np.int64)
    edges = np.append(np.flatnonzero(np.diff(tid, prepend=tid[:1] - 1)), len(tid))
    for begin, end in itertools.pairwise(edges.tolist()):
        total = np.cumsum(step[begin:end])
        # A group that began before the capture ends without a start; measured from the lowest sum so far, depth is right.
        depth = total - np.minimum(np.minimum.accumulate(total), 0)
        before = np.append(0, depth[:-1])
        opens = np.where((before == 0) & (depth > 0), unit[begin:end], NONE)
        unit[begin:end] = np.where((before > 0) | (depth > 0), np.maximum.accumulate(opens), unit[begin:end])
    return unit


def payload_of(collective: str | None, calls: Calls, chosen: Sequence[int], sizes: Mapping[int, int]) -> int:
    """Payload in bytes of one collective that these calls make up, or -1. `sizes` gives the ranks per communicator."""
    sent = received = 0
    if not chosen:
        return NONE
    for index in chosen:
        called, payload = normalize(calls.name[index]), calls.payload[index]
        if called is None:
            continue
        if payload is None or payload.nbytes is None or not _fits(called, collective):
            return NONE
        # The message size is that of the smaller side; the other side holds one such message per rank.
        ranks = sizes.get(payload.communicator) if payload.communicator is not None else None
        if called in ("all_gather", "reduce_scatter", "all_to_all") and ranks is None:
            return NONE
        wide = payload.nbytes * (ranks or 1)
        sent += {"recv": 0, "reduce_scatter": wide, "all_to_all": wide}.get(called, payload.nbytes)
        received += {"send": 0, "all_gather": wide}.get(called, payload.nbytes)
    found = payload_bytes(collective, in_elements=sent, out_elements=received, element_bytes=1) if sent + received else None
    return NONE if found is None else found


def _fits(called: str, collective: str | None) -> bool:
    return called == collective or (called in ("send", "recv") and collective in ("all_to_all", "send_recv"))


def communicators(calls: Calls, rank_of_call: Int32) -> dict[int, Group]:
    """The communicators that calls name, as groups; members only where every one of them reports itself in this export."""
    members: dict[int, dict[int, int]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    for payload, rank in zip(calls.payload, rank_of_call.tolist(), strict=True):
        if payload is None or not payload.communicator:
            continue
        known = members[payload.communicator]
        if payload.size is not None:
            sizes[payload.communicator] = payload.size
        if payload.rank is not None and rank >= 0:
            known[payload.rank] = rank
    groups = {}
    for communicator, known in members.items():
        size = sizes.get(communicator)
        complete = size is not None and sorted(known) == list(range(size)) and len(set(known.values())) == size
        groups[communicator] = Group(
            name=f"{communicator:#018x}",
            description=None,
            size=size,
            ranks=tuple(known[index] for index in range(size or 0)) if complete else None,
            note="communicator of NCCL, from the payload of its NVTX ranges",
        )
    return groups


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What has to be known of each device row."""

    launch: Int64
    """The launching call, or -1."""
    time: Int64
    """Its start; `UNKNOWN_NS` where there is none."""
    tid: Int64
    """globalTid of the launching call, or -1."""
    rank: Int32
    device: Int32
    name: Int32
    op_class: Int8
    in_graph: NDArray[np.bool_]
    peer: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Collectives, and per device row what they make of it."""

    op_class: Int8
    """As in the work, with the peer copies of a collective as communication."""
    call_site: Int32
    collective_of_op: Int32
    collectives: Collectives
    groups: tuple[Group, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Everything that a row of collectives is made from. Indices of ranges, calls and units; -1 for none."""

    work: Work
    ranges: Ranges
    framework: Int64
    """Per device row: the innermost range around its launch by which a framework names a collective."""
    outer: Int64
    """Per range: the next such range around it."""
    site: Int64
    """Per device row: the innermost range that is not a call of NCCL."""
    calls: Calls
    unit: Int64
    """Per device row: the unit of the innermost call of NCCL around its launch."""
    calls_of_unit: dict[int, list[int]]
    """The calls that move data; units without one are left out."""
    calls_of_framework: dict[int, list[int]]
    groups: dict[int, Group]
    recognitions: Mapping[int, Recognition]


def find_collectives(
    work: Work,
    ranges: Ranges,
    rank_of_range: Int32,
    names: Interner,
    recognitions: Mapping[int, Recognition],
    payloads: Mapping[int, Payload],
) -> Found:
    """The collectives, one row per call on a device: per framework range, or per kernel where there is no such range."""
    evidence = _evidence(work, ranges, rank_of_range, names, recognitions, payloads)
    copies = work.peer & ((evidence.framework >= 0) | np.isin(evidence.unit, list(evidence.calls_of_unit)))
    ops = np.flatnonzero(copies | np.isin(work.op_class, (OpClass.COMMUNICATION, OpClass.FUSED, OpClass.WAIT)))
    # Rows of one call on one device share a key; without a framework range each row is its own call.
    framework, device = evidence.framework[ops], work.device[ops].astype(np.int64)
    key = np.where(framework >= 0, framework * (int(device.max(initial=0)) + 1) + device, -1 - ops)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    row_of_op = np.full(len(work.time), NONE, dtype=np.int32)
    row_of_op[ops] = np.argsort(order, kind="stable")[inverse]
    return Found(
        op_class=np.where(copies, OpClass.COMMUNICATION, work.op_class).astype(np.int8),
        call_site=np.append(ranges.name, NONE)[evidence.site].astype(np.int32),
        collective_of_op=row_of_op,
        collectives=_rows(evidence, ops, ops[first[order]], names),
        groups=tuple(evidence.groups.values()),
    )


def _evidence(
    work: Work,
    ranges: Ranges,
    rank_of_range: Int32,
    names: Interner,
    recognitions: Mapping[int, Recognition],
    payloads: Mapping[int, Payload],
) -> _Evidence:
    is_call, is_framework = (_matches(pattern, names)[ranges.name] for pattern in (_NCCL_CALL, _FRAMEWORK))
    calls = find_calls(ranges, is_call, names.values, payloads)
    around = innermost(ranges, work.tid, work.time)
    # What encloses the launch of a graph says nothing about a single kernel of it.
    own = np.where(work.in_graph, NONE, around)
    number = np.full(len(ranges) + 1, NONE, dtype=np.int64)
    number[calls.range] = np.arange(len(calls))
    calls_of_unit, calls_of_framework = defaultdict(list), defaultdict(list)
    framework_of_call = ancestor(ranges, calls.range, is_framework)
    for index, (unit, framework) in enumerate(zip(calls.unit.tolist(), framework_of_call.tolist(), strict=True)):
        if normalize(calls.name[index]) is not None:
            calls_of_unit[unit].append(index)
            calls_of_framework[framework].append(index)
    return _Evidence(
        work=work,
        ranges=ranges,
        outer=ancestor(ranges, ranges.parent, is_framework),
        framework=ancestor(ranges, own, is_framework),
        site=ancestor(ranges, around, ~is_call),
        calls=calls,
        unit=np.append(calls.unit, NONE)[number[ancestor(ranges, own, is_call)]],
        calls_of_unit=calls_of_unit,
        calls_of_framework=calls_of_framework,
        groups=communicators(calls, rank_of_range[calls.range]),
        recognitions=recognitions,
    )


def _matches(pattern: re.Pattern[str], names: Interner) -> NDArray[np.bool_]:
    return np.fromiter((pattern.fullmatch(name) is not None for name in names.values), dtype=bool, count=len(names.values))


def _rows(evidence: _Evidence, ops: Int64, firsts: Int64, names: Interner) -> Collectives:
    """One row per first device row of a call; `ops` are all device rows that communicate."""
    work, ranges, calls = evidence.work, evidence.ranges, evidence.calls
    frameworks = Counter(evidence.framework[firsts].tolist())
    units = Counter(evidence.unit[ops].tolist())
    sizes = {key: group.size for key, group in evidence.groups.items() if group.size is not None}
    place = {key: index for index, key in enumerate(evidence.groups)}
    rows: dict[str, list[int]] = {name: [] for name in Collectives.dtypes()}
    for op in firsts.tolist():
        framework, unit = int(evidence.framework[op]), int(evidence.unit[op])
        chain = _framework_chain(evidence, framework)
        chosen = evidence.calls_of_framework.get(framework, []) if chain else evidence.calls_of_unit.get(unit, [])
        recognition = evidence.recognitions.get(int(work.name[op]))
        collective = _collective(evidence, chain, chosen, names) or (recognition.collective if recognition else None)
        # Calls that several kernels or devices share cannot be told apart: then nothing of their payload is known.
        about = chosen if (frameworks[framework] if chain else units[unit]) == 1 else []
        named = {payload.communicator for payload in (calls.payload[index] for index in about) if payload is not None}
        communicator = (named.pop() if len(named) == 1 else None) or 0
        issue = chain[-1] if chain else int(calls.range[unit]) if chosen else NONE
        site = chain[-1] if chain else int(evidence.site[op])
        values = {
            "rank": int(work.rank[op]),
            "group": place.get(communicator, NONE),
            "sequence": NONE,
            "collective": names.optional(collective),
            "library": names.optional(recognition.library if recognition else COPY_ENGINE),
            "dtype": NONE,
            "payload_bytes": payload_of(collective, calls, about, sizes),
            "peer": _peer(calls, about, evidence.groups.get(communicator)),
            "call_site": int(ranges.name[site]) if site >= 0 else NONE,
            "asynchronous": NONE,
            "issue_ns": int(ranges.start[issue]) if issue >= 0 else UNKNOWN_NS,
        }
        for name, value in values.items():
            rows[name].append(value)
    return Collectives.from_columns(**rows)


def _framework_chain(evidence: _Evidence, innermost_one: int) -> list[int]:
    """The ranges in which a framework names collectives, from the innermost one outwards."""
    chain, at = [], innermost_one
    while at >= 0:
        chain.append(at)
        at = int(evidence.outer[at])
    return chain


def _collective(evidence: _Evidence, chain: list[int], chosen: list[int], names: Interner) -> str | None:
    """What the framework calls it, or what NCCL was asked for, where that is one thing."""
    for index in chain:
        said = normalize(names.values[evidence.ranges.name[index]])
        if said is not None:
            return said
    asked = {normalize(evidence.calls.name[index]) for index in chosen}
    return asked.pop() if len(asked) == 1 else None


def _peer(calls: Calls, about: list[int], group: Group | None) -> int:
    """The rank at the other end, where the group lists its members: NCCL counts ranks within the communicator."""
    payloads = [payload for payload in (calls.payload[index] for index in about) if payload is not None]
    others = {other for payload in payloads for other in (payload.peer, payload.root) if other is not None}
    if len(others) != 1 or group is None or group.ranks is None:
        return NONE
    other = others.pop()
    return group.ranks[other] if 0 <= other < len(group.ranks) else NONE
