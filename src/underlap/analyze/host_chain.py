"""The host side of the dependence graph: what each thread did one after the other, and where it was blocked.

A launch is a point in time; a blocking call is two, entering and leaving. Between two points of a thread the host was busy
with whatever Python, operators and the allocator did; that is the length of the edge. On CPU-only ranks the computing
operators stand in the chain themselves.

Where a thread is silent (not one row begins or ends) and goes on right after another thread or a gloo span did something,
it is taken to have waited for it: loss.backward() for the autograd thread, work.wait() for gloo. That is inferred by timing.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from underlap.columns import NONE, Int8, Int32, Int64, Table
from underlap.timeline import UNKNOWN_NS, HostKind, OpClass, Timeline

OP, LAUNCH, ENTER, LEAVE = 0, 1, 2, 3
"""Kinds of nodes: a device operation (or CPU operator), a launch, entering and leaving a blocking call."""

_BLOCKING = re.compile(r"(?:cuda|hip|cu|acl)\w*Synchronize|(?:cuda|hip)Memcpy$")
_WAITING = re.compile(r"c10d|wait|gloo:|mpi:|ucc:", re.IGNORECASE)
"""Rows that may do nothing but wait for a collective, so that a silence inside them is one."""
_WHOLE_DEVICE = re.compile(r"(?:cuda|hip|cu|acl)\w*(?:Device|Ctx)Synchronize")
SILENCE_NS = 50_000
"""A shorter silence is the host's own work between two rows."""
HANDOFF_NS = 200_000
HANDOFF_SHARE = 0.05
"""A silence ends because of another thread where that did something at most this long before (or this share of the silence)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of the host threads, in no particular order. All of shape (n,)."""

    kind: Int8
    time_ns: Int64
    rank: Int32
    thread: Int32
    host: Int64
    """Row of `Timeline.host`, -1 where the trace has none."""
    whole_device: np.ndarray
    """Whether leaving means that everything launched before has ended. Bool."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The points, and which of them launched each operation."""

    points: Points
    launch_point: Int64
    """Per operation the position of its launch in `points`, -1 where unknown."""
    blocking_point: Int64
    """Per operation the position of the LEAVE of the call that launched it and waited for it (a blocking copy), -1 for none."""


def find(timeline: Timeline) -> Found:
    """All points of all threads: launches, blocking calls, and on CPU ranks the calls of collectives."""
    thread, launch = launches(timeline)
    known = launch != UNKNOWN_NS
    host = timeline.host
    keys, place = _unique_pairs(thread[known], launch[known])
    row = _host_rows(timeline, keys)
    launch_point = np.full(len(timeline.ops), NONE, dtype=np.int64)
    launch_point[known] = place
    # A copy whose call returns after the copy has ended has waited for it.
    blocking = known & (timeline.ops.op_class == OpClass.COPY)
    rows = np.where(launch_point >= 0, row[launch_point] if len(row) else NONE, NONE)
    blocking &= rows >= 0
    blocking[blocking] = host.end_ns[rows[blocking]] >= timeline.ops.end_ns[blocking]
    waited = np.unique(rows[blocking])
    names = np.array([_BLOCKING.match(name) is not None for name in timeline.names], dtype=bool)
    whole = np.array([_WHOLE_DEVICE.match(name) is not None for name in timeline.names], dtype=bool)
    sync = np.flatnonzero((host.kind == HostKind.SYNC) & (host.end_ns > host.start_ns))
    sync = sync[names[host.name[sync]]] if len(sync) else sync
    alone = sync[~np.isin(sync, row)]
    left = np.concatenate([alone, waited])
    points = Points(
        kind=np.repeat(np.array([LAUNCH, ENTER, LEAVE], dtype=np.int8), [len(keys), len(alone), len(left)]),
        time_ns=np.concatenate([keys[:, 1], host.start_ns[alone], host.end_ns[left]]),
        rank=np.concatenate([_thread_rank(timeline, keys[:, 0]), host.rank[alone], host.rank[left]]).astype(np.int32),
        thread=np.concatenate([keys[:, 0], host.thread[alone], host.thread[left]]).astype(np.int32),
        host=np.concatenate([row, alone, left]),
        whole_device=np.concatenate(
            [np.zeros(len(keys) + len(alone), dtype=bool), whole[host.name[left]] if len(left) else np.empty(0, bool)]
        ),
    )
    blocking_point = np.full(len(timeline.ops), NONE, dtype=np.int64)
    blocking_point[blocking] = len(keys) + 2 * len(alone) + np.searchsorted(waited, rows[blocking])
    return Found(points=points, launch_point=launch_point, blocking_point=blocking_point)


