"""What the engine can run. Where it cannot, the reason and what would go; asked before any process starts."""

from __future__ import annotations

from underlap.errors import OptionError
from underlap.layout import Layout
from underlap.model import Model
from underlap.plan import Plan
from underlap.workload import Decode, Train, Workload, micro_batch_size, micro_batches

PRECISIONS = ("fp32", "bf16")


def check_runnable(model: Model, layout: Layout, workload: Workload, plan: Plan) -> None:
    """Raises OptionError for the first thing that the engine does not do."""
    for reason in (
        *_model(model),
        *_layout(model, layout),
        *_workload(layout, workload),
        *_passes(layout, workload, plan),
    ):
        raise OptionError(f"run: {reason}")


def _model(model: Model) -> list[str]:
    checks = [
        (model.latent is not None, "latent attention cannot be run yet: choose a model with MHA or GQA"),
        (model.norm != "rms", "layer norms with a bias cannot be run yet: choose a model with RMS norms"),
        (model.positions != "rope", "learned positions cannot be run yet: choose a model with rotary ones"),
        (model.qkv_bias or model.linear_bias, "biases cannot be run yet: choose a model without"),
    ]
    experts = model.experts
    limited = experts is not None and (experts.router_bias or (experts.groups or 1) > 1)
    checks.append((limited, "routing by groups or with a bias cannot be run yet: choose top-k of a softmax"))
    return [f"{model.name}: {text}" for broken, text in checks if broken]


def _layout(model: Model, layout: Layout) -> list[str]:
    between = model.experts is not None and layout.expert_tensor not in (1, layout.tp)
    checks = [
        (between, f"etp={layout.expert_tensor} with tp={layout.tp} cannot be run yet: use 1 or {layout.tp}"),
        (layout.cp > 1 and model.sliding_window is not None, "cp with a sliding window cannot be run yet: leave one out"),
    ]
    return [f"layout: {text}" for broken, text in checks if broken]


def _workload(layout: Layout, workload: Workload) -> list[str]:
    found = []
    if workload.precision not in PRECISIONS:
        found.append(f"workload: precision={workload.precision} cannot be run: use {' or '.join(PRECISIONS)}")
    if isinstance(workload, Train):
        if workload.attention != "fused":
            found.append("workload: attention=unfused cannot be run: leave it out")
        twice = layout.zero_stage >= 2 and bool(layout.replica_dimensions)
        if twice and micro_batches(workload, layout) > 1:
            found.append(
                f"layout: zero={layout.zero_stage} over shards and replicas with several micro-batches: the plan all-reduces "
                "sums that it goes on adding to; use one micro-batch, or fsdp without dp"
            )
    if isinstance(workload, Decode) and micro_batches(workload, layout) > 1:
        found.append("workload: several micro-batches in decode cannot be run yet: leave mbs out")
    return found


def _passes(layout: Layout, workload: Workload, plan: Plan) -> list[str]:
    by_position = any(
        buffer.part_of and buffer.part_of[0] == "qkv" and micro_batch_size(workload, layout) % buffer.part_of[2]
        for buffer in plan.buffers.values()
    )
    if by_position and micro_batch_size(workload, layout) > 1:
        return ["overlap: parts of several sequences cannot be run: use mbs=1, or a multiple of the number of parts"]
    if by_position and layout.cp > 1:
        return ["overlap: parts of a sequence that cp divides cannot be run: use mbs as a multiple of the number of parts"]
    return []
