"""Cases from public issue trackers of the kind "contention": what overlap costs the kernels, and what they fight over."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import underlap
from tests.analyze.planted import Kernel, timeline
from tests.cases.given import CASES, MS, US, causes, explained, family, host, kernel, launch, screen, whole, written
from tests.timelines import COMMUNICATION, COMPUTE, Call, Op, build, group
from underlap.report import Report
from underlap.timeline import Timeline


def on(found: Timeline, multiprocessors: int | None) -> Timeline:
    """The Timeline on devices with so many multiprocessors."""
    ranks = tuple(dataclasses.replace(info, multiprocessors=multiprocessors) for info in found.ranks)
    return dataclasses.replace(found, ranks=ranks)


def moving(kernels: dict[str, tuple[int, float, int]], communication_grid: int = 1, *, steps: int = 6) -> Timeline:
    """Steps of kernels, name -> (alone ns, factor beside communication, blocks). The middle third of them runs beside
    communication in turns: half of it in even steps, half in odd ones. The others never do, which is the placebo."""
    random = np.random.default_rng(0)
    names = [name for _ in range(120) for name in kernels]
    each_step, communication = [], []
    third = len(names) // 3
    for step in range(steps):
        beside = {at for at in range(third, 2 * third) if (at // len(kernels) + step) % 2}
        rows = []
        for at, name in enumerate(names):
            alone, factor, grid = kernels[name]
            length = alone * float(np.exp(random.normal(0, 0.01))) * (factor if at in beside else 1)
            rows.append(Kernel(round(length), name=name, grid=grid))
        each_step.append(rows)
        communication.append([(at, at + 1, 0) for at in sorted(beside)])
    return timeline(each_step, communication, communication_grid=communication_grid)


def test_a_kernel_that_has_its_multiprocessors_does_not_lack_them() -> None:
    case = CASES["C02"]
    assert case["expect_cause"] == "not_sm"
    planted = moving({"gemm": (400_000, 1.5, case["gemm_grid"])}, case["nccl_grid"])
    report = whole(on(planted, case["sms"]), deep=True)
    found = report.contention

    assert found is not None
    assert (found.word, found.communication_blocks, found.multiprocessors) == ("slower", case["nccl_grid"], case["sms"])
    (row,) = found.kernels
    assert (row.name, row.blocks, row.multiprocessors_short) == ("gemm", case["gemm_grid"], False)
    assert row.ratio == pytest.approx(1.5, rel=0.02)
    assert "not for want of multiprocessors: memory bandwidth, cache or power" in explained(report)


def test_where_blocks_exceed_the_multiprocessors_a_shortage_is_not_ruled_out() -> None:
    case = CASES["C02"]
    planted = moving({"gemm": (400_000, 1.5, case["sms"])}, case["nccl_grid"])
    for count, short in ((case["sms"], True), (None, None)):
        found = whole(on(planted, count), deep=True).contention
        assert found is not None
        assert found.kernels[0].multiprocessors_short is short


def test_the_slowdown_of_each_kernel_tells_where_a_collective_costs_least() -> None:
    case = CASES["C03"]
    alone = case["alone_ms"] * MS
    low, high = (length / case["alone_ms"] for length in case["overlapped_ms"])
    for factor in (low, high):
        report = whole(on(moving({"batch_norm_backward": (alone, factor, 4000), "gemm": (alone, 1.05, 100)}), 132), deep=True)
        found = report.contention

        assert found is not None
        ratios = {row.name: row.ratio for row in found.kernels}
        assert ratios == {"batch_norm_backward": pytest.approx(factor, rel=0.02), "gemm": pytest.approx(1.05, rel=0.02)}
        assert found.kernels[0].name == "batch_norm_backward"
        # What the collective itself loses is not known of one rank, so hiding is called a gain at most.
        assert found.net_gain.word == "gain at most"
        assert found.net_gain.net_ns == found.net_gain.hidden_ns - (found.cost_ns or 0)
        assert f"batch_norm_backward: {ratios['batch_norm_backward']:.2f} times as long beside communication" in explained(report)


def one_long(lengths: list[int], payload: int) -> Report:
    """Calls of equal size, launched one by one."""
    ops, calls, now = [Op(COMPUTE, 0, US, launch=-US)], [], 10 * US
    for at, length in enumerate(lengths):
        ops.append(Op(COMMUNICATION, now, now + length, at, now - US, lane="20"))
        calls.append(Call("all_reduce", payload, 0))
        now += length + 10 * US
    return whole(build(ops, calls=calls, groups=[group(*range(8), description="mesh_dp")]))


def test_a_call_of_188_ms_among_calls_of_100_us_is_not_called_188_ms_of_transfer() -> None:
    case = CASES["C05"]
    alone, long = case["alone_us"] * US, case["overlapped_ms"] * MS
    report = one_long([alone] * 9 + [long], 8_000_000)
    row = family(report, "all_reduce")

    assert row.transfer_at_most_ns == 10 * alone
    assert row.wait_ns is None
    assert row.sizes[0].median_ns == alone
    assert "waiting inside" in screen(report)
    assert any(note.code == "outliers" and "188.000 ms" in note.text for note in report.notes)
    assert any("how much of it is waiting for a late peer" in line for line in row.verdict.unknown)
    assert "slow link or a late peer, not known which" in " ".join(note.text for note in report.notes)


def test_the_multiprocessors_that_a_collective_holds_are_its_blocks(tmp_path: Path) -> None:
    """One block per channel, a multiprocessor per block: what is left to compute is the rest."""
    left = 1 - CASES["C07"]["sm_active"]["comm"]
    held, count = 20, 132
    assert 1 - held / count == pytest.approx(left, abs=0.01)
    events = [
        kernel("nvjet_tst_128x64", 0, 100, grid=[132, 1, 1], block=[384, 1, 1]),
        kernel("ncclDevKernel_AllGather_RING_LL()", 20, 90, stream=9, grid=[held, 1, 1], block=[512, 1, 1]),
    ]
    path = written(tmp_path / "rank0.json", events, deviceProperties=[{"id": 0, "name": "NVIDIA H100", "numSms": count}])
    report = whole(path, deep=True)

    assert report.contention is not None
    assert (report.contention.communication_blocks, report.contention.multiprocessors) == (held, count)
    assert "multiprocessors that communication holds: at most 20 (blocks of its largest grid) of 132" in explained(report)


def test_a_copy_that_the_scheduler_hid_counts_by_what_it_was_hidden_in_fact() -> None:
    case = CASES["C12"]
    exposed, hidden = case["exposed_us"] * US, case["effective_overlap_us"] * US
    ops = [Op(COMPUTE, 0, hidden, launch=-20 * US, name=case["partner"])]
    ops.append(Op(COMMUNICATION, 0, hidden + exposed, 0, -20 * US, lane="20", name="MemcpyPtoP"))
    ops.append(Op(COMPUTE, hidden + exposed + US, 20 * MS, launch=-19 * US, name="gemm"))
    report = whole(build(ops, calls=[Call("permute", 1 << 26, 0, library="copy_engine")], groups=[group(0, 1)]))
    row = family(report, "permute")

    assert (row.hidden_ns, row.exposed_ns) == (hidden, exposed)
    assert row.hidden_share == pytest.approx(hidden / (hidden + exposed))
    assert causes(row) == {"too_little_compute": exposed}
    assert 0.01 < report.findings[0].share_of_window < 0.05
    assert "1.3" in screen(report)


@pytest.mark.parametrize("name", CASES["C13"]["kernels"])
def test_symmetric_memory_kernels_hold_multiprocessors_and_are_charged(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    events = []
    for step in range(6):
        now = step * 10_000
        events.append(host(f"ProfilerStep#{step}", now, 10_000, category="user_annotation"))
        for at in range(120):
            beside = 40 <= at < 80 and (at + step) % 2
            length = (30 if beside else 20) * float(np.exp(random.normal(0, 0.01)))
            start, correlation = now + 100 + 60 * at, 1000 * step + at + 1
            events.append(launch(correlation, now + 1 + at / 2, 0.1))
            events.append(kernel("nvjet_tst_128x64", start, length, correlation=correlation, grid=[132, 1, 1], block=[384, 1, 1]))
            if beside:
                symmetric = f"{name}(ncclSymDevArgs)"
                events.append(kernel(symmetric, start, length, stream=9, grid=[16, 1, 1], block=[512, 1, 1]))
    path = written(tmp_path / "rank0.json", events, deviceProperties=[{"id": 0, "name": "NVIDIA H100", "numSms": 132}])
    report = underlap.analyze(path, deep=True)
    found = report.contention

    assert [row.collective for row in report.families] == ["all_gather" if "AllGather" in name else "reduce_scatter"]
    assert found is not None
    assert (found.word, found.communication_blocks) == ("slower", 16)
    assert found.ratio == pytest.approx(1.5, rel=0.02)
    assert found.kernels[0].multiprocessors_short is True
    assert found.net_gain.compute_cost_ns == pytest.approx(6 * 20 * 10 * US, rel=0.05)
    assert (found.net_gain.net_ns or 0) == found.net_gain.hidden_ns - (found.net_gain.compute_cost_ns or 0)
    assert "multiprocessors may be short" in explained(report)
