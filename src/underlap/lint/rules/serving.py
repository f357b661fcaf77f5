"""vLLM and SGLang: two half-batches per step, and asynchronous tensor parallelism by compiler passes."""

from __future__ import annotations

from underlap.lint.rule import Answer, Explains, Match, Rule, Undecided
from underlap.lint.settings import Settings

_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/config/vllm.py"
_DBO = "https://docs.vllm.ai/en/stable/design/dbo/"
_EXPOSED = ("dependent", "serialized", "serialized_or_dependent", "too_little_compute", "late_launch")
_EXPERTS = ("all_to_all", "dispatch", "combine", "all_gather", "reduce_scatter")
_SPLITTING = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
DECODE_DEFAULT, PREFILL_DEFAULT = 32, 512
"""vLLM's thresholds where none is given, in tokens."""
LEAST_TOKENS = 64
"""Tokens per device and decode step from which two half-batches have been seen to gain."""


def _dual(settings: Settings) -> Answer:
    if not settings.on("enable_dbo") or settings.mentioned("afd_config"):
        return None
    size = settings.number("dp")
    if size is not None and size <= 1:
        return Match(because=("enable_dbo", "dp"), detail="data parallel size 1", voids=("enable_dbo",))
    if settings.off("enable_expert_parallel"):
        return Match(because=("enable_dbo", "enable_expert_parallel"), detail="no expert parallelism", voids=("enable_dbo",))
    given = next((name for name in ("all2all_backend", "VLLM_ALL2ALL_BACKEND") if settings.given(name)), None)
    backend = settings.word(given) if given else settings.word("all2all_backend")
    if backend is not None and backend not in _SPLITTING:
        return Match(
            because=("enable_dbo", *((given,) if given else ())), detail=f"the backend is {backend}", voids=("enable_dbo",)
        )
    missing = [name for name, known in (("data parallel size", size), ("all2all_backend", backend)) if known is None]
    return Undecided(because=("enable_dbo",), needs=" and ".join(missing)) if missing else None


def _dual_threshold(settings: Settings) -> Answer:
    if not settings.on("enable_dbo"):
        return None
    sequences, tokens = settings.number("max_num_seqs"), settings.number("max_num_batched_tokens")
    decode = settings.number("dbo_decode_token_threshold")
    prefill = settings.number("dbo_prefill_token_threshold")
    if sequences is not None and settings.given("num_speculative_tokens"):
        # Every sequence brings its guessed tokens along.
        guessed = settings.number("num_speculative_tokens")
        sequences = None if guessed is None else sequences * (1 + guessed)
    never_decode = sequences is not None and sequences < (DECODE_DEFAULT if decode is None else decode)
    never_prefill = tokens is not None and tokens < (PREFILL_DEFAULT if prefill is None else prefill)
    if not (never_decode and never_prefill):
        return None
    return Match(
        because=(
            "enable_dbo",
            "max_num_seqs",
            "max_num_batched_tokens",
            "dbo_decode_token_threshold",
            "dbo_prefill_token_threshold",
        ),
        detail="no step has that many tokens",
        voids=("enable_dbo",),
    )


def _fused(settings: Settings) -> Answer:  # noqa: PLR0911 - one return per precondition
    if not settings.on("fuse_gemm_comms"):
        return None
    size = settings.number("tp")
    if size is not None and size <= 1:
        return Match(because=("fuse_gemm_comms", "tp"), detail="tensor parallel size 1", voids=("fuse_gemm_comms", "enable_sp"))
    if settings.on("enforce_eager"):
        return Match(
            because=("fuse_gemm_comms", "enforce_eager"), detail="nothing is compiled", voids=("fuse_gemm_comms", "enable_sp")
        )
    for name in ("optimization_level", "compilation_mode"):
        given = settings.given(name)
        if given is not None and given.value == 0:
            return Match(because=("fuse_gemm_comms", name), detail="nothing is compiled", voids=("fuse_gemm_comms", "enable_sp"))
    if settings.given("sp_min_token_num"):
        return None
    if settings.capability is not None and settings.capability < 9:
        return Match(
            because=("fuse_gemm_comms",),
            detail="no threshold is known for this device, so that both passes are turned off",
            voids=("fuse_gemm_comms", "enable_sp"),
        )
    return Undecided(
        because=("fuse_gemm_comms",),
        needs="the device and the model's hidden size: where vLLM has no threshold of its own (Hopper, hidden size "
        "8192 and more, has "
        "one) it turns the pass off; set pass_config.sp_min_token_num, and look at pass_config in the log",
    )


