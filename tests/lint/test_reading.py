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


DEEPSPEED = (
    '{"train_micro_batch_size_per_gpu": $MBS, "zero_optimization": {"stage": ${ZERO:-2}, "overlap_comm": true}, "name": "$NAME"}'
)


def test_a_variable_in_a_here_document_leaves_the_rest_of_the_json_readable(tmp_path: Path) -> None:
    report = lint(tmp_path, {"train.sh": f"cat <<EOT > ds.json\n{DEEPSPEED}\nEOT\ndeepspeed train.py\n"})

    assert value(report, "zero_optimization.stage") == "2"
    assert value(report, "overlap_comm") == "true"
    assert value(report, "train_micro_batch_size_per_gpu") is None


def test_a_here_document_with_a_quoted_delimiter_is_taken_as_it_stands(tmp_path: Path) -> None:
    text = 'ZERO=2\ncat <<\'EOT\' > ds.json\n{"zero_optimization": {"stage": "$ZERO"}}\nEOT\ndeepspeed train.py\n'

    assert value(lint(tmp_path, {"train.sh": text}), "zero_optimization.stage") is None


def test_a_here_document_under_a_condition_raises_no_alarm(tmp_path: Path) -> None:
    body = '{"zero_optimization": {"stage": 0, "overlap_comm": true}}'
    text = f'if [ "$1" = old ]; then\ncat <<EOT > ds.json\n{body}\nEOT\nfi\ndeepspeed train.py\n'

    assert findings(lint(tmp_path, {"train.sh": text})) == []


BACKEND = (
    '["vllm", "serve", "m", "--data-parallel-size", "8", "--enable-expert-parallel", "--all2all-backend", "deepep_low_latency"]'
)
MANIFESTS = {
    "command before arguments": f'containers:\n- command: {BACKEND}\n  args: ["--enable-dbo"]\n',
    "arguments before command": f'containers:\n- args: ["--enable-dbo"]\n  command: {BACKEND}\n',
    "entry point and command": f"services:\n  a:\n    entrypoint: {BACKEND}\n    command: --enable-dbo\n",
    "a second container": f'containers:\n- command: {BACKEND}\n  args: ["--enable-dbo"]\n- command: [sleep]\n  args: ["1"]\n',
}


@pytest.mark.parametrize("form", MANIFESTS)
def test_the_command_and_the_arguments_of_a_container_are_one_command_line(form: str, tmp_path: Path) -> None:
    report = lint(tmp_path, {"pod.yaml": MANIFESTS[form]})

    assert findings(report) == []
    assert value(report, "enable_dbo") == "true"
    assert value(report, "data_parallel_size") == "8"


COUNTS = {
    "train.sbatch": "#SBATCH --gpus-per-node=8\ntorchrun pretrain_gpt.py --tensor-model-parallel-size 8\n",
    "job.yaml": "resources: {gpu: 8}\ntensor_model_parallel_size: 8\n",
}


@pytest.mark.parametrize("file", COUNTS)
def test_a_number_of_devices_is_no_compute_capability(file: str, tmp_path: Path) -> None:
    report = lint(tmp_path, {file: COUNTS[file], "environment": "CUDA_DEVICE_MAX_CONNECTIONS=8\n"})

    assert [job.capability for job in report.jobs] == [None]
    assert findings(report) == []


def test_the_device_of_a_manifest_belongs_to_the_program_in_it(tmp_path: Path) -> None:
    text = "resources:\n  accelerators: B200:8\nrun: |\n  torchrun pretrain_gpt.py --tensor-model-parallel-size 8\n"

    assert [job.capability for job in lint(tmp_path, {"sky.yaml": text}).jobs] == [10]


def test_every_missing_need_of_expert_overlap_is_named_at_once(tmp_path: Path) -> None:
    text = (
        "torchrun pretrain_gpt.py --expert-model-parallel-size 8 --pipeline-model-parallel-size 2 "
        "--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type allgather --moe-shared-expert-overlap\n"
    )
    (finding,) = lint(tmp_path, {"train.sh": text}).findings

    assert finding.text.endswith(
        "it excludes moe_shared_expert_overlap; the dispatcher has to be alltoall or flex; "
        "with pipeline stages it needs virtual stages"
    )


def test_one_connection_with_torchtitan_is_open_until_its_sharding_is_seen(tmp_path: Path) -> None:
    text = "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun -m torchtitan.train --job.config_file llama3.toml\n"
    report = lint(tmp_path, {"run.sh": text})

    assert findings(report) == []
    assert [row.rule for row in report.undecided] == ["connections-fsdp"]


@pytest.mark.parametrize(("drafted", "rules"), [("2", ["tbo-threshold"]), ("4", [])])
def test_guessed_tokens_count_for_the_threshold_of_two_batches(drafted: str, rules: list[str], tmp_path: Path) -> None:
    text = (
        "python -m sglang.launch_server --tp 16 --dp 16 --enable-dp-attention --moe-a2a-backend deepep "
        "--disaggregation-mode decode --max-running-requests 256 --enable-two-batch-overlap "
        f"--speculative-algorithm NEXTN --speculative-num-draft-tokens {drafted}\n"
    )

    assert findings(lint(tmp_path, {"serve.sh": text})) == rules


def test_parts_of_a_program_that_differ_in_a_size_leave_it_unknown(tmp_path: Path) -> None:
    text = (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\npython3 -m verl.trainer.main_ppo actor.megatron.tensor_model_parallel_size=4 "
        "actor.megatron.override_ddp_config.overlap_grad_reduce=True rollout.tensor_model_parallel_size=1\n"
    )
    report = lint(tmp_path, {"run.sh": text})

    assert value(report, "tensor_model_parallel_size") is None
    assert findings(report) == []


ELSEWHERE = {
    "overrides": "python megatron_gpt_pretraining.py model.ub_tp_comm_overlap=True model.tensor_model_parallel_size=4\n",
    "a file of arguments": "torchrun pretrain_gpt.py --tp-comm-overlap --tensor-model-parallel-size 4 @args.txt\n",
    "arguments of a checkpoint": "torchrun pretrain_gpt.py --tp-comm-overlap --use-checkpoint-args --load /ckpt\n",
    "arguments by a pipe": "cat args.txt | xargs torchrun pretrain_gpt.py --tp-comm-overlap\n",
    "a recipe": "python run_script.py --model_recipe_name llama3 --tp_comm_overlap true --tensor_model_parallel_size 4\n",
}


@pytest.mark.parametrize("form", ELSEWHERE)
def test_defaults_do_not_count_where_a_configuration_stands_behind_the_command_line(form: str, tmp_path: Path) -> None:
    assert findings(lint(tmp_path, {"run.sh": ELSEWHERE[form]})) == []


def test_a_value_that_a_template_fills_in_is_given_and_unknown(tmp_path: Path) -> None:
    text = (
        "args:\n- serve\n- --data-parallel-size={{ .Values.ranks }}\n- --enable-expert-parallel\n"
        "- --all2all-backend=deepep_low_latency\n- --enable-dbo\n"
    )
    report = lint(tmp_path, {"pod.yaml": text})

    assert findings(report) == []
    assert value(report, "data_parallel_size") is None
