"""PyTorch profiler (Kineto) traces to a Timeline: torch 1.8 to today, CUDA, ROCm, MTIA, and CPU-only ranks.

One pass over the file fills columns; then device rows are linked to the calls that launched them (correlation) and to the
operators around those calls (nesting on the launching thread). Flow arrows and Python stacks are not read.
What it does not do: decide groups, axes or steps from anything but what the trace says; that is analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int64, Interner
from underlap.errors import NotATraceError
from underlap.read.begin_end import Ends
from underlap.read.build import build
from underlap.read.calls import CALL_NAME
from underlap.read.execution_trace import beside
from underlap.read.json_event import Args, Event, detached
from underlap.read.json_events import Damage, EventFile
from underlap.read.names import NameTable
from underlap.read.numbers import integers, nanoseconds, valid
from underlap.read.rows import DEVICE_COLUMNS, HOST_COLUMNS, FileRows
from underlap.timeline import HostKind, Timeline

_KERNEL_CATEGORIES = {"kernel", "mtia_ccp_events", "hpu_op"}
_COPY_CATEGORIES = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_RUNTIME_CATEGORIES = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"}
_HOST_CATEGORIES = {
    **dict.fromkeys(_RUNTIME_CATEGORIES, HostKind.RUNTIME),
    **dict.fromkeys(
        ("mtia_runtime", "xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver", "glow_runtime"),
        HostKind.RUNTIME,
    ),
    "cuda_sync": HostKind.SYNC,
    "user_annotation": HostKind.ANNOTATION,
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
}
_NO_ARGS = Args()
_Size = Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
_Extent = tuple[_Size, _Size, _Size]


def read(path: Path, table: NameTable, report_bytes: Callable[[int], None] | None = None) -> Timeline:
    """The Timeline of one file. Raises NotATraceError or UnreadableError when the file holds nothing to use.

    A rank that neither the file nor its name tells is 0 with `rank_source` "assumed"; the caller may renumber it.
    """
    file = EventFile(path, report_bytes)
    # Ids of the rows are of use only beside an execution trace.
    rows = _Collector(table, records=bool(beside(path)))
    for batch in file.batches():
        rows.add(batch)
    collected = rows.finish()
    if rows.timed == 0:
        raise NotATraceError(f"{path}: {_without_rows(rows.events, file.damage)}")
    return build(path, file, collected, table)


def _without_rows(events: int, damage: Damage) -> str:
    """Why a file with a list of events yields no row."""
    reasons = [damage.truncated] if damage.truncated else []
    if damage.skipped:
        reasons.append(f"{damage.skipped} could not be read, the first: {damage.first_skipped}")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    if events == 0:
        return f"the list of trace events holds no complete event{why}; expected a profiler trace"
    return (
        f"none of its {events} events has a phase, a timestamp and a category of a profiler trace{why}; "
        "expected what torch.profiler's export_chrome_trace writes"
    )


class _Names(dict[Any, int]):
    """Name -> id, and for each new name whether it belongs to communication."""

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        self.calls: set[int] = set()
        self._is_call = is_call

    def __missing__(self, name: Any) -> int:
        number = self[name] = len(self)
        if self._is_call(name if isinstance(name, str) else str(name)):
            self.calls.add(number)
        return number


class _Ids(dict[Any, int]):
    """Value -> id in order of first appearance."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


class _Shapes(dict[tuple[bytes, bytes], int]):
    """Grid and block as written -> id of the shape; -1 where they are not three positive integers each."""

    def __init__(self) -> None:
        self.found = Interner()

    def __missing__(self, texts: tuple[bytes, bytes]) -> int:
        try:
            grid, block = (msgspec.json.decode(text, type=_Extent) for text in texts)
        except (msgspec.DecodeError, UnicodeDecodeError):
            number = self[texts] = NONE
        else:
            number = self[texts] = self.found((grid, block))
        return number

    def ids(self, args: Sequence[Args]) -> Int64:
        """The shape of each event."""
        return np.fromiter((self[bytes(arg.grid), bytes(arg.block)] for arg in args), np.int64, len(args))


