"""The event of a JSON trace, with the fields that underlap uses. What they mean is kineto.py's business."""

from __future__ import annotations

from typing import Any

import msgspec


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that underlap uses. Old and new writers disagree on types, so few are fixed."""

    correlation: Any = None
    external_id: Any = msgspec.field(name="External id", default=None)
    old_external_id: Any = msgspec.field(name="external id", default=None)
    stream: Any = None
    device: Any = None
    nbytes: Any = msgspec.field(name="bytes", default=None)
    graph: Any = msgspec.field(name="graph id", default=None)
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    rank_start: Any = msgspec.field(name="Global rank start", default=None)
    rank_stride: Any = msgspec.field(name="Global rank stride", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    source_rank: Any = msgspec.field(name="Src Rank", default=None)
    target_rank: Any = msgspec.field(name="Dst Rank", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    wait_stream: Any = msgspec.field(name="wait_on_stream", default=None)
    wait_record: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    record: Any = msgspec.field(name="Record function id", default=None)
    name: Any = None
    """The name that a metadata event gives to a process or thread."""


class Event(msgspec.Struct, gc=False):
    """One trace event. `ts` and `dur` stay text, so that decimal microseconds become exact nanoseconds."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | float | None = None
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = None


def detached(args: Args) -> Args:
    """The arguments, free of the piece of the file that they were decoded from."""
    for field in ("input_dims", "input_type", "concrete", "grid", "block"):
        setattr(args, field, msgspec.Raw(bytes(getattr(args, field))))
    return args
