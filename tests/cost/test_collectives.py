"""Laws of the prices of transfers: none of them knows a constant."""

from __future__ import annotations

import itertools
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.machines import BY_ARCHITECTURE, dgx_a100, dgx_h100, link, mi300x, processor
from underlap.cost import formulas
from underlap.cost.calibration import UNCALIBRATED, Calibration
from underlap.cost.collectives import price
from underlap.cost.communicator import Settings
from underlap.cost.hardware import Topology
from underlap.cost.measured import measured_from
from underlap.cost.work import Routing, Transfer
from underlap.errors import OptionError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
SPANS = st.sampled_from([(2, 1), (4, 1), (8, 1), (1, 2), (1, 16), (4, 2), (8, 2), (8, 3), (8, 16)])
SIZES = st.integers(1, 2**33).map(float)
ROUTING = Routing(topk=8, experts=256)


def transfer(collective: str, nbytes: float, span: tuple[int, int], **fields: object) -> Transfer:
    routing = ROUTING if collective in ("dispatch", "combine") else None
    return Transfer(collective=collective, payload_bytes=nbytes, ranks=span[0] * span[1], span=span, routing=routing, **fields)


def faster(topology: Topology, up: float, out: float) -> Topology:
    assert topology.scale_out is not None
    return msgspec.structs.replace(
        topology,
        scale_up=msgspec.structs.replace(topology.scale_up, bytes_per_s=topology.scale_up.bytes_per_s * up),
        scale_out=msgspec.structs.replace(topology.scale_out, bytes_per_s=topology.scale_out.bytes_per_s * out),
    )


@given(
    collective=st.sampled_from((*COLLECTIVES, "dispatch", "combine")),
    span=SPANS,
    nbytes=SIZES,
    architecture=st.sampled_from(list(BY_ARCHITECTURE)),
    start=st.sampled_from([0.02, 0.3, 1.0]),
    up=st.floats(1, 20),
    out=st.floats(1, 20),
)
def test_more_bandwidth_never_makes_a_transfer_slower(
    collective: str, span: tuple[int, int], nbytes: float, architecture: str, start: float, up: float, out: float
) -> None:
    topology, work = faster(BY_ARCHITECTURE[architecture](), start, start), transfer(collective, nbytes, span)
    before = price(work, topology, calibration=UNCALIBRATED)
    after = price(work, faster(topology, up, out), calibration=UNCALIBRATED)

    assert after.time_ns <= before.time_ns * (1 + 1e-9)
    assert after.latency_ns <= after.time_ns


@given(collective=st.sampled_from(COLLECTIVES[:5]), span=SPANS, nbytes=SIZES, up=st.floats(1, 20), out=st.floats(1, 20))
def test_more_bandwidth_never_makes_a_held_choice_slower_with_the_constants(
    collective: str, span: tuple[int, int], nbytes: float, up: float, out: float
) -> None:
    for topology in (dgx_a100(), dgx_h100()):
        before = price(transfer(collective, nbytes, span), topology)
        held = transfer(collective, nbytes, span, algorithm=before.algorithm, protocol=before.protocol)

        assert price(held, topology).time_ns == before.time_ns
        assert price(held, faster(topology, up, out)).time_ns <= before.time_ns * (1 + 1e-9)


@given(
    collective=st.sampled_from(("all_reduce", "all_gather", "reduce_scatter")),
    span=SPANS,
    sizes=st.tuples(SIZES, SIZES),
    architecture=st.sampled_from(list(BY_ARCHITECTURE)),
    sharp=st.booleans(),
)
def test_within_one_algorithm_a_larger_message_never_takes_less(
    collective: str, span: tuple[int, int], sizes: tuple[float, float], architecture: str, sharp: bool
) -> None:
    topology = dgx_h100(sharp=True) if sharp else BY_ARCHITECTURE[architecture]()
    small, large = sorted(sizes)
    tried = 0
    for algorithm, protocol in itertools.product(
        ("tree", "ring", "nvls", "nvls_tree", "collnet_direct", "pat"), ("LL", "LL128", "Simple")
    ):
        held = {"algorithm": algorithm, "protocol": protocol}
        try:
            low = price(transfer(collective, small, span, **held), topology)
        except OptionError:
            continue
        tried += 1
        assert low.time_ns <= price(transfer(collective, large, span, **held), topology).time_ns * (1 + 1e-9)
    assert tried >= 3


