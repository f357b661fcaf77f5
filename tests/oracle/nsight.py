"""An Nsight Systems file a second time: plain SQL, and a kernel communicates if its name says nccl."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.oracle.accounting import Row

ANY = (None, None)
"""The family of all communication: the export says nothing to tell families apart."""
_KERNELS = """
    select k.deviceId, s.value, k.start, k.end from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName
"""


def rows(path: Path) -> dict[int, list[Row]]:
    """What occupies each device, by device number."""
    found: dict[int, list[Row]] = {}
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        for device, name, start, end in connection.execute(_KERNELS):
            row = Row("communication", start, end, ANY) if "nccl" in name.lower() else Row("compute", start, end)
            found.setdefault(device, []).append(row)
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        for table in sorted(tables & {"CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"}):
            for device, start, end in connection.execute(f"select deviceId, start, end from {table}"):
                found.setdefault(device, []).append(Row("copy", start, end))
    finally:
        connection.close()
    return found
