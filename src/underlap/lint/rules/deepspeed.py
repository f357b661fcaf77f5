"""DeepSpeed's ZeRO: what keeps overlap_comm from overlapping."""

from __future__ import annotations

from underlap.lint import layout
from underlap.lint.rule import Answer, Explains, Match, Rule
from underlap.lint.settings import Settings

_STAGE_1_2 = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/zero/stage_1_and_2.py"
_COORDINATOR = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/zero/partitioned_param_coordinator.py"
_DOCS = "https://www.deepspeed.ai/docs/config-json/"
_EXPOSED = ("dependent", "serialized", "serialized_or_dependent", "too_little_compute", "late_launch", "throttled")
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


def _logger(settings: Settings) -> Answer:
    if not settings.given("comms_logger_block") or not layout.zero_overlap(settings):
        return None
    # Without prof_all only the operations that are named are timed.
    if settings.off("comms_logger_all"):
        return None
    given = settings.given("comms_logger")
    detail = "its presence switches it on, whatever `enabled` says" if given is None or given.value is False else ""
    shown = ("comms_logger", *(name for name in ("overlap_comm",) if settings.given(name)))
    return Match(because=shown, detail=detail, voids=("overlap_comm",))


def _version(settings: Settings) -> Answer:
    if "deepspeed" in settings.versions and settings.on("overlap_comm") and settings.number("zero_stage") in (1, 2):
        return Match(because=("overlap_comm", "zero_stage"), detail=f"DeepSpeed {settings.versions['deepspeed']}")
    return None


def _contiguous(settings: Settings) -> Answer:
    stage = settings.number("zero_stage")
    if settings.on("overlap_comm") and settings.off("contiguous_gradients") and stage in (1, 2):
        return Match(because=("overlap_comm", "contiguous_gradients", "zero_stage"), voids=("overlap_comm",))
    return None


def _stage(settings: Settings) -> Answer:
    given = settings.given("overlap_comm")
    if given is not None and given.value is True and settings.number("zero_stage") == 0 and settings.given("zero_stage"):
        return Match(because=("overlap_comm", "zero_stage"), voids=("overlap_comm",))
    return None


def _live(settings: Settings) -> Answer:
    if settings.number("zero_stage") != 3 or settings.number("stage3_max_live_parameters") != 0:
        return None
    return Match(because=("stage3_max_live_parameters", "zero_stage"), voids=("stage3_prefetch_bucket_size",))


def _gather(settings: Settings) -> Answer:
    if settings.on("overlap_comm") and settings.number("zero_stage") in (1, 2):
        return Match(because=("overlap_comm", "zero_stage"))
    return None


