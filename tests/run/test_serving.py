"""Prefill and decode with a cache give the logits and the tokens of the whole model run anew for every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import reference, serving  # noqa: E402 - only with torch
from tests.run.serving import Serving  # noqa: E402 - only with torch
from underlap.run.launch import Local, launch  # noqa: E402 - only with torch

LAYOUTS = [
    ("tiny-dense", "tp=2"),
    ("tiny-moe", "tp=2"),
    ("tiny-moe", "dp=2,ep=2"),
    ("tiny-dense", "fsdp=2"),
    ("tiny-qwen3-moe", "tp=2"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("serving")
    asked = [Serving(model, layout, made) for model, layout in LAYOUTS]
    launch(serving.both, [asked] * 2, Local(ranks=2, timeout_s=120))
    return made


def expected_tokens(name: str) -> Any:
    model = serving.model_of(name)
    full, whole = serving.full(model), serving.prompts(model)
    for _ in range(serving.NEW):
        best = reference.logits(model, full, whole)[:, -1].argmax(-1)
        whole = torch.cat((whole, best[:, None]), dim=1)
    return whole


@pytest.mark.parametrize(("model", "layout"), LAYOUTS)
def test_greedy_decode_gives_the_tokens_of_the_reference(model: str, layout: str, folder: Path) -> None:
    found = [torch.load(folder / f"{model} {layout} rank{rank}.pt") for rank in range(2)]
    whole = expected_tokens(model)
    if layout.startswith("tp"):
        assert all(torch.equal(each, whole) for each in found)
    else:
        assert torch.equal(torch.cat(found), whole)
    assert len(set(whole[:, serving.PROMPT :].flatten().tolist())) > 2


@pytest.mark.parametrize(("model", "layout"), LAYOUTS)
def test_prefill_gives_the_logits_of_the_last_tokens(model: str, layout: str, folder: Path) -> None:
    shape = serving.model_of(model)
    wanted = reference.logits(shape, serving.full(shape), serving.prompts(shape))[:, -1]
    for rank in range(2):
        logits, first, vocab = torch.load(folder / f"{model} {layout} prefill rank{rank}.pt")
        part = wanted[first : first + logits.shape[0], vocab : vocab + logits.shape[1]]
        assert float((logits - part).abs().max() / part.abs().max()) < 1e-5
