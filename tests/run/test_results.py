"""Losses, gradients, weights and bytes of many layouts and passes equal those of one process and of autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import layouts  # noqa: E402 - only with torch
from tests.run.layouts import Case, Results, identifier, run_cases  # noqa: E402 - only with torch

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


ALL = OF_ONE + OF_TWO + OF_FOUR + PASSES


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Results]:
    return run_cases(tmp_path_factory.mktemp("results"), ALL)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_logits_loss_and_every_gradient_equal_those_of_autograd(case: Case, results: dict[Case, Results]) -> None:
    loss, gradients = layouts.expected(case)
    assert layouts.total_loss(case, results[case]) == pytest.approx(loss, rel=TOLERANCE)
    found = layouts.differences(case, results[case], gradients)
    assert len(found) >= 15
    assert max(found.values()) < TOLERANCE, max(found, key=found.__getitem__)
    assert layouts.logits_difference(results[case], layouts.expected_logits(case)) < TOLERANCE


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_bytes_at_the_process_groups_equal_the_ledger_of_the_plan(case: Case, results: dict[Case, Results]) -> None:
    assert layouts.counted_bytes(results[case]) == layouts.planned_bytes(case)


@pytest.mark.parametrize("case", ALL, ids=identifier)
def test_what_torch_sees_at_the_process_groups_is_what_the_engine_counts(case: Case, results: dict[Case, Results]) -> None:
    uneven = 0
    for result in results[case]:
        ways = {group.partition(" from its ")[0] for group, _ in result["seen"] if " from its " in group}
        every = dict(result["counted"])
        for (group, collective, what), size in result["control"].items():
            name = f"{group} counts" if what == "numbers of rows" else group
            every[name, collective] = every.get((name, collective), 0) + size
        counted = at_groups(every, ways)
        assert seen_at_groups(result, ways) == {key: size for key, size in counted.items() if size}
        # Between two ranks: it keeps as many rows as it sends, or not.
        uneven += result["uneven"] + (2 * result["kept"].get("ep", 0) != counted.get(("ep", "said"), 0))
    if len(results[case]) == 2:
        for group, collective in results[case][0]["seen"]:
            if " from its " in group:
                # What a rank of a pair hears is what the other says.
                first, second = (result["seen"][group, collective] for result in results[case])
                assert first == second
    assert (uneven > 0) == ("ep=" in case.layout)


def at_groups(counted: dict[tuple[str, str], int], ways: set[str]) -> dict[tuple[str, str], int]:
    """With a reduce-scatter as what the engine makes of it over gloo, an all-to-all of the same bytes; and where two ranks
    exchange over a group for each way, with what this rank says: half of what it gathers, and all that it sends, itself
    included."""
    found: dict[tuple[str, str], int] = {}
    for (group, collective), size in counted.items():
        key = group, "all_to_all" if collective == "reduce_scatter" else collective
        if group in ways and key[1] in ("all_to_all", "all_gather"):
            key = group, "said"
        found[key] = found.get(key, 0) + (size // 2 if key[1] == "said" and collective == "all_gather" else size)
    return found


def seen_at_groups(result: dict[str, Any], ways: set[str]) -> dict[tuple[str, str], int]:
    """The same of what torch saw. A message is counted where it is sent, a broadcast where it comes from."""
    said = {f"{group} from its {'first' if result['place'][group] == 0 else 'second'} rank" for group in ways}
    found: dict[tuple[str, str], int] = {(group, "said"): result["kept"][group] for group in ways if result["kept"].get(group)}
    for (group, collective), size in result["seen"].items():
        key = group, collective
        if group.partition(" from its ")[0] in ways and collective == "broadcast":
            if group not in said:
                continue
            key = group.partition(" from its ")[0], "said"
        if collective != "recv" and size:
            found[key] = found.get(key, 0) + size
    return found


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