@given(
    collective=st.sampled_from(("all_to_all", "dispatch", "combine")),
    span=SPANS,
    sizes=st.tuples(SIZES, SIZES),
    out=st.sampled_from([0.05, 1.0]),
    algorithm=st.sampled_from([None, "copy_engine", "low_latency"]),
)
def test_a_larger_exchange_never_takes_less(
    collective: str, span: tuple[int, int], sizes: tuple[float, float], out: float, algorithm: str | None
) -> None:
    if (algorithm == "copy_engine") == (collective != "all_to_all"):
        algorithm = None
    topology = faster(dgx_h100(), 1.0, out)
    small, large = (price(transfer(collective, size, span, algorithm=algorithm), topology).time_ns for size in sorted(sizes))
    assert small <= large


@given(collective=st.sampled_from(("all_reduce", "all_gather", "reduce_scatter")), span=SPANS, nbytes=SIZES)
def test_the_chosen_algorithm_is_the_quickest_by_the_tuners_own_estimate(
    collective: str, span: tuple[int, int], nbytes: float
) -> None:
    # Trees apart: their prices are held monotone, above the estimate that NCCL chooses by.
    chosen = price(transfer(collective, nbytes, span), dgx_h100(), calibration=UNCALIBRATED)
    for algorithm, protocol in itertools.product(("ring", "nvls"), ("LL", "LL128", "Simple")):
        try:
            other = price(
                transfer(collective, nbytes, span, algorithm=algorithm, protocol=protocol), dgx_h100(), calibration=UNCALIBRATED
            )
        except OptionError:
            continue
        assert chosen.algorithm in ("tree", "nvls_tree") or chosen.time_ns <= other.time_ns * (1 + 1e-9)


@pytest.mark.parametrize("collective", [*COLLECTIVES, "dispatch", "combine"])
def test_one_rank_and_no_bytes_cost_nothing(collective: str) -> None:
    for work in (transfer(collective, 1e9, (1, 1)), transfer(collective, 0.0, (8, 1))):
        cost = price(work, dgx_h100())
        assert (cost.time_ns, cost.ctas, cost.hbm_bytes, cost.scale_up_bytes, cost.scale_out_bytes) == (0, 0, 0, 0, 0)


@given(collective=st.sampled_from(COLLECTIVES), span=SPANS, nbytes=SIZES)
def test_bytes_on_links_are_those_of_the_closed_formulas(collective: str, span: tuple[int, int], nbytes: float) -> None:
    cost = price(transfer(collective, nbytes, span), dgx_a100())  # no reduction in the switch

    total = formulas.link_bytes(collective, nbytes, span[0] * span[1])
    assert cost.scale_up_bytes + cost.scale_out_bytes == pytest.approx(total)
    assert (cost.scale_out_bytes > 0) == (span[1] > 1)
    assert cost.scale_up_bytes >= -1e-9 * nbytes


def test_a_ring_over_nodes_leaves_each_node_once() -> None:
    cost = price(transfer("all_reduce", 8e9, (8, 4), algorithm="ring"), dgx_h100())

    total = 2 * 31 / 32 * 8e9
    assert cost.scale_out_bytes == pytest.approx(total / 8)
    assert cost.scale_up_bytes == pytest.approx(total * 7 / 8)


def test_reduction_in_the_switch_sends_less_than_a_ring() -> None:
    nvls = price(transfer("all_reduce", 2.0**28, (8, 1)), dgx_h100())

    assert (nvls.algorithm, nvls.ctas) == ("nvls", 16)
    assert nvls.scale_up_bytes == pytest.approx(2**28 * (1 + 1 / 8))


def test_a_hierarchical_all_reduce_sends_its_share_over_the_network() -> None:
    flat, stacked = (
        price(transfer("all_reduce", 2.0**30, (8, 4), algorithm=algorithm), dgx_h100()) for algorithm in ("ring", "hierarchical")
    )

    assert stacked.scale_out_bytes == pytest.approx(2 * 3 / 4 * 2**30 / 8)
    assert stacked.scale_out_bytes < flat.scale_out_bytes
    assert stacked.scale_up_bytes == pytest.approx(2 * 7 / 8 * 2**30)


def test_copy_engines_take_no_processors_and_reduce_nothing() -> None:
    cost = price(transfer("all_gather", 2.0**28, (8, 1), algorithm="copy_engine"), dgx_h100())

    assert cost.ctas == 0
    assert cost.scale_up_bytes == pytest.approx(7 / 8 * 2**28)
    with pytest.raises(OptionError, match="Copy engines do no all_reduce: expected all_gather or all_to_all"):
        price(transfer("all_reduce", 2.0**28, (8, 1), algorithm="copy_engine"), dgx_h100())


