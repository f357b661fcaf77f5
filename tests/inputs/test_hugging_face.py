"""config.json: the known families give the same model as the preset; anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inputs import drawn
from tests.inputs.drawn import is_one_line, refusal
from underlap import inputs
from underlap.errors import InputError
from underlap.hugging_face import model_of_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_scaling": None,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8"},
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
}


@pytest.mark.parametrize(
    ("config", "preset"),
    [(LLAMA, "llama3-8b"), (MIXTRAL, "mixtral-8x7b"), (QWEN3_MOE, "qwen3-30b-a3b"), (DEEPSEEK_V3, "deepseek-v3")],
)
def test_a_configuration_gives_the_same_model_as_the_preset(config: dict[str, Any], preset: str) -> None:
    expected = inputs.model(preset)
    found = model_of_config(config, "config.json")

    assert msgspec.structs.replace(found, name=expected.name, source=expected.source) == expected


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (GPT2, 124_439_808),  # openai-community/gpt2, counted by the Transformers library
        (DEEPSEEK_V2_LITE, 15.7e9),  # model card deepseek-ai/DeepSeek-V2-Lite: 15.7B
        # Qwen/Qwen2.5-7B model card: 7.61B
        (
            LLAMA
            | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
            | {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "use_sliding_window": False},
            7.616e9,
        ),
        # Qwen/Qwen3-8B model card: 8.2B
        (
            LLAMA
            | {"model_type": "qwen3", "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128, "vocab_size": 151936},
            8.19e9,
        ),
        # mistralai/Mistral-7B-v0.1: 7.24B in its safetensors index
        (LLAMA | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}, 7.24e9),
    ],
    ids=["gpt2", "deepseek_v2", "qwen2", "qwen3", "mistral"],
)
def test_a_configuration_has_the_parameters_that_its_maker_publishes(config: dict[str, Any], parameters: float) -> None:
    assert model_of_config(config, "config.json").parameters == pytest.approx(parameters, rel=0.005)


def test_experts_of_qwen3_are_counted_under_the_name_that_transformers_5_saves() -> None:
    renamed = {("num_local_experts" if key == "num_experts" else key): value for key, value in QWEN3_MOE.items()}
    assert model_of_config(renamed, "c.json") == model_of_config(QWEN3_MOE, "c.json")


def test_gpt2_small_is_counted_to_the_last_parameter() -> None:
    assert model_of_config(GPT2, "config.json").parameters == 124_439_808


def test_a_configuration_is_read_from_its_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "_name_or_path": "meta-llama/Meta-Llama-3-8B"}))
    by_file = inputs.model(str(tmp_path / "config.json"))

    assert by_file.name == "Meta-Llama-3-8B"
    assert by_file.source == str(tmp_path / "config.json")
    assert inputs.model(str(tmp_path)) == by_file


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "c.json at $.model_type: the family 'mamba' is not known: did you mean 'llama'? Known: llama"),
        ({"model_type": "qwen2_moe"}, "c.json at $.model_type: the family 'qwen2_moe' is not known: did you mean 'qwen3_moe'?"),
        ({"architectures": ["X"]}, "c.json at $.model_type: expected the family of the model, such as 'llama'"),
        (without(LLAMA, "hidden_size"), "c.json at $.hidden_size: hidden_size is missing: expected a whole number of 1 or more"),
        ({**LLAMA, "vocab_size": "big"}, "c.json at $.vocab_size: vocab_size is 'big': expected a whole number of 1 or more"),
        ({**LLAMA, "vocab_size": True}, "c.json at $.vocab_size: vocab_size is True: expected a whole number"),
        ({**LLAMA, "attention_bias": True}, "c.json at $.attention_bias: attention_bias is True: expected false; other kinds"),
        (
            {**LLAMA, "num_attention_heads": 33},
            "c.json at $.head_dim: head_dim is missing: expected a head_dim, as num_attention",
        ),
        ({**LLAMA, "num_key_value_heads": 5}, "c.json at $ (as a model): kv_heads=5 does not divide heads=32"),
        ({**QWEN3_MOE, "decoder_sparse_step": 2}, "c.json at $.decoder_sparse_step: decoder_sparse_step is 2: expected 1;"),
        ({**QWEN3_MOE, "mlp_only_layers": [3]}, "c.json at $.mlp_only_layers: mlp_only_layers is [3]: expected leading layers"),
        ({**LLAMA, "hidden_size": 10**30}, "c.json at $ (as a model): hidden is 1000"),
        ([], "c.json: expected a mapping, as in a config.json of Hugging Face"),
    ],
)
def test_a_configuration_that_is_not_known_is_refused_by_key(config: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        model_of_config(config, "c.json")

    assert str(caught.value).startswith(message)


@given(
    st.sampled_from([LLAMA, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3, DEEPSEEK_V2_LITE, GPT2]).flatmap(
        lambda config: st.tuples(st.just(config), st.sampled_from(sorted(config)), drawn.documents)
    )
)
def test_any_value_of_any_key_is_a_model_or_one_line_of_error(changed: tuple[dict[str, Any], str, object]) -> None:
    config, key, value = changed

    assert is_one_line(refusal(model_of_config, {**config, key: value}, "c.json"), "c.json")
