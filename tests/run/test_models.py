"""Kinds of models beyond tiny-dense and tiny-moe: losses, gradients and bytes of their layouts, as in test_results."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import layouts  # noqa: E402 - only with torch
from tests.run.layouts import Case, Results, identifier, run_cases  # noqa: E402 - only with torch

TRAIN = "train,gbs=4,mbs=2,seq=16,precision=fp32"
ONE = "train,gbs=2,mbs=1,seq=16,precision=fp32"
TOLERANCE = 1e-5


def normed(layout: str, workload: str = TRAIN, policy: str = "", layers: int = 2) -> Case:
    """Norms of queries and keys, dense layers."""
    return Case("normed-heads", layout, workload, policy, layers)


def mixture(layout: str, workload: str = TRAIN, policy: str = "", layers: int = 2) -> Case:
    """The same with experts in all layers, as Qwen3-MoE has."""
    return Case("tiny-qwen3-moe", layout, workload, policy, layers)


def tied(layout: str, workload: str = TRAIN, policy: str = "", layers: int = 2) -> Case:
    """A head that is the embedding, as small models of Llama 3.2, Qwen2 and Qwen3 have."""
    return Case("tied", layout, workload, policy, layers)


def shared(layout: str, workload: str = TRAIN, policy: str = "", layers: int = 2) -> Case:
    """A dense layer, and one with routed and shared experts."""
    return Case("tiny-moe", layout, workload, policy, layers)


OF_ONE = [tied(""), normed(""), mixture(""), normed("", f"{TRAIN},recompute=full"), normed("", f"{TRAIN},recompute=selective")]
OF_TWO = [
    normed("tp=2"),
    normed("tp=2,sp"),
    normed("tp=2", ONE, policy="tp=split_batch"),
    normed("tp=2,sp", policy="tp=split_batch"),
    normed("tp=2,sp", policy="tp=delay_wgrad"),
    normed("pp=2"),
    normed("pp=2,schedule=zb-h1"),
    normed("dp=2"),
    normed("dp=2,zero=1"),
    normed("dp=2,zero=2"),
    normed("fsdp=2"),
    normed("fsdp=2", policy="fsdp=prefetch:1"),
    normed("cp=2"),
    normed("cp=2:ulysses"),
    tied("tp=2"),
    tied("tp=2,sp"),
    tied("pp=2"),
    tied("pp=2,schedule=zb-h1"),
    tied("pp=2,schedule=interleaved:2", layers=4),
    tied("pp=2,schedule=dualpipev", "train,gbs=8,mbs=2,seq=16,precision=fp32", layers=4),
    tied("pp=2", policy="pp=async_p2p"),
    tied("dp=2"),
    tied("dp=2", policy="dp=bucket:100kB"),
    tied("dp=2,zero=1"),
    tied("dp=2,zero=2"),
    tied("fsdp=2"),
    tied("fsdp=2", policy="fsdp=prefetch:1"),
    tied("cp=2"),
    mixture("tp=2"),
    mixture("tp=2,sp"),
    mixture("tp=2,sp", f"{TRAIN},recompute=full"),
    mixture("tp=2,ep=2,etp=1"),
    mixture("tp=2,sp,ep=2,etp=1"),
    shared("tp=2,sp"),
    shared("tp=2,sp", policy="tp=split_batch"),
    shared("tp=2,ep=2,etp=1"),
    shared("tp=2,ep=2,etp=1", policy="ep=split_batch"),
    shared("tp=2,sp,ep=2,etp=1", policy="ep=shared_expert"),
    mixture("dp=2,ep=2"),
    mixture("fsdp=2,ep=2"),
    mixture("dp=2,ep=2", f"{TRAIN},recompute=full"),
]
OF_FOUR = [
    normed("tp=2,pp=2"),
    normed("tp=2,dp=2"),
    normed("tp=2,fsdp=2"),
    normed("tp=2,cp=2"),
    normed("tp=2,sp,cp=2:ulysses"),
    tied("tp=2,pp=2"),
    tied("pp=2,dp=2"),
    tied("pp=2,dp=2", policy="dp=bucket:100kB"),
    tied("pp=2,dp=2,zero=1"),
    tied("pp=2,fsdp=2"),
    tied("pp=4", layers=4),
    mixture("tp=2,dp=2,ep=2"),
    shared("tp=2,sp,dp=2,ep=2"),
    shared("tp=2,sp,dp=2,ep=2", policy="ep=split_batch"),
    shared("tp=2,dp=2,ep=2,etp=1"),
    shared("tp=2,sp,dp=2,ep=4,etp=1"),
    mixture("tp=2,sp,fsdp=2,ep=2"),
    mixture("tp=2,sp,pp=2"),
    mixture("tp=2,sp,cp=2,ep=2"),
    mixture("tp=2,pp=2"),
]
ALL = OF_ONE + OF_TWO + OF_FOUR


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Results]:
    return run_cases(tmp_path_factory.mktemp("results"), ALL)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_loss_and_every_gradient_equal_those_of_one_process(case: Case, results: dict[Case, Results]) -> None:
    loss, gradients = layouts.expected(case)
    assert layouts.total_loss(case, results[case]) == pytest.approx(loss, rel=TOLERANCE)
    found = layouts.differences(case, results[case], gradients)
    assert {name.partition("@")[0] for name in found} == layouts.weights_of(results[case])
    assert max(found.values()) < TOLERANCE, max(found, key=found.__getitem__)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_bytes_handed_over_equal_the_ledger_of_the_plan(case: Case, results: dict[Case, Results]) -> None:
    assert layouts.counted_bytes(results[case]) == layouts.planned_bytes(case)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_every_planned_collective_is_carried_out_and_no_other(case: Case, results: dict[Case, Results]) -> None:
    for result in results[case]:
        assert sorted(result["keys"]) == sorted(result["planned"])
