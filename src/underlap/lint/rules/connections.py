"""CUDA_DEVICE_MAX_CONNECTIONS: how many hardware queues a process has, and so whether streams keep the order of launch.

With one queue kernels start in the order in which they were launched. Megatron's tensor and context parallelism want that, up
to Hopper; everything that lives from a second stream loses by it.
"""

from __future__ import annotations

from underlap.lint import layout
from underlap.lint.rule import Answer, Explains, Match, Rule, Undecided
from underlap.lint.settings import Settings

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
_HELD = ("serialized", "serialized_or_dependent", "dependent", "queued_behind")


def _one(settings: Settings) -> bool:
    return settings.number(NAME) == 1


def _fsdp(settings: Settings) -> Answer:
    shown = layout.fsdp(settings)
    if not _one(settings):
        return None
    if not shown:
        if settings.uses("torchtitan") and settings.number("data_parallel_shard_degree") is None:
            needs = "parallelism.data_parallel_shard_degree: torchtitan shards by FSDP unless it is 1, and FSDP needs more queues"
            return Undecided(because=(NAME,), needs=needs)
        return None
    detail = ""
    if settings.uses("megatron") and (settings.number("tp") or 1) > 1 and (settings.capability or 0) < 10:
        detail = "tensor parallelism wants 1, and FSDP more: Megatron advises not to combine them before Blackwell"
    return Match(because=(NAME, *shown), detail=detail)


def _data_parallel(settings: Settings) -> Answer:
    shown = layout.data_parallel_overlap(settings)
    if not _one(settings) or layout.fsdp(settings) or settings.uses("xla"):
        return None
    if not shown:
        if settings.frameworks:
            return None
        return Undecided(
            because=(NAME,),
            needs="the job's layout: 1 suits tensor or context parallelism up to Hopper, and without them keeps data-parallel "
            "reduce-scatters and all-reduces from running beside compute",
        )
    wanted = layout.ordered(settings)
    if wanted is None:
        return Undecided(because=(NAME, *shown), needs="the sizes of tensor and context parallelism")
    if wanted and (settings.capability or 0) < 10:
        return None
    detail = "without tensor or context parallelism nothing needs 1" if not wanted else "Blackwell no longer needs 1"
    return Match(because=(NAME, *shown, *(name for name in ("tp", "cp") if settings.given(name))), detail=detail)


def _both(settings: Settings) -> Answer:
    shown = layout.data_parallel_overlap(settings)
    if (
        not (_one(settings) and shown)
        or not layout.ordered(settings)
        or (settings.capability or 0) >= 10
        or layout.fsdp(settings)
    ):
        return None
    return Match(because=(NAME, *shown, *(name for name in ("tp", "cp") if settings.given(name))))


def _experts(settings: Settings) -> Answer:
    if _one(settings) and settings.on("overlap_moe_expert_parallel_comm"):
        return Match(because=(NAME, "overlap_moe_expert_parallel_comm"))
    return None


def _ordered(settings: Settings) -> Answer:
    size = max(settings.number("tp") or 1, settings.number("cp") or 1)
    if size <= 1 or layout.fsdp(settings) or settings.on("overlap_moe_expert_parallel_comm") or settings.amd:
        return None
    count = settings.value(NAME)
    if count == 1 or (settings.capability or 0) >= 10:
        return None
    shown = tuple(name for name in ("tp", "cp", NAME) if settings.given(name))
    if count is None:
        if settings.capability is None:
            return None
        return Undecided(
            because=shown, needs=f"{NAME} in the job's environment: compute capability {settings.capability} needs 1 here"
        )
    if settings.capability is None:
        return Undecided(
            because=shown, needs="the device: up to Hopper (compute capability 9) 1 is needed here, from Blackwell on it is not"
        )
    return Match(because=shown, detail=f"compute capability {settings.capability} needs {NAME}=1 here")


def _timing(settings: Settings) -> Answer:
    if not (_one(settings) and settings.on("TORCH_NCCL_ENABLE_TIMING")):
        return None
    return Match(because=("TORCH_NCCL_ENABLE_TIMING", NAME), detail="all-gathers, reduce-scatters and all-reduces alike")


