"""What docs/tutorial.md concludes from its figures holds in them. That it shows them truly is tested in tests/test_docs.py."""

from __future__ import annotations

import functools

import pytest

from underlap.flows.simulate import compare, policies, scenario
from underlap.report import Prediction

PREFILL = ("llama3-70b", "dgx-h100", "tp=8", "prefill,batch=1,seq=8192")
EXPERTS = ("deepseek-v3", "dgx-h100", "dp=32,ep=32", "prefill,batch=32,seq=8192")
NODE = ("mixtral-8x7b", "dgx-h100", "dp=8,ep=8", "prefill,batch=8,seq=8192")
WITHOUT_NVLS = "examples/clusters/h100-without-nvls.yaml"
WITH_SHARP = "examples/clusters/h100-with-sharp.yaml"


@functools.cache
def compared(model: str, cluster: str, layout: str, workload: str, policy: str = "split_batch") -> tuple[Prediction, Prediction]:
    asked = scenario(model=model, cluster=cluster, layout=layout, workload=workload)
    before, after = compare(asked, policies(asked, f"none,{policy}"), deep=False).predictions
    return before, after


def sent(one: Prediction) -> int:
    return sum(row.sent_bytes for row in one.bytes_by_axis)


def gain(before: Prediction, after: Prediction) -> float:
    return before.step_ns / after.step_ns - 1


def won(before: Prediction, after: Prediction) -> float:
    return (before.step_ns - after.step_ns) / before.exposed_ns


# ---- 1: hidden, not removed


def test_half_batches_hide_nearly_all_of_the_all_reduce_and_send_the_same_bytes() -> None:
    before, after = compared(*PREFILL)

    assert after.word == "hidden"
    assert sent(after) == pytest.approx(sent(before))
    assert after.exposed_ns < 0.05 * before.exposed_ns


def test_the_step_shortens_by_less_than_what_was_hidden() -> None:
    before, after = compared(*PREFILL)

    assert 0 < before.step_ns - after.step_ns < 0.5 * (after.hidden_ns - before.hidden_ns)
    assert after.compute_ns > before.compute_ns


def test_a_layout_of_fewer_ranks_per_layer_is_what_sends_fewer_bytes() -> None:
    before, _ = compared(*PREFILL)
    other = scenario(model="llama3-70b", cluster="dgx-h100", layout="tp=4,pp=2", workload="prefill,batch=2,mbs=1,seq=4096")
    narrow = compare(other, [other.policy, other.policy], deep=False).predictions[0]

    assert sent(narrow) < 0.5 * sent(before)


# ---- 2: large and small batches


def decode(per_gpu: int) -> tuple[Prediction, Prediction]:
    return compared("deepseek-v3", "dgx-h100", "dp=32,ep=32", f"decode,batch={32 * per_gpu},context=2000,precision=fp8")


def test_the_same_pass_loses_on_small_batches_and_gains_on_large_ones() -> None:
    gains = [gain(*decode(batch)) for batch in (16, 32, 64, 128, 256)]

    assert gains == sorted(gains)
    assert gains[1] < -0.1
    assert abs(gains[2]) < 0.03
    assert gains[4] > 0.2


def test_half_batches_of_a_small_batch_cost_more_compute_than_there_was_to_hide() -> None:
    before, after = decode(32)

    assert after.compute_ns - before.compute_ns > before.exposed_ns


# ---- 3: all-reduce and all-to-all


def test_more_is_exposed_by_the_all_to_all_over_nodes_than_by_the_all_reduce_in_one() -> None:
    reduce, exchange = compared(*PREFILL)[0], compared(*EXPERTS)[0]

    assert exchange.exposed_ns / exchange.step_ns > 2 * reduce.exposed_ns / reduce.step_ns


def test_a_larger_share_of_the_exposed_is_won_from_the_all_to_all_over_nodes() -> None:
    assert won(*compared(*EXPERTS)) > won(*compared(*PREFILL))


def test_the_all_reduce_of_a_dense_decode_step_cannot_be_hidden_at_a_profit() -> None:
    before, after = compared("llama3-70b", "dgx-h100", "tp=8", "decode,batch=128,context=4096")

    assert before.exposed_ns > 0.2 * before.step_ns
    assert after.word == "a loss"


def test_in_one_node_the_all_to_all_has_too_little_exposed_to_win_anything() -> None:
    before, after = compared(*NODE)

    assert before.exposed_ns < 0.1 * before.step_ns
    assert 0 <= gain(before, after) < 0.02


def test_an_all_reduce_over_two_nodes_exposes_more_than_in_one() -> None:
    one, two = (compared("gpt3-175b", "dgx-h100", f"tp={tp}", "prefill,batch=4,seq=2048")[0] for tp in (8, 16))

    assert two.exposed_ns / two.step_ns > one.exposed_ns / one.step_ns


# ---- reduction in the switches


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_reduction_in_the_switch_and_overlap_together_are_the_shortest(tokens: int) -> None:
    work = f"prefill,batch=1,seq={tokens}"
    plain = compared("llama3-70b", WITHOUT_NVLS, "tp=8", work)
    reduced = compared("llama3-70b", "dgx-h100", "tp=8", work)

    assert reduced[0].step_ns < plain[0].step_ns
    assert reduced[1].step_ns < min(reduced[0].step_ns, plain[1].step_ns)
    # The ledger counts what the ranks hand in; what a switch saves on the wire is not in it.
    assert sent(reduced[0]) == sent(plain[0])


def test_savings_of_switch_and_schedule_do_not_add_up_on_long_messages() -> None:
    plain = compared("llama3-70b", WITHOUT_NVLS, "tp=8", "prefill,batch=1,seq=8192")
    reduced = compared("llama3-70b", "dgx-h100", "tp=8", "prefill,batch=1,seq=8192")
    alone = plain[0].step_ns - reduced[0].step_ns + plain[0].step_ns - plain[1].step_ns

    assert plain[0].step_ns - reduced[1].step_ns < alone


def test_reduction_in_the_fabric_changes_little_where_messages_are_long() -> None:
    work = ("train,gbs=64,mbs=1,seq=8192", "dp=bucket:100MB")
    plain, sharp = (compared("llama3-8b", cluster, "dp=64", *work) for cluster in ("dgx-h100", WITH_SHARP))

    assert 0.95 < sharp[0].step_ns / plain[0].step_ns < 1
    assert sharp[1].step_ns < min(sharp[0].step_ns, plain[1].step_ns)
