"""The engine against torch's own pieces: FSDP2, tensor parallel, pipelining, DeviceMesh. Same weights, same batch, real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import layouts, torch_pieces  # noqa: E402 - only with torch
from tests.run.counting import added  # noqa: E402
from tests.run.layouts import Case  # noqa: E402
from underlap.run.launch import Local, launch  # noqa: E402

TRAIN = "train,gbs=8,mbs=2,seq=16,precision=fp32"
TOLERANCE = 1e-5


def dense(layout: str, layers: int = 2) -> Case:
    return Case("tiny-dense", layout, TRAIN, "", layers)


PAIRS = (
    (dense("fsdp=2"), "fsdp"),
    (dense("tp=2"), "tensor plain"),
    (dense("tp=2,sp"), "tensor sequence"),
    (dense("pp=2,schedule=gpipe"), "pipeline GPipe"),
    (dense("pp=2"), "pipeline 1F1B"),
    (dense("pp=2,schedule=interleaved:2", layers=4), "pipeline Interleaved1F1B"),
    (dense("pp=2,schedule=interleaved:2", layers=4), "pipeline InterleavedZeroBubble"),
)
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("theirs")
    launch(torch_pieces.run_all, [torch_pieces.Pieces(PAIRS, folder)] * 2, Local(ranks=2, timeout_s=30))
    return {
        piece: [torch.load(folder / f"{piece} rank{rank}.pt", weights_only=False) for rank in range(2)] for _, piece in PAIRS
    }


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ours")
    cases = tuple(dict.fromkeys(case for case, _ in PAIRS))
    launch(layouts.run_all, [layouts.Cases(cases, folder)] * 2, Local(ranks=2, timeout_s=30))
    return {case: [torch.load(folder / f"{case.name} rank{rank}.pt", weights_only=False) for rank in range(2)] for case in cases}


def sums(results: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return added([each["bytes"] for each in results])


@pytest.mark.parametrize(("case", "piece"), PAIRS, ids=[piece for _, piece in PAIRS])
def test_loss_and_every_gradient_equal_those_of_the_piece(
    case: Case, piece: str, ours: dict[Case, list[dict[str, Any]]], theirs: Results
) -> None:
    gradients = {key: value for result in theirs[piece] for key, value in result["gradients"].items()}
    assert set(gradients) == set(layouts.expected(case)[1])
    losses = [result["loss"] for result in theirs[piece]]
    loss = sum(losses) if piece.startswith(("fsdp", "pipeline")) else losses[0]
    assert layouts.total_loss(case, ours[case]) == pytest.approx(loss, rel=TOLERANCE)
    found = layouts.differences(case, ours[case], gradients)
    assert len(found) >= 15
    assert max(found.values()) < TOLERANCE, max(found, key=found.__getitem__)


def test_print(theirs: Results) -> None:
    for case, piece in PAIRS:
        print(piece, sums(theirs[piece]), theirs[piece][0]["calls"], "PLAN", layouts.planned_bytes(case))


GROUPED = (
    Case("tiny-dense", "tp=2,pp=2", TRAIN),
    Case("tiny-dense", "tp=2,dp=2", TRAIN),
    Case("tiny-dense", "dp=2,cp=2", TRAIN),
    Case("tiny-dense", "dp=2,fsdp=2", TRAIN),
    Case("tiny-dense", "cp=2,fsdp=2", TRAIN),
    Case("tiny-moe", "dp=4,ep=2", TRAIN),
    Case("tiny-moe", "cp=2,dp=2,ep=4", TRAIN),
    Case("tiny-moe", "tp=2,dp=2,ep=2", TRAIN),
    Case("tiny-moe", "pp=2,dp=2,ep=2", TRAIN),
)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("groups")
    launch(torch_pieces.compare_groups, [torch_pieces.GroupCases(GROUPED, folder)] * 4, Local(ranks=4, timeout_s=30))
    return {case: [torch.load(folder / f"{case.name} rank{r}.pt", weights_only=False) for r in range(4)] for case in GROUPED}


@pytest.mark.parametrize("case", GROUPED, ids=lambda case: f"{case.model} {case.layout}")
def test_process_groups_are_those_of_the_layout_and_of_the_device_mesh(
    case: Case, grouped: dict[Case, list[dict[str, Any]]]
) -> None:
    plan, job, _ = layouts.made(case)
    tables = {name: job.layout.groups(*group.axis).tolist() for name, group in plan.groups.items()}
    # One more for each of ep: the numbers of rows have groups of their own.
    expected = sum(map(len, tables.values())) + len(tables.get("ep", ()))
    for rank, found in enumerate(grouped[case]):
        own = {name: next(row for row in table if rank in row) for name, table in tables.items()}
        assert found["mesh"] == own
        assert found["own"] == own | ({"ep counts": own["ep"]} if "ep" in own else {})
        assert found["made"] == expected
