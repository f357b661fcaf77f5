"""What several rules ask of a job: does it shard by FSDP, does it overlap data parallelism, how many ranks are where."""

from __future__ import annotations

from underlap.lint.settings import Settings


def fsdp(settings: Settings) -> tuple[str, ...]:
    """Settings that show that parameters are sharded by an FSDP; none where nothing shows it."""
    switched = [name for name in ("use_megatron_fsdp", "use_torch_fsdp2") if settings.on(name)]
    named = [name for name in ("strategy", "distributed_type") if (settings.word(name) or "").startswith("fsdp")]
    tuned = ("fsdp_version", "fsdp_forward_prefetch", "fsdp_backward_prefetch", "reshard_after_forward")
    if shown := [*switched, *named, *(name for name in tuned if settings.given(name))]:
        return (shown[0],)
    if (
        settings.given("fsdp_config")
        and settings.word("fsdp_config") == "given"
        and not settings.uses("megatron", "deepspeed", "xla")
    ):
        return ("fsdp_config",)
    degree = settings.number("data_parallel_shard_degree")
    if settings.uses("torchtitan") and degree is not None and degree != 1:
        return ("data_parallel_shard_degree",)
    return ()


def zero_overlap(settings: Settings) -> bool:
    """DeepSpeed reduces gradients beside the backward pass: overlap_comm, which ZeRO-3 has on by default."""
    if not settings.uses("deepspeed"):
        return False
    stage = settings.number("zero_stage")
    if settings.given("overlap_comm"):
        return settings.on("overlap_comm") and stage != 0
    return stage == 3 and not settings.mentioned("overlap_comm")


def data_parallel_overlap(settings: Settings) -> tuple[str, ...]:
    """Settings that ask for gradients or parameters to travel beside compute along data parallelism."""
    asked = tuple(name for name in ("overlap_grad_reduce", "overlap_param_gather") if settings.on(name))
    if asked:
        return asked
    if zero_overlap(settings):
        return ("overlap_comm",) if settings.given("overlap_comm") else ("zero_stage",)
    if settings.word("strategy") == "ddp":
        return ("strategy",)
    return ("distributed_type",) if settings.word("distributed_type") == "multi_gpu" else ()


def ordered(settings: Settings) -> bool | None:
    """Whether tensor or context parallelism wants the launch order that one connection gives; None where unknown."""
    sizes = [settings.number("tp"), settings.number("cp")]
    if any(size is not None and size > 1 for size in sizes):
        return True
    if sizes[0] == 1 and sizes[1] in (1, None):
        return False
    # Frameworks without Megatron's kind of tensor parallelism never want it.
    if settings.uses("fsdp", "deepspeed", "torchtitan") and not settings.uses("megatron"):
        return False
    return None


def interleaved(settings: Settings) -> bool | None:
    """Whether the pipeline schedule is interleaved; None where unknown."""
    if any(settings.given(name) for name in ("layers_per_virtual_stage", "pipeline_layout")):
        return True
    chunks = settings.given("vpp")
    if chunks is not None:
        return isinstance(chunks.value, int | float) and chunks.value > 1
    if any(settings.mentioned(name) for name in ("vpp", "layers_per_virtual_stage", "pipeline_layout")):
        # Named without a number: null means none, anything else is not known.
        return False if not settings.uses("megatron") or settings.of.get("vpp") is not None else None
    return False if "megatron" in settings.whole else None


def ranks(settings: Settings) -> int | None:
    """The number of ranks."""
    world = settings.number("world_size")
    if world is not None:
        return int(world)
    nodes, each = settings.number("nodes"), settings.number("gpus_per_node")
    return int(nodes * each) if nodes is not None and each is not None else None


def data_parallel_size(settings: Settings) -> int | None:
    """ranks / (tp x pp x cp), where it is a whole number."""
    world = ranks(settings)
    sizes = [settings.number(name) for name in ("tp", "pp", "cp")]
    if world is None or sizes[0] is None or sizes[1] is None:
        return None
    other = int(sizes[0] * sizes[1] * (sizes[2] or 1))
    return world // other if other > 0 and world % other == 0 else None


def micro_batches(settings: Settings) -> int | None:
    """Micro-batches per step and rank."""
    whole, part, size = settings.number("global_batch_size"), settings.number("micro_batch_size"), data_parallel_size(settings)
    if whole is None or part is None or size is None or part * size <= 0 or whole % (part * size):
        return None
    return int(whole // (part * size))
