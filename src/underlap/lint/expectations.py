"""What a trace should show if what is switched on engages. The comparison with a trace is made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from underlap.lint import layout
from underlap.lint.settings import Settings
from underlap.lint_report import Expectation, SettingRow


def of(settings: Settings) -> list[Expectation]:
    """The expectations of one program."""
    return list(_all(settings))


def _all(settings: Settings) -> Iterator[Expectation]:
    gradients = [name for name in layout.data_parallel_overlap(settings) if name != "overlap_param_gather"]
    if gradients:
        yield Expectation(
            id="gradient_buckets",
            feature="overlap of the gradient reduction",
            settings=_rows(settings, gradients),
            expects="two or more reductions of gradients per step and rank",
            collectives=["reduce_scatter", "all_reduce", "reduce"],
            operators=[],
        )
    gathers = [name for name in ("overlap_param_gather",) if settings.on(name)] or list(layout.fsdp(settings))
    if gathers:
        yield Expectation(
            id="parameter_prefetch",
            feature="prefetch of parameters",
            settings=_rows(settings, gathers),
            expects="all-gathers of parameters that run beside compute",
            collectives=["all_gather"],
            operators=[],
        )
    if settings.on("enable_async_tensor_parallel") or settings.on("fuse_gemm_comms"):
        yield Expectation(
            id="fused_matmul",
            feature="asynchronous tensor parallelism",
            settings=_rows(settings, [name for name in ("enable_async_tensor_parallel", "fuse_gemm_comms") if settings.on(name)]),
            expects="matrix products fused with all-gathers or reduce-scatters (symm_mem::fused_...)",
            collectives=["all_gather", "reduce_scatter", "all_reduce"],
            operators=[
                "fused_all_gather_matmul",
                "fused_matmul_reduce_scatter",
                "fused_scaled_matmul_reduce_scatter",
                "fused_all_gather_scaled_matmul",
            ],
        )
    halves = [
        name for name in ("enable_dbo", "enable_two_batch_overlap", "overlap_moe_expert_parallel_comm") if settings.on(name)
    ]
    if halves:
        yield Expectation(
            id="second_batch",
            feature="overlap of two batches or micro-batches",
            settings=_rows(settings, halves),
            expects="dispatch and combine of one half on a second stream, beside the compute of the other",
            collectives=["all_to_all", "dispatch", "combine"],
            operators=[],
        )


def _rows(settings: Settings, names: list[str]) -> list[SettingRow]:
    return [
        SettingRow(name=setting.spelled, value=str(setting).partition("=")[2], file=setting.place.file, line=setting.place.line)
        for setting in settings.shown(*names)
    ]
