"""Which operation uses what which other one wrote: from the execution trace that PyTorch records beside a profile.

An execution trace (ExecutionTraceObserver, schema 1.1.x) has one node per operator call, with the storage, offset and length of
every tensor that went in and came out. Its `rf_id` is the `Record function id` of the profile's row. Both have the process id,
and the names have to agree in every common id; else nothing is used.

A node writes the arguments that its schema marks (`Tensor(a!)`); collectives write all their tensors where they work in place,
else the first argument of their `c10d::` operator. A node makes the results whose storage did not go in: with these begins a new
life of the storage, whose id may be an old one. It reads what goes in. Views neither read nor write. In order of issue on the
host, a use of bytes waits for their last writer. Only pairs with a collective on one side are kept. Not modeled: that a buffer
may be written again only after it was read, writes and storages that no operator records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from isal import igzip

from underlap.columns import NONE, Int64
from underlap.read.identity import rank_from_name
from underlap.read.rows import FileRows
from underlap.timeline import UNKNOWN_NS, Collectives, Dependences, DependenceSource, Note, Operations

_NAME = re.compile(r"(?:^|[._-])(?:et|execution[._-]?trace)(?:[._-]|\d|$)", re.IGNORECASE)
_HEAD_BYTES = 4096
_MOST_BYTES = 1 << 30
_IN_PLACE = ("all_reduce", "broadcast", "recv")
"""Whatever tensors such a call names, it writes them."""
_OUTPUT_FIRST = re.compile(r"c10d::_?(?:all_?gather|reduce_?scatter|all_?to_?all|gather|scatter)")
"""Operators whose first argument is the result and whose second is the input."""

Bytes = tuple[int, int, int]
"""(storage, first byte, end)"""


class _Values(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []
    strides: list[Any] = []


class _Attribute(msgspec.Struct):
    name: str = ""
    value: Any = None


class _Node(msgspec.Struct):
    name: str = ""
    inputs: _Values = msgspec.field(default_factory=_Values)
    outputs: _Values = msgspec.field(default_factory=_Values)
    attrs: list[_Attribute] = []

    def attribute(self, name: str) -> Any:
        return next((entry.value for entry in self.attrs if entry.name == name), None)


class ExecutionTrace(msgspec.Struct):
    """One file, as far as it is used."""

    schema: str = ""
    pid: int = NONE
    nodes: list[_Node] = []


def is_one(path: Path) -> bool:
    """Whether a file is an execution trace, by its name and its start."""
    if not _NAME.search(path.name) or not path.name.endswith((".json", ".json.gz")):
        return False
    try:
        with _opened(path) as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, EOFError, ValueError):
        return False
    return b'"schema"' in head and b'"nodes"' in head and b'"traceEvents"' not in head


def _opened(path: Path) -> IO[bytes]:
    # The types of isal say nothing about its open.
    opened: IO[bytes] = igzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[no-untyped-call]  # isal has no types
    return opened


def beside(path: Path) -> list[Path]:
    """Execution traces in the folder of a profile that may be its own: not those whose name tells another rank."""
    rank = rank_from_name(path)
    try:
        files = sorted(file for file in path.parent.iterdir() if file != path and _NAME.search(file.name))
    except OSError:
        return []
    return [file for file in files if is_one(file) and (rank is None or rank_from_name(file) in (None, rank))]


def dependences(
    path: Path, rows: FileRows, ops: Operations, collectives: Collectives, names: list[str], operator: Int64
) -> tuple[Dependences, list[Note]]:
    """What the execution trace beside a profile says about its operations. `ops` are as the Timeline has them, but with
    absolute times; `operator` is per device row its innermost host row, empty on CPU ranks."""
    fitting = []
    reasons = []
    for file in beside(path):
        found, reason = _loaded(file, rows)
        if found is None:
            reasons.append(f"{file.name}: {reason}")
        else:
            fitting.append((file, found))
    if len(fitting) != 1:
        if len(fitting) > 1:
            reasons = [f"{fitting[0][0].name} and {fitting[1][0].name} both fit {path.name}"]
        text = f"no data dependences are read: {reasons[0]}" if reasons else ""
        return Dependences.empty(), [Note(code="execution_trace_unused", text=text)] if text else []
    file, nodes = fitting[0]
    pairs = _pairs(rows, ops, collectives, names, operator, nodes)
    table = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    result = Dependences.from_columns(
        rank=ops.rank[table[:, 0]],
        before_row=ops.source_row[table[:, 0]],
        after_row=ops.source_row[table[:, 1]],
        source=np.full(len(table), DependenceSource.DATA),
    )
    text = f"{len(table)} data dependences of collectives are known from the tensors in {file.name}"
    return result, [Note(code="execution_trace", text=text)]


def _loaded(file: Path, rows: FileRows) -> tuple[dict[int, _Node] | None, str]:
    """The nodes by host row, or why the file is not used."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            return None, "it is larger than 1 GiB"
        with _opened(file) as stream:
            trace = msgspec.json.decode(stream.read(_MOST_BYTES + 1), type=ExecutionTrace)
    except (OSError, EOFError, ValueError) as error:
        return None, f"it cannot be read ({error})"
    if not trace.schema.startswith("1.1."):
        return None, f"schema {trace.schema!r}; expected 1.1.x, as torch 2.1 and later write"
    if str(trace.pid) not in {str(process) for process, _ in rows.threads}:
        return None, f"it is of process {trace.pid}, which the profile does not have"
    by_id = {record: node for node in trace.nodes if type(record := node.attribute("rf_id")) is int and record > 0}
    record, name = rows.host["record"], rows.host["name"]
    nodes = {}
    for row in np.flatnonzero(record >= 0).tolist():
        node = by_id.get(int(record[row]))
        if node is None:
            continue
        if node.name != rows.host_names[name[row]]:
            return None, f"id {int(record[row])} is {node.name} there and {rows.host_names[name[row]]} in the profile"
        nodes[row] = node
    return (nodes, "") if nodes else (None, "it has no id of the profile")


