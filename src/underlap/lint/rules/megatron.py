"""Megatron-LM, Megatron-Bridge and NeMo: switches of tensor, pipeline and data parallelism that need another switch."""

from __future__ import annotations

from underlap.lint import layout
from underlap.lint.rule import Answer, Explains, Match, Rule, Undecided
from underlap.lint.settings import Settings

_ARGUMENTS = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py"
_BRIDGE = "https://docs.nvidia.com/nemo/megatron-bridge/latest/training/communication-overlap.html"
_EXPOSED = ("dependent", "serialized", "serialized_or_dependent", "too_little_compute", "late_launch")


def _sequence(settings: Settings) -> Answer:
    if not settings.on("tp_comm_overlap"):
        return None
    size = settings.number("tp")
    if size is not None and size <= 1:
        return Match(because=("tp_comm_overlap", "tp"), detail="tensor parallel size 1", voids=("tp_comm_overlap",))
    if settings.off("sequence_parallel"):
        return Match(because=("tp_comm_overlap", "sequence_parallel"), voids=("tp_comm_overlap",))
    if settings.value("sequence_parallel") is None:
        return Undecided(because=("tp_comm_overlap",), needs="sequence_parallel, which it needs on")
    return None


def _nodes(settings: Settings) -> Answer:
    size, each = settings.number("tp"), settings.number("gpus_per_node")
    if not settings.on("tp_comm_overlap") or size is None or each is None or size <= each or each < 1:
        return None
    if settings.capability is None:
        return Undecided(
            because=("tp_comm_overlap", "tp", "gpus_per_node"), needs="the device: NVLink across nodes exists from GB200 on"
        )
    if settings.capability >= 10:
        return None
    return Match(because=("tp_comm_overlap", "tp", "gpus_per_node"), voids=("tp_comm_overlap",))


def _interleaved(settings: Settings) -> Answer:
    asked = tuple(
        name
        for name in ("align_param_gather", "overlap_p2p_warmup_flush", "overlap_p2p_comm")
        if settings.given(name) and settings.on(name)
    )
    size = settings.number("pp")
    if not asked or size is None or size <= 1:
        return None
    found = layout.interleaved(settings)
    if found is None:
        return Undecided(
            because=(*asked, "pp"),
            needs="the number of virtual stages (virtual_pipeline_model_parallel_size or layers per stage)",
        )
    return None if found else Match(because=(*asked, "pp", "vpp"), voids=asked)


def _pipeline(settings: Settings) -> Answer:
    size = settings.number("pp")
    if size is None or size <= 1 or not settings.uses("megatron") or layout.interleaved(settings) is not False:
        return None
    return Match(because=("pp",), detail=f"{int(size)} stages, one chunk each")


def _gather(settings: Settings) -> Answer:
    if not settings.on("overlap_param_gather"):
        return None
    if settings.off("overlap_grad_reduce"):
        return Match(
            because=("overlap_param_gather", "overlap_grad_reduce"),
            detail="overlap_grad_reduce is off",
            voids=("overlap_param_gather",),
        )
    sharded = settings.on("use_distributed_optimizer") or bool(layout.fsdp(settings))
    if settings.off("use_distributed_optimizer") and not sharded:
        return Match(
            because=("overlap_param_gather", "use_distributed_optimizer"),
            detail="no distributed optimizer",
            voids=("overlap_param_gather",),
        )
    return None


def _buckets(settings: Settings) -> Answer:
    if settings.on("overlap_grad_reduce") and settings.number("ddp_num_buckets") == 1:
        return Match(because=("overlap_grad_reduce", "ddp_num_buckets"), voids=("overlap_grad_reduce",))
    return None


def _offload(settings: Settings) -> Answer:
    asked = layout.data_parallel_overlap(settings)
    fraction = settings.number("optimizer_offload_fraction")
    if settings.on("optimizer_cpu_offload") and asked and fraction in (None, 1):
        return Match(because=("optimizer_cpu_offload", *asked))
    return None


