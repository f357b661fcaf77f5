"""The critical path: it partitions the window, and goes where a person reading the trace would go."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.drawn import COMMUNICATION, COPY, US, Op, Row, timeline, waits_by_order, whole
from underlap.analyze import accounting, critical_path, graph, steps
from underlap.analyze.critical_path import CriticalPath, Part
from underlap.flows.read import read
from underlap.timeline import Timeline

TRACES = Path(__file__).parents[3] / "shared" / "traces"
MS = 1_000_000


def path_of(drawn: Timeline, waits: graph.Waits = graph.NO_WAITS) -> CriticalPath:
    found = critical_path.find(drawn, graph.build(drawn, waits), whole(drawn))
    assert found is not None
    return found


def parts(path: CriticalPath) -> list[tuple[str, int, float, float]]:
    """(part, rank, start, end) in us, neighbors of one kind joined."""
    result: list[tuple[str, int, float, float]] = []
    rows = path.segments
    for at in range(len(rows)):
        entry = (Part(rows.part[at]).name, int(rows.rank[at]), rows.start_ns[at] / US, rows.end_ns[at] / US)
        if result and result[-1][:2] == entry[:2]:
            result[-1] = (*entry[:2], result[-1][2], entry[3])
        else:
            result.append(entry)
    return result


def test_an_empty_window_has_no_path() -> None:
    drawn = timeline()

    assert critical_path.find(drawn, graph.build(drawn), {}) is None


def test_one_operation_is_its_own_path() -> None:
    assert parts(path_of(timeline(Op(0, 5, 9)))) == [("COMPUTE", 0, 5, 9)]


def test_a_slow_host_is_the_path_and_kernels_are_not() -> None:
    drawn = timeline(*(Op(0, 100 * at + 5, 100 * at + 15, launch=100 * at) for at in range(10)))
    path = path_of(drawn)

    assert path.composition() == {
        **dict.fromkeys(Part, 0),
        Part.HOST: 895 * US,
        Part.LATENCY: 5 * US,
        Part.COMPUTE: 10 * US,
    }


def test_a_full_queue_is_the_path_and_the_host_is_not() -> None:
    drawn = timeline(*(Op(0, 101 * at, 101 * at + 100, launch=at - 99) for at in range(10)))

    assert path_of(drawn).composition()[Part.COMPUTE] == 1000 * US
    assert path_of(drawn).composition()[Part.HOST] == 0


def test_out_of_a_blocking_call_the_path_goes_to_what_it_waited_for() -> None:
    drawn = timeline(Op(0, 10, 500, launch=0), Op(0, 520, 530, launch=515), rows=(Row("cudaDeviceSynchronize", 5, 502),))

    assert [entry[0] for entry in parts(path_of(drawn))] == ["COMPUTE", "LATENCY", "HOST", "LATENCY", "COMPUTE"]
    assert parts(path_of(drawn))[0] == ("COMPUTE", 0, 10, 500)


def test_out_of_a_collective_the_path_goes_to_the_late_peer() -> None:
    drawn = timeline(
        Op(0, 0, 10),
        Op(0, 10, 100, op_class=COMMUNICATION, call=0),
        Op(0, 100, 130),
        Op(0, 0, 70, rank=1),
        Op(0, 70, 100, op_class=COMMUNICATION, rank=1, call=1),
        Op(0, 100, 110, rank=1),
        calls=(0, 1),
    )
    found = parts(path_of(drawn, waits_by_order(drawn)))

    assert found == [("COMPUTE", 1, 0, 70), ("TRANSFER", 0, 70, 100), ("COMPUTE", 0, 100, 130)]


def test_waiting_for_a_peer_that_is_not_in_the_input_stays_waiting() -> None:
    drawn = timeline(Op(0, 0, 10), Op(0, 10, 100, op_class=COMMUNICATION, call=0), calls=(0,))
    waits = graph.Waits(instance=np.array([0]), wait_ns=np.array([60 * US]), offset_ns={})

    assert parts(path_of(drawn, waits)) == [("COMPUTE", 0, 0, 10), ("WAITING", 0, 10, 70), ("TRANSFER", 0, 70, 100)]


def test_ranks_whose_clocks_differ_meet_on_the_common_clock() -> None:
    drawn = timeline(
        Op(0, 0, 10),
        Op(0, 10, 100, op_class=COMMUNICATION, call=0),
        Op(0, 1000, 1070, rank=1),
        Op(0, 1070, 1100, op_class=COMMUNICATION, rank=1, call=1),
        calls=(0, 1),
    )
    found = critical_path.find(drawn, graph.build(drawn, waits_by_order(drawn, {1: -1000 * US})), whole(drawn))

    assert found is not None
    assert found.composition()[Part.COMPUTE] == 70 * US
    assert found.composition()[Part.TRANSFER] == 30 * US


def test_a_window_that_ends_at_the_next_steps_first_kernel_is_followed_from_there() -> None:
    drawn = timeline(Op(0, 0, 10, launch=-5), Op(0, 100, 110, launch=95), Op(0, 200, 210, launch=195))
    window = {(0, 0): np.array([[0, 200 * US]], dtype=np.int64)}
    path = critical_path.find(drawn, graph.build(drawn), window)

    assert path is not None
    assert path.composition()[Part.HOST] == 195 * US
    assert critical_path.step_shares(path, {"a": (0, 100 * US), "b": (100 * US, 200 * US)})["b"][Part.HOST] == 95 * US


def test_each_segment_names_the_row_that_it_comes_from() -> None:
    path = path_of(timeline(Op(0, 5, 9), Op(0, 9, 20, op_class=COPY)))

    assert path.segments.source_row.tolist() == [1000, 1001]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_segments_partition_the_window_of_the_final_rank_exactly(data: st.DataObject) -> None:
    ops, calls = [], []
    for rank in range(data.draw(st.integers(1, 3))):
        for lane in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, 20))
            for _ in range(data.draw(st.integers(0, 6))):
                begin = at + data.draw(st.integers(0, 30))
                at = begin + data.draw(st.integers(0, 40))
                launch = data.draw(st.none() | st.integers(0, begin + 3))
                kind = data.draw(st.sampled_from([0, 1, 3, 4]))
                ops.append(Op(lane, begin, at, launch, op_class=kind, rank=rank, call=len(calls) if kind == 1 else -1))
                calls += [rank] if kind == 1 else []
    if not ops:
        return
    drawn = timeline(*ops, calls=tuple(calls))
    offsets = {rank: data.draw(st.integers(-50, 50)) * US for rank in range(3)}
    path = critical_path.find(drawn, graph.build(drawn, waits_by_order(drawn, offsets)), whole(drawn))

    assert path is not None
    rows = path.segments
    assert sum(path.composition().values()) == path.end_ns - path.start_ns
    assert (rows.end_ns > rows.start_ns).all()
    assert (rows.start_ns[1:] == rows.end_ns[:-1]).all()
    middle = (path.start_ns + path.end_ns) // 2
    shares = critical_path.step_shares(path, {"a": (path.start_ns, middle), "b": (middle, path.end_ns)})
    assert sum(shares["a"].values()) == middle - path.start_ns
    assert sum(shares["b"].values()) == path.end_ns - middle


# ---- real traces


def whole_of(name: str, waits: bool = False) -> tuple[Timeline, graph.Graph, CriticalPath, int]:
    read_in = read(TRACES / name)
    built = graph.build(read_in, waits_by_order(read_in) if waits else graph.NO_WAITS)
    window = steps.select(read_in, steps.find(read_in), "whole", None).stretches
    path = critical_path.find(read_in, built, window)
    assert path is not None
    assert sum(path.composition().values()) == path.end_ns - path.start_ns
    exposed = {}
    for rank, device in steps.devices(read_in):
        own = read_in.ops.take(np.flatnonzero((read_in.ops.rank == rank) & (read_in.ops.device == device)))
        exposed[rank, device] = accounting.device_sets(own).exposed
    return read_in, built, path, critical_path.exposed_on_path(read_in, built, path, exposed)


@pytest.mark.parametrize(("name", "least"), [("vllm_tp8_b200", 0.99), ("ddp_a100", 0.96)])
def test_the_host_is_the_path_where_a_person_found_the_host_to_be_the_limit(name: str, least: float) -> None:
    *_, path, exposed = whole_of(name)

    assert path.composition()[Part.HOST] > least * (path.end_ns - path.start_ns)
    assert exposed < 0.04 * MS


def test_the_exposed_time_on_the_path_is_the_dependent_part_of_it_where_a_person_found_one() -> None:
    *_, recsys = whole_of("recsys_a100")
    *_, mi300x = whole_of("ddp_mi300x")

    assert recsys / MS == pytest.approx(57.3, rel=0.1)
    assert mi300x / MS == pytest.approx(52.6, rel=0.1)


def test_a_collective_on_an_amd_device_leads_to_the_copy_that_starts_15_us_later() -> None:
    read_in, built, path, _ = whole_of("ddp_mi300x")
    rows = path.segments
    led = rows.edge[rows.edge >= 0]
    across = led[built.edges.kind[led] == graph.EdgeKind.ACROSS]
    classes = read_in.ops.op_class
    gaps = (built.start_ns[built.edges.target] - built.end_ns[built.edges.source])[across]
    after = classes[built.edges.source[across]] == COMMUNICATION

    assert (classes[built.edges.target[across[after]]] == COPY).any()
    assert (gaps[after] > 10 * US).any()


def test_the_path_of_eight_ranks_goes_through_the_late_one_and_waits_for_nobody() -> None:
    *_, alone, _ = whole_of("dlrm_v100_8ranks")
    *_, met, _ = whole_of("dlrm_v100_8ranks", waits=True)

    # Without meetings the waiting looks like transfer; with them it is the host of the ranks that arrived last.
    assert alone.composition()[Part.TRANSFER] > 5 * MS
    assert met.composition()[Part.TRANSFER] < 1 * MS
    assert met.composition()[Part.WAITING] == 0
    assert 7 in np.unique(met.segments.rank)


@pytest.mark.parametrize(
    ("name", "transfer", "host"), [("fsdp2", 0.5, 0.1), ("tp_sp_4r", 0.5, 0.1), ("pp_1f1b", 0.25, 0.3), ("moe_ep", 0.6, 0.05)]
)
def test_a_cpu_rank_waits_for_gloo_spans_and_is_not_taken_for_busy_meanwhile(name: str, transfer: float, host: float) -> None:
    read_in = read(TRACES / "gloo_axes" / name)
    path = critical_path.find(read_in, graph.build(read_in), steps.select(read_in, steps.find(read_in), "steps", None).stretches)
    assert path is not None
    parts_of = path.composition()
    total = path.end_ns - path.start_ns

    assert sum(parts_of.values()) == total
    assert parts_of[Part.TRANSFER] > transfer * total
    assert parts_of[Part.HOST] < host * total
    assert parts_of[Part.LATENCY] + parts_of[Part.UNEXPLAINED] < 0.05 * total
