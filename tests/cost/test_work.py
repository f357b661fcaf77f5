"""Operations and bytes of work, against counting one by one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underlap.cost.work import Attention, Copy, Gemm, Routing, Stream, Transfer, Work
from underlap.errors import OptionError


def test_a_product_counts_each_operand_once() -> None:
    work = Gemm(m=3, n=5, k=7, batch=2)

    assert work.flops == 2 * 2 * 3 * 5 * 7
    assert work.read_bytes == 2 * 2 * (3 * 7 + 7 * 5)
    assert work.write_bytes == 2 * 2 * 3 * 5


def test_a_product_of_small_numbers_is_written_in_sixteen_bits_and_accumulation_reads_it() -> None:
    plain = Gemm(m=3, n=5, k=7, precision="fp8")
    added = Gemm(m=3, n=5, k=7, precision="fp8", output="fp32", accumulate=True)

    assert (plain.read_bytes, plain.write_bytes) == (3 * 7 + 7 * 5, 2 * 3 * 5)
    assert added.read_bytes - plain.read_bytes == added.write_bytes == 4 * 3 * 5


def test_groups_share_rows_and_have_their_own_weights_or_results() -> None:
    forward = Gemm(m=10, n=4, k=6, groups=(7, 3, 0))
    weights = Gemm(m=4, n=6, k=10, groups=(7, 3, 0), groups_along="k")

    assert forward.flops == weights.flops == 2 * 10 * 4 * 6
    assert forward.read_bytes == 2 * (10 * 6 + 2 * 6 * 4)  # the third expert's weights are not touched
    assert weights.write_bytes == 2 * 3 * 4 * 6


@given(query=st.integers(1, 12), context=st.integers(1, 12), causal=st.booleans(), window=st.none() | st.integers(1, 14))
def test_masked_pairs_are_those_counted_one_by_one(query: int, context: int, causal: bool, window: int | None) -> None:
    window = window if causal else None
    work = Attention(batch=1, heads=1, kv_heads=1, query=query, context=context, head_dim=8, causal=causal, window=window)
    pairs = [
        (row, key)
        for row in range(query)
        for key in range(context)
        if not causal or (key <= context - query + row and (window is None or key > context - query + row - window))
    ]

    assert work.pairs == len(pairs)


def test_attention_does_two_products_forward_and_five_backward() -> None:
    shape = {"batch": 2, "heads": 4, "kv_heads": 2, "query": 16, "context": 16, "head_dim": 8, "causal": False}
    forward, backward = Attention(**shape), Attention(**shape, backward=True)

    assert forward.flops == 2 * 2 * 4 * 16 * 16 * 2 * 8
    assert backward.flops == 2.5 * forward.flops
    assert forward.read_bytes == 2 * (2 * 16 * 4 * 8 + 2 * 2 * 16 * 2 * 8)


def test_values_within_the_keys_are_read_once() -> None:
    shape = {"batch": 1, "heads": 16, "kv_heads": 1, "query": 1, "context": 100, "head_dim": 576, "value_dim": 512}

    apart, shared = Attention(**shape), Attention(**shape, shared_values=True)
    assert apart.read_bytes - shared.read_bytes == 2 * 100 * 512


def test_copies_touch_the_memory_at_the_ends_on_the_device() -> None:
    assert [
        (one.read_bytes, one.write_bytes)
        for one in (Copy(bytes=4, direction=way) for way in ("host_to_device", "device_to_host", "device_to_device"))
    ] == [(0, 4), (4, 0), (4, 4)]


def test_every_kind_of_work_survives_json() -> None:
    works = [
        Gemm(m=1, n=2, k=3, groups=(1,)),
        Attention(batch=1, heads=1, kv_heads=1, query=1, context=1, head_dim=1),
        Stream(read_bytes=1, write_bytes=2),
        Transfer(collective="dispatch", payload_bytes=1, ranks=8, span=(4, 2), routing=Routing(topk=2, experts=8)),
        Copy(bytes=1, direction="device_to_host"),
    ]

    assert msgspec.json.decode(msgspec.json.encode(works), type=list[Work]) == works
    assert len(set(works)) == 5


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Gemm(m=1, n=0, k=1), "Gemm.n is 0: expected 1 or more"),
        (lambda: Gemm(m=1, n=1, k=1, precision="fp7"), "Unknown precision 'fp7'"),
        (lambda: Gemm(m=5, n=1, k=1, groups=(2, 2)), "add up to m = 5"),
        (lambda: Gemm(m=5, n=1, k=1, groups=()), "add up to m = 5"),
        (lambda: Attention(batch=1, heads=3, kv_heads=2, query=1, context=1, head_dim=1), "expected a multiple of kv_heads = 2"),
        (lambda: Stream(read_bytes=-1, write_bytes=0), "Stream.read_bytes is -1: expected 0 or more"),
        (lambda: Transfer(collective="gossip", payload_bytes=1, ranks=2), "Unknown collective 'gossip'"),
        (lambda: Transfer(collective="all_reduce", payload_bytes=1, ranks=8, span=(4, 1)), "with a product of ranks = 8"),
        (lambda: Transfer(collective="dispatch", payload_bytes=1, ranks=8), "Transfer.routing goes with dispatch and combine"),
        (lambda: Routing(topk=9, experts=8), "expected at most experts = 8"),
    ],
)
def test_wrong_work_is_refused_with_its_name_and_what_was_expected(wrong, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        wrong()