def _removed(settings: Settings) -> Answer:
    backend = settings.word("all2all_backend") or settings.word("VLLM_ALL2ALL_BACKEND")
    name = "all2all_backend" if settings.given("all2all_backend") else "VLLM_ALL2ALL_BACKEND"
    if backend in ("pplx", "naive"):
        if "vllm" not in settings.versions:
            return Undecided(because=(name,), needs="the version of vLLM: 0.12 has the backend, 0.25 replaces it by another")
        return Match(because=(name,), detail=f"{backend} is gone: allgather_reducescatter runs instead", voids=(name,))
    return None


def _two(settings: Settings) -> Answer:
    if not settings.on("enable_two_batch_overlap") or settings.on("enable_deepep_moe"):
        return None
    backend = settings.word("moe_a2a_backend")
    if backend is None:
        return Undecided(because=("enable_two_batch_overlap",), needs="moe_a2a_backend, which has to be one, like deepep")
    if backend != "none":
        return None
    size = settings.number("dp")
    if settings.on("enable_dp_attention"):
        if size is not None and size > 1:
            return None
        detail = "no all-to-all backend, and enable_dp_attention is reset at data parallel size 1"
        return Match(
            because=("enable_two_batch_overlap", "enable_dp_attention", "dp"), detail=detail, voids=("enable_two_batch_overlap",)
        )
    return Match(
        because=("enable_two_batch_overlap", "moe_a2a_backend"),
        detail="moe_a2a_backend is none",
        voids=("enable_two_batch_overlap",),
    )


def _two_threshold(settings: Settings) -> Answer:
    if not settings.on("enable_two_batch_overlap"):
        return None
    tokens = settings.number("tokens_per_gpu")
    shown: tuple[str, ...] = ("enable_two_batch_overlap", "tokens_per_gpu")
    if tokens is None:
        requests = settings.number("max_running_requests")
        if requests is None or settings.word("disaggregation_mode") != "decode":
            return None
        size = settings.number("dp") or 1
        tokens = requests / size if settings.on("enable_dp_attention") else requests
        shown = ("enable_two_batch_overlap", "max_running_requests", "dp", "disaggregation_mode")
        if settings.mentioned("speculative_algorithm") or settings.mentioned("speculative_num_draft_tokens"):
            drafted = settings.number("speculative_num_draft_tokens")
            if drafted is None:
                return None
            tokens *= drafted
            shown = (*shown, "speculative_num_draft_tokens")
    if tokens >= LEAST_TOKENS:
        return None
    return Match(because=shown, detail=f"at most {tokens:g} tokens per device and decode step")


