"""What the thread that submits work was doing instead: blocked in a call of the runtime, or fetching input.

Read off the host rows of the trace alone. Not seen: locks, Python, network and disk, unless a row of the trace stands for
them, nor what another thread did on which this one waits.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from underlap import intervals
from underlap.columns import Int64
from underlap.timeline import UNKNOWN_NS, HostKind, OpClass, Timeline

# Runtime calls in which the host waits for the device or for memory, besides the synchronizations.
_BLOCKING = re.compile(r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostRegister|MemGetInfo)(?!Async)|cuMemAlloc|cuMemFree")
# PyTorch marks each batch that it fetches by `enumerate(DataLoader)#_...DataLoaderIter.__next__`.
_LOADER = re.compile(r"enumerate\(DataLoader\)|.*DataLoader\w*\.__next__")
# Kineto: Memcpy HtoD (Pinned -> Device); Nsight Systems: Memcpy HtoD; ROCm: CopyHostToDevice.
_TO_DEVICE = re.compile(r".*(?:HtoD|HostToDevice)", re.IGNORECASE)


def blocking_rows(timeline: Timeline) -> NDArray[np.bool_]:
    """Per host row whether the host waits in it: for the device, or for memory."""
    named = [at for at, name in enumerate(timeline.names) if _BLOCKING.match(name)]
    found: NDArray[np.bool_] = (timeline.host.kind == HostKind.SYNC) | np.isin(timeline.host.name, named)
    return found


class HostTime:
    """The host rows of a Timeline by thread. Every set is of intervals on the clock of the thread's rank."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._blocked: dict[int, Int64] = {}
        self._input: dict[int, Int64] = {}
        self._blocking = blocking_rows(timeline)
        self._loader_names = self._named(_LOADER)
        self._to_device = self._launches_to_device()

    def _named(self, pattern: re.Pattern[str]) -> Int64:
        return np.array([at for at, name in enumerate(self._timeline.names) if pattern.match(name)], dtype=np.int64)

    def _launches_to_device(self) -> set[tuple[int, int]]:
        """(thread, launch) of each copy from the host to the device."""
        ops = self._timeline.ops
        rows = np.flatnonzero(self.copies_to_device(np.arange(len(ops))) & (ops.launch_ns != UNKNOWN_NS))
        return set(zip(ops.thread[rows].tolist(), ops.launch_ns[rows].tolist(), strict=True))

    def blocked(self, thread: int) -> Int64:
        """When the thread was in a synchronize, an allocation or a free of the runtime (asynchronous ones apart)."""
        if thread not in self._blocked:
            host = self._timeline.host
            rows = (host.thread == thread) & self._blocking
            self._blocked[thread] = intervals.union(host.start_ns[rows], host.end_ns[rows])
        return self._blocked[thread]

    def copies_to_device(self, rows: Int64) -> NDArray[np.bool_]:
        """Which of these operations are copies from the host to the device. Shape (len(rows),)."""
        ops = self._timeline.ops
        result: NDArray[np.bool_] = (ops.op_class[rows] == OpClass.COPY) & np.isin(ops.name[rows], self._named(_TO_DEVICE))
        return result

    def fetching(self, thread: int) -> Int64:
        """When the thread was in a data loader, or in the call that submits a copy from the host to the device."""
        if thread not in self._input:
            host = self._timeline.host
            own = np.flatnonzero(host.thread == thread)
            loader = np.isin(host.name[own], self._loader_names)
            launches = host.kind[own] == HostKind.LAUNCH
            copies = [(thread, start) in self._to_device for start in host.start_ns[own[launches]].tolist()]
            rows = np.concatenate([own[loader], own[launches][np.array(copies, dtype=bool)]])
            self._input[thread] = intervals.union(host.start_ns[rows], host.end_ns[rows])
        return self._input[thread]
