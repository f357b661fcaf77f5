"""The dependence graph: each kind of edge where it belongs, none where nothing is known."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from tests.analyze.drawn import COMMUNICATION, COPY, US, Op, Row, timeline, waits_by_order
from underlap.analyze import graph
from underlap.analyze.graph import ENTER, LAUNCH, LEAVE, EdgeKind, Grade, Graph
from underlap.flows.read import read
from underlap.timeline import HostKind

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def edges(found: Graph, kind: EdgeKind) -> list[tuple[int, int, str]]:
    table = found.edges
    rows = np.flatnonzero(table.kind == kind).tolist()
    return [(int(table.source[at]), int(table.target[at]), Grade(table.grade[at]).name) for at in rows]


def test_a_timeline_without_operations_has_an_empty_graph() -> None:
    assert len(graph.build(timeline())) == 0


def test_one_operation_without_a_launch_waits_for_nothing() -> None:
    found = graph.build(timeline(Op(0, 5, 9)))

    assert len(found) == 1
    assert found.binding.tolist() == [-1]
    assert len(found.edges) == 0


def test_a_lane_orders_its_operations_and_a_launch_starts_its_own() -> None:
    found = graph.build(timeline(Op(0, 5, 9, launch=0), Op(0, 10, 14, launch=2)))

    assert edges(found, EdgeKind.LANE) == [(0, 1, "ORDER")]
    assert edges(found, EdgeKind.LAUNCH) == [(2, 0, "SYNC"), (3, 1, "SYNC")]
    assert edges(found, EdgeKind.BUSY) == [(2, 3, "ORDER")]
    assert found.kind.tolist()[2:] == [LAUNCH, LAUNCH]


def test_no_edge_leads_backwards_in_time_even_if_clocks_say_that_a_kernel_began_before_its_launch() -> None:
    found = graph.build(timeline(Op(0, 5, 9, launch=6)))

    assert edges(found, EdgeKind.LAUNCH) == []


@pytest.mark.parametrize("gap", [1, 3, 7, 15, 40])
def test_a_start_that_follows_another_lane_is_inferred_at_whatever_gap_the_device_has(gap: int) -> None:
    ops = []
    for at in range(6):
        begin = at * 1000
        ops += [
            Op(0, begin, begin + 300, launch=0),
            Op(1, begin + 300 + gap, begin + 900 - gap, launch=0, op_class=COMMUNICATION),
        ]
    found = graph.build(timeline(*ops))
    inferred = edges(found, EdgeKind.ACROSS)

    assert {(2 * at, 2 * at + 1, "TIMING") for at in range(6)} <= set(inferred)
    assert (found.delay_ns[1::2][:6] <= 0).all()


def test_coincidences_at_any_distance_are_not_taken_for_dependences() -> None:
    distances = [500, 900, 1700, 3100, 5900, 11000]
    ops, begin = [], 0
    for distance in distances:
        ops += [Op(0, begin, begin + 100, launch=0), Op(1, begin + 100 + distance, begin + 200 + distance, launch=0)]
        begin += 30000
    found = graph.build(timeline(*ops))

    assert edges(found, EdgeKind.ACROSS) == []


def test_a_recorded_event_holds_the_next_operation_of_the_waiting_lane() -> None:
    drawn = timeline(
        Op(0, 10, 50, launch=0),
        Op(1, 55, 70, launch=6),
        Op(0, 51, 53, launch=4),
        events=((1, 3, 0, 2),),
    )
    found = graph.build(drawn)

    # Recorded at 2, so what was launched at 4 does not count.
    assert edges(found, EdgeKind.EVENT) == [(0, 1, "SYNC")]


def test_a_device_synchronize_waits_for_what_was_launched_before_and_ends_last() -> None:
    drawn = timeline(
        Op(0, 10, 50, launch=0), Op(1, 12, 90, launch=1), Op(0, 120, 130, launch=95), rows=(Row("cudaDeviceSynchronize", 20, 93),)
    )
    found = graph.build(drawn)
    (edge,) = edges(found, EdgeKind.HOST_SYNC)

    assert (edge[0], edge[2]) == (1, "SYNC")
    assert found.kind[edge[1]] == LEAVE
    assert (found.kind == ENTER).sum() == 1


def test_a_stream_synchronize_without_ids_waits_by_timing_where_there_are_several_lanes() -> None:
    drawn = timeline(Op(0, 10, 50, launch=0), Op(1, 12, 30, launch=1), rows=(Row("cudaStreamSynchronize", 20, 52),))

    assert [grade for *_, grade in edges(graph.build(drawn), EdgeKind.HOST_SYNC)] == ["TIMING"]


def test_a_synchronize_that_found_nothing_to_wait_for_is_only_the_hosts_time() -> None:
    drawn = timeline(Op(0, 10, 50, launch=0), rows=(Row("cudaDeviceSynchronize", 60, 62),))
    found = graph.build(drawn)

    assert edges(found, EdgeKind.HOST_SYNC) == []
    assert found.edges.lag_ns[found.edges.kind == EdgeKind.BUSY].tolist() == [60 * US, 2 * US]


def test_a_copy_whose_call_returns_after_it_was_waited_for_by_the_host() -> None:
    drawn = timeline(Op(0, 10, 50, launch=0, op_class=COPY), launch_us=52)
    ((source, _, grade),) = edges(graph.build(drawn), EdgeKind.HOST_SYNC)

    assert (source, grade) == (0, "SYNC")


def test_a_thread_that_goes_on_after_another_threads_work_is_taken_to_have_waited_for_it() -> None:
    working = tuple(Row("aten::mul", 1000 + 100 * at, 1090 + 100 * at, HostKind.OPERATOR, thread=1) for at in range(20))
    drawn = timeline(
        Op(0, 10, 50, launch=0),
        *(Op(0, 1010 + 100 * at, 1050 + 100 * at, launch=1001 + 100 * at, thread=1) for at in range(20)),
        Op(0, 3020, 3050, launch=3010),
        rows=(*working, Row("aten::add", 900, 995, HostKind.OPERATOR), Row("aten::add", 3005, 3030, HostKind.OPERATOR)),
    )
    found = graph.build(drawn)
    ((source, target, grade), *more) = edges(found, EdgeKind.HANDOFF)
    pairs = {(int(found.start_ns[a]), int(found.start_ns[b])) for a, b, _ in [(source, target, grade), *more]}

    assert (2901 * US, 3010 * US) in pairs
    # The main thread was silent for 2 ms; what it was busy before and after is left.
    last = int(np.flatnonzero(found.start_ns == 3010 * US)[0])
    chain = (found.edges.kind == EdgeKind.BUSY) & (found.edges.target == last)
    assert found.edges.lag_ns[chain].tolist() == [(3010 - (3005 - 995)) * US]


def test_a_late_peer_is_found_on_the_common_clock() -> None:
    drawn = timeline(
        Op(0, 10, 100, op_class=COMMUNICATION, call=0),
        Op(0, 60 - 30, 100 - 30, op_class=COMMUNICATION, rank=1, call=1),
        calls=(0, 1),
    )
    found = graph.build(drawn, waits_by_order(drawn, {1: 30 * US}))

    assert found.wait_ns.tolist() == [50 * US, 0]
    assert found.late_node.tolist() == [1, -1]


def test_the_event_ids_of_a_real_trace_become_edges_between_streams() -> None:
    found = graph.build(read(TRACES / "cuda_sync_events" / "cuda_event_sync_multi_stream.json.gz"))

    assert len(edges(found, EdgeKind.EVENT)) == 1
    assert edges(found, EdgeKind.EVENT)[0][2] == "SYNC"


def test_the_gaps_of_real_devices_differ_and_come_from_their_traces() -> None:
    amd = graph.build(read(TRACES / "ddp_mi300x")).latencies[0]
    nvidia = graph.build(read(TRACES / "ddp_a100")).latencies[0]

    assert 15 * US < amd.across < 30 * US
    assert nvidia.across < 10 * US
    assert 10 * US < nvidia.launch < 14 * US


def test_a_hundred_thousand_operations_are_handled_in_a_second_or_two() -> None:
    count = 100_000
    one = timeline(Op(0, 0, 1, launch=0), Op(1, 0, 1, launch=0))
    rows = np.arange(count)
    ops = one.ops.take(rows % 2)
    ops = ops.replace(start_ns=rows * 1000 + 500, end_ns=rows * 1000 + 1800, launch_ns=rows * 1000, source_row=rows)
    begun = time.process_time()
    host = one.host.take(np.zeros(count, dtype=np.int64)).replace(start_ns=ops.launch_ns, end_ns=ops.launch_ns + 500)
    found = graph.build(dataclasses.replace(one, ops=ops, host=host))

    assert len(found) == 2 * count
    assert time.process_time() - begun < 5
