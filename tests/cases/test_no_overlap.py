"""Cases from public issue trackers of the kind "no overlap": is it hidden, and what is the first thing that stops it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import underlap
from tests.cases.given import CASES, MS, US, causes, explained, family, host, kernel, screen, sync, usual_launches, whole, written
from tests.timelines import COMMUNICATION, COMPUTE, Call, Host, Op, build, group
from underlap.report import Report

LAYER = 400 * US


def gathers(layers: int, *, ahead: bool, gather: int = 150 * US) -> Report:
    """The forward of FSDP with resharding off and gradients reduced behind it: each layer's gather is launched with the
    layer before (`ahead`), or only when its own layer starts and the device has run out of compute."""
    ops, calls, now = usual_launches(), [], 0
    for layer in range(layers):
        begin = now - LAYER if ahead and layer else now
        ops.append(Op(COMMUNICATION, begin, begin + gather, len(calls), begin - 5 * US, name="gather", lane="20"))
        calls.append(Call("all_gather", 1 << 24, 0))
        start = max(now, begin + gather + 2 * US)
        ops.append(Op(COMPUTE, start, start + LAYER, launch=begin - 4 * US, name="layer"))
        now = start + LAYER + (0 if ahead else 10 * US)
    for _ in range(layers):
        ops.append(Op(COMPUTE, now, now + LAYER, launch=now - LAYER, name="backward"))
        ops.append(Op(COMMUNICATION, now + US, now + gather, len(calls), now - LAYER, name="scatter", lane="21"))
        calls.append(Call("reduce_scatter", 1 << 24, 0))
        now += LAYER
    return whole(build(ops, calls=calls, groups=[group(*range(8), description="mesh_fsdp")]))


def test_gathers_launched_with_their_own_layer_have_no_lead() -> None:
    case = CASES["A12"]
    assert case["reshard_after_forward"] is False
    report = gathers(case["layers"], ahead=False)
    (hidden,), (exposed,) = case["hidden"], case["exposed"]
    row = family(report, exposed)

    assert family(report, hidden).verdict.outcome == "hidden"
    assert row.verdict.outcome == "exposed"
    assert row.issue is not None
    assert (row.issue.exposed_calls, row.issue.no_lead, row.issue.median_lead_ns) == (case["layers"], case["layers"], 5 * US)
    assert (row.issue.median_call_ns, row.issue.median_compute_ns) == (150 * US, LAYER)
    assert [entry.lead_ns for entry in report.instances if entry.collective == exposed] == [5 * US] * case["layers"]
    text = explained(report)
    assert "launch of its 8 exposed calls         8 without lead (launched when nothing was left beside it)" in text
    assert "lead of a launch, median              0.005 ms before the call is exposed" in text
    assert "one call against compute per call     0.150 ms against 0.400 ms (medians)" in text


def test_gathers_launched_a_layer_ahead_hide_all_but_the_first() -> None:
    layers = CASES["A12"]["layers"]
    row = family(gathers(layers, ahead=True), "all_gather")

    assert row.issue is not None
    assert row.issue.exposed_calls == 1
    assert row.verdict.outcome == "partly hidden"


def test_what_hides_and_what_a_single_hardware_queue_holds_are_told_apart() -> None:
    """All-gathers hide, reduce-scatters do not though the next layer's compute was submitted long before they began."""
    case = CASES["A09"]
    assert case["env"] == {"CUDA_DEVICE_MAX_CONNECTIONS": 1}
    ops, calls, now, scatter = usual_launches(), [], 0, 120 * US
    for _ in range(6):
        parts = range(now, now + LAYER, LAYER // 10)
        ops += [Op(COMPUTE, start, start + LAYER // 10, launch=-MS, name="backward") for start in parts]
        ops.append(Op(COMMUNICATION, now + US, now + 100 * US, len(calls), now - MS, name="gather", lane="20"))
        calls.append(Call("all_gather", 1 << 24, 0))
        ops.append(Op(COMMUNICATION, now + LAYER, now + LAYER + scatter, len(calls), now - MS, name="scatter", lane="21"))
        calls.append(Call("reduce_scatter", 1 << 24, 0))
        now += LAYER + scatter + 2 * US
    ops.append(Op(COMPUTE, now, now + LAYER, launch=-MS, name="backward"))
    report = whole(build(ops, calls=calls, groups=[group(*range(8), description="mesh_fsdp")]))
    (hidden,), (exposed,) = case["hidden"], case["exposed"]
    row = family(report, exposed)

    assert family(report, hidden).verdict.outcome == "hidden"
    assert (row.verdict.outcome, row.verdict.recoverable_ns) == ("exposed", 6 * scatter)
    assert any("CUDA_DEVICE_MAX_CONNECTIONS=1" in line for line in row.verdict.unknown)
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in explained(report)
    assert row.issue is not None
    assert (row.issue.held, row.issue.behind) == (6, {"backward": 6})


def test_each_blocked_collective_is_listed_with_what_ended_before_it() -> None:
    """Some overlap, some block: a list per call, and the kernel in front of each blocked one."""
    ops, calls = usual_launches(), []
    for at in range(6):
        now, blocked = at * MS, at % 2 == 1
        ops.append(Op(COMPUTE, now, now + 600 * US, launch=now - 20 * US, name=f"wgrad {at}"))
        start = now + 600 * US if blocked else now + 100 * US
        ops.append(Op(COMMUNICATION, start, start + 200 * US, at, now + 90 * US, lane="20"))
        ops.append(Op(COMPUTE, now + 850 * US, now + 900 * US, launch=now + 100 * US))
        calls.append(Call("reduce_scatter", 1 << 20))
    report = whole(build(ops, calls=calls))

    assert [(row.exposed_ns, row.behind) for row in report.instances] == [
        (200 * US if at % 2 else 0, f"wgrad {at}" if at % 2 else None) for at in range(6)
    ]
    assert [row.held_ns for row in report.instances] == [510 * US if at % 2 else None for at in range(6)]


@given(compute=st.integers(10, 1000), communication=st.integers(10, 1000), share=st.integers(0, 100))
def test_the_ratio_of_a_micro_benchmark_is_hidden_over_the_shorter(compute: int, communication: int, share: int) -> None:
    case = CASES["A14"]
    assert case["rule"] == "overlap=(t_comp+t_comm-t_both)/min(t_comp,t_comm)"
    assert case["expect_no_overlap"] == "t_both==t_comp+t_comm"
    overlap = min(compute, communication) * share // 100
    ops = [Op(COMPUTE, 0, compute), Op(COMMUNICATION, compute - overlap, compute - overlap + communication, 0, lane="20")]
    report = whole(build(ops, calls=[Call()]))
    (rank,) = report.ranks
    both = rank.span_ns

    assert rank.hidden_ns == compute + communication - both
    assert (rank.hidden_ns == 0) == (both == compute + communication)
    if both == compute + communication:
        assert family(report, "all_reduce").verdict.outcome == "exposed"


def test_a_host_that_is_blocked_at_launch_is_another_verdict_than_no_overlap() -> None:
    ops = [*usual_launches(), Op(COMMUNICATION, 0, 500 * US, 0, -5 * US, lane="20")]
    ops.append(Op(COMPUTE, 520 * US, 900 * US, launch=515 * US))
    blocked = whole(build(ops, calls=[Call()], host=[sync("zeEventHostSynchronize", -4 * US, 510 * US)]))
    ops[-1] = Op(COMPUTE, 502 * US, 900 * US, launch=-50 * US)
    serial = whole(build(ops, calls=[Call()]))

    assert set(causes(family(blocked, "all_reduce"))) == {"throttled"}
    assert set(causes(family(serial, "all_reduce"))) == {"dependent"}
    assert "the host was blocked (synchronize, allocator, .item())" in screen(blocked)


def test_a_gather_after_the_optimizer_is_apart_from_the_hidden_reduction() -> None:
    case = CASES["A18"]
    (reduced,), (gathered,) = case["hidden"], case["exposed"]
    collective, _, phase = gathered.partition("@")
    ops, calls, marks = usual_launches(before=-US), [], []
    for step in range(3):
        now = step * 10 * MS
        marks.append(Host(f"ProfilerStep#{step}", now - 100 * US, now + 10 * MS - 100 * US))
        ops.append(Op(COMPUTE, now, now + 6 * MS, launch=now - 50 * US, name="backward"))
        ops.append(Op(COMMUNICATION, now + MS, now + 5 * MS, len(calls), now - 40 * US, lane="20"))
        calls.append(Call(reduced, 1 << 28, 0, site="backward"))
        ops.append(Op(COMPUTE, now + 6 * MS, now + 7 * MS, launch=now - 30 * US, name=phase))
        ops.append(Op(COMMUNICATION, now + 7 * MS, now + 9 * MS, len(calls), now - 20 * US, lane="21"))
        calls.append(Call(collective, 1 << 28, 0, site=phase))
        ops.append(Op(COMPUTE, now + 9 * MS + 2 * US, now + 9500 * US, launch=now - 10 * US, name="forward"))
    report = underlap.analyze(build(ops, calls=calls, host=marks, groups=[group(*range(8), description="mesh_dp")]))

    assert family(report, reduced).verdict.outcome == "hidden"
    row = family(report, collective)
    assert (row.verdict.outcome, row.exposed_ns, row.verdict.recoverable_ns) == ("exposed", 6 * MS, 6 * MS)
    assert {entry.call_site for entry in report.instances if entry.exposed_ns} == {phase}
    assert [finding.collective for finding in report.findings] == [collective]
    assert f"{100 * report.findings[0].share_of_window:.1f} % of the window" in screen(report)
    assert report.findings[0].share_of_window == pytest.approx(0.2, abs=0.01)


def test_the_bound_on_hiding_an_exchange_is_the_compute_that_can_go_beside_it() -> None:
    case = CASES["A19"]
    exchange, shared, expert, attention = 300 * US, 120 * US, 500 * US, 400 * US
    ops, calls, now = usual_launches(), [], 0

    def exposed(collective: str) -> None:
        nonlocal now
        ops.append(Op(COMMUNICATION, now, now + exchange, len(calls), -MS, name=collective, lane="20"))
        calls.append(Call(collective, 1 << 20, 0, library="deepep"))
        now += exchange + 2 * US

    def compute(name: str, length: int) -> None:
        nonlocal now
        for _ in range(10):
            ops.append(Op(COMPUTE, now, now + length // 10, launch=-MS, name=name))
            now += length // 10

    # Each part is ten kernels, one right behind the other, as a device runs what was launched long before.
    for _ in range(4):
        compute("attention", attention)
        exposed("dispatch")
        compute("experts", expert)
        exposed("combine")
        compute(case["candidate"], shared)
    report = whole(build(ops, calls=calls, groups=[group(*range(8), description=f"mesh_{case['axis']}")]), deep=True)

    for name in case["exposed"]:
        row = family(report, name)
        assert (row.axis, row.verdict.outcome, row.exposed_ns) == (case["axis"], "exposed", 4 * exchange)
        assert set(causes(row)) == {"dependent"}
        assert row.issue is not None
        # Twice an exchange fits beside what is computed until the next; how much of it is independent, no edge tells.
        assert row.issue.median_compute_ns == attention + expert + shared > exchange
    ceiling = report.if_independent
    assert ceiling is not None
    assert ceiling.ceiling
    assert ceiling.at_most_ns is not None
    assert 4 * shared < ceiling.at_most_ns <= report.ranks[0].exposed_ns + report.ranks[0].idle_ns
    assert "ceiling, if independent" in explained(report)


def test_plain_gathers_and_products_are_seen_where_fused_ones_were_expected(tmp_path: Path) -> None:
    case = CASES["A22"]
    assert case["expect"] == "not_engaged"
    gather, product = case["found"]

    plain = [
        host("_c10d_functional::all_gather_into_tensor", 0, 10),
        host("cudaLaunchKernel", 2, 1, category="cuda_runtime", correlation=1),
        kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 40, stream=9, correlation=1),
        host(f"aten::{product}", 12, 5),
        host("cudaLaunchKernel", 13, 1, category="cuda_runtime", correlation=2),
        kernel("nvjet_tst_128x64", 62, 40, correlation=2),
    ]
    report = whole(written(tmp_path / "rank0.json", plain))
    row = family(report, gather)

    assert (row.verdict.outcome, row.fused_ns, report.ranks[0].fused_kernels) == ("exposed", 0, 0)
    assert {entry.library for entry in report.instances} == {"nccl"}


def test_the_last_bucket_of_each_step_is_told_with_its_time_and_bytes() -> None:
    case = CASES["A28"]
    low, high = case["exposed_share"]
    assert case["which"] == "last bucket in backward"
    step, bucket = 10 * MS, 25_000_000
    tail = round((low + high) / 2 * step)
    ops, calls, marks = usual_launches(before=-US), [], []
    for number in range(4):
        now = number * step
        marks.append(Host(f"ProfilerStep#{number}", now - 100 * US, now + step - 100 * US))
        backward = step - tail - 200 * US
        ops.append(Op(COMPUTE, now, now + backward, launch=now - 50 * US))
        for at, start in enumerate((now + 2 * MS, now + 4 * MS, now + backward)):
            ops.append(Op(COMMUNICATION, start, start + tail, len(calls), start - 9 * US, lane="20"))
            calls.append(Call("all_reduce", bucket if at < 2 else bucket // 5, 0))
        ops.append(Op(COMPUTE, now + backward + tail + 2 * US, now + step - 150 * US, launch=now - 40 * US, name="optimizer"))
    report = underlap.analyze(build(ops, calls=calls, host=marks, groups=[group(*range(8), description="mesh_dp")]))
    row = family(report, "all_reduce")

    assert row.issue is not None
    assert row.issue.last_of_step_exposed_ns == row.exposed_ns == 4 * tail
    assert row.issue.last_of_step_bytes == bucket // 5
    (finding,) = report.findings
    assert low < finding.share_of_window < high
    assert "exposed in the last call of a step    2.80 ms, 5.00 MB each (median)" in explained(report)


def test_the_launch_of_a_graph_says_nothing_of_its_collectives() -> None:
    ops = [*usual_launches(), Op(COMPUTE, 0, 50 * US, launch=-9 * US, graph=1)]
    ops += [
        Op(COMMUNICATION, 60 * US, 90 * US, 0, -9 * US, lane="20", graph=1),
        Op(COMPUTE, 95 * US, 99 * US, launch=-9 * US, graph=1),
    ]
    report = whole(build(ops, calls=[Call()]))
    row = family(report, "all_reduce")

    assert row.issue is not None
    assert (row.issue.launch_unknown, row.issue.no_lead, row.issue.held, row.issue.median_lead_ns) == (1, 0, 0, None)
    assert (report.instances[0].lead_ns, report.instances[0].held_ns, report.instances[0].behind) == (None, None, None)