def test_fewer_thread_blocks_take_longer_and_more_than_usual_change_nothing() -> None:
    costs = [price(transfer("all_gather", 2.0**28, (8, 1), ctas=ctas), dgx_h100()) for ctas in (6, 12, 24, 48)]

    assert [cost.ctas for cost in costs] == [6, 12, 24, 24]
    assert costs[0].time_ns > costs[1].time_ns > costs[2].time_ns == costs[3].time_ns


def test_sharp_shortens_an_all_reduce_over_many_nodes() -> None:
    plain, sharp = (price(transfer("all_reduce", 1e6, (8, 64)), dgx_h100(sharp=reduces)) for reduces in (False, True))

    assert sharp.algorithm in ("nvls", "collnet_direct", "collnet_chain")
    assert sharp.latency_ns < plain.latency_ns


def test_one_rank_per_node_may_take_the_logarithmic_all_gather() -> None:
    assert price(transfer("all_gather", 1e4, (1, 64), algorithm="pat"), dgx_h100()).algorithm == "pat"
    with pytest.raises(OptionError, match="No all_gather of 16 ranks on 2 domains as asked for: there are ring LL"):
        price(transfer("all_gather", 1e4, (8, 2), algorithm="pat"), dgx_h100())


def test_a_message_between_nodes_is_slower_than_inside_one() -> None:
    inside, between = (price(transfer("send", 1e8, span), dgx_h100()) for span in ((2, 1), (1, 2)))

    assert inside.time_ns < between.time_ns
    assert (inside.scale_up_bytes, inside.scale_out_bytes) == (1e8, 0)
    assert (between.scale_up_bytes, between.scale_out_bytes) == (0, 1e8)


def test_a_pair_on_a_mesh_has_its_own_link_only() -> None:
    pair, all_of_them = (price(transfer("all_gather", 1e9, (ranks, 1)), mi300x()) for ranks in (2, 8))

    assert pair.time_ns > 1e9 * 0.5e9 / 64e9
    assert all_of_them.time_ns < 4 * pair.time_ns


def test_the_largest_rank_sets_the_pace_of_an_uneven_exchange() -> None:
    even, uneven = (price(transfer("all_to_all", 1e9, (8, 2), uneven=share), dgx_h100()) for share in (1.0, 2.0))

    assert uneven.time_ns - uneven.latency_ns == pytest.approx(2 * (even.time_ns - even.latency_ns))


def test_more_processors_speed_a_dispatch_up_until_the_network_is_full() -> None:
    times = [price(transfer("dispatch", 4096 * 7168.0, (8, 4), ctas=sms), dgx_h100()).time_ns for sms in (4, 8, 16, 24, 64)]

    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[1]
    assert times[3] == times[4]


