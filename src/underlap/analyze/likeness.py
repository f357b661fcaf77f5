"""What a replayed device graph does not tell, borrowed from an eager or warm-up recording of the same job.

The kernels of one graph launch are a *replay*. They have no launches, groups, sizes or call sites of their own. The eager
recording has; kernels of the two are told to be the same by name and order, and by nothing else:

    like, stream 7     gemm  norm  gemm  norm          what a stream ran in order stays in order in the graph that was
    like, stream 20       AllReduce    AllReduce       captured from it, whatever stream ids the replay shows
    replay, in time    gemm norm AllReduce gemm norm AllReduce

So each stream of the other recording is compared with the replay's kernels of the names that only this stream has, step by
step: the longest common order. Where it can be laid in more than one way (AAAA in AAAAA), a kernel may be any of several, and
gets only what all of these agree on, in all steps: a shift by one would look right and be wrong. A kernel that some longest
order leaves out gets nothing. With less than nine tenths of a replay's kernels in common order the replay is refused. What is
borrowed is counted and named, and never overwrites what this trace says.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from underlap.analyze import common_order, dependences, steps
from underlap.columns import NONE, Int64, Interner
from underlap.timeline import Dependences, DependenceSource, OpClass, Timeline

LEAST_COMMON = 0.9
"""Of the kernels of a replay, those that have to stand in the same order in the other recording."""
FIELDS = ("collective", "group", "dtype", "payload_bytes", "peer")
"""Of a call. What can be borrowed, as columns of `Timeline.collectives`."""
_NOT_MATCHED = (OpClass.COPY,)
"""Copies have names that say nothing, and become kernels in some graphs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Borrowed:
    """What came from the other recording, and what did not."""

    sources: tuple[str, ...]
    """Base names of its files."""
    graphs: int
    """Distinct graph ids."""
    replays: int
    refused: int
    """Replays of which nothing is borrowed."""
    kernels: int
    """Kernels of all replays."""
    matched: int
    """Of them, those with one certain partner in each step of the other recording."""
    ambiguous: int
    """In common order, but they may be any of several: they get only what all of these agree on."""
    shapes: int
    """Kernels whose grid and block are borrowed."""
    fields: dict[str, int]
    """Calls whose group, payload_bytes, ... is borrowed."""
    order: int
    """Pairs of kernels whose order is borrowed (same stream, or an event between streams)."""
    contradicted: int
    """Pairs that this trace shows in another order, and that are left out."""
    reasons: tuple[str, ...]
    """Why replays are refused, each once."""
    of_call: tuple[tuple[str, ...], ...]
    """Per row of `Timeline.collectives` the fields that are borrowed."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Partner:
    """What one kernel of a replay can be in the other recording."""

    rows: tuple[int, ...] = ()
    """Like operations; empty where it has none, or may have none."""
    sure: bool = False
    """One in each of its steps; else several, of which it is one."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Partners:
    """For the kernels of one replay."""

    of: tuple[_Partner, ...]
    common: int
    """Kernels in common order."""
    compared: bool
    """False: too long to tell."""


def borrow(timeline: Timeline, like: Timeline) -> tuple[Timeline, Borrowed]:
    """The Timeline with what the other one tells about its replays, and the account of it. Ranks are paired by number; a
    recording of one rank serves for all."""
    replays = list(_replays(timeline))
    found: list[tuple[Int64, tuple[_Partner, ...]]] = []
    reasons: Counter[str] = Counter()
    ambiguous = 0
    memory: dict[tuple[int, tuple[str, ...]], _Partners] = {}
    eager: dict[int, _Eager | None] = {}
    for rank, _, rows in replays:
        if rank not in eager:
            eager[rank] = _eager(like, rank)
        source = eager[rank]
        if source is None:
            reasons[f"it has no kernels of rank {rank} outside graphs"] += 1
            continue
        names = tuple(timeline.names[name] for name in timeline.ops.name[rows].tolist())
        if (rank, names) not in memory:
            memory[rank, names] = source.partners(names)
        partners = memory[rank, names]
        if not partners.compared:
            reasons["a replay and a step there are too long to be compared where they differ"] += 1
            continue
        if partners.common < LEAST_COMMON * len(rows):
            share = f"{partners.common / len(rows):.0%} of the {len(rows)} kernels of a replay stand in the same order there"
            reasons[f"only {share}, {LEAST_COMMON:.0%} are needed"] += 1
            continue
        ambiguous += partners.common - sum(of.sure for of in partners.of)
        found.append((rows, partners.of))
    return _filled(timeline, like, replays, found, reasons, ambiguous)


def _replays(timeline: Timeline) -> Iterator[tuple[int, int, Int64]]:
    """(rank, graph id, its kernels in order of start) of every graph launch."""
    ops = timeline.ops
    rows = np.flatnonzero((ops.graph >= 0) & ~np.isin(ops.op_class, _NOT_MATCHED))
    rows = rows[np.lexsort((ops.source_row[rows], ops.end_ns[rows], ops.start_ns[rows]))]
    keys = np.column_stack((ops.rank[rows].astype(np.int64), ops.graph[rows], ops.launch_ns[rows]))
    _, number = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    borders = np.flatnonzero(np.diff(number.ravel()[order])) + 1
    for part in np.split(rows[order], borders) if len(rows) else []:
        yield int(ops.rank[part[0]]), int(ops.graph[part[0]]), part


