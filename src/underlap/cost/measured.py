"""The user's own measurements of collectives: they override the model where they say something.

A table has rows of collective, ranks, bytes (payload as Transfer means it) and us, optionally domains; as CSV with a header, or
as a YAML list of mappings. Between two sizes time is interpolated, beyond the ends it is continued; other groups are the model's.
"""

from __future__ import annotations

import bisect
import csv
import math
from pathlib import Path
from typing import Any

import msgspec
import yaml

from underlap.cost.work import COLLECTIVES
from underlap.errors import InputError, UnreadableError

_NEEDED = ("collective", "ranks", "bytes", "us")
_KNOWN = {*_NEEDED, "domains"}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Times by collective, ranks and domains; sizes ascend."""

    source: str
    curves: dict[tuple[str, int, int], tuple[tuple[float, float], ...]]
    """(bytes, ns) pairs."""

    def time_ns(self, collective: str, span: tuple[int, int], payload_bytes: float) -> float | None:
        """Time by interpolation; None where the table has no such group.

        Below the smallest size its time holds; above the largest the rate between the two largest goes on.
        """
        curve = self.curves.get((collective, span[0] * span[1], span[1]))
        if curve is None:
            return None
        sizes = [size for size, _ in curve]
        at = bisect.bisect_left(sizes, payload_bytes)
        if at == 0 or len(curve) == 1:
            return curve[0][1]
        (left, low), (right, high) = curve[min(at, len(curve) - 1) - 1 : min(at, len(curve) - 1) + 1]
        slope = (high - low) / (right - left)
        if at == len(curve):
            slope = max(slope, high / right / 2)  # two noisy rows must not make a larger message free
        return high + slope * (payload_bytes - right)


def read_measured(path: Path) -> Measured:
    """The table in a .csv, .yaml or .yml file. Raises InputError with the row that is wrong, UnreadableError without a file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{path}: cannot be read as a table of measured collectives: {error}") from None
    if path.suffix.lower() == ".csv":
        rows: Any = list(csv.DictReader(text.splitlines()))
    elif path.suffix.lower() in (".yaml", ".yml"):
        try:
            rows = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(f"{path}: no valid YAML: {' '.join(str(error).split())}") from None
    else:
        raise InputError(f"{path}: expected a .csv, .yaml or .yml file of collective, ranks, bytes, us")
    return measured_from(rows, str(path))


def measured_from(rows: object, source: str) -> Measured:
    """A table from a list of mappings with the keys collective, ranks, bytes, us and optionally domains."""
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{source}: expected a list of rows with {', '.join(_NEEDED)}")
    found: dict[tuple[str, int, int], dict[float, float]] = {}
    for number, row in enumerate(rows, start=1):
        key, size, time = _row(row, f"{source}, row {number}")
        curve = found.setdefault(key, {})
        if size in curve:
            raise InputError(f"{source}, row {number}: second row for {key[0]} of {size:.0f} bytes over {key[1]} ranks: keep one")
        curve[size] = time
    return Measured(source=source, curves={key: tuple(sorted(curve.items())) for key, curve in found.items()})


def _row(row: object, where: str) -> tuple[tuple[str, int, int], float, float]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a mapping with {', '.join(_NEEDED)}")
    missing = [name for name in _NEEDED if row.get(name) in (None, "")]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing: expected {', '.join(_NEEDED)}")
    unknown = [str(name) for name in row if name not in _KNOWN]
    if unknown:
        raise InputError(f"{where}: unknown column {unknown[0]!r}: expected {', '.join(_NEEDED)} and optionally domains")
    collective = row["collective"]
    if collective not in COLLECTIVES:
        raise InputError(f"{where}: unknown collective {collective!r}: expected one of {', '.join(sorted(COLLECTIVES))}")
    ranks, domains = _number(row, "ranks", where), _number(row, "domains", where) if row.get("domains") else 1.0
    if ranks != int(ranks) or domains != int(domains) or ranks < 1 or domains < 1 or ranks % domains:
        raise InputError(
            f"{where}: ranks = {ranks:g} over domains = {domains:g}: expected whole numbers, ranks a multiple of domains"
        )
    size, time = _number(row, "bytes", where), _number(row, "us", where)
    if size <= 0 or time <= 0:
        raise InputError(f"{where}: bytes = {size:g}, us = {time:g}: expected both above 0")
    return (str(collective), int(ranks), int(domains)), size, 1000 * time


def _number(row: dict[Any, Any], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        raise InputError(f"{where}: {name} is {row[name]!r}: expected a number") from None
    if not math.isfinite(value):
        raise InputError(f"{where}: {name} is {value}: expected a finite number")
    return value
