"""What was made quick gives the same as what is plain, on drawn graphs and on real ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze import plainly
from tests.analyze.drawn import US, Op, timeline, waits_by_order, whole
from tests.test_replay import plans
from underlap import replay
from underlap.analyze import critical_path, graph, rebuilt, steps
from underlap.analyze.rebuilt import Changes
from underlap.event_kernel import plain
from underlap.flows.read import read
from underlap.replay import Network, network
from underlap.timeline import Timeline

TRACES = Path(__file__).parents[3] / "shared" / "traces"
CHANGES = (
    Changes(),
    Changes(waiting=False),
    Changes(host=0.0),
    Changes(serialized=False),
    Changes(transfer=0.0),
    Changes(possible=False, inferred=False),
)


@st.composite
def crowded(draw: st.DrawFn) -> Timeline:
    """Up to three ranks with up to three lanes, launches before and after starts, collectives that meet by order."""
    ops, calls = [], []
    for rank in range(draw(st.integers(1, 3))):
        for lane in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, 20))
            for _ in range(draw(st.integers(0, 6))):
                begin = at + draw(st.integers(0, 30))
                at = begin + draw(st.integers(0, 40))
                launch = draw(st.none() | st.integers(0, begin + 3))
                kind = draw(st.sampled_from([0, 1, 3, 4]))
                ops.append(Op(lane, begin, at, launch, op_class=kind, rank=rank, call=len(calls) if kind == 1 else -1))
                calls += [rank] if kind == 1 else []
    return timeline(*ops, calls=tuple(calls))


def walked(
    drawn: Timeline, built: graph.Graph, window: dict[tuple[int, int], np.ndarray]
) -> tuple[list[list[int]], list[list[int]]]:
    found = critical_path.find(drawn, built, window)
    if found is None:
        return [], []
    rows = found.segments
    columns = (rows.start_ns, rows.end_ns, rows.part, rows.node, rows.edge)
    key = max(
        window, key=lambda key: (int(window[key][-1, 1]) + critical_path._shifts(drawn, built).get(key[0], 0), -key[0], -key[1])
    )
    return np.column_stack(columns)[::-1].tolist(), plainly.walk(drawn, built, key, found.start_ns, found.end_ns)


@settings(max_examples=200, deadline=None)
@given(crowded(), st.tuples(*[st.integers(-50, 50)] * 3))
def test_the_path_is_the_one_that_is_found_step_by_step(drawn: Timeline, offsets: tuple[int, int, int]) -> None:
    built = graph.build(drawn, waits_by_order(drawn, {rank: moved * US for rank, moved in enumerate(offsets)}))
    vectorized, stepwise = walked(drawn, built, whole(drawn))

    assert vectorized == stepwise
    assert built.late_node.tolist() == plainly.late_peers(built)


@pytest.mark.parametrize("name", ["ddp_a100", "recsys_a100", "ddp_mi300x", "dlrm_v100_8ranks"])
def test_the_path_of_a_real_trace_is_the_one_that_is_found_step_by_step(name: str) -> None:
    found = read(TRACES / name)
    window = steps.select(found, steps.find(found), "whole", None).stretches
    vectorized, stepwise = walked(found, graph.build(found), window)

    assert len(vectorized) > 100
    assert vectorized == stepwise


def alike(plan: Network) -> bool:
    """Whether one pass over the rows was possible; its times are the event kernel's."""
    quick = replay._in_row_order(plan)
    if quick is None:
        return False
    kernel = replay.run(plan, None, plain)
    assert quick.start_ns.tolist() == kernel.start_ns.tolist()
    assert quick.begin_ns.tolist() == kernel.begin_ns.tolist()
    assert quick.end_ns.tolist() == kernel.end_ns.tolist()
    return True


@settings(max_examples=200, deadline=None)
@given(plans())
def test_one_pass_over_the_rows_gives_the_times_of_the_event_kernel(ranks: list[Network]) -> None:
    (plan,) = ranks

    assert alike(plan) or (plan.rendezvous >= 0).any()


@settings(max_examples=100, deadline=None)
@given(crowded(), st.sampled_from(CHANGES))
def test_a_window_replays_alike_in_one_pass_and_by_events(drawn: Timeline, changes: Changes) -> None:
    if len(drawn.ops):
        built = graph.build(drawn, waits_by_order(drawn))
        alike(rebuilt.network(drawn, built, rebuilt.window(drawn, built, whole(drawn)), changes))


@pytest.mark.parametrize("name", ["ddp_a100", "recsys_a100", "ddp_mi300x", "vllm_tp8_b200"])
def test_windows_of_real_traces_need_one_pass_only(name: str) -> None:
    found = read(TRACES / name)
    built = graph.build(found)
    window = steps.select(found, steps.find(found), "whole", None).stretches

    for changes in CHANGES:
        assert alike(rebuilt.network(found, built, rebuilt.window(found, built, window), changes))


def test_a_row_that_waits_for_a_later_one_is_left_to_the_event_kernel() -> None:
    backward = network(np.array([-1, -1], dtype=np.int32), np.array([3, 4]), edges=(np.array([1]), np.array([0]), np.array([0])))

    assert replay._in_row_order(backward) is None
    assert replay.replay(backward).end_ns.tolist() == [7, 4]


def test_rows_that_meet_and_wait_for_each_other_are_left_to_the_event_kernel() -> None:
    # The second waits for the first, and the two begin jointly: a circle, which the event kernel names.
    plan = network(
        np.array([-1, -1], dtype=np.int32),
        np.array([3, 4]),
        rendezvous=np.array([0, 0], dtype=np.int32),
        edges=(np.array([0]), np.array([1]), np.array([0])),
    )

    assert replay._in_row_order(plan) is None
