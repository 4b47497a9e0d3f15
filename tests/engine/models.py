"""Small random-weight checkpoints of every family, made by transformers, and its greedy answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.12,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-untied-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5),
    "llama-llama3": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama-yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
    "llama-linear": LlamaConfig(**SIZES, rope_parameters=LINEAR),
    "llama-dynamic": LlamaConfig(**SIZES, rope_parameters=DYNAMIC),
    "llama-no-grouping": LlamaConfig(**{**SIZES, "num_key_value_heads": 6}),
    "mistral-sliding": MistralConfig(**SIZES, sliding_window=24),
    "mistral-wide-heads": MistralConfig(**SIZES, head_dim=32, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-sliding": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
}


@cache
def hf_model(name: str) -> Any:
    """The model in transformers, with biases and norms away from their neutral start."""
    torch.manual_seed(sum(map(ord, name)))
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif parameter_name.endswith("bias"):
                parameter.normal_(std=0.2)
    return model.eval()


def save_model(name: str, folder: Path) -> Path:
    """The checkpoint on disk."""
    destination = folder / name
    if not destination.exists():
        hf_model(name).save_pretrained(destination)
    return destination


@torch.inference_mode()
def hf_logits(name: str, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocabulary]."""
    return hf_model(name)(torch.tensor([tokens])).logits[0].float()


def hf_greedy(name: str, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation, token by token, end tokens ignored."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(hf_logits(name, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