def launches(timeline: Timeline) -> tuple[Int64, Int64]:
    """Thread and time of each operation's launch; on CPU ranks a collective's span is launched by its call."""
    ops, host = timeline.ops, timeline.host
    thread, launch = ops.thread.astype(np.int64), ops.launch_ns.copy()
    on_cpu = np.isin(ops.rank, [info.rank for info in timeline.ranks if info.on_cpu])
    spans = np.flatnonzero(on_cpu & (ops.collective >= 0))
    spans = spans[timeline.collectives.issue_ns[ops.collective[spans]] != UNKNOWN_NS]
    issued = timeline.collectives.issue_ns[ops.collective[spans]]
    calls = np.flatnonzero(host.kind == HostKind.OPERATOR)
    calls = calls[np.lexsort((host.start_ns[calls], host.rank[calls]))]
    for rank in np.unique(ops.rank[spans]).tolist():
        own = calls[host.rank[calls] == rank]
        mine = np.flatnonzero(ops.rank[spans] == rank)
        at = np.searchsorted(host.start_ns[own], issued[mine])
        fits = (at < len(own)) & (host.start_ns[own[np.minimum(at, len(own) - 1)]] == issued[mine]) if len(own) else at < 0
        rows = spans[mine[fits]]
        thread[rows], launch[rows] = host.thread[own[at[fits]]], issued[mine[fits]]
    launch[thread < 0] = UNKNOWN_NS
    return thread, launch


def _unique_pairs(thread: Int64, time: Int64) -> tuple[Int64, Int64]:
    """The distinct (thread, time) pairs, shape (k, 2), and for each row the position of its pair."""
    order = np.lexsort((time, thread))
    pairs = np.column_stack((thread, time))[order].reshape(-1, 2)
    new = np.ones(len(pairs), dtype=bool)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    place = np.empty(len(pairs), dtype=np.int64)
    place[order] = np.cumsum(new) - 1
    return pairs[new], place


def _host_rows(timeline: Timeline, keys: Int64) -> Int64:
    """The host row (a launch or a blocking call) of each (thread, start), -1 for none. `keys` is sorted."""
    host = timeline.host
    rows = np.flatnonzero((host.kind == HostKind.LAUNCH) | (host.kind == HostKind.SYNC) | (host.kind == HostKind.OPERATOR))
    rows = rows[np.lexsort((host.kind[rows], host.start_ns[rows], host.thread[rows]))]
    result = np.full(len(keys), NONE, dtype=np.int64)
    thread = host.thread[rows]
    for number in np.unique(keys[:, 0]).tolist():
        own = rows[np.searchsorted(thread, number) : np.searchsorted(thread, number, side="right")]
        begin, end = np.searchsorted(keys[:, 0], [number, number + 1])
        at = np.searchsorted(host.start_ns[own], keys[begin:end, 1])
        inside = np.minimum(at, max(len(own) - 1, 0))
        if len(own):
            fits = (at < len(own)) & (host.start_ns[own[inside]] == keys[begin:end, 1])
            result[begin:end] = np.where(fits, own[inside], NONE)
    return result


