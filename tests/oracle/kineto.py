"""A Kineto file a second time: the standard library's JSON, exact decimals, and classification by category and plain words.

Device rows: category kernel is communication if its name says nccl, rccl or multimem, else compute; gpu_memcpy and
gpu_memset are copies; every other category is nothing. CPU ranks: the gloo spans, and the aten operators outside of
c10d calls.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.oracle.accounting import Row

_COMMUNICATION = re.compile("nccl|rccl|multimem", re.IGNORECASE)
_COLLECTIVE = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "reducescatter": "reduce_scatter",
    "send": "send",
    "recv": "recv",
}
Event = dict[str, Any]


def events(path: Path) -> list[Event]:
    """The complete events of a file, with integer nanoseconds under "start" and "end"."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content = json.load(file, parse_float=Decimal, parse_int=Decimal)
    found = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    for event in found:
        event["start"] = int(event["ts"] * 1000)
        event["end"] = event["start"] + int(event.get("dur", Decimal(0)) * 1000)
    return found


def rows(path: Path) -> list[Row]:
    """What occupies the one device of the file."""
    found = events(path)
    kernels = [event for event in found if str(event.get("cat")).lower() == "kernel"]
    if not kernels:
        return [*_gloo_spans(found), *_operators(found)]
    copies = [event for event in found if event.get("cat") in ("gpu_memcpy", "gpu_memset")]
    family = _Families(found)
    result = [Row("copy", event["start"], event["end"]) for event in copies]
    for event in kernels:
        communicates = _COMMUNICATION.search(event["name"]) is not None
        own = (None, family.of(event)) if communicates else None
        result.append(Row("communication" if communicates else "compute", event["start"], event["end"], own))
    return result


class _Families:
    """The collective of a kernel: as its arguments say, else as the host range around its launch is called."""

    def __init__(self, found: list[Event]) -> None:
        self._launches = {
            event["args"]["correlation"]: event
            for event in found
            if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
        }
        self._calls = [event for event in found if event["name"].startswith(("nccl:", "c10d::", "symm_mem::"))]

    def of(self, kernel: Event) -> str | None:
        """all_reduce, ...; None where neither says it."""
        if "Collective name" in kernel["args"]:
            return collective(str(kernel["args"]["Collective name"]))
        launch = self._launches.get(kernel["args"]["correlation"])
        if launch is not None:
            for call in self._calls:
                if (call["pid"], call["tid"]) == (launch["pid"], launch["tid"]) and _inside(launch, call):
                    return collective(call["name"])
        return None


def collective(name: str) -> str | None:
    """The plain name: `c10d::_allgather_base_` is all_gather."""
    word = name.rpartition(":")[2].partition(" ")[0].replace("_", "").replace("multimem", "")
    return _COLLECTIVE.get(word)


def _inside(event: Event, around: Event) -> bool:
    return bool(around["start"] <= event["start"] < around["end"])


def _gloo_spans(found: list[Event]) -> Iterator[Row]:
    """The spans, with what was asked of gloo: it runs a reduce-scatter as an all-reduce, and only the sizes tell them apart."""
    reduced = {_elements(event) for event in found if event["name"] == "c10d::allreduce_"}
    asks = any("reduce_scatter" in event["name"] for event in found if event["name"].startswith("c10d::"))
    for event in found:
        if event["name"].startswith("gloo:"):
            said = collective(event["name"]) or event["name"].removeprefix("gloo:")
            if said == "all_reduce" and asks and _elements(event) not in reduced:
                said = "reduce_scatter"
            yield Row("communication", event["start"], event["end"], (None, said))


def _elements(event: Event) -> int:
    """Elements of the first recorded tensor, however deeply it is nested."""
    dims = event["args"]["Input Dims"]
    while dims and isinstance(dims[0], list):
        dims = dims[0]
    total = 1
    for dim in dims:
        total *= int(dim)
    return total


def _operators(found: list[Event]) -> Iterator[Row]:
    """The aten operators of threads that do not only carry out collectives, less the calls of collectives on the same thread."""
    carrying = _threads(found, "gloo:") - _threads(found, "c10d::")
    by_thread: dict[Any, dict[str, list[Event]]] = {}
    for event in found:
        kind = _host_kind(event)
        if kind is not None and (event["pid"], event["tid"]) not in carrying:
            by_thread.setdefault((event["pid"], event["tid"]), {"computes": [], "calls": []})[kind].append(event)
    for ranges in by_thread.values():
        borders: dict[int, list[tuple[str, int]]] = {}
        for kind, own in ranges.items():
            for event in own:
                borders.setdefault(event["start"], []).append((kind, 1))
                borders.setdefault(event["end"], []).append((kind, -1))
        running = {"computes": 0, "calls": 0}
        times = sorted(borders)
        for left, right in itertools.pairwise(times):
            for kind, change in borders[left]:
                running[kind] += change
            if running["computes"] and not running["calls"]:
                yield Row("compute", left, right)


def _threads(found: list[Event], prefix: str) -> set[Any]:
    return {(event["pid"], event["tid"]) for event in found if event["name"].startswith(prefix)}


def _host_kind(event: Event) -> str | None:
    name = event["name"]
    if event.get("cat") != "cpu_op":
        return None
    if name.startswith(("c10d::", "_c10d_functional::")):
        return "calls"
    wraps = name.startswith(("autograd::", "torch::autograd::", "record_param_comms"))
    return "computes" if "::" in name and not wraps else None
