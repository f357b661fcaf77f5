"""Groups and axes: what the trace says, what the mesh says, what may be inferred and what must not."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.timelines import COMMUNICATION, Call, Op, build, group, info
from underlap.analyze import groups
from underlap.analyze.groups import Axis
from underlap.errors import OptionError
from underlap.timeline import Group, Timeline

MESH = {"dp": 2, "cp": 2, "tp": 2}


def axis_of(
    found: Group | None, collective: str = "all_reduce", *, site: str | None = None, mesh: dict[str, int] | None = None
) -> Axis:
    return groups.axis(found, collective, site, mesh, [])


def calls_of(*ranks: int, world: int | None = None, listed: tuple[Group, ...] = (), name: str = "all_reduce") -> Timeline:
    """One call of an unnamed group on each rank."""
    return build(
        [Op(COMMUNICATION, 0, 5, at, rank=rank) for at, rank in enumerate(ranks)],
        calls=[Call(name, 8, rank=rank) for rank in ranks],
        groups=listed,
        ranks=[info(rank, world=world, groups=range(len(listed))) for rank in ranks],
    )


def inferred(timeline: Timeline) -> set[tuple[int, ...] | None]:
    table, found, _ = groups.infer_groups(timeline, groups.world_size(timeline))
    return {found[at].ranks if at >= 0 else None for at in table.group.tolist()}


@pytest.mark.parametrize(
    "description", [None, "", "default_pg", "undefined", "world", "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"]
)
def test_a_description_without_a_dimension_gives_no_axis(description: str | None) -> None:
    assert groups.dimensions_of(description) is None


@pytest.mark.parametrize(
    ("description", "dimensions"),
    [
        ("mesh_tp", ("tp",)),
        ("mesh_dp_shard", ("dp_shard",)),
        ("mesh_dp_shard_cp", ("dp_shard", "cp")),
        ("mesh_dp_replicate", ("dp_replicate",)),
        ("mesh_dp_cp_tp", ("dp", "cp", "tp")),
        ("mesh_inter", ("inter",)),
        ("tp:0", ("tp",)),
        ("TENSOR_MODEL_PARALLEL_GROUP", ("tp",)),
        ("PIPELINE_MODEL_PARALLEL_GROUP", ("pp",)),
        ("DATA_PARALLEL_GROUP", ("dp",)),
        ("DATA_PARALLEL_GROUP_WITH_CP", ("dp", "cp")),
        ("CONTEXT_PARALLEL_GROUP", ("cp",)),
        ("EXPERT_MODEL_PARALLEL_GROUP", ("ep",)),
        ("EXPERT_DATA_PARALLEL_GROUP", ("edp",)),
        ("EXPERT_TENSOR_PARALLEL_GROUP", ("etp",)),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", ("cp", "tp")),
    ],
)
def test_a_description_names_its_dimensions_in_order(description: str, dimensions: tuple[str, ...]) -> None:
    assert groups.dimensions_of(description) == dimensions


def test_a_call_without_a_group_has_no_axis_and_no_candidates() -> None:
    assert axis_of(None) == Axis()
    assert axis_of(None, mesh=MESH) == Axis()


def test_ranks_alone_list_candidates_and_choose_none() -> None:
    found = axis_of(group(0, 2, 4, 6))

    assert (found.name, found.candidates) == (None, ("dp", "tp", "cp"))
    assert found.source == "ranks only (stride 2, 4 ranks)"


def test_uneven_strides_are_said_to_be_uneven() -> None:
    assert axis_of(group(0, 1, 5)).source == "ranks only (no single stride, 3 ranks)"


def test_a_group_of_one_rank_has_no_candidates() -> None:
    assert axis_of(group(3)) == Axis()


def test_a_description_wins_over_the_mesh_option() -> None:
    found = axis_of(group(0, 1, description="mesh_ep"), mesh=MESH)

    assert (found.name, found.source) == ("ep", "group description")


@pytest.mark.parametrize(
    ("ranks", "axis"),
    [
        ((0, 1), "tp"),
        ((4, 6), "cp"),
        ((3, 7), "dp"),
        ((0, 2, 4, 6), "dp x cp"),
        ((4, 5, 6, 7), "cp x tp"),
        ((0, 1, 4, 5), "dp x tp"),
        (tuple(range(8)), "dp x cp x tp"),
    ],
)
def test_a_mesh_tells_the_dimensions_along_which_a_group_varies(ranks: tuple[int, ...], axis: str) -> None:
    found = axis_of(group(*ranks), mesh=MESH)

    assert (found.name, found.source) == (axis, "mesh option")


@pytest.mark.parametrize("ranks", [(0, 3), (0, 1, 2), (0, 1, 2, 7), (6, 9)])
def test_ranks_that_are_no_sub_mesh_keep_their_candidates_only(ranks: tuple[int, ...]) -> None:
    found = axis_of(group(*ranks), mesh=MESH)

    assert (found.name, found.candidates) == (None, ("dp", "tp", "cp"))


def test_a_group_of_known_size_only_lists_every_product_that_fits() -> None:
    assert axis_of(group(size=4), mesh=MESH).candidates == ("dp x cp", "dp x tp", "cp x tp")
    assert axis_of(group(size=8), mesh=MESH).candidates == ("dp x cp x tp",)
    assert axis_of(group(size=8), mesh=MESH).name is None
    assert axis_of(group(size=3), mesh=MESH).candidates == ()


def test_data_parallel_wrappers_give_the_axis_by_their_name() -> None:
    found = axis_of(group(0, 1), site="DistributedDataParallel.forward")

    assert found.name == "dp"
    assert (found.source or "").startswith("inferred (")
    assert axis_of(group(0, 1), "all_gather", site="autograd::engine: AccumulateGrad").name is None


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"dp": 3, "tp": 3}, {"tp": 16}])
def test_a_mesh_of_the_wrong_size_is_an_error_with_both_sizes(mesh: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=f"has {math.prod(mesh.values())} ranks, the trace says world size 8"):
        groups.settle(calls_of(0, world=8), mesh)


def test_a_mesh_too_small_for_the_ranks_is_an_error_without_a_world_size() -> None:
    with pytest.raises(OptionError, match="has 2 ranks, but the input has rank 5"):
        groups.settle(calls_of(0, 5), {"tp": 2})


def test_files_that_disagree_leave_the_world_size_unknown() -> None:
    ops = [Op(COMMUNICATION, 0, 5, 0), Op(COMMUNICATION, 0, 5, 1, rank=1)]
    ranks = [info(0, world=2), info(1, world=4)]

    assert groups.world_size(build(ops, calls=[Call(), Call(rank=1)], ranks=ranks)) is None
    assert groups.world_size(build(ranks=[info(0, world=2), info(1)])) == 2


def test_the_only_listed_set_of_ranks_is_the_group_of_unnamed_calls() -> None:
    listed = (group(0, 1, 2, 3, name="0"), group(0, 1, 2, 3, name="5"), group(2, name="6"))

    assert inferred(calls_of(2, world=4, listed=listed)) == {(0, 1, 2, 3)}


def test_a_world_of_two_leaves_only_one_group() -> None:
    assert inferred(calls_of(1, world=2)) == {(0, 1)}


def test_all_ranks_with_the_same_calls_form_one_group() -> None:
    timeline = calls_of(0, 1, 2, world=3)
    *_, notes = groups.infer_groups(timeline, 3)

    assert inferred(timeline) == {(0, 1, 2)}
    assert [note.code for note in notes] == ["group_inferred"]
    assert "all ranks of the world issue the same sequence" in notes[0].text


def test_one_named_mesh_dimension_with_the_same_ranks_is_the_axis() -> None:
    listed = (group(0, 1, name="0", description="default_pg"), group(0, 1, name="1", description="mesh_pp"))
    settled = groups.settle(calls_of(0, 1, world=2, listed=listed, name="send"), None)

    assert {settled.axis[at].name for at in settled.axis_of.tolist()} == {"pp"}
    assert settled.axis[0].source == "inferred (the only mesh dimension with these ranks)"


def test_two_mesh_dimensions_with_the_same_ranks_are_candidates() -> None:
    listed = (group(0, 1, name="1", description="mesh_tp"), group(0, 1, name="2", description="mesh_cp"))
    settled = groups.settle(calls_of(0, 1, world=2, listed=listed), None)

    assert [(axis.name, axis.candidates) for axis in settled.axis] == [(None, ("cp", "tp"))]


def test_nothing_is_inferred_where_a_rank_lists_several_groups() -> None:
    listed = (group(0, 1, 2, 3, name="0"), group(0, 1, name="1", description="mesh_tp"), group(0, 2, name="2"))

    assert inferred(calls_of(0, 1, 2, 3, world=4, listed=listed)) == {None}
    assert inferred(calls_of(0, world=4, listed=listed)) == {None}


def test_nothing_is_inferred_from_a_part_of_the_world() -> None:
    assert inferred(calls_of(0, 1, 2, world=4)) == {None}
    assert inferred(calls_of(0, world=128)) == {None}


def test_ranks_of_one_clock_without_a_world_size_are_one_group_if_every_call_meets() -> None:
    meeting = calls_of(0, 1, 2)
    *_, notes = groups.infer_groups(meeting, None)
    own_clocks = dataclasses.replace(
        meeting, ranks=tuple(dataclasses.replace(entry, clock=number) for number, entry in enumerate(meeting.ranks))
    )
    first = meeting.ops.rank == 0
    apart = dataclasses.replace(
        meeting,
        ops=meeting.ops.replace(start_ns=meeting.ops.start_ns - 1000 * first, end_ns=meeting.ops.end_ns - 1000 * first),
    )

    assert inferred(meeting) == {(0, 1, 2)}
    assert "taken to be the whole job" in notes[0].text
    assert inferred(own_clocks) == {None}
    assert inferred(apart) == {None}


def test_nothing_is_inferred_from_calls_that_differ_between_ranks() -> None:
    ops = [Op(COMMUNICATION, 0, 5, at, rank=at) for at in range(3)]
    ranks = [info(rank, world=3) for rank in range(3)]

    names = [Call("all_reduce"), Call("all_gather", rank=1), Call("all_reduce", rank=2)]
    assert inferred(build(ops, calls=names, ranks=ranks)) == {None}
    sizes = [Call(payload=8), Call(payload=16, rank=1), Call(payload=8, rank=2)]
    assert inferred(build(ops, calls=sizes, ranks=ranks)) == {None}
    unknown = [Call(None), Call(None, rank=1), Call(None, rank=2)]
    assert inferred(build(ops, calls=unknown, ranks=ranks)) == {None}


def test_a_named_group_is_never_replaced_by_an_inferred_one() -> None:
    calls = [Call(group=0), Call()]
    ops = [Op(COMMUNICATION, 0, 5, 0), Op(COMMUNICATION, 6, 9, 1)]
    timeline = build(ops, calls=calls, groups=[group(0, 7)], ranks=[info(0, world=2)])
    table, found, _ = groups.infer_groups(timeline, 2)

    assert [found[at].ranks for at in table.group.tolist()] == [(0, 7), (0, 1)]


def test_a_mesh_that_settles_no_axis_is_said() -> None:
    unnamed = groups.settle(calls_of(0, 1, 2, world=4), {"dp": 2, "tp": 2})
    settled = groups.settle(calls_of(0, 1, world=2), {"dp": 2})

    assert [note.code for note in unnamed.notes] == ["mesh_unused"]
    assert "mesh_unused" not in [note.code for note in settled.notes]
