"""Small Kineto traces by hand, as files of any layout."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from underlap.read import kineto
from underlap.read.names import NameTable
from underlap.timeline import Timeline

BASE_US = 1700000000000000


def kernel(at: int = 0, **fields: Any) -> dict[str, Any]:
    """A kernel of stream 7 that its launch (see below) has launched."""
    args = {"correlation": at, "stream": 7, "device": 0, **fields.pop("args", {})}
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": BASE_US + 10 * at, "dur": 5, "args": args} | fields


def launch(at: int = 0, **fields: Any) -> dict[str, Any]:
    args = {"correlation": at, **fields.pop("args", {})}
    known = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "dur": 1}
    return known | {"ts": BASE_US + 10 * at - 3, "args": args} | fields


def operator(at: int = 0, **fields: Any) -> dict[str, Any]:
    known = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "dur": 4, "args": {}}
    return known | {"ts": BASE_US + 10 * at - 4} | fields


def text(*events: dict[str, Any] | str, **metadata: Any) -> str:
    """A trace in which an event given as text stands as it is."""
    written = ", ".join(event if isinstance(event, str) else json.dumps(event) for event in events)
    members = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in metadata.items()]
    return "{" + ", ".join([*members, f'"traceEvents": [{written}]']) + "}"


def write(path: Path, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, *events: dict[str, Any] | str, **metadata: Any) -> Timeline:
    """The Timeline of a trace of these events, written to rank0.json in the folder."""
    return kineto.read(write(path / "rank0.json", text(*events, **metadata)), NameTable.default())


def notes(timeline: Timeline) -> dict[str, str]:
    """The notes by code; each code once."""
    found = {note.code: note.text for note in timeline.notes}
    assert len(found) == len({*timeline.notes})
    return found


def names(timeline: Timeline) -> list[str]:
    """The names of the operations, in order of time."""
    return [timeline.names[name] for name in timeline.ops.name]
