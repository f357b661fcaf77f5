"""Models of `transformers`, made from config objects with random weights, and what its autograd says of them. Fetches nothing."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

LAYERS, VOCAB = 4, 64
_DENSE = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}
_EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
_CHOSEN = {"num_experts": 4, "moe_intermediate_size": 24, "norm_topk_prob": True, "decoder_sparse_step": 1}
_FAMILIES = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DENSE)),
    "llama, tied": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DENSE, tie_word_embeddings=True)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_DENSE)),
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**_DENSE, **_EXPERTS, num_local_experts=4)),
    "qwen3 moe": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**_DENSE, **_EXPERTS, **_CHOSEN)),
}


@dataclasses.dataclass(frozen=True)
class Saved:
    """A model, and two folders that `save_pretrained` wrote: of its weights, and of their gradients under the same names."""

    model: transformers.PreTrainedModel
    folder: Path
    gradients: Path


def model_of(family: str) -> transformers.PreTrainedModel:
    """A model in fp32 with random weights; those of norms, which start as ones, too."""
    torch.manual_seed(11)
    made = _FAMILIES[family]()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return made.float().eval()


def saved(family: str, folder: Path) -> Saved:
    """The model as a folder of Hugging Face, in several shards."""
    model = model_of(family)
    _save(model, folder / family)
    return Saved(model, folder / family, folder / f"{family} gradients")


def trained(made: Saved, batch: torch.Tensor) -> tuple[float, torch.Tensor]:
    """(loss, logits) of a batch, which has one token more per sequence than is learned from; leaves the folder of gradients."""
    made.model.zero_grad()
    found = made.model(input_ids=batch, labels=batch)
    found.loss.backward()
    # In place of the weights, so that the library divides and names gradients as it does them.
    model = model_of(made.folder.name)
    gradients = dict(made.model.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gradient = gradients[name].grad
            assert gradient is not None
            parameter.copy_(gradient)
    _save(model, made.gradients)
    return float(found.loss.detach()), found.logits[:, :-1].detach()


def _save(model: transformers.PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 1


def generated(made: Saved, prompts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What follows each prompt, greedily: tokens (prompts, count), and the logits that chose them. No token ends a sequence."""
    made.model.generation_config.eos_token_id = None
    found = made.model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=count,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return found.sequences[:, prompts.shape[1] :], torch.stack(found.logits, dim=1)
