"""What people start jobs with, read as it is meant: quotes, arrays, continuations, conditions, files of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lint.inputs import findings, lint
from underlap.lint_report import LintReport


def value(report: LintReport, name: str) -> str | None:
    """The value of a setting of the only job; fails where it was not read."""
    (job,) = report.jobs
    (row,) = [row for row in job.settings if row.name == name]
    return row.value


def test_an_empty_script_configures_nothing(tmp_path: Path) -> None:
    report = lint(tmp_path, {"train.sh": ""})

    assert [job.settings for job in report.jobs] == [[]]
    assert report.notes == ["train.sh: no setting in it is known to a rule"]


LAUNCHES = {
    "a continued line": "torchrun pretrain_gpt.py \\\n  --tensor-model-parallel-size 4 \\\n  --bf16\n",
    "an equals sign": "torchrun pretrain_gpt.py --tensor-model-parallel-size=4\n",
    "quotes": "torchrun pretrain_gpt.py --tensor-model-parallel-size \"4\" '--bf16'\n",
    "a variable": "TP=4\ntorchrun pretrain_gpt.py --tensor-model-parallel-size $TP\n",
    "a default": "torchrun pretrain_gpt.py --tensor-model-parallel-size ${TP:-4}\n",
    "a default in a variable": "TP=${TP_SIZE:-${SIZE:-4}}\ntorchrun pretrain_gpt.py --tensor-model-parallel-size ${TP}\n",
    "arithmetic": "N=2\ntorchrun pretrain_gpt.py --tensor-model-parallel-size $((N * 2))\n",
    "an array": "ARGS=(\n  --bf16 # why not\n  --tensor-model-parallel-size 4\n)\ntorchrun pretrain_gpt.py ${ARGS[@]}\n",
    "a quoted array": 'ARGS=(--tensor-model-parallel-size 4)\ntorchrun pretrain_gpt.py "${ARGS[@]}"\n',
    "an array that grows": "ARGS=(--bf16)\nARGS+=(--tensor-model-parallel-size 4)\ntorchrun pretrain_gpt.py ${ARGS[@]}\n",
    "a string of arguments": 'ARGS="--bf16 \\\n --tensor-model-parallel-size 4"\ntorchrun pretrain_gpt.py $ARGS\n',
    "a string that grows": 'ARGS="--bf16"\nARGS="$ARGS --tensor-model-parallel-size 4"\ntorchrun pretrain_gpt.py $ARGS\n',
    "a command in a variable": 'CMD="torchrun pretrain_gpt.py --tensor-model-parallel-size 4"\nsrun $CMD 2>&1 | tee log.txt\n',
    "eval": 'CMD="torchrun pretrain_gpt.py --tensor-model-parallel-size 4"\neval "$CMD"\n',
    "bash -c": "srun --mpi=pmix bash -c 'cd /opt && torchrun pretrain_gpt.py --tensor-model-parallel-size 4'\n",
    "ssh": 'ssh node1 "cd /opt; torchrun pretrain_gpt.py --tensor-model-parallel-size 4"\n',
    "a function": "run() {\n  torchrun pretrain_gpt.py --tensor-model-parallel-size 4\n}\nrun\n",
    "arguments alone": 'MODEL_ARGS="--tensor-model-parallel-size 4 --overlap-grad-reduce"\n',
}


@pytest.mark.parametrize("form", LAUNCHES)
def test_a_switch_is_found_in_every_form_of_a_launch(form: str, tmp_path: Path) -> None:
    assert value(lint(tmp_path, {"train.sh": LAUNCHES[form]}), "tensor_model_parallel_size") == "4"


VARIABLES = {
    "export": "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun train.py --fsdp_version 2\n",
    "export of several": 'export A=2 CUDA_DEVICE_MAX_CONNECTIONS="1" B=3\ntorchrun train.py --fsdp_version 2\n',
    "exported later": "CUDA_DEVICE_MAX_CONNECTIONS=1\nexport CUDA_DEVICE_MAX_CONNECTIONS\ntorchrun train.py --fsdp_version 2\n",
    "set -a": "set -a\nCUDA_DEVICE_MAX_CONNECTIONS=1\nset +a\ntorchrun train.py --fsdp_version 2\n",
    "before the program": "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun train.py --fsdp_version 2\n",
    "env": "env CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun train.py --fsdp_version 2\n",
    "mpirun -x": "mpirun -np 8 -x NCCL_DEBUG=INFO -x CUDA_DEVICE_MAX_CONNECTIONS=1 python train.py --fsdp_version 2\n",
    "docker -e": "docker run --rm -e CUDA_DEVICE_MAX_CONNECTIONS=1 image python train.py --fsdp_version 2\n",
    "srun --export": "srun --export=ALL,CUDA_DEVICE_MAX_CONNECTIONS=1 python train.py --fsdp_version 2\n",
    "bash -c with exports": "srun bash -c 'export CUDA_DEVICE_MAX_CONNECTIONS=1; python train.py --fsdp_version 2'\n",
}


@pytest.mark.parametrize("form", VARIABLES)
def test_a_variable_is_found_in_every_form_of_setting_it(form: str, tmp_path: Path) -> None:
    assert findings(lint(tmp_path, {"train.sh": VARIABLES[form]})) == ["connections-fsdp"]


NOT_SET = {
    "a comment": "# export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun train.py --fsdp_version 2\n",
    "unset": "export CUDA_DEVICE_MAX_CONNECTIONS=1\nunset CUDA_DEVICE_MAX_CONNECTIONS\ntorchrun train.py --fsdp_version 2\n",
    "overridden": "export CUDA_DEVICE_MAX_CONNECTIONS=1\nCUDA_DEVICE_MAX_CONNECTIONS=8 torchrun train.py --fsdp_version 2\n",
    "not exported": "CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun train.py --fsdp_version 2\n",
    "echo": "echo export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun train.py --fsdp_version 2\n",
    "under a condition": 'if [ "$TP" -gt 1 ]; then\n  export CUDA_DEVICE_MAX_CONNECTIONS=1\nfi\n'
    "torchrun train.py --fsdp_version 2\n",
    "after a test": '[ -n "$TP" ] && export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun train.py --fsdp_version 2\n',
    "unset under a condition": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    'if [ "$FSDP" -eq 1 ]; then\n  unset CUDA_DEVICE_MAX_CONNECTIONS\n'
    "fi\ntorchrun train.py --fsdp_version 2\n",
    "another branch": "case $MODE in\n  tp)\n    export CUDA_DEVICE_MAX_CONNECTIONS=1 ;;\nesac\ntorchrun train.py "
    "--fsdp_version 2\n",
    "a loop": "for n in 1 8 32; do\n  export CUDA_DEVICE_MAX_CONNECTIONS=$n\n  torchrun train.py --fsdp_version 2\ndone\n",
    "another program": "CUDA_DEVICE_MAX_CONNECTIONS=1 python convert.py --out x\ntorchrun train.py --fsdp_version 2\n",
    "unknown": "export CUDA_DEVICE_MAX_CONNECTIONS=$CONNECTIONS\ntorchrun train.py --fsdp_version 2\n",
}


@pytest.mark.parametrize("form", NOT_SET)
def test_what_is_not_certainly_set_raises_no_alarm(form: str, tmp_path: Path) -> None:
    assert findings(lint(tmp_path, {"train.sh": NOT_SET[form]})) == []


def test_a_switch_under_a_condition_is_shown_as_not_known(tmp_path: Path) -> None:
    script = 'ARGS="--bf16"\nif [ $X = 1 ]; then ARGS="$ARGS --overlap-grad-reduce"; fi\ntorchrun pretrain_gpt.py $ARGS\n'

    assert value(lint(tmp_path, {"train.sh": script}), "overlap_grad_reduce") is None


def test_defaults_hold_only_where_all_switches_were_seen(tmp_path: Path) -> None:
    seen = "torchrun pretrain_gpt.py --tp-comm-overlap --tensor-model-parallel-size 8"

    assert findings(lint(tmp_path / "all", {"train.sh": f"{seen}\n"})) == ["tp-overlap-sequence"]
    for rest in ('"$@"', "$EXTRA", "${MORE[@]}"):
        report = lint(tmp_path / "some", {"train.sh": f"{seen} {rest}\n"})
        assert (findings(report), [row.rule for row in report.undecided]) == ([], ["tp-overlap-sequence"])


def test_an_unknown_value_of_a_switch_hides_no_other_switch(tmp_path: Path) -> None:
    script = "torchrun pretrain_gpt.py --save $OUT --load ${CHECKPOINT} --tp-comm-overlap --tensor-model-parallel-size 8\n"

    assert findings(lint(tmp_path, {"train.sh": script})) == ["tp-overlap-sequence"]


def test_a_negated_switch_is_off(tmp_path: Path) -> None:
    script = "torchrun pretrain_gpt.py --no-overlap-p2p-communication --pipeline-model-parallel-size 4\n"

    assert value(lint(tmp_path, {"train.sh": script}), "overlap_p2p_communication") == "false"


def test_each_program_of_a_script_is_looked_at_by_itself(tmp_path: Path) -> None:
    script = (
        "vllm serve model --data-parallel-size 4 --enable-expert-parallel --all2all-backend deepep_low_latency "
        "--enable-dbo --port 1 &\n"
        "vllm serve model --tensor-parallel-size 4 --enable-dbo --port 2 &\nwait\n"
    )
    report = lint(tmp_path, {"serve.sh": script})

    assert [job.name for job in report.jobs] == ["serve.sh:1", "serve.sh:2"]
    assert [(finding.rule, finding.job) for finding in report.findings] == [("dbo-needs", "serve.sh:2")]
    assert report.comparison is None


def test_a_here_document_with_a_deepspeed_configuration_is_read(tmp_path: Path) -> None:
    script = (
        'cat <<EOF > ds.json\n{"zero_optimization": {"stage": 2, "overlap_comm": true, "contiguous_gradients": false}}\nEOF\n'
        "deepspeed train.py --deepspeed ds.json\n"
    )

    assert findings(lint(tmp_path, {"train.sh": script})) == ["zero-contiguous"]


def test_json_and_dotted_switches_name_the_same_setting(tmp_path: Path) -> None:
    for form in (
        '--compilation-config \'{"pass_config": {"fuse_gemm_comms": true}}\'',
        "--compilation-config.pass_config.fuse_gemm_comms true",
        "-cc.pass_config.fuse_gemm_comms=true",
    ):
        report = lint(tmp_path, {"serve.sh": f"vllm serve model --tensor-parallel-size 1 {form}\n"})
        assert findings(report) == ["vllm-async-tp"], form


def test_overrides_of_hydra_are_settings(tmp_path: Path) -> None:
    script = "python train.py ++model.tp_comm_overlap=True model.sequence_parallel=False trainer.name=x\n"

    assert findings(lint(tmp_path, {"run.sh": script})) == ["tp-overlap-sequence"]


def test_directives_of_slurm_tell_the_device(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\ntorchrun pretrain_gpt.py --bf16\n"

    assert [job.capability for job in lint(tmp_path, {"job.sbatch": script}).jobs] == [9]


def test_a_pinned_version_decides_whether_a_rule_holds(tmp_path: Path) -> None:
    serve = "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend pplx\n"
    old = f"docker pull vllm/vllm-openai:v0.11.0\n{serve}"
    unknown = lint(tmp_path / "unknown", {"serve.sh": serve})

    assert (findings(unknown), [row.rule for row in unknown.undecided]) == ([], ["all2all-removed"])
    assert findings(lint(tmp_path / "new", {"serve.sh": serve}, versions={"vllm": "0.25"})) == ["all2all-removed"]
    assert findings(lint(tmp_path / "old", {"serve.sh": old})) == []
    assert findings(lint(tmp_path / "given", {"serve.sh": serve}, versions={"vllm": "0.12.0"})) == []


FILES = {
    "job.json": '{"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "fsdp_config": {"fsdp_version": 2}}',
    "job.yaml": "fsdp_config:\n  fsdp_version: 2\nruntime_env:\n  env_vars:\n    CUDA_DEVICE_MAX_CONNECTIONS: '1'\n",
    "job.toml": "fsdp_version = 2\n[env]\nCUDA_DEVICE_MAX_CONNECTIONS = 1\n",
    "pod.yaml": "spec:\n  containers:\n  - image: x\n    command: [torchrun]\n    args: [train.py, --fsdp_version, "
    "'2']\n    env:\n"
    "    - name: OTHER\n      value: '5'\n    - name: CUDA_DEVICE_MAX_CONNECTIONS\n      value: '1'\n",
    "compose.yaml": "services:\n  train:\n    command: torchrun train.py --fsdp_version 2\n    environment:\n"
    "      - CUDA_DEVICE_MAX_CONNECTIONS=1\n",
    "anchors.yaml": "base: &base\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\njob:\n  strategy: fsdp2\n  env:\n    <<: *base\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_its_settings(name: str, tmp_path: Path) -> None:
    assert findings(lint(tmp_path, {name: FILES[name]})) == ["connections-fsdp"]


RAY = r"""
RUNTIME_ENV_JSON="{
  \"env_vars\": {
    \"KEY\": \"$KEY\",
    \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"
  }
}"
ray job submit --runtime-env-json="${RUNTIME_ENV_JSON}" -- python3 train.py --fsdp full_shard
"""


def test_the_variables_of_a_ray_job_are_read_from_its_runtime_environment(tmp_path: Path) -> None:
    assert findings(lint(tmp_path, {"train.sh": RAY})) == ["connections-fsdp"]


def test_a_rollout_with_tensor_parallelism_makes_no_megatron_of_fsdp(tmp_path: Path) -> None:
    script = "python3 -m verl.trainer.main_ppo actor.strategy=fsdp2 rollout.tensor_model_parallel_size=2 actor.fsdp_size=8 $@\n"
    (job,) = lint(tmp_path, {"train.sh": script}).jobs

    assert "Megatron" not in [row.name for row in job.frameworks]


def test_the_version_of_an_image_counts_for_the_command_in_its_file(tmp_path: Path) -> None:
    pod = (
        "containers:\n- image: vllm/vllm-openai:v0.11.0\n  command: [/bin/sh, -c]\n"
        "  args: ['vllm serve m --data-parallel-size 8 --enable-expert-parallel --all2all-backend pplx --api-key $(KEY)']\n"
    )
    report = lint(tmp_path, {"pod.yaml": pod})

    assert findings(report) == []
    assert [[row.version for row in job.frameworks] for job in report.jobs] == [["0.11.0"]]
    assert {row.line for job in report.jobs for row in job.settings} == {4}


def test_a_number_in_a_list_is_no_setting(tmp_path: Path) -> None:
    report = lint(tmp_path, {"job.yaml": "tensor_model_parallel_size: 2\nnsys: {ranks: [0]}\n"})

    assert [row.name for job in report.jobs for row in job.settings] == ["tensor_model_parallel_size"]


DUMPS = {
    "env": "HOME=/home/user\nTORCH_NCCL_ENABLE_TIMING=1\nCUDA_DEVICE_MAX_CONNECTIONS=1\nLESS=a\nb\n",
    "env -0": "HOME=/home/user\0TORCH_NCCL_ENABLE_TIMING=1\0CUDA_DEVICE_MAX_CONNECTIONS=1\0",
    "export -p": 'declare -x HOME="/home/user"\ndeclare -x TORCH_NCCL_ENABLE_TIMING="1"\n'
    'declare -x CUDA_DEVICE_MAX_CONNECTIONS="1"\n',
    "export": "export TORCH_NCCL_ENABLE_TIMING=1\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n",
    "json": '{"HOME": "/home/user", "TORCH_NCCL_ENABLE_TIMING": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}',
}


@pytest.mark.parametrize("form", DUMPS)
def test_a_dump_of_an_environment_is_read_in_every_form(form: str, tmp_path: Path) -> None:
    report = lint(tmp_path, {"environment": DUMPS[form]})

    assert findings(report) == ["timing-connections"]
    assert [job.environment_known for job in report.jobs] == [True]


def test_a_file_overrides_the_environment_that_it_is_started_in(tmp_path: Path) -> None:
    files = {
        "environment": "CUDA_DEVICE_MAX_CONNECTIONS=1\n",
        "train.sh": "unset CUDA_DEVICE_MAX_CONNECTIONS\ntorchrun t.py --fsdp_version 2\n",
    }

    assert findings(lint(tmp_path, files)) == []
