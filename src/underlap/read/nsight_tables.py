"""The SQLite side of the Nsight Systems reader: opens an export, checks it, and reads columns as arrays.

Only the tables and columns that the caller names are read, and of `StringIds` only the ids that it asks for: the
environment, the host, the user and the output of the program also lie in an export, and are nobody's business here.
It knows nothing about what the rows mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from underlap.columns import NONE, Int64
from underlap.errors import NotATraceError, UnreadableError

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
DRIVER = "CUPTI_ACTIVITY_KIND_DRIVER"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
GPUS = "TARGET_INFO_GPU"
SESSION = "TARGET_INFO_SESSION_START_TIME"
CAPTURE = "ANALYSIS_DETAILS"
COPY_KINDS = "ENUM_CUDA_MEMCPY_OPER"

READ = frozenset(
    (
        *(KERNEL, MEMCPY, MEMSET, GRAPH_TRACE, RUNTIME, DRIVER, SYNCHRONIZATION, NVTX, STRINGS, PAYLOAD_ENTRIES),
        *(GPUS, SESSION, CAPTURE, COPY_KINDS),
    )
)
"""The tables that may be read; no other one is ever queried."""

EVENTS = frozenset((KERNEL, MEMCPY, MEMSET, GRAPH_TRACE, RUNTIME, DRIVER, SYNCHRONIZATION, NVTX))
"""One of these makes a SQLite file an export of Nsight Systems."""

ROW = "rowid"
EXPORT_AGAIN = "export the report again: nsys export --type sqlite REPORT.nsys-rep"


class Export:
    """An open export. Use as a context manager; every failure of SQLite leaves it as one of underlap's errors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _refuse_unfinished(path)
        # immutable: SQLite takes no lock and creates no -wal or -shm file beside the user's file, and reads where the
        # folder is read-only. It also ignores such files, which is why unfinished ones were refused before.
        with self._guarded():
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        # Texts stay bytes until one is needed: most of a large export's are repetitions.
        self._connection.text_factory = bytes
        try:
            self._tables = self._find_tables()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether the export has this table with these columns."""
        return table in self._tables and self._tables[table].issuperset(columns)

    def columns(self, table: str, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Int64]:
        """Integer columns by name, and the row ids as `rowid`; -1 for NULL and for optional columns that are not there.

        A table that the export does not have is an empty one.
        """
        required, optional = tuple(required), tuple(optional)
        if table not in self._tables:
            return {name: np.empty(0, dtype=np.int64) for name in (ROW, *required, *optional)}
        missing = [name for name in required if name not in self._tables[table]]
        if missing:
            raise NotATraceError(
                f"{self.path}: table {table} has no column {missing[0]}, without which its rows cannot be placed; found "
                f"{', '.join(sorted(self._tables[table])[:8])}: {EXPORT_AGAIN}, with a newer nsys if that does not help"
            )
        present = [ROW, *required, *(name for name in optional if name in self._tables[table])]
        self._check_types(table, required, present[1:])
        fields = ", ".join(f'coalesce("{name}", {NONE})' for name in present[1:])
        with self._guarded():
            rows = self._connection.execute(f'SELECT {ROW}, {fields} FROM "{table}" ORDER BY {ROW}')  # noqa: S608 - our constants
            # No Python code runs per row here.
            matrix = np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, len(present))
        found = {name: np.ascontiguousarray(matrix[:, index]) for index, name in enumerate(present)}
        absent = np.full(len(matrix), NONE, dtype=np.int64)
        return found | {name: absent for name in optional if name not in found}

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """The strings with these ids, as far as they exist."""
        if not self.has(STRINGS, "id", "value"):
            return {}
        found: dict[int, str] = {}
        wanted = list(ids)
        for begin in range(0, len(wanted), 900):
            part = wanted[begin : begin + 900]
            marks = ",".join("?" * len(part))
            found.update(self.rows(f"SELECT id, value FROM {STRINGS} WHERE id IN ({marks})", part))  # noqa: S608 - only marks
        return {key: decode(value) for key, value in found.items()}

    def numbers(self, statement: str, number: Callable[[Any], int]) -> Int64:
        """The first column of a query, each value turned into a number."""
        with self._guarded():
            return np.fromiter((number(value) for (value,) in self._connection.execute(statement)), dtype=np.int64)

    def rows(self, statement: str, parameters: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query; texts as bytes."""
        with self._guarded():
            yield from self._connection.execute(statement, tuple(parameters))

    def _find_tables(self) -> dict[str, frozenset[str]]:
        with self._guarded():
            self._connection.execute("PRAGMA trusted_schema = OFF")
            query = "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')"
            schema = [tuple(map(decode, row)) for row in self._connection.execute(query)]
        kinds = {name: _kind(kind, sql) for name, kind, sql in schema if name in READ}
        for name, kind in kinds.items():
            if kind != "table":
                raise NotATraceError(
                    f"{self.path}: {name} is a {kind}, which could run any query when it is read; an export of Nsight Systems "
                    f"has a plain table: {EXPORT_AGAIN}"
                )
        if not EVENTS.intersection(kinds):
            found = ", ".join(sorted(name for name, *_ in schema)[:5]) or "no table"
            raise NotATraceError(
                f"{self.path}: a SQLite file, but no export of Nsight Systems: found {found}; expected {KERNEL} or {NVTX}. "
                "Make one with: nsys export --type sqlite REPORT.nsys-rep"
            )
        return {name: frozenset(decode(row[1]) for row in self.rows(f'PRAGMA table_info("{name}")')) for name in kinds}

    def _check_types(self, table: str, required: tuple[str, ...], present: list[str]) -> None:
        # np.fromiter would cut a float and fail without a word about the row on a text.
        wrong = " OR ".join(
            f"typeof(\"{name}\") <> 'integer'" if name in required else f"typeof(\"{name}\") NOT IN ('integer', 'null')"
            for name in present
        )
        types = ", ".join(f'typeof("{name}")' for name in present)
        query = f'SELECT {ROW}, {types} FROM "{table}" WHERE {wrong} LIMIT 1'  # noqa: S608 - names are our constants
        for row, *found in self.rows(query):
            kinds = [decode(kind) for kind in found]
            allowed = {name: ("integer",) if name in required else ("integer", "null") for name in present}
            name, kind = next((n, k) for n, k in zip(present, kinds, strict=True) if k not in allowed[n])
            raise NotATraceError(
                f"{self.path}: table {table}, row {row}: column {name} holds {kind} where an integer is expected; {EXPORT_AGAIN}"
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        # UnicodeDecodeError: the message of SQLite itself may quote damaged bytes.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise UnreadableError(
                f"{self.path}: SQLite cannot read this file ({error}): it is damaged, cut short or still being written; "
                f"copy it again, or {EXPORT_AGAIN}"
            ) from error


def possible(start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Whether both times are such that differences of times fit 64 bits; 2**62 ns are 146 years."""
    return (np.abs(start // 2) < 2**61) & (np.abs(end // 2) < 2**61)


def _refuse_unfinished(path: Path) -> None:
    for suffix in ("-wal", "-journal"):
        side = path.with_name(path.name + suffix)
        try:
            unfinished = side.stat().st_size > 0
        except OSError:
            continue
        if unfinished:
            raise UnreadableError(
                f"{path}: {side.name} beside it holds changes that are not in the file yet: a program is writing it or ended "
                f"early. Wait for it to end, or {EXPORT_AGAIN}"
            )


def decode(value: Any) -> str:
    """A text of the database, which nothing forces to be UTF-8; empty for NULL."""
    return "" if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _kind(kind: str, sql: str) -> str:
    # A virtual table is listed as a table, but reading it runs code of its module.
    return "virtual table" if "VIRTUAL" in sql.upper().split()[:3] else kind
