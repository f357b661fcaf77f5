"""`config.json` of Hugging Face models -> `Model`. Foreign keys stay in this file.

Known families: llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, gpt2. Anything else is refused:
a family that shares the keys can still differ in its layers. Quantization and rope scaling change no count and are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from underlap.documents import decode, nearest, shown
from underlap.errors import InputError
from underlap.model import Model


class _Config:
    """A config.json; what is missing or of another type is an error that names the key."""

    def __init__(self, keys: dict[str, Any], where: str) -> None:
        self.keys = keys
        self.where = where

    def refuse(self, key: str, expected: str) -> InputError:
        given = f"{key} is {shown(self.keys[key])}" if key in self.keys else f"{key} is missing"
        return InputError(f"{self.where} at $.{key}: {given}: expected {expected}")

    def count(self, key: str) -> int:
        value = self.keys.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(key, "a whole number of 1 or more")
        return value

    def count_or(self, key: str, default: int) -> int:
        """The library's own default, which saved configurations leave out."""
        return default if self.keys.get(key) is None else self.count(key)

    def count_or_none(self, key: str) -> int | None:
        return None if self.keys.get(key) is None else self.count(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.keys.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def must_be(self, key: str, *allowed: object) -> None:
        """A key whose other values mean a model that is not known here; missing is allowed."""
        if key in self.keys and self.keys[key] not in allowed:
            raise self.refuse(key, f"{' or '.join(map(json.dumps, allowed))}; other kinds of layers are not known")


def is_hugging_face(document: object) -> bool:
    """Whether a document is a config.json rather than a Model."""
    return isinstance(document, dict) and ("model_type" in document or "architectures" in document)


def model_of_config(document: object, where: str) -> Model:
    """The Model of a config.json; `where` names it. Raises InputError: an unknown family, a key that is missing or odd."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a mapping, as in a config.json of Hugging Face")
    family = document.get("model_type")
    if not isinstance(family, str):
        raise InputError(f"{where} at $.model_type: expected the family of the model, such as 'llama'")
    if family not in _FAMILIES:
        raise InputError(
            f"{where} at $.model_type: the family {shown(family)} is not known: {nearest(family, _FAMILIES)}; "
            "or write the model's own YAML (see the presets)"
        )
    config = _Config(document, where)
    fields = _FAMILIES[family](config)
    name = document.get("_name_or_path")
    named = name if isinstance(name, str) and name else family
    return decode({"name": named.rsplit("/", 1)[-1], "source": where, **fields}, Model, where, at="$ (as a model)")


def _shape(config: _Config) -> dict[str, Any]:
    """What all families but gpt2 share."""
    heads = config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    if config.keys.get("head_dim") is None and hidden % heads:
        raise config.refuse("head_dim", f"a head_dim, as num_attention_heads={heads} does not divide hidden_size={hidden}")
    return {
        "hidden": hidden,
        "layers": config.count("num_hidden_layers"),
        "heads": heads,
        "kv_heads": config.count_or("num_key_value_heads", heads),
        "head_dim": config.count_or("head_dim", hidden // heads),
        "intermediate": config.count("intermediate_size"),
        "vocab": config.count("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _llama(config: _Config) -> dict[str, Any]:
    config.must_be("attention_bias", False)
    config.must_be("mlp_bias", False)
    return _shape(config)


def _mistral(config: _Config) -> dict[str, Any]:
    return {**_shape(config), "sliding_window": config.count_or_none("sliding_window")}


def _mixtral(config: _Config) -> dict[str, Any]:
    fields = _mistral(config)
    experts = {"count": config.count("num_local_experts"), "top_k": config.count("num_experts_per_tok")}
    return {**fields, "experts": {**experts, "intermediate": fields["intermediate"]}}


def _qwen2(config: _Config) -> dict[str, Any]:
    window = config.count_or_none("sliding_window") if config.flag("use_sliding_window", False) else None
    if window is not None:
        raise config.refuse("use_sliding_window", "false: a window in some layers only is not known")
    return {**_shape(config), "qkv_bias": True}


def _qwen3(config: _Config) -> dict[str, Any]:
    config.must_be("use_sliding_window", False)
    config.must_be("attention_bias", False)
    fields = _shape(config)
    # Qwen3Config's own default of head_dim is 128, whatever hidden / heads is.
    return {**fields, "head_dim": config.count_or("head_dim", 128), "qk_norm": True}


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    config.must_be("decoder_sparse_step", 1)
    dense = config.keys.get("mlp_only_layers") or []
    if dense != list(range(len(dense))):
        raise config.refuse("mlp_only_layers", "leading layers (0, 1, ...) or none")
    experts = {
        # transformers 5 saves what earlier versions called num_experts under Mixtral's name (configuration_qwen3_moe.py).
        "count": config.count("num_local_experts" if "num_local_experts" in config.keys else "num_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "intermediate": config.count("moe_intermediate_size"),
        "dense_layers": len(dense),
    }
    return {**_qwen3(config), "experts": experts}


def _deepseek(config: _Config) -> dict[str, Any]:
    config.must_be("moe_layer_freq", 1)
    config.must_be("attention_bias", False)
    latent = {
        "query_rank": config.count_or_none("q_lora_rank"),
        "kv_rank": config.count("kv_lora_rank"),
        "nope_head_dim": config.count("qk_nope_head_dim"),
        "rope_head_dim": config.count("qk_rope_head_dim"),
        "value_head_dim": config.count("v_head_dim"),
    }
    config = _Config(
        {**config.keys, "head_dim": config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")}, config.where
    )
    fields = {**_shape(config), "latent": latent}
    if config.keys.get("n_routed_experts") is None:
        return fields
    balanced = config.keys.get("model_type") == "deepseek_v3"  # DeepSeek-V3, arXiv 2412.19437, section 2.1.2
    limited = balanced or config.keys.get("topk_method") == "group_limited_greedy"
    experts = {
        "count": config.count("n_routed_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "intermediate": config.count("moe_intermediate_size"),
        "shared": config.count("n_shared_experts") if config.keys.get("n_shared_experts") else 0,
        "dense_layers": config.count("first_k_dense_replace") if config.keys.get("first_k_dense_replace") else 0,
        "groups": config.count_or_none("n_group") if limited else None,
        "top_groups": config.count_or_none("topk_group") if limited else None,
        "router_bias": balanced,
    }
    return {**fields, "experts": experts}


def _gpt2(config: _Config) -> dict[str, Any]:
    config.must_be("add_cross_attention", False)
    heads, hidden = config.count("n_head"), config.count("n_embd")
    if hidden % heads:
        raise config.refuse("n_head", f"a divisor of n_embd={hidden}")
    return {
        "hidden": hidden,
        "layers": config.count("n_layer"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "intermediate": config.count_or("n_inner", 4 * hidden),
        "vocab": config.count("vocab_size"),
        "gated": False,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "norm": "layer",
        "positions": "learned",
        "learned_positions": config.count("n_positions"),
        "qkv_bias": True,
        "linear_bias": True,
    }


_FAMILIES: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
}