def _thread_rank(timeline: Timeline, threads: Int64) -> Int64:
    return np.array([thread.rank for thread in timeline.threads] or [NONE], dtype=np.int64)[threads]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Silences(Table):
    """Stretches in which a thread neither began nor ended a row, that ended right after something elsewhere. Shape (k,)."""

    thread: Int64
    start_ns: Int64
    end_ns: Int64
    cause_ns: Int64
    """When the other thread (or the gloo span) last did something before the end."""
    cause_thread: Int64
    """The other thread; -1 where it was a span."""
    cause_op: Int64
    """The span of a collective on a CPU rank that ended; -1 where it was a thread."""


def silences(timeline: Timeline, threads: Int64) -> Silences:
    """The silences of these threads (those with points), each with what the thread was waiting for."""
    host, ops = timeline.host, timeline.ops
    on_cpu = np.isin(ops.rank, [info.rank for info in timeline.ranks if info.on_cpu])
    spans = np.flatnonzero(on_cpu & (ops.collective >= 0))
    ranks = _thread_rank(timeline, threads)
    waiting = np.array([_WAITING.search(name) is not None for name in timeline.names], dtype=bool)
    found = [np.empty((0, 6), dtype=np.int64)]
    for rank in np.unique(ranks).tolist():
        own, ended = threads[ranks == rank], spans[ops.rank[spans] == rank]
        if len(own) + len(ended) < 2:
            continue
        rows = np.flatnonzero(np.isin(host.thread, own) & (host.rank == rank))
        # Spans of asynchronous work lie on whatever thread began them and say nothing about it.
        rows = rows[~np.isin(host.source_row[rows], ops.source_row[ended])]
        times = np.concatenate([host.start_ns[rows], host.end_ns[rows], ops.end_ns[ended]])
        # Whose event: a thread, or -2 - operation for the end of a span.
        of = np.concatenate([host.thread[rows], host.thread[rows], -2 - ended]).astype(np.int64)
        order = np.argsort(times, kind="stable")
        busy = rows[(host.kind[rows] != HostKind.ANNOTATION) & (host.end_ns[rows] - host.start_ns[rows] >= SILENCE_NS)]
        busy = busy[~waiting[host.name[busy]]]
        for thread in own.tolist():
            mine = busy[host.thread[busy] == thread]
            leaf = set(zip(host.start_ns[mine].tolist(), host.end_ns[mine].tolist(), strict=True))
            found.append(_of_thread(thread, times[order], of[order], leaf))
    return Silences.from_columns(**dict(zip(Silences.dtypes(), np.concatenate(found).T, strict=True)))


def _of_thread(thread: int, times: Int64, of: Int64, leaf: set[tuple[int, int]]) -> Int64:
    """The columns of the thread's silences. `leaf` are rows of its own in which it was busy, if nothing lies inside them."""
    own = times[of == thread]
    other, whose = times[of != thread], of[of != thread]
    if len(own) == 0 or len(other) == 0:
        return np.empty((0, 6), dtype=np.int64)
    # The thread's life before its first row is a silence too: the autograd thread begins when backward() calls it.
    starts = np.concatenate([[min(int(own[0]), int(other[0])) - 1], own[:-1]])
    at = np.searchsorted(other, own, side="right") - 1
    cause = other[np.maximum(at, 0)]
    near = (own - cause) <= np.maximum(HANDOFF_NS, HANDOFF_SHARE * (own - starts))
    chosen = np.flatnonzero((own - starts >= SILENCE_NS) & (at >= 0) & near & (cause > starts))
    free = [place for place in chosen.tolist() if (int(starts[place]), int(own[place])) not in leaf]
    tag = whose[np.maximum(at, 0)][free]
    columns = (
        np.full(len(free), thread),
        starts[free],
        own[free],
        cause[free],
        np.maximum(tag, NONE),
        np.maximum(-2 - tag, NONE),
    )
    result: Int64 = np.column_stack(columns).astype(np.int64)
    return result
