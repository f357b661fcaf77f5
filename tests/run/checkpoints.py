"""Folders as Hugging Face writes them, of models small enough to be made anew in each test."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.run import reference
from underlap.run.weights import Seeded

_DENSE = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
}
CONFIGS = {
    "llama": _DENSE,
    "llama-tied": {**_DENSE, "tie_word_embeddings": True},
    "mixtral": {**_DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3": {**_DENSE, "model_type": "qwen3", "head_dim": 16},
    "qwen3_moe": {
        **_DENSE,
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    },
}
_NAMES = {
    "attention.norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "mlp.norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "embedding.tokens": "model.embed_tokens",
    "head.norm": "model.norm",
    "head.logits": "lm_head",
}
_MIXTRAL = ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"})
_QWEN = ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"})
"""Where a family has its router and its experts, and what it calls the matrices of one."""


def folder_of(folder: Path, family: str, *, shards: int = 2) -> reference.Full:
    """Write config.json and sharded safetensors; returns the parameters."""
    from underlap import inputs

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    model = inputs.model(str(folder))
    full = {key: Seeded(9).part(*key, shape, 0, 0, shape[0]) for key, shape in reference.full_shapes(model).items()}
    stored = {_foreign(name, layer, family): _stored(name, tensor) for (name, layer), tensor in full.items()}
    names = sorted(stored)
    index: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = {name: stored[name] for name in names[number::shards]}
        (folder / file).write_bytes(safetensors(own))
        index |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return full


def _foreign(name: str, layer: int, family: str) -> str:
    owner, parts = _MIXTRAL if family == "mixtral" else _QWEN
    if name == "router.logits":
        return f"model.layers.{layer}.{owner}.gate.weight"
    if name.startswith("experts."):
        _, expert, part = name.split(".")
        return f"model.layers.{layer}.{owner}.experts.{expert}.{parts[part]}.weight"
    return f"model.layers.{layer}.{_NAMES[name]}.weight" if layer >= 0 else f"{_NAMES[name]}.weight"


def _stored(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if name == "embedding.tokens" or tensor.dim() == 1 else tensor.t().contiguous()


def safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """A file of fp32 tensors."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
