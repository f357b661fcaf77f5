"""Closed formulas against figures worked out by hand and against each other."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.cost.machines import dgx_h100
from underlap.cost import formulas
from underlap.cost.calibration import UNCALIBRATED
from underlap.cost.collectives import price
from underlap.cost.work import Transfer


def test_a_ring_all_reduce_of_seventy_billion_gradients_takes_the_time_worked_out_by_hand() -> None:
    # 2 x 255 steps of 140 GB / 256 = 546.875 MB, each 10.9375 ms at 50 GB/s
    assert formulas.ring_all_reduce_seconds(2 * 70e9, 256, 50e9) == pytest.approx(5.578, abs=0.001)
    assert formulas.ring_all_reduce_seconds(2 * 70e9, 256, 50e9) == pytest.approx(510 * 0.0109375)


def test_the_model_of_the_library_agrees_with_the_ring_by_hand_at_large_sizes() -> None:
    # NCCL counts on 48 of a NIC's 50 GB/s, and rings over whole nodes use eight NICs at once.
    work = Transfer(collective="all_reduce", payload_bytes=140e9, ranks=256, span=(1, 256), algorithm="ring", protocol="Simple")
    cost = price(work, dgx_h100(), calibration=UNCALIBRATED)

    assert cost.time_ns - cost.latency_ns == pytest.approx(1e9 * formulas.ring_all_reduce_seconds(140e9, 256, 48e9))


def test_zero_moves_what_its_paper_says_in_units_of_the_parameters() -> None:
    psi, ranks = 1e9, 10**6
    volumes = [formulas.zero_link_bytes(stage, psi, 1, ranks) / psi for stage in (0, 1, 2, 3)]

    assert volumes == pytest.approx([2, 2, 2, 3], rel=1e-5)
    assert formulas.zero_link_bytes(3, psi, 2, 1) == 0


def test_tensor_parallel_bytes_are_those_of_four_all_reduces_or_their_halves() -> None:
    # One layer of 2048 x 12288 bf16 over 8 ranks: 4 x 2 x 7/8 x 50.3 MB
    assert formulas.tensor_parallel_link_bytes(2048, 12288, 2, 8) == 4 * 2 * 7 / 8 * 2048 * 12288 * 2
    halves = formulas.link_bytes("all_gather", 8e6, 8) + formulas.link_bytes("reduce_scatter", 8e6, 8)
    assert halves == formulas.link_bytes("all_reduce", 8e6, 8)
    assert (
        formulas.sequence_parallel_regather_bytes(2048, 12288, 2, 8) == formulas.tensor_parallel_link_bytes(2048, 12288, 2, 8) / 4
    )


def test_ulysses_moves_less_than_a_ring_as_ranks_grow() -> None:
    ring = [formulas.ring_attention_bytes(65536, 64, 128, 2, cp) for cp in (2, 4, 8)]
    ulysses = [formulas.link_bytes("all_to_all", formulas.ulysses_payload(65536, 8192, 8192, 2, cp), cp) for cp in (2, 4, 8)]

    assert ring[0] == 65536 // 2 * 2 * 8192 * 2
    assert all(two < one for one, two in itertools.pairwise(ulysses))
    assert all(two > one for one, two in itertools.pairwise(ring))


@pytest.mark.parametrize(("topk", "experts", "parts"), [(1, 8, 4), (2, 8, 4), (3, 8, 8), (4, 8, 2), (8, 8, 4)])
def test_reached_parts_are_the_mean_over_all_choices_of_experts(topk: int, experts: int, parts: int) -> None:
    choices = list(itertools.combinations(range(experts), topk))
    mean = sum(len({expert * parts // experts for expert in choice}) for choice in choices) / len(choices)

    assert formulas.reached(topk, experts, parts) == pytest.approx(mean)


def test_node_limited_routing_reaches_at_most_so_many_nodes() -> None:
    assert formulas.reached(8, 256, 8, 4) < 4 < formulas.reached(8, 256, 8)
    assert formulas.reached(8, 256, 8, 8) == formulas.reached(8, 256, 8)
    assert formulas.reached(2, 4, 4, 1) == 1


def test_a_token_crosses_to_each_node_once_and_to_each_rank_once() -> None:
    inside, outside = formulas.expert_parallel_domain_bytes(1.0, topk=8, experts=256, span=(8, 4))

    assert outside == pytest.approx(formulas.reached(8, 256, 4) * 3 / 4)
    assert inside == pytest.approx(formulas.reached(8, 256, 32) * 7 / 8)
    assert formulas.expert_parallel_domain_bytes(1.0, topk=8, experts=256, span=(1, 1)) == (0, 0)
    assert outside < formulas.link_bytes("all_to_all", formulas.expert_parallel_payload(1, 1, 1.0, 8), 32)


def test_bubbles_of_schedules_stand_in_the_order_of_their_papers() -> None:
    forward, backward_input, weight = 1.0, 1.0, 1.0
    backward = backward_input + weight

    assert formulas.bubble_gpipe(8, forward, backward) == formulas.bubble_1f1b(8, forward, backward) == 21
    assert formulas.bubble_interleaved(8, 3, forward, backward) == 7
    assert formulas.bubble_zb_h1(8, forward, backward_input, weight) == 7
    assert formulas.bubble_dualpipe(8, forward + backward, backward, weight) == 3 * 2
    assert formulas.bubble_dualpipe_v(8, forward + backward, backward, weight) == 6


def test_a_boundary_split_over_tensor_ranks_sends_its_part() -> None:
    assert formulas.pipeline_boundary_bytes(4096, 8192, 2) == 8 * formulas.pipeline_boundary_bytes(4096, 8192, 2, tp=8)


def test_half_of_the_peak_is_reached_where_latency_equals_transfer() -> None:
    size = formulas.half_peak_bytes(20e-6, 400e9)

    assert size == pytest.approx(8e6)
    assert math.isinf(formulas.half_peak_bytes(1e-6, math.inf))