class _Categories(dict[Any, int]):
    """Category as written -> HostKind, or one of the negative codes below."""

    KERNEL, COPY, IGNORED = -1, -2, -3

    def __missing__(self, category: Any) -> int:
        lower = category.lower() if isinstance(category, str) else ""
        if lower in _KERNEL_CATEGORIES:
            kind = self.KERNEL
        elif lower in _COPY_CATEGORIES:
            kind = self.COPY
        else:
            kind = int(_HOST_CATEGORIES.get(lower, self.IGNORED))
        self[category] = kind
        return kind


class _Collector:
    """Grows columns batch by batch."""

    def __init__(self, table: NameTable, *, records: bool) -> None:
        self._records = records
        self.events = 0
        self.timed = 0
        self._categories = _Categories()
        self._device_names = _Names(lambda name: table.recognize(name).library is not None)
        self._host_names = _Names(lambda name: CALL_NAME.match(name) is not None)
        self._lanes, self._threads = _Ids(), _Ids()
        self._shapes = _Shapes()
        self._device = _Growing(DEVICE_COLUMNS)
        self._host = _Growing(HOST_COLUMNS)
        self._device_args: dict[int, Args] = {}
        self._host_args: dict[int, Args] = {}
        self._waits: list[tuple[int, Args]] = []
        self._ends = Ends()
        self._thread_names: dict[tuple[Any, Any], str] = {}
        self._dropped: Counter[str] = Counter()

    def add(self, batch: list[Event]) -> None:
        """Take the events of one batch."""
        whole = [entry for entry in enumerate(batch, self.events) if entry[1].ph == "X" or self._other_phase(entry)]
        self.events += len(batch)
        self._sort_in(whole)

    def _sort_in(self, whole: list[tuple[int, Event]]) -> None:
        """Take events that have a duration."""
        device: list[tuple[int, Event]] = []
        host: list[tuple[int, Event]] = []
        kinds: list[int] = []
        copies: list[bool] = []
        categories = self._categories
        for entry in whole:
            kind = categories[entry[1].cat]
            if kind >= 0:
                host.append(entry)
                kinds.append(kind)
            elif kind != _Categories.IGNORED:
                device.append(entry)
                copies.append(kind == _Categories.COPY)
        if device:
            self._add_device(device, copies)
        if host:
            self._add_host(host, kinds)

    def _add_device(self, found: list[tuple[int, Event]], copies: list[bool]) -> None:
        start, end, keep = self._times(found)
        rows = [found[at] for at in keep.tolist()]
        args = [event.args or _NO_ARGS for _, event in rows]
        names, calls = self._device_names, self._device_names.calls
        name = [names[event.name] for _, event in rows]
        shape = self._shapes.ids(args)
        lanes = self._lanes
        lane = [
            lanes[
                (
                    event.pid,
                    event.pid if arg.device is None else _scalar(arg.device),
                    event.tid if arg.stream is None else _scalar(arg.stream),
                )
            ]
            for (_, event), arg in zip(rows, args, strict=True)
        ]
        base = self._device.size
        for at, number in enumerate(name):
            if number in calls or args[at].collective is not None:
                self._device_args[base + at] = detached(args[at])
        self._device.extend(
            start=start,
            end=end,
            row=[row for row, _ in rows],
            name=name,
            lane=lane,
            copy=np.array(copies, dtype=np.int64)[keep],
            correlation=integers([arg.correlation for arg in args]),
            external=_external(args),
            graph=integers([arg.graph for arg in args]),
            bytes=integers([arg.nbytes for arg in args]),
            shape=shape,
        )
        self.timed += len(rows)

    def _add_host(self, found: list[tuple[int, Event]], kinds: list[int]) -> None:
        start, end, keep = self._times(found)
        rows = [found[at] for at in keep.tolist()]
        args = [event.args or _NO_ARGS for _, event in rows]
        names, calls = self._host_names, self._host_names.calls
        name = [names[event.name] for _, event in rows]
        threads = self._threads
        kinds_kept = np.array(kinds, dtype=np.int64)[keep]
        base = self._host.size
        for at, number in enumerate(name):
            if number in calls:
                self._host_args[base + at] = detached(args[at])
        for at in np.flatnonzero(kinds_kept == HostKind.SYNC).tolist():
            self._waits.append((base + at, detached(args[at])))
        self._host.extend(
            start=start,
            end=end,
            row=[row for row, _ in rows],
            name=name,
            thread=[threads[(event.pid, event.tid)] for _, event in rows],
            kind=kinds_kept,
            correlation=integers([arg.correlation for arg in args]),
            external=_external(args),
            record=_small(integers([arg.record for arg in args])) if self._records else NONE,
        )
        self.timed += len(rows)

    def _times(self, found: list[tuple[int, Event]]) -> tuple[Int64, Int64, Int64]:
        """Start and end of the rows whose times are usable, and their positions in `found`."""
        start = nanoseconds([event.ts for _, event in found])
        length = nanoseconds([event.dur for _, event in found])
        known = valid(start) & valid(length)
        usable = known & (length >= 0)
        if not usable.all():
            self._dropped["without a usable timestamp or duration"] += int((~known).sum())
            self._dropped["with a negative duration"] += int((known & (length < 0)).sum())
        keep = np.flatnonzero(usable)
        return start[keep], start[keep] + length[keep], keep

    def _other_phase(self, entry: tuple[int, Event]) -> bool:
        """Keep begins and ends for later, and names of threads. False: there is no row in it."""
        event = entry[1]
        if event.ph in ("B", "E"):
            self._ends.add(*entry)
        elif event.ph == "M":
            self._metadata(event)
        return False

    def _metadata(self, event: Event) -> None:
        if event.name == "thread_name" and event.args is not None and isinstance(event.args.name, str):
            # Of two names the first by the alphabet, so that the order of the file does not matter.
            key = (event.pid, event.tid)
            self._thread_names[key] = min(self._thread_names.get(key, event.args.name), event.args.name)

    def finish(self) -> FileRows:
        """Everything collected, as whole columns."""
        self._sort_in(self._ends.paired(self._dropped))
        return FileRows(
            events=self.events,
            device=self._device.columns(),
            host=self._host.columns(),
            device_args=self._device_args,
            host_args=self._host_args,
            waits=self._waits,
            device_names=[_text(name) for name in self._device_names],
            host_names=[_text(name) for name in self._host_names],
            shapes=self._shapes.found.values,
            lanes=list(self._lanes),
            threads=list(self._threads),
            thread_names=self._thread_names,
            dropped={what: count for what, count in self._dropped.items() if count},
        )


