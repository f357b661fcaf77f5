"""Weights from a folder of Hugging Face: config.json and safetensors, in one file or in shards. A rank reads its part only.

The format of a file: eight bytes of length, a JSON header with dtype, shape and offsets of each tensor, then the data
(https://github.com/huggingface/safetensors, README, Format). Matrices are stored as (outputs, inputs).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import torch

from underlap.errors import InputError
from underlap.model import Model
from underlap.run.machine import Constants

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 100_000_000
"""The format's own limit."""

_OUTSIDE = {
    "embedding.tokens": "model.embed_tokens.weight",
    "head.norm": "model.norm.weight",
    "head.logits": "lm_head.weight",
}
_OF_LAYER = {
    "attention.norm": ("input_layernorm",),
    "attention.query": ("self_attn.q_proj",),
    "attention.key": ("self_attn.k_proj",),
    "attention.value": ("self_attn.v_proj",),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "attention.output": ("self_attn.o_proj",),
    "mlp.norm": ("post_attention_layernorm",),
    "mlp.gate": ("mlp.gate_proj",),
    "mlp.up": ("mlp.up_proj",),
    "mlp.down": ("mlp.down_proj",),
    "router.logits": ("block_sparse_moe.gate", "mlp.gate"),
    "experts.gate": ("block_sparse_moe.experts.{}.w1", "mlp.experts.{}.gate_proj"),
    "experts.up": ("block_sparse_moe.experts.{}.w3", "mlp.experts.{}.up_proj"),
    "experts.down": ("block_sparse_moe.experts.{}.w2", "mlp.experts.{}.down_proj"),
    "shared.gate": ("mlp.shared_experts.gate_proj",),
    "shared.up": ("mlp.shared_experts.up_proj",),
    "shared.down": ("mlp.shared_experts.down_proj",),
}
"""What Llama, Mixtral (block_sparse_moe), Qwen and DeepSeek call our parameters, below model.layers.N."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor in a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Byte in the file."""


class Checkpoint:
    """The parameters of a folder. Raises InputError: a file is missing or damaged, a tensor is missing or of another shape."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.folder, self.model = folder, model
        self.constants = _constants(folder / "config.json")
        self.entries: dict[str, _Entry] = {}
        for path in _files(folder):
            self.entries |= _header(path)

    def part(self, name: str, layer: int, shape: tuple[int, ...], dim: int, begin: int, length: int) -> torch.Tensor:
        """See `Parameters`: the asked rows or columns, in fp32, as (inputs, outputs)."""
        entry = self._entry(name, layer)
        embedding = name == "embedding.tokens"
        stored = shape if len(shape) == 1 or embedding else shape[::-1]
        if entry.shape != stored:
            raise InputError(
                f"{entry.path.name}: {name} of layer {layer} has the shape {entry.shape}: expected {stored}, as in config.json"
            )
        size = _DTYPES[entry.dtype].itemsize
        along = dim if len(shape) == 1 or embedding else 1 - dim
        try:
            whole = torch.from_file(str(entry.path), shared=False, size=entry.path.stat().st_size, dtype=torch.uint8)[
                entry.begin : entry.begin + math.prod(stored) * size
            ]
            found = _view(whole, _DTYPES[entry.dtype], stored).narrow(along, begin, length)
        except (OSError, RuntimeError) as error:
            raise InputError(f"{entry.path}: {error}") from None
        found = found.float()
        return found.contiguous() if len(shape) == 1 or embedding else found.t().contiguous()

    def _entry(self, name: str, layer: int) -> _Entry:
        if name in _OUTSIDE:
            names = [_OUTSIDE[name]]
        else:
            expert = re.fullmatch(r"experts\.(\d+)\.(\w+)", name)
            key = f"experts.{expert[2]}" if expert else name
            number = expert[1] if expert else ""
            names = [f"model.layers.{layer}.{part.format(number)}.weight" for part in _OF_LAYER[key]]
        for candidate in names:
            if candidate in self.entries:
                return self.entries[candidate]
        raise InputError(f"{self.folder}: no tensor {' or '.join(names)}: expected it in {_SINGLE} or in a file of {_INDEX}")


def _view(data: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Bytes as numbers; where they do not lie on a border of the type they are copied first."""
    if data.data_ptr() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).view(shape)


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        listed = _json(index.read_bytes(), index).get("weight_map")
        if not isinstance(listed, dict):
            raise InputError(f"{index}: weight_map is missing: expected the file of each tensor")
        found = [folder / name for name in sorted({str(name) for name in listed.values()})]
    else:
        found = [folder / _SINGLE]
    for path in found:
        if not path.is_file():
            raise InputError(f"{path} is missing: expected the weights of {folder.name}, as {_INDEX} or {_SINGLE}")
    return found


def _header(path: Path) -> dict[str, _Entry]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 0 < length <= min(_LONGEST_HEADER, size - 8):
            raise InputError(f"{path} is damaged: its header would have {length} of {size} bytes; fetch the file again")
        fields = _json(stream.read(length), path)
    found = {}
    for name, fact in fields.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = fact["dtype"], tuple(map(int, fact["shape"])), map(int, fact["data_offsets"])
            assert dtype in _DTYPES
            assert end - begin == math.prod(shape) * _DTYPES[dtype].itemsize
        except (AssertionError, KeyError, TypeError, ValueError):
            raise InputError(
                f"{path}: the header says {str(fact)[:80]!r} of {name}: expected dtype (one of {', '.join(_DTYPES)}), shape "
                "and offsets that fit"
            ) from None
        if 8 + length + end > size:
            raise InputError(f"{path} is cut off: {name} would end at byte {8 + length + end} of {size}; fetch the file again")
        found[name] = _Entry(path, dtype, shape, 8 + length + begin)
    return found


def _json(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        raise InputError(f"{path} is damaged: its header is no JSON; fetch the file again") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged: its header is no mapping; fetch the file again")
    return found


def _constants(path: Path) -> Constants:
    """What config.json says beyond the Model. Raises InputError for scaled positions, which are not computed here."""
    if not path.is_file():
        raise InputError(f"{path} is missing: expected the configuration beside the weights")
    config = _json(path.read_bytes(), path)
    scaling = config.get("rope_scaling") or {}
    parameters = config.get("rope_parameters") or {}
    kind = parameters.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise InputError(f"{path}: rope_type is {kind!r}: positions that are scaled cannot be run yet")
    if config.get("hidden_act", "silu") != "silu":
        raise InputError(f"{path}: hidden_act is {config['hidden_act']!r}: expected silu")
    # Qwen3MoeConfig's own default is false; families without the key always divide by the sum.
    divided = config.get("norm_topk_prob", config.get("model_type") != "qwen3_moe")
    if divided is not True:
        raise InputError(
            f"{path}: norm_topk_prob is {divided!r}: expected true, so that the weights of chosen experts add up to one"
        )
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    return Constants(rope_theta=float(theta), norm_epsilon=float(config.get("rms_norm_eps", 1e-6)))
