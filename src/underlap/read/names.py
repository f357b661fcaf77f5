"""What a kernel is, from its name: a table of families, searched in order, which the user can put families in front of.

A family is matched against the name of the *function* (see `function_name`), so template and argument text never decides:
`at::native::reduce_kernel<ncclFoo>` is a reduction on one device. Kernels that no family knows count as compute and are
reported as unmatched, so the table also lists what is known to be compute.

Does not model what only the arguments say: `ncclDevKernel_Generic` has no collective, an all-to-all of NCCL looks like
send/recv, a CUTLASS kernel that communicates in its epilogue (flux) looks like any other CUTLASS kernel.
"""

# long because: it is one table of data, a record per kernel family.
from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import yaml

from underlap.errors import InputError, UnreadableError
from underlap.read.collective import COLLECTIVES, normalize
from underlap.timeline import OpClass

COMPUTE, COMMUNICATION, FUSED, COPY, WAIT = OpClass


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """What the table says about one name."""

    op_class: OpClass
    library: str | None = None
    """None for compute and copies."""
    collective: str | None = None
    """One of `collective.COLLECTIVES`, or None where the name does not say. send_recv is a hint: NCCL sends all-to-all so."""
    known: bool = True
    """False where no family matched."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Kernels that one pattern recognizes."""

    pattern: str
    """A regular expression, searched in the function name. A group named `collective` is normalized and names the collective."""
    op_class: OpClass
    library: str | None = None
    collective: str | None = None
    source: str = ""
    """The public project that defines the kernels; empty for compute, and where they were seen in a trace."""


_FN = r"(?:^|::)"
"""The start of a function or namespace, in any namespace: forks rename the outer ones."""

# Names that contain the words of collectives without communicating; first, so that nothing below can claim them.
_NEVER_COMMUNICATE = (
    # Inductor lists the operators around a kernel in its name: triton_red_fused_all_reduce_add_0 only computes.
    Family(pattern=r"^triton_", op_class=COMPUTE),
    # Operations of a plan in the records of `underlap run`: underlap::forward/experts.dispatch.local only computes.
    Family(pattern=r"^underlap::", op_class=COMPUTE),
    Family(pattern=r"^(?:at|at_cuda_detail|c10|caffe2|cub|thrust|hipcub|rocprim|rocblas\w*)::", op_class=COMPUTE),
    Family(pattern=r"^(?:cutlass|cudnn|cublas|cask)\w*::", op_class=COMPUTE),
    Family(pattern=r"^(?:Cijk_|nvjet_|(?:ampere|volta|turing|maxwell|hopper|sm[0-9]{2,3})_)", op_class=COMPUTE),
    Family(pattern=rf"{_FN}(?:splitKreduce_kernel|reduce_1Block_kernel|reduce_kernel|oneRankReduce)$", op_class=COMPUTE),
    Family(pattern=rf"{_FN}(?:flash_fwd|flash_bwd|flash_attn|fmha|mha|splitkv)\w*$", op_class=COMPUTE),
    Family(pattern=rf"{_FN}Device(?:Segmented)?(?:Reduce|Scan|RadixSort|Compact|Select|Histogram|Merge)\w*$", op_class=COMPUTE),
)

_COPIES = (
    # As profilers name copy rows (Kineto, nvprof, roctracer), and the blit kernels with which ROCm copies and fills.
    Family(
        pattern=r"^(?:\[CUDA mem(?:cpy|set)\b|(?:hip)?Mem(?:cpy|set)(?![a-z_])|Copy(?:Device|Host)To(?:Device|Host)"
        r"|FillBuffer$|__amd_rocclr_(?:copy|fill)|dma(?![A-Za-z]))",
        op_class=COPY,
    ),
)

