"""Logits, loss and every gradient of a checkpoint of Hugging Face equal those that `transformers` gives, in all layouts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")
pytest.importorskip("transformers", reason="transformers is not installed: make test, or pip install -e .[dev]")

from tests.run import layouts, reference, transformers_models  # noqa: E402 - only with both
from tests.run.layouts import Case  # noqa: E402 - only with torch
from tests.run.transformers_models import LAYERS, Saved  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402 - only with torch
from underlap.run.checkpoint import Checkpoint  # noqa: E402 - only with torch
from underlap.run.engine import Inputs, batch_of  # noqa: E402 - only with torch

TRAIN = "train,gbs=8,mbs=2,seq=16,precision=fp32"
TOLERANCE = 1e-5

LAYOUTS = {
    "llama": (
        "",
        "tp=2",
        "tp=2,sp",
        "pp=2",
        "pp=2,schedule=gpipe",
        "pp=2,schedule=interleaved:2",
        "pp=2,schedule=zb-h1",
        "pp=2,schedule=dualpipev",
        "dp=2",
        "fsdp=2",
        "cp=2",
        "cp=2:ulysses",
        "tp=2,pp=2",
        "tp=2,dp=2",
        "tp=2,cp=2",
        "tp=2,sp,cp=2:ulysses",
    ),
    "llama, tied": ("tp=2,sp", "pp=2", "fsdp=2"),
    "qwen3": ("tp=2", "tp=2,sp", "pp=2"),
    "qwen3 moe": (
        "tp=2",
        "tp=2,sp",
        "pp=2",
        "dp=2",
        "dp=2,ep=2",
        "fsdp=2,ep=2",
        "cp=2",
        "cp=2:ulysses",
        "tp=2,dp=2,ep=2",
    ),
    "mixtral": (
        "",
        "tp=2",
        "tp=2,sp",
        "pp=2",
        "pp=2,schedule=gpipe",
        "pp=2,schedule=interleaved:2",
        "pp=2,schedule=zb-h1",
        "pp=2,schedule=dualpipev",
        "dp=2",
        "dp=2,ep=2",
        "fsdp=2,ep=2",
        "cp=2",
        "cp=2:ulysses",
        "tp=2,pp=2",
        "tp=2,dp=2,ep=2",
        "tp=2,cp=2",
    ),
}
PREFILL = "prefill,batch=8,mbs=2,seq=16,precision=fp32"
ALONE = "prefill,batch=8,mbs=1,seq=16,precision=fp32"
PROMPTS = [
    ("llama", "tp=2", PREFILL, ""),
    ("llama", "tp=2,sp", PREFILL, ""),
    ("llama", "dp=2", PREFILL, ""),
    ("llama", "pp=2", PREFILL, ""),
    ("llama", "cp=2", PREFILL, ""),
    ("llama", "cp=2:ulysses", PREFILL, ""),
    ("llama", "tp=2,pp=2", PREFILL, ""),
    ("llama", "tp=2,cp=2", PREFILL, ""),
    ("llama", "tp=2", PREFILL, "tp=split_batch"),
    ("llama", "tp=2", ALONE, "tp=split_batch"),
    ("llama", "tp=2,sp", PREFILL, "tp=decompose:4"),
    ("mixtral", "tp=2", PREFILL, ""),
    ("mixtral", "dp=2,ep=2", PREFILL, ""),
    ("mixtral", "pp=2", PREFILL, ""),
    ("mixtral", "cp=2", PREFILL, ""),
    ("mixtral", "cp=2:ulysses", PREFILL, ""),
    ("mixtral", "tp=2,dp=2,ep=2", PREFILL, ""),
    ("mixtral", "dp=2,ep=2", PREFILL, "ep=split_batch"),
]
"""(family, layout, workload, passes)."""
ALL = [(family, layout) for family, named in LAYOUTS.items() for layout in named]


class _Asked:
    """Parameters that note which elements of them were asked for."""

    def __init__(self, found: Checkpoint) -> None:
        self.found = found
        self.seen: dict[tuple[str, int], Any] = {}

    def part(self, name: str, layer: int, shape: tuple[int, ...], dim: int, begin: int, length: int) -> Any:
        seen = self.seen.setdefault((name, layer), torch.zeros(shape, dtype=torch.bool))
        seen.narrow(dim, begin, length).fill_(True)
        return self.found.part(name, layer, shape, dim, begin, length)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    folder = tmp_path_factory.mktemp("models")
    return {family: transformers_models.saved(family, folder) for family in LAYOUTS}


@pytest.fixture(scope="module")
def wanted(models: dict[str, Saved]) -> dict[str, tuple[float, Any]]:
    """(loss, logits) of each family."""
    found = {}
    for family, saved in models.items():
        _, job, _ = layouts.made(case_of(saved, ""))
        found[family] = transformers_models.trained(saved, batch_of(job))
    return found


@pytest.fixture(scope="module")
def results(models: dict[str, Saved], tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[dict[str, Any]]]:
    cases = [case_of(models[family], layout, *rest) for family, layout, *rest in [*ALL, *PROMPTS]]
    return layouts.run_cases(tmp_path_factory.mktemp("results"), cases)


def case_of(saved: Saved, layout: str, workload: str = TRAIN, policy: str = "") -> Case:
    return Case(str(saved.folder), layout, workload, policy, LAYERS)


@pytest.mark.parametrize(("family", "layout"), ALL)
def test_logits_loss_and_every_gradient_equal_those_of_transformers(
    family: str,
    layout: str,
    models: dict[str, Saved],
    wanted: dict[str, tuple[float, Any]],
    results: dict[Case, list[dict[str, Any]]],
) -> None:
    case = case_of(models[family], layout)
    loss, logits = wanted[family]
    _, job, _ = layouts.made(case)
    gradients = _Asked(Checkpoint(models[family].gradients, job.model))
    found = {
        "loss": abs(layouts.total_loss(case, results[case]) / loss - 1),
        "logits": layouts.logits_difference(results[case], logits),
        **layouts.differences(case, results[case], gradients),
    }
    assert max(found.values()) < TOLERANCE, max(found, key=found.__getitem__)
    # Every number of the model was compared.
    assert all(bool(seen.all()) for seen in gradients.seen.values())
    assert sum(seen.numel() for seen in gradients.seen.values()) == models[family].model.num_parameters()


@pytest.mark.parametrize("prompt", PROMPTS, ids=" ".join)
def test_logits_behind_a_prompt_equal_those_of_transformers(
    prompt: tuple[str, str, str, str],
    models: dict[str, Saved],
    wanted: dict[str, tuple[float, Any]],
    results: dict[Case, list[dict[str, Any]]],
) -> None:
    family, *rest = prompt
    case = case_of(models[family], *rest)
    assert not results[case][0]["refused"]
    assert layouts.logits_difference(results[case], wanted[family][1]) < TOLERANCE
    assert layouts.counted_bytes(results[case]) == layouts.planned_bytes(case)


def test_weights_are_read_as_transformers_saved_them(models: dict[str, Saved]) -> None:
    for family, saved in models.items():
        found = Checkpoint(saved.folder, inputs.model(str(saved.folder)))
        named = dict(saved.model.named_parameters())
        query = found.part("attention.query", 1, (32, 64), 1, 16, 16)
        assert torch.equal(query, named["model.layers.1.self_attn.q_proj.weight"].t()[:, 16:32]), family
        assert found.constants.rope_theta == 500000.0
        assert found.constants.norm_epsilon == 1e-4


def test_the_reference_of_these_tests_agrees_with_transformers(models: dict[str, Saved], wanted: dict[str, Any]) -> None:
    """Most tests compare with it, as it needs no library."""
    for family, saved in models.items():
        model = inputs.model(str(saved.folder))
        found = Checkpoint(saved.folder, model)
        job = Inputs(model=model, layout=inputs.layout(""), workload=inputs.workload(TRAIN), parameters=found)
        full = {key: found.part(*key, shape, 0, 0, shape[0]) for key, shape in reference.full_shapes(model).items()}
        logits = reference.logits(model, full, batch_of(job)[:, :-1], theta=500000.0, epsilon=1e-4)
        assert layouts.relative(logits, wanted[family][1]) < TOLERANCE
