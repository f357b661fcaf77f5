"""Groups and axes: who takes part in a call, and along which mesh dimensions.

An axis comes from what the trace says of the group (pg_desc, a mesh dimension's name), else from the user's mesh, else by
inference, which is labelled as such; where several axes fit, they are listed and none is chosen.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from underlap.columns import NONE, Int32
from underlap.errors import OptionError
from underlap.timeline import Collectives, Group, Note, Timeline
from underlap.wording import counted

# Words of mesh dimension names, longest first; a name made of other words is one dimension by itself.
_WORDS = ("dp_replicate", "dp_shard", "dp_mod_ep", "dp", "edp", "efsdp", "fsdp", "hsdp", "cp", "sp", "tp", "pp", "ep", "etp")
_MEGATRON = (
    (re.compile(r"EXPERT_TENSOR_AND_MODEL|EXPERT_TENSOR_MODEL_PIPELINE|TENSOR_MODEL_PIPELINE"), None),
    (re.compile(r"(?:TENSOR_AND_EXPERT|EXPERT_TENSOR_AND_EXPERT)"), ("etp", "ep")),
    (re.compile(r"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"), ("dp", "cp", "tp")),
    (re.compile(r"TENSOR_AND_DATA"), ("dp", "tp")),
    (re.compile(r"TENSOR_AND_CONTEXT"), ("cp", "tp")),
    (re.compile(r"EXPERT_DATA"), ("edp",)),
    (re.compile(r"EXPERT_TENSOR"), ("etp",)),
    (re.compile(r"EXPERT_MODEL|EXPERT_PARALLEL"), ("ep",)),
    (re.compile(r"DATA_PARALLEL_GROUP_WITH_CP"), ("dp", "cp")),
    (re.compile(r"DATA_PARALLEL"), ("dp",)),
    (re.compile(r"CONTEXT_PARALLEL"), ("cp",)),
    (re.compile(r"PIPELINE_MODEL_PARALLEL|(?:POSITION_)?EMBEDDING"), ("pp",)),
    (re.compile(r"TENSOR_MODEL_PARALLEL"), ("tp",)),
)
_MEET = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "send_recv")
"""No rank can leave these before the last one has come."""
# A candidate axis by collective, when only the ranks of a group are known.
_POSSIBLE = {
    "send": ("pp", "cp"),
    "recv": ("pp", "cp"),
    "send_recv": ("pp", "cp", "ep"),
    "all_to_all": ("ep", "cp"),
    "dispatch": ("ep",),
    "combine": ("ep",),
    "all_gather": ("fsdp", "tp", "cp", "dp"),
    "reduce_scatter": ("fsdp", "tp", "cp", "dp"),
    "all_reduce": ("dp", "tp", "cp"),
    "broadcast": ("dp",),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The axis of a call, how it is known, and what it could be where it is not."""

    dimensions: tuple[str, ...] | None = None
    source: str | None = None
    candidates: tuple[str, ...] = ()

    @property
    def name(self) -> str | None:
        """The dimensions joined by ' x '; None where unknown."""
        return None if self.dimensions is None else " x ".join(self.dimensions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The collectives of a Timeline with their groups and axes settled."""

    table: Collectives
    groups: tuple[Group, ...]
    axis: tuple[Axis, ...]
    """Distinct axes."""
    axis_of: Int32
    """Per collective an index into `axis`. Shape (len(table),)."""
    notes: tuple[Note, ...]


def settle(timeline: Timeline, mesh: Mapping[str, int] | None) -> Calls:
    """Groups and axes of every call. Raises OptionError when the mesh does not fit the ranks."""
    world = world_size(timeline)
    if mesh is not None:
        _check_mesh(mesh, world, [info.rank for info in timeline.ranks])
    table, groups, notes = infer_groups(timeline, world)
    listed = {info.rank: [timeline.groups[at] for at in info.groups] for info in timeline.ranks}
    axes: dict[Axis, int] = {}
    keys: dict[tuple[int, int, int, int], int] = {}
    axis_of = np.empty(len(table), dtype=np.int32)
    rows = zip(table.rank.tolist(), table.group.tolist(), table.collective.tolist(), table.call_site.tolist(), strict=True)
    for at, key in enumerate(rows):
        if key not in keys:
            rank, group, collective, site = key
            found = axis(
                groups[group] if group >= 0 else None,
                timeline.name_of(collective),
                timeline.name_of(site),
                mesh,
                listed.get(rank, []),
            )
            keys[key] = axes.setdefault(found, len(axes))
        axis_of[at] = keys[key]
    if mesh is not None and len(table) and not any(found.source in ("mesh option", "group size") for found in axes):
        text = "the mesh option settles no axis: the groups of the calls are unknown, or their descriptions say the axis"
        notes = [*notes, Note(code="mesh_unused", text=text)]
    return Calls(table=table, groups=groups, axis=tuple(axes), axis_of=axis_of, notes=tuple(notes))


def world_size(timeline: Timeline) -> int | None:
    """The world size that the sources agree on, else None."""
    sizes = {info.world_size for info in timeline.ranks if info.world_size is not None}
    return sizes.pop() if len(sizes) == 1 else None


def axis(
    group: Group | None, collective: str | None, site: str | None, mesh: Mapping[str, int] | None, listed: Sequence[Group]
) -> Axis:
    """The axis of a call by the best evidence there is."""
    described = dimensions_of(group.description) if group is not None else None
    if described is not None:
        return Axis(dimensions=described, source="group description")
    if mesh is not None:
        found = _in_mesh(group, mesh)
        if found is not None:
            return found
    named = _only_mesh_dimension(group, listed)
    if named is not None:
        return named
    by_site = _by_call_site(collective, site)
    if by_site is not None:
        return by_site
    if group is not None and group.ranks is not None and len(group.ranks) > 1:
        return Axis(source=_stride(group.ranks), candidates=_POSSIBLE.get(collective or "", ()))
    return Axis()


def dimensions_of(description: str | None) -> tuple[str, ...] | None:
    """Mesh dimensions from a group's description: mesh_dp_shard_cp, TENSOR_MODEL_PARALLEL_GROUP, tp:0; None if it has none."""
    if not description or description in ("default_pg", "undefined"):
        return None
    if description.isupper():
        return next((dims for pattern, dims in _MEGATRON if pattern.search(description)), None)
    name = re.sub(r"^mesh_|_group$|_pg$|:\d+$", "", description)
    if name in ("", "world", "default"):
        return None
    return _split_words(name) or ((name,) if description.startswith("mesh_") else None)


def _split_words(name: str) -> tuple[str, ...] | None:
    words: list[str] = []
    rest = name.lower()
    while rest:
        word = next((word for word in _WORDS if rest == word or rest.startswith(word + "_")), None)
        if word is None:
            return None
        words.append(word)
        rest = rest[len(word) + 1 :]
    return tuple(words) or None


def _in_mesh(group: Group | None, mesh: Mapping[str, int]) -> Axis | None:
    """The dimensions along which the group's ranks vary, if it is a whole sub-mesh; by size alone only candidates."""
    if group is None or (group.ranks is None and group.size is None):
        return None
    names, shape = tuple(mesh), tuple(mesh.values())
    if group.ranks is None:
        fitting = [" x ".join(dims) for dims in _subsets(names) if math.prod(mesh[name] for name in dims) == group.size]
        return Axis(source="group size", candidates=tuple(fitting))
    if max(group.ranks) >= math.prod(shape):
        return None
    coordinates = np.array(np.unravel_index(group.ranks, shape))
    varying = [at for at in range(len(shape)) if len(set(coordinates[at].tolist())) > 1]
    if math.prod(shape[at] for at in varying) != len(group.ranks) or not varying:
        return None
    return Axis(dimensions=tuple(names[at] for at in varying), source="mesh option")


def _subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    count = len(names)
    return [tuple(names[at] for at in range(count) if chosen >> at & 1) for chosen in range(1, 1 << count)]


def _only_mesh_dimension(group: Group | None, listed: Sequence[Group]) -> Axis | None:
    """The one named mesh dimension that the rank's groups offer for these ranks."""
    if group is None or group.ranks is None or group.name is not None:
        return None
    fitting = {
        dims
        for other in listed
        if other.ranks == group.ranks and (other.description or "").startswith("mesh_")
        for dims in [dimensions_of(other.description)]
        if dims is not None
    }
    if len(fitting) == 1:
        return Axis(dimensions=fitting.pop(), source="inferred (the only mesh dimension with these ranks)")
    if fitting:
        return Axis(source="mesh dimensions", candidates=tuple(sorted(" x ".join(dims) for dims in fitting)))
    return None


def _by_call_site(collective: str | None, site: str | None) -> Axis | None:
    if not site or collective is None:
        return None
    if site.startswith("DistributedDataParallel") or (collective == "all_reduce" and "AccumulateGrad" in site):
        return Axis(dimensions=("dp",), source="inferred (issued by DistributedDataParallel)")
    # The all-reduce of hybrid sharding is issued there too, but on another dimension.
    if collective in ("all_gather", "reduce_scatter") and site.startswith(("FSDP::", "FullyShardedDataParallel")):
        return Axis(dimensions=("fsdp",), source="inferred (issued by FSDP)")
    return None


def _stride(ranks: tuple[int, ...]) -> str:
    strides = {after - before for before, after in itertools.pairwise(ranks)}
    step = f"stride {strides.pop()}" if len(strides) == 1 else "no single stride"
    return f"ranks only ({step}, {len(ranks)} ranks)"


def _check_mesh(mesh: Mapping[str, int], world: int | None, ranks: Sequence[int]) -> None:
    total = math.prod(mesh.values())
    text = ",".join(f"{name}={size}" for name, size in mesh.items())
    if world is not None and total != world:
        raise OptionError(f"--mesh {text} has {total} ranks, the trace says world size {world}; the sizes must multiply to it")
    if ranks and max(ranks) >= total:
        raise OptionError(f"--mesh {text} has {total} ranks, but the input has rank {max(ranks)}")


def infer_groups(timeline: Timeline, world: int | None) -> tuple[Collectives, tuple[Group, ...], list[Note]]:
    """Fill in the ranks of calls whose group the trace does not name, where only one set of ranks is possible.

    Three cases: the rank's listed groups with more than one member all have the same members; the world has two ranks;
    or all ranks of the world are there, issue the same sequence of calls, each at the same time where they share a clock, and
    list no groups. Where a rank lists groups with different members, the same sequence says nothing: every rank of a
    tensor-parallel mesh runs the same program. An input on one clock that does not say how many ranks there are (Nsight
    Systems) is taken to be whole.
    """
    table, groups = timeline.collectives, list(timeline.groups)
    notes: list[Note] = []
    unknown = table.group == NONE
    if not unknown.any():
        return table, timeline.groups, notes
    filled = table.group.copy()
    reasons: dict[Group, str] = {}
    any_listed = False
    for info in timeline.ranks:
        own = unknown & (table.rank == info.rank)
        sets = {group.ranks for group in (timeline.groups[at] for at in info.groups) if (group.size or 0) > 1}
        any_listed = any_listed or bool(sets)
        ranks = next(iter(sets)) if len(sets) == 1 else None
        reason = "the only set of ranks among the listed groups"
        if ranks is None and not sets and world == 2:
            ranks, reason = (0, 1), "a world of two ranks"
        if ranks is not None and own.any():
            filled[own] = _add(groups, Group(name=None, description=None, size=len(ranks), ranks=ranks, note=reason))
            reasons[groups[int(filled[own][0])]] = reason
    one_clock = len({info.clock for info in timeline.ranks}) == 1
    stated = {info.world_size for info in timeline.ranks} != {None}
    count = world if stated or not one_clock else len(timeline.ranks)
    if not any_listed and (filled == NONE).all() and count is not None and _same_sequence(timeline, count):
        reason = "all ranks of the world issue the same sequence of calls"
        if not stated:
            reason = "all ranks of the input issue the same sequence of calls at the same times; taken to be the whole job"
        everyone = Group(name=None, description=None, size=count, ranks=tuple(range(count)), note=reason)
        filled[:] = _add(groups, everyone)
        reasons[everyone] = reason
    if reasons:
        text = "; ".join(f"{counted(len(group.ranks or ()), 'rank')} ({reason})" for group, reason in reasons.items())
        count = int((unknown & (filled != NONE)).sum())
        notes.append(Note(code="group_inferred", text=f"the trace names no group for {counted(count, 'call')}; inferred: {text}"))
    return table.replace(group=filled), tuple(groups), notes


def _add(groups: list[Group], group: Group) -> int:
    if group not in groups:
        groups.append(group)
    return groups.index(group)


def _same_sequence(timeline: Timeline, world: int) -> bool:
    """Whether ranks 0 .. world-1 are all there and issue the same collectives of the same size in the same order.

    Where they share a clock the calls must also overlap in time, one by one: then they met.
    """
    table, ops = timeline.collectives, timeline.ops
    if sorted(info.rank for info in timeline.ranks) != list(range(world)) or world < 2:
        return False
    first, last = np.full(len(table), np.iinfo(np.int64).max), np.full(len(table), np.iinfo(np.int64).min)
    owned = ops.collective >= 0
    np.minimum.at(first, ops.collective[owned], ops.start_ns[owned])
    np.maximum.at(last, ops.collective[owned], ops.end_ns[owned])
    symmetric = {at for at, name in enumerate(timeline.names) if name in ("all_reduce", "all_gather", "reduce_scatter")}
    sequences, orders = set(), []
    for rank in range(world):
        own = np.flatnonzero(table.rank == rank)
        own = own[np.argsort(first[own], kind="stable")]
        orders.append(own)
        size = np.where(np.isin(table.collective[own], list(symmetric)), table.payload_bytes[own], 0)
        sequences.add(tuple(zip(table.collective[own].tolist(), size.tolist(), strict=True)))
    if len(sequences) != 1 or any(collective < 0 for collective, _ in next(iter(sequences))):
        return False
    if len({info.clock for info in timeline.ranks}) > 1:
        return True
    calls = np.stack(orders)
    meeting = np.isin(table.collective[calls[0]], [at for at, name in enumerate(timeline.names) if name in _MEET])
    return bool((first[calls].max(axis=0) <= last[calls].min(axis=0))[meeting].all())


def match_key(calls: Calls) -> list[tuple[int, int, int, int] | None]:
    """For each call what it shares with the same call on the group's other ranks; None where that is unknown.

    By group, collective and sequence number, else by group, collective and order on the rank. Point-to-point calls pair a
    send with a receive, so each is its own. This pairs for counting; whether the pairing holds is checked by rendezvous.
    """
    table = calls.table
    orders: dict[tuple[int, int, int], int] = {}
    keys: list[tuple[int, int, int, int] | None] = []
    columns = (table.rank, table.group, table.collective, table.sequence)
    for rank, group, collective, sequence in zip(*(column.tolist() for column in columns), strict=True):
        order = orders.get((rank, group, collective), 0)
        orders[rank, group, collective] = order + 1
        if group < 0:
            keys.append(None)
        elif sequence >= 0:
            keys.append((group, collective, sequence, NONE))
        else:
            keys.append((group, collective, NONE, order))
    return keys
