"""NVTX ranges of an Nsight Systems export: their names, and which of them encloses a launch.

Push/pop ranges nest on their thread, so they say where a launch comes from. Start/end ranges may cross each other and
end on another thread: they are listed, but enclose nothing here. Marks, categories and payloads are not read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int32, Int64, Interner
from underlap.read.nsight_tables import NVTX, ROW, Export, decode, possible

PUSH_POP = 59
START_END = 60
UNKNOWN_END = int(np.iinfo(np.int64).max)

# torch.autograd.profiler.emit_nvtx appends these, in this order and each only where known, to the name of an operator.
_MARKS = (b"seq = ", b"op_id = ", b"sizes = ")
_FIRST_MARK = re.compile(rb", (seq|op_id|sizes) = ")
# An operator of torch is namespace::name; "FSDP::pre_forward (blocks.3)" or "std::thread running" is an annotation.
_OPERATOR = re.compile(r"[a-z_][A-Za-z0-9_]*::[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """NVTX ranges, sorted by thread, start and (outer first) end. One row per range."""

    start: Int64
    end: Int64
    """`UNKNOWN_END` where the range was still open when the capture ended."""
    tid: Int64
    """globalTid: process and thread."""
    name: Int32
    row: Int64
    nests: NDArray[np.bool_]
    """Push/pop ranges; only these enclose."""
    parent: Int64
    """The innermost nesting range around this one, or -1."""

    def __len__(self) -> int:
        return len(self.start)


def clean(text: bytes) -> bytes:
    """The name without what emit_nvtx appended: "aten::mm, seq = 3, op_id = 9" is aten::mm."""
    name, _, rest = text.partition(b", ")
    return name if rest.startswith(_MARKS) else _FIRST_MARK.split(text, maxsplit=1)[0]


def is_operator(name: str) -> bool:
    """Whether the name is that of an operator of the framework."""
    return _OPERATOR.fullmatch(name) is not None


def read_ranges(export: Export, names: Interner) -> Ranges:
    """The push/pop and start/end ranges of all processes."""
    columns = export.columns(NVTX, ("start", "eventType", "globalTid"), ("end", "textId"))
    kind = columns["eventType"]
    wanted = np.isin(kind, (PUSH_POP, START_END))
    name = _names(export, columns["textId"], names)
    keep = np.flatnonzero(wanted & (name >= 0) & possible(columns["start"], columns["end"]))
    start, tid = columns["start"][keep], columns["globalTid"][keep]
    end = np.where(columns["end"][keep] == NONE, UNKNOWN_END, columns["end"][keep])
    order = np.lexsort((-end, start, tid))
    nests = (kind[keep] == PUSH_POP)[order]
    start, end, tid = start[order], end[order], tid[order]
    return Ranges(
        start=start,
        end=end,
        tid=tid,
        name=name[keep][order].astype(np.int32),
        row=columns[ROW][keep][order],
        nests=nests,
        parent=_parents(start, end, tid, nests),
    )


def _names(export: Export, text_id: Int64, names: Interner) -> Int64:
    # In row order, as Export.columns reads: a text, or the id of a registered string, or neither.
    registered = export.strings(np.unique(text_id[text_id >= 0]).tolist())
    table = {key: names(decode(clean(text.encode()))) for key, text in registered.items()}
    unique, inverse = np.unique(text_id, return_inverse=True)
    by_id = np.array([table.get(key, NONE) for key in unique.tolist()], dtype=np.int64)[inverse]
    if not export.has(NVTX, "text"):
        return by_id
    seen: dict[Any, int] = {None: NONE}

    def number(text: Any) -> int:
        name = clean(text) if isinstance(text, bytes) else text
        found = seen.get(name)
        if found is None:
            found = seen[name] = names(decode(name))
        return found

    range_text = f"CASE WHEN eventType IN ({PUSH_POP}, {START_END}) THEN text END"
    by_text = export.numbers(f"SELECT {range_text} FROM {NVTX} ORDER BY rowid", number)  # noqa: S608 - names are our constants
    return np.where(by_text >= 0, by_text, by_id)


def innermost(ranges: Ranges, tid: Int64, time: Int64) -> Int64:
    """For each (thread, time): the innermost range around it, or -1."""
    found = np.full(len(time), NONE, dtype=np.int64)
    order = np.argsort(tid, kind="stable")
    sorted_tid = tid[order]
    for thread, rows in _threads(ranges.tid, ranges.nests):
        here = order[np.searchsorted(sorted_tid, thread, "left") : np.searchsorted(sorted_tid, thread, "right")]
        nest = _Nest(ranges.start[rows], ranges.end[rows])
        begun = np.searchsorted(nest.start, time[here], side="right")
        at = nest.latest(begun, begun - np.searchsorted(nest.ends, time[here], side="right") - 1)
        found[here] = np.where(at >= 0, rows[at], NONE)
    return found


def ancestor(ranges: Ranges, index: Int64, wanted: NDArray[np.bool_]) -> Int64:
    """For each range (or -1): itself or the nearest range around it that is wanted, or -1."""
    # One more entry, so that -1 leads to -1.
    skip = np.append(np.where(wanted, np.arange(len(ranges)), ranges.parent), NONE)
    good = np.append(wanted, True)
    # Whoever leads to an unwanted range takes over where that one leads: the distance doubles each round.
    left = np.flatnonzero(~good[skip])
    while len(left):
        skip[left] = skip[skip[left]]
        left = left[~good[skip[left]]]
    return skip[index]


def _parents(start: Int64, end: Int64, tid: Int64, nests: NDArray[np.bool_]) -> Int64:
    parent = np.full(len(start), NONE, dtype=np.int64)
    for _, rows in _threads(tid, nests):
        nest = _Nest(start[rows], end[rows])
        at = nest.latest(np.arange(len(rows)), nest.depth - 1)
        parent[rows] = np.where(at >= 0, rows[at], NONE)
    return parent


def _threads(tid: Int64, nests: NDArray[np.bool_]) -> Iterator[tuple[int, Int64]]:
    """The nesting ranges of each thread."""
    rows = np.flatnonzero(nests)
    threads, begins = np.unique(tid[rows], return_index=True)
    edges = [*begins.tolist(), len(rows)]
    for thread, begin, end in zip(threads.tolist(), edges[:-1], edges[1:], strict=True):
        yield thread, rows[begin:end]


class _Nest:
    """Ranges of one thread by depth. In a nest, whoever began last at a depth is the one that is open there.

    That takes a binary search per question, however deep the nest: a program that forgets its pops nests without end.
    """

    def __init__(self, start: Int64, end: Int64) -> None:
        self.start = start
        # An empty range lasts 1 ns here, so that it does not end before it begins.
        self.ends = np.sort(np.maximum(end, start + 1))
        index = np.arange(len(start))
        self.depth: Int64 = index - np.searchsorted(self.ends, start, side="right")
        self._width = len(start) + 1
        self._keys = np.sort(self.depth * self._width + index)

    def latest(self, before: Int64, depth: Int64) -> Int64:
        """The last range with an index below `before` at this depth, -1 where there is none."""
        at = np.searchsorted(self._keys, depth * self._width + before, side="left") - 1
        key = self._keys[at]
        return np.where((depth >= 0) & (at >= 0) & (key // self._width == depth), key % self._width, NONE)