def _pairs(
    rows: FileRows, ops: Operations, collectives: Collectives, names: list[str], operator: Int64, nodes: dict[int, _Node]
) -> set[tuple[int, int]]:
    """(row of the writer, row of the one that needs it) in `ops`, one of them a collective."""
    uses = sorted(_uses(rows, ops, collectives, names, operator, nodes), key=lambda use: use[0])
    written: dict[int, list[tuple[int, int, int]]] = {}
    pairs: set[tuple[int, int]] = set()
    for _, op, reads, writes, fresh in uses:
        for storage, low, high in (*reads, *writes):
            for begin, end, writer in written.get(storage, ()):
                if begin < high and low < end and writer != op and (ops.collective[writer] >= 0 or ops.collective[op] >= 0):
                    pairs.add((writer, op))
        for storage, low, high in writes:
            left = [entry for entry in written.get(storage, ()) if entry[0] < low or entry[1] > high]
            written[storage] = [*left, (low, high, op)]
        for storage, low, high in fresh:
            # Ids are used again once a storage is freed: what was in it is no matter of the new one.
            written[storage] = [(low, high, op)]
    return pairs


Use = tuple[int, int, list[Bytes], list[Bytes], list[Bytes]]
"""(when issued, operation, what it reads, what it writes, what it makes)"""


def _uses(
    rows: FileRows, ops: Operations, collectives: Collectives, names: list[str], operator: Int64, nodes: dict[int, _Node]
) -> Iterator[Use]:
    host = rows.host
    place = {int(row): at for at, row in enumerate(host["row"].tolist()) if at in nodes}
    device = {int(row): at for at, row in enumerate(rows.device["row"].tolist())}
    calls = {int(host["start"][at]): at for at in nodes if rows.host_names[host["name"][at]].startswith("c10d::")}
    inside = _Inside(rows, nodes)
    for op in range(len(ops)):
        source, call = int(ops.source_row[op]), int(ops.collective[op])
        launched = source in device and len(operator) > 0
        own = place.get(source, int(operator[device[source]]) if launched else NONE)
        issued = int(host["start"][own]) if own >= 0 else UNKNOWN_NS
        if call >= 0:
            kind = int(collectives.collective[call])
            asked = calls.get(int(collectives.issue_ns[call]), NONE)
            issued = int(collectives.issue_ns[call]) if collectives.issue_ns[call] != UNKNOWN_NS else issued
            reads, writes = _of_collective(names[kind] if kind >= 0 else None, nodes.get(own), nodes.get(asked))
            if (reads or writes) and issued != UNKNOWN_NS:
                yield issued, op, reads, writes, []
        elif own >= 0:
            # A kernel belongs to the operator that launched it; an operator of a CPU rank is all that happens inside it.
            for row in inside.of(own) if source in place else [own]:
                if row in nodes:
                    yield int(host["start"][row]), op, *_of_operator(nodes[row])


