"""Which call on the host launched each device row, and in a file of several processes, which process each device is of."""

from __future__ import annotations

from typing import Any

import numpy as np

from underlap.columns import NONE, Int64
from underlap.read.lanes import natural
from underlap.read.rows import FileRows
from underlap.timeline import HostKind, Note

_CLOCK_NS = 1_000_000
"""Host and device clocks are aligned by the profiler, not equal."""
_MOST_PAIRS = 1 << 22
"""Of processes and devices that are tried."""


def launches(rows: FileRows, notes: list[Note]) -> tuple[Int64, dict[Any, int]]:
    """The host row that launched each device row (-1 where none), and the rank of each process if there are several.

    Correlation ids are unique per process only. In a file with several launching processes, each device is given to the
    process whose launches fit most of its rows; where several fit as well, to one that has no device yet.
    """
    host, device = rows.host, rows.device
    runtime = np.flatnonzero((host["kind"] == HostKind.RUNTIME) & (host["correlation"] >= 0))
    every = np.arange(len(device["start"]))
    names = sorted({process for process, _ in rows.threads}, key=natural)
    number = {process: at for at, process in enumerate(names)}
    process = np.array([number[process] for process, _ in rows.threads], dtype=np.int64)[host["thread"][runtime]]
    launching = np.unique(process)
    if len(launching) <= 1:
        return _match(rows, runtime, every), {}
    order = np.argsort(process, kind="stable")
    parts = np.split(runtime[order], np.searchsorted(process[order], launching[1:]))
    keys = list(dict.fromkeys((owner, index) for owner, index, _ in rows.lanes))
    keys.sort(key=lambda key: (natural(key[0]), natural(key[1])))
    place = {key: at for at, key in enumerate(keys)}
    device_of = np.array([place[owner, index] for owner, index, _ in rows.lanes], dtype=np.int64)[device["lane"]]
    owner_of = _owners(rows, parts, device_of, len(keys))
    result = np.full(len(every), NONE, dtype=np.int64)
    for at in np.unique(owner_of[owner_of >= 0]).tolist():
        mine = np.flatnonzero(owner_of[device_of] == at)
        result[mine] = _match(rows, parts[at], mine)
    owners = [names[launching[at]] for at in dict.fromkeys(owner_of[owner_of >= 0].tolist())]
    if len(owners) <= 1:
        return result, {}
    ranks = {owner: rank for rank, owner in enumerate(owners)}
    listed = ", ".join(f"process {owner} = rank {rank}" for owner, rank in list(ranks.items())[:8])
    text = f"several processes in one file, numbered in order of their devices: {listed}{', ...' if len(ranks) > 8 else ''}"
    notes.append(Note(code="rank_assumed", text=text))
    return result, ranks


def _owners(rows: FileRows, parts: list[Int64], device_of: Int64, devices: int) -> Int64:
    """For each device the position in `parts` of the process that it is of, or -1. `parts`: launches per process."""
    host, device = rows.host, rows.device
    tried = sorted(range(len(parts)), key=lambda at: -len(parts[at]))[: max(2, _MOST_PAIRS // devices)]
    fits = np.zeros((len(parts), devices), dtype=np.int64)
    for at in tried:
        found = _match(rows, parts[at], np.arange(len(device_of)))
        # What starts before its launch is another's, but for the error of the clocks.
        causal = (found >= 0) & (host["start"][found] <= device["start"] + _CLOCK_NS // 100)
        fits[at] = np.bincount(device_of[causal], minlength=devices)
    owner = np.full(devices, NONE, dtype=np.int64)
    taken = np.zeros(len(parts), dtype=np.int64)
    # The clearest first: those of which the second best process fits least.
    lead = np.sort(fits, axis=0)[-1] - np.sort(fits, axis=0)[-2]
    for index in np.lexsort((np.arange(devices), -lead)).tolist():
        best = np.flatnonzero(fits[:, index] == fits[:, index].max())
        if fits[best[0], index] > 0:
            owner[index] = best[np.argmin(taken[best])]
            taken[owner[index]] += 1
    return owner


def _match(rows: FileRows, runtime: Int64, wanted: Int64) -> Int64:
    """For each device row of `wanted`: the last host row of `runtime` with its correlation that starts before it, or -1."""
    host = rows.host
    correlation = rows.device["correlation"][wanted]
    latest = rows.device["end"][wanted] + _CLOCK_NS
    result = np.full(len(wanted), NONE, dtype=np.int64)
    if len(runtime) == 0:
        return result
    # The longer first, so that of calls inside each other the outermost one is taken.
    ordered = runtime[np.lexsort((-host["end"][runtime], host["start"][runtime], host["correlation"][runtime]))]
    keys, starts, ends = host["correlation"][ordered], host["start"][ordered], host["end"][ordered]
    first = np.searchsorted(keys, correlation, side="left")
    low, high = first.copy(), np.searchsorted(keys, correlation, side="right")
    while (open_ := low < high).any():
        middle = (low + high) // 2
        before = open_ & (starts[np.minimum(middle, len(starts) - 1)] <= latest)
        low = np.where(before, middle + 1, low)
        high = np.where(open_ & ~before, middle, high)
    found = (low > first) & (correlation >= 0)
    at = low[found] - 1
    inside = (at > first[found]) & (ends[at - 1] >= ends[at])
    result[found] = ordered[at - inside]
    return result
