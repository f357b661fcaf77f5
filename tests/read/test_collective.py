"""Spellings, element types and payloads of collectives, and the bus factors that go with them."""

from __future__ import annotations

import pytest

from underlap.bandwidth import bus_factor
from underlap.read.collective import COLLECTIVES, dtype_bytes, normalize, payload_bytes

SPELLINGS = {
    "all_reduce": "allreduce nccl:all_reduce gloo:all_reduce c10d::allreduce_ allreduce_coalesced c10d::allreduce_coalesced_"
    " _c10d_functional::all_reduce_ symm_mem::multimem_all_reduce_ symm_mem::one_shot_all_reduce symm_mem::two_shot_all_reduce_"
    " symm_mem::one_shot_all_reduce_copy symm_mem::one_shot_all_reduce_copy_out vllm::all_reduce ncclAllReduce AllReduce"
    " hcom_allReduce__123 hcom_allReduce__503_0_1 hcom_allReduce_ all-reduce all-reduce-start.5",
    "all_gather": "allgather _allgather_base nccl:_all_gather_base c10d::_allgather_base_ allgather_into_tensor_coalesced"
    " _c10d_functional::all_gather_into_tensor _c10d_functional::all_gather_into_tensor_out"
    " nccl:all_gather_into_tensor_coalesced ncclAllGather AllGather all_gather_v fcollect",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base nccl:_reduce_scatter_base reduce_scatter_tensor_coalesced_"
    " c10d::reduce_scatter_ ncclReduceScatter hcom_reduceScatter__1 _c10d_functional::reduce_scatter_tensor",
    "all_to_all": "all_to_all all_to_allv alltoall_base_ nccl:all_to_all c10d::alltoall_ alltoall"
    " _c10d_functional::all_to_all_single ncclAllToAll ncclAlltoAll hcom_alltoallv__7 hcom_alltoallvc__7"
    " symm_mem::all_to_all_vdev_2d ragged-all-to-all a2a",
    "broadcast": "broadcast nccl:broadcast c10d::broadcast_ _broadcast_oop ncclBroadcast ncclBcast hcom_broadcast__1",
    "reduce": "reduce nccl:reduce c10d::reduce_ nccl:_reduce_oop ncclReduce",
    "gather": "gather c10d::gather_ gloo:gather ncclGather",
    "scatter": "scatter c10d::scatter_ gloo:scatter",
    "send": "send c10d::send ncclSend nccl:send isend hcom_send__1",
    "recv": "recv c10d::recv_ c10d::recv_any_source_ nccl:recvAnySource ncclRecv irecv hcom_receive__1",
    "send_recv": "SendRecv send_recv hcom_batchSendRecv__1",
    "barrier": "barrier c10d::barrier c10d::monitored_barrier_ nccl:all_reduce_barrier",
    "permute": "collective-permute ppermute collective_permute",
    "dispatch": "dispatch low_latency_dispatch intranode_dispatch moe_dispatch",
    "combine": "combine low_latency_combine internode_combine ep_combine",
}
OTHERS = (
    "wait init coalesced nccl:coalesced _c10d_functional::wait_tensor wait_tensor ncclGroupStart ncclCommInitRank ProfilerStep#3"
    " aten::gather aten::scatter aten::scatter_reduce aten::reduce at::native::gather fsdp::all_gather_copy_in"
    " FSDP::all_gather_copy_out fsdp::chunk_cat all_gather_copy_out allreducer sender reduced_precision _ : :: nccl: Generic"
)


@pytest.mark.parametrize(("spelled", "collective"), [(s, name) for name, all_ in SPELLINGS.items() for s in all_.split()])
def test_every_spelling_becomes_one_name(spelled: str, collective: str) -> None:
    assert normalize(spelled) == collective


def test_every_collective_is_its_own_normal_form() -> None:
    assert {normalize(name) for name in COLLECTIVES} == COLLECTIVES == set(SPELLINGS)


@pytest.mark.parametrize("name", [*OTHERS.split(), "", " ", "\n", "a" * 10**6, "i" * 10**6, "nccl:" * 10**5])
def test_what_is_no_single_collective_has_no_name(name: str) -> None:
    assert normalize(name) is None


def test_the_peer_after_a_point_to_point_name_does_not_matter() -> None:
    assert normalize("nccl:send 0->1") == "send"
    assert normalize("nccl:recv 1<-0") == "recv"
    assert normalize("  nccl:all_reduce  ") == "all_reduce"


