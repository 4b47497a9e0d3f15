"""A tiny Llama checkpoint, written without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from vibeserve.targets.probe import write_tokenizer

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 32, 64, 4, 2, 8, 256


def llama(folder: Path, *, seed: int = 0, tied: bool = False, **config: object) -> Path:
    """Write config, tokenizer and random fp32 weights; greedy answers are varied, printable ASCII."""
    write_tokenizer(folder)
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "head_dim": HEAD_DIM,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": tied, "bos_token_id": None,
        "eos_token_id": 10, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings | config))
    generator = np.random.default_rng(seed)

    def weights(*shape: int, scale: float = 0.35) -> np.ndarray:
        return (generator.standard_normal(shape) * scale).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": weights(VOCAB, HIDDEN, scale=1.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    if not tied:
        head = weights(VOCAB, HIDDEN, scale=1.0)
        head[:10] = head[11:32] = head[127:] = 0  # only printable characters, and the line end as the end token
        tensors["lm_head.weight"] = head
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = weights(rows * HEAD_DIM, HIDDEN)
        tensors[f"{name}.self_attn.o_proj.weight"] = weights(HIDDEN, HEADS * HEAD_DIM)
        for part in ("gate", "up"):
            tensors[f"{name}.mlp.{part}_proj.weight"] = weights(INTERMEDIATE, HIDDEN)
        tensors[f"{name}.mlp.down_proj.weight"] = weights(HIDDEN, INTERMEDIATE)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{part}.weight"] = np.ones(HIDDEN, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