RULES = (
    Rule(
        id="connections-fsdp",
        says="one hardware queue, and FSDP needs more",
        reason="FSDP gathers and reduces on streams of their own; with one queue kernels start in launch order, so "
        "reduce-scatters "
        "and compute run one after the other",
        change="unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 8 (the default), 16 or 32; look who sets it (launcher, "
        "Ray, container)",
        price="none without Megatron's tensor or context parallelism; with it up to Hopper, that loses its launch order",
        holds_for="CUDA devices of any generation; PyTorch FSDP1 and FSDP2, Megatron-FSDP (which refuses to start)",
        sources=(
            "https://github.com/verl-project/verl-omni/issues/421",
            "https://github.com/pytorch/torchtitan/issues/1147",
            "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        ),
        about=(NAME,),
        check=_fsdp,
        explains=Explains(causes=_HELD, collectives=("reduce_scatter", "all_gather", "all_reduce"), axes=("dp", "fsdp", "shard")),
        fires={"train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\naccelerate launch --fsdp_version 2 train.py\n"},
        silent={"train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=8\naccelerate launch --fsdp_version 2 train.py\n"},
    ),
    Rule(
        id="connections-dp",
        says="one hardware queue, and the overlap of data parallelism needs more",
        reason="gradients and parameters travel on a stream of their own; with one queue later compute waits until the "
        "collective "
        "launched before it is over",
        change="unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 8 (the default) or more",
        price="none without tensor or context parallelism, or on Blackwell",
        holds_for="CUDA devices; with Megatron's tensor or context parallelism only from Blackwell (compute capability 10) on",
        sources=(
            "https://github.com/NVIDIA/Megatron-LM/issues/1468",
            "https://github.com/alibaba/Megatron-LLaMA/issues/26",
            "https://github.com/huggingface/nanotron/issues/236",
        ),
        about=(NAME,),
        check=_data_parallel,
        explains=Explains(
            causes=_HELD, collectives=("reduce_scatter", "all_gather", "all_reduce", "reduce"), axes=("dp", "edp", "fsdp")
        ),
        fires={
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "torchrun pretrain_gpt.py --tensor-model-parallel-size 1 --use-distributed-optimizer --overlap-grad-reduce\n"
        },
        silent={
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --overlap-grad-reduce\n"
        },
    ),
    Rule(
        id="connections-conflict",
        says="tensor or context parallelism wants one hardware queue, and the overlap of data parallelism loses by it",
        reason="with one queue the collectives of data parallelism hold back the compute that was launched after them; with "
        "more, those of tensor parallelism start too late",
        change="see in a trace which of the two is exposed longer, and set CUDA_DEVICE_MAX_CONNECTIONS for that one",
        price="the other one is then exposed; from Blackwell on more than one queue suits both",
        holds_for="Megatron up to Hopper (compute capability 9)",
        sources=(
            "https://github.com/alibaba/Megatron-LLaMA/issues/43",
            "https://github.com/NVIDIA/Megatron-LM/issues/1468",
            "https://github.com/NVIDIA/Megatron-LM/issues/636",
        ),
        about=(NAME,),
        check=_both,
        limit=True,
        frameworks=("megatron",),
        explains=Explains(causes=_HELD, collectives=("reduce_scatter", "all_gather", "all_reduce"), axes=("dp", "edp")),
        fires={
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --overlap-grad-reduce\n"
        },
        silent={
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel\n"
        },
    ),
    Rule(
        id="connections-ep",
        says="one hardware queue, and the overlap of expert parallelism needs more",
        reason="dispatch and combine of one micro-batch are to run beside the compute of another; measured 3.7 % gain with 1 "
        "connection against 7.8 % with 32 (64 H100, pipeline 4, experts 16)",
        change="set CUDA_DEVICE_MAX_CONNECTIONS to 32, and compare arms of an experiment only at the same value",
        price="up to Hopper, tensor and context parallelism lose the launch order that they want: choose which to favor",
        holds_for="Megatron Core with --overlap-moe-expert-parallel-comm (0.14 and later)",
        sources=(
            "https://github.com/NVIDIA/Megatron-LM/pull/6311",
            "https://github.com/NVIDIA/Megatron-LM/pull/2730",
            "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        ),
        about=(NAME,),
        check=_experts,
        explains=Explains(causes=_HELD, collectives=("all_to_all", "dispatch", "combine")),
        fires={
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "torchrun pretrain_gpt.py --expert-model-parallel-size 16 --overlap-moe-expert-parallel-comm\n"
        },
        silent={
            "train.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=32\n"
            "torchrun pretrain_gpt.py --expert-model-parallel-size 16 --moe-token-dispatcher-type alltoall "
            "--overlap-moe-expert-parallel-comm\n"
        },
    ),
    Rule(
        id="connections-order",
        says="more than one hardware queue, and tensor or context parallelism needs exactly one",
        reason="the collective has to get its multiprocessors before the matrix product launched after it takes them "
        "all; only one "
        "queue keeps that order",
        change="export CUDA_DEVICE_MAX_CONNECTIONS=1",
        price="streams of data parallelism then overlap less",
        holds_for="Megatron up to Hopper (compute capability 9); the requirement ended with Blackwell",
        sources=(
            "https://github.com/NVIDIA/Megatron-LM/issues/533",
            "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        ),
        about=("tp", "cp"),
        frameworks=("megatron",),
        check=_ordered,
        explains=Explains(causes=_HELD, collectives=("all_gather", "reduce_scatter", "all_reduce"), axes=("tp", "cp")),
        fires={"job.yaml": "arch: 9\ntensor_model_parallel_size: 2\nenv: {CUDA_DEVICE_MAX_CONNECTIONS: 8}\n"},
        silent={"job.yaml": "arch: 10\ntensor_model_parallel_size: 2\nenv: {CUDA_DEVICE_MAX_CONNECTIONS: 8}\n"},
    ),
    Rule(
        id="timing-connections",
        says="NCCL timing events and one hardware queue: together they end all overlap",
        reason="an event with timing between kernels of a single queue makes the next kernel wait; either variable "
        "alone does less "
        "(timing alone nothing, one queue alone reduce-scatters)",
        change="unset TORCH_NCCL_ENABLE_TIMING outside of measurements, or raise CUDA_DEVICE_MAX_CONNECTIONS",
        price="no per-collective times from PyTorch while it is unset",
        holds_for="PyTorch with NCCL, as reported for A100",
        sources=("https://github.com/pytorch/pytorch/issues/143890", "https://github.com/NVIDIA/TransformerEngine/issues/1353"),
        about=("TORCH_NCCL_ENABLE_TIMING",),
        check=_timing,
        explains=Explains(causes=_HELD, collectives=("reduce_scatter", "all_gather", "all_reduce", "all_to_all")),
        fires={"environment": "TORCH_NCCL_ENABLE_TIMING=1\nCUDA_DEVICE_MAX_CONNECTIONS=1\n"},
        silent={"environment": "TORCH_NCCL_ENABLE_TIMING=1\nCUDA_DEVICE_MAX_CONNECTIONS=8\n"},
    ),
)
