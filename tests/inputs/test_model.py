"""Models: parameters against what their makers publish, FLOP against Megatron's formulas, and shapes that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from underlap import inputs
from underlap.documents import read_document
from underlap.errors import InputError, OptionError
from underlap.model import Experts, LatentAttention, Model

FACTS = Path(__file__).parents[3] / "shared/facts/megatron_training.yaml"

PUBLISHED = {
    # preset: total parameters, digits as published, source
    "llama3-8b": (8.03e9, "model card meta-llama/Meta-Llama-3-8B: 8.03B"),
    "llama3-70b": (70.6e9, "model card meta-llama/Meta-Llama-3-70B: 70.6B"),
    "llama3-405b": (405.9e9, "model card meta-llama/Llama-3.1-405B: 406B; safetensors index 405.9e9"),
    "gpt3-22b": (22e9, "Korthikanti 2022, table 3: 22B"),
    "gpt3-175b": (174.6e9, "Narayanan 2021, appendix: the formula for 96 layers of 12288 gives 174.6e9"),
    "gpt3-530b": (529.6e9, "Narayanan 2021, table 1"),
    "gpt3-1t": (1008.0e9, "Narayanan 2021, table 1"),
    "mixtral-8x7b": (46.7e9, "mistral.ai/news/mixtral-of-experts: 46.7B total"),
    "mixtral-8x22b": (140.6e9, "mistral.ai, weights of Mixtral-8x22B: 140.6B"),
    "deepseek-v3": (671e9, "arXiv 2412.19437: 671B total"),
    "qwen3-30b-a3b": (30.5e9, "model card Qwen/Qwen3-30B-A3B: 30.5B total"),
    "qwen3-235b-a22b": (235e9, "model card Qwen/Qwen3-235B-A22B: 235B total"),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_parameters_of_a_preset_are_the_published_ones(name: str) -> None:
    published, _ = PUBLISHED[name]

    assert inputs.model(name).parameters == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("mixtral-8x7b", 12.9e9),  # mistral.ai/news/mixtral-of-experts: 12.9B per token
        ("mixtral-8x22b", 39.1e9),  # mistral.ai/news/mixtral-8x22b: 39B active
    ],
)
def test_the_activated_parameters_are_the_published_ones(name: str, published: float) -> None:
    assert inputs.model(name).activated_parameters == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("name", "published", "unit"),
    [
        ("qwen3-30b-a3b", 3.3, 0.1),  # model card: 3.3B activated
        ("qwen3-235b-a22b", 22, 1),  # model card: 22B activated
    ],
)
def test_activated_parameters_published_with_two_digits_agree_to_the_last(name: str, published: float, unit: float) -> None:
    activated = inputs.model(name).activated_parameters / 1e9

    assert published <= activated < published + unit, "Qwen cuts off: 3.35 is printed as 3.3"


def test_deepseek_counts_the_head_but_not_the_lookup_of_embeddings_as_activated() -> None:
    model = inputs.model("deepseek-v3")

    # README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 36.7B activated. It says that this has embedding and head, 0.9B each; the
    # sum over its layers reaches it with one of the two only. The paper rounds to 37B.
    assert model.activated_parameters - model.embedding_parameters == pytest.approx(36.7e9, rel=0.005)
    assert model.activated_parameters == pytest.approx(37.55e9, rel=0.001)


def rows(study: str) -> list[dict[str, Any]]:
    facts: Any = read_document(FACTS)
    found: list[dict[str, Any]] = facts[study]["rows"]
    return found


def gpt3(hidden: int, layers: int, heads: int) -> Model:
    changes = {"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": heads, "head_dim": hidden // heads}
    return msgspec.structs.replace(inputs.model("gpt3-22b"), intermediate=4 * hidden, **changes)


def test_the_models_of_narayanan_2021_have_the_parameters_of_its_table() -> None:
    table = rows("narayanan2021_table1")

    assert len(table) == 10
    for row in table:
        model = gpt3(row["hidden"], row["layers"], row["heads"])
        assert model.parameters == pytest.approx(row["params_b"] * 1e9, rel=0.005, abs=0.05e9), row
        h, layers, s, v = row["hidden"], row["layers"], row["seq"], row["vocab"]
        formula = 12 * layers * h * h * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
        assert model.parameters == round(formula) + 2 * h, "the formula leaves out the final norm"


def test_the_presets_are_the_models_of_korthikanti_2022() -> None:
    table = rows("korthikanti2022")

    assert [row["model"] for row in table] == ["22B", "175B", "530B", "1T"]
    for row in table:
        model = inputs.model(f"gpt3-{row['model'].lower()}")
        assert (model.layers, model.hidden, model.heads, model.vocab) == tuple(
            row[key] for key in ("layers", "hidden", "heads", "vocab")
        )
        h, layers, s, v = row["hidden"], row["layers"], row["seq"], row["vocab"]
        formula = 72 * layers * h * h * (1 + s / (6 * h) + v / (12 * h * layers))
        assert model.train_flops_per_token(s) == pytest.approx(formula, rel=1e-12)


def test_causal_attention_sees_half_the_keys_and_a_window_bounds_them() -> None:
    dense = inputs.model("tiny-dense")
    windowed = msgspec.structs.replace(dense, sliding_window=2)

    assert dense.causal_keys(1) == 1
    assert dense.causal_keys(5) == 3
    assert windowed.causal_keys(5) == (1 + 2 + 2 + 2 + 2) / 5
    assert dense.attention_flops_per_token(10) == 2 * 8 * 10 * (8 + 8)


def test_dense_models_activate_everything_and_experts_fewer() -> None:
    dense, sparse = inputs.model("tiny-dense"), inputs.model("tiny-moe")

    assert dense.layer_kinds == ("dense",) * 4
    assert dense.parameters == dense.activated_parameters
    assert sparse.layer_kinds == ("dense", "experts", "experts", "experts")
    assert sparse.parameters - sparse.activated_parameters == 3 * (8 - 2) * sparse.expert_parameters
    assert sparse.layer_parameters("experts") - sparse.activated_layer_parameters("experts") == 6 * 3 * 64 * 64


def test_the_kind_of_attention_follows_from_the_heads() -> None:
    kinds = {name: inputs.model(name).attention for name in ("gpt3-22b", "llama3-8b", "deepseek-v3")}

    assert kinds == {"gpt3-22b": "MHA", "llama3-8b": "GQA", "deepseek-v3": "MLA"}


@pytest.mark.parametrize("name", inputs.presets("models"))
def test_every_preset_of_a_model_names_its_source(name: str) -> None:
    assert len(inputs.model(name).source) > 20
    assert inputs.model(name).name == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 6}, "kv_heads=4 does not divide heads=6"),
        ({"layers": 0}, "layers is 0: expected 1 to 65536"),
        ({"positions": "learned"}, "positions=learned with learned_positions=0"),
        ({"learned_positions": 8}, "positions=rope with learned_positions=8"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_its_numbers(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        msgspec.structs.replace(inputs.model("tiny-dense"), **changes)

    assert str(caught.value).startswith(message)


def test_routing_that_cannot_be_is_refused_with_its_numbers() -> None:
    with pytest.raises(OptionError, match="top_k=9 exceeds count=8"):
        Experts(count=8, top_k=9, intermediate=4)
    with pytest.raises(OptionError, match="groups=3 does not divide count=8"):
        Experts(count=8, top_k=2, intermediate=4, groups=3)
    with pytest.raises(OptionError, match="top_groups=5 exceeds groups=4"):
        Experts(count=8, top_k=2, intermediate=4, groups=4, top_groups=5)
    with pytest.raises(OptionError, match="top_k=3 exceeds the 2 experts of top_groups=1 groups"):
        Experts(count=8, top_k=3, intermediate=4, groups=4, top_groups=1)
    with pytest.raises(OptionError, match="dense_layers=4 with layers=4"):
        msgspec.structs.replace(inputs.model("tiny-moe"), experts=Experts(count=8, top_k=2, intermediate=4, dense_layers=4))
    latent = LatentAttention(query_rank=None, kv_rank=8, nope_head_dim=8, rope_head_dim=4, value_head_dim=8)
    with pytest.raises(OptionError, match=r"head_dim=8 is not nope_head_dim \+ rope_head_dim = 12"):
        msgspec.structs.replace(inputs.model("tiny-dense"), latent=latent)


def test_an_unknown_preset_offers_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="model: no preset 'llama3-7b': did you mean 'llama3-70b'"):
        inputs.model("llama3-7b")
    with pytest.raises(InputError, match=r"cannot be read"):
        inputs.model("llama3/config.json")
