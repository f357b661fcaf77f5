"""The lanes of a file's device rows, from what the trace calls devices and streams."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from underlap.columns import NONE, Int32, Int64
from underlap.read.numbers import integer
from underlap.read.rows import FileRows
from underlap.timeline import Lane

_LAST_NUMBER = re.compile(r"([0-9]{1,9})\s*\Z")


def lanes(rows: FileRows, launch: Int64, process_rank: dict[Any, int], rank: int) -> tuple[list[Lane], Int32]:
    """The lanes, and the lane of each device row. A lane's rank is its launching process's where there are several."""
    lane_rank = dict.fromkeys(range(len(rows.lanes)), rank)
    if process_rank:
        votes: dict[int, Counter[int]] = {}
        for lane, row in zip(rows.device["lane"].tolist(), launch.tolist(), strict=True):
            if row >= 0:
                process = rows.threads[int(rows.host["thread"][row])][0]
                votes.setdefault(lane, Counter())[process_rank[process]] += 1
        by_device: dict[Any, Counter[int]] = {}
        for lane, (process, number, _) in enumerate(rows.lanes):
            by_device.setdefault((process, number), Counter()).update(votes.get(lane, Counter()))
        for lane, (process, number, _) in enumerate(rows.lanes):
            counted = by_device[(process, number)]
            lane_rank[lane] = counted.most_common(1)[0][0] if counted else 0
    numbers = _device_numbers([device for _, device, _ in rows.lanes])
    written = [
        Lane(rank=lane_rank[lane], device=numbers[device], label=stream_label(stream))
        for lane, (_, device, stream) in enumerate(rows.lanes)
    ]
    return in_order(written, rows.device["lane"])


def in_order(written: list[Lane], lane: Int64) -> tuple[list[Lane], Int32]:
    """Each lane once, by rank, device and label, whatever the order of the file; and the rows' lanes among these."""
    ordered = sorted(set(written), key=lambda entry: (entry.rank, entry.device, natural(entry.label)))
    place = {entry: at for at, entry in enumerate(ordered)}
    return ordered, np.array([place[entry] for entry in written], dtype=np.int32)[lane]


def natural(value: Any) -> tuple[tuple[bool, int, str], ...]:
    """A key that sorts 9 before 10, and "thread 9" before "thread 10"."""
    parts = re.split(r"([0-9]{1,18})", str(value))
    return tuple((at % 2 == 0, int(part) if at % 2 else 0, part) for at, part in enumerate(parts) if part)


def _device_numbers(written: list[Any]) -> dict[Any, int]:
    """Device as written -> number; those without one are numbered behind the others."""
    numbers = {device: device_number(device) for device in written}
    free = max(numbers.values(), default=NONE) + 1
    unnumbered = sorted((device for device, number in numbers.items() if number == NONE), key=str)
    return numbers | {device: free + at for at, device in enumerate(unnumbered)}


def device_number(device: Any) -> int:
    """The number that a device is or ends in: 3, "3", "GPU 3", "mtia:3"; -1 where there is none."""
    number = integer(device)
    found = _LAST_NUMBER.search(device) if isinstance(device, str) else None
    if 0 <= number < 10**9:
        return number
    return NONE if found is None else int(found.group(1))


def stream_label(stream: Any) -> str:
    """The label of a stream's lane."""
    if isinstance(stream, str) and stream[:2].lower() == "0x" and integer(stream) >= 0:
        return str(integer(stream))
    return str(stream)
