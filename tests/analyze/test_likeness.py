"""Borrowing from an eager recording: by name and order, where it is certain, labeled, and never shifted by one."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timelines import COMMUNICATION, COMPUTE, Call, Host, Op, build, group
from underlap import analyze
from underlap.analyze import borrowed_rows, common_order, graph, likeness
from underlap.analyze.graph import EdgeKind, Grade
from underlap.columns import NONE
from underlap.timeline import HostKind, Timeline

# ---- common order


def orders(one: str, other: str) -> set[tuple[tuple[int, int], ...]]:
    """Every longest common order, as pairs of places, by trying all."""
    for size in range(min(len(one), len(other)), 0, -1):
        found = {
            tuple(zip(a, b, strict=True))
            for a in itertools.combinations(range(len(one)), size)
            for b in itertools.combinations(range(len(other)), size)
            if all(one[x] == other[y] for x, y in zip(a, b, strict=True))
        }
        if found:
            return found
    return set()


@settings(max_examples=150, deadline=None)
@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_a_name_has_the_places_that_some_longest_order_gives_it_if_all_orders_have_it(one: str, other: str) -> None:
    found = common_order.longest(one, other)
    every = orders(one, other)
    always = set.intersection(*({at for at, _ in order} for order in every)) if every else set()

    assert found is not None
    assert found.length == (len(next(iter(every))) if every else 0)
    for at, places in enumerate(found.places):
        assert set(places) == ({b for order in every for a, b in order if a == at} if at in always else set())


def test_a_run_of_equal_names_in_a_longer_run_may_be_early_or_late() -> None:
    found = common_order.longest("aaaa", "aaaaa")

    assert found is not None
    assert found.places == ((0, 1), (1, 2), (2, 3), (3, 4))


def test_sequences_too_long_to_compare_are_not_compared() -> None:
    assert common_order.longest("ab" * 5000, "ba" * 5000) is None
    assert common_order.longest("ab" * 5000, "ab" * 5000) is not None


# ---- borrowing

GEMMS = ("gemm_qkv", "gemm_out", "gemm_up", "gemm_down")


def eager(layers: int = 2, steps: int = 1, sizes: tuple[int, ...] = (100, 200), extra: str = "") -> Timeline:
    """Per layer four gemms on stream 7, and two all-reduces on stream 20: kernels with their own launches, groups, sizes."""
    ops, calls, host, at = [], [], [], 0
    for step in range(steps):
        host.append(Host(f"ProfilerStep#{step}", at, at + 400 * layers + 90))
        for name in extra.split():
            ops.append(Op(COMPUTE, at, at + 1, launch=at, name=name))
            at += 10
        for layer in range(layers):
            for number, name in enumerate(GEMMS):
                ops.append(Op(COMPUTE, at + 5, at + 50, launch=at, name=name))
                at += 60
                if number % 2:
                    size = sizes[(2 * layer + number // 2) % len(sizes)]
                    calls.append(Call("all_reduce", size, group=0, dtype="BFloat16", site="c10d::allreduce_"))
                    ops.append(
                        Op(COMMUNICATION, at + 1, at + 30, call=len(calls) - 1, launch=at, name="ncclDevKernel_X", lane="20")
                    )
                    at += 40
        at += 100
    return with_shapes(build(ops, calls=calls, host=host, groups=[group(0, 1, description="mesh_tp")]))


def with_shapes(timeline: Timeline) -> Timeline:
    """Each kernel of a name has the grid of its name."""
    shapes = tuple((((number + 1), 1, 1), (128, 1, 1)) for number in range(len(timeline.names)))
    return dataclasses.replace(timeline, shapes=shapes, ops=timeline.ops.replace(shape=timeline.ops.name.copy()))


def replayed(
    layers: int = 2, replays: int = 3, drop: tuple[int, ...] = (), lanes: tuple[str, str] = ("7", "33"), rename: str | None = None
) -> Timeline:
    """The same kernels from a graph: one launch per replay, no groups, sizes or shapes, other streams."""
    ops, calls, host, at = [], [], [], 0
    for _ in range(replays):
        launch, number = at, 0
        host.append(Host("cudaGraphLaunch", launch, launch + 4, kind=HostKind.LAUNCH))
        at += 10
        for _ in range(layers):
            for place, name in enumerate(GEMMS):
                if number not in drop:
                    ops.append(Op(COMPUTE, at, at + 40, launch=launch, name=rename or name, graph=5, lane=lanes[0]))
                number += 1
                at += 41
                if place % 2:
                    if number not in drop:
                        calls.append(Call(None, None, library="nccl"))
                        ops.append(
                            Op(
                                COMMUNICATION,
                                at,
                                at + 30,
                                call=len(calls) - 1,
                                launch=launch,
                                name="ncclDevKernel_X",
                                graph=5,
                                lane=lanes[1],
                            )
                        )
                    number += 1
                    at += 31
        at += 50
    return build(ops, calls=calls, host=host)


def test_every_replay_borrows_groups_sizes_and_shapes_from_the_eager_step() -> None:
    filled, account = likeness.borrow(replayed(), eager())

    assert (account.replays, account.graphs, account.refused) == (3, 1, 0)
    assert (account.kernels, account.matched, account.ambiguous) == (36, 36, 0)
    assert account.shapes == 36
    assert filled.collectives.payload_bytes.tolist() == [100, 200, 100, 200] * 3
    assert {filled.groups[at].description for at in filled.collectives.group} == {"mesh_tp"}
    assert [filled.name_of(at) for at in filled.collectives.dtype[:1]] == ["BFloat16"]
    assert account.of_call[0] == ("collective", "group", "dtype", "payload_bytes")
    assert account.fields == {"collective": 12, "group": 12, "dtype": 12, "payload_bytes": 12}


def test_where_eager_steps_disagree_about_a_size_that_size_is_not_borrowed() -> None:
    # Three sizes over two steps of four calls: the first call is 100 in one step and 200 in the other.
    sizes = (100, 200, 300)
    like = eager(steps=2, sizes=sizes)
    like = dataclasses.replace(
        like, collectives=like.collectives.replace(payload_bytes=np.array([sizes[at % 3] for at in range(8)], dtype=np.int64))
    )
    filled, account = likeness.borrow(replayed(), like)

    assert set(filled.collectives.payload_bytes.tolist()) == {NONE}
    assert "payload_bytes" not in account.fields
    assert account.fields["group"] == 12


def test_a_lost_kernel_shifts_nothing() -> None:
    # Without the third of twelve kernels, an all-reduce: three equal names may be any three of four.
    filled, account = likeness.borrow(replayed(drop=(2,)), eager())

    assert account.refused == 0
    # The gemms differ by name, and keep their places; which all-reduce is missing nobody can tell.
    assert (account.matched, account.ambiguous) == (24, 9)
    assert set(filled.collectives.payload_bytes.tolist()) == {NONE}
    # All four have one group.
    assert account.fields["group"] == 9
    assert (filled.ops.shape[filled.ops.collective < 0] >= 0).all()


def test_a_kernel_that_stands_in_the_replay_without_a_gap_may_still_be_another() -> None:
    # "norm gemm" stands in "norm norm gemm" without a gap, but its norm may as well be the first one.
    like = with_shapes(
        build([Op(COMPUTE, at * 10, at * 10 + 5, launch=at * 10, name=name) for at, name in enumerate(("norm", "norm", "gemm"))])
    )
    like = dataclasses.replace(like, shapes=(*like.shapes, ((9, 9, 9), (1, 1, 1))))
    shape = like.ops.shape.copy()
    shape[1] = len(like.shapes) - 1
    like = dataclasses.replace(like, ops=like.ops.replace(shape=shape))
    replay = build(
        [Op(COMPUTE, 10 + at * 10, 15 + at * 10, launch=0, name=name, graph=1) for at, name in enumerate(("norm", "gemm"))]
    )
    filled, account = likeness.borrow(replay, like)

    assert (account.matched, account.ambiguous, account.shapes) == (1, 1, 1)
    assert filled.ops.shape[0] == NONE


def test_an_eager_recording_of_something_else_is_refused_with_the_share_in_common() -> None:
    timeline = replayed(rename="another_gemm")
    filled, account = likeness.borrow(timeline, eager())

    assert account.refused == account.replays == 3
    assert account.reasons == ("only 33% of the 12 kernels of a replay stand in the same order there, 90% are needed",)
    assert filled.collectives.group.tolist() == timeline.collectives.group.tolist()
    assert "refused" in borrowed_rows.note(account).text


def test_kernels_that_only_the_eager_step_has_do_not_disturb() -> None:
    _, account = likeness.borrow(replayed(), eager(extra="copy_in quantize"))

    assert account.matched == account.kernels == 36


def test_what_this_trace_says_is_never_overwritten() -> None:
    timeline = replayed()
    told = timeline.collectives.replace(payload_bytes=np.full(12, 7, dtype=np.int64))
    filled, account = likeness.borrow(dataclasses.replace(timeline, collectives=told), eager())

    assert filled.collectives.payload_bytes.tolist() == [7] * 12
    assert "payload_bytes" not in account.fields


def test_a_trace_without_graphs_borrows_nothing_and_says_so() -> None:
    timeline = eager()
    filled, account = likeness.borrow(timeline, eager())

    assert filled.collectives.payload_bytes.tolist() == timeline.collectives.payload_bytes.tolist()
    assert borrowed_rows.note(account).code == "like_unused"


def test_another_recording_without_eager_kernels_of_the_rank_is_refused() -> None:
    _, account = likeness.borrow(replayed(), replayed())

    assert account.reasons == ("it has no kernels of rank 0 outside graphs",)


def test_the_order_of_an_eager_stream_becomes_borrowed_edges_and_nothing_surer() -> None:
    filled, account = likeness.borrow(replayed(replays=1), eager())
    found = graph.build(filled).edges
    borrowed = found.kind == EdgeKind.BORROWED

    # Seven pairs of neighbors among eight gemms, three among four all-reduces.
    assert account.order == 10
    assert borrowed.sum() == 10
    assert set(found.grade[borrowed].tolist()) == {Grade.BORROWED}


def test_an_order_that_this_trace_contradicts_is_left_out_and_counted() -> None:
    timeline = replayed(replays=1)
    ends = timeline.ops.end_ns.copy()
    ends[0] += 30  # the first gemm now runs into the second
    _, account = likeness.borrow(dataclasses.replace(timeline, ops=timeline.ops.replace(end_ns=ends)), eager())

    assert (account.order, account.contradicted) == (9, 1)


def test_the_report_labels_what_is_borrowed_and_counts_it() -> None:
    found = analyze(replayed(), like=eager())

    assert found.borrowed is not None
    assert (found.borrowed.sources, found.borrowed.matched) == (["rank0.json"], 36)
    assert {row.borrowed for row in found.instances} == {"collective, group, dtype, payload_bytes"}
    assert [(row.axis, row.collective, row.borrowed[-1]) for row in found.families] == [("tp", "all_reduce", "payload_bytes")]
    assert found.notes[0].code == "borrowed"
    assert "not measured here" in found.notes[0].text


def test_without_another_recording_nothing_is_labeled() -> None:
    found = analyze(replayed())

    assert found.borrowed is None
    assert {row.borrowed for row in found.instances} == {None}


# ---- one launch serves all kernels of a graph


@pytest.mark.parametrize("gap", [1, 40, 400])
def test_inside_a_graph_no_kernel_is_late_because_of_its_host(gap: int) -> None:
    # The kernel behind the collective starts late, `gap` us after it, long after the one launch of the graph.
    us = 1000
    ops = [
        Op(COMPUTE, 10 * us, 60 * us, launch=0, name="gemm_a", graph=1),
        Op(COMMUNICATION, 60 * us, 160 * us, call=0, launch=0, name="ncclDevKernel_X", graph=1, lane="20"),
        Op(COMPUTE, (160 + gap) * us, (260 + gap) * us, launch=0, name="gemm_b", graph=1),
    ]
    host = [Host("cudaGraphLaunch", 0, 4 * us, kind=HostKind.LAUNCH), Host("busy", 5 * us, 900 * us, kind=HostKind.OPERATOR)]
    found = analyze(build(ops, calls=[Call("all_reduce")], host=host))

    assert sum(row.exposed_ns for row in found.causes) == 100 * us
    assert not {"late_launch", "throttled"} & {row.cause for row in found.causes}


def test_before_a_graph_the_host_can_be_late_for_all_of_it() -> None:
    us = 1000
    ops = [
        Op(COMMUNICATION, 10 * us, 160 * us, call=0, launch=0, name="ncclDevKernel_X", lane="20"),
        Op(COMPUTE, 170 * us, 260 * us, launch=150 * us, name="gemm_a", graph=1),
        Op(COMPUTE, 261 * us, 300 * us, launch=150 * us, name="gemm_b", graph=1),
    ]
    host = [Host("cudaGraphLaunch", 150 * us, 154 * us, kind=HostKind.LAUNCH)]
    found = analyze(build(ops, calls=[Call("all_reduce")], host=host))

    assert found.causes[0].cause == "late_launch"


def test_the_command_line_takes_a_folder_to_borrow_from(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tests import traces
    from underlap.cli import main

    run = tmp_path / "run"
    like = tmp_path / "eager"
    names = ("gemm_a", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "gemm_b")
    eager_rows = [row for at, name in enumerate(names) for row in (traces.launch(at), traces.kernel(at, name=name))]
    eager_rows[3]["args"] |= {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float", "Group size": 2}
    one = traces.launch(0, name="cudaGraphLaunch")
    kernels = [traces.kernel(at, name=name, args={"correlation": 0, "graph id": 3}) for at, name in enumerate(names)]
    traces.write(run / "rank0.json", traces.text(one, *kernels))
    traces.write(like / "rank0.json", traces.text(*eager_rows))
    plain = CliRunner().invoke(main, ["analyze", str(run), "--no-progress", "--json", "-"])
    with_like = CliRunner().invoke(main, ["analyze", str(run), "--like", str(like), "--no-progress", "--json", "-"])

    assert '"payload_bytes": null' in plain.output
    instances = json.loads(with_like.output)["instances"]
    assert [row["borrowed"] for row in instances] == ["dtype, payload_bytes"]
    assert [row["payload_bytes"] for row in instances] == [256]
