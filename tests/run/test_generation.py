"""A prefill and a greedy decode behind it give, token by token, what `transformers` generates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")
pytest.importorskip("transformers", reason="transformers is not installed: make test, or pip install -e .[dev]")

from tests.run import layouts, serving, transformers_models  # noqa: E402 - only with both
from tests.run.serving import Generation  # noqa: E402 - only with torch
from tests.run.transformers_models import Saved  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402 - only with torch
from underlap.run.engine import batch_of  # noqa: E402 - only with torch
from underlap.run.launch import Local, launch  # noqa: E402 - only with torch

NEW = 12
TOLERANCE = 1e-5
WHOLE = "prefill,batch=4,seq=6,precision=fp32"
ONE_BY_ONE = "prefill,batch=4,mbs=1,seq=6,precision=fp32"
CASES = [
    ("llama", "", WHOLE),
    ("llama", "tp=2", WHOLE),
    ("llama", "tp=2", ONE_BY_ONE),
    ("llama", "tp=2,sp", WHOLE),
    ("llama", "dp=2", WHOLE),
    ("llama", "pp=2", WHOLE),
    ("llama", "pp=2", ONE_BY_ONE),
    ("mixtral", "", WHOLE),
    ("mixtral", "tp=2", WHOLE),
    ("mixtral", "pp=2", WHOLE),
    ("mixtral", "dp=2,ep=2", WHOLE),
    ("mixtral", "dp=2,ep=2", ONE_BY_ONE),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    folder = tmp_path_factory.mktemp("models")
    return {family: transformers_models.saved(family, folder) for family in ("llama", "mixtral")}


@pytest.fixture(scope="module")
def results(models: dict[str, Saved], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], list[Any]]:
    """(which of the batch, tokens, logits) of each rank."""
    folder = tmp_path_factory.mktemp("generated")
    asked = {case: Generation(models[case[0]].folder, case[1], case[2], NEW, folder) for case in CASES}
    launch(serving.generated, [list(asked.values())] * 2, Local(ranks=2, timeout_s=120))
    return {
        case: [torch.load(folder / f"{one.name} rank{rank}.pt") for rank in range(inputs.layout(one.layout).world)]
        for case, one in asked.items()
    }


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_greedy_tokens_and_their_logits_equal_those_that_transformers_generates(
    case: tuple[str, str, str], models: dict[str, Saved], results: dict[tuple[str, str, str], list[Any]]
) -> None:
    saved = models[case[0]]
    job, _ = serving.jobs(Generation(saved.folder, case[1], case[2], NEW, saved.folder))
    wanted, logits = transformers_models.generated(saved, batch_of(job)[:, :-1], NEW)
    compared = 0
    for index, tokens, steps in results[case]:
        assert torch.equal(tokens, wanted[index * tokens.shape[0] :][: tokens.shape[0]])
        for number, (sequence, _, first, values) in enumerate(steps):
            part = logits[sequence, number + 1, first : first + values.shape[1]]
            assert layouts.relative(values, part) < TOLERANCE
            compared += values.numel()
    assert compared == logits[:, 1:].numel()


def test_decode_of_the_command_goes_on_from_a_prefilled_prompt(models: dict[str, Saved], tmp_path: Path) -> None:
    saved, out = models["mixtral"], tmp_path / "trial.json"
    command = ["run", "--model", str(saved.folder), "--layout", "dp=2,ep=2", "--overlap", "ep=split_batch", "--ab"]
    work = "decode,batch=4,context=6,precision=fp32"
    result = CliRunner().invoke(main, [*command, "--workload", work, "--repetitions", "2", "--json", str(out)])
    assert result.exit_code == 0, result.output
    job, _ = serving.jobs(Generation(saved.folder, "", WHOLE, NEW, tmp_path))
    wanted, _ = transformers_models.generated(saved, batch_of(job)[:, :-1], 2)
    trial = json.loads(out.read_text())
    assert [variant["tokens"] for variant in trial["variants"]] == [wanted[:, 1].tolist()] * 2
    assert trial["ab"]["max_output_difference"] < 1e-5