def _text(name: Any) -> str:
    return name if isinstance(name, str) else str(name)


def _external(args: Sequence[Args]) -> Int64:
    return integers([arg.old_external_id if arg.external_id is None else arg.external_id for arg in args])


def _small(ids: Int64) -> Int64:
    """Ids that fit 32 bits; -1 for others."""
    return np.where(ids <= np.iinfo(np.int32).max, ids, NONE)


def _scalar(value: Any) -> Any:
    """A device or stream as written; lists and objects, which are neither, as text."""
    return value if isinstance(value, int | str | float) else str(value)


_NARROW = {"record": np.int32, "name": np.int32, "thread": np.int32, "lane": np.int32, "kind": np.int8}
"""Columns that need fewer than 64 bits."""


class _Growing:
    """Columns that grow in place: pieces of a long trace would else lie scattered over the memory until they are joined."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.size = 0
        self._arrays: dict[str, NDArray[Any]] = {name: np.empty(4096, dtype=_NARROW.get(name, np.int64)) for name in names}

    def extend(self, **columns: Any) -> None:
        """Append equally long columns."""
        end = self.size + len(next(iter(columns.values())))
        for name, values in columns.items():
            array = self._arrays[name]
            if end > len(array):
                larger = np.empty(max(end, len(array) * 3 // 2), dtype=array.dtype)
                larger[: self.size] = array[: self.size]
                self._arrays[name] = array = larger
            array[self.size : end] = values
        self.size = end

    def columns(self) -> dict[str, Int64]:
        """The columns, without what was reserved for more."""
        return {name: array[: self.size] for name, array in self._arrays.items()}
