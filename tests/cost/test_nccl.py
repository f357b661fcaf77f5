"""The tuner against a second implementation, NCCL's worked examples, and the facts' own check against measurements."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost import nccl_oracle as oracle
from tests.cost.machines import BY_ARCHITECTURE, dgx_h100
from underlap.cost import nccl
from underlap.cost.calibration import UNCALIBRATED
from underlap.cost.collectives import price
from underlap.cost.communicator import Settings, communicator
from underlap.cost.hardware import Topology
from underlap.cost.work import Transfer

MEASURED = Path(__file__).parents[3] / "shared" / "facts" / "nccl_single_node_measured.csv"
GPUS = {gpu: BY_ARCHITECTURE[architecture] for gpu, architecture in oracle.ARCH.items()}


def machine(gpu: str, sharp: bool = False) -> Topology:
    return dgx_h100(sharp=sharp) if gpu == "H100" else GPUS[gpu]()


@pytest.mark.parametrize("row", oracle.FACTS["test_vectors"]["rows"], ids=lambda row: " ".join(map(str, row[:4])))
def test_latency_and_bandwidth_are_those_of_the_worked_examples(row: list[object]) -> None:
    case, kind, algorithm, protocol, latency, bandwidth = row
    gpu, layout, *vendor = str(case).split()
    nodes = int(layout[2:])
    it, _ = communicator(machine(gpu.upper()), (8, nodes), Settings(amd_cpu=vendor == ["amd"]))
    collective = {"ar": "all_reduce", "ag": "all_gather"}[str(kind)]
    found = {(one.algorithm, one.protocol): one for one in nccl.candidates(it, collective)}[(algorithm, protocol)]

    assert found.latency_us == pytest.approx(latency, abs=0.051)
    assert found.algorithm_bandwidth == pytest.approx(bandwidth, abs=0.01)


@given(
    gpu=st.sampled_from(list(GPUS)),
    collective=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    nodes=st.sampled_from([1, 2, 3, 4, 7, 16, 128]),
    nbytes=st.integers(1, 2**34) | st.integers(0, 34).map(lambda power: 2**power),
    amd=st.booleans(),
    sharp=st.booleans(),
)
def test_choice_and_time_agree_with_a_second_implementation(
    gpu: str, collective: str, nodes: int, nbytes: int, amd: bool, sharp: bool
) -> None:
    sharp = sharp and gpu == "H100"
    algorithm, protocol, time = oracle.choose(gpu, collective, nodes, nbytes, amd, sharp)
    it, _ = communicator(machine(gpu, sharp), (8, nodes), Settings(amd_cpu=amd))
    chosen = nccl.choose(it, collective, nbytes, nccl.candidates(it, collective))

    assert nccl.tuned_time_us(it, collective, chosen, nbytes) == pytest.approx(time, rel=1e-9)
    assert (chosen.algorithm, chosen.protocol) == (algorithm, protocol)


@pytest.mark.parametrize(
    ("architecture", "nodes", "ring", "nvls"),
    [
        ("ampere", 1, (12, 20, 20), None),
        ("hopper", 1, (12, 30, 30), (8, 40, 60)),
        ("blackwell", 1, (16, 45, 45), (8, 90, 90)),
        ("ampere", 2, (8, 24, 24), None),
        ("hopper", 4, (8, 48, 48), (8, 45, 48)),
    ],
)
def test_the_search_gives_the_graphs_seen_in_logs(
    architecture: str, nodes: int, ring: tuple[int, ...], nvls: tuple[int, ...] | None
) -> None:
    it, _ = communicator(BY_ARCHITECTURE[architecture](), (8, nodes), Settings())

    assert it.graph == pytest.approx(ring)
    assert it.nvls is None if nvls is None else it.nvls == pytest.approx(nvls)


def test_the_logarithmic_all_gather_is_as_worked_out_by_hand() -> None:
    # One rank per node: 8 + 6 rounds of 14 / 3.5 + 2.8 x 64 us, at three quarters of a NIC's 48 GB/s.
    it, _ = communicator(dgx_h100(), (1, 64), Settings())
    (pat,) = (one for one in nccl.candidates(it, "all_gather") if one.algorithm == "pat")

    assert pat.latency_us == pytest.approx(8 + 6 * 14 / 3.5 + 2.8 * 64)
    assert pat.algorithm_bandwidth == pytest.approx(0.75 * 48)


def test_a_broadcast_goes_round_one_ring_or_pays_for_every_rank() -> None:
    inside, _ = communicator(dgx_h100(), (8, 1), Settings())
    between, _ = communicator(dgx_h100(), (8, 2), Settings())

    assert [one.latency_us for one in nccl.candidates(inside, "broadcast")] == pytest.approx([6.6 + 0.6, 14 + 1.9, 8.4 + 3.4])
    assert [one.latency_us for one in nccl.candidates(between, "broadcast")] == pytest.approx(
        [6.6 + 16 * 2.7, 14 + 16 * 4.0, 8.4 + 16 * 14]
    )
    assert {one.algorithm for one in nccl.candidates(between, "reduce")} == {"ring"}


def test_small_calls_take_few_channels_and_nvls_always_sixteen() -> None:
    it, _ = communicator(dgx_h100(), (8, 1), Settings())

    assert nccl.channels_of(it) == 24
    assert nccl.channels_of_call(it, "ring", "LL", 64 * 1024) == 2
    assert nccl.channels_of_call(it, "ring", "LL", 2**20) == 24
    assert nccl.channels_of_call(it, "ring", "LL", 1) == 1
    assert nccl.channels_of_call(it, "nvls", "Simple", 1) == 16


def test_an_exchange_of_eight_takes_four_channels_per_peer_and_small_messages_go_by_ll() -> None:
    it, _ = communicator(dgx_h100(), (8, 1), Settings())

    assert nccl.message_channels(it) == 32
    assert nccl.channels_of_message(it, 2**20) == (4, False)
    assert nccl.channels_of_message(it, 16384) == (1, True)
    assert nccl.channels_of_message(it, 16385) == (1, False)
    costs = [price(Transfer(collective="all_to_all", payload_bytes=8.0 * size, ranks=8), dgx_h100()) for size in (16384, 2**20)]
    assert [(cost.protocol, cost.ctas) for cost in costs] == [("LL", 8), ("Simple", 32)]


@pytest.mark.parametrize(
    ("architecture", "nodes", "algorithm", "measured"),
    [("hopper", 4, "ring", 364.9), ("blackwell", 1, "nvls", 740.6), ("blackwell", 4, "ring", 377.3), ("hopper", 1, "nvls", 480)],
)
def test_bus_bandwidth_of_gigabytes_is_near_what_public_runs_reach(
    architecture: str, nodes: int, algorithm: str, measured: float
) -> None:
    # all-reduce of 4 to 16 GiB on 8 GPUs per node, H200 and B200, in published nccl-tests runs
    ranks, size = 8 * nodes, 4.0 * 2**30
    work = Transfer(collective="all_reduce", payload_bytes=size, ranks=ranks, span=(8, nodes), algorithm=algorithm)
    cost = price(work, BY_ARCHITECTURE[architecture]())

    assert 2 * (ranks - 1) / ranks * size / cost.time_ns == pytest.approx(measured, rel=0.07)


def test_channels_over_nodes_are_those_of_public_logs() -> None:
    a100, _ = communicator(GPUS["A100"](), (8, 2), Settings())
    h100, _ = communicator(dgx_h100(), (8, 3), Settings())

    assert (nccl.channels_of(a100), nccl.channels_of(h100)) == (16, 16)
    assert nccl.nvls_channels(h100) == 16


@pytest.mark.parametrize("row", oracle.FACTS["self_check"]["rows"], ids=lambda row: " ".join(map(str, row[:2])))
def test_the_tuner_as_it_is_errs_as_the_facts_say(row: list[object]) -> None:
    system, collective, percent, ratio = row
    topology = {"h100_sxm": dgx_h100, "a100_sxm": GPUS["A100"]}[str(system)]()
    with MEASURED.open(newline="") as file:
        rows = [
            found
            for found in csv.DictReader(file)
            if (found["system"], found["op"], found["num_gpus"]) == (system, collective, "8")
        ]
    ratios = []
    for found in rows:
        transfer = Transfer(collective=str(collective), payload_bytes=float(found["size_bytes"]), ranks=8)
        ratios.append(price(transfer, topology, calibration=UNCALIBRATED).time_ns / 1000 / float(found["time_us"]))

    assert 100 * statistics.mean(abs(one - 1) for one in ratios) == pytest.approx(percent, abs=0.15)
    assert statistics.median(ratios) == pytest.approx(ratio, abs=0.01)


def test_the_tables_of_the_package_are_those_of_the_facts() -> None:
    ours, facts = nccl.tables(), oracle.FACTS

    assert ours["hardware_latency_us"] == {name: facts["hw_latency_us"][name] for name in ("nvlink", "pci", "net")}
    assert ours["per_channel"] == {name: facts["per_channel_GBps"][name] for name in ours["per_channel"]}
    assert ours["ll_max"] == facts["per_channel_GBps"]["ll_max"]
    assert ours["tree_correction"] == {name: facts["tree_correction"][name] for name in oracle.PROTO}
    assert ours["base_latency_us"]["tree"] == facts["base_latency_us"]["tree"]
    assert ours["base_latency_us"]["ring"] == facts["base_latency_us"]["ring"]
