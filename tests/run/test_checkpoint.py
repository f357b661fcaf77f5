"""Weights of a Hugging Face folder: read in part, by every rank, and refused in one line where they are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import checkpoints, reference  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402 - only with torch
from underlap.errors import InputError  # noqa: E402 - only with torch
from underlap.run.checkpoint import Checkpoint  # noqa: E402 - only with torch
from underlap.run.engine import Inputs, batch_of  # noqa: E402 - only with torch
from underlap.run.weights import Division  # noqa: E402 - only with torch

TRAIN = "train,gbs=4,mbs=2,seq=8,precision=fp32"


@pytest.mark.parametrize("family", sorted(checkpoints.CONFIGS))
def test_every_part_of_every_parameter_is_read_as_it_was_written(family: str, tmp_path: Path) -> None:
    full = checkpoints.folder_of(tmp_path, family)
    model = inputs.model(str(tmp_path))
    found = Checkpoint(tmp_path, model)
    for (name, layer), tensor in full.items():
        shape = tuple(tensor.shape)
        for dim in range(len(shape)):
            part = found.part(name, layer, shape, dim, shape[dim] // 2, shape[dim] // 2)
            assert torch.equal(part, tensor.narrow(dim, shape[dim] // 2, shape[dim] // 2)), (name, dim)
    assert found.constants.rope_theta == 500000.0


def test_the_loss_of_two_ranks_is_that_of_the_reference_on_the_same_weights(tmp_path: Path) -> None:
    full = checkpoints.folder_of(tmp_path / "weights", "mixtral")
    model = inputs.model(str(tmp_path / "weights"))
    out = tmp_path / "trial.json"
    command = ["run", "--model", str(tmp_path / "weights"), "--layout", "tp=2", "--workload", TRAIN, "--repetitions", "1"]
    result = CliRunner().invoke(main, [*command, "--json", str(out)])
    assert result.exit_code == 0, result.output
    job = Inputs(
        model=model, layout=inputs.layout(""), workload=inputs.workload(TRAIN), parameters=reference.Tensors(full), seed=0
    )
    # The third step: two warmed up. Adam has moved the weights, the same way for both.
    wanted = trained(model, full, batch_of(job), steps=3)
    assert json.loads(out.read_text())["variants"][0]["loss"] == pytest.approx(wanted, rel=1e-4)


def trained(model: object, full: reference.Full, batch: object, steps: int) -> float:
    """The loss of the last of some steps of torch's own Adam."""
    parameters = {key: tensor.clone().requires_grad_() for key, tensor in full.items()}
    adam = torch.optim.Adam(parameters.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    found = torch.zeros(())
    for _ in range(steps):
        adam.zero_grad()
        found = _loss(model, parameters, batch)
        found.backward()
        adam.step()
    return float(found.detach())


def _loss(model: object, parameters: reference.Full, batch: object) -> object:
    from torch.nn import functional

    found = reference.logits(model, parameters, batch[:, :-1], theta=500000.0)  # type: ignore[arg-type,index]  # a mapping that reads on demand
    return functional.cross_entropy(found.reshape(-1, found.shape[-1]), batch[:, 1:].reshape(-1))  # type: ignore[index]  # a batch of tokens


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "is missing: expected the weights of"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is cut off: "),
    ],
    ids=["missing", "corrupt"],
)
def test_a_shard_that_ranks_cannot_read_is_named_once(damage: object, said: str, tmp_path: Path) -> None:
    checkpoints.folder_of(tmp_path, "llama")
    damage(tmp_path / "model-00002-of-00002.safetensors")  # type: ignore[operator]  # a function of the parametrization
    result = CliRunner().invoke(main, ["run", "--model", str(tmp_path), "--layout", "tp=2", "--workload", TRAIN])
    assert result.exit_code == 2
    lines = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert len(lines) == 1
    assert lines[0].startswith("Error: rank ")
    assert f"model-00002-of-00002.safetensors {said}" in lines[0]
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: raw[:4], "is damaged: its header would have"),
        (lambda raw: b"\xff" * 8 + raw[8:], "is damaged: its header would have"),
        (lambda raw: raw[:9] + b"?" + raw[10:], "is damaged: its header is no JSON"),
        (lambda raw: raw[:-100], "is cut off: "),
    ],
    ids=["empty", "length", "header", "data"],
)
def test_a_damaged_shard_is_named(damage: object, said: str, tmp_path: Path) -> None:
    checkpoints.folder_of(tmp_path, "llama")
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]  # a function of the parametrization
    with pytest.raises(InputError, match=f"model-00001-of-00002.safetensors {said}"):
        Checkpoint(tmp_path, inputs.model(str(tmp_path)))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    checkpoints.folder_of(tmp_path, "llama")
    config = {**checkpoints.CONFIGS["llama"], "intermediate_size": 56}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = inputs.model(str(tmp_path))
    with pytest.raises(InputError, match=r"mlp.gate of layer 0 has the shape \(48, 32\): expected \(56, 32\)"):
        Division(model, inputs.layout(""), 0, Checkpoint(tmp_path, model)).local("mlp.up", 0)


def test_scaled_positions_are_refused(tmp_path: Path) -> None:
    checkpoints.folder_of(tmp_path, "llama")
    config = {**checkpoints.CONFIGS["llama"], "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="rope_type is 'llama3': positions that are scaled cannot be run yet"):
        Checkpoint(tmp_path, inputs.model(str(tmp_path)))
