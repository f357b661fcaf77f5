"""Which lane waited for which event, from the cuda_sync rows of a Kineto trace (there only when the profiler was asked)."""

from __future__ import annotations

import numpy as np

from underlap.columns import NONE
from underlap.read.lanes import device_number, stream_label
from underlap.read.numbers import integers
from underlap.read.rows import FileRows
from underlap.timeline import UNKNOWN_NS, EventWaits, HostKind, Lane


def event_waits(rows: FileRows, lanes: list[Lane]) -> EventWaits:
    """Waits of a stream for an event, and of the host (lane -1) for an event or a stream. Times are absolute."""
    if not rows.waits:
        return EventWaits.empty()
    index = [row for row, _ in rows.waits]
    args = [arg for _, arg in rows.waits]
    host = rows.host
    # What the rows say happened in a runtime call of the same correlation.
    calls = np.flatnonzero((host["kind"] == HostKind.RUNTIME) & (host["correlation"] >= 0))
    begun = dict(zip(host["correlation"][calls].tolist(), host["start"][calls].tolist(), strict=True))
    places = {(lane.device, lane.label): number for number, lane in enumerate(lanes)}

    def lane_of(device: object, stream: object) -> int:
        return NONE if stream in (None, -1) else places.get((device_number(device), stream_label(stream)), NONE)

    found = []
    correlations = host["correlation"][index].tolist()
    records = integers([arg.wait_record for arg in args]).tolist()
    for row, arg, correlation, record in zip(index, args, correlations, records, strict=True):
        name = rows.host_names[host["name"][row]]
        call = begun.get(correlation, UNKNOWN_NS)
        if name == "Stream Sync":
            waiting, on, recorded = NONE, lane_of(arg.device, arg.stream), call
        else:
            waiting, on = lane_of(arg.device, arg.stream), lane_of(arg.device, arg.wait_stream)
            recorded = begun.get(record, UNKNOWN_NS)
        if on >= 0 and UNKNOWN_NS not in (call, recorded):
            found.append((waiting, call, on, recorded, int(host["row"][row])))
    columns = np.array(found, dtype=np.int64).reshape(-1, 5)
    return EventWaits.from_columns(
        lane=columns[:, 0], wait_ns=columns[:, 1], on_lane=columns[:, 2], record_ns=columns[:, 3], source_row=columns[:, 4]
    )
