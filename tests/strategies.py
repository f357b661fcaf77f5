"""The one hypothesis strategy for Timelines: small, crowded and valid.

Times come from a range so small that intervals touch, nest, repeat and are empty all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.timelines import COMMUNICATION, COMPUTE, COPY, FUSED, WAIT, Call, Host, Op, build
from underlap.columns import NONE
from underlap.timeline import Group, HostKind, Note, OpClass, RankInfo, Timeline

_LONGEST = 24
_CLASSES: tuple[OpClass, ...] = (COMPUTE, COMPUTE, COMMUNICATION, COMMUNICATION, FUSED, COPY, WAIT)
_COLLECTIVES = ("all_reduce", "all_gather", "all_to_all", "send", "broadcast", None)
_DESCRIPTIONS = ("mesh_tp", "mesh_dp_shard_cp", "default_pg", "TENSOR_MODEL_PARALLEL_GROUP", "no axis", None)
_SITES = ("DistributedDataParallel.forward", "aten::linear", None)
_SCALES = (1, 7, 1_000, 86_400_000_000_007)
_ORIGINS = (0, -3, 1_700_000_000_123_456_789)

_names = st.one_of(st.sampled_from(("gemm", "ncclDevKernel", "")), st.text(max_size=4))
_few = st.integers(0, 2)
_operation = st.tuples(
    st.sampled_from(_CLASSES),
    st.integers(0, _LONGEST),
    st.integers(0, 9),
    st.one_of(st.none(), st.integers(0, 12)),
    _names,
    _few,
    st.integers(0, 99),
    st.integers(NONE, 1),
)
_call = st.tuples(
    st.sampled_from(_COLLECTIVES),
    st.one_of(st.none(), st.sampled_from((0, 8, 1 << 40))),
    st.one_of(st.none(), _few),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from(_SITES),
)
_mark = st.tuples(st.integers(-4, _LONGEST), st.integers(0, 12))
_group = st.tuples(st.sampled_from(_DESCRIPTIONS), st.booleans(), st.sampled_from(("0", "1", None)))
_groups = st.lists(_group, min_size=3, max_size=3, unique=True)


STYLES = ("none", "training", "serving", "graphs")
"""What may mark steps."""


@st.composite
def timelines(draw: st.DrawFn, styles: Sequence[str] = STYLES) -> Timeline:
    """A valid Timeline: 1 to 4 ranks of 1 to 2 devices, any classes, launches, calls, groups, steps or graph launches."""
    ranks = sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=4)))
    scale = draw(st.sampled_from(_SCALES))
    groups = [
        Group(name=name, description=text, size=len(ranks) if listed else 2, ranks=tuple(ranks) if listed else None)
        for text, listed, name in draw(_groups)
    ]
    calls: list[Call] = []
    ops: list[Op] = []
    host: list[Host] = []
    style = draw(st.sampled_from(styles))
    for rank in ranks:
        own = draw(st.lists(_call, min_size=1, max_size=4))
        first = len(calls)
        calls += [
            Call(collective, payload, group, sequence, rank=rank, site=site) for collective, payload, group, sequence, site in own
        ]
        host += _host_rows(style, draw(st.lists(_mark, max_size=4)), rank, scale)
        for device in range(draw(st.integers(1, 2))):
            rows = draw(st.lists(_operation, max_size=7))
            ops += [_op(row, rank, device, scale, (first, len(own))) for row in rows]
    world = draw(st.sampled_from((None, len(ranks), 8)))
    infos = [
        RankInfo(
            rank=rank,
            rank_source="distributedInfo",
            world_size=world,
            source=f"rank{rank}.json",
            on_cpu=draw(st.booleans()),
            clock=0,
            resolution_ns=draw(st.sampled_from((1, 1000))),
            groups=tuple(range(draw(_few))),
        )
        for rank in ranks
    ]
    return build(
        ops,
        calls=calls,
        host=host,
        groups=groups,
        ranks=infos,
        unknown={"gemm"},
        origin=draw(st.sampled_from(_ORIGINS)),
        notes=[Note(code="truncated", text="cut short")] if draw(st.booleans()) else [],
    )


def _op(
    row: tuple[OpClass, int, int, int | None, str, int, int, int], rank: int, device: int, scale: int, calls: tuple[int, int]
) -> Op:
    op_class, start, length, delay, name, lane, choice, graph = row
    first, count = calls
    return Op(
        op_class,
        start * scale,
        (start + length) * scale,
        first + choice % count if op_class in (COMMUNICATION, FUSED, WAIT) else None,
        None if delay is None else (start - delay) * scale,
        name,
        rank,
        device,
        str(lane),
        str(lane % 2),
        graph,
        choice if op_class is COPY else NONE,
    )


def _host_rows(style: str, marks: list[tuple[int, int]], rank: int, scale: int) -> list[Host]:
    name, kind = {
        "none": ("epoch", HostKind.ANNOTATION),
        "training": ("ProfilerStep#{}", HostKind.ANNOTATION),
        "serving": ("execute_{}", HostKind.ANNOTATION),
        "graphs": ("cudaGraphLaunch", HostKind.LAUNCH),
    }[style]
    return [
        Host(name.format(3 + at), start * scale, (start + length) * scale, kind, rank) for at, (start, length) in enumerate(marks)
    ]
