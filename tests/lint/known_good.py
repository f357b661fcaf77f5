"""Public configurations that are known to work, restated: the switches that bear on overlap, in the form of the original.

Each has the repository and path it comes from. Paths, names of data and the like are left out or shortened.
"""

from __future__ import annotations

import json

MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/"
TITAN = "https://github.com/pytorch/torchtitan/blob/main/"

KNOWN_GOOD: dict[str, tuple[str, dict[str, str]]] = {
    "megatron gpt 175b": (
        MEGATRON + "examples/gpt3/train_gpt3_175b_distributed.sh",
        {
            "train.sh": """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
# Change for multinode config
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
MODEL_ARGS=(
    --num-layers 96
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --fp16
)
MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 8
\t--pipeline-model-parallel-size 16
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    --save $CHECKPOINT_PATH
"""
        },
    ),
    "megatron moe pre-training": (
        "https://github.com/NVIDIA/Megatron-LM/pull/6311",
        {
            "train.sh": """\
export CUDA_DEVICE_MAX_CONNECTIONS=32
torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \\
  --expert-model-parallel-size 16 --context-parallel-size 1 --pipeline-model-parallel-layout 'Ett|(tt|)*6mL' \\
  --micro-batch-size 1 --global-batch-size 256 --bf16 --moe-token-dispatcher-type alltoall \\
  --overlap-moe-expert-parallel-comm --use-distributed-optimizer --recompute-granularity full
"""
        },
    ),
    "megatron with its fsdp": (
        "https://github.com/ROCm/Megatron-LM/pull/91",
        {
            "train.sh": """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
FSDP=1
EXTRA_ARGS="--bf16"
unset CUDA_DEVICE_MAX_CONNECTIONS
EXTRA_ARGS="$EXTRA_ARGS --use-torch-fsdp2 --untie-embeddings-and-output-weights"
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 $EXTRA_ARGS
"""
        },
    ),
    "megatron-bridge tp, dp and pp overlap": (
        "https://docs.nvidia.com/nemo/megatron-bridge/latest/training/communication-overlap.html",
        {
            "recipe.yaml": """\
model:
  tensor_model_parallel_size: 4
  sequence_parallel: true
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
comm_overlap:
  tp_comm_overlap: true
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  overlap_param_gather: true
"""
        },
    ),
    "megatron-bridge moe overlap": (
        "https://docs.nvidia.com/nemo/megatron-bridge/latest/skills/perf-techniques/moe-comm-overlap/SKILL.html",
        {
            "recipe.yaml": """\
model:
  expert_model_parallel_size: 8
  moe_token_dispatcher_type: flex
  moe_flex_dispatcher_backend: deepep
  moe_shared_expert_overlap: false
  moe_delay_wgrad_compute: true
comm_overlap: {overlap_moe_expert_parallel_comm: true}
"""
        },
    ),
    "nemo gpt": (
        "https://github.com/NVIDIA/NeMo/blob/main/examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
        {
            "megatron_gpt_config.yaml": """\
trainer:
  devices: 1
  num_nodes: 1
exp_manager:
  checkpoint_callback_params:
    model_parallel_size: ${multiply:${model.tensor_model_parallel_size}, ${model.pipeline_model_parallel_size}}
model:
  micro_batch_size: 4 # limited by GPU memory
  global_batch_size: 8
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  sequence_parallel: False
  nsys_profile: {enabled: False, ranks: [0]}
  data:
    data_prefix: ???
"""
        },
    ),
    "torchtitan llama 3 405b, async tp": (
        TITAN + "torchtitan/models/llama3/train_configs/llama3_405b.toml",
        {
            "llama3_405b.toml": """\
[model]
name = "llama3"
converters = "float8"
[training]
batch_size = 2
compile = true
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # 8-way TP
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
"""
        },
    ),
    "torchtitan deepseek-v3 671b": (
        TITAN + "torchtitan/models/deepseek_v3/train_configs/deepseek_v3_671b.toml",
        {
            "deepseek_v3_671b.toml": """\
[training]
local_batch_size = 4
steps = 10_000
[parallelism]
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default" # default / never / always
tensor_parallel_degree = 1
enable_async_tensor_parallel = false
pipeline_parallel_schedule = "Interleaved1F1B"
expert_parallel_degree = 1
[compile]
enable=true
components = ["loss"] # ["model", "loss"]
"""
        },
    ),
    "deepspeed zero-3 of a 70b": (
        "https://github.com/deepspeedai/DeepSpeedExamples/blob/master/claude_tutorials/model_configs/llama/llama_70b_multi_node.json",
        {
            "ds.json": json.dumps(
                {
                    "train_batch_size": 256,
                    "train_micro_batch_size_per_gpu": 1,
                    "bf16": {"enabled": True},
                    "zero_optimization": {
                        "stage": 3,
                        "overlap_comm": True,
                        "contiguous_gradients": True,
                        "reduce_bucket_size": 500000000,
                        "stage3_prefetch_bucket_size": 300000000,
                        "stage3_max_live_parameters": 1000000000,
                    },
                }
            )
        },
    ),
    "deepspeed zero-3 with leaf modules": (
        "https://github.com/deepspeedai/DeepSpeedExamples/blob/master/training/expert_parallel/configs/ds_zero3_leaf_qwen3_5.json",
        {
            "ds.json": '{"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1e5, '
            '"leaf_module": {"classes": ["Block"]}}, "train_micro_batch_size_per_gpu": 2}'
        },
    ),
    "deepspeed tensor parallelism": (
        "https://github.com/deepspeedai/DeepSpeedExamples/blob/master/training/tensor_parallel/hf_integration/configs/ds_config.json",
        {
            "ds.json": '{"zero_optimization": {"stage": 2, "gather_16bit_weights_on_model_save": true}, '
            '"tensor_parallel": {"autotp_size": 4}, "train_batch_size": "auto", "wall_clock_breakdown": false}'
        },
    ),
    "llama-factory zero-3, overlap off on purpose": (
        "https://github.com/hiyouga/LLaMA-Factory/blob/main/examples/deepspeed/ds_z3_config.json",
        {
            "ds.json": '{"train_batch_size": "auto", "zero_optimization": {"stage": 3, "overlap_comm": false, '
            '"contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto", '
            '"stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 1e9}, "comms_config": {"verbose": false}}'
        },
    ),
    "accelerate, deepspeed zero-3": (
        "https://github.com/huggingface/trl/blob/main/examples/accelerate_configs/deepspeed_zero3.yaml",
        {
            "zero3.yaml": "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  offload_optimizer_device: none\n  "
            "zero_stage: 3\n"
            "distributed_type: DEEPSPEED\nmixed_precision: 'fp16'\nnum_machines: 1\nnum_processes: 8\n"
        },
    ),
    "accelerate, fsdp 2": (
        "https://github.com/huggingface/trl/blob/main/examples/accelerate_configs/fsdp2.yaml",
        {
            "fsdp2.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config:\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_reshard_after_forward: true\n  fsdp_version: 2\n"
            "num_machines: 1\nnum_processes: 8\ntpu_env: []\nuse_cpu: false\n"
        },
    ),
    "accelerate, fsdp 1": (
        "https://github.com/huggingface/trl/blob/main/examples/accelerate_configs/fsdp_qlora.yaml",
        {
            "fsdp.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_backward_prefetch: BACKWARD_PRE\n  "
            "fsdp_forward_prefetch: false\n"
            "  fsdp_offload_params: true\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_use_orig_params: false\nnum_processes: 8\n"
        },
    ),
    "maxtext llama 2 7b": (
        "https://github.com/AI-Hypercomputer/maxtext/blob/main/end_to_end/gpu/a3/test_llama2_7b.sh",
        {
            "test_llama2_7b.sh": """\
set -ex
idx=$(date +%Y-%m-%d-%H-%M)
export RUN_NAME="llama-2-1vm-$(date +%Y-%m-%d-%H-%M)"
for ARGUMENT in "$@"; do
    IFS='=' read -r KEY VALUE <<< "$ARGUMENT"
    export "$KEY"="$VALUE"
done
export XLA_FLAGS="--xla_dump_to=$BASE_OUTPUT_PATH/$RUN_NAME/HLO_dumps/
--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false
 --xla_gpu_all_reduce_combine_threshold_bytes=134217728 --xla_gpu_all_gather_combine_threshold_bytes=134217728
 --xla_gpu_enable_pipelined_all_gather=true --xla_disable_hlo_passes=rematerialization"
python3 -m MaxText.train src/MaxText/configs/base.yml run_name=$RUN_NAME hardware=gpu dcn_data_parallelism=1 \\
  ici_fsdp_parallelism=8 per_device_batch_size=4 model_name=llama2-7b
"""
        },
    ),
    "jax container": (
        "https://github.com/NVIDIA/JAX-Toolbox",
        {
            "environment": "CUDA_DEVICE_MAX_CONNECTIONS=1\nNCCL_NVLS_ENABLE=0\n"
            "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false\n"
        },
    ),
    "vllm wide expert parallelism with dual batch overlap": (
        "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
        {
            "serve.sh": """\
# Node 1
vllm serve deepseek-ai/DeepSeek-V3-0324 \\
  --all2all-backend deepep_low_latency \\
  --tensor-parallel-size 1 \\
  --enable-expert-parallel \\
  --data-parallel-size 16 \\
  --data-parallel-size-local 8 \\
  --enable-dbo \\
  --data-parallel-address 192.168.1.100 \\
  --api-server-count=8
"""
        },
    ),
    "vllm tensor parallelism": (
        "https://docs.vllm.ai/en/latest/serving/parallelism_scaling/",
        {
            "serve.sh": "vllm serve meta-llama/Llama-3.1-405B-Instruct --tensor-parallel-size 8 --pipeline-parallel-size "
            "2 --host 0.0.0.0\n"
        },
    ),
    "sglang prefill with two-batch overlap": (
        "https://github.com/sgl-project/sglang/pull/17634",
        {
            "prefill.sh": """\
python3 -m sglang.launch_server \\
    --model-path /models/step-84 \\
    --pp-size 1 --dp-size 2 --tp-size 8 \\
    --enable-dp-attention \\
    --moe-a2a-backend deepep \\
    --deepep-mode normal \\
    --disaggregation-mode prefill \\
    --max-running-requests 32 \\
    --model-loader-extra-config '{"enable_multithread_load": "true","num_threads": 64}' \\
    --chunked-prefill-size 16384 \\
    --enable-two-batch-overlap
"""
        },
    ),
    "sglang with the older name of the backend": (
        "https://github.com/sgl-project/sglang/pull/6634",
        {
            "serve.sh": "python3 -m sglang.launch_server --model-path DeepSeek-V3-0324 --nnodes 2 --node-rank 0 "
            "--tp-size 16 --dp-size 16 "
            "--enable-dp-attention --chunked-prefill-size 32768 --max-running-requests 32768 --enable-deepep-moe "
            "--deepep-mode normal "
            "--enable-two-batch-overlap --disable-cuda-graph\n"
        },
    ),
    "dynamo and sglang in a case of a shell script": (
        "https://github.com/ai-dynamo/dynamo/blob/main/components/backends/sglang/slurm_jobs/scripts/h100.sh",
        {
            "h100.sh": """\
if [ "$mode" = "prefill" ]; then
    if [ "$cmd" = "dynamo" ]; then
        python3 -m dynamo.sglang \\
            --disaggregation-mode prefill \\
            --tp-size "$TOTAL_GPUS" \\
            --dp-size "$TOTAL_GPUS" \\
            --enable-dp-attention \\
            --enable-deepep-moe \\
            --enable-two-batch-overlap \\
            --deepep-mode normal
    fi
fi
"""
        },
    ),
    "fsdp2 with native tensor parallelism": (
        "https://github.com/pytorch/torchtitan/issues/1147",
        {
            "run.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=16\n"
            "torchrun --nproc_per_node 8 -m torchtitan.train --parallelism.tensor_parallel_degree 2 "
            "--parallelism.data_parallel_shard_degree -1\n"
        },
    ),
}

