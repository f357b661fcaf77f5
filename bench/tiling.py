"""Make a long Kineto trace from a short real one: its events again and again, each copy later in time.

    python -m bench.tiling control.json.gz long.json.gz --copies 10

A copy is shifted by whole microseconds, so that decimals stay as they are. What ties events together (correlation,
External id, flow ids) and the numbers of steps are made unique per copy. What it does not model: a trace whose set of
names, groups or threads grows with its length.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from isal import igzip

GAP_US = 1000
EVENT_BORDER = re.compile(r"\},\s*\{\s*\"(?:ph|name|cat|args)\": ")  # between two events; objects inside args have other keys
SHIFTED = re.compile(r'(?<!\\)"(ts|correlation|External id|id)": (\d+)|(?<!\\)"(ProfilerStep#)(\d+)"')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace cut in three, and by how much a copy has to move for its times and ids to be its own."""

    head: str
    body: str
    """The events, without the brackets around them."""
    tail: str
    events: int
    times_us: int
    ids: int
    steps: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tiled:
    path: Path
    events: int
    nbytes: int
    """As it lies on the disk."""


def tile(source: Source, target: Path, copies: float) -> Tiled:
    """Write `copies` copies, the last one in part where the number is not whole. Holds one copy in memory."""
    events = 0
    with open_text(target, "wt") as file:
        file.write(source.head)
        for copy in range(math.ceil(copies)):
            body, count = first_events(source, copies - copy)
            file.write(shifted(body, source, copy) if copy == 0 else "," + shifted(body, source, copy))
            events += count
        file.write(source.tail)
    return Tiled(path=target, events=events, nbytes=target.stat().st_size)


def load(path: Path) -> Source:
    """Cut a trace around its `traceEvents` and look at the range of its times and ids."""
    with open_text(path, "rt") as file:
        text = file.read()
    start = text.index("[", text.index('"traceEvents"')) + 1
    events, end = json.JSONDecoder().raw_decode(text, start - 1)
    timed = [event for event in events if event.get("ph") != "M" and "ts" in event]
    first = min(float(event["ts"]) for event in timed)
    last = max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed)
    return Source(
        head=text[:start],
        body=text[start : end - 1],
        tail=text[end - 1 :],
        events=len(events),
        times_us=math.ceil(last - first) + GAP_US,
        ids=1 + max(ids(events), default=0),
        steps=1 + max(steps(events), default=0),
    )


def ids(events: list[dict[str, Any]]) -> Iterator[int]:
    for event in events:
        for value in (event.get("id"), *(event.get("args", {}).get(key) for key in ("correlation", "External id"))):
            if isinstance(value, int):
                yield value


def steps(events: list[dict[str, Any]]) -> Iterator[int]:
    for event in events:
        name = event.get("name", "")
        if name.startswith("ProfilerStep#"):
            yield int(name.removeprefix("ProfilerStep#"))


def first_events(source: Source, copies: float) -> tuple[str, int]:
    """The body, or its first part where less than one copy is left; and how many events that is."""
    if copies >= 1:
        return source.body, source.events
    border = EVENT_BORDER.search(source.body, int(len(source.body) * copies))
    if border is None:
        return source.body, source.events
    body = source.body[: border.start() + 1]
    return body, len(json.loads(f"[{body}]"))


def shifted(body: str, source: Source, copy: int) -> str:
    by = {"ts": source.times_us, "correlation": source.ids, "External id": source.ids, "id": source.ids}
    return SHIFTED.sub(shift({key: step * copy for key, step in by.items()}, source.steps * copy), body)


def shift(offsets: dict[str, int], steps: int) -> Callable[[re.Match[str]], str]:
    def replace(match: re.Match[str]) -> str:
        key, number, step, step_number = match.groups()
        if step:
            return f'"{step}{int(step_number) + steps}"'
        return f'"{key}": {int(number) + offsets[key]}'

    return replace


def open_text(path: Path, mode: str) -> IO[Any]:
    # igzip inflates and deflates several times faster than gzip; any reader reads what it writes.
    return igzip.open(path, mode, encoding="utf-8") if path.suffix == ".gz" else path.open(mode, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a long Kineto trace from a short one.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--copies", type=float, required=True)
    options = parser.parse_args()
    tiled = tile(load(options.source), options.target, options.copies)
    print(f"Wrote {tiled.path} ({tiled.events} events, {tiled.nbytes / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