_NCCL = (
    # NCCL compiles a Generic kernel too, but runs real work in the specialized ones; RCCL runs everything in Generic.
    Family(pattern=r"^ncclDevKernel(?:Debug)?_Generic", op_class=COMMUNICATION, library="rccl"),
    Family(pattern=r"^rccl", op_class=COMMUNICATION, library="rccl", source="ROCm/rccl"),
    Family(pattern=r"^mscclKernel", op_class=COMMUNICATION, library="msccl", source="ROCm/rccl"),
    Family(pattern=r"^nccl(?:Symk?)?(?:Dev)?Kernel(?:Debug)?_(?P<collective>[A-Za-z]+)", op_class=COMMUNICATION, library="nccl"),
    Family(
        # Before ncclKernel_*: ncclAllReduceRingLLKernel_sum_f32.
        pattern=r"^nccl(?P<collective>(?:All|Reduce)?(?:Reduce|Gather|Scatter)|Broadcast|SendRecv)\w*Kernel",
        op_class=COMMUNICATION,
        library="nccl",
        source="NVIDIA/nccl",
    ),
    Family(pattern=r"^nccl", op_class=COMMUNICATION, library="nccl", source="NVIDIA/nccl"),
)

_DEEP_EP = (
    # Counts are exchanged and everybody is waited for; the tokens move in dispatch and combine. The same holds for
    # clean_low_latency_buffer: it zeroes a few local counters between two barriers over all ranks, and the barriers last.
    Family(
        pattern=rf"{_FN}(?:notify_dispatch|notify_combine|cached_notify(?:_dispatch|_combine)?|clean_low_latency_buffer)$",
        op_class=WAIT,
        library="deepep",
        source="deepseek-ai/DeepEP",
    ),
    Family(
        pattern=rf"{_FN}(?:intranode|internode|internode_ll)::barrier$|{_FN}elastic::barrier_impl$|{_FN}hybrid_ep::device_sync_kernel$"
        r"|^barrier$",
        op_class=WAIT,
        library="deepep",
        collective="barrier",
        source="deepseek-ai/DeepEP",
    ),
    # Counts tokens per rank from the routing of this rank: no transfer.
    Family(pattern=rf"{_FN}get_dispatch_layout$", op_class=COMPUTE, source="deepseek-ai/DeepEP"),
    Family(
        # Any outer namespace: deep_ep, dpsk::ep, uccl, primus_turbo::deep_ep.
        pattern=rf"{_FN}(?:intranode|internode|internode_ll|elastic|hybrid_ep)::(?:hybrid_)?(?P<collective>dispatch|combine)"
        r"(?:_kernel|_impl)?$",
        op_class=COMMUNICATION,
        library="deepep",
        source="deepseek-ai/DeepEP",
    ),
    # Nsight's short names have no namespace.
    Family(pattern=r"^(?P<collective>dispatch|combine)$", op_class=COMMUNICATION, library="deepep", source="deepseek-ai/DeepEP"),
)

_CUSTOM_ALL_REDUCE = (
    # Reads what the first stage left in local memory, and normalizes it.
    Family(pattern=rf"{_FN}local_device_load_rmsnorm\w*$", op_class=COMPUTE, source="ROCm/aiter"),
    Family(
        # All-reduce, residual and norm in one kernel. Its plain all-reduce mode is a template argument, which is not looked at.
        pattern=rf"{_FN}(?:moe\w*_)?allreduce_fusion_kernel",
        op_class=FUSED,
        library="custom_all_reduce",
        collective="all_reduce",
        source="flashinfer-ai/flashinfer, NVIDIA/TensorRT-LLM, ROCm/aiter",
    ),
    Family(
        pattern=rf"{_FN}(?:lamport_style_)?one_shot_all_reduce_norm_kernel|{_FN}oneshot_?[Aa]ll_?[Rr]educe_?[Ff]usion_?[Kk]ernel"
        rf"|{_FN}allreduce_rmsnorm",
        op_class=FUSED,
        library="custom_all_reduce",
        collective="all_reduce",
        source="NVIDIA/TensorRT-LLM, flashinfer-ai/flashinfer, ROCm/aiter",
    ),
    Family(
        pattern=rf"{_FN}cross_device_reduce_[12]stage",
        op_class=COMMUNICATION,
        library="custom_all_reduce",
        collective="all_reduce",
        source="vllm-project/vllm, sgl-project/sglang, ROCm/aiter",
    ),
    Family(
        pattern=rf"{_FN}reduce_scatter_cross_device_store",
        op_class=COMMUNICATION,
        library="custom_all_reduce",
        collective="reduce_scatter",
        source="ROCm/aiter",
    ),
    Family(
        pattern=rf"{_FN}allgather_(?:naive|vec|lastdim)$",
        op_class=COMMUNICATION,
        library="custom_all_reduce",
        collective="all_gather",
        source="ROCm/aiter",
    ),
    Family(
        pattern=rf"{_FN}quickreduce::|{_FN}allreduce_prototype(?:_twoshot)?$",
        op_class=COMMUNICATION,
        library="quickreduce",
        collective="all_reduce",
        source="mk1-project/quickreduce, ROCm/aiter, vllm-project/vllm",
    ),
    Family(
        pattern=rf"{_FN}(?:lowPrecision)?(?:[Oo]ne|[Tt]wo)[Ss]hot_?[Aa]ll_?[Rr]educe_?[Kk]ernel$|{_FN}hybridCubeMeshAllReduceKernel$",
        op_class=COMMUNICATION,
        library="custom_all_reduce",
        collective="all_reduce",
        source="NVIDIA/TensorRT-LLM, flashinfer-ai/flashinfer, pytorch/pytorch (intra_node_comm)",
    ),
)