@pytest.mark.parametrize(
    ("nbytes", "dtypes"),
    [
        (
            1,
            [
                "Byte",
                "Char",
                "Bool",
                "bool",
                "signed char",
                "unsigned char",
                "Float8_e4m3fn",
                "c10::Float8_e4m3fn",
                "Float8_e5m2",
            ],
        ),
        (1, ["Float8_e4m3fnuz", "Float8_e5m2fnuz", "torch.uint8"]),
        (2, ["Half", "BFloat16", "c10::Half", "c10::BFloat16", "Short", "UInt16", "torch.bfloat16"]),
        (4, ["Float", "float", "Int", "int", "UInt32", "ComplexHalf"]),
        (8, ["Double", "double", "Long", "long", "long int", "UInt64", "ComplexFloat", "c10::complex<float>"]),
        (16, ["ComplexDouble", "c10::complex<double>"]),
    ],
)
def test_element_sizes_of_torch_names(nbytes: int, dtypes: list[str]) -> None:
    assert {dtype: dtype_bytes(dtype) for dtype in dtypes} == dict.fromkeys(dtypes, nbytes)


@pytest.mark.parametrize("dtype", [None, "", "Undefined", "Float4_e2m1fn_x2", "Bits4x2", "TensorList", "fp8", "f" * 10**6])
def test_an_element_size_is_never_guessed(dtype: str | None) -> None:
    assert dtype_bytes(dtype) is None


@pytest.mark.parametrize(
    ("collective", "elements"),
    [
        ("all_reduce", 3),
        ("all_gather", 5),
        ("reduce_scatter", 3),
        ("all_to_all", 3),
        ("broadcast", 3),
        ("reduce", 3),
        ("gather", 5),
        ("scatter", 3),
        ("send", 3),
        ("recv", 5),
        ("send_recv", 3),
        ("permute", 3),
        ("dispatch", 3),
        ("combine", 3),
        ("barrier", None),
        (None, None),
        ("no collective", None),
    ],
)
def test_which_side_is_the_payload(collective: str | None, elements: int | None) -> None:
    expected = None if elements is None else elements * 4
    assert payload_bytes(collective, in_elements=3, out_elements=5, element_bytes=4) == expected


@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send", "reduce", "dispatch"]
)
def test_an_unknown_side_is_not_replaced_by_the_other(collective: str) -> None:
    uses_output = collective in ("all_gather", "gather")
    known = {"in_elements": 3, "out_elements": None} if uses_output else {"in_elements": None, "out_elements": 5}
    assert payload_bytes(collective, **known, element_bytes=4) is None


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "recv"])
def test_where_both_sides_are_one_buffer_either_will_do(collective: str) -> None:
    assert payload_bytes(collective, in_elements=3, out_elements=None, element_bytes=4) == 12
    assert payload_bytes(collective, in_elements=None, out_elements=3, element_bytes=4) == 12


def test_without_elements_or_their_size_there_is_no_payload() -> None:
    assert payload_bytes("all_reduce", in_elements=None, out_elements=None, element_bytes=4) is None
    assert payload_bytes("all_reduce", in_elements=3, out_elements=3, element_bytes=None) is None
    assert payload_bytes("all_reduce", in_elements=-1, out_elements=3, element_bytes=4) is None


def test_an_empty_message_has_a_payload_of_zero_but_the_empty_side_of_a_rooted_collective_is_unknown() -> None:
    assert payload_bytes("all_to_all", in_elements=0, out_elements=4, element_bytes=4) == 0
    assert payload_bytes("gather", in_elements=4, out_elements=0, element_bytes=4) is None
    assert payload_bytes("scatter", in_elements=0, out_elements=4, element_bytes=4) is None


@pytest.mark.parametrize(
    ("collective", "size", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 2, 1.0),
        ("all_reduce", 1, 0.0),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send", None, 1.0),
        ("recv", 2, 1.0),
        ("send_recv", 16, 1.0),
        ("permute", 4, 1.0),
        ("all_reduce", None, None),
        ("all_reduce", 0, None),
        ("barrier", 8, None),
        ("dispatch", 8, None),
        (None, 8, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(collective: str | None, size: int | None, factor: float | None) -> None:
    assert bus_factor(collective, size) == factor


def test_every_collective_with_a_fixed_pattern_has_a_bus_factor() -> None:
    assert {name for name in COLLECTIVES if bus_factor(name, 8) is None} == {"barrier", "dispatch", "combine"}