RULES = (
    Rule(
        id="tp-overlap-sequence",
        says="the overlap of tensor parallelism is switched on without what it needs",
        reason="only all-gather and reduce-scatter can be overlapped with the matrix product, and only sequence parallelism with "
        "tensor parallel size 2 or more has them; Megatron-Bridge switches the overlap off, Megatron-LM refuses to start",
        change="set sequence_parallel, with tensor parallel size 2 or more",
        price="none known: the all-reduce becomes a reduce-scatter and an all-gather of the same bytes",
        holds_for="Megatron-LM, Megatron-Bridge, NeMo, any version with the switch",
        sources=("https://github.com/NVIDIA/TransformerEngine/issues/746", _ARGUMENTS, _BRIDGE),
        about=("tp_comm_overlap",),
        check=_sequence,
        explains=Explains(causes=_EXPOSED, collectives=("all_gather", "reduce_scatter", "all_reduce"), axes=("tp",)),
        fires={"job.yaml": "tp_comm_overlap: true\nsequence_parallel: false\n"},
        silent={"job.yaml": "tp_comm_overlap: true\nsequence_parallel: true\ntensor_model_parallel_size: 8\n"},
    ),
    Rule(
        id="tp-overlap-nodes",
        says="the overlap of tensor parallelism spans nodes",
        reason="user buffers of Transformer Engine need all ranks of the group under one NVLink domain",
        change="keep tensor parallelism within a node, or switch tp_comm_overlap off",
        price="another layout of the job",
        holds_for="Transformer Engine, devices whose NVLink ends at the node (up to Hopper)",
        sources=(
            "https://github.com/NVIDIA/TransformerEngine/issues/1071",
            "https://github.com/NVIDIA/TransformerEngine/issues/746",
        ),
        about=("tp_comm_overlap",),
        check=_nodes,
        explains=Explains(causes=_EXPOSED, collectives=("all_gather", "reduce_scatter"), axes=("tp",)),
        fires={
            "train.sh": "#SBATCH --gres=gpu:h100:8\n"
            "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 16 --sequence-parallel --tp-comm-overlap\n"
        },
        silent={
            "train.sh": "#SBATCH --gres=gpu:h100:8\n"
            "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --tp-comm-overlap\n"
        },
    ),
    Rule(
        id="pp-overlap-interleaving",
        says="a switch of the interleaved pipeline is set, and the pipeline is not interleaved",
        reason="without virtual stages Megatron sets overlap_p2p_comm and align_param_gather to False, with a warning at most",
        change="give each rank two or more virtual stages (--num-layers-per-virtual-pipeline-stage), or drop the switch",
        price="more sends, and memory for more micro-batches in flight",
        holds_for="Megatron-LM, Megatron-Bridge, NeMo, any version with the switches",
        sources=(_ARGUMENTS, _BRIDGE),
        about=("align_param_gather", "overlap_p2p_warmup_flush", "overlap_p2p_comm"),
        frameworks=("megatron",),
        check=_interleaved,
        explains=Explains(causes=(*_EXPOSED, "bubble"), collectives=("send", "recv", "send_recv"), axes=("pp",)),
        fires={
            "train.sh": "torchrun pretrain_gpt.py --pipeline-model-parallel-size 4 --overlap-p2p-communication-warmup-flush\n"
        },
        silent={
            "train.sh": "torchrun pretrain_gpt.py --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 "
            "--overlap-p2p-communication-warmup-flush\n"
        },
    ),
    Rule(
        id="pp-not-interleaved",
        says="sends between pipeline stages are not overlapped",
        reason="the schedule is not interleaved, and Megatron overlaps sends and receives in the interleaved one only",
        change="give each rank two or more virtual stages, if exposed sends matter in the trace",
        price="more sends, and memory for more micro-batches in flight",
        holds_for="Megatron-LM, any version with --no-overlap-p2p-communication",
        sources=(_ARGUMENTS,),
        about=("pp",),
        frameworks=("megatron",),
        check=_pipeline,
        limit=True,
        fires={"train.sh": "torchrun pretrain_gpt.py --pipeline-model-parallel-size 4\n"},
        silent={
            "train.sh": "torchrun pretrain_gpt.py --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2\n"
        },
    ),
    Rule(
        id="param-gather-needs",
        says="the overlap of the parameter gather is switched on without what it needs",
        reason="only the distributed optimizer (or Megatron-FSDP) gathers parameters, and its overlap is built on that of the "
        "gradient reduction: Megatron-LM refuses to start",
        change="set use_distributed_optimizer and overlap_grad_reduce as well",
        price="buckets in flight hold memory",
        holds_for="Megatron-LM, any version with --overlap-param-gather",
        sources=(_ARGUMENTS,),
        about=("overlap_param_gather",),
        check=_gather,
        explains=Explains(causes=_EXPOSED, collectives=("all_gather",), axes=("dp",)),
        fires={"train.sh": "torchrun pretrain_gpt.py --use-distributed-optimizer --overlap-param-gather\n"},
        silent={
            "train.sh": "torchrun pretrain_gpt.py --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather\n"
        },
    ),
    Rule(
        id="one-gradient-bucket",
        says="all gradients are one bucket, so they travel when the backward pass is over",
        reason="a bucket is reduced once all its gradients are ready; with one bucket that is the end",
        change="drop --ddp-num-buckets, or give it some tens",
        price="more and smaller messages",
        holds_for="Megatron Core with --ddp-num-buckets",
        sources=(_ARGUMENTS,),
        about=("ddp_num_buckets",),
        check=_buckets,
        explains=Explains(causes=_EXPOSED, collectives=("reduce_scatter", "all_reduce"), axes=("dp",)),
        fires={"train.sh": "torchrun pretrain_gpt.py --overlap-grad-reduce --ddp-num-buckets 1\n"},
        silent={"train.sh": "torchrun pretrain_gpt.py --overlap-grad-reduce --ddp-num-buckets 40\n"},
    ),
    Rule(
        id="optimizer-on-host",
        says="the optimizer runs on the host, and no overlap of data parallelism hides that",
        reason="overlap covers the gradient reduction and the parameter gather; the step of an optimizer that is "
        "wholly on the CPU "
        "stands between them, and may outweigh both, so that step time hardly moves",
        change="compare the exposed time of both in a trace with the time of the optimizer before tuning; offload less "
        "(--optimizer-offload-fraction)",
        price="device memory for optimizer states",
        holds_for="Megatron Core with --optimizer-cpu-offload, of which the report has the whole optimizer on the CPU",
        sources=("https://github.com/NVIDIA/Megatron-LM/issues/3931",),
        about=("optimizer_cpu_offload",),
        check=_offload,
        limit=True,
        fires={
            "train.sh": "torchrun pretrain_gpt.py --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
            "--optimizer-cpu-offload\n"
        },
        silent={
            "train.sh": "torchrun pretrain_gpt.py --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather\n"
        },
    ),
)