@dataclasses.dataclass(frozen=True, slots=True)
class _Stream:
    """One stream of the other recording: its kernels of names that no other stream has."""

    names: tuple[str, ...]
    rows: Int64
    step: Int64
    """Per kernel the step, -1 outside."""


class _Eager:
    """What one rank ran outside graphs, by stream."""

    def __init__(self, like: Timeline, rank: int, step: NDArray[np.int32]) -> None:
        ops = like.ops
        rows = np.flatnonzero((ops.rank == rank) & (ops.graph < 0) & ~np.isin(ops.op_class, _NOT_MATCHED))
        rows = rows[np.lexsort((ops.source_row[rows], ops.end_ns[rows], ops.start_ns[rows]))]
        names = [like.names[name] for name in ops.name[rows].tolist()]
        lanes: dict[str, set[int]] = {}
        for name, lane in zip(names, ops.lane[rows].tolist(), strict=True):
            lanes.setdefault(name, set()).add(lane)
        self.lane = {name: next(iter(found)) for name, found in lanes.items() if len(found) == 1}
        self.shared: dict[str, list[int]] = {}
        for name, row in zip(names, rows.tolist(), strict=True):
            if len(lanes[name]) > 1:
                self.shared.setdefault(name, []).append(row)
        self.streams: dict[int, _Stream] = {}
        for lane in sorted(set(self.lane.values())):
            own = [at for at, name in enumerate(names) if self.lane.get(name) == lane]
            self.streams[lane] = _Stream(tuple(names[at] for at in own), rows[own], step[rows[own]].astype(np.int64))

    def partners(self, names: tuple[str, ...]) -> _Partners:
        """The partners of a replay's kernels, given by name in order of start."""
        result = [_Partner()] * len(names)
        common, compared = 0, True
        for lane, stream in self.streams.items():
            own = [at for at, name in enumerate(names) if self.lane.get(name) == lane]
            if own:
                found = _of_stream(tuple(names[at] for at in own), stream)
                compared &= found.compared
                common += found.common
                for at, partner in zip(own, found.of, strict=True):
                    result[at] = partner
        for at, name in enumerate(names):
            # A name of several streams has no order that the graph would keep: it may be any of them.
            if name in self.shared:
                common += 1
                result[at] = _Partner(tuple(self.shared[name]))
        return _Partners(tuple(result), common, compared)


def _eager(like: Timeline, rank: int) -> _Eager | None:
    ranks = {info.rank for info in like.ranks}
    chosen = rank if rank in ranks else next(iter(ranks)) if len(ranks) == 1 else None
    if chosen is None:
        return None
    found = _Eager(like, chosen, steps.find(like).of_op)
    return found if found.streams or found.shared else None


def _of_stream(names: tuple[str, ...], stream: _Stream) -> _Partners:
    """The partners of kernels that one stream has run, over all its steps in which they stand in order."""
    best, compared = 0, True
    rows: list[list[int]] = [[] for _ in names]
    open_, single = [False] * len(names), [True] * len(names)
    for part in _parts(names, stream):
        found = common_order.longest(names, tuple(stream.names[at] for at in part.tolist()))
        compared &= found is not None
        best = max(best, found.length if found else 0)
        if found is None or found.length < LEAST_COMMON * len(names):
            continue
        for at, places in enumerate(found.places):
            rows[at] += stream.rows[part[list(places)]].tolist()
            open_[at] |= not places
            single[at] &= len(places) == 1
    partners = [
        _Partner() if missing else _Partner(tuple(of), sure and bool(of))
        for of, missing, sure in zip(rows, open_, single, strict=True)
    ]
    return _Partners(tuple(partners), best, compared or best > 0)


def _parts(names: tuple[str, ...], stream: _Stream) -> list[Int64]:
    """The stretches of the stream that may be the replay: its steps; without steps, its repetitions, else all of it."""
    marked = np.unique(stream.step[stream.step >= 0]).tolist()
    if marked:
        return [np.flatnonzero(stream.step == step) for step in marked]
    times, rest = divmod(len(stream.names), len(names))
    whole = np.arange(len(stream.names))
    return np.split(whole, times) if times and not rest and stream.names == names * times else [whole]


# ---- what the partners tell