class _Inside:
    """The rows with a node inside a row of the same thread."""

    def __init__(self, rows: FileRows, nodes: dict[int, _Node]) -> None:
        self._host = rows.host
        known = np.array(sorted(nodes), dtype=np.int64)
        self._known = known[np.lexsort((rows.host["start"][known], rows.host["thread"][known]))]
        self._thread, self._start = rows.host["thread"][self._known], rows.host["start"][self._known]

    def of(self, row: int) -> list[int]:
        """The row itself among them, in order of start."""
        low, high = (int(np.searchsorted(self._thread, self._host["thread"][row], side=side)) for side in ("left", "right"))
        first = low + int(np.searchsorted(self._start[low:high], self._host["start"][row], side="left"))
        last = low + int(np.searchsorted(self._start[low:high], self._host["end"][row], side="left"))
        found: list[int] = self._known[first:last].tolist()
        return found


def _of_operator(node: _Node) -> tuple[list[Bytes], list[Bytes], list[Bytes]]:
    """What it reads, writes and makes."""
    schema = node.attribute("op_schema")
    schema = schema if isinstance(schema, str) else ""
    marked = _marked(schema)
    given = [list(_tensors(node.inputs, at)) for at in range(len(node.inputs.values))]
    results = [entry for at in range(len(node.outputs.values)) for entry in _tensors(node.outputs, at)]
    entered = {storage for entries in given for storage, _, _ in entries}
    fresh = [entry for entry in results if entry[0] not in entered]
    if not schema or (results and not fresh and not marked):
        # Without a schema it only contains others; a view moves no data.
        return [], [], []
    writes = [entry for at in marked if at < len(given) for entry in given[at]]
    return [entry for entries in given for entry in entries], writes, fresh


def _marked(schema: str) -> list[int]:
    """Positions of the arguments that an operator writes: `add_(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> ...`."""
    arguments = schema.partition("(")[2].rpartition(") ->")[0]
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [at for at, part in enumerate(part for part in parts if part.strip() != "*") if "!" in part]


def _of_collective(kind: str | None, own: _Node | None, asked: _Node | None) -> tuple[list[Bytes], list[Bytes]]:
    if kind in _IN_PLACE:
        named = [
            entry for node in (own, asked) if node for at in range(len(node.inputs.values)) for entry in _tensors(node.inputs, at)
        ]
        return [], list(dict.fromkeys(named))
    if asked is not None and _OUTPUT_FIRST.match(asked.name) and len(asked.inputs.values) > 1:
        return list(_tensors(asked.inputs, 1)), list(_tensors(asked.inputs, 0))
    if kind == "send" and own is not None:
        return [entry for at in range(len(own.inputs.values)) for entry in _tensors(own.inputs, at)], []
    return [], []


def _tensors(values: _Values, at: int) -> Iterator[Bytes]:
    """The bytes of every tensor in a value, which may be a list of tensors."""
    shapes, strides = (part[at] if at < len(part) else None for part in (values.shapes, values.strides))
    yield from _bytes(values.values[at], shapes, strides)


def _bytes(value: Any, shape: Any, stride: Any) -> Iterator[Bytes]:
    if not isinstance(value, list):
        return
    if len(value) == 6 and all(type(part) is int for part in value[:5]):
        _, storage, offset, elements, size = value[:5]
        extent = _extent(elements, shape, stride)
        if storage >= 0 and extent > 0:
            yield storage, offset * size, (offset + extent) * size
        return
    for place, part in enumerate(value):
        inner = [entry[place] if isinstance(entry, list) and place < len(entry) else None for entry in (shape, stride)]
        yield from _bytes(part, *inner)


def _extent(elements: int, shape: Any, stride: Any) -> int:
    """Elements from the first to the last of a tensor, gaps included."""
    if not (isinstance(shape, list) and isinstance(stride, list) and len(shape) == len(stride) and elements > 0):
        return elements
    if not all(type(part) is int for part in (*shape, *stride)):
        return elements
    return 1 + int(sum((length - 1) * step for length, step in zip(shape, stride, strict=True)))
