"""Megatron's overlap of dispatch and combine with the compute of another micro-batch, and its dispatchers."""

from __future__ import annotations

from underlap.lint import layout
from underlap.lint.rule import Answer, Explains, Match, Rule, Undecided
from underlap.lint.settings import Settings

_CONFIG = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/transformer_config.py"
_SKILL = "https://docs.nvidia.com/nemo/megatron-bridge/latest/skills/perf-techniques/moe-comm-overlap/SKILL.html"
_BRIDGE_497 = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/497"
_EXPOSED = ("dependent", "serialized", "serialized_or_dependent", "too_little_compute", "late_launch")
_DUMPS = (".yaml", ".yml", ".json", ".toml")
"""Files that may hold the whole configuration of a run, defaults and all."""
SWITCH = "overlap_moe_expert_parallel_comm"


def _needs(settings: Settings) -> Answer:
    if not settings.on(SWITCH):
        return None
    size = settings.number("ep")
    if size is not None and size <= 1:
        return Match(because=(SWITCH, "ep"), detail="expert parallel size 1: there is no dispatch to hide", voids=(SWITCH,))
    missing: dict[str, str] = {}
    if settings.on("moe_shared_expert_overlap"):
        missing["moe_shared_expert_overlap"] = "it excludes moe_shared_expert_overlap"
    if settings.word("moe_token_dispatcher_type") == "allgather":
        missing |= {"moe_token_dispatcher_type": "the dispatcher has to be alltoall or flex"}
    stages = settings.number("pp")
    chunks = layout.interleaved(settings) if stages is not None and stages > 1 else True
    if chunks is False:
        missing["pp"] = "with pipeline stages it needs virtual stages"
    if missing:
        return Match(because=(SWITCH, *missing), detail="; ".join(missing.values()), voids=(SWITCH,))
    if chunks is None:
        return Undecided(because=(SWITCH, "pp"), needs="the number of virtual stages, which have to be two or more")
    return None


def _batches(settings: Settings) -> Answer:
    if settings.on(SWITCH) and layout.micro_batches(settings) == 1:
        return Match(because=(SWITCH, "global_batch_size", "micro_batch_size"), voids=(SWITCH,))
    return None


def _delay(settings: Settings) -> Answer:
    if settings.on("delay_wgrad_compute") and settings.off(SWITCH):
        return Match(because=("delay_wgrad_compute", SWITCH), voids=("delay_wgrad_compute",))
    return None


def _flex(settings: Settings) -> Answer:
    asked = next(
        (
            name
            for name in ("moe_flex_dispatcher_backend", "moe_enable_deepep")
            if settings.given(name) and settings.value(name) not in (False, "none")
        ),
        None,
    )
    if asked is None:
        return None
    dispatcher = settings.word("moe_token_dispatcher_type")
    if dispatcher != "flex" and settings.value(asked) == "deepep" and settings.of[asked].place.file.endswith(_DUMPS):
        return Undecided(
            because=(asked, "moe_token_dispatcher_type"), needs="whether the backend was named on purpose: deepep is its default"
        )
    if dispatcher is None:
        return Undecided(because=(asked,), needs="moe_token_dispatcher_type, which has to be flex")
    return None if dispatcher == "flex" else Match(because=(asked, "moe_token_dispatcher_type"), voids=(asked,))


def _kept(settings: Settings) -> Answer:
    given = settings.given("moe_a2a_overlap")
    return Match(because=("moe_a2a_overlap",), voids=("moe_a2a_overlap",)) if given is not None and given.value is False else None