def _filled(
    timeline: Timeline,
    like: Timeline,
    replays: list[tuple[int, int, Int64]],
    found: list[tuple[Int64, tuple[_Partner, ...]]],
    reasons: Counter[str],
    ambiguous: int,
) -> tuple[Timeline, Borrowed]:
    filling, ops = _Filling(timeline, like), timeline.ops
    following = _followers(like) if found else {}
    pairs_of: dict[tuple[_Partner, ...], Int64] = {}
    drawn = [np.empty((0, 2), dtype=np.int64)]
    for rows, partners in found:
        for row, of in zip(rows.tolist(), partners, strict=True):
            if of.rows:
                filling.take(row, of.rows)
        if partners not in pairs_of:
            pairs_of[partners] = np.array(_pairs(following, partners), dtype=np.int64).reshape(-1, 2)
        drawn.append(rows[pairs_of[partners]])
    pairs = np.concatenate(drawn)
    fitting = ops.end_ns[pairs[:, 0]] <= ops.start_ns[pairs[:, 1]]
    contradicted = int((~fitting).sum())
    first, second = pairs[fitting].T
    known = Dependences.from_columns(
        rank=ops.rank[first],
        before_row=ops.source_row[first],
        after_row=ops.source_row[second],
        source=np.full(len(first), DependenceSource.BORROWED),
    )
    filled = filling.timeline()
    filled = dataclasses.replace(filled, dependences=Dependences.concatenate([filled.dependences, known]))
    filled.validate()
    return filled, Borrowed(
        sources=tuple(dict.fromkeys(info.source for info in like.ranks)),
        graphs=len({(rank, graph) for rank, graph, _ in replays}),
        replays=len(replays),
        refused=len(replays) - len(found),
        kernels=sum(len(rows) for *_, rows in replays),
        matched=sum(of.sure for _, partners in found for of in partners),
        ambiguous=ambiguous,
        shapes=filling.shapes,
        fields={name: count for name in FIELDS if (count := sum(name in of for of in filling.of_call))},
        order=len(known),
        contradicted=contradicted,
        reasons=tuple(reason for reason, _ in reasons.most_common()),
        of_call=tuple(tuple(of) for of in filling.of_call),
    )


class _Filling:
    """Fills what a Timeline leaves open with what all partners of a kernel agree on."""

    def __init__(self, timeline: Timeline, like: Timeline) -> None:
        self._timeline, self._like = timeline, like
        self._names, self._groups, self._shapes = Interner(), Interner(), Interner()
        for interner, values in ((self._names, timeline.names), (self._groups, timeline.groups), (self._shapes, timeline.shapes)):
            for value in values:
                interner(value)
        self._shape = timeline.ops.shape.copy()
        self._columns = {name: getattr(timeline.collectives, name).copy() for name in FIELDS}
        self.shapes = 0
        self.of_call: list[list[str]] = [[] for _ in range(len(timeline.collectives))]

    def take(self, row: int, of: tuple[int, ...]) -> None:
        """What the like operations `of` all say, for operation `row`."""
        mine, theirs = self._timeline.ops, self._like.ops
        shapes = {int(theirs.shape[other]) for other in of}
        if self._shape[row] == NONE and len(shapes) == 1 and NONE not in shapes:
            self._shape[row] = self._shapes(self._like.shapes[shapes.pop()])
            self.shapes += 1
        call, calls = int(mine.collective[row]), [int(theirs.collective[other]) for other in of]
        if call < 0 or NONE in calls:
            return
        for name, column in self._columns.items():
            said = {int(getattr(self._like.collectives, name)[other]) for other in calls}
            if column[call] == NONE and len(said) == 1 and NONE not in said:
                column[call] = self._own(name, said.pop())
                self.of_call[call].append(name)

    def _own(self, name: str, value: int) -> int:
        if name == "group":
            return self._groups(self._like.groups[value])
        return self._names(self._like.names[value]) if name in ("collective", "dtype") else value

    def timeline(self) -> Timeline:
        """The Timeline, filled."""
        known = dict(zip(self._like.names, self._like.recognized.tolist(), strict=True))
        recognized = self._timeline.recognized.tolist()
        recognized += [known[name] for name in self._names.values[len(recognized) :]]
        return dataclasses.replace(
            self._timeline,
            names=tuple(self._names.values),
            groups=tuple(self._groups.values),
            shapes=tuple(self._shapes.values),
            recognized=np.array(recognized, dtype=np.bool_),
            ops=self._timeline.ops.replace(shape=self._shape),
            collectives=self._timeline.collectives.replace(**self._columns),
        )


def _followers(like: Timeline) -> dict[int, set[int]]:
    """Per operation those that the other recording shows to come after it: the next of its stream, the end of an event."""
    following: dict[int, set[int]] = {}
    for edges in (dependences.lane_edges(like), dependences.event_edges(like)):
        for before, after in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            following.setdefault(before, set()).add(after)
    return following


def _pairs(following: dict[int, set[int]], partners: tuple[_Partner, ...]) -> list[tuple[int, int]]:
    """Places in a replay whose kernels follow each other in all steps of the other recording."""
    by_first = {of.rows[0]: at for at, of in enumerate(partners) if of.sure}
    found = []
    for at, of in enumerate(partners):
        for other in following.get(of.rows[0], ()) if of.sure else ():
            place = by_first.get(other)
            after = partners[place].rows if place is not None else ()
            if place is not None and len(after) == len(of.rows):
                together = all(b in following.get(a, ()) for a, b in zip(of.rows, after, strict=True))
                found += [(at, place)] if together else []
    return found
