"""Words of claims become names of underlap, figures become ratios, and one condition is found where one decides."""

from __future__ import annotations

import pytest

from tests.judge.reports import claim
from underlap import inputs
from underlap.flows.claims import catalog
from underlap.judge import vocabulary
from underlap.judge.carrying import Claimed, Simulated, claimed, deciding, nearest
from underlap.judge.conditions import MOST_POINTS, NAMES, of_claim, thinned


@pytest.mark.parametrize(
    ("text", "named", "others"),
    [
        ("tiny-dense", ["tiny-dense"], []),
        ("Llama 3.1 70B", ["llama3-70b"], []),
        ("Llama3 8B (the TL;DR says 7B), selective activation checkpointing", ["llama3-8b"], []),
        ("Llama-3.3-70B, Qwen2.5-72B, Mixtral-8x22B", ["llama3-70b", "mixtral-8x22b"], ["Qwen2.5-72B"]),
        ("GPT-3 175B or Llama-2 70B", ["gpt3-175b"], ["Llama-2 70B"]),
        ("Qwen3 30B-A3B (mock data)", ["qwen3-30b-a3b"], []),
        ("DeepSeek-V3/R1", ["deepseek-v3"], []),
        ("DeepSeek-V3.2", [], ["DeepSeek-V3.2"]),
        ("DeepSeek-V3 + dummy attention kernels", [], ["DeepSeek-V3 + dummy attention kernels"]),
        ("Llama 3.2 8B", [], ["Llama 3.2 8B"]),
        ("", [], []),
    ],
)
def test_a_model_is_known_only_by_its_whole_name(text: str, named: list[str], others: list[str]) -> None:
    assert vocabulary.models(text, inputs.presets("models"))[:2] == (named, others)


@pytest.mark.parametrize(
    ("gpu", "link", "preset", "rest"),
    [
        ("H100", None, "dgx-h100", ""),
        ("DGX-H100", "NVLink", "dgx-h100", ""),
        ("dgx-a100", None, "dgx-a100", ""),
        ("H100 96GB HBM2e, 500 W limit", None, "dgx-h100", "96GB HBM2e, 500 W limit"),
        ("GB200", None, "gb200-nvl72", ""),
        ("A100 80GB PCIe", None, None, ""),
        ("A100 80GB SXM4", "PCIe", None, ""),
        ("H800 SXM5", "NVLink", None, ""),
        ("A100 / H800", None, None, ""),
        ("RTX 4090", None, None, ""),
        ("TPU v4", None, None, ""),
    ],
)
def test_a_machine_is_known_only_where_device_and_link_are(gpu: str, link: str | None, preset: str | None, rest: str) -> None:
    assert vocabulary.machine(gpu, link, inputs.presets("clusters")) == (preset, rest)


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("", {}),
        ("8 GPUs per host", {}),
        ("8 GPUs per host, TP=8, FSDP=32", {"tp": [8], "fsdp": [32]}),
        ("TP1 PP4 EP16 CP1", {"tp": [1], "pp": [4], "ep": [16], "cp": [1]}),
        ("2 DP x 8 PP x 8 TP", {"dp": [2], "pp": [8], "tp": [8]}),
        ("8-way TP", {"tp": [8]}),
        ("prefill on 4 nodes (EP32) and decode on 9 (EP72)", {"ep": [32, 72]}),
        ("TP=0, PP=99999999", {"tp": [], "pp": []}),
    ],
)
def test_degrees_are_read_where_they_are_named(text: str, degrees: dict[str, list[int]]) -> None:
    assert vocabulary.degrees(text) == degrees


@pytest.mark.parametrize(
    ("figure", "low", "high"),
    [
        ("metric: end_to_end_speedup\nvalue: 1.25 x", 1.25, 1.25),
        ("metric: end_to_end_speedup\nof: baseline_time\nvalue: 20 %", 1.25, 1.25),
        ("metric: end_to_end_speedup\nof: baseline_rate\nvalue: 25 %", 1.25, 1.25),
        ("metric: end_to_end_speedup\nvalue: 20 %", 1.2, 1.25),
        ("metric: end_to_end_speedup\nof: baseline_rate\nvalue: {low: 27 %, high: 35 %}", 1.27, 1.35),
        ("metric: end_to_end_speedup\nvalue: {at_least: 1.1 x}", 1.1, None),
        ("metric: end_to_end_slowdown\nof: baseline_time\nvalue: 25 %", 0.8, 0.8),
        ("metric: end_to_end_slowdown\nvalue: {at_most: 1.25 x}", 0.8, None),
        ("metric: hidden_share\nof: transfer\nvalue: {points: [40 %, 63 %]}", 40, 63),
    ],
)
def test_every_form_of_a_figure_becomes_one_ratio_or_share(figure: str, low: float, high: float | None) -> None:
    found = claimed(claim(figure))

    assert isinstance(found, Claimed)
    assert found.low == pytest.approx(low)
    assert found.high == (high if high is None else pytest.approx(high))