_EXPERT_PARALLEL = (
    # Preparation and clean-up around the exchange run on local buffers.
    Family(pattern=rf"{_FN}moeA2A(?:Prepare|Sanitize)\w*$", op_class=COMPUTE, source="NVIDIA/TensorRT-LLM"),
    Family(
        pattern=rf"{_FN}moeA2A(?P<collective>Dispatch|Combine)Kernel$",
        op_class=COMMUNICATION,
        library="trtllm_moe_a2a",
        source="NVIDIA/TensorRT-LLM, flashinfer-ai/flashinfer",
    ),
    Family(
        pattern=rf"{_FN}moe(?P<collective>All[Tt]oAll)Kernel$",
        op_class=COMMUNICATION,
        library="trtllm_moe_a2a",
        source="NVIDIA/TensorRT-LLM",
    ),
    Family(
        pattern=rf"{_FN}a2a_(?P<collective>dispatch|combine)_(?:send|recv)_kernel$",
        op_class=COMMUNICATION,
        library="pplx",
        source="perplexityai/pplx-garden",
    ),
    Family(pattern=rf"{_FN}EpCombineSyncBarrier", op_class=WAIT, library="mori", collective="barrier", source="ROCm/mori"),
    Family(pattern=rf"{_FN}(?:EpDispatchCopyToStaging|EpCombineSync)(?:_|$)", op_class=COMPUTE, source="ROCm/mori"),
    Family(pattern=rf"{_FN}Ep(?P<collective>Dispatch|Combine)[A-Z]", op_class=COMMUNICATION, library="mori", source="ROCm/mori"),
    Family(
        pattern=r"^MoeDistribute(?P<collective>Dispatch|Combine)",
        op_class=COMMUNICATION,
        library="hccl",
        source="Ascend/op-plugin",
    ),
)

_SYMMETRIC_MEMORY = (
    Family(
        pattern=rf"{_FN}(?:barrier|put_signal|wait_signal)_kernel$",
        op_class=WAIT,
        library="symm_mem",
        source="pytorch/pytorch (CUDASymmetricMemory.cu)",
    ),
    Family(
        pattern=rf"{_FN}_?(?:multimem|(?:multimem_)?(?:one|two)_shot)_(?P<collective>(?:all_)?reduce|all_gather|reduce_scatter)_kernel",
        op_class=COMMUNICATION,
        library="symm_mem",
        source="pytorch/pytorch (CUDASymmetricMemoryOps.cu)",
    ),
    Family(
        pattern=rf"{_FN}exchangeSplitAndOffset(?:_2d)?$",
        op_class=WAIT,
        library="symm_mem",
        source="pytorch/pytorch (nvshmem_extension.cu)",
    ),
    Family(
        pattern=rf"{_FN}(?P<collective>all_?[Tt]o_?[Aa]llV?)(?:_2d)?$",
        op_class=COMMUNICATION,
        library="symm_mem",
        source="pytorch/pytorch (nvshmem_extension.cu)",
    ),
    Family(
        pattern=r"^fbgemm_gpu::(?:one|two)_shot_all_reduce",
        op_class=COMMUNICATION,
        library="custom_all_reduce",
        collective="all_reduce",
        source="pytorch/FBGEMM (car.cu)",
    ),
)