NOT_SO_GOOD: dict[str, tuple[str, dict[str, str], str]] = {
    "megatron llama 3 8b on h100": (
        MEGATRON + "examples/llama/train_llama3_8b_h100_fp8.sh",
        {
            "train.sh": """\
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
TP_SIZE=1
CP_SIZE=1
DTYPE="fp8"
TRAINING_ARGS=(
    --micro-batch-size 1
    --bf16
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE # not set here
    --sequence-parallel  # with TP_SIZE=2
)
DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
torchrun ${DISTRIBUTED_ARGS[@]} \\
    "pretrain_gpt.py" \\
    ${TRAINING_ARGS[@]} \\
    ${DTYPE_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]}
set +x
"""
        },
        "connections-dp",
    ),
    "megatron mixtral 8x7b": (
        MEGATRON + "examples/mixtral/train_mixtral_8x7b_distributed.sh",
        {
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "MOE_ARGS=(\n    --num-experts 2\n#    --moe-grouped-gemm\n    --moe-token-dispatcher-type alltoall\n"
            "    --overlap-param-gather\n    --overlap-grad-reduce\n)\n"
            "torchrun pretrain_gpt.py ${MOE_ARGS[@]} --tensor-model-parallel-size 1 --expert-model-parallel-size 2 "
            "--use-distributed-optimizer --sequence-parallel\n"
        },
        "connections-dp",
    ),
}
"""Public examples that carry a conflict: one hardware queue, overlap of data parallelism, no tensor parallelism."""
