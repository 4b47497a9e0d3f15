"""Rotary position tables for the kinds of scaling that Llama-like checkpoints use."""

from __future__ import annotations

import math
from typing import Any

import torch

from .errors import ModelFilesError
from .model_config import ModelConfig


def rope_tables(config: ModelConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each [positions, head_dim / 2] float32, the attention scaling of the kind included.

    The pair of dimension i is i + head_dim / 2. Formulas: Su et al., 2021 (rotary embedding); linear position
    interpolation (Chen et al., 2023); YaRN (Peng et al., 2023); Llama 3.1's three bands of wavelengths. The dynamic
    kind changes nothing before `max_positions`, and the engine never goes past it.
    """
    try:
        frequencies, scaling = _frequencies(config.rope, config.head_dim, config.max_positions)
    except KeyError as error:
        raise ModelFilesError(f"config.json: rope_parameters of kind {config.rope['rope_type']} lack {error}") from None
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return angles.cos() * scaling, angles.sin() * scaling


def _frequencies(rope: dict[str, Any], dim: int, max_positions: int) -> tuple[torch.Tensor, float]:
    base = rope["rope_theta"]
    plain = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    match rope["rope_type"]:
        case "linear":
            return plain / rope["factor"], 1.0
        case "llama3":
            return _llama3(plain, rope), 1.0
        case "yarn":
            return _yarn(plain, rope, dim, max_positions)
        case _:
            return plain, 1.0


def _llama3(plain: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / plain
    blend = (original / wavelengths - low) / (high - low)
    between = (1 - blend) * plain / factor + blend * plain
    stretched = torch.where(wavelengths > original / low, plain / factor, plain)
    middle = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(middle, between, stretched)


def _yarn(plain: torch.Tensor, rope: dict[str, Any], dim: int, max_positions: int) -> tuple[torch.Tensor, float]:
    base, original = rope["rope_theta"], rope["original_max_position_embeddings"]
    factor = rope.get("factor") or max_positions / original

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - keep) + plain * keep, _yarn_scaling(rope, factor)


def _yarn_scaling(rope: dict[str, Any], factor: float) -> float:
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    numerator, denominator = rope.get("mscale"), rope.get("mscale_all_dim")
    if numerator and denominator:
        return scale(numerator) / scale(denominator)
    return scale(1.0)