_NVSHMEM = (
    Family(
        pattern=rf"{_FN}(?:nvshmemi?_)?(?:barrier|sync|quiet)(?:_all)?_on_stream_kernel",
        op_class=WAIT,
        library="nvshmem",
        collective="barrier",
        source="NVIDIA/nvshmem",
    ),
    Family(
        pattern=r"^(?:nvshmem|rocshmem)\w*(?:barrier|sync_all|quiet|fence|signal_op|signal_wait|wait_until)",
        op_class=WAIT,
        library="nvshmem",
        source="NVIDIA/nvshmem, ROCm/rocSHMEM",
    ),
    Family(
        pattern=rf"{_FN}(?:nvshmemi?_)?(?P<collective>alltoall|broadcast|fcollect|reducescatter)_on_stream_kernel",
        op_class=COMMUNICATION,
        library="nvshmem",
        source="NVIDIA/nvshmem",
    ),
    Family(
        pattern=rf"{_FN}(?:nvshmemi?_)?rdxn_on_stream_kernel",
        op_class=COMMUNICATION,
        library="nvshmem",
        collective="all_reduce",
        source="NVIDIA/nvshmem",
    ),
    Family(pattern=r"^(?:nvshmem|rocshmem)", op_class=COMMUNICATION, library="nvshmem", source="NVIDIA/nvshmem, ROCm/rocSHMEM"),
)

_USERBUFFERS = (
    Family(
        pattern=rf"{_FN}userbuffers_\w*rmsnorm",
        op_class=FUSED,
        library="userbuffers",
        collective="all_reduce",
        source="NVIDIA/TensorRT-LLM",
    ),
    Family(
        pattern=rf"{_FN}userbuffers_fp16_sum_inplace_gpu_[a-z]+_rs(?:_|$)",
        op_class=COMMUNICATION,
        library="userbuffers",
        collective="reduce_scatter",
        source="NVIDIA/TransformerEngine",
    ),
    Family(
        pattern=rf"{_FN}userbuffers_fp16_sum_inplace_gpu_[a-z]+_(?:ag|res_allgather)(?:_|$)",
        op_class=COMMUNICATION,
        library="userbuffers",
        collective="all_gather",
        source="NVIDIA/TransformerEngine",
    ),
    Family(
        pattern=rf"{_FN}userbuffers_fp16_sum_inplace_gpu",
        op_class=COMMUNICATION,
        library="userbuffers",
        collective="all_reduce",
        source="NVIDIA/TransformerEngine",
    ),
    # In push mode the sender writes and the receiver spins on a flag; in pull mode the sender raises the flag and
    # the receiver reads. The side that only handles the flag transfers nothing.
    Family(
        pattern=rf"{_FN}kuserbuffers_(?:inc|dec|proxy|(?:push(?=recv)|pull(?=send(?!recv)))(?P<collective>recv|send))(?:_|$)",
        op_class=WAIT,
        library="userbuffers",
        source="NVIDIA/TransformerEngine",
    ),
    Family(
        pattern=rf"{_FN}kuserbuffers_(?:push|pull)?(?P<collective>sendrecv|send|recv|alltoall)",
        op_class=COMMUNICATION,
        library="userbuffers",
        source="NVIDIA/TransformerEngine",
    ),
    Family(pattern=rf"{_FN}k?userbuffers_", op_class=COMMUNICATION, library="userbuffers", source="NVIDIA/TransformerEngine"),
)

_OTHER_LIBRARIES = (
    Family(
        pattern=r"^mscclpp::(?:\w+::)*(?i:(?P<collective>all_?reduce|all_?gather|reduce_?scatter|all_?to_?all))\w*$",
        op_class=COMMUNICATION,
        library="mscclpp",
        source="microsoft/mscclpp",
    ),
    Family(pattern=r"^mscclpp", op_class=COMMUNICATION, library="mscclpp", source="microsoft/mscclpp"),
    Family(
        pattern=r"^(?i:Notify[_ ]?(?:Wait|Record))|^hcomAicpuInit", op_class=WAIT, library="hccl", source="Ascend/msprof-analyze"
    ),
    Family(pattern=r"^hcom_(?P<collective>[A-Za-z]+)", op_class=COMMUNICATION, library="hccl", source="Ascend/msprof-analyze"),
    Family(pattern=r"^(?:hcom|hccl|Hccl|HCCL)", op_class=COMMUNICATION, library="hccl", source="Ascend/msprof-analyze"),
    Family(
        pattern=r"^oneccl_(?P<collective>allreduce|allgather|reduce_?scatter|alltoall|broadcast|reduce|send|recv)",
        op_class=COMMUNICATION,
        library="oneccl",
        source="uxlfoundation/oneCCL",
    ),
    Family(pattern=r"^oneccl|^(?:oneapi::)?ccl::", op_class=COMMUNICATION, library="oneccl", source="uxlfoundation/oneCCL"),
    Family(
        pattern=r"^persistent_(?P<collective>all_reduce|all_gather|reduce_scatter|all_to_all)",
        op_class=COMMUNICATION,
        library="iris",
        source="ROCm/iris",
    ),
)