def test_a_larger_gain_holds_a_gain_and_a_worse_loss_a_loss() -> None:
    gain, loss = (claimed(claim(f"metric: end_to_end_speedup\nvalue: {value} x")) for value in (1.3, 0.7))

    assert isinstance(gain, Claimed)
    assert isinstance(loss, Claimed)
    assert [gain.held(figure) for figure in (2.0, 1.26, 1.24, 1.0)] == [True, True, False, False]
    assert [loss.held(figure) for figure in (0.4, 0.74, 0.76, 1.0)] == [True, True, False, False]
    assert (gain.reproduced(1.36, 1.4), gain.reproduced(1.0, 1.26)) == (False, True)


def test_a_gain_no_larger_than_the_error_cannot_be_told_from_nothing() -> None:
    small, large = (claimed(claim(f"metric: end_to_end_speedup\nvalue: {value} x")) for value in (1.04, 1.06))

    assert isinstance(small, Claimed)
    assert isinstance(large, Claimed)
    assert (small.lost_in_error, large.lost_in_error) == (True, False)


@pytest.mark.parametrize("text", ["", "metric: operator_speedup\nvalue: 2 x", "metric: end_to_end_speedup"])
def test_what_a_simulated_step_does_not_have_is_said(text: str) -> None:
    found = claimed(claim(text))

    assert isinstance(found, str)
    assert any(word in found for word in ("metric", "value"))


def test_the_condition_that_decides_is_found_among_several() -> None:
    points = [
        Simulated({"batch": batch, "imbalance": uneven}, batch / 10, "") for batch in (1, 8, 16, 64) for uneven in (1.0, 1.5)
    ]

    assert deciding(points, NAMES, lambda figure: figure > 1) == (
        "sequences per data-parallel rank >= 16",
        "sequences per data-parallel rank <= 8",
    )
    assert deciding(points, NAMES, lambda figure: figure > 0) is None
    mixed = [Simulated({"batch": batch, "tokens": tokens}, batch * tokens, "") for batch in (1, 2) for tokens in (1, 2)]
    assert deciding(mixed, NAMES, lambda figure: figure > 1) is None


def test_the_nearest_point_is_inside_the_claim_where_one_is() -> None:
    target = claimed(claim("metric: end_to_end_speedup\nvalue: {low: 1.2 x, high: 1.3 x}"))

    assert isinstance(target, Claimed)
    points = [Simulated({"batch": index}, figure, "") for index, figure in enumerate((1.1, None, 1.25, 1.5))]
    found = nearest(points, target)
    assert found is not None
    assert found.figure == 1.25
    assert nearest(points[1:2], target) is None


def test_sweeps_are_thinned_and_keep_their_ends() -> None:
    choices = {"batch": (1, 2, 4, 8, 16, 32, 64), "tokens": (1024, 2048, 4096, 8192, 16384), "kind": ("prefill", "decode")}
    kept = thinned(choices, most=MOST_POINTS)

    assert len(kept["batch"]) * len(kept["tokens"]) * 2 <= MOST_POINTS
    assert all((kept[name][0], kept[name][-1]) == (values[0], values[-1]) for name, values in choices.items())
    assert thinned({"batch": (1, 2)}, most=1) == {"batch": (1, 2)}


@pytest.mark.parametrize("entry", catalog(), ids=lambda entry: entry.id)
def test_every_claim_of_the_catalog_is_mapped_or_says_which_field_is_missing(entry) -> None:
    mapped = of_claim(entry)

    assert (mapped.question is None) == bool(mapped.missing)
    fields = ("axis", "workload.", "hardware.", "software", "settings")
    assert all(missing.startswith(fields) for missing in mapped.missing), mapped.missing
    if mapped.question is not None:
        assert set(mapped.question.fixed) | set(mapped.question.open) == set(NAMES)
