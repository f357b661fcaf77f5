"""Layouts that cannot run as written: found before the launch, not an hour into it."""

from __future__ import annotations

from underlap.lint import layout
from underlap.lint.rule import Answer, Match, Rule
from underlap.lint.settings import Settings


def _divides(settings: Settings) -> Answer:
    whole, part, size = (
        settings.number("global_batch_size"),
        settings.number("micro_batch_size"),
        layout.data_parallel_size(settings),
    )
    if settings.uses("deepspeed") or whole is None or part is None or size is None or part * size <= 0 or whole <= 0:
        return None
    if whole % (part * size) == 0:
        return None
    return Match(
        because=("global_batch_size", "micro_batch_size", "world_size", "nodes", "gpus_per_node", "tp", "pp", "cp"),
        detail=f"{whole:g} is no multiple of {part:g} x {size} (data parallel size {size})",
    )


RULES = (
    Rule(
        id="batch-divides",
        says="the global batch does not divide into micro-batches",
        reason="every data-parallel rank gets the same number of micro-batches: the global batch has to be a multiple "
        "of micro-batch "
        "size x data parallel size",
        change="another global batch, micro-batch, or number of ranks",
        price="none",
        holds_for="Megatron-LM and what is built on it",
        sources=("https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/num_microbatches_calculator.py",),
        about=("global_batch_size",),
        check=_divides,
        fires={
            "job.yaml": "world_size: 184\ntensor_model_parallel_size: 8\npipeline_model_parallel_size: 1\n"
            "micro_batch_size: 1\nglobal_batch_size: 256\n"
        },
        silent={
            "job.yaml": "world_size: 128\ntensor_model_parallel_size: 8\npipeline_model_parallel_size: 1\n"
            "micro_batch_size: 1\nglobal_batch_size: 256\n"
        },
    ),
)
