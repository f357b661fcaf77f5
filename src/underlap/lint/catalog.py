"""The settings that rules know, by every name that they have in scripts, files and environments.

A name is a path whose last parts have to match: `zero_optimization.stage` matches only below that key, `tp_size` anywhere.
Dashes and underscores are the same, and case does not matter, except in environment variables. What is not listed here is
dropped at once when a file is read.
"""

from __future__ import annotations

import dataclasses
from enum import Enum


class Kind(Enum):
    """What values a setting has."""

    FLAG = "true or false"
    NUMBER = "a number"
    WORD = "one of some words"
    PRESENT = "given or not"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One setting."""

    name: str
    kind: Kind
    spellings: tuple[str, ...]
    words: frozenset[str] = frozenset()
    hint: str | None = None
    """The framework that only this name points to."""


def _flags(hint: str | None, **names: str) -> list[Known]:
    return [Known(name=name, kind=Kind.FLAG, spellings=(name, *more.split()), hint=hint) for name, more in names.items()]


def _numbers(hint: str | None, **names: str) -> list[Known]:
    return [Known(name=name, kind=Kind.NUMBER, spellings=(name, *more.split()), hint=hint) for name, more in names.items()]


def _word(hint: str | None, name: str, words: str, more: str = "") -> Known:
    listed = frozenset(words.split()) | {"none"}
    return Known(name=name, kind=Kind.WORD, spellings=(name, *more.split()), words=listed, hint=hint)


def _present(hint: str | None, name: str, more: str = "") -> Known:
    return Known(name=name, kind=Kind.PRESENT, spellings=(name, *more.split()), hint=hint)


_BACKENDS = (
    "naive pplx deepep_high_throughput deepep_low_latency allgather_reducescatter flashinfer_all2allv mori nixl_ep "
    "flashinfer_nvlink_two_sided flashinfer_nvlink_one_sided"
)
_COLLECTIVES = "all_reduce all_gather reduce_scatter all_to_all alltoall send_recv broadcast allreduce allgather reducescatter"

SETTINGS: list[Known] = [
    # How a job is laid out. The names that only one framework has point to it (below, in HINTS).
    *_numbers(
        None,
        tp="tensor_model_parallel_size tensor_parallel_degree tensor_parallel_size tp_size autotp_size",
        pp="pipeline_model_parallel_size pipeline_parallel_degree pipeline_parallel_size pp_size",
        cp="context_parallel_size context_parallel_degree cp_size",
        ep="expert_model_parallel_size expert_parallel_degree expert_parallel_size ep_size",
        dp="data_parallel_size dp_size data_parallel_degree",
        vpp="virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank vpp_size vp",
        layers_per_virtual_stage="num_layers_per_virtual_pipeline_stage",
        world_size="num_gpus num_processes ranks world gpus",
        gpus_per_node="nproc_per_node ntasks_per_node",
        nodes="nnodes num_nodes num_machines",
        micro_batch_size="train_micro_batch_size_per_gpu mbs",
        global_batch_size="gbs",
        num_experts="num_moe_experts",
        params_per_layer="",
        bytes_per_parameter="dtype_bytes bytes",
        lanes="num_lanes",
    ),
    _present(None, "pipeline_layout", "pipeline_model_parallel_layout"),
    *_flags(None, sequence_parallel="sp"),
    _word(None, "collective", _COLLECTIVES, "op"),
    # Megatron-LM, Megatron-Bridge, NeMo
    *_flags(
        "megatron",
        tp_comm_overlap="ub_tp_comm_overlap",
        overlap_grad_reduce="overlapped_distributed_optimizer",
        overlap_param_gather="",
        overlap_param_gather_with_optimizer_step="",
        use_distributed_optimizer="",
        align_param_gather="",
        overlap_p2p_comm="overlap_p2p_communication",
        overlap_p2p_warmup_flush="overlap_p2p_communication_warmup_flush overlap_p2p_comm_warmup_flush",
        overlap_moe_expert_parallel_comm="",
        moe_a2a_overlap="",
        delay_wgrad_compute="moe_delay_wgrad_compute",
        moe_shared_expert_overlap="",
        moe_enable_deepep="",
        use_megatron_fsdp="use_custom_fsdp",
        use_torch_fsdp2="",
        optimizer_cpu_offload="",
    ),
    *_numbers("megatron", ddp_num_buckets="", mtp_num_layers="", optimizer_offload_fraction=""),
    _word("megatron", "moe_token_dispatcher_type", "alltoall allgather flex"),
    _word("megatron", "moe_flex_dispatcher_backend", "deepep hybridep nccl_ep ncclep"),
    _word("megatron", "transformer_impl", "local transformer_engine inference_optimized"),
    # PyTorch: torchtitan, FSDP by Accelerate, verl and others
    *_flags("torchtitan", enable_async_tensor_parallel=""),
    Known(name="compile", kind=Kind.FLAG, spellings=("compile.enable", "training.compile", "compile", "enable_compile")),
    _word(None, "compile_components", "model loss", "compile.components"),
    *_numbers(None, data_parallel_shard_degree="", data_parallel_replicate_degree=""),
    *_numbers("fsdp", fsdp_version=""),
    *_flags(
        "fsdp",
        fsdp_forward_prefetch="fsdp_config.forward_prefetch",
        forward_prefetch="",
        reshard_after_forward="fsdp_reshard_after_forward",
    ),
    _word("fsdp", "fsdp_backward_prefetch", "backward_pre backward_post no_prefetch", "fsdp_backward_prefetch_policy"),
    _word(None, "strategy", "fsdp fsdp1 fsdp2 ddp megatron deepspeed", "parallel_strategy"),
    _word(None, "distributed_type", "fsdp deepspeed multi_gpu no megatron_lm"),
    _present(None, "fsdp_config", "fsdp"),
    # DeepSpeed
    Known(name="zero_stage", kind=Kind.NUMBER, spellings=("zero_optimization.stage", "zero_stage", "stage")),
    *_flags("deepspeed", overlap_comm="", contiguous_gradients=""),
    Known(name="zero_reduce_scatter", kind=Kind.FLAG, spellings=("zero_optimization.reduce_scatter",), hint="deepspeed"),
    *_numbers(
        "deepspeed",
        reduce_bucket_size="",
        allgather_bucket_size="",
        stage3_prefetch_bucket_size="zero_optimization.prefetch_bucket_size",
        stage3_max_live_parameters="zero_optimization.max_live_parameters",
    ),
    Known(name="comms_logger", kind=Kind.FLAG, spellings=("comms_logger.enabled",), hint="deepspeed"),
    Known(name="comms_logger_all", kind=Kind.FLAG, spellings=("comms_logger.prof_all",), hint="deepspeed"),
    _present(None, "comms_logger_block", "comms_logger"),
    _present(None, "zero_optimization"),
    # vLLM
    *_flags(
        "vllm",
        enable_dbo="",
        enable_expert_parallel="",
        fuse_gemm_comms="pass_config.enable_async_tp",
        enable_sp="pass_config.enable_sequence_parallelism",
        enforce_eager="",
    ),
    *_numbers(
        "vllm",
        dbo_decode_token_threshold="",
        dbo_prefill_token_threshold="",
        max_num_seqs="",
        max_num_batched_tokens="",
        sp_min_token_num="",
        num_speculative_tokens="",
    ),
    *_numbers(None, optimization_level="", compilation_mode="compilation_config.mode compilation_config.level cc.mode cc.level"),
    _word("vllm", "all2all_backend", _BACKENDS),
    _present("vllm", "afd_config"),
    # SGLang
    *_flags(
        "sglang",
        enable_two_batch_overlap="",
        enable_single_batch_overlap="",
        enable_deepep_moe="",
        enable_dp_attention="",
        disable_overlap_schedule="",
    ),
    _present("sglang", "speculative_algorithm", "speculative_algo"),
    _word("sglang", "moe_a2a_backend", "deepep mooncake mori nixl pplx ascend_fuseep flashinfer nccl_ep nccl uccl_ep"),
    _word("sglang", "disaggregation_mode", "prefill decode null"),
    *_numbers(
        "sglang",
        max_running_requests="",
        cuda_graph_max_bs="",
        speculative_num_draft_tokens="",
        tokens_per_gpu="decode_tokens_per_gpu tokens_per_device tokens_per_rank",
    ),
    # XLA
    *_flags("xla", xla_gpu_enable_latency_hiding_scheduler=""),
    _word(
        "xla",
        "xla_gpu_disable_async_collectives",
        "allreduce allgather reducescatter collectivebroadcast alltoall collectivepermute raggedalltoall allcollectives",
    ),
    *_numbers(
        "xla",
        xla_gpu_all_gather_combine_threshold_bytes="",
        xla_gpu_reduce_scatter_combine_threshold_bytes="",
        xla_gpu_all_reduce_combine_threshold_bytes="",
    ),
]

_VARIABLES: list[Known] = [
    *_numbers(
        None,
        CUDA_DEVICE_MAX_CONNECTIONS="",
        NCCL_MAX_NCHANNELS="",
        NCCL_MAX_CTAS="",
        NCCL_MAX_P2P_NCHANNELS="",
        GPU_MAX_HW_QUEUES="",
    ),
    *_flags(None, TORCH_NCCL_ENABLE_TIMING="NCCL_ENABLE_TIMING", CUDA_LAUNCH_BLOCKING=""),
    _word(None, "VLLM_ALL2ALL_BACKEND", _BACKENDS),
]

ENVIRONMENT: dict[str, Known] = {known.name: known for known in _VARIABLES}
VARIABLES: dict[str, Known] = {spelling: known for known in _VARIABLES for spelling in known.spellings}

HINTS = {
    "tensor_model_parallel_size": "megatron",
    "pipeline_model_parallel_size": "megatron",
    "expert_model_parallel_size": "megatron",
    "virtual_pipeline_model_parallel_size": "megatron",
    "num_layers_per_virtual_pipeline_stage": "megatron",
    "tensor_parallel_degree": "torchtitan",
    "pipeline_parallel_degree": "torchtitan",
    "data_parallel_shard_degree": "torchtitan",
    "zero_optimization": "deepspeed",
    "zero_stage": "deepspeed",
    "fsdp_config": "fsdp",
}
"""Names that point to a framework though their setting is common to several."""

DEFAULTS: dict[tuple[str, str], bool | int | str] = {
    **{("megatron", name): 1 for name in ("tp", "pp", "cp", "ep")},
    **{
        ("megatron", name): False
        for name in (
            "sequence_parallel",
            "tp_comm_overlap",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "use_distributed_optimizer",
            "use_megatron_fsdp",
            "use_torch_fsdp2",
            "overlap_moe_expert_parallel_comm",
            "moe_shared_expert_overlap",
        )
    },
    ("megatron", "moe_token_dispatcher_type"): "allgather",
    ("torchtitan", "compile"): False,
    ("torchtitan", "enable_async_tensor_parallel"): False,
    ("torchtitan", "tp"): 1,
    ("torchtitan", "data_parallel_shard_degree"): -1,
    ("deepspeed", "contiguous_gradients"): True,
    **{("vllm", name): 1 for name in ("tp", "dp")},
    **{("vllm", name): False for name in ("enable_dbo", "enable_expert_parallel", "fuse_gemm_comms", "enforce_eager")},
    ("vllm", "all2all_backend"): "allgather_reducescatter",
    **{("sglang", name): 1 for name in ("tp", "dp")},
    **{("sglang", name): False for name in ("enable_two_batch_overlap", "enable_deepep_moe", "enable_dp_attention")},
    ("sglang", "moe_a2a_backend"): "none",
}
"""What a framework takes where a switch is not given; only where all its switches were seen."""

NAMES = {
    "megatron": "Megatron",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "fsdp": "PyTorch FSDP",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "xla": "XLA",
}


def _index() -> dict[str, list[tuple[tuple[str, ...], Known, str]]]:
    table: dict[str, list[tuple[tuple[str, ...], Known, str]]] = {}
    for known in SETTINGS:
        for spelling in known.spellings:
            parts = tuple(spelling.split("."))
            table.setdefault(parts[-1], []).append((parts, known, spelling))
    for entries in table.values():
        entries.sort(key=lambda entry: -len(entry[0]))
    return table


_BY_LAST = _index()


def normal(key: str) -> str:
    """How the catalog writes a key."""
    return key.lstrip("-").replace("-", "_").lower()


def match(path: tuple[str, ...]) -> tuple[Known, str, int] | None:
    """The setting that a path names, how the catalog spells it there, and how many parts of the path named it."""
    if not path:
        return None
    variable = VARIABLES.get(path[-1])
    if variable is not None:
        return variable, path[-1], 1
    normalized = tuple(normal(part) for part in path)
    for parts, known, spelling in _BY_LAST.get(normalized[-1], ()):
        if normalized[-len(parts) :] == parts:
            return known, spelling, len(parts)
    return None


def hint_of(known: Known, spelling: str) -> str | None:
    """The framework that this spelling points to."""
    return HINTS.get(spelling.rpartition(".")[2], known.hint)
