"""torchtitan's asynchronous tensor parallelism, and FSDP as Accelerate configures it."""

from __future__ import annotations

from underlap.lint.rule import Answer, Explains, Match, Rule, Undecided
from underlap.lint.settings import Settings

_ASYNC = "enable_async_tensor_parallel"


def _compiled(settings: Settings) -> Answer:
    if not settings.on(_ASYNC):
        return None
    size = settings.number("tp")
    if size is not None and size <= 1:
        return Match(because=(_ASYNC, "tp"), detail="tensor parallel degree 1", voids=(_ASYNC,))
    if settings.off("compile"):
        return Match(because=(_ASYNC, "compile"), voids=(_ASYNC,))
    components = settings.word("compile_components")
    if components is not None and "model" not in components.split(","):
        return Match(because=(_ASYNC, "compile_components"), detail="compile.components leaves the model out", voids=(_ASYNC,))
    if settings.value("compile") is None:
        return Undecided(because=(_ASYNC,), needs="compile.enable, which it needs on")
    return None


def _version_two(settings: Settings) -> Answer:
    version = settings.number("fsdp_version")
    asked = settings.given("fsdp_forward_prefetch")
    if version is None or version < 2 or asked is None or asked.value is not True:
        return None
    return Match(because=("fsdp_version", "fsdp_forward_prefetch"), voids=("fsdp_forward_prefetch",))


RULES = (
    Rule(
        id="async-tp-compile",
        says="asynchronous tensor parallelism is switched on without what it needs",
        reason="it is a pass of the compiler that cuts matrix products into pieces: without a compiled model and two "
        "or more tensor "
        "parallel ranks nothing is replaced; newer torchtitan refuses to start",
        change="set compile.enable, with model among compile.components",
        price="compilation time; recompute policies and casts between the collective and the product keep the pattern "
        "from matching",
        holds_for="torchtitan, any version with the switch",
        sources=(
            "https://github.com/pytorch/torchtitan/pull/2011",
            "https://github.com/pytorch/torchtitan/issues/1185",
            "https://github.com/pytorch/torchtitan/pull/3869",
        ),
        about=(_ASYNC,),
        check=_compiled,
        explains=Explains(
            causes=("dependent", "serialized", "serialized_or_dependent", "too_little_compute"),
            collectives=("all_gather", "reduce_scatter", "all_reduce"),
            axes=("tp",),
        ),
        fires={
            "job.toml": "[parallelism]\ntensor_parallel_degree = 8\nenable_async_tensor_parallel = "
            "true\n[compile]\nenable = false\n"
        },
        silent={
            "job.toml": "[parallelism]\ntensor_parallel_degree = 8\nenable_async_tensor_parallel = true\n"
            '[compile]\nenable = true\ncomponents = ["model", "loss"]\n'
        },
    ),
    Rule(
        id="fsdp2-forward-prefetch",
        says="forward prefetch is asked of FSDP2, which does not take it from here",
        reason="with fsdp_version 2 Accelerate has no explicit forward prefetch; FSDP2 prefetches implicitly, which a "
        "blocked host defeats",
        change="drop the switch; where gathers are launched late, call set_modules_to_forward_prefetch in the program",
        price="explicit prefetch holds one more layer of parameters",
        holds_for="Accelerate 1.6 with fsdp_version 2; later releases were not looked up",
        sources=("https://huggingface.co/docs/accelerate/v1.6.0/en/concept_guides/fsdp1_vs_fsdp2",),
        about=("fsdp_version",),
        check=_version_two,
        explains=Explains(causes=("late_launch", "throttled", "dependent", "too_little_compute"), collectives=("all_gather",)),
        fires={"job.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_forward_prefetch: true\n"},
        silent={"job.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n  fsdp_forward_prefetch: true\n"},
    ),
)
