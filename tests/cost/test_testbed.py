"""Prices from measured times: at the points they are the points; elsewhere they go with size; what lacks is said."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import testbeds
from underlap import inputs
from underlap.cluster import MEASURED
from underlap.cost.testbed import Testbed
from underlap.cost.testbed_prices import Prices, residuals
from underlap.cost.work import Attention, Gemm, Stream, Transfer
from underlap.documents import decode
from underlap.errors import InputError, OptionError


def prices(**changed):
    return Prices(testbeds.testbed(**changed))


def product(m, n, k, **more):
    return Gemm(m=m, n=n, k=k, precision="fp32", **more)


def test_a_product_between_the_measured_shapes_takes_what_made_them():
    found = prices()

    for shape in ((96, 96, 96), (300, 700, 200), (700, 900, 800)):
        time = found.operation(product(*shape), "forward", "mlp.up").ns / 1e3
        assert time == pytest.approx(testbeds.product_us(*shape), rel=0.02)


def test_memory_bound_work_is_priced_by_its_phase_and_role():
    found = prices()
    work = Stream(read_bytes=60_000.0, write_bytes=40_000.0)

    assert found.operation(work, "recompute", "mlp.activation").ns / 1e3 == pytest.approx(testbeds.stream_us(1e5), rel=0.1)
    assert found.operation(work, "forward", "mlp.activation").note is None
    assert "no measured forward/attention.merge" in found.operation(work, "forward", "attention.merge").note


def test_what_was_measured_for_other_operations_is_said():
    found = prices().operation(product(256, 256, 256, groups=4), "forward", "experts.up")

    assert found.note == "no measured products of experts.forward: those of forward were taken"


def test_another_precision_is_refused_with_what_to_do():
    with pytest.raises(OptionError, match=r"measured in fp32, but the workload has precision=bf16: expected precision=fp32"):
        prices().operation(Gemm(m=8, n=8, k=8), "forward", "mlp.up")


def test_attention_goes_with_scores():
    def core(query):
        return Attention(batch=1, heads=4, kv_heads=4, query=query, context=query, head_dim=32, precision="fp32")

    times = [prices().operation(core(query), "forward", "attention.core").ns for query in (64, 128, 256, 512)]
    assert times == sorted(times)
    assert times[1] / 1e3 == pytest.approx(20 + 8 * 4 * 128 * 128 / 1e3, rel=0.1)


# ---- transfers


@pytest.mark.parametrize(
    ("collective", "payload", "wire"),
    [
        ("all_reduce", 2e6, 2e6),
        ("all_gather", 2e6, 1e6),
        ("reduce_scatter", 2e6, 1e6),
        ("all_to_all", 2e6, 1e6),
        ("send", 2e6, 2e6),
    ],
)
def test_a_transfer_takes_what_its_bytes_on_the_wire_take(collective, payload, wire):
    found = prices().transfer(Transfer(collective=collective, payload_bytes=payload, ranks=2))

    assert found.ns / 1e3 == pytest.approx(testbeds.transfer_us(wire))
    # Right behind another nothing passes for free.
    assert found.ns + found.without_burst_ns == pytest.approx(1e3 * testbeds.START_US + testbeds.WIRE * wire)
    assert found.notes == ()


@given(st.floats(1, 1e8), st.floats(1, 10))
def test_a_larger_transfer_never_takes_less_on_a_testbed(payload, factor):
    found = prices()
    small, large = (
        found.transfer(Transfer(collective="all_reduce", payload_bytes=size, ranks=2)) for size in (payload, factor * payload)
    )

    assert large.ns >= small.ns
    assert large.without_burst_ns >= small.without_burst_ns
    assert 0 <= small.cpu_share <= 1
    assert 0 < small.link_share <= 1


def test_a_group_of_another_size_is_an_assumption():
    found = prices().transfer(Transfer(collective="all_reduce", payload_bytes=2e6, ranks=4))

    assert found.ns > prices().transfer(Transfer(collective="all_reduce", payload_bytes=2e6, ranks=2)).ns
    assert "measured with 2 ranks, predicted for groups of 4" in found.notes[0]


def test_a_collective_without_points_is_refused():
    with pytest.raises(OptionError, match=r"no measured broadcast: measured are all_reduce, all_gather, all_to_all, send"):
        prices().transfer(Transfer(collective="broadcast", payload_bytes=1e6, ranks=2))


def test_a_faster_link_scales_time_on_the_wire_and_says_so():
    found = Prices(testbeds.testbed(), 2 * testbeds.RATE)
    cost = found.transfer(Transfer(collective="all_reduce", payload_bytes=8e6, ranks=2))

    held = testbeds.WIRE / 2 * (8e6 - testbeds.BURST)
    assert cost.ns == pytest.approx(1e3 * testbeds.START_US + held)
    assert found.notes == (
        "the link was measured at 500 Mbit/s and is predicted at 1000: time on the wire scales with it, starts, bursts and CPU "
        "time per byte are kept",
    )


def test_a_link_that_the_cores_could_not_fill_is_refused():
    with pytest.raises(OptionError, match=r"the cores copy 16 Gbit/s: up to 8000 Mbit/s can be predicted"):
        Prices(testbeds.testbed(), 20 * testbeds.RATE)


def test_another_rate_is_refused_where_nothing_held_the_link():
    loose = testbeds.testbed(fabric=None, fabric_bytes_per_s=None)

    assert Prices(loose, loose.link_bytes_per_s).notes == ()
    with pytest.raises(OptionError, match=r"nothing held it to a rate when it was measured: .* calibrate with --fabric"):
        Prices(loose, 2 * loose.link_bytes_per_s)


def test_compute_beside_a_transfer_is_slowed_as_measured():
    found = prices()

    assert found.slower(0.0) == 1.0
    assert found.slower(0.07) == pytest.approx(1.08)
    assert found.slower(0.5) > found.slower(0.07)


def test_residuals_of_exact_points_are_next_to_nothing():
    assert max(residuals(testbeds.testbed().compute).values()) < 1e-3


# ---- the file


def test_a_section_comes_back_from_its_yaml():
    made = testbeds.testbed()

    assert msgspec.yaml.decode(msgspec.yaml.encode(made), type=Testbed) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(library="nccl"), r"at \$.measured.library: unknown value 'nccl'"),
        (lambda s: s.update(colour="red"), r"at \$.measured: unknown field 'colour'"),
        (lambda s: s.pop("priority"), r"at \$.measured: the field 'priority' is missing"),
        (lambda s: s["compute"]["streams"].clear(), r"at \$.measured.compute: streams: expected points"),
        (
            lambda s: s["compute"]["products"]["forward"][0].update(us=-1.0),
            r"at \$.measured.compute.products\[...\]\[0\]: us is -1.0: expected 0 < low_us <= us <= high_us",
        ),
        (lambda s: s["beside"]["cpu_share"].update(value=2.0, high=2.0), r"at \$.measured.beside: cpu_share is 2.0"),
        (
            lambda s: s["transfers"]["all_reduce"]["start_us"].update(low=1e9),
            r"at \$.measured.transfers\[...\].start_us: .* expected low <= value <= high",
        ),
        (
            lambda s: s["transfers"].update(gossip=testbeds.transfers()),
            r"at \$.measured: transfers: \['gossip'\]: expected all_reduce",
        ),
        (lambda s: s.update(fabric_bytes_per_s=0.0), r"at \$.measured: fabric_bytes_per_s is 0.0: expected more than 0"),
    ],
)
def test_a_wrong_section_is_refused_with_its_place(change, message):
    document = testbeds.document()
    change(document[MEASURED])

    with pytest.raises(InputError, match=message) as error:
        inputs.cluster_of_document(document, "here.yaml")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("here.yaml at ")


def test_a_cluster_without_the_section_has_none():
    document = testbeds.document()
    del document[MEASURED]

    assert inputs.cluster_of_document(document, "here.yaml").measured is None
    assert inputs.cluster_of_document(testbeds.document(), "here.yaml").measured == decode(testbeds.section(), Testbed, "")


def test_at_an_end_every_range_is_a_point_there():
    bed = testbeds.testbed()
    quick, slow = bed.at_end("quick"), bed.at_end("slow")
    sent, quick_sent, slow_sent = (each.transfers["all_reduce"] for each in (bed, quick, slow))

    assert quick_sent.start_us.value == sent.start_us.low
    assert slow_sent.start_us.value == sent.start_us.high
    # More of a burst passes at once: that is quicker.
    assert quick_sent.burst_bytes.value == sent.burst_bytes.high
    assert [one.us for one in slow.compute.products["forward"]] == [one.high_us for one in bed.compute.products["forward"]]
    assert [one.us for one in quick_sent.points] == [one.low_us for one in sent.points]
    assert (quick.source, quick.ranks, quick.fabric_bytes_per_s) == (bed.source, bed.ranks, bed.fabric_bytes_per_s)


def test_an_operation_takes_no_less_at_the_slow_end_than_at_the_quick_one():
    bed = testbeds.testbed()
    for work in (product(300, 700, 200), Stream(read_bytes=60_000.0, write_bytes=40_000.0)):
        role = "mlp.up" if isinstance(work, Gemm) else "mlp.activation"
        low, middle, high = (
            Prices(each).operation(work, "forward", role).ns for each in (bed.at_end("quick"), bed, bed.at_end("slow"))
        )
        assert low < middle < high