@pytest.mark.parametrize(
    ("ranks", "dispatch_us", "combine_us"),
    [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)],
)
def test_low_latency_kernels_are_near_the_published_times(ranks: int, dispatch_us: float, combine_us: float) -> None:
    # deepep.yaml of the facts, v1_low_latency: 128 tokens of 7168, top 8, FP8 out and BF16 back, on H800
    h800 = dgx_h100(up=200e9)
    for collective, element, us in (("dispatch", 1, dispatch_us), ("combine", 2, combine_us)):
        cost = price(transfer(collective, 128 * 7168 * element, (8, ranks // 8), algorithm="low_latency"), h800)

        assert cost.ctas == 0
        assert cost.time_ns / 1000 == pytest.approx(us, rel=0.16)


def test_limited_routing_sends_less_between_nodes() -> None:
    free = Routing(topk=8, experts=256)
    limited = Routing(topk=8, experts=256, domains_per_token=4)
    costs = [
        price(Transfer(collective="dispatch", payload_bytes=1e8, ranks=64, span=(8, 8), routing=one), dgx_h100())
        for one in (free, limited)
    ]

    assert costs[1].scale_out_bytes < costs[0].scale_out_bytes


def test_an_unknown_architecture_is_priced_with_its_assumption_named() -> None:
    cost = price(transfer("all_reduce", 1e8, (8, 2)), mi300x())

    assert "no NCCL tables for architecture cdna3: those of ampere were taken" in cost.assumptions
    assert any("no measurements for architecture cdna3" in one for one in cost.assumptions)
    assert any("Infinity Fabric" in one for one in cost.assumptions)
    assert price(transfer("all_reduce", 1e8, (8, 1)), dgx_h100()).assumptions == ()


def test_the_three_constants_change_the_time_and_never_the_choice() -> None:
    slower = Calibration(latency_ll=2.0, latency_simple=3.0, local_bytes_per_s=1e11)
    for power in range(10, 30):
        work = transfer("all_gather", 2.0**power, (8, 1))
        bare, fitted = (price(work, dgx_h100(), calibration=one) for one in (UNCALIBRATED, slower))
        assert (bare.algorithm, bare.protocol) == (fitted.algorithm, fitted.protocol)
        assert fitted.time_ns == pytest.approx(
            bare.time_ns + bare.latency_ns * (2 if bare.protocol == "Simple" else 1) + 2**power / 8 / 100
        )


def test_settings_of_the_user_narrow_the_choice() -> None:
    work = transfer("all_reduce", 2.0**28, (8, 1))

    assert price(work, dgx_h100(), settings=Settings(nvls=False)).algorithm != "nvls"
    assert price(work, dgx_h100(), settings=Settings(algorithms=frozenset({"tree"}))).algorithm == "tree"
    assert price(work, dgx_h100(), settings=Settings(protocols=frozenset({"LL"}))).protocol == "LL"
    assert price(work, dgx_h100(), settings=Settings(max_ctas=4)).ctas == 4


@pytest.mark.parametrize(
    ("work", "topology", "says"),
    [
        (transfer("all_reduce", 1.0, (16, 1)), dgx_h100(), "the machine has 8 devices per domain"),
        (
            transfer("all_reduce", 1.0, (8, 2)),
            Topology(processor=processor(), domain=8, scale_up=link(450e9), scale_out=None),
            "needs a scale-out link: the machine has none",
        ),
        (transfer("all_reduce", 1.0, (8, 1), algorithm="rign"), dgx_h100(), "Unknown algorithm 'rign' of a transfer"),
        (transfer("all_to_all", 1.0, (8, 1), algorithm="ring"), dgx_h100(), "There is no all_to_all by ring"),
        (transfer("all_gather", 1e6, (8, 1), ctas=0), dgx_h100(), "with 0 thread blocks: expected 1 or more"),
        (transfer("send", 1e6, (4, 1)), dgx_h100(), "A send has 2 ranks: the transfer has 4"),
        (transfer("all_reduce", 1e6, (8, 1), algorithm="symmetric"), dgx_a100(), "no symmetric-memory all_reduce"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(work: Transfer, topology: Topology, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        price(work, topology)


def test_measured_times_override_the_model_and_say_so() -> None:
    table = measured_from(
        [
            {"collective": "all_reduce", "ranks": 8, "bytes": 1e6, "us": 100},
            {"collective": "all_reduce", "ranks": 8, "bytes": 3e6, "us": 200},
        ],
        "ours.yaml",
    )

    assert price(transfer("all_reduce", 2e6, (8, 1)), dgx_h100(), measured=table).time_ns == pytest.approx(150e3)
    assert price(transfer("all_reduce", 2e6, (8, 1)), dgx_h100(), measured=table).measured
    other = price(transfer("all_reduce", 2e6, (4, 1)), dgx_h100(), measured=table)
    assert not other.measured
    assert other.assumptions == ("ours.yaml has no all_reduce over 4 ranks: modelled",)


def test_ten_thousand_transfers_are_priced_in_under_two_seconds() -> None:
    works = [transfer(COLLECTIVES[number % 6], 1e4 * (number + 1), (8, 1 + number % 7)) for number in range(10_000)]
    topology = dgx_h100()
    begin = time.process_time()
    for work in works:
        price(work, topology)

    assert time.process_time() - begin < 2


def test_a_message_in_parts_costs_the_message_of_one_part_and_the_gather_of_all_parts() -> None:
    machine = dgx_h100()
    part = Transfer(collective="send", payload_bytes=8.0 * 2**20, ranks=2, span=(1, 2))
    sent = price(part, machine)
    gather = price(Transfer(collective="all_gather", payload_bytes=64.0 * 2**20, ranks=8), machine)

    both = price(msgspec.structs.replace(part, gathered=8), machine)

    assert both.time_ns == pytest.approx(sent.time_ns + gather.time_ns)
    assert both.scale_out_bytes == sent.scale_out_bytes
    assert both.ctas == sent.ctas


def test_only_messages_are_sent_in_parts_that_the_receivers_gather() -> None:
    with pytest.raises(OptionError, match="gathered goes with send only"):
        Transfer(collective="all_gather", payload_bytes=1.0, ranks=2, gathered=2)
