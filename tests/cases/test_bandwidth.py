"""Cases from public issue trackers of the kind "bandwidth": rates by size, sizes that fall off, and what the rate rules out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.cases.given import CASES, MS, US, explained, family, screen, whole
from tests.timelines import COMMUNICATION, COMPUTE, Call, Op, build, group
from underlap.report import Report


def measured(rows: Sequence[tuple[int, float]], collective: str, ranks: int, *, repeats: int = 4) -> Report:
    """A benchmark as a trace: per row `repeats` calls of so many bytes that last so many microseconds."""
    ops, calls, now = [Op(COMPUTE, 0, US, launch=-1)], [], 10 * US
    for nbytes, length in rows:
        for _ in range(repeats):
            ops.append(Op(COMMUNICATION, now, now + round(length * US), len(calls), now - US, lane="20"))
            calls.append(Call(collective, nbytes, 0))
            now += round(length * US) + 10 * US
    return whole(build(ops, calls=calls, groups=[group(*range(ranks), description="mesh_dp")]))


def test_a_benchmark_s_table_of_bus_bandwidth_comes_out_by_size() -> None:
    case = CASES["G01"]
    assert case["cols"] == ["bytes", "us", "busbw_GBs"]
    report = measured([(nbytes, length) for nbytes, length, _ in case["rows"]], "all_reduce", ranks=2)
    sizes = family(report, "all_reduce").sizes

    assert [row.median_bytes for row in sizes] == [nbytes for nbytes, _, _ in case["rows"]]
    for row, (_, _, rate) in zip(sizes, case["rows"], strict=True):
        # Two ranks: the factor of an all-reduce, 2(n-1)/n, is 1. The table rounds.
        assert row.busbw_gbps == pytest.approx(rate, rel=1e-3)
        assert row.busbw_gbps == row.algbw_gbps < case["expected"] / 4
        assert row.waiting_inside
    assert "4 x 33.6 MB" in explained(report)
    assert "41.3 GB/s (41.3 of bus bandwidth), waiting inside" in explained(report)


def test_the_size_at_which_the_rate_falls_off_is_named() -> None:
    case = CASES["G03"]
    assert case["cols"] == ["bytes", "us"]
    report = measured(case["rows"], "all_gather", ranks=16)
    sizes = family(report, "all_gather").sizes
    (note,) = [note for note in report.notes if note.code == "slow_size"]

    assert [row.median_bytes for row in sizes if (row.times_expected or 0) > 3] == [case["expect_outlier_bytes"]]
    assert note.text.startswith(
        f"all_gather of {case['expect_outlier_bytes']} bytes takes 70.248 ms (0.030 GB/s, waiting inside)"
    )
    assert note.text in screen(report)


def test_sizes_of_even_rate_have_no_slow_one() -> None:
    rows = [row for row in CASES["G03"]["rows"] if row[0] != CASES["G03"]["expect_outlier_bytes"]]

    assert not [note for note in measured(rows, "all_gather", ranks=16).notes if note.code == "slow_size"]


def test_gathers_far_below_the_rate_of_the_link_are_no_matter_of_bandwidth() -> None:
    case = CASES["G05"]
    gathered = round(case["params"] * case["dtype_bytes"])
    layers, step = 50, case["zero3_fwd_ms"] * MS
    compute = case["zero2_fwd_ms"] * MS // layers
    each = step // layers
    ops, calls = [], []
    for layer in range(layers):
        now = layer * each
        ops.append(Op(COMMUNICATION, now, now + each - compute, layer, now - 5 * US, lane="20"))
        ops.append(Op(COMPUTE, now + each - compute, now + each, launch=now - 5 * US))
        calls.append(Call("all_gather", gathered // layers, 0))
    report = whole(build(ops, calls=calls, groups=[group(*range(case["ranks"]), description="mesh_fsdp")]))
    row = family(report, "all_gather")

    assert row.payload_bytes == gathered
    assert report.ranks[0].exposed_ns == step - case["zero2_fwd_ms"] * MS
    assert row.busbw_kernel_gbps == pytest.approx(gathered / report.ranks[0].exposed_ns * 7 / 8)
    assert row.busbw_kernel_gbps < case["p2p_GBs"] / 8
    assert ">= 20.8" in screen(report)
    assert row.issue is not None
    assert (row.issue.median_call_ns, row.issue.median_compute_ns) == (each - compute, compute)


def test_many_tiny_gathers_show_as_a_count_per_size() -> None:
    """One gather per tiny module beside one per layer: it is the granularity, and the counts tell."""
    assert "stage3_param_persistence_threshold" in CASES["G06"]["knobs"]
    report = measured([(4096, 20), (50_000_000, 600)], "all_gather", ranks=8, repeats=20)
    tiny, layer = family(report, "all_gather").sizes

    assert (tiny.calls, tiny.at_most_bytes, layer.calls) == (20, 4096, 20)
    assert tiny.algbw_gbps < layer.algbw_gbps / 100
    assert "20 x 4.10 kB" in explained(report)
    assert "20 x 50.0 MB" in explained(report)


def test_an_uneven_all_to_all_has_the_rate_of_its_largest_rank() -> None:
    payloads = (1_000_000, 3_000_000)
    ops = [Op(COMMUNICATION, 10 * US, 110 * US, rank, rank=rank, lane="20") for rank in (0, 1)]
    ops += [Op(COMPUTE, 0, US, rank=rank) for rank in (0, 1)]
    calls = [Call("all_to_all", nbytes, 0, 0, rank=rank) for rank, nbytes in enumerate(payloads)]
    row = family(whole(build(ops, calls=calls, groups=[group(0, 1, description="mesh_ep")])), "all_to_all")

    assert row.busbw_gbps == row.busbw_kernel_gbps == pytest.approx(max(payloads) / (100 * US) / 2)
