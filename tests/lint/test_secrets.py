"""Only settings that a rule knows are ever shown: planted secrets appear in no output, whatever the file and whatever "
"goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from underlap.cli import main

SECRET = "hf_PLANTEDzX81secret"
KNOWN = "--tp-comm-overlap --tensor-model-parallel-size 8"

PLANTED = {
    "export.sh": f"""\
export HF_TOKEN={SECRET}
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun pretrain_gpt.py {KNOWN} --wandb-key {SECRET}
""",
    "prefix.sh": f"WANDB_API_KEY={SECRET} AWS_SECRET='{SECRET}' torchrun pretrain_gpt.py {KNOWN}\n",
    "value.sh": f"torchrun pretrain_gpt.py {KNOWN} --moe-token-dispatcher-type {SECRET} --optimization-level {SECRET}\n",
    "known.sh": f"""\
export CUDA_DEVICE_MAX_CONNECTIONS={SECRET}
export VLLM_ALL2ALL_BACKEND={SECRET}
torchrun pretrain_gpt.py {KNOWN}
""",
    "url.sh": f"curl https://user:{SECRET}@host/x\ntorchrun --rdzv {SECRET}:29500 {SECRET}/pretrain_gpt.py {KNOWN}\n",
    "unclosed.sh": f"export A='{SECRET}\ntorchrun pretrain_gpt.py {KNOWN}\n",
    "inner.sh": f"srun bash -c 'export TOKEN={SECRET}; python {SECRET}.py {KNOWN}'\n",
    "xla.sh": f"""\
export XLA_FLAGS="--xla_dump_to=/{SECRET} --xla_gpu_disable_async_collectives={SECRET}"
python -m MaxText.train
""",
    "flags.yaml": f"""\
env:
  TOKEN: {SECRET}
  CUDA_DEVICE_MAX_CONNECTIONS: {SECRET}
tp_comm_overlap: true
sequence_parallel: false
""",
    "list.yaml": f"""\
env:
- name: TOKEN
  value: {SECRET}
args: [--token, {SECRET}, --enable-dbo]
{SECRET}: {{tp_comm_overlap: true}}
""",
    "broken.yaml": f"token: {SECRET}\n  bad: [{SECRET}\n",
    "tag.yaml": f"token: !!{SECRET} x\nother: *{SECRET}\n",
    "job.json": json.dumps(
        {"token": SECRET, SECRET: {"overlap_comm": True}, "zero_optimization": {"stage": SECRET, "overlap_comm": True}}
    ),
    "broken.json": f'{{"token": "{SECRET}", "overlap_comm": tru',
    "job.toml": f'token = "{SECRET}"\n[parallelism]\nenable_async_tensor_parallel = true\n',
    "broken.toml": f'token = "{SECRET}"\ntoken = "{SECRET}"\n[{SECRET}]\n[{SECRET}]\n',
    "job.env": f"TOKEN={SECRET}\nCUDA_DEVICE_MAX_CONNECTIONS={SECRET}\n",
    "recipe.py": f"token = '{SECRET}'\n",
}


def outputs(folder: Path, *words: str) -> str:
    """Everything that the command writes, on both streams and as JSON."""
    written = []
    for form in ([], ["--json", "-"], ["--json", str(folder / "out.json"), "--force"]):
        result = CliRunner().invoke(main, ["lint", *words, *form])
        assert result.exit_code in (0, 1, 2), result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit)
        written.append(result.output)
    target = folder / "out.json"
    return "".join(written) + (target.read_text() if target.exists() else "")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_secret_is_never_shown(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PLANTED[name])

    assert SECRET not in outputs(tmp_path, str(path))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_secret_is_never_shown_as_an_environment(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PLANTED[name])

    assert SECRET not in outputs(tmp_path, "--env", str(path))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_secret_is_never_shown_by_a_comparison(name: str, tmp_path: Path) -> None:
    one, other = tmp_path / f"a-{name}", tmp_path / f"b-{name}"
    one.write_text(PLANTED[name])
    other.write_text(PLANTED[name].replace(SECRET, f"{SECRET}2"))

    assert SECRET not in outputs(tmp_path, str(one), str(other))


def test_the_environment_of_the_process_is_shown_only_where_a_rule_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.setenv("VLLM_ALL2ALL_BACKEND", SECRET)
    shown = outputs(tmp_path)

    assert SECRET not in shown
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in shown


def test_options_with_a_wrong_value_are_refused_without_repeating_it(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("true\n")
    for words in (["--gpu", SECRET], ["--version", f"vllm={SECRET}"]):
        result = CliRunner().invoke(main, ["lint", str(tmp_path / "a.sh"), *words])
        assert (result.exit_code, SECRET in result.output) == (2, False)
