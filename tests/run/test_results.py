"""Losses, gradients, weights and bytes of many layouts and passes equal those of one process and of autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import layouts  # noqa: E402 - only with torch
from tests.run.layouts import Case  # noqa: E402
from underlap.run.launch import Local, launch  # noqa: E402

TRAIN = "train,gbs=8,mbs=2,seq=16,precision=fp32"
ONE = "train,gbs=2,mbs=1,seq=16,precision=fp32"
TOLERANCE = 1e-5


def dense(layout: str, workload: str = TRAIN, policy: str = "", layers: int = 2) -> Case:
    return Case("tiny-dense", layout, workload, policy, layers)


def moe(layout: str, workload: str = TRAIN, policy: str = "", layers: int = 2) -> Case:
    return Case("tiny-moe", layout, workload, policy, layers)


OF_ONE = [dense(""), moe("")]
OF_TWO = [
    dense("tp=2"),
    dense("tp=2", ONE),
    dense("tp=2,sp"),
    dense("dp=2"),
    dense("pp=2"),
    dense("pp=2,schedule=gpipe"),
    dense("pp=2,schedule=interleaved:2", layers=4),
    dense("pp=2,schedule=zb-h1"),
    dense("pp=2,schedule=dualpipev", layers=4),
    dense("fsdp=2"),
    dense("dp=2,zero=1"),
    dense("dp=2,zero=2"),
    dense("cp=2"),
    dense("cp=2:ulysses"),
    dense("tp=2", f"{TRAIN},recompute=full"),
    dense("tp=2", f"{TRAIN},recompute=selective"),
    moe("tp=2"),
    moe("pp=2"),
    moe("dp=2,ep=2"),
    moe("fsdp=2,ep=2"),
    moe("dp=2,ep=2", f"{TRAIN},recompute=full"),
]
OF_FOUR = [
    dense("tp=2,pp=2"),
    dense("tp=2,pp=2,schedule=interleaved:2", layers=4),
    dense("tp=2,sp,pp=2"),
    dense("tp=2,dp=2"),
    dense("tp=2,cp=2"),
    dense("tp=2,sp,cp=2:ulysses"),
    dense("dp=2,fsdp=2"),
    dense("cp=4"),
    moe("tp=2,pp=2"),
    moe("tp=2,dp=2,ep=2"),
    moe("dp=4,ep=2"),
    moe("cp=2,dp=2,ep=4"),
]
PASSES = [
    dense("tp=2", policy="tp=split_batch"),
    dense("tp=2", ONE, policy="tp=split_batch"),
    dense("tp=2,sp", policy="tp=split_batch"),
    dense("tp=2", policy="tp=decompose:4"),
    dense("tp=2,sp", policy="tp=decompose:4"),
    dense("tp=2", policy="tp=delay_wgrad"),
    dense("dp=2", policy="dp=bucket:100kB"),
    dense("dp=2,zero=1", policy="dp=bucket:100kB"),
    dense("fsdp=2", policy="fsdp=prefetch:1"),
    dense("cp=2", policy="cp=ring"),
    dense("pp=2", policy="pp=async_p2p"),
    dense("pp=2,schedule=interleaved:2", policy="pp=async_p2p", layers=4),
    moe("dp=2,ep=2", policy="ep=split_batch"),
    moe("dp=2,ep=2", policy="ep=shared_expert"),
    moe("dp=2,ep=2", policy="ep=delay_wgrad"),
    moe("tp=2", policy="tp=split_batch"),
]
EXACT = frozenset({"delay_wgrad", "bucket", "ring", "async_p2p", "shared_expert", "prefetch"})
"""Passes that only move operations: every sum keeps its order. The others add up parts of weight gradients."""

Results = list[dict[str, Any]]


def run_cases(folder: Path, ranks: int, cases: list[Case]) -> dict[Case, Results]:
    launch(layouts.run_all, [layouts.Cases(tuple(cases), folder)] * ranks, Local(ranks=ranks, timeout_s=120))
    return {
        case: [torch.load(folder / f"{case.name} rank{rank}.pt", weights_only=False) for rank in range(ranks)] for case in cases
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Results]:
    """All cases, in one launch per number of ranks."""
    found: dict[Case, Results] = {}
    for ranks, cases in ((1, OF_ONE), (2, OF_TWO + PASSES), (4, OF_FOUR)):
        found |= run_cases(tmp_path_factory.mktemp(f"ranks{ranks}"), ranks, cases)
    return found


def identifier(case: Case) -> str:
    return f"{case.model} {case.layout} {case.policy}{' recompute' if 'recompute' in case.workload else ''}"


ALL = OF_ONE + OF_TWO + OF_FOUR + PASSES


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_loss_and_every_gradient_equal_those_of_autograd(case: Case, results: dict[Case, Results]) -> None:
    loss, gradients = layouts.expected(case)
    assert layouts.total_loss(case, results[case]) == pytest.approx(loss, rel=TOLERANCE)
    found = layouts.differences(case, results[case], gradients)
    assert len(found) >= 15
    assert max(found.values()) < TOLERANCE, max(found, key=found.__getitem__)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_bytes_at_the_process_groups_equal_the_ledger_of_the_plan(case: Case, results: dict[Case, Results]) -> None:
    assert layouts.counted_bytes(results[case]) == layouts.planned_bytes(case)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_every_planned_collective_is_recorded_under_its_key(case: Case, results: dict[Case, Results]) -> None:
    for result in results[case]:
        assert sorted(result["keys"]) == sorted(result["planned"])


@pytest.mark.parametrize("case", PASSES, ids=identifier)
def test_a_pass_changes_no_result(case: Case, results: dict[Case, Results]) -> None:
    base = Case(case.model, case.layout, case.workload, "", case.layers)
    before = results.get(base)
    exact = case.policy.partition("=")[2].partition(":")[0] in EXACT
    for rank, after in enumerate(results[case]):
        assert not after["refused"]
        assert before is not None
        # Adam's first update is as good as the sign of a gradient: where sums are in another order, weights say little.
        for kind in ("weight", "gradient", "gradient_shard") if exact else ("gradient", "gradient_shard"):
            for key, value in before[rank][kind].items():
                difference = layouts.relative(after[kind][key], value)
                assert difference <= (0.0 if exact else TOLERANCE), (kind, key, difference)
        assert after["loss"] == pytest.approx(before[rank]["loss"], rel=0 if exact else TOLERANCE)


@pytest.mark.parametrize("case", [case for case in ALL if case.layout.startswith(("dp", "fsdp"))], ids=identifier)
def test_replicas_have_equal_weights_after_the_optimizer(case: Case, results: dict[Case, Results]) -> None:
    first = results[case][0]["weight"]
    for result in results[case][1:]:
        for key, value in result["weight"].items():
            shared = key in first and case.layout in ("dp=2", "dp=2,zero=1", "dp=2,zero=2")
            assert not shared or torch.equal(value, first[key])
