"""CPU-only ranks (gloo): communication is the `gloo:*` span, compute is what the operators of other threads do.

Compute is the time inside an operator of any library (aten::mm, ...) and not inside a c10d or _c10d_functional operator, on
threads that are no gloo run loop. An operator of these that blocks (c10d::send, _c10d_functional::wait_tensor) is waiting, so
it is cut out of the operator around it: with tensor parallelism aten::linear waits for its collectives inside. Operators are
taken whole: the time that aten::linear spends in aten::addmm, and between its parts, is compute once.
Not modeled: threads that an operator starts by itself (OpenMP); they run inside its time.
"""

from __future__ import annotations

import re
from collections import Counter, deque

import numpy as np

from underlap import intervals
from underlap.columns import NONE, Int64
from underlap.read import calls, device
from underlap.read.calls import CallInfo
from underlap.read.lanes import in_order
from underlap.read.nesting import Nesting
from underlap.read.rows import Context, FileRows, Parts
from underlap.timeline import UNKNOWN_NS, HostKind, Lane, Note, OpClass, Operations

SPAN = re.compile(r"(gloo|mpi|ucc):")
# Wrappers of the autograd engine and calls of collectives compute nothing themselves.
_NO_COMPUTE = re.compile(r"c10d::|_?c10d_functional|record_param_comms|autograd::|torch::autograd::")
_CALL = re.compile(r"c10d::")
_BLOCKING = re.compile(r"c10d::|_?c10d_functional")


def parts(context: Context) -> Parts:
    """The operations and collectives of a rank without device rows."""
    rows, host = context.rows, context.rows.host
    spans = _rows_named(rows, SPAN)
    asked = _rows_named(rows, _CALL)
    loops = _run_loops(rows, spans, asked)
    compute = _compute(rows, _rows_named(rows, _BLOCKING), loops)
    start = np.concatenate([host["start"][spans], compute[:, 0]])
    end = np.concatenate([host["end"][spans], compute[:, 1]])
    row = np.concatenate([spans, compute[:, 2]])
    count = len(row)
    owner = np.concatenate([np.arange(len(spans)), np.full(len(compute), NONE)])
    names = np.array([context.names(name) for name in rows.host_names], dtype=np.int32)
    threads = [Lane(rank=context.rank, device=0, label=label) for label in _labels(rows)]
    lanes, lane = in_order(threads, host["thread"][row])
    operations = Operations.from_columns(
        start_ns=start,
        end_ns=end,
        launch_ns=np.full(count, UNKNOWN_NS),
        rank=np.full(count, context.rank),
        device=np.zeros(count),
        lane=lane,
        thread=host["thread"][row],
        op_class=np.concatenate([np.full(len(spans), OpClass.COMMUNICATION), np.full(len(compute), OpClass.COMPUTE)]),
        name=names[host["name"][row]],
        shape=np.full(count, NONE),
        call_site=np.full(count, NONE),
        collective=owner,
        graph=np.full(count, NONE),
        nbytes=np.full(count, NONE),
        represents=np.ones(count),
        source_row=host["row"][row],
    )
    notes = [
        Note(
            code="cpu_rank",
            text="no device rows: communication is the gloo spans, compute the operators on the host outside c10d calls",
        )
    ]
    processes = {rows.threads[thread][0] for thread in np.unique(operations.thread).tolist()}
    if len(processes) > 1:
        text = f"{len(processes)} processes in one file without device rows are taken as one rank"
        notes.append(Note(code="processes_merged", text=text))
    return Parts(
        ops=operations,
        collectives=device.collective_table(_calls(context, spans, asked)),
        lanes=lanes,
        launching=np.zeros(len(host["start"]), dtype=bool),
        operator=np.empty(0, dtype=np.int64),
        process_rank={},
        notes=notes,
    )


def _labels(rows: FileRows) -> list[str]:
    """The name of each thread, with its number where two threads share a name."""
    named = [rows.thread_names.get(key, str(key[1])) for key in rows.threads]
    counted = Counter(named)
    return [
        name if counted[name] == 1 else f"{name} {process}/{number}"
        for name, (process, number) in zip(named, rows.threads, strict=True)
    ]


def _rows_named(rows: FileRows, pattern: re.Pattern[str]) -> Int64:
    numbers = [number for number, name in enumerate(rows.host_names) if pattern.match(name)]
    found = np.flatnonzero(np.isin(rows.host["name"], numbers))
    return found[np.lexsort((rows.host["row"][found], rows.host["start"][found]))]


def _run_loops(rows: FileRows, spans: Int64, asked: Int64) -> set[int]:
    """Threads that only carry out collectives: named pt_gloo_runloop, or with spans but without calls."""
    thread = rows.host["thread"]
    named = {at for at, key in enumerate(rows.threads) if "gloo_runloop" in rows.thread_names.get(key, "")}
    return named | (set(thread[spans].tolist()) - set(thread[asked].tolist()))