_FUSED_WITH_GEMM = (
    Family(
        pattern=r"^kernel_(?:consumer_gemm|ag_gemm)|^_fused_all_gather_matmul_kernel|^_all_gather_matmul_kernel",
        op_class=FUSED,
        library="triton_distributed",
        collective="all_gather",
        source="ByteDance-Seed/Triton-distributed, ROCm/iris",
    ),
    Family(
        pattern=r"^kernel_(?:gemm_rs|producer_gemm)|^_(?:fused_)?matmul_reduce_scatter_kernel",
        op_class=FUSED,
        library="triton_distributed",
        collective="reduce_scatter",
        source="ByteDance-Seed/Triton-distributed, ROCm/iris",
    ),
    Family(
        pattern=rf"{_FN}(?:flux_)?ag_gemm(?:_|$)|{_FN}flux::\w*ag_gemm",
        op_class=FUSED,
        library="flux",
        collective="all_gather",
        source="bytedance/flux",
    ),
    Family(
        pattern=rf"{_FN}(?:flux_)?gemm_rs(?:_|$)|{_FN}flux::\w*gemm_rs",
        op_class=FUSED,
        library="flux",
        collective="reduce_scatter",
        source="bytedance/flux",
    ),
    Family(
        pattern=r"^Mat[Mm]ul(?P<collective>AllReduce|ReduceScatter)", op_class=FUSED, library="hccl", source="Ascend/op-plugin"
    ),
    Family(pattern=r"^(?P<collective>AllGather)Mat[Mm]ul", op_class=FUSED, library="hccl", source="Ascend/op-plugin"),
)

# Projects that ship both kinds of kernels, and words of work on one device. A name that also has a word of a collective
# stays unmatched, so that it is listed: it may be a communication kernel that this table does not have yet.
_NO_COLLECTIVE = (
    r"^(?!.*(?i:nccl|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|a2a|broadcast|dispatch|combine|barrier|signal"
    r"|send|recv|remote|peer|multimem|nvls|lamport|_rs(?:_|$)|_ag(?:_|$)))"
)

