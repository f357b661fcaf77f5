"""Variables of CUDA, HIP and NCCL other than the number of connections."""

from __future__ import annotations

from underlap.lint.rule import Answer, Explains, Match, Rule, Undecided
from underlap.lint.settings import Settings


def _blocking(settings: Settings) -> Answer:
    return Match(because=("CUDA_LAUNCH_BLOCKING",)) if settings.on("CUDA_LAUNCH_BLOCKING") else None


def _channels(settings: Settings) -> Answer:
    limit = next((name for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS") if settings.given(name)), None)
    if limit is None or settings.number("NCCL_MAX_P2P_NCHANNELS") is not None:
        return None
    collective = settings.word("collective")
    if collective in ("all_to_all", "alltoall", "send_recv"):
        return Match(because=(limit, "collective"), voids=(limit,))
    if settings.on("overlap_moe_expert_parallel_comm") and settings.word("moe_token_dispatcher_type") == "alltoall":
        return Match(because=(limit, "overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type"))
    return None


def _queues(settings: Settings) -> Answer:
    lanes = settings.number("lanes")
    if lanes is None or lanes < 2 or lanes > 64:
        return None
    wanted = 1 << (int(lanes) - 1).bit_length()
    queues = settings.number("GPU_MAX_HW_QUEUES")
    if queues is None:
        if not settings.amd:
            return Undecided(
                because=("lanes",),
                needs=f"whether the devices are AMD's: theirs want GPU_MAX_HW_QUEUES={wanted} for {int(lanes)} lanes",
            )
        queues = 4
    if queues == wanted:
        return None
    few = "fewer than" if queues < lanes else "more than needed for"
    return Match(
        because=("lanes", "GPU_MAX_HW_QUEUES"),
        detail=f"{int(queues)} queues are {few} {int(lanes)} lanes: set GPU_MAX_HW_QUEUES={wanted}",
    )


RULES = (
    Rule(
        id="launch-blocking",
        says="every kernel launch waits for the kernel",
        reason="with CUDA_LAUNCH_BLOCKING=1 launches are synchronous, so nothing runs beside anything",
        change="unset CUDA_LAUNCH_BLOCKING outside of debugging",
        price="errors are reported later than they happen",
        holds_for="CUDA of any version",
        sources=("https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html",),
        about=("CUDA_LAUNCH_BLOCKING",),
        check=_blocking,
        explains=Explains(
            causes=("late_launch", "throttled", "serialized", "serialized_or_dependent", "dependent", "too_little_compute"),
            collectives=(
                "all_reduce",
                "all_gather",
                "reduce_scatter",
                "all_to_all",
                "dispatch",
                "combine",
                "send",
                "recv",
                "send_recv",
            ),
        ),
        fires={"environment": "CUDA_LAUNCH_BLOCKING=1\n"},
        silent={"environment": "CUDA_LAUNCH_BLOCKING=0\n"},
    ),
    Rule(
        id="nccl-channels-alltoall",
        says="the limit on channels does not touch this collective",
        reason="NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS limit rings and trees; an all-to-all is sends and receives, whose channels "
        "NCCL_MAX_P2P_NCHANNELS limits",
        change="set NCCL_MAX_P2P_NCHANNELS for all-to-all and pipeline sends",
        price="fewer channels, less bandwidth: measure the collective alone as well",
        holds_for="NCCL 2.7 and later",
        sources=("https://github.com/NVIDIA/nccl/issues/1598",),
        about=("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"),
        check=_channels,
        fires={"job.yaml": "op: all_to_all\nenv: {NCCL_MAX_NCHANNELS: 10}\n"},
        silent={"job.yaml": "op: all_reduce\nenv: {NCCL_MAX_NCHANNELS: 10}\n"},
    ),
    Rule(
        id="hardware-queues",
        says="the number of hardware queues does not fit the number of lanes",
        reason="HIP places streams on queues in turn, so lanes beyond the number of queues share one and run one after "
        "the other; "
        "measured 9,002, 9,674 and 8,357 tokens/s with 4, 8 and 16 queues for 5 lanes",
        change="set GPU_MAX_HW_QUEUES to the next power of two above the number of lanes that should run together",
        price="too many queues cost time as well; on a later commit 4 and 8 queues measured alike, so measure",
        holds_for="ROCm; measured on MI355X with torchtitan",
        sources=("https://github.com/pytorch/torchtitan/pull/4032",),
        about=("lanes",),
        check=_queues,
        explains=Explains(
            causes=("serialized", "serialized_or_dependent", "queued_behind"),
            collectives=("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "send", "recv"),
        ),
        fires={"job.yaml": "gpu: MI355X\nlanes: 5\nenv: {GPU_MAX_HW_QUEUES: 4}\n"},
        silent={"job.yaml": "gpu: MI355X\nlanes: 5\nenv: {GPU_MAX_HW_QUEUES: 8}\n"},
    ),
)