RULES = (
    Rule(
        id="dbo-needs",
        says="dual batch overlap is switched on without what it needs",
        reason="it hides the all-to-all of expert parallelism over data-parallel ranks, and only the DeepEP (and NIXL) "
        "backends can be "
        "split in two; else vLLM never splits, or refuses to start",
        change="--data-parallel-size 2 or more, --enable-expert-parallel, --all2all-backend deepep_low_latency or "
        "deepep_high_throughput",
        price="DeepEP has to be installed; weights are read twice per step",
        holds_for="vLLM 0.11 and later",
        sources=(_DBO, _VLLM),
        about=("enable_dbo",),
        check=_dual,
        explains=Explains(causes=_EXPOSED, collectives=_EXPERTS),
        fires={"serve.sh": "vllm serve model --tensor-parallel-size 8 --enable-dbo\n"},
        silent={
            "serve.sh": "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend "
            "deepep_low_latency --enable-dbo\n"
        },
    ),
    Rule(
        id="dbo-threshold",
        says="dual batch overlap is switched on, and no step reaches its thresholds",
        reason="steps with fewer tokens than the threshold (32 for decode, 512 for prefill, where not given) are not "
        "split, and every "
        "rank has to agree",
        change="lower --dbo-decode-token-threshold or --dbo-prefill-token-threshold, or allow larger steps",
        price="small halves run less efficiently, and read the weights twice",
        holds_for="vLLM 0.11 and later",
        sources=(_DBO, "https://github.com/vllm-project/vllm/pull/23693"),
        about=("enable_dbo",),
        check=_dual_threshold,
        explains=Explains(causes=_EXPOSED, collectives=_EXPERTS),
        fires={
            "serve.sh": "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend deepep_low_latency "
            "--enable-dbo --max-num-seqs 16 --max-num-batched-tokens 256\n"
        },
        silent={
            "serve.sh": "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend deepep_low_latency "
            "--enable-dbo --max-num-seqs 256 --max-num-batched-tokens 8192\n"
        },
    ),
    Rule(
        id="vllm-async-tp",
        says="fuse_gemm_comms is accepted, and turned off again",
        reason="it stands on sequence parallelism, which needs tensor parallelism, a compiled model and a token "
        "threshold; where one is "
        "missing both are set to False, so that an experiment compares one configuration with itself",
        change="set pass_config.sp_min_token_num, and see pass_config in the log of the engine, not on the command line",
        price="below the threshold two small transfers cost more than one all-reduce",
        holds_for="vLLM with pass_config.fuse_gemm_comms (enable_async_tp before)",
        sources=("https://github.com/Blackwellboy/model-serving-minefield/issues/43", _VLLM),
        about=("fuse_gemm_comms",),
        check=_fused,
        explains=Explains(causes=_EXPOSED, collectives=("all_reduce", "all_gather", "reduce_scatter")),
        fires={
            "serve.sh": "vllm serve model --tensor-parallel-size 8 --enforce-eager "
            '--compilation-config \'{"pass_config": {"fuse_gemm_comms": true}}\'\n'
        },
        silent={
            "serve.sh": "vllm serve model --tensor-parallel-size 8 "
            '--compilation-config \'{"pass_config": {"fuse_gemm_comms": true, "sp_min_token_num": 1024}}\'\n'
        },
    ),
    Rule(
        id="all2all-removed",
        says="the all-to-all backend was removed, and another one runs",
        reason="pplx and naive are still accepted, with a warning, and replaced by allgather_reducescatter, which "
        "overlaps nothing",
        change="--all2all-backend deepep_low_latency, deepep_high_throughput or another of the documented ones",
        price="its kernels have to be installed",
        holds_for="vLLM 0.25 and later; 0.12 has the backend, and when between them it went was not looked up",
        sources=(
            "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
            "https://github.com/vllm-project/vllm/blob/main/vllm/config/parallel.py",
        ),
        about=("all2all_backend", "VLLM_ALL2ALL_BACKEND"),
        check=_removed,
        product="vllm",
        since="0.25",
        explains=Explains(causes=_EXPOSED, collectives=_EXPERTS),
        fires={
            "serve.sh": "pip install vllm==0.25.0\n"
            "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend pplx\n"
        },
        silent={
            "serve.sh": "pip install vllm==0.12.0\n"
            "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend pplx\n"
        },
    ),
    Rule(
        id="tbo-needs",
        says="two-batch overlap is switched on without what it needs",
        reason="it hides the dispatch and combine of an all-to-all backend; without one there is nothing to hide, and "
        "newer SGLang "
        "refuses to start, or asks for enable_dp_attention, which it resets at data parallel size 1",
        change="--moe-a2a-backend deepep (with --enable-dp-attention and --dp-size as the model wants)",
        price="the backend has to be installed; weights are read twice per step",
        holds_for="SGLang 0.4.9 and later; --enable-deepep-moe stood for the backend before",
        sources=("https://github.com/sgl-project/sglang/issues/36840", "https://github.com/sgl-project/sglang/pull/4068"),
        about=("enable_two_batch_overlap",),
        check=_two,
        explains=Explains(causes=_EXPOSED, collectives=_EXPERTS),
        fires={"serve.sh": "python -m sglang.launch_server --model-path model --tp 8 --enable-two-batch-overlap\n"},
        silent={
            "serve.sh": "python -m sglang.launch_server --model-path model --tp 8 --moe-a2a-backend deepep "
            "--enable-two-batch-overlap\n"
        },
    ),
    Rule(
        id="tbo-threshold",
        says="two-batch overlap in decode with too few tokens per device to gain",
        reason="each half reads all weights, and tiles are half empty: gains were seen from 64 to 128 tokens per "
        "device and step on, "
        "losses below",
        change="more requests per device, --enable-single-batch-overlap, or no two-batch overlap in decode",
        price="more requests per device, longer time per token",
        holds_for="SGLang, decode on Hopper",
        sources=("https://github.com/sgl-project/sglang/pull/9660", "https://github.com/sgl-project/sglang/pull/4068"),
        about=("enable_two_batch_overlap",),
        check=_two_threshold,
        explains=Explains(causes=_EXPOSED, collectives=_EXPERTS),
        fires={
            "serve.sh": "python -m sglang.launch_server --model-path model --tp 16 --dp 16 --enable-dp-attention "
            "--moe-a2a-backend deepep "
            "--disaggregation-mode decode --max-running-requests 256 --enable-two-batch-overlap\n"
        },
        silent={
            "serve.sh": "python -m sglang.launch_server --model-path model --tp 16 --dp 16 --enable-dp-attention "
            "--moe-a2a-backend deepep "
            "--disaggregation-mode decode --max-running-requests 4096 --enable-two-batch-overlap\n"
        },
    ),
)
