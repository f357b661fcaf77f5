"""What the Kineto reader's steps hand to each other: the rows of one file, and the parts of a Timeline made from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underlap.columns import Int64, Interner
from underlap.read.json_event import Args
from underlap.read.names import NameTable
from underlap.read.nesting import Nesting
from underlap.timeline import Collectives, Group, Lane, Note, Operations, Shape

DEVICE_COLUMNS = ("start", "end", "row", "name", "lane", "copy", "correlation", "external", "graph", "bytes", "shape")
HOST_COLUMNS = ("start", "end", "row", "name", "thread", "kind", "correlation", "external", "record")


@dataclasses.dataclass(slots=True, kw_only=True)
class FileRows:
    """What one pass over a file collected. Columns are absolute nanoseconds and int64 ids."""

    events: int
    device: dict[str, Int64]
    host: dict[str, Int64]
    device_args: dict[int, Args]
    """Arguments of device rows that may be communication, by position."""
    host_args: dict[int, Args]
    """Arguments of host rows that are calls of collectives, by position."""
    waits: list[tuple[int, Args]]
    """Host rows that say which stream or event was waited for (cuda_sync), with their arguments."""
    device_names: list[str]
    host_names: list[str]
    shapes: list[Shape]
    """Distinct grids and blocks, which the device column `shape` points to."""
    lanes: list[tuple[Any, Any, Any]]
    """(process as written, device, stream)"""
    threads: list[tuple[Any, Any]]
    """(process, thread)"""
    thread_names: dict[tuple[Any, Any], str]
    dropped: dict[str, int]
    """What kind of events were left out, and how many."""
    repeated: tuple[int, int] = (0, 0)
    """Device rows and host rows left out as exact repeats."""

    def keep(self, *, device: NDArray[np.bool_], host: NDArray[np.bool_]) -> None:
        """Drop the other rows."""
        self.device, self.device_args = _kept(self.device, self.device_args, device)
        self.host, self.host_args = _kept(self.host, self.host_args, host)
        place = np.cumsum(host) - 1
        self.waits = [(int(place[row]), args) for row, args in self.waits if host[row]]


def _kept(columns: dict[str, Int64], args: dict[int, Args], keep: NDArray[np.bool_]) -> tuple[dict[str, Int64], dict[int, Args]]:
    if keep.all():
        return columns, args
    place = np.cumsum(keep) - 1
    return (
        {name: column[keep] for name, column in columns.items()},
        {int(place[at]): found for at, found in args.items() if keep[at]},
    )


@dataclasses.dataclass(slots=True, kw_only=True)
class Parts:
    """What the device path and the CPU path hand to the assembly. Times are absolute, ids final."""

    ops: Operations
    collectives: Collectives
    lanes: list[Lane]
    launching: NDArray[np.bool_]
    """Per host row: whether it launched something."""
    operator: Int64
    """Per device row the host row of the innermost operator or annotation around its launch, -1 for none; empty on CPU ranks."""
    process_rank: dict[Any, int]
    """Process as written -> rank; empty when the file is one rank."""
    notes: list[Note]


@dataclasses.dataclass(slots=True, kw_only=True)
class Context:
    """What both paths need."""

    rows: FileRows
    table: NameTable
    names: Interner
    groups: Interner
    config: list[Group]
    """The groups that the file's metadata lists."""
    nesting: tuple[Nesting, Int64]
    """The tree of operators and annotations, and the host row of each of its rows."""
    rank: int
