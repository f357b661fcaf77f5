"""Cases from public issue trackers of the kind "measure": figures whose definition stands beside them, and that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

import underlap
from tests.cases.given import CASES, MS, US, Ranks, explained, family, kernel, screen, whole, written
from tests.timelines import COMMUNICATION, COMPUTE, Call, Op, build, group, info
from underlap.report import Report, from_json, to_json


def test_what_a_name_list_misses_is_classified_or_said_to_be_unknown(tmp_path: Path) -> None:
    case = CASES["E01"]
    missed = [
        name for name in case["try_unmatched"] if not any(part in name for part in (*case["comm_match"], *case["compute_match"]))
    ]
    assert missed == case["try_unmatched"]
    gemm, dispatch, reduce, copy = missed
    named = {
        gemm: gemm,
        dispatch: "void deep_ep::internode_ll::dispatch<false>(void*)",
        reduce: f"void vllm::{reduce}_1stage<half, 8>()",
    }
    events = [kernel(name, 100 * at, 50) for at, name in enumerate(named.values())]
    events += [kernel(copy, 300, 50, category="gpu_memcpy"), kernel("brand_new_kernel", 400, 50)]
    events += [kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 40, stream=9)]
    report = whole(written(tmp_path / "rank0.json", events))
    (rank,) = report.ranks

    assert (rank.compute_kernels, rank.communication_kernels, rank.copies) == (2, 3, 1)
    assert {row.collective for row in report.families} == {"dispatch", "all_reduce", "all_gather"}
    assert [row.name for row in report.unmatched] == ["brand_new_kernel"]
    assert "not classified (counted as compute): 0.050 ms in 1 kernel: brand_new_kernel" in screen(report)
    # The rule of the case, overlap = compute + communication - union, gives the same.
    union = rank.compute_ns + rank.fused_ns + rank.exposed_ns
    assert rank.compute_ns + rank.communication_ns - union == rank.hidden_ns == 30 * US
    assert rank.hidden_share == rank.hidden_ns / rank.communication_ns


def test_three_ms_hidden_by_two_show_as_three_of_which_one_is_exposed() -> None:
    case = CASES["E10"]
    long, short = case["device_ms"] * MS, case["host_ms"] * MS
    assert case["question"] == f"{case['device_ms']} or {case['device_ms'] - case['host_ms']}"
    ops = [
        Op(COMPUTE, 0, short, launch=-9),
        Op(COMMUNICATION, 0, long, 0, -9, lane="20"),
        Op(COMPUTE, long, long + MS, launch=-8),
    ]
    report = whole(build(ops, calls=[Call()]))

    assert (report.ranks[0].communication_ns, report.ranks[0].hidden_ns, report.ranks[0].exposed_ns) == (
        long,
        short,
        long - short,
    )
    assert "communication 3.000 = hidden 2.000 + exposed 1.000 ms; hidden 66.7 % of kernel time, waiting inside" in screen(report)


def pipeline(stages: int, micro_batches: int, length: int = MS) -> Report:
    """GPipe forward of several steps: each stage computes a micro-batch and hands it on, waiting in receives."""
    ops, calls = [], []
    job = Ranks(stages, description="mesh_pp")
    sends: dict[tuple[int, int], int] = {}
    now = US
    for step in range(3):
        for micro in range(micro_batches):
            for stage in range(stages):
                begin = now + (stage + micro) * (length + 20 * US)
                if stage:
                    asked = now if micro == 0 else begin - 20 * US - US
                    ops.append(Op(COMMUNICATION, asked, begin, len(calls), asked, rank=stage, lane="21"))
                    calls.append(Call("recv", 1 << 20, 0, rank=stage, peer=stage - 1))
                ops.append(Op(COMPUTE, begin, begin + length, launch=now, rank=stage))
                if stage + 1 < stages:
                    ops.append(
                        Op(COMMUNICATION, begin + length, begin + length + 20 * US, len(calls), now, rank=stage, lane="20")
                    )
                    calls.append(Call("send", 1 << 20, 0, rank=stage, peer=stage + 1))
                    sends[stage, micro] = begin + length
        end = now + (stages - 1 + micro_batches) * (length + 20 * US)
        job.step(step, now - US, end)
        now = end + US
    timeline = build(
        ops,
        calls=calls,
        host=job.marks,
        groups=[group(*range(stages), description="mesh_pp")],
        ranks=[info(rank, world=stages) for rank in range(stages)],
    )
    return underlap.analyze(timeline)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 8), (4, 4), (4, 12)])
def test_a_measured_bubble_stands_beside_the_formula(stages: int, micro_batches: int) -> None:
    assert CASES["E11"]["formula"] == "(p-1)/(m+p-1) of step for plain 1F1B"
    report = pipeline(stages, micro_batches)
    (bubble,) = report.bubbles
    ideal = (stages - 1) / (micro_batches + stages - 1)

    assert (bubble.stages, bubble.micro_batches) == (stages, micro_batches)
    assert bubble.ideal_share == pytest.approx(ideal)
    assert bubble.waiting_share[str(stages - 1)] == pytest.approx(ideal, abs=0.03)
    assert bubble.waiting_share["0"] < 0.03
    assert f"plain 1F1B or GPipe has {100 * ideal:.1f} % of bubble" in explained(report)
    waiting, share = bubble.waiting_ns[str(stages - 1)], bubble.waiting_share[str(stages - 1)]
    assert waiting == pytest.approx(3 * (stages - 1) * MS, rel=0.05)
    assert f"rank {stages - 1} {waiting / MS:.2f} ms ({100 * share:.1f} %)" in explained(report)
    assert all(not row.straggler for row in report.late)


def test_hundreds_of_small_gathers_are_counted_and_their_exclusive_split_adds_up() -> None:
    case = CASES["E14"]
    count, split = case["allgather"]["per_gpu_step"], case["split_pct"]
    step = round(case["step_s"] * 1e9)
    gather = round(split["comm"] / 100 * step / count)
    compute = round(split["compute"] / 100 * step / count)
    idle = step // count - gather - compute
    ops, calls = [], []
    for at in range(count):
        begin = at * (step // count)
        ops.append(
            Op(
                COMMUNICATION,
                begin,
                begin + gather,
                at,
                begin - 9 * US,
                name=f"ncclDevKernel_{case['allgather']['kernel']}",
                lane="20",
            )
        )
        ops.append(Op(COMPUTE, begin + gather + idle, begin + gather + idle + compute, launch=begin - 9 * US))
        calls.append(Call("all_gather", 4_000_000, 0))
    report = whole(build(ops, calls=calls, groups=[group(*range(256), description="mesh_fsdp")]))
    (rank,), row = report.ranks, family(report, "all_gather")

    assert (row.axis, row.count, row.mean_payload_bytes) == ("fsdp", count, count * 4_000_000)
    assert (row.sizes[0].calls, row.sizes[0].median_bytes) == (count, 4_000_000)
    assert row.sizes[0].median_ns == pytest.approx(split["comm"] / 100 * step / count, rel=1e-3)
    shares = {"comm": rank.exposed_ns, "stall": rank.idle_ns, "compute": rank.compute_ns}
    assert sum(shares.values()) + rank.fused_ns + rank.copy_ns == rank.span_ns
    for name, amount in shares.items():
        assert 100 * amount / rank.span_ns == pytest.approx(split[name], abs=0.1)
    assert {entry.kernel for entry in report.instances} == {f"ncclDevKernel_{case['allgather']['kernel']}"}


def test_an_all_reduce_fused_with_its_norm_is_a_class_of_its_own(tmp_path: Path) -> None:
    assert CASES["E15"]["expect_class"] == "fused_comm_compute"
    name = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2, __nv_bfloat16>(Params)"
    events = [event for at in range(20) for event in (kernel("nvjet_tst", 100 * at, 60), kernel(name, 100 * at + 60, 30))]
    report = whole(written(tmp_path / "rank0.json", events, world=CASES["E15"]["tp"]))
    (rank,), row = report.ranks, family(report, "all_reduce")

    assert (rank.fused_ns, rank.exposed_ns, rank.hidden_ns, rank.fused_kernels) == (600 * US, 0, 0, 20)
    assert row.verdict is not None
    assert (row.verdict.outcome, row.verdict.cause) == ("fused", None)
    assert "All communication is inside fused kernels, which compute as well" in screen(report)
    assert "no overlap is missing" in screen(report)
    assert "communication: none in the window outside of fused kernels (0.600 ms)" in screen(report)
    # What an agent quotes is the JSON.
    assert from_json(to_json(report)).families[0].verdict == row.verdict


def test_streams_axes_and_window_of_a_hand_made_analyzer_come_out(tmp_path: Path) -> None:
    case = CASES["E17"]
    (compute,), (exchange,) = ([lane for lane, use in case["streams"].items() if use == what] for what in ("compute", "ep_a2a"))
    pp, ep = case["mesh"]["pp"], case["mesh"]["ep"]
    ops, calls, marks = [], [], Ranks(pp * ep)
    groups = [group(*range(first, first + ep), name=str(first)) for first in range(0, pp * ep, ep)]
    for step in range(4):
        now = step * MS
        marks.step(step, now, now + MS)
        for rank in range(pp * ep):
            hidden = 300 * US if rank < ep else 100 * US
            ops.append(Op(COMPUTE, now + 10 * US, now + 10 * US + hidden, launch=now + US, rank=rank, lane=compute))
            ops.append(Op(COMMUNICATION, now + 10 * US, now + 410 * US, len(calls), now + US, rank=rank, lane=exchange))
            ops.append(Op(COMPUTE, now + 420 * US, now + 900 * US, launch=now + 2 * US, rank=rank, lane=compute))
            calls.append(Call("all_to_all", 1 << 20, rank // ep, step, rank=rank))
    timeline = build(
        ops, calls=calls, groups=groups, host=marks.marks, ranks=[info(rank, world=pp * ep) for rank in range(pp * ep)]
    )
    report, again = (underlap.analyze(timeline, mesh=case["mesh"]) for _ in range(2))
    row = family(report, "all_to_all")

    assert (row.axis, row.count) == ("ep", 4 * pp)
    assert report.window.steps_used == again.window.steps_used
    assert to_json(report) == to_json(again)
    assert {lane.lane for lane in report.lanes if lane.communication_ns} == {exchange}
    assert {lane.lane for lane in report.lanes if lane.compute_ns} == {compute}
    by_stage = [{rank.hidden_share for rank in report.ranks if rank.rank // ep == stage} for stage in range(pp)]
    assert by_stage == [{0.75}, {0.25}]
