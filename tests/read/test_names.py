"""The kernel table: one test per family, the names that must not be taken for communication, and files for --names."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from underlap.errors import InputError, UnderlapError, UnreadableError
from underlap.read.collective import COLLECTIVES
from underlap.read.names import (
    BUILT_IN,
    Family,
    NameTable,
    Recognition,
    function_name,
    is_copy_name,
    is_peer_copy_name,
)
from underlap.timeline import OpClass

COMPUTE, COMMUNICATION, FUSED, COPY, WAIT = OpClass
TABLE = NameTable.default()

NCCL = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclKernel_Reduce_RING_LL_Sum_float(ncclWorkElem)": "reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclAllReduceTreeLL128Kernel_sum_f16(ncclColl)": "all_reduce",
    "ncclReduceScatterRingKernel_sum_f32(ncclColl)": "reduce_scatter",
    "ncclAllGatherRingLLKernel_copy_i8(ncclColl)": "all_gather",
    "ncclSendRecvKernel_copy_i8(ncclColl)": "send_recv",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "all_gather",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)": "send_recv",
    "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE": "send_recv",
    "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)": "all_gather",
    "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16(ncclSymkDevWorkArgs4K)": "reduce_scatter",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16": "all_reduce",
    "ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32": "all_reduce",
    "ncclSomethingOfNextYear(int)": None,
}
RCCL = {
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "rccl",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "rccl",
    "ncclDevKernel_Generic_4": "rccl",
    "ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)": "rccl",
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*) [clone .kd]": "rccl",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)": "rccl",
    "mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)": "msccl",
}
EXPERT_PARALLEL = {
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": ("deepep", "dispatch"),
    "void deep_ep::internode::combine<4, false, __nv_bfloat16>(int4*)": ("deepep", "combine"),
    "void dpsk::ep::internode::combine<4>(int4*)": ("deepep", "combine"),
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*)": ("deepep", "dispatch"),
    "void deep_ep::internode_ll::combine<false, 7168, 9>(void*)": ("deepep", "combine"),
    "void uccl::intranode::dispatch<8, 768>(int4*)": ("deepep", "dispatch"),
    "void deep_ep::elastic::hybrid_dispatch_impl<8>(int)": ("deepep", "dispatch"),
    "void hybrid_ep::combine_kernel<int>(hybrid_ep::combine_kernel_param_t)": ("deepep", "combine"),
    "dispatch": ("deepep", "dispatch"),
    "combine": ("deepep", "combine"),
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<Policy, 8>(int const*)": ("trtllm_moe_a2a", "dispatch"),
    "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<float>(int const*)": ("trtllm_moe_a2a", "combine"),
    "void flashinfer::trtllm_alltoall::moeAllToAllKernel<true>(int)": ("trtllm_moe_a2a", "all_to_all"),
    "void a2a_dispatch_send_kernel<16>(unsigned long)": ("pplx", "dispatch"),
    "a2a_combine_recv_kernel": ("pplx", "combine"),
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)": ("mori", "dispatch"),
    "EpDispatchIntraNodeKernel_bf16": ("mori", "dispatch"),
    "EpCombineInterNodeV1Kernel": ("mori", "combine"),
    "MoeDistributeDispatch": ("hccl", "dispatch"),
}
WAITS = {
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)": ("deepep", None),
    "void deep_ep::internode::notify_dispatch<false, 4>(int const*)": ("deepep", None),
    "void deep_ep::intranode::cached_notify_dispatch<8>(int const*)": ("deepep", None),
    "void deep_ep::intranode::cached_notify_combine<8>(void**)": ("deepep", None),
    "void dpsk::ep::internode::cached_notify<false>(int)": ("deepep", None),
    "void deep_ep::internode_ll::clean_low_latency_buffer<32>(int*, int)": ("deepep", None),
    "void deep_ep::intranode::barrier<8>(int**, int)": ("deepep", "barrier"),
    "hybrid_ep::device_sync_kernel(int*)": ("deepep", "barrier"),
    "barrier": ("deepep", "barrier"),
    "EpCombineSyncBarrier_bf16": ("mori", "barrier"),
    "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int, unsigned long)": (
        "symm_mem",
        None,
    ),
    "put_signal_kernel(unsigned int**, int, int)": ("symm_mem", None),
    "wait_signal_kernel(unsigned int**, int, int)": ("symm_mem", None),
    "c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)": ("symm_mem", None),
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)": ("nvshmem", "barrier"),
    "_Z36barrier_on_stream_kernel_threadgroupIL13threadgroup_t1EEvii": ("nvshmem", "barrier"),
    "nvshmemi_signal_wait_until_on_stream_kernel(unsigned long volatile*, int, unsigned long)": ("nvshmem", None),
    "kuserbuffers_pushrecv(int, int, int*, int*, int)": ("userbuffers", "recv"),
    "kuserbuffers_pullsend(int, int, int*, int*)": ("userbuffers", "send"),
    "kuserbuffers_inc(int*)": ("userbuffers", None),
    "Notify_Wait": ("hccl", None),
    "NotifyWait": ("hccl", None),
    "Notify Wait": ("hccl", None),
}
ALL_REDUCE_KERNELS = {
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": "custom_all_reduce",
    "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)": "custom_all_reduce",
    "void aiter::cross_device_reduce_2stage_naive<half, 4>(aiter::RankData*)": "custom_all_reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8, true>(AllReduceParams)": "custom_all_reduce",
    "void twoShotAllReduceKernel<8u>(c10::BFloat16*, unsigned long)": "custom_all_reduce",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8, half>(half*)": "custom_all_reduce",
    "void fbgemm_gpu::(anonymous namespace)::two_shot_all_reduce<8, true>(int)": "custom_all_reduce",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(__half const*)": "quickreduce",
    "allreduce_prototype": "quickreduce",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)": "symm_mem",
    "void c10d::multimem_one_shot_all_reduce_kernel<float, 16>(float*)": "symm_mem",
    "one_shot_all_reduce_kernel": "symm_mem",
    "void two_shot_all_reduce_kernel<float, 16, 8>(float**)": "symm_mem",
    "two_shot_all_reduce_kernel_inplace": "symm_mem",
    "void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int)": "nvshmem",
    "void userbuffers_fp16_sum_inplace_gpu_rr<8>(int, int)": "userbuffers",
    "userbuffers_fp16_sum_inplace_gpu_mc(int, int)": "userbuffers",
    "void mscclpp::collective::allreducePacket<half>(half*)": "mscclpp",
    "hcom_allReduce__503_0_1": "hccl",
    "oneccl_allreduce_pcie": "oneccl",
    "persistent_all_reduce_two_shot": "iris",
}
OTHER_COLLECTIVES = {
    "void aiter::reduce_scatter_cross_device_store<bf16, 8>(RankData*)": ("custom_all_reduce", "reduce_scatter"),
    "void aiter::allgather_lastdim<half, 8>(RankData*)": ("custom_all_reduce", "all_gather"),
    "void multimem_all_gather_kernel<16>(char*, char*)": ("symm_mem", "all_gather"),
    "void multimem_one_shot_reduce_kernel<float, 4>(float*)": ("symm_mem", "reduce"),
    "c10d::nvshmem_extension::allToAllV(void*, void*)": ("symm_mem", "all_to_all"),
    "void alltoall_on_stream_kernel<int>(int, int*)": ("nvshmem", "all_to_all"),
    "void nvshmemi_broadcast_on_stream_kernel<int>(int)": ("nvshmem", "broadcast"),
    "nvshmemi_put_something": ("nvshmem", None),
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, __nv_fp8_e4m3>(int)": ("userbuffers", "reduce_scatter"),
    "userbuffers_fp16_sum_inplace_gpu_mc_rs(int)": ("userbuffers", "reduce_scatter"),
    "userbuffers_fp16_sum_inplace_gpu_rw_ag": ("userbuffers", "all_gather"),
    "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)": ("userbuffers", "send"),
    "kuserbuffers_pullrecv(int, int)": ("userbuffers", "recv"),
    "kuserbuffers_pushsendrecv_atomic(int)": ("userbuffers", "send_recv"),
    "kuserbuffers_alltoall": ("userbuffers", "all_to_all"),
    "kuserbuffers_dummy": ("userbuffers", None),
    "mscclpp::collective::allgatherFullmesh2(void*)": ("mscclpp", "all_gather"),
    "void mscclpp::executionKernel<mscclpp::LL8Packet>(int)": ("mscclpp", None),
    "hcom_alltoallv__123": ("hccl", "all_to_all"),
    "hcom_receive__428_0_1": ("hccl", "recv"),
    "hcclAicpuKernel": ("hccl", None),
    "oneapi::ccl::something<float>(int)": ("oneccl", None),
}
FUSED_KERNELS = {
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, half>(Params)": (
        "custom_all_reduce",
        "all_reduce",
    ),
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<half>(P)": ("custom_all_reduce", "all_reduce"),
    "moefinalize_allreduce_fusion_kernel_oneshot_lamport": ("custom_all_reduce", "all_reduce"),
    "void aiter::allreduce_fusion_kernel_1stage<half, 8>(int)": ("custom_all_reduce", "all_reduce"),
    "void lamport_style_one_shot_all_reduce_norm_kernel<half, 8>(AllReduceParams)": ("custom_all_reduce", "all_reduce"),
    "void oneshotAllreduceFusionKernel<8>(half*)": ("custom_all_reduce", "all_reduce"),
    "userbuffers_fp16_sum_inplace_gpu_mc_rmsnorm": ("userbuffers", "all_reduce"),
    "kernel_consumer_gemm_persistent": ("triton_distributed", "all_gather"),
    "kernel_gemm_rs_producer_persistent": ("triton_distributed", "reduce_scatter"),
    "_fused_all_gather_matmul_kernel": ("triton_distributed", "all_gather"),
    "bytedance::flux::ag_gemm_kernel(int)": ("flux", "all_gather"),
    "flux_gemm_rs": ("flux", "reduce_scatter"),
    "MatmulAllReduce": ("hccl", "all_reduce"),
    "AllGatherMatmul": ("hccl", "all_gather"),
}
COPIES = (
    "Memcpy DtoD (Device -> Device)",
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy PtoP (Device -> Device)",
    "Memset (Device)",
    "hipMemcpyAsync",
    "hipMemcpyDtoD",
    "CopyDeviceToDevice",
    "CopyHostToDevice",
    "FillBuffer",
    "[CUDA memcpy DtoH]",
    "[CUDA memset]",
    "__amd_rocclr_copyBuffer",
    "__amd_rocclr_fillBufferAligned.kd",
    "dma",
)
TRAPS = (
    # Words of collectives in kernels of one device.
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4ELi4EEEEEvT1_",
    "reduce_kernel",
    "void cub::DeviceReduceByKeyKernel<cub::DeviceReduceByKeyPolicy<int> >(int*)",
    "void at_cuda_detail::cub::detail::reduce::DeviceReduceKernel<int>(int*)",
    "DeviceReduceSingleTileKernel",
    "_combined_routing_compute",
    "void splitKreduce_kernel<32, 16, int, float, float>(cublasSplitKParams<float>)",
    "void cublasLt::splitKreduce_kernel<32, 16, int>(cublasSplitKParams<float>)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128> >(flash::Flash_fwd_params)",
    "flash_fwd_splitkv_combine_kernel",
    "void pytorch_flash::flash_fwd_splitkv_combine_kernel<int>(int)",
    "triton_red_fused_all_reduce_add_0",
    "triton_poi_fused__to_copy_all_gather_into_tensor_wait_tensor_3",
    "void at::native::(anonymous namespace)::_scatter_gather_elementwise_kernel<128, 8>(int)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*)",
    "oneRankReduce<FuncPreMulSum<float> >(void*, void*, unsigned long)",
    # Around a collective, but local.
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*)",
    "void moeA2APrepareDispatchKernel(int*, int)",
    "EpCombineSync_bf16",
    "void aiter::local_device_load_rmsnorm<half, 256, 8>(int)",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<OpaqueType<2u>, 2>(int)",
    "CatArrayBatchedCopy_vectorized",
    "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)",
    "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(float**)",
    # Communication named in template arguments or parameters.
    "void at::native::elementwise_kernel<128, 4, nccl::combine<dispatch> >(int, ncclDevKernel_AllReduce)",
    "void at::native::vectorized_elementwise_kernel<4, deep_ep::internode::dispatch>(int, cross_device_reduce_1stage*)",
    "void cutlass::Kernel<nccl::all_reduce, flux::gemm_rs>(ncclDevKernel_Generic::Params)",
    "void cutlass::device_kernel<ncclSomething::ag_gemm>(ncclSomething::Params)",
)
UNMATCHED = (
    "dispatch_scan",
    "combine_kernel",
    "_fwd_grouped_kernel_stage2",
    "my_new_kernel",
    "void less<ncclDevKernel_SendRecv>(ncclDevComm*)",
    "void flashinfer::new_comm::all_gather_quant_kernel<8>(int)",
    "fused_gemm_allreduce_kernel",
    "",
)
KNOWN_COMPUTE = (
    "ampere_sgemm_128x128_tn",
    "volta_sgemm_128x32_nn",
    "turing_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "sm100_something",
    "nvjet_tss_192x192_64x3_1x2_h_bz_coopB_NNN",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float>(cudnn::ops::nchw2nhwc_params_t<float>)",
    "implicit_convolve_sgemm",
    "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN.kd",
    "MIOpenBatchNormFwdTrainSpatial",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
    "naive_conv_ab_nonpacked_fwd_nchw_half",
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseE",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>, false>(flash::Flash_fwd_params)",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal",
    "_fwd_kernel_stage2",
    "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)",
    "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
    "moe_align_block_size_kernel",
    "void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<int>(int)",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u>(float*)",
    "void transformer_engine::layer_norm::ln_fwd_tuned_kernel<int>(int)",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >(int)",
    "void thrust::cuda_cub::core::_kernel_agent<int>(int)",
    "void std::enable_if<!(false && 3>2), void>::type internal::gemvx::kernel<int, float>(cublasGemvParamsEx<int>)",
    "input_scatter_fusion_1",
    "loop_multiply_fusion_6",
    "wrapped_transpose",
    "gemm_fusion_dot_4",
    "kernel_cutlass_kernel_sm100_dense_gemm",
    "void rocprim::detail::radix_sort_kernel<int>(int)",
    "Kernel",
)


@pytest.mark.parametrize(("name", "collective"), NCCL.items())
def test_nccl_kernels_of_every_generation_name_their_collective(name: str, collective: str | None) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COMMUNICATION, library="nccl", collective=collective)


@pytest.mark.parametrize(("name", "library"), RCCL.items())
def test_rccl_kernels_do_not_say_which_collective_they_run(name: str, library: str) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COMMUNICATION, library=library, collective=None)


@pytest.mark.parametrize(("name", "expected"), EXPERT_PARALLEL.items())
def test_dispatch_and_combine_are_found_in_any_namespace(name: str, expected: tuple[str, str]) -> None:
    library, collective = expected
    assert TABLE.recognize(name) == Recognition(op_class=COMMUNICATION, library=library, collective=collective)


@pytest.mark.parametrize(("name", "expected"), WAITS.items())
def test_kernels_that_only_synchronize_are_waiting(name: str, expected: tuple[str, str | None]) -> None:
    library, collective = expected
    assert TABLE.recognize(name) == Recognition(op_class=WAIT, library=library, collective=collective)


@pytest.mark.parametrize(("name", "library"), ALL_REDUCE_KERNELS.items())
def test_all_reduce_kernels_without_nccl_in_their_name_are_communication(name: str, library: str) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COMMUNICATION, library=library, collective="all_reduce")


@pytest.mark.parametrize(("name", "expected"), OTHER_COLLECTIVES.items())
def test_other_collectives_are_communication(name: str, expected: tuple[str, str | None]) -> None:
    library, collective = expected
    assert TABLE.recognize(name) == Recognition(op_class=COMMUNICATION, library=library, collective=collective)


@pytest.mark.parametrize(("name", "expected"), FUSED_KERNELS.items())
def test_kernels_that_compute_and_communicate_are_fused(name: str, expected: tuple[str, str]) -> None:
    library, collective = expected
    assert TABLE.recognize(name) == Recognition(op_class=FUSED, library=library, collective=collective)


@pytest.mark.parametrize("name", COPIES)
def test_copies_and_fills_are_copies(name: str) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COPY)
    assert is_copy_name(name)


def test_only_copies_between_devices_are_peer_copies() -> None:
    peers = ("Memcpy PtoP (Device -> Device)", "Memcpy P2P (Device -> Device)", "[CUDA memcpy PtoP]", "hipMemcpyPeerAsync")
    assert all(is_peer_copy_name(name) and is_copy_name(name) for name in peers)
    assert [name for name in COPIES if is_peer_copy_name(name)] == ["Memcpy PtoP (Device -> Device)"]


@pytest.mark.parametrize("name", ["memcpy_kernel", "Memcpyfoo", "dmabuf", "MyMemset (Device)", "CopySomething", ""])
def test_kernels_with_a_word_of_copying_are_no_copies(name: str) -> None:
    assert not is_copy_name(name)
    assert not is_peer_copy_name(name)


@pytest.mark.parametrize("name", TRAPS)
def test_words_of_collectives_do_not_make_communication(name: str) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COMPUTE)


@pytest.mark.parametrize("name", KNOWN_COMPUTE)
def test_known_compute_is_known(name: str) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COMPUTE)


@pytest.mark.parametrize("name", UNMATCHED)
def test_what_no_family_knows_counts_as_compute_and_is_not_known(name: str) -> None:
    assert TABLE.recognize(name) == Recognition(op_class=COMPUTE, known=False)


def test_every_family_that_is_not_compute_decides_an_example_above() -> None:
    examples = [*NCCL, *RCCL, *EXPERT_PARALLEL, *WAITS, *ALL_REDUCE_KERNELS, *OTHER_COLLECTIVES, *FUSED_KERNELS, *COPIES]
    deciding = {_first_match(function_name(name)) for name in examples}
    assert [family.pattern for family in BUILT_IN if family.op_class != COMPUTE and family not in deciding] == []


def test_every_family_that_moves_data_between_devices_names_its_library() -> None:
    for family in BUILT_IN:
        assert (family.library is not None) == (family.op_class in (COMMUNICATION, FUSED, WAIT)), family
        assert family.collective is None or family.collective in COLLECTIVES, family


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, Op<float>, A<char*, 3ul> >(int, Op)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float, 16>(float*)", "multimem_all_reduce_kernel"),
        ("void at::native::<unnamed>::f<3>(int)", "at::native::f"),
        ("unsigned int const* ns::f<3> (int)", "ns::f"),
        ("int *f(int)", "f"),
        ("f<(a > b), c->d>::g(int)", "f::g"),
        ("decltype(auto) f<int>(int)", "f"),
        ("void f<int>", "f"),
        ("f(int) [clone .kd]", "f"),
        ("f.kd", "f"),
        (
            "_ZN2at6native53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_kernelIfEE",
            "at::native::vectorized_layer_norm_kernel",
        ),
        ("_ZL1fi", "f"),
        ("_ZSt3foo", "std::foo"),
        ("_ZNK1a1bEv", "_ZNK1a1bEv"),
        ("_Z99short", "short"),
        ("_Z", "_Z"),
        ("Notify Wait", "Notify Wait"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("()", "()"),
        ("", ""),
    ],
)
def test_the_function_name_is_what_is_left_without_types_and_arguments(name: str, function: str) -> None:
    assert function_name(name) == function


@pytest.mark.parametrize(
    "name",
    [
        "<" * 10**6,
        "a<>" * 300_000,
        "<" * 500_000 + ")" * 500_000,
        "(" * 10**6,
        "a " * 500_000 + "f(",
        "a::" * 300_000,
        "_ZN" + "1a" * 500_000,
        "_Z" + "9" * 10**6,
        "_ZN" + "St" * 500_000,
        "softmax" * 140_000,
        "userbuffers_" * 80_000,
        "mscclpp::" + "a::" * 300_000,
        "\x00\ud800" * 500_000,
    ],
    ids=lambda name: repr(name[:12]),
)
def test_a_megabyte_of_anything_takes_no_time_and_does_no_harm(name: str) -> None:
    start = time.process_time()
    NameTable.default().recognize(name)
    assert time.process_time() - start < 5


def test_a_name_is_looked_up_once() -> None:
    table = NameTable.default()
    assert table.recognize("ncclDevKernel_SendRecv") is table.recognize("ncclDevKernel_SendRecv")


def test_a_file_adds_families_in_front_of_the_built_in_ones(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        """
        families:
          - {pattern: "^my_allreduce", class: communication, library: mine, collective: AllReduce}
          - {pattern: "^ncclDevKernel_SendRecv$", class: fused, library: mine}
          - {pattern: "(?P<collective>gather|scatter)_of_mine", class: communication, library: mine}
          - {pattern: "^triton_red_fused_all_reduce", class: wait}
          - {pattern: "^Memcpy PtoP", class: communication, library: mine}
        """,
    )
    table = TABLE.with_file(path)
    assert table.recognize("void my_allreduce<int>(int)") == Recognition(
        op_class=COMMUNICATION, library="mine", collective="all_reduce"
    )
    assert table.recognize("ncclDevKernel_SendRecv(int)") == Recognition(op_class=FUSED, library="mine")
    assert table.recognize("the_gather_of_mine").collective == "gather"
    assert table.recognize("triton_red_fused_all_reduce_1").op_class == WAIT
    assert table.recognize("Memcpy PtoP (Device -> Device)").op_class == COMMUNICATION
    assert table.recognize("ncclDevKernel_AllGather_RING_LL").collective == "all_gather"
    assert TABLE.recognize("my_allreduce").known is False


def test_a_file_without_families_changes_nothing(tmp_path: Path) -> None:
    table = TABLE.with_file(_write(tmp_path, "families: []"))
    assert table.recognize("ncclDevKernel_SendRecv") == TABLE.recognize("ncclDevKernel_SendRecv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected `object`, got `null`"),
        ("families", "Expected `object`, got `str`"),
        ("families: 3", "Expected `array`, got `int` - at `$.families`"),
        ("rows: []", "unknown field `rows`"),
        ("families: [{class: copy}]", "missing required field `pattern` - at `$.families[0]`"),
        ("families: [{pattern: a}]", "missing required field `class` - at `$.families[0]`"),
        ("families: [{pattern: 3, class: copy}]", "Expected `str`, got `int` - at `$.families[0].pattern`"),
        (
            "families: [{pattern: a, class: comms}]",
            "Expected one of compute, communication, fused, copy, wait, got 'comms' - at `$.families[0].class`",
        ),
        ("families: [{pattern: a, class: copy, op: b}]", "unknown field `op` - at `$.families[0]`"),
        (
            "families: [{pattern: a, class: copy}, {pattern: '(', class: copy}]",
            "Expected a Python regular expression, got '(': missing ), unterminated subpattern at position 0"
            " - at `$.families[1].pattern`",
        ),
        ("families: [{pattern: 'a{99999999999999}', class: copy}]", "at `$.families[0].pattern`"),
        ("families: [{pattern: a, class: wait, collective: 100%}]", "got '100%' - at `$.families[0].collective`"),
        ("families: [", "not YAML: while parsing a flow node"),
        ("families: 2020-99-99", "not YAML: month must be in 1..12"),
        ("[" * 5000, "not YAML: "),
        ("families: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        TABLE.with_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (missing, binary, tmp_path):
        with pytest.raises(UnreadableError, match=re.escape(f"{path}: ")):
            TABLE.with_file(path)
    assert issubclass(UnreadableError, UnderlapError)


def _first_match(function: str) -> Family | None:
    return next((family for family in BUILT_IN if re.search(family.pattern, function)), None)


def _write(folder: Path, text: str) -> Path:
    path = folder / "names.yaml"
    path.write_text(text, encoding="utf-8")
    return path
