"""Cases from public issue trackers, of the kinds that this feature must answer: what a tool read wrongly, or measured wrongly.

Each test reads its case by id, builds the small input that the case describes, and holds the product to the answer.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import underlap
from tests.cases.given import CASES, Event, host, kernel, whole, written
from tests.timelines import COMMUNICATION, COMPUTE, Call, Op, build


@pytest.mark.parametrize("name", CASES["E04"]["rows"])
def test_synchronization_rows_are_no_compute(name: str, tmp_path: Path) -> None:
    assert CASES["E04"]["expect_class"] == "not_compute"
    events = [
        kernel("gemm", 0, 10),
        kernel(name, 10, 30, category="cuda_sync"),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 30, stream=9),
    ]
    (row,) = whole(written(tmp_path / "rank0.json", events)).ranks

    assert (row.compute_ns, row.hidden_ns, row.exposed_ns, row.compute_kernels) == (10_000, 0, 30_000, 1)


def test_headlines_are_unions_and_not_sums_of_streams() -> None:
    case = CASES["E06"]
    only, both = case["compute_only"], case["overlap"]
    ops = [Op(COMPUTE, 0, only + both)]
    ops += [Op(COMMUNICATION, only, only + both, at, lane=f"nccl {at}") for at in range(2)]
    assert case["nccl_only"] == 0
    assert sum(op.end - op.start for op in ops[1:]) > only + both
    (row,) = underlap.analyze(build(ops, calls=[Call(), Call()])).ranks

    assert case["expect"] == "compute_bound"
    assert (row.compute_ns, row.communication_ns, row.hidden_ns, row.exposed_ns) == (only + both, both, both, 0)
    assert row.span_ns == row.compute_ns


def test_a_team_s_hand_made_accounting_comes_out_of_the_identity() -> None:
    case, ns = CASES["E13"], 1_000_000_000
    wall, busy, collectives = (round(case[key] * ns) for key in ("wall_s", "noncomm_busy_s", "collectives_s"))
    ops = [Op(COMPUTE, 0, busy), Op(COMMUNICATION, wall - collectives, wall, 0, lane="9")]
    (row,) = underlap.analyze(build(ops, calls=[Call()])).ranks

    assert row.exposed_ns == round(case["exposed_s"] * ns)
    assert row.span_ns == row.compute_ns + row.fused_ns + row.exposed_ns + row.copy_ns + row.idle_ns == wall
    assert row.hidden_share is not None
    assert round(100 * row.hidden_share) == case["expect"]["hidden_pct"]
    assert round(100 * row.exposed_ns / row.span_ns) == case["expect"]["exposed_pct"]
    ceiling = row.span_ns - row.exposed_ns
    assert ceiling == round(case["expect"]["ceiling_s"] * ns)
    assert round(case["mfu_pct"] * row.span_ns / ceiling, 1) == case["expect"]["ceiling_mfu_pct"]


@pytest.mark.parametrize("name", CASES["F01"]["names"])
def test_kernels_of_every_nccl_version_are_communication(name: str, tmp_path: Path) -> None:
    assert CASES["F01"]["expect_class"] == "comm"
    found = whole(written(tmp_path / "rank0.json", [kernel("gemm", 0, 10), kernel(name, 20, 5)]))

    assert (found.ranks[0].communication_kernels, found.ranks[0].exposed_ns) == (1, 5_000)
    assert [row.collective for row in found.families] == ["all_gather" if "AllGather" in name else "all_reduce"]


def test_a_distributed_trace_without_known_communication_warns_first(tmp_path: Path) -> None:
    renamed = [name.replace("nccl", "brandnew") for name in CASES["F01"]["names"]]
    found = whole(written(tmp_path / "rank0.json", [kernel(name, 10 * at, 5) for at, name in enumerate(renamed)]))

    assert found.notes[0].code == "no_communication"
    assert all(name[:20] in found.notes[0].text for name in renamed)


def test_a_control_character_in_a_name_is_read_with_a_warning(tmp_path: Path) -> None:
    assert CASES["F06"]["expect"] == "parsed_with_warning"
    events = [kernel("gemm PLACE", 0, 10), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 30)]
    path = written(tmp_path / "rank0.json", events)
    path.write_bytes(path.read_bytes().replace(b"PLACE", b"\x01\n\x1f"))
    found = whole(path)

    assert (found.ranks[0].compute_ns, found.ranks[0].communication_ns) == (10_000, 30_000)
    assert [note.text for note in found.notes if note.code == "events_mended"] == [
        "rank0.json: mended, as no valid JSON (control characters, quotes, NaN): 1 event"
    ]


def test_the_folder_form_of_torchtitan_is_found_with_its_rank(tmp_path: Path) -> None:
    path = tmp_path / CASES["F07"]["path"]
    path.parent.mkdir(parents=True)
    content = json.dumps({"traceEvents": [kernel("gemm", 0, 10)]}).encode()
    for rank in (0, 3):
        path.with_name(path.name.replace("rank0", f"rank{rank}")).write_bytes(gzip.compress(content))
    for given in (path.parent, path.parent.parent):
        found = underlap.analyze(given)

        assert [source.ranks for source in found.provenance.sources] == [[0], [3]]
        assert {source.rank_source for source in found.provenance.sources} == {"file name"}
        assert [row.compute_ns for row in found.ranks] == [10_000, 10_000]


def test_a_coalesced_collective_has_unknown_bytes_and_no_bandwidth(tmp_path: Path) -> None:
    case = CASES["F08"]
    assert case["expect"] == "bytes=null"
    events = [
        host(case["name"], 0, 10, category="user_annotation", **case["args"]),
        host("cudaLaunchKernelExC", 2, 3, category="cuda_runtime", correlation=4),
        kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 5, correlation=4),
    ]
    found = whole(written(tmp_path / "rank0.json", events))

    (row,) = found.families
    assert (row.collective, row.payload_bytes, row.payload_known_share) == ("all_gather", None, 0.0)
    assert (row.busbw_kernel_gbps, row.mean_payload_bytes, found.instances[0].payload_bytes) == (None, None, None)
    assert [note.text for note in found.notes if note.code == "bytes_unknown"] == [
        "bytes are unknown for 100.0% of the communication kernel time"
    ]


def test_a_custom_reduction_has_its_collective_and_no_made_up_bytes(tmp_path: Path) -> None:
    case = CASES["F15"]
    name = f"void vllm::{case['pattern']}_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, int)"
    found = whole(written(tmp_path / "rank0.json", [kernel("gemm", 0, 10), kernel(name, 10, 5)]))

    (row,) = found.families
    assert (row.collective, row.payload_bytes) == (case["collective"], case["bytes"])
    assert (row.busbw_kernel_gbps, row.count, found.ranks[0].communication_ns) == (None, 1, 5_000)


def copy_engine(name: str, collective: str | None) -> list[Event]:
    """A copy launched inside the call of a collective, or inside nothing."""
    args = {"Collective name": collective, "In msg nelems": 8, "Out msg nelems": 64, "Group size": 8, "dtype": "Float"}
    args |= {"Process Group Name": "1", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
    call = [
        host("c10d::_allgather_base_", 0, 10),
        host("record_param_comms", 1, 8, **args),
    ]
    return [
        *(call if collective else []),
        host("cudaMemcpyAsync", 2, 3, category="cuda_runtime", correlation=4),
        kernel("gemm", 15, 10),
        kernel(name, 20, 10, category="gpu_memcpy", stream=9, correlation=4, bytes=256),
    ]


@pytest.mark.parametrize("name", CASES["F16"]["device_rows"])
def test_copies_under_a_collective_are_its_communication(name: str, tmp_path: Path) -> None:
    case = CASES["F16"]
    assert case["expect_class"] == "comm"
    found = whole(written(tmp_path / "rank0.json", copy_engine(f"{name} (Device -> Device)", case["cpu_op"])))

    (row,), (family,) = found.ranks, found.families
    assert (row.communication_ns, row.hidden_ns, row.exposed_ns, row.copy_ns, row.copies) == (10_000, 5_000, 5_000, 0, 0)
    assert (family.collective, family.library, family.payload_bytes) == (case["cpu_op"], ["copy_engine"], 256)


@pytest.mark.parametrize("name", CASES["F16"]["device_rows"])
def test_a_peer_copy_without_a_collective_stays_a_copy_with_a_note(name: str, tmp_path: Path) -> None:
    found = whole(written(tmp_path / "rank0.json", copy_engine(f"{name} (Device -> Device)", None)))

    assert (found.ranks[0].communication_ns, found.ranks[0].copy_ns, found.ranks[0].copies) == (0, 5_000, 1)
    assert "peer_copies" in [note.code for note in found.notes]
