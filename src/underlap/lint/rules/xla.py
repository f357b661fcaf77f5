"""XLA on GPU: flags of the latency-hiding scheduler and of asynchronous collectives."""

from __future__ import annotations

from underlap.lint.rule import Answer, Explains, Match, Rule
from underlap.lint.settings import Settings

_GUIDE = "https://docs.nvidia.com/jax-toolbox/performance-profiling/gpu-performance"
_OFF = "xla_gpu_disable_async_collectives"
_SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
_THRESHOLDS = (
    "xla_gpu_all_gather_combine_threshold_bytes",
    "xla_gpu_reduce_scatter_combine_threshold_bytes",
    "xla_gpu_all_reduce_combine_threshold_bytes",
)


def _synchronous(settings: Settings) -> Answer:
    listed = settings.word(_OFF)
    if listed in (None, "none") or not settings.on(_SCHEDULER):
        return None
    return Match(because=(_OFF, _SCHEDULER), voids=(_SCHEDULER,))


def _blackwell(settings: Settings) -> Answer:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if settings.number(name) == 1 and settings.uses("xla") and (settings.capability or 0) >= 10:
        return Match(because=(name,))
    return None


def _layer(settings: Settings) -> Answer:
    parameters, size = settings.number("params_per_layer"), settings.number("bytes_per_parameter")
    if parameters is None or size is None or parameters <= 0 or size <= 0:
        return None
    nbytes = int(parameters * size)
    given = tuple(name for name in _THRESHOLDS if settings.given(name))
    return Match(
        because=("params_per_layer", "bytes_per_parameter", *given),
        detail=f"one layer is {nbytes / 1e6:.0f} MB ({int(parameters)} parameters of {size:g} bytes)",
    )


RULES = (
    Rule(
        id="xla-synchronous-collectives",
        says="the latency-hiding scheduler is on, and collectives that it should move are synchronous",
        reason="it overlaps only what is split into start and done; xla_gpu_disable_async_collectives keeps the listed "
        "ones whole",
        change="drop --xla_gpu_disable_async_collectives (it belongs to the profiling run of PGLE, with the scheduler off)",
        price="memory for what is in flight",
        holds_for="XLA:GPU with both flags",
        sources=(_GUIDE, "https://docs.jax.dev/en/latest/gpu_performance_tips.html"),
        about=(_OFF,),
        check=_synchronous,
        explains=Explains(
            causes=("serialized_or_dependent", "dependent", "serialized", "too_little_compute"),
            collectives=("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        ),
        fires={
            "run.sh": 'export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true '
            '--xla_gpu_disable_async_collectives=allreduce,allgather"\npython3 -m MaxText.train base.yml\n'
        },
        silent={
            "run.sh": 'export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=false '
            '--xla_gpu_disable_async_collectives=allreduce,allgather"\npython3 -m MaxText.train base.yml\n'
        },
    ),
    Rule(
        id="xla-connections-blackwell",
        says="one hardware queue on Blackwell",
        reason="XLA orders launches itself; the guide for Blackwell says not to set one connection",
        change="unset CUDA_DEVICE_MAX_CONNECTIONS",
        price="none known",
        holds_for="XLA:GPU on Blackwell (compute capability 10 and more)",
        sources=(_GUIDE,),
        about=("CUDA_DEVICE_MAX_CONNECTIONS",),
        frameworks=("xla",),
        check=_blackwell,
        explains=Explains(
            causes=("serialized", "serialized_or_dependent", "queued_behind"),
            collectives=("all_reduce", "all_gather", "reduce_scatter"),
        ),
        fires={
            "run.sh": "#SBATCH --gres=gpu:b200:8\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true python3 -m MaxText.train base.yml\n"
        },
        silent={
            "run.sh": "#SBATCH --gres=gpu:h100:8\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
            "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true python3 -m MaxText.train base.yml\n"
        },
    ),
    Rule(
        id="xla-combine-threshold",
        says="a threshold of combining is a choice between bandwidth and overlap",
        reason="collectives up to the threshold become one: a large one uses the link well and has less compute left to hide it",
        change="set --xla_gpu_all_gather_combine_threshold_bytes near the bytes of one layer, and measure both sides of it",
        price="smaller calls, less bandwidth; larger ones, less to hide them behind",
        holds_for="XLA:GPU",
        sources=("https://github.com/NVIDIA/JAX-Toolbox/issues/674", "https://docs.jax.dev/en/latest/gpu_performance_tips.html"),
        about=("params_per_layer",),
        check=_layer,
        limit=True,
        fires={"job.yaml": "params_per_layer: 218000000\nbytes_per_parameter: 2\n"},
        silent={"job.yaml": "params_per_layer: null\nbytes_per_parameter: 2\n"},
    ),
)