_COMPUTE = (
    Family(pattern=r"^(?:cutlass|cute_|kernel_cutlass|cublas|cudnn|rocblas|miopen|MIOpen|xmma|cask)", op_class=COMPUTE),
    Family(pattern=r"^(?:(?:[sdchz]|bf)?gem[mv]|internal::gemvx|bmm_|dot_kernel$|scal_kernel$|epilogue::impl)", op_class=COMPUTE),
    Family(pattern=r"^(?:implicit_convolve|convolve|winograd|fft[12]d|[sh]cudnn)", op_class=COMPUTE),
    Family(pattern=r"^(?:ck|ck_tile)::|^kernel_(?:grouped_conv|gemm_xdl|batched_gemm)", op_class=COMPUTE),
    Family(
        pattern=r"^(?:igemm_|naive_conv|batched_transpose_|SubTensorOp|Op[1-5]dTensor|Im2d2Col|transpose_[A-Z]+2[A-Z])",
        op_class=COMPUTE,
    ),
    # Short names that Nsight gives to cutlass::Kernel and its like.
    Family(pattern=r"^(?:Kernel2?|device_kernel)$", op_class=COMPUTE),
    Family(
        pattern=r"^(?:flash(?:_|::)|pytorch_flash|FlashAttn|pytorch_fmha|_fwd_kernel|_bwd_kernel|_attn_fwd|_attn_bwd)",
        op_class=COMPUTE,
    ),
    Family(pattern=rf"{_FN}(?:multi_tensor_apply_kernel|CatArrayBatchedCopy|split_with_sizes_copy|chunk_cat)", op_class=COMPUTE),
    Family(
        pattern=rf"{_FN}(?:\w+_)?elementwise_kernel|{_FN}index(?:Select|Func|ing_backward)|{_FN}index_\w+_kernel",
        op_class=COMPUTE,
    ),
    Family(pattern=r"^(?:moe_align|moe_sum|_combined_routing|_copy_page_indices|compute_cuda_kernel$)", op_class=COMPUTE),
    # FBGEMM's generated embedding kernels and the permutations beside them.
    Family(
        pattern=r"^(?:split|dense|ssd)_embedding_|^(?:permute_pooled_embs|recat_copy_async|linearize_index|bounds_check)",
        op_class=COMPUTE,
    ),
    # XLA.
    Family(pattern=r"^(?:input|loop|horizontal)_\w*fusion|^(?:fusion|gemm_fusion|Cast)(?:_|$)", op_class=COMPUTE),
    Family(pattern=_NO_COLLECTIVE + r"wrapped_", op_class=COMPUTE),
    Family(
        pattern=_NO_COLLECTIVE
        + r"(?:vllm|sglang|sgl_kernel|aiter|flashinfer|deep_gemm|fbgemm_gpu|transformer_engine|apex|xformers|tensorrt_llm"
        r"|trtllm|moe|marlin)\w*::",
        op_class=COMPUTE,
    ),
    Family(
        pattern=_NO_COLLECTIVE
        + r".*(?i:softmax|(?:layer|rms|batch|group)_?norm|rotary|rope|embedding|transpose|conv[123]d|convolution|pooling|gelu"
        r"|silu|swiglu|attention|matmul|gemm|gemv|quant|adam|dropout|cross_entropy|cumsum|radix|histogram|topk|im2col|col2im)",
        op_class=COMPUTE,
    ),
)

BUILT_IN = (
    *_COPIES,
    *_NEVER_COMMUNICATE,
    *_NCCL,
    *_DEEP_EP,
    *_CUSTOM_ALL_REDUCE,
    *_EXPERT_PARALLEL,
    *_SYMMETRIC_MEMORY,
    *_NVSHMEM,
    *_USERBUFFERS,
    *_OTHER_LIBRARIES,
    *_FUSED_WITH_GEMM,
    *_COMPUTE,
)

_UNKNOWN = Recognition(op_class=COMPUTE, known=False)
_LONGEST_FUNCTION = 1000
"""In characters. Longer function names are cut: no pattern needs more, and none may take long on a hostile name."""


