"""The engine against torch's own pieces: FSDP2, tensor parallel, pipelining, DeviceMesh. Same weights and batch on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import layouts, torch_pieces  # noqa: E402 - only with torch
from tests.run.counting import added  # noqa: E402 - only with torch
from tests.run.layouts import Case  # noqa: E402 - only with torch
from underlap.ledger import ledger  # noqa: E402 - only with torch
from underlap.run.launch import Local, launch  # noqa: E402 - only with torch

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left there in one launch, as loading torch's pieces takes them longest."""
    found = tmp_path_factory.mktemp("pieces")
    launch(torch_pieces.run_all, [torch_pieces.Pieces(PAIRS, found)] * 2, Local(ranks=2, timeout_s=60))
    return found


def of_ranks(folder: Path, name: str, ranks: int = 2) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{name} rank{rank}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def theirs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {piece: of_ranks(folder, piece) for _, piece in PAIRS}


@pytest.fixture(scope="module")
def ours(folder: Path) -> dict[Case, list[dict[str, Any]]]:
    return {case: of_ranks(folder, case.name) for case, _ in PAIRS}


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


@pytest.mark.parametrize(("case", "piece"), PAIRS, ids=[piece for _, piece in PAIRS])
def test_bytes_of_the_piece_equal_the_ledger_but_for_what_is_named(case: Case, piece: str, theirs: Results) -> None:
    # torch calls the groups of a mesh dimension mesh_<dimension>.
    found = {(group.removeprefix("mesh_"), kind): size for (group, kind), size in sums(theirs[piece]).items()}
    _, job, _ = layouts.made(case)
    more = {key: size - found.get(key, 0) for key, size in layouts.planned_bytes(case).items()}
    micro_batches = 2 if piece == "fsdp" else 4
    known: dict[tuple[str, str], float] = {}
    if piece == "fsdp":
        # FSDP2 gathers the embedding again in the backward, whose gradient does not need it.
        known["fsdp", "all_gather"] = -2 * micro_batches * job.model.vocab * job.model.hidden * 4
    if piece == "tensor sequence":
        # The plan keeps a part of each gathered input and gathers again in the backward (Megatron); torch keeps it whole.
        known["tp", "all_gather"] = 2 * micro_batches * (2 * case.layers + 1) * 2 * 16 * job.model.hidden * 4
    if piece.startswith("pipeline"):
        # Stages tell each neighbor one number of 8 bytes before the first step.
        stages = 4 if "Interleaved" in piece else 2
        known["pp", "send"] = -8 * (stages - 1)
        assert found.pop(("pp", "recv")) == found["pp", "send"]
    assert set(found) == set(more)
    assert more == {key: known.get(key, 0) for key in more}


GROUPED = (
    Case("tiny-dense", "tp=2,pp=2", TRAIN),
    Case("tiny-dense", "dp=2,fsdp=2", TRAIN),
    Case("tiny-dense", "cp=2,fsdp=2", TRAIN),
    Case("tiny-moe", "cp=2,dp=2,ep=4", TRAIN),
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
    # One more for each of ep: the numbers of rows have groups of their own. Two more for each pair that exchanges something.
    expected = sum(map(len, tables.values())) + len(tables.get("ep", ()))
    exchanging = {entry.group for entry in ledger(plan) if entry.collective not in ("all_reduce", "send")}
    exchanging |= {"tp"} if "tp=2,pp" in case.layout else set()  # which gathers the parts of messages
    expected += sum(2 for name in exchanging for row in tables[name] if len(row) == 2)
    for rank, found in enumerate(grouped[case]):
        own = {name: next(row for row in table if rank in row) for name, table in tables.items()}
        assert found["mesh"] == own
        assert found["own"] == own | ({"ep counts": own["ep"]} if "ep" in own else {})
        assert found["made"] == expected