RULES = (
    Rule(
        id="ep-overlap-needs",
        says="the overlap of expert parallelism is switched on without what it needs",
        reason="it merges forward and backward of neighboring micro-batches: experts on several ranks, the alltoall or flex "
        "dispatcher, virtual stages where there are pipeline stages, and no overlap of the shared expert",
        change="give it what is named here",
        price="memory for a second micro-batch in flight",
        holds_for="Megatron Core 0.14 and later, Megatron-Bridge",
        sources=(_CONFIG, _BRIDGE_497, _SKILL),
        about=(SWITCH,),
        check=_needs,
        explains=Explains(causes=_EXPOSED, collectives=("all_to_all", "dispatch", "combine")),
        fires={
            "train.sh": "torchrun pretrain_gpt.py --expert-model-parallel-size 8 --pipeline-model-parallel-size 4 "
            "--moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm\n"
        },
        silent={
            "train.sh": "torchrun pretrain_gpt.py --expert-model-parallel-size 8 --pipeline-model-parallel-size 4 "
            "--num-layers-per-virtual-pipeline-stage 2 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm\n"
        },
    ),
    Rule(
        id="ep-overlap-one-micro-batch",
        says="one micro-batch per step: there is no neighbor whose compute could hide the dispatch",
        reason="the communication of one micro-batch is hidden behind the compute of the next",
        change="use two or more micro-batches per step: a larger global batch, or smaller micro-batches",
        price="smaller micro-batches run less efficiently",
        holds_for="Megatron Core 0.14 and later",
        sources=(_SKILL, _BRIDGE_497),
        about=(SWITCH,),
        check=_batches,
        explains=Explains(causes=_EXPOSED, collectives=("all_to_all", "dispatch", "combine")),
        fires={
            "train.sh": "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --expert-model-parallel-size 8 "
            "--micro-batch-size 4 "
            "--global-batch-size 32 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm\n"
        },
        silent={
            "train.sh": "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --expert-model-parallel-size 8 "
            "--micro-batch-size 1 "
            "--global-batch-size 32 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm\n"
        },
    ),
    Rule(
        id="delay-wgrad-needs",
        says="weight gradients are delayed for an overlap that is off",
        reason="delay_wgrad_compute moves weight gradients under the dispatch that overlap_moe_expert_parallel_comm "
        "exposes them to; "
        "Megatron Core refuses the one without the other",
        change="set overlap_moe_expert_parallel_comm, or drop delay_wgrad_compute",
        price="see there",
        holds_for="Megatron Core 0.14 and later, Transformer Engine 2.3 and later",
        sources=(_CONFIG, _BRIDGE_497),
        about=("delay_wgrad_compute",),
        check=_delay,
        fires={"train.sh": "torchrun pretrain_gpt.py --expert-model-parallel-size 8 --delay-wgrad-compute\n"},
        silent={
            "train.sh": "torchrun pretrain_gpt.py --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall "
            "--overlap-moe-expert-parallel-comm --delay-wgrad-compute\n"
        },
    ),
    Rule(
        id="flex-dispatcher",
        says="a backend of the flex dispatcher is named, and the dispatcher is another",
        reason="the backend is looked at only where moe_token_dispatcher_type is flex; else the plain all-to-all stays",
        change="set moe_token_dispatcher_type to flex",
        price="the backend (DeepEP, HybridEP) has to be installed and to suit the devices",
        holds_for="Megatron-Bridge (silently), Megatron Core (refuses moe_enable_deepep)",
        sources=(_SKILL, _CONFIG),
        about=("moe_flex_dispatcher_backend", "moe_enable_deepep"),
        check=_flex,
        explains=Explains(causes=_EXPOSED, collectives=("all_to_all",)),
        fires={"job.yaml": "model:\n  moe_flex_dispatcher_backend: hybridep\n  moe_token_dispatcher_type: alltoall\n"},
        silent={"job.yaml": "model:\n  moe_flex_dispatcher_backend: deepep\n  moe_token_dispatcher_type: flex\n"},
    ),
    Rule(
        id="bridge-override-false",
        says="an override to false that the performance scripts do not follow",
        reason="they handle moe_a2a_overlap only where it is true: a recipe that has the overlap on keeps it, so an "
        "experiment with "
        "and without compares one configuration with itself",
        change="set comm_overlap.overlap_moe_expert_parallel_comm to false in the recipe, and look at the "
        "configuration that is printed",
        price="none",
        holds_for="Megatron-Bridge scripts/performance, until the fix in pull request 6090 is in your version",
        sources=(
            "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/6006",
            "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/6090",
        ),
        about=("moe_a2a_overlap",),
        check=_kept,
        fires={"run.sh": "python scripts/performance/run_script.py --model_name deepseek --moe_a2a_overlap false\n"},
        silent={"run.sh": "python scripts/performance/run_script.py --model_name deepseek --moe_a2a_overlap true\n"},
    ),
)