def _compute(rows: FileRows, blocking: Int64, loops: set[int]) -> Int64:
    """(start, end, host row) of the outermost computing operators, without the blocking calls inside them. Shape (n, 3)."""
    host = rows.host
    computing = [number for number, name in enumerate(rows.host_names) if "::" in name and not _NO_COMPUTE.match(name)]
    mask = (host["kind"] == HostKind.OPERATOR) & np.isin(host["name"], computing)
    index = np.flatnonzero(mask & ~np.isin(host["thread"], list(loops)))
    nesting = Nesting(host["thread"][index].astype(np.int32), host["start"][index], host["end"][index])
    outer = index[nesting.parents() < 0]
    outer = outer[np.lexsort((host["start"][outer], host["thread"][outer]))]
    pieces = [np.empty((0, 3), dtype=np.int64)]
    blocking = blocking[np.argsort(host["thread"][blocking], kind="stable")]
    threads, first = np.unique(host["thread"][outer], return_index=True)
    low = np.searchsorted(host["thread"][blocking], threads, side="left").tolist()
    high = np.searchsorted(host["thread"][blocking], threads, side="right").tolist()
    for at, own in enumerate(np.split(outer, first[1:]) if len(outer) else []):
        calls_here = blocking[low[at] : high[at]]
        blocked = intervals.union(host["start"][calls_here], host["end"][calls_here])
        whole = np.column_stack((host["start"][own], host["end"][own]))
        cut = intervals.subtract(whole, blocked)
        owner = own[np.searchsorted(whole[:, 0], cut[:, 0], side="right") - 1]
        pieces.append(np.column_stack((cut, owner)))
    return np.concatenate(pieces)


def _calls(context: Context, spans: Int64, asked: Int64) -> list[dict[str, int]]:
    """One entry per span, told by the c10d call that it carries out where one fits, else by the span alone."""
    rows, host = context.rows, context.rows.host
    call_of = _matched(rows, spans, asked)
    _, index = context.nesting
    parent = np.full(len(host["start"]), NONE, dtype=np.int64)
    if len(index):
        parents = context.nesting[0].parents()
        parent[index] = np.where(parents >= 0, index[parents], NONE)
    found = []
    for at, span in enumerate(spans.tolist()):
        call = int(call_of[at])
        info = _described(rows, span)
        site = NONE
        if call >= 0:
            info = _described(rows, call).filled_by(info)
            site = call
            above = int(parent[call])
            while above >= 0 and calls.CALL_NAME.match(rows.host_names[host["name"][above]]):
                site, above = above, int(parent[above])
            site = above if above >= 0 else site
        found.append(
            {
                "rank": context.rank,
                "library": context.names(rows.host_names[host["name"][span]].partition(":")[0]),
                "call_site": context.names(rows.host_names[host["name"][site]]) if site >= 0 else NONE,
                "issue_ns": int(host["start"][call]) if call >= 0 else UNKNOWN_NS,
                **device.call_columns(context, info),
            }
        )
    return found


def _described(rows: FileRows, row: int) -> CallInfo:
    arguments = rows.host_args[row]
    # What the engine's own records say in words, profilers leave to the shapes.
    return calls.from_metadata(arguments).filled_by(calls.from_shapes(rows.host_names[rows.host["name"][row]], arguments))


def _matched(rows: FileRows, spans: Int64, asked: Int64) -> Int64:
    """For each span the call that it carries out, or -1.

    A run loop takes calls in order, so each call gets the first span not yet taken that begins after it and fits in kind
    and size. torch's gloo runs reduce-scatter as an all-reduce and says so in the span.
    """
    result = np.full(len(spans), NONE, dtype=np.int64)
    starts = rows.host["start"]
    kinds = {"reduce_scatter": ("all_reduce", "reduce_scatter")}
    # Free spans in order of time, by kind and by size.
    free: dict[str | None, dict[int | None, deque[int]]] = {}
    for at, span in enumerate(spans.tolist()):
        info = _described(rows, span)
        free.setdefault(info.collective, {}).setdefault(info.in_elements, deque()).append(at)
    for call in asked.tolist():
        info = _described(rows, call)
        if info.collective is None:
            continue
        queues = []
        for kind in kinds.get(info.collective, (info.collective,)):
            by_size = free.get(kind, {})
            sizes = by_size if info.in_elements is None else (info.in_elements, None)
            queues += [by_size[size] for size in sizes if size in by_size]
        for queue in queues:
            # Calls come in order of their start, so a span that began earlier fits none of the following either.
            while queue and starts[spans[queue[0]]] < starts[call]:
                queue.popleft()
        first = min((queue for queue in queues if queue), key=lambda queue: queue[0], default=None)
        if first is not None:
            result[first.popleft()] = call
    return result
