"""Layouts: products, divisibility with both numbers, and which ranks form the groups of each axis."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inputs import drawn
from tests.inputs.drawn import refusal
from underlap import inputs
from underlap.errors import OptionError
from underlap.layout import DENSE_AXES, EXPERT_AXES, Layout, Placement, parse_layout, split_text


def members(text: str, *dimensions: str) -> list[list[int]]:
    found: list[list[int]] = parse_layout(text).groups(*dimensions).tolist()
    return found


def test_one_rank_is_alone_in_every_group() -> None:
    assert [members("", axis) for axis in (*DENSE_AXES, *EXPERT_AXES)] == [[[0]]] * 8


def test_tensor_parallel_ranks_are_neighbors_and_replicas_are_far_apart() -> None:
    assert members("tp=2,pp=2,dp=2", "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert members("tp=2,pp=2,dp=2", "pp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert members("tp=2,pp=2,dp=2", "dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_megatron_order_gives_the_groups_of_its_documentation() -> None:
    # Megatron-LM, parallel_state.initialize_model_parallel: 16 GPUs, tp 2, pp 4.
    text = "tp=2,pp=4,dp=2,order=tp-dp-pp"

    assert members(text, "tp") == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert members(text, "dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert members(text, "pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_groups_over_several_dimensions_run_through_the_first_one_fastest() -> None:
    assert members("cp=2,dp=3", "cp", "dp") == [[0, 1, 2, 3, 4, 5]]
    assert members("cp=2,dp=3", "dp", "cp") == [[0, 2, 4, 1, 3, 5]]


def test_experts_lie_together_inside_of_a_stage() -> None:
    text = "pp=2,dp=4,ep=4"

    assert parse_layout(text).axis_order == ("tp", "cp", "fsdp", "dp", "pp")
    assert members(text, "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert members("tp=2,dp=4,ep=4,etp=1", "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert members("tp=2,dp=4,ep=4,etp=1", "edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert members("tp=2,dp=4,ep=4", "ep") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_experts_within_fsdp_leave_replicas_outermost() -> None:
    assert parse_layout("pp=2,dp=2,fsdp=4,ep=4").axis_order == ("tp", "cp", "fsdp", "pp", "dp")
    assert members("pp=2,dp=2,fsdp=2,ep=2", "ep") == [[0, 1], [2, 3], [4, 5], [6, 7]]


@given(drawn.layouts())
def test_the_groups_of_every_axis_hold_each_rank_once(layout: Layout) -> None:
    for axis in (*DENSE_AXES, *EXPERT_AXES):
        groups = layout.groups(axis)
        assert groups.shape == (layout.world // layout.degree(axis), layout.degree(axis))
        assert sorted(groups.ravel().tolist()) == list(range(layout.world))


@given(drawn.layouts())
def test_members_of_a_group_differ_in_the_coordinate_of_its_axis_alone(layout: Layout) -> None:
    for mesh in (DENSE_AXES, (*EXPERT_AXES, "pp")):
        for axis in mesh:
            for group in layout.groups(axis)[:2].tolist():
                coordinates = [layout.coordinates(rank) for rank in group]
                assert [found[axis] for found in coordinates] == list(range(layout.degree(axis)))
                rest = [{other: found[other] for other in mesh if other != axis} for found in coordinates]
                assert all(one == rest[0] for one in rest)


@given(drawn.layouts())
def test_both_meshes_have_the_same_ranks(layout: Layout) -> None:
    assert layout.ep * layout.expert_tensor * layout.edp == layout.dp * layout.fsdp * layout.cp * layout.tp


@given(drawn.layouts(), st.integers(1, 16))
def test_a_placement_counts_what_the_groups_show(layout: Layout, domain: int) -> None:
    placed = layout.placement(domain, "cp", "dp")
    counts = [np.unique(group // domain, return_counts=True)[1] for group in layout.groups("cp", "dp")]

    assert placed.ranks_per_domain == max(int(count.max()) for count in counts)
    assert placed.domains == max(len(count) for count in counts)
    assert placed.uniform == (len({tuple(count.tolist()) for count in counts}) == 1 and len(set(counts[0].tolist())) == 1)


def test_the_scale_up_domain_holds_the_innermost_axes() -> None:
    layout = parse_layout("tp=8,pp=16,dp=64")  # Llama 3 405B on 8192 GPUs
    spans = {axis: placed.span for axis, placed in layout.placements(8).items()}

    assert spans == {"tp": (8, 1), "pp": (1, 16), "dp": (1, 64)}
    assert layout.placement(8, "tp") == Placement(
        axis="tp", dimensions=("tp",), size=8, ranks_per_domain=8, domains=1, uniform=True
    )


def test_groups_that_straddle_domains_are_not_uniform() -> None:
    placed = parse_layout("tp=6,dp=4").placement(8, "tp")

    assert (placed.size, placed.ranks_per_domain, placed.domains, placed.uniform) == (6, 6, 2, False)


def test_the_experts_of_deepseek_v3_span_eight_nodes() -> None:
    layout = parse_layout("pp=16,dp=128,ep=64,zero=1,split=3-4x14-2")

    layout.check_model(inputs.model("deepseek-v3"))
    layout.check_gpus(2048)
    assert layout.placement(8, "ep").span == (8, 8)
    assert layout.edp == 2


def test_states_are_sharded_and_replicated_over_the_dimensions_that_hold_them() -> None:
    def dimensions(text: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        layout = parse_layout(text)
        return layout.zero_stage, layout.shard_dimensions, layout.replica_dimensions

    assert dimensions("dp=4") == (0, (), ("dp",))
    assert dimensions("dp=4,cp=2") == (0, (), ("cp", "dp"))
    assert dimensions("dp=4,cp=2,zero=1") == (1, ("cp", "dp"), ())
    assert dimensions("fsdp=4") == (3, ("fsdp",), ())
    assert dimensions("fsdp=4,dp=2,cp=2,zero=2") == (2, ("cp", "fsdp"), ("dp",))


@pytest.mark.parametrize(
    ("text", "preset", "message"),
    [
        ("tp=3", "llama3-8b", "layout: tp=3 does not divide heads=32 of llama3-8b: use one of 1, 2, 4, 8, 16, 32"),
        ("tp=16", "llama3-8b", "layout: tp=16 does not divide kv_heads=8 of llama3-8b: use one of 1, 2, 4, 8"),
        ("tp=8", "qwen3-30b-a3b", "layout: tp=8 does not divide kv_heads=4 of qwen3-30b-a3b"),
        ("cp=16:ulysses", "llama3-8b", "layout: cp=16 (ulysses) does not divide kv_heads per tp rank=8 of llama3-8b"),
        ("tp=4,cp=4:ulysses", "llama3-8b", "layout: cp=4 (ulysses) does not divide kv_heads per tp rank=2 of llama3-8b"),
        ("dp=8,ep=8", "llama3-8b", "layout: ep=8, but llama3-8b has no experts: leave ep out"),
        ("dp=16,ep=16", "mixtral-8x7b", "layout: ep=16 does not divide experts=8 of mixtral-8x7b: use one of 1, 2, 4, 8"),
        ("pp=64", "llama3-8b", "layout: pp=64 make 64 chunks, but llama3-8b has layers=32: lower pp"),
        (
            "pp=16",
            "llama3-405b",
            "layout: pp=16 make 16 chunks, which do not divide layers=126 of llama3-405b: say how many each has,",
        ),
        ("pp=2,split=3-4", "llama3-8b", "layout: split adds up to 7 layers, but llama3-8b has layers=32: expected equal numbers"),
    ],
)
def test_a_degree_that_does_not_divide_names_both_numbers(text: str, preset: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_layout(text).check_model(inputs.model(preset))

    assert str(caught.value).startswith(message)


def test_the_split_that_an_error_offers_is_taken_and_lightens_the_ends() -> None:
    model = inputs.model("llama3-405b")
    with pytest.raises(OptionError) as caught:
        parse_layout("pp=16").check_model(model)
    offered = str(caught.value).rpartition("such as ")[2]

    assert offered == "split=7-8x14-7"  # as Llama 3 405B was trained: one layer less on the first and the last stage
    assert parse_layout(f"pp=16,{offered}").chunk_layers(model) == (7, *[8] * 14, 7)


@given(st.integers(1, 40), st.integers(1, 8))
def test_every_offered_split_fits_the_model(layers: int, pp: int) -> None:
    model = msgspec.structs.replace(inputs.model("tiny-dense"), layers=layers)
    message = refusal(Layout(pp=pp).chunk_layers, model)
    if pp > layers:
        assert message is not None
        assert message.endswith("lower pp")
        return
    offered = f",split={message.rpartition('split=')[2]}" if message else ""
    found = parse_layout(f"pp={pp}{offered}").chunk_layers(model)
    assert (sum(found), len(found)) == (layers, pp)
    assert max(found) - min(found) <= 1


def test_a_vocabulary_that_needs_padding_says_to_what() -> None:
    model = msgspec.structs.replace(inputs.model("tiny-dense"), vocab=50257)

    with pytest.raises(OptionError, match="tp=4 does not divide vocab=50257 of tiny-dense: pad the vocabulary to 50260"):
        Layout(tp=4).check_model(model)


def test_ranks_and_gpus_must_be_equal_and_the_error_shows_the_product() -> None:
    parse_layout("tp=8,pp=2").check_gpus(16)

    with pytest.raises(
        OptionError, match=r"layout: pp=2 \* dp=1 \* fsdp=1 \* cp=1 \* tp=8 makes 16 ranks, but there are 24 GPUs"
    ):
        parse_layout("tp=8,pp=2").check_gpus(24)


def test_the_layouts_of_published_runs_fit_their_models() -> None:
    for preset, text, gpus in (
        ("gpt3-22b", "tp=8,sp", 8),
        ("gpt3-175b", "tp=8,pp=8,schedule=interleaved:3,sp", 64),
        ("gpt3-530b", "tp=8,pp=35,schedule=interleaved:3,sp", 280),
        ("gpt3-1t", "tp=8,pp=64,sp", 512),
        ("llama3-405b", "tp=8,cp=16,pp=16,dp=8,sp,split=7-8x14-7", 16384),
        ("mixtral-8x7b", "pp=4,dp=16,ep=8,schedule=interleaved:8", 64),
        ("mixtral-8x22b", "tp=4,pp=8,dp=4,ep=2,schedule=interleaved:7", 128),
    ):
        layout = parse_layout(text)
        layout.check_gpus(gpus)
        layout.check_model(inputs.model(preset))


def test_runs_of_equal_chunks_are_written_short() -> None:
    assert split_text((7, *[8] * 14, 7)) == "7-8x14-7"
    assert split_text((4,)) == "4"


def test_groups_of_unknown_dimensions_are_refused() -> None:
    with pytest.raises(OptionError, match="no group over ep x dp: expected dimensions among etp, ep, edp, pp"):
        Layout().groups("ep", "dp")
    with pytest.raises(OptionError, match="rank 1: expected 0 to 0"):
        Layout().coordinates(1)


def test_sixteen_thousand_ranks_are_placed_quickly() -> None:
    layout = parse_layout("tp=8,cp=16,pp=16,dp=8")

    assert layout.placement(8, "cp", "dp").span == (1, 128)
