"""Rows of a file that cannot be: exact repeats of another row, and times far from those of all others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from underlap.columns import Int64
from underlap.read.rows import FileRows

_FAR_NS = 30 * 24 * 3600 * 10**9
"""No recording is as long; a row this far from the others has a broken clock."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


def drop_impossible(rows: FileRows) -> None:
    """Take the rows out, and count them in `rows.dropped`."""
    _drop_far(rows)
    _drop_repeats(rows)


def _drop_far(rows: FileRows) -> None:
    starts = np.concatenate([rows.device["start"], rows.host["start"]])
    ends = np.concatenate([rows.device["end"], rows.host["end"]])
    if len(starts) == 0 or ends.max() - starts.min() <= _FAR_NS:
        return
    middle = int(np.median(starts))
    near = (starts >= middle - _FAR_NS) & (ends <= middle + _FAR_NS)
    device = len(rows.device["start"])
    rows.keep(device=near[:device], host=near[device:])
    rows.dropped["more than 30 days away from the others"] = int((~near).sum())


def _drop_repeats(rows: FileRows) -> None:
    """Repeats in place, name, times and ids. Without an id two calls can be equal: the clock may count microseconds."""
    device = rows.device
    again = _repeats(device["row"], [device[key] for key in ("lane", "start", "end", "name", "correlation")])
    again &= (device["correlation"] >= 0) | (device["end"] > device["start"])  # a stream runs one at a time
    host = rows.host
    host_keys = ("thread", "start", "end", "name", "kind", "correlation", "external")
    host_again = _repeats(host["row"], [host[key] for key in host_keys])
    host_again &= (host["correlation"] >= 0) | (host["external"] >= 0)
    rows.keep(device=~again, host=~host_again)
    rows.repeated = int(again.sum()), int(host_again.sum())


def _repeats(row: Int64, columns: list[Int64]) -> NDArray[np.bool_]:
    """Where a row equals an earlier one in all columns."""
    mixed = np.zeros(len(row), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ (mixed >> np.uint64(31))) * _ODD + column.astype(np.uint64)
    result = np.zeros(len(row), dtype=np.bool_)
    ordered = np.sort(mixed)
    equal = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(equal) == 0:
        return result
    # Few are left, so the exact comparison may be slow.
    candidates = np.flatnonzero(np.isin(mixed, equal))
    order = candidates[np.lexsort([row[candidates], *(column[candidates] for column in columns)])]
    same = np.ones(len(order) - 1, dtype=np.bool_)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    result[order[1:][same]] = True
    return result
