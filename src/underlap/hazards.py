"""What the buffers of a plan imply: dependences, races, what is read but never written, and the memory peak."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from underlap.columns import Int8, Int32, Int64, Table
from underlap.errors import PlanError
from underlap.expansion import Accesses, Expansion
from underlap.plan import OpKind, Plan

READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE = 0, 1, 2

_LISTED = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dependences(Table):
    """Which row has to end before which: rows of one role. For a collective it is the row of its issue that stands for it."""

    source: Int32
    target: Int32
    hazard: Int8
    """READ_AFTER_WRITE, WRITE_AFTER_READ or WRITE_AFTER_WRITE."""


def dependences(plan: Plan, expansion: Expansion) -> Dependences:
    """The nearest ones: what they imply together is left out. Sorted by target, then source."""
    used = _leaves(plan, expansion)
    same = used.instance[1:] == used.instance[:-1]
    index = np.arange(len(used))
    start = np.maximum.accumulate(np.where(np.concatenate(([True], ~same)), index, 0)) if len(used) else index
    written = used.writes == 1
    last_write = _before(np.maximum.accumulate(np.where(written, index, -1)), -1)
    reads = np.flatnonzero(~written & (last_write >= start))
    next_write = _next_write(written, same)
    held = np.flatnonzero(~written & (next_write >= 0))
    again = np.flatnonzero(same & written[1:] & written[:-1]) + 1
    parts = [
        (used.row[last_write[reads]], used.row[reads], READ_AFTER_WRITE),
        (used.row[held], used.row[next_write[held]], WRITE_AFTER_READ),
        (used.row[again - 1], used.row[again], WRITE_AFTER_WRITE),
    ]
    source = np.concatenate([part[0] for part in parts])
    target = np.concatenate([part[1] for part in parts])
    hazard = np.concatenate([np.full(len(part[0]), part[2], dtype=np.int8) for part in parts])
    size = max(1, len(expansion.rows))
    code = (target.astype(np.int64) * size + source) * 3 + hazard
    code, first = np.unique(code[source != target], return_index=True)
    kept = np.flatnonzero(source != target)[first]
    return Dependences(source=source[kept], target=target[kept], hazard=hazard[kept])


def check(plan: Plan, expansion: Expansion) -> None:
    """Raise PlanError where a row reads what nothing wrote, or touches what a collective in flight still needs."""
    _check_dangling(plan, expansion)
    edges = dependences(plan, expansion)
    rows = expansion.rows
    in_flight = rows.kind[edges.source] == OpKind.ISSUE
    before_wait = edges.target < rows.other[edges.source]
    # Collectives of one channel run one after the other, so the second may use the result of the first.
    same_lane = (rows.kind[edges.target] == OpKind.ISSUE) & (rows.channel[edges.target] == rows.channel[edges.source])
    racing = np.flatnonzero(in_flight & before_wait & ~same_lane)
    if len(racing):
        at = racing[0]
        source, target = int(edges.source[at]), int(edges.target[at])
        does = "reads its result" if edges.hazard[at] == READ_AFTER_WRITE else "overwrites what it uses"
        raise PlanError(
            f"{expansion.key(target)} {does} while {expansion.key(source)} is in flight: expected behind its wait "
            f"(role {expansion.role.name}, {len(racing)} such places)"
        )


def memory_peak(plan: Plan, expansion: Expansion) -> int:
    """The most bytes on the device at any moment: persistent buffers, and others from their writing to their last use."""
    sizes = np.array([plan.buffers[name].nbytes for name in expansion.buffers], dtype=np.int64)
    on_device = np.array([plan.buffers[name].place == "device" for name in expansion.buffers], dtype=np.bool_)
    root, _, _, _ = _parts(plan, expansion)
    uses = expansion.accesses
    per_buffer = (expansion.micro_batches + 1) * (expansion.layers + 3)
    owner = root[uses.instance // per_buffer]
    instance = owner * per_buffer + uses.instance % per_buffer
    counted = on_device[owner]
    held = np.array([plan.buffers[name].persistent for name in expansion.buffers], dtype=np.bool_)[owner]
    static = int(sizes[np.unique(instance[counted & held]) // per_buffer].sum())
    live = counted & ~held
    part = root[uses.instance // per_buffer] != uses.instance // per_buffer
    born, dead, size = _lives(expansion, instance[live], uses.row[live], uses.writes[live] == 1, sizes[owner[live]], part[live])
    change = np.zeros(len(expansion.rows) + 2, dtype=np.int64)
    np.add.at(change, born, size)
    np.add.at(change, dead + 1, -size)
    return static + int(np.cumsum(change).max(initial=0))


def lives_of_pools(plan: Plan, expansion: Expansion) -> tuple[Int64, Int64]:
    """(last use of an instance, first writing of the one that gets its slot), for every pool of the plan.

    A pool of k slots gives them out in the order of first use.
    """
    uses = expansion.accesses
    per_buffer = (expansion.micro_batches + 1) * (expansion.layers + 3)
    pool_of = [plan.buffers[name].pool for name in expansion.buffers]
    source: list[Int64] = []
    target: list[Int64] = []
    for pool, slots in plan.pools.items():
        member = np.array([name == pool for name in pool_of], dtype=np.bool_)
        used = np.flatnonzero(member[uses.instance // per_buffer])
        if not len(used):
            continue
        born, dead, _ = _lives(
            expansion,
            uses.instance[used],
            uses.row[used],
            uses.writes[used] == 1,
            np.ones(len(used), dtype=np.int64),
            np.ones(len(used), dtype=np.bool_),
        )
        order = np.argsort(born, kind="stable")
        source.append(dead[order][:-slots] if slots else dead[order])
        target.append(born[order][slots:])
    none = np.empty(0, dtype=np.int64)
    return (np.concatenate(source), np.concatenate(target)) if source else (none, none)


Piece = tuple[int, int]
"""An instance of a buffer that holds memory, and one of the equal pieces of its rows."""


def pieces(plan: Plan, expansion: Expansion) -> list[tuple[list[list[Piece]], list[list[Piece]]]]:
    """For each row what each of its reads, and each of its writes, covers, in the order of its template."""
    root, first, count, _ = _parts(plan, expansion)
    per_buffer = (expansion.micro_batches + 1) * (expansion.layers + 3)
    uses = expansion.accesses
    buffer = uses.instance // per_buffer
    instance = root[buffer] * per_buffer + uses.instance % per_buffer
    found: list[tuple[list[list[Piece]], list[list[Piece]]]] = [([], []) for _ in range(len(expansion.rows))]
    columns = (uses.row, uses.writes, instance, first[buffer], count[buffer])
    for row, writes, whole, begin, length in zip(*(column.tolist() for column in columns), strict=True):
        found[row][writes].append([(whole, begin + at) for at in range(length)])
    return found


# ---- parts of buffers


def _parts(plan: Plan, expansion: Expansion) -> tuple[Int64, Int64, Int64, int]:
    """Per buffer: the buffer that holds its memory, its first leaf there, how many leaves it covers; and leaves per buffer.

    Leaves are the equal pieces in which all parts of a buffer can be counted.
    """
    number = {name: index for index, name in enumerate(expansion.buffers)}
    place = {name: _place(plan, name) for name in expansion.buffers}
    pieces: dict[str, int] = {}
    for whole, _, count in place.values():
        pieces[whole] = math.lcm(pieces.get(whole, 1), count)
    root = np.array([number[place[name][0]] for name in expansion.buffers], dtype=np.int64)
    first = np.array([pieces[w] // n * i for w, i, n in (place[name] for name in expansion.buffers)], dtype=np.int64)
    covers = np.array([pieces[w] // n for w, _, n in (place[name] for name in expansion.buffers)], dtype=np.int64)
    return root, first, covers, max(pieces.values(), default=1)


def _place(plan: Plan, name: str) -> tuple[str, int, int]:
    """(the buffer that holds its memory, i, n): it is the i-th of n equal parts of that buffer."""
    index, count = 0, 1
    while (part := plan.buffers[name].part_of) is not None:
        whole, i, n = part
        if whole not in plan.buffers:
            raise PlanError(f"The buffer {name!r} is a part of {whole!r}, which the plan does not have")
        index, count, name = index + i * count, count * n, whole
    return name, index, count


def _leaves(plan: Plan, expansion: Expansion) -> Accesses:
    """The accesses with one row per leaf, sorted by leaf, then row, reads before writes."""
    root, first, count, most = _parts(plan, expansion)
    uses = expansion.accesses
    per_buffer = (expansion.micro_batches + 1) * (expansion.layers + 3)
    buffer = uses.instance // per_buffer
    repeat = count[buffer]
    base = (root[buffer] * per_buffer + uses.instance % per_buffer) * most + first[buffer]
    within = np.arange(int(repeat.sum())) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    leaf = np.repeat(base, repeat) + within
    row, writes = np.repeat(uses.row, repeat), np.repeat(uses.writes, repeat)
    order = np.lexsort((writes, row, leaf))
    return Accesses(row=row[order], instance=leaf[order], writes=writes[order])


def _before(values: Int64, first: int) -> Int64:
    return np.concatenate(([first], values[:-1])).astype(np.int64) if len(values) else values


def _next_write(written: NDArray[np.bool_], same: NDArray[np.bool_]) -> Int64:
    """Per access: the next write of the same leaf, -1 where there is none."""
    size = len(written)
    index = np.arange(size)
    later = np.where(written, index, size)
    following = np.minimum.accumulate(later[::-1])[::-1]
    following = np.append(following[1:], size)
    ends = np.where(np.append(~same, True), index, size) if size else index
    end = np.minimum.accumulate(ends[::-1])[::-1]
    return np.where(following <= end, following, -1)


# ---- checks and lives


def _check_dangling(plan: Plan, expansion: Expansion) -> None:
    used = _leaves(plan, expansion)
    first = np.concatenate(([True], used.instance[1:] != used.instance[:-1])) if len(used) else np.empty(0, dtype=np.bool_)
    _, _, _, most = _parts(plan, expansion)
    per_buffer = (expansion.micro_batches + 1) * (expansion.layers + 3)
    held = np.array([plan.buffers[name].persistent for name in expansion.buffers], dtype=np.bool_)
    dangling = np.flatnonzero(first & (used.writes == 0) & ~held[used.instance // most // per_buffer])
    if len(dangling):
        rows = used.row[dangling]
        names = list(dict.fromkeys(_names(expansion, used.instance[dangling] // most)))
        raise PlanError(
            f"{expansion.key(int(rows[0]))} of role {expansion.role.name} reads {', '.join(names[:_LISTED])}, "
            f"which nothing wrote before: expected a writer, or a persistent buffer ({len(names)} such buffers)"
        )


def _names(expansion: Expansion, instances: Int64) -> Iterator[str]:
    for instance in instances.tolist():
        yield expansion.decode(instance)[0]


def _lives(
    expansion: Expansion, instance: Int64, row: Int32, written: NDArray[np.bool_], size: Int64, part: NDArray[np.bool_]
) -> tuple[Int64, Int64, Int64]:
    """(born, dead, bytes) of each life of each instance: from a row that writes it without reading it to its last use.

    What a collective uses stays until its wait. `part` tells accesses to a part of the instance.
    """
    until = np.maximum(row, expansion.rows.other[row])
    order = np.lexsort((written, row, instance))
    instance, row, until = instance[order], row[order], until[order]
    written, size, part = written[order], size[order], part[order]
    if not len(row):
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    changed = np.concatenate(([True], instance[1:] != instance[:-1]))
    read_before = np.concatenate(([False], (row[1:] == row[:-1]) & ~changed[1:]))
    # A part written right behind another part continues the life; the whole written again ends one that nothing read.
    continued = np.concatenate(([False], written[:-1] & (part[1:] | part[:-1] | (row[1:] == row[:-1]))))
    fresh = changed | (written & ~read_before & ~continued)
    lives = np.cumsum(fresh) - 1
    dead = np.zeros(int(lives[-1]) + 1, dtype=np.int64)
    np.maximum.at(dead, lives, until)
    return row[fresh].astype(np.int64), dead, size[fresh]
