"""Workloads: micro-batches, tokens, and what does not divide."""

from __future__ import annotations

import pytest

from underlap import inputs
from underlap.errors import OptionError
from underlap.layout import parse_layout
from underlap.workload import check_workload, micro_batch_size, micro_batches, parse_workload, tokens


@pytest.mark.parametrize(
    ("workload", "layout", "batches", "size", "total"),
    [
        ("train,gbs=1,seq=8", "", 1, 1, 8),
        ("train,gbs=256,mbs=2,seq=8192", "tp=8,pp=2,dp=4", 32, 2, 256 * 8192),
        ("train,gbs=256,seq=128", "dp=2,fsdp=4", 32, 1, 256 * 128),
        ("prefill,batch=8,seq=4096", "dp=2", 1, 4, 8 * 4096),
        ("prefill,batch=8,seq=4096,mbs=2", "dp=2", 2, 2, 8 * 4096),
        ("decode,batch=64,context=4096", "tp=8", 1, 64, 64),
    ],
)
def test_sequences_are_divided_into_micro_batches(workload: str, layout: str, batches: int, size: int, total: int) -> None:
    work, spread = parse_workload(workload), parse_layout(layout)

    check_workload(work, spread, inputs.model("llama3-8b"))
    assert (micro_batches(work, spread), micro_batch_size(work, spread), tokens(work)) == (batches, size, total)


@pytest.mark.parametrize(
    ("workload", "layout", "model", "message"),
    [
        (
            "train,gbs=10,mbs=2,seq=8",
            "dp=2",
            "llama3-8b",
            "workload: gbs=10 is not divisible by dp * fsdp * mbs = 2 * 1 * 2 = 4: use",
        ),
        (
            "decode,batch=5,context=8",
            "dp=2",
            "llama3-8b",
            "workload: batch=5 is not divisible by dp * fsdp * mbs = 2 * 1 * 1 = 2",
        ),
        (
            "train,gbs=6,seq=8",
            "pp=4,schedule=interleaved:2",
            "llama3-8b",
            "workload: 6 micro-batches are not divisible by pp=4, as the interleaved schedule asks",
        ),
        (
            "train,gbs=7,seq=8",
            "pp=4,schedule=dualpipev",
            "llama3-8b",
            "workload: 7 micro-batches are fewer than 2 * pp = 8, as dualpipev",
        ),
        (
            "train,gbs=1,seq=12",
            "cp=4",
            "llama3-8b",
            "workload: seq=12 is not divisible by 2 * cp = 8 (ring): use a multiple of 8",
        ),
        ("train,gbs=1,seq=14", "cp=4:ulysses", "llama3-8b", "workload: seq=14 is not divisible by cp=4: use a multiple of 4"),
        (
            "train,gbs=1,seq=12",
            "tp=8,sp",
            "llama3-8b",
            "workload: 12 tokens per micro-batch and rank are not divisible by tp=8, as sp asks",
        ),
        (
            "decode,batch=4,context=8",
            "tp=8,sp",
            "llama3-8b",
            "workload: 4 tokens per micro-batch and rank are not divisible by tp=8",
        ),
        (
            "train,gbs=1,seq=4096",
            "",
            "gpt3-22b",
            "workload: 4096 tokens, but gpt3-22b has learned_positions=2048: shorten the sequence",
        ),
    ],
)
def test_what_does_not_divide_names_both_numbers(workload: str, layout: str, model: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_workload(parse_workload(workload), parse_layout(layout), inputs.model(model))

    assert str(caught.value).startswith(message)