class NameTable:
    """The families in the order in which they are tried, and what they said so far."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)
        self._patterns = tuple(re.compile(family.pattern) for family in self._families)
        self._seen: dict[str, Recognition] = {}

    @classmethod
    def default(cls) -> NameTable:
        """The built-in families."""
        return cls(BUILT_IN)

    def with_file(self, path: Path) -> NameTable:
        """A table that tries the families of a YAML file (`--names`) before these.

        Raises UnreadableError where the file cannot be read, InputError where it is not as described in `_FamilyRow`.
        """
        return NameTable((*_read_families(path), *self._families))

    def recognize(self, name: str) -> Recognition:
        """What the first family that matches says; compute, and not known, where none does."""
        found = self._seen.get(name)
        if found is None:
            found = self._seen[name] = self._search(function_name(name))
        return found

    def _search(self, function: str) -> Recognition:
        for family, pattern in zip(self._families, self._patterns, strict=True):
            match = pattern.search(function)
            if match is not None:
                spelled = match.groupdict().get("collective")
                collective = family.collective if spelled is None else normalize(spelled)
                return Recognition(op_class=family.op_class, library=family.library, collective=collective)
        return _UNKNOWN


_COPY_NAME = re.compile("|".join(family.pattern for family in _COPIES))
_PEER_COPY_NAME = re.compile(r"^(?:\[CUDA memcpy|(?:hip)?Memcpy)\s?(?:PtoP|P2P|Peer)")


def is_copy_name(name: str) -> bool:
    """Whether profilers give this name to copies and fills: "Memcpy HtoD (Pinned -> Device)", "Memset (Device)"."""
    return _COPY_NAME.match(name) is not None


def is_peer_copy_name(name: str) -> bool:
    """Whether this is the name of a copy from device to device: "Memcpy PtoP (Device -> Device)"."""
    return _PEER_COPY_NAME.match(name) is not None


_NO_NAMESPACE = ("(anonymous namespace)::", "{anonymous}::", "<unnamed>::")
_BRACKETS = re.compile(r"->|[<>() ]")


def function_name(name: str) -> str:
    """The qualified name of the function, without return type, template arguments, parameters and anonymous namespaces.

    >>> function_name("void at::native::(anonymous namespace)::reduce<4, Op<float> >(Op<float>, int*)")
    'at::native::reduce'
    >>> function_name("_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE")
    'ncclDevKernel_SendRecv'

    Names of copies, and names that have no parts of C++ to take away, stay as they are.
    """
    if is_copy_name(name):
        return name[:_LONGEST_FUNCTION]
    name = name.strip().partition(" [clone")[0].removesuffix(".kd")
    if name.startswith("_Z"):
        return _demangled(name)[:_LONGEST_FUNCTION]
    for namespace in _NO_NAMESPACE:
        name = name.replace(namespace, "")
    return _without_arguments(name.removeprefix("void ").strip())[:_LONGEST_FUNCTION]


def _without_arguments(name: str) -> str:
    """The last word outside of all brackets before the parameter list; the whole name where there is no bracket."""
    if "(" not in name and "<" not in name:
        return name
    angles = [0]  # how many "<" are open, in each "(" that is open: a ">" beyond that is a comparison
    word: list[str] = []
    before: list[str] = []
    end = 0
    for match in _BRACKETS.finditer(name):
        bracket, outside = match.group(), angles == [0]
        if outside and match.start() > end:
            word.append(name[end : match.start()])
        end = match.end()
        if bracket == "(":
            if outside and (word or before) and word != ["decltype"]:
                break
            angles.append(0)
        elif bracket == ")":
            if len(angles) > 1:
                angles.pop()
        elif bracket == "<":
            angles[-1] += 1
        elif bracket == ">":
            angles[-1] = max(0, angles[-1] - 1)
        elif bracket == " " and outside and word:
            before, word = word, []
    else:
        if angles == [0]:
            word.append(name[end:])
    return "".join(word or before).lstrip("*&") or name


_LENGTH = re.compile(r"L?([0-9]{1,5})")


def _demangled(name: str) -> str:
    """The qualified name at the front of an Itanium-mangled one (_ZN2at6native...), as far as it is spelled out."""
    position = 3 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while True:
        if name.startswith("St", position):
            parts.append("std")
            position += 2
        length = _LENGTH.match(name, position)
        if length is None:
            break
        position = length.end() + int(length[1])
        part = name[length.end() : position]
        if not part.startswith("_GLOBAL__N"):
            parts.append(part)
        if not name.startswith("_ZN"):
            break
    return "::".join(parts) or name


_CLASSES = {member.name.lower(): member for member in OpClass}


class _FamilyRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry under `families` in a file for `--names`; the fields are those of `Family`."""

    pattern: str
    op_class: str = msgspec.field(name="class")
    library: str | None = None
    collective: str | None = None


class _NamesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    families: list[_FamilyRow]


def _read_families(path: Path) -> list[Family]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UnreadableError(f"{path}: {reason}. Expected a YAML file with kernel families.") from error
    try:
        file = msgspec.convert(yaml.safe_load(text), _NamesFile)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    return [_family(row, path, f"$.families[{index}]") for index, row in enumerate(file.families)]


def _family(row: _FamilyRow, path: Path, place: str) -> Family:
    try:
        re.compile(row.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        reason = f"Expected a Python regular expression, got {row.pattern!r}: {error}"
        raise InputError(f"{path}: {reason} - at `{place}.pattern`") from error
    op_class = _CLASSES.get(row.op_class)
    if op_class is None:
        raise InputError(f"{path}: Expected one of {', '.join(_CLASSES)}, got {row.op_class!r} - at `{place}.class`")
    collective = None if row.collective is None else normalize(row.collective)
    if row.collective is not None and collective is None:
        expected = ", ".join(sorted(COLLECTIVES))
        raise InputError(f"{path}: Expected one of {expected}, got {row.collective!r} - at `{place}.collective`")
    return Family(pattern=row.pattern, op_class=op_class, library=row.library, collective=collective)
