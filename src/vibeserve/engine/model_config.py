"""What a checkpoint's config.json means for the engine: dimensions, and the variations of its family."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import ModelFilesError, UnsupportedModelError

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama kind: rotary attention with grouped queries, gated MLP, RMS norms before each."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    """Per layer: how many positions a token sees, itself included; 0 is all of them."""
    rope: dict[str, Any]
    eos_token_ids: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of the KV cache that one token takes, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


@cache
def families() -> dict[str, dict[str, Any]]:
    """The families that the engine builds, as data."""
    return tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))


def read_config(model_dir: Path) -> ModelConfig:
    """Read `config.json` (and `generation_config.json` for end tokens).

    Raises ModelFilesError where a file is missing or broken, UnsupportedModelError naming what cannot be built.
    """
    document = _read_json(model_dir / "config.json")
    generation = model_dir / "generation_config.json"
    extra = _read_json(generation) if generation.is_file() else {}
    return config_from(document, extra)


def config_from(document: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """The engine's view of a configuration in transformers' form. Raises UnsupportedModelError."""
    kind = document.get("model_type")
    if kind not in families():
        named = ", ".join(document.get("architectures") or ()) or "no architecture named"
        raise UnsupportedModelError(
            f"the engine has no code for model_type {kind!r} ({named})",
            f"it builds {', '.join(families())}; serve this model through transformers instead",
        )
    family = families()[kind]
    for key, wanted in (("hidden_act", "silu"), ("partial_rotary_factor", 1.0), ("quantization_config", None)):
        if document.get(key, wanted) not in (wanted, None):
            raise UnsupportedModelError(f"the engine cannot build {kind} with {key} = {document[key]!r}")
    try:
        return _build(kind, family, document, generation or {})
    except KeyError as error:
        raise ModelFilesError(f"config.json lacks {error}") from None
    except TypeError as error:
        raise ModelFilesError(f"config.json holds a value of the wrong type: {error}") from None


def _build(kind: str, family: dict[str, Any], document: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    heads = document["num_attention_heads"]
    hidden = document["hidden_size"]
    kv_heads = document.get("num_key_value_heads") or heads
    head_dim = document.get("head_dim") or hidden // heads
    if heads % kv_heads:
        raise ModelFilesError(f"config.json: {heads} heads cannot share {kv_heads} KV heads evenly")
    if head_dim % 2:
        raise UnsupportedModelError(f"the engine rotates pairs: head_dim {head_dim} is odd")
    layers = document["num_hidden_layers"]
    return ModelConfig(
        family=kind,
        vocab_size=document["vocab_size"],
        hidden_size=hidden,
        intermediate_size=document["intermediate_size"],
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(document.get("rms_norm_eps", 1e-6)),
        max_positions=document["max_position_embeddings"],
        tied_head=bool(document.get("tie_word_embeddings", False)),
        qkv_bias=_variation(family["qkv_bias"], document),
        output_bias=_variation(family["output_bias"], document),
        mlp_bias=_variation(family["mlp_bias"], document),
        qk_norm=_variation(family["qk_norm"], document),
        windows=_windows(family["sliding"], document, layers),
        rope=_rope(kind, document),
        eos_token_ids=_end_tokens(generation.get("eos_token_id"), document.get("eos_token_id")),
    )


def _variation(value: bool | str, document: dict[str, Any]) -> bool:
    if isinstance(value, bool):
        return value
    return bool(document.get(value.removeprefix("config:"), False))


def _windows(sliding: str, document: dict[str, Any], layers: int) -> tuple[int, ...]:
    window = document.get("sliding_window") or 0
    if sliding == "none" or not window:
        return (0,) * layers
    if sliding == "all":
        return (window,) * layers
    if not document.get("use_sliding_window", False):
        return (0,) * layers
    full_layers = document.get("max_window_layers", layers)
    kinds = document.get("layer_types") or [
        "sliding_attention" if index >= full_layers else "full_attention" for index in range(layers)
    ]
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedModelError(f"the engine has no code for layers of kind {', '.join(sorted(unknown))}")
    return tuple(window if name == "sliding_attention" else 0 for name in kinds)


def _rope(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters, from transformers 5's one table or the two keys of older checkpoints."""
    table = dict(document.get("rope_parameters") or document.get("rope_scaling") or {})
    table["rope_type"] = table.get("rope_type") or table.pop("type", None) or "default"
    table.setdefault("rope_theta", document.get("rope_theta", 10000.0))
    if table["rope_type"] not in ROPE_KINDS:
        raise UnsupportedModelError(
            f"the engine cannot build {kind} with rope_type {table['rope_type']!r}", f"it knows {', '.join(ROPE_KINDS)}"
        )
    if table.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"the engine cannot build {kind} with a partial rotation")
    return table


def _end_tokens(*values: int | Iterable[int] | None) -> tuple[int, ...]:
    """The first of the given that says something: generation_config.json wins over config.json."""
    for value in values:
        if isinstance(value, int):
            return (value,)
        if value:
            return tuple(value)
    return ()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFilesError(
            f"{path} does not exist", "a model directory holds config.json beside its weights"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise ModelFilesError(f"{path} holds no JSON object")
    return document
