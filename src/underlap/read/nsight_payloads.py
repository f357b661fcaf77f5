"""What NCCL attaches to the NVTX ranges of its calls, from an export made with --include-blobs=true.

The layout is found through NVTX_PAYLOAD_SCHEMA_ENTRIES, by the labels that NCCL gives its fields. Integers are decoded,
enumerations such as the reduction are not. Payloads of other libraries are not read.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from underlap.read.nsight_tables import NVTX, PAYLOAD_ENTRIES, STRINGS, Export, decode

_INTEGERS = {5: 4, 6: 4, 7: 8, 8: 8, 9: 8, 10: 8, 15: 4, 16: 4, 17: 8, 18: 8, 22: 8}
"""Bytes per NVTX payload entry type: int, long, long long, (u)int32, (u)int64, size_t. Other types are not decoded."""
_SIGNED = frozenset((5, 7, 9, 15, 17))
_HEADER = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What NCCL attached to the range of one of its calls; None where it did not say."""

    communicator: int | None = None
    nbytes: int | None = None
    peer: int | None = None
    root: int | None = None
    size: int | None = None
    """Ranks in the communicator."""
    rank: int | None = None
    """Rank of the caller in the communicator."""


def read_payloads(export: Export) -> dict[int, Payload]:
    """What NCCL said about its calls, by row of NVTX_EVENTS; empty without --include-blobs=true."""
    if not export.has(NVTX, "binaryData", "textId") or not export.has(PAYLOAD_ENTRIES, "domainId", "schemaId", "idx", "offset"):
        return {}
    fields = _fields(export)
    text = "n.text" if export.has(NVTX, "text") else "NULL"
    blobs = export.rows(
        f"SELECT n.rowid, n.binaryData FROM {NVTX} n LEFT JOIN {STRINGS} s ON s.id = n.textId "  # noqa: S608 - our constants
        f"WHERE n.binaryData IS NOT NULL AND length(n.binaryData) <= 8192 AND coalesce({text}, s.value) GLOB 'nccl[A-Z]*'"
    )
    decoded = ((row, _decode(blob, fields)) for row, blob in blobs)
    return {row: payload for row, payload in decoded if payload is not None}


_Field = tuple[str, int, int]  # label, type, offset


def _fields(export: Export) -> dict[tuple[int, int], list[_Field]]:
    columns = export.columns(PAYLOAD_ENTRIES, ("domainId", "schemaId", "idx"), ("type", "offset"))
    labels = [label for (label,) in export.rows(f"SELECT name FROM {PAYLOAD_ENTRIES} ORDER BY rowid")]  # noqa: S608 - our constant
    keys = zip(columns["domainId"].tolist(), columns["schemaId"].tolist(), columns["idx"].tolist(), strict=True)
    fields: dict[tuple[int, int], dict[int, _Field]] = defaultdict(dict)
    for (domain, schema, index), label, kind, offset in zip(
        keys, labels, columns["type"].tolist(), columns["offset"].tolist(), strict=True
    ):
        # The entries are repeated per process; the offset of the first one is left out.
        fields[domain, schema].setdefault(index, (decode(label).lower(), kind, max(offset, 0)))
    return {key: list(entries.values()) for key, entries in fields.items()}


def _decode(blob: Any, fields: dict[tuple[int, int], list[_Field]]) -> Payload | None:
    # Layout: domain id, schema id, size and offset of the payload (8 bytes each, little endian), then the payload.
    try:
        raw = bytes.fromhex(blob) if isinstance(blob, str) else bytes(blob)
    except (ValueError, TypeError):
        return None
    if len(raw) < _HEADER:
        return None
    domain, schema, size, offset = (int.from_bytes(raw[at : at + 8], "little") for at in range(0, _HEADER, 8))
    body = raw[offset : offset + size]
    if offset < _HEADER or len(body) != size:
        return None
    return _payload(_values(body, fields.get((domain, schema), ())))


def _values(body: bytes, fields: Iterable[_Field]) -> dict[str, int]:
    values = {}
    for label, kind, offset in fields:
        width = _INTEGERS.get(kind, 0)
        if width and offset + width <= len(body):
            values[label] = int.from_bytes(body[offset : offset + width], "little", signed=kind in _SIGNED)
    return values


def _payload(values: dict[str, int]) -> Payload | None:
    def find(*labels: str) -> int | None:
        return next((value for label, value in values.items() if label.startswith(labels)), None)

    if not values:
        return None
    return Payload(
        communicator=find("nccl communicator"),
        nbytes=find("message size"),
        peer=find("peer"),
        root=find("root"),
        size=find("no. of ranks"),
        rank=values.get("rank"),
    )