RULES = (
    Rule(
        id="zero-comms-logger",
        says="the communication logger stands in the way of overlap_comm",
        reason="every logged call is synchronized so that it can be timed, and the mere presence of the block switches "
        "the logger on: "
        "`enabled` is not looked at",
        change="remove the comms_logger block",
        price="no communication log",
        holds_for="DeepSpeed as reported for 0.7.7, and sources that set comms_logger_enabled by the presence of the key",
        sources=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2861",
            "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/comm/config.py",
            "https://www.deepspeed.ai/tutorials/comms-logging/",
        ),
        about=("comms_logger_block",),
        check=_logger,
        explains=Explains(causes=_EXPOSED, collectives=(*_REDUCTIONS, "all_gather")),
        fires={"ds.json": '{"zero_optimization": {"stage": 2, "overlap_comm": true}, "comms_logger": {"enabled": true}}'},
        silent={"ds.json": '{"zero_optimization": {"stage": 2, "overlap_comm": true}}'},
    ),
    Rule(
        id="zero-contiguous",
        says="overlap_comm without contiguous_gradients stops at every bucket",
        reason="without contiguous gradients ZeRO-1 and -2 fall back to allreduce_and_copy, which synchronizes the "
        "whole device before "
        "each bucket",
        change="set contiguous_gradients to true (the default)",
        price="memory for the buffers: two buckets with overlap_comm",
        holds_for="DeepSpeed ZeRO-1 and ZeRO-2, as of 0.19",
        sources=(
            "https://github.com/deepspeedai/DeepSpeed/issues/4599",
            "https://github.com/deepspeedai/DeepSpeed/issues/6685",
            _STAGE_1_2,
        ),
        about=("contiguous_gradients",),
        check=_contiguous,
        explains=Explains(causes=_EXPOSED, collectives=_REDUCTIONS),
        fires={"ds.json": '{"zero_optimization": {"stage": 2, "overlap_comm": true, "contiguous_gradients": false}}'},
        silent={"ds.json": '{"zero_optimization": {"stage": 2, "overlap_comm": true, "contiguous_gradients": true}}'},
    ),
    Rule(
        id="zero-version",
        says="a version in which overlap_comm was seen not to overlap",
        reason="in the report 0.0 % of the all-reduce was beside compute in 0.18.2, and it was in 0.19.1; between them "
        "the lifetime of "
        "the buffers of overlap_comm was changed",
        change="upgrade to DeepSpeed 0.19.1 or later",
        price="none known",
        holds_for="DeepSpeed 0.18, ZeRO-1 and ZeRO-2, as reported for 0.18.2; looked at only where the version is known",
        sources=("https://github.com/NVlabs/alpamayo-recipes/pull/24", "https://github.com/deepspeedai/DeepSpeed/pull/7965"),
        about=("overlap_comm",),
        check=_version,
        product="deepspeed",
        since="0.18",
        before="0.19",
        explains=Explains(causes=_EXPOSED, collectives=_REDUCTIONS),
        fires={"ds.json": '{"deepspeed_version": "0.18.2", "zero_optimization": {"stage": 2, "overlap_comm": true}}'},
        silent={"ds.json": '{"deepspeed_version": "0.19.1", "zero_optimization": {"stage": 2, "overlap_comm": true}}'},
    ),
    Rule(
        id="zero-stage-0",
        says="overlap_comm is a switch of ZeRO, and ZeRO is off",
        reason="at stage 0 the engine reduces gradients itself, and zero_optimization is not used",
        change="use stage 1 or more, or overlap in the program (DDP does)",
        price="stages 1 and 2 shard optimizer states and gradients",
        holds_for="DeepSpeed, any version",
        sources=(_DOCS,),
        about=("overlap_comm",),
        check=_stage,
        explains=Explains(causes=_EXPOSED, collectives=_REDUCTIONS),
        fires={"ds.json": '{"zero_optimization": {"stage": 0, "overlap_comm": true}}'},
        silent={"ds.json": '{"zero_optimization": {"stage": 1, "overlap_comm": true}}'},
    ),
    Rule(
        id="zero3-no-prefetch",
        says="no parameter can be gathered ahead",
        reason="at most max_live_parameters minus those in use are prefetched: with 0 nothing is, whatever the prefetch bucket",
        change="set stage3_max_live_parameters to 1e9 (the default) or what memory allows",
        price="memory for the parameters that are gathered ahead",
        holds_for="DeepSpeed ZeRO-3, any version with the prefetch coordinator",
        sources=(_COORDINATOR, _DOCS),
        about=("stage3_max_live_parameters",),
        check=_live,
        explains=Explains(causes=_EXPOSED, collectives=("all_gather",)),
        fires={"ds.json": '{"zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_max_live_parameters": 0}}'},
        silent={"ds.json": '{"zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_max_live_parameters": 1e9}}'},
    ),
    Rule(
        id="zero-gather-after-step",
        says="overlap_comm covers the reduction of gradients, not the all-gather of parameters after the step",
        reason="ZeRO-1 and -2 gather the updated parameters before the next forward pass starts; no switch moves that",
        change="nothing in this configuration: look at how long it is exposed in a trace; ZeRO-3 and FSDP gather per "
        "layer instead",
        price="per-layer gathers send parameters twice per step",
        holds_for="DeepSpeed ZeRO-1 and ZeRO-2",
        sources=("https://github.com/deepspeedai/DeepSpeed/issues/6876",),
        about=("overlap_comm",),
        check=_gather,
        limit=True,
        explains=Explains(causes=_EXPOSED, collectives=("all_gather",)),
        fires={"ds.json": '{"zero_optimization": {"stage": 1, "overlap_comm": true}}'},
        silent={"ds.json": '{"zero_optimization": {"stage": 3, "overlap_comm": true}}'},
    ),
)
