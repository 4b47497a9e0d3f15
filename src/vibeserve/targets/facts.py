"""What a model directory says about its own size: config.json and the safetensors headers, no torch."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import parse_json, read_json

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0, "int4": 0.5}
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16", "I8": "int8", "U8": "uint8"}


@dataclass(frozen=True)
class ModelFacts:
    """Counts that the physical limit is made of. Shapes are per layer; `weight_bytes` is by the dtype they are held in.

    `parameters` counts a tied embedding once; `matmul_parameters` are those that every token is multiplied with: all
    projections and the output head, without the embedding table (a look-up) and norms.
    """

    architecture: str
    parameters: int
    matmul_parameters: int
    stored_dtypes: dict[str, int]
    weight_bytes: dict[str, int]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    tied_embeddings: bool

    def kv_bytes_per_token(self, dtype: str = "float32") -> float:
        """Bytes of keys and values that one token adds, over all layers: 2 · layers · kv_heads · head_dim · size."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    @property
    def flops_per_token(self) -> int:
        """FLOPs of the products with weights for one token: 2 · matmul_parameters."""
        return 2 * self.matmul_parameters

    def attention_flops_per_token(self, context: float) -> float:
        """FLOPs of scores and weighted values for one token over `context` tokens: 4 · layers · heads · head_dim · context."""
        return 4 * self.layers * self.heads * self.head_dim * context


def safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a safetensors file: name → {"dtype", "shape"}. Raises InputError for a damaged file."""
    hint = "the file is damaged or cut short: materialise the model again"
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if not 2 <= length <= min(size - 8, 100_000_000):
                raise ValueError(f"its header would have {length} bytes")
            header: dict[str, Any] = parse_json(file.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise InputError(f"{path}: not a safetensors file: {error}", hint=hint) from None
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != 8 + length + end:
        raise InputError(f"{path}: {size} bytes, but its header asks for {8 + length + end}", hint=hint)
    return header


def model_facts(model_dir: str | Path) -> ModelFacts:
    """Read the facts of a model directory. Raises InputError where config.json or the weights cannot be read."""
    folder = Path(model_dir)
    path = folder / "config.json"
    try:
        config = read_json(path)
        config = {**config, **config.get("text_config", {})}
        layers, hidden, heads = (int(config[k]) for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a transformer's config: {error!r}", hint="is this a model directory?") from None
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise InputError(f"{folder}: no .safetensors file", hint="materialise the model first")
    tensors = {name: entry for shard in shards for name, entry in safetensors_header(shard).items()}
    counts = {name: math.prod(entry["shape"]) for name, entry in tensors.items()}
    stored: dict[str, int] = {}
    for entry in tensors.values():
        dtype = _STORED.get(entry["dtype"], entry["dtype"].lower())
        stored[dtype] = stored.get(dtype, 0) + (entry["data_offsets"][1] - entry["data_offsets"][0])
    parameters = sum(counts.values())
    embedding = sum(count for name, count in counts.items() if name.endswith("embed_tokens.weight"))
    tied = bool(config.get("tie_word_embeddings")) or not any("lm_head" in name for name in counts)
    flat = sum(count for name, count in counts.items() if len(tensors[name]["shape"]) < 2)
    return ModelFacts(
        architecture=(config.get("architectures") or [config.get("model_type", "unknown")])[0],
        parameters=parameters,
        matmul_parameters=parameters - flat - (0 if tied else embedding),
        stored_dtypes=stored,
        weight_bytes={dtype: int(parameters * size) for dtype, size in DTYPE_BYTES.items()},
        layers=layers,
        hidden=hidden,
        intermediate=int(config.get("intermediate_size") or 0),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab=int(config.get("vocab_size") or 0),
        max_positions=int(config.get("max_position_embeddings") or 0),
        tied_embeddings=tied,
    )
