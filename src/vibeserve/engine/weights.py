"""Read a checkpoint's safetensors into the names that the engine uses, and refuse what does not fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelFilesError
from .model_config import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in]; q, k, v lie below each other in `qkv`, gate over up in `gate_up`."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(slots=True)
class ModelWeights:
    """The whole model. `head` is `embedding` itself where the two are tied."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor


class _Checkpoint:
    """All tensors of a directory by name; keeps count of what was taken."""

    def __init__(self, model_dir: Path, dtype: torch.dtype) -> None:
        self._dir = model_dir
        self._dtype = dtype
        self._files: dict[str, Path] = {}
        for path in _files(model_dir):
            try:
                with safe_open(path, framework="pt") as handle:
                    self._files.update(dict.fromkeys(handle.keys(), path))
            except (SafetensorError, OSError) as error:
                raise ModelFilesError(f"{path} cannot be read: {error}", "materialise the model again") from None
        self._left = set(self._files)

    def has(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor in the engine's dtype, its shape checked."""
        if name not in self._files:
            raise ModelFilesError(f"{self._dir} has no tensor {name}")
        self._left.discard(name)
        with safe_open(self._files[name], framework="pt") as handle:
            tensor = handle.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelFilesError(f"tensor {name} is {list(tensor.shape)}, config.json asks for {list(shape)}")
        return tensor.to(self._dtype).contiguous()

    def skip(self, name: str) -> None:
        self._left.discard(name)

    def finish(self) -> None:
        """Raise where tensors were left over: the model has parts that would silently be ignored."""
        left = sorted(name for name in self._left if not name.endswith("rotary_emb.inv_freq"))
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelFilesError(f"{self._dir} has tensors that this family does not use: {', '.join(left[:3])}{more}")


def _files(model_dir: Path) -> list[Path]:
    index = model_dir / "model.safetensors.index.json"
    single = model_dir / "model.safetensors"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFilesError(f"{index} cannot be read: {error!r}") from None
        return [model_dir / name for name in names]
    if single.is_file():
        return [single]
    raise ModelFilesError(f"{model_dir} holds no model.safetensors", "materialise the model first")


def read_weights(model_dir: Path, config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Load and fuse the weights. Raises ModelFilesError on missing, misshapen, unused or corrupt tensors."""
    source = _Checkpoint(model_dir, dtype)
    hidden = config.hidden_size
    embedding = source.take("model.embed_tokens.weight", config.vocab_size, hidden)
    layers = [_layer(source, config, f"model.layers.{index}.") for index in range(config.layers)]
    norm = source.take("model.norm.weight", hidden)
    if config.tied_head:
        source.skip("lm_head.weight")
        head = embedding
    else:
        head = source.take("lm_head.weight", config.vocab_size, hidden)
    source.finish()
    return ModelWeights(embedding, layers, norm, head)


def _layer(source: _Checkpoint, config: ModelConfig, prefix: str) -> LayerWeights:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    rows = {"q": config.heads * dim, "k": config.kv_heads * dim, "v": config.kv_heads * dim}

    def attention(name: str, *shape: int) -> torch.Tensor:
        return source.take(f"{prefix}self_attn.{name}", *shape)

    def mlp(name: str, *shape: int) -> torch.Tensor:
        return source.take(f"{prefix}mlp.{name}", *shape)

    return LayerWeights(
        input_norm=source.take(f"{prefix}input_layernorm.weight", hidden),
        qkv=torch.cat([attention(f"{name}_proj.weight", size, hidden) for name, size in rows.items()]),
        qkv_bias=(
            torch.cat([attention(f"{name}_proj.bias", size) for name, size in rows.items()])
            if config.qkv_bias
            else None
        ),
        q_norm=attention("q_norm.weight", dim) if config.qk_norm else None,
        k_norm=attention("k_norm.weight", dim) if config.qk_norm else None,
        output=attention("o_proj.weight", hidden, rows["q"]),
        output_bias=attention("o_proj.bias", hidden) if config.output_bias else None,
        mlp_norm=source.take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=torch.cat([mlp(f"{name}_proj.weight", inner, hidden) for name in ("gate", "up")]),
        gate_up_bias=(
            torch.cat([mlp(f"{name}_proj.bias", inner) for name in ("gate", "up")]) if config.mlp_bias else None
        ),
        down=mlp("down_proj.weight", hidden, inner),
        down_bias=mlp("down_proj.bias", hidden) if config.mlp_bias else None,
    )
