"""Laws of the prices of compute: tiles, waves, roofline."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.machines import processor
from underlap.cost.compute import START_NS, price, price_all
from underlap.cost.work import Attention, ComputeWork, Gemm, Stream
from underlap.errors import OptionError

H100 = processor()
A100 = processor("ampere", 108, 312e12, 2.039e12)

GEMMS = st.builds(
    Gemm, m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000), groups=st.sampled_from([1, 1, 4, 32])
)
ATTENTIONS = st.builds(
    Attention,
    batch=st.integers(1, 64),
    heads=st.sampled_from([8, 32]),
    kv_heads=st.sampled_from([1, 8]),
    query=st.integers(1, 9000),
    context=st.integers(1, 9000),
    head_dim=st.just(128),
    causal=st.booleans(),
    backward=st.booleans(),
)
STREAMS = st.builds(Stream, read_bytes=st.floats(0, 1e10), write_bytes=st.floats(0, 1e10))
WORKS = GEMMS | ATTENTIONS | STREAMS


def test_nothing_to_do_takes_no_time() -> None:
    assert price_all([], H100).time_ns.size == 0
    assert price(Stream(read_bytes=0, write_bytes=0), H100).time_ns == 0
    assert price(Gemm(m=0, n=8, k=8, groups=(0, 0)), H100).flops == 0


@given(work=WORKS)
def test_no_work_is_quicker_than_its_roofline(work: ComputeWork) -> None:
    cost = price(work, H100)

    assert cost.flops == work.flops
    assert cost.hbm_bytes >= work.read_bytes + work.write_bytes - 1e-6
    assert cost.time_ns >= 1e9 * work.flops / H100.peak_flops["bf16"] * (1 - 1e-9)
    assert cost.time_ns >= 1e9 * cost.hbm_bytes / H100.memory_bytes_per_s * (1 - 1e-9)


@given(work=WORKS, one=st.integers(1, 132), other=st.integers(1, 132))
def test_more_processors_never_make_work_slower(work: ComputeWork, one: int, other: int) -> None:
    few, many = (price(work, H100, sms=sms, sized_for=132).time_ns for sms in sorted((one, other)))
    assert many <= few * (1 + 1e-9)


@given(work=WORKS)
def test_work_is_priced_the_same_alone_and_among_others(work: ComputeWork) -> None:
    others = [Gemm(m=5, n=6, k=7), Stream(read_bytes=9, write_bytes=9), work]
    together = price_all(others, H100)

    assert together.time_ns[2] == pytest.approx(price(work, H100).time_ns)


def test_a_product_that_fills_one_wave_takes_two_beside_a_tenth_of_the_processors() -> None:
    full = Gemm(m=12 * 128, n=11 * 256, k=8192)  # 132 tiles of 128 x 256
    alone, beside = price(full, H100), price(full, H100, sms=119)

    assert (alone.ctas, alone.waves, beside.waves) == (132, 1, 2)
    assert 1.8 <= beside.time_ns / alone.time_ns <= 2.1


def test_the_step_needs_full_waves_and_a_kernel_that_is_not_sized_for_what_is_left() -> None:
    full, partial = Gemm(m=12 * 128, n=11 * 256, k=8192), Gemm(m=10 * 128, n=11 * 256, k=8192)
    margin = price(full, H100, sms=119, sized_for=119)

    assert margin.time_ns < 1.5 * price(full, H100).time_ns
    assert price(partial, H100, sms=119).time_ns == price(partial, H100).time_ns


def test_without_fixed_lists_of_tiles_many_waves_lose_only_their_share() -> None:
    large = Gemm(m=16384, n=16384, k=4096)
    alone, beside = price(large, A100), price(large, A100, sms=97)

    assert 1.05 < beside.time_ns / alone.time_ns < 1.2


def test_a_decode_step_is_bound_by_the_weights_it_reads() -> None:
    cost = price(Gemm(m=1, n=8192, k=8192), H100)

    assert cost.time_ns == pytest.approx(START_NS + 1e9 * cost.hbm_bytes / (0.8 * 3.35e12))
    assert cost.hbm_bytes == pytest.approx(2 * 8192 * 8192, rel=0.05)


def test_decode_attention_reads_the_cache_once() -> None:
    cost = price(Attention(batch=64, heads=64, kv_heads=8, query=1, context=8192, head_dim=128), H100)

    assert cost.memory_ns > cost.compute_ns
    assert cost.hbm_bytes == pytest.approx(64 * 2 * 8 * 8192 * 128 * 2, rel=0.01)


def test_all_rows_on_one_expert_take_longer_than_spread_thin_tiles_cost_more() -> None:
    even = price(Gemm(m=4096, n=4096, k=7168, groups=32), H100)
    thin = price(Gemm(m=4096, n=4096, k=7168, groups=(97,) * 31 + (4096 - 31 * 97,)), H100)
    dense = price(Gemm(m=4096, n=4096, k=7168), H100)

    assert dense.time_ns < even.time_ns <= thin.time_ns


def test_attention_reaches_its_share_of_the_peak_at_length() -> None:
    cost = price(Attention(batch=1, heads=64, kv_heads=8, query=16384, context=16384, head_dim=128), H100)

    assert cost.flops / cost.time_ns * 1e9 / 989e12 == pytest.approx(0.75, abs=0.01)


def test_a_few_processors_cannot_fill_the_memory() -> None:
    stream = Stream(read_bytes=1e9, write_bytes=1e9)

    assert price(stream, H100, sms=13).time_ns > 3 * price(stream, H100).time_ns
    assert price(stream, H100, sms=100).time_ns == price(stream, H100).time_ns


def test_what_is_unknown_of_a_processor_is_named_or_refused() -> None:
    odd = msgspec.structs.replace(H100, architecture="tpu", sms=None)
    cost = price(Gemm(m=4096, n=4096, k=4096), odd)

    assert cost.assumptions == (
        "no figures of compute kernels for architecture tpu: those of ampere were taken",
        "number of SMs of a hopper GPU unknown: no waves, and no SMs can be taken",
    )
    with pytest.raises(OptionError, match="a hopper GPU has no peak for fp4: known are bf16, fp32, fp8"):
        price(Gemm(m=1, n=1, k=1, precision="fp4"), H100)
    with pytest.raises(OptionError, match="200 SMs of a hopper GPU: expected 1 to 132"):
        price(Gemm(m=1, n=1, k=1), H100, sms=200)


def test_vectors_without_a_known_peak_are_bound_by_memory_and_say_so() -> None:
    matrix_only = msgspec.structs.replace(H100, peak_flops={"bf16": 989e12})
    cost = price(Stream(read_bytes=1e6, write_bytes=1e6, flops=1e12), matrix_only)

    assert cost.time_ns == price(Stream(read_bytes=1e6, write_bytes=1e6), matrix_only).time_ns
    assert cost.assumptions == ("a hopper GPU has no peak for fp32: work on vectors taken as bound by memory alone",)
    assert price(Stream(read_bytes=1e6, write_bytes=1e6, flops=1e12), H100).compute_ns > 1e7


def test_ten_thousand_works_are_priced_in_well_under_a_second() -> None:
    draw = random.Random(7)
    works: list[ComputeWork] = []
    for number in range(10_000):
        m, n, k = (draw.randint(1, 9999) for _ in range(3))
        kinds = (
            Gemm(m=m, n=n, k=k, groups=1 + number % 3),
            Attention(batch=1, heads=64, kv_heads=8, query=m, context=m + n, head_dim=128),
            Stream(read_bytes=m, write_bytes=n),
        )
        works.append(kinds[number % 3])
    begin = time.process_time()
    price_all(works, H100)

    assert time.process_time() - begin < 0.8
