"""What compute and transfers cost each other."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.machines import dgx_a100, dgx_h100, mi300x
from underlap.cost import collectives, compute
from underlap.cost.sharing import gained_share, link_share, memory_factor, side_by_side_ns, slowdown, wave_ns
from underlap.cost.transfer_cost import NOTHING
from underlap.cost.work import Gemm, Stream, Transfer

H100, A100 = dgx_h100(), dgx_a100()
FULL_WAVE = Gemm(m=12 * 128, n=11 * 256, k=8192)


def gathered(ctas: int | None, nbytes: float = 2.0**28, topology=H100, algorithm: str | None = None):
    return collectives.price(
        Transfer(collective="all_gather", payload_bytes=nbytes, ranks=8, ctas=ctas, algorithm=algorithm), topology
    )


def test_nothing_beside_costs_nothing() -> None:
    found = slowdown(FULL_WAVE, NOTHING, H100.processor)

    assert (found.compute, found.communication, found.wait_ns, found.sms_left) == (1, 1, 0, 132)


def test_a_full_persistent_product_runs_at_half_speed_beside_a_tenth_of_the_processors() -> None:
    found = slowdown(FULL_WAVE, gathered(13), H100.processor)

    assert 1.8 <= found.compute <= 2.1
    assert found.by_sms == found.compute
    assert slowdown(FULL_WAVE, gathered(13), H100.processor, "partitioned").compute < 1.5


def test_copy_engines_take_no_processors_and_wait_for_none() -> None:
    found = slowdown(FULL_WAVE, gathered(None, algorithm="copy_engine"), H100.processor)

    assert (found.by_sms, found.wait_ns, found.sms_left) == (1, 0, 132)


def test_free_processors_are_not_fought_over_but_memory_is() -> None:
    small = Gemm(m=1024, n=1024, k=8192)
    found = slowdown(small, gathered(2), H100.processor)
    assert (found.by_sms, found.wait_ns) == (1, 0)

    stream = Stream(read_bytes=4e9, write_bytes=4e9)
    busy = slowdown(stream, gathered(24), H100.processor)
    assert busy.by_memory > 1.2
    assert busy.communication == busy.by_memory


def test_a_collective_behind_a_kernel_waits_for_a_wave_or_for_all_of_it() -> None:
    large = Gemm(m=8192, n=8192, k=8192)
    on_h100, on_a100 = compute.price(large, H100.processor), compute.price(large, A100.processor)

    assert wave_ns(on_h100, H100.processor) == on_h100.time_ns
    assert wave_ns(on_a100, A100.processor) == pytest.approx(on_a100.time_ns / on_a100.waves)
    assert slowdown(large, gathered(13), H100.processor).wait_ns == on_h100.time_ns
    assert slowdown(large, gathered(13), H100.processor, "partitioned").wait_ns == 0


@given(
    m=st.integers(1, 20_000),
    n=st.integers(1, 20_000),
    ctas=st.integers(1, 24),
    power=st.integers(12, 32),
    how=st.sampled_from(["plain", "partitioned"]),
)
def test_side_by_side_is_never_quicker_than_the_longer_alone(m: int, n: int, ctas: int, power: int, how: str) -> None:
    work, transfer = Gemm(m=m, n=n, k=4096), gathered(ctas, 2.0**power)
    found, alone = slowdown(work, transfer, H100.processor, how), compute.price(work, H100.processor).time_ns
    both = side_by_side_ns(alone, transfer, found)

    assert found.compute >= found.by_sms >= 1
    assert found.communication >= 1
    assert both >= max(alone, transfer.time_ns) * (1 - 1e-9)
    share = gained_share(alone, transfer, found)
    assert share is None or share <= 1 + 1e-9


def test_serial_may_be_quicker_than_side_by_side() -> None:
    transfer = gathered(13, 2.0**24)
    alone = compute.price(FULL_WAVE, H100.processor).time_ns
    kept = msgspec.structs.replace(slowdown(FULL_WAVE, transfer, H100.processor), wait_ns=0.0)

    assert kept.compute > 1.8
    assert gained_share(alone, NOTHING, kept) is None
    assert side_by_side_ns(alone, transfer, msgspec.structs.replace(kept, communication=3.0)) > alone + transfer.time_ns


def test_memory_is_shared_by_what_each_asks_for() -> None:
    processor = H100.processor
    transfer = msgspec.structs.replace(gathered(24), hbm_bytes=1e9, time_ns=1e6)  # 1 TB/s

    assert memory_factor(1e9, 1e6, transfer, processor) == 1
    assert memory_factor(4e9, 1e6, transfer, processor) == pytest.approx(5e12 / (0.8 * 3.35e12))


def test_unknown_processors_leave_memory_as_the_only_price() -> None:
    unknown = msgspec.structs.replace(H100.processor, sms=None)
    found = slowdown(Gemm(m=4096, n=4096, k=4096), gathered(24), unknown)

    assert (found.sms_left, found.by_sms, found.wait_ns) == (None, 1, 0)
    assert any("number of SMs" in one for one in found.assumptions)


def test_transfers_on_one_link_have_fair_shares() -> None:
    assert [link_share(count) for count in (0, 1, 2, 5)] == [1, 1, 2, 5]


def test_engines_beat_partitions_and_these_beat_plain_concurrency_on_average() -> None:
    # The order of ConCCL (arXiv 2412.14335) on MI300X: 72, 42 and 21 % of the ideal speedup.
    topology, shares = mi300x(), {"plain": [], "partitioned": [], "engines": []}
    for rows in (4096, 8192, 16384):
        for power in range(24, 30):
            work = Gemm(m=rows, n=8192, k=8192)
            alone = compute.price(work, topology.processor).time_ns
            by_kernels = gathered(None, 2.0**power, topology)
            for how in ("plain", "partitioned"):
                share = gained_share(alone, by_kernels, slowdown(work, by_kernels, topology.processor, how))
                shares[how].append(share)
            engines = gathered(None, 2.0**power, topology, "copy_engine")
            shares["engines"].append(gained_share(alone, engines, slowdown(work, engines, topology.processor)))
    means = {how: sum(found) / len(found) for how, found in shares.items()}

    assert means["engines"] > means["partitioned"] > means["plain"]
