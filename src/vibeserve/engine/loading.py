"""From a model directory and settings to a back end that is ready, and the size of its KV cache."""

from __future__ import annotations

import importlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .batch import Backend
from .errors import EngineError, MissingPartError, SettingsError
from .model_config import ModelConfig, read_config
from .settings import Settings
from .weights import DTYPES, read_weights

if TYPE_CHECKING:
    from .admission import Admission
    from .blocks import BlockManager
    from .constraints import Constraints
    from .pacing import Pace
    from .prefix_store import PrefixStore
    from .prefix_tree import PrefixTree
    from .speculation import Speculation
    from .swap import SwapSpace

DEFAULT_KV_BYTES = 1 << 30
LEARNED_BYTES = 24 << 20
RUNTIME_BYTES = 32 << 20
"""Rotation tables, block tables, requests and the interpreter's own growth: assumed, most of it was seen to be taken."""
"""What the learned model takes at most: 40,000 contexts of about 440 bytes (measured on random tokens), rounded up."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run."""

    config: ModelConfig
    backend: Backend
    tree: PrefixTree | None
    speculation: Speculation | None
    constraints: Constraints | None
    pace: Pace | None
    admission: Admission | None
    blocks: int
    block_size: int
    max_model_len: int
    features: dict[str, bool]
    info: dict[str, str]
    memory_bytes: dict[str, int]


def load(model_dir: Path, settings: Settings, shared: Backend | None = None) -> Loaded:
    """Read the model and build the back end that the settings name, or take the one that is there already.

    Raises an EngineError.
    """
    config = read_config(Path(model_dir))
    max_len, blocks = kv_size(config, settings)
    tree = _part("prefix_tree").PrefixTree(settings.block_size) if settings.prefix_cache else None
    speculation = _speculation(settings)
    constraints: Constraints | None = None
    if settings.constrained_decoding:
        constraints = _part("constraints").Constraints(Path(model_dir), config.vocab_size, config.eos_token_ids)
    backend, note = (shared, "") if shared else _backend(Path(model_dir), config, settings, blocks, max_len)
    pace = _pace(settings, backend, blocks, max_len)
    admission = _part("admission").Admission(settings, pace) if settings.ttft_target_ms else None
    features = {
        **backend.features,
        "continuous_batching": settings.max_batch > 1,
        "chunked_prefill": settings.chunked_prefill,
        "prefix_cache": tree is not None,
        "bfloat16": settings.dtype == "bfloat16",
        "constrained_decoding": constraints is not None,
        "jump_forward": settings.jump_forward,
        "predicted_outputs": settings.predicted_outputs,
        "ngram_speculation": settings.ngram_speculation,
        "paced_prefill": bool(settings.tpot_target_ms or settings.prefill_stretch_pct),
        "admission_control": admission is not None,
        "swap": settings.swap_memory_bytes > 0,
        "prefix_store": bool(settings.prefix_store),
        "learned_drafts": settings.learned_drafts,
    }
    info = {**backend.info, "dtype": settings.dtype, "family": config.family, "fallback": note}
    log.info("%s", " ".join(f"{key}={value}" for key, value in info.items() if value))
    log.info("KV cache: %d blocks of %d tokens, context %d", blocks, settings.block_size, max_len)
    memory = memory_of(config, settings, blocks, max_len, compiled=backend.info["backend"] == "compiled")
    shown = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in memory.items())
    log.info("memory, at most: %s", shown)
    return Loaded(
        config, backend, tree, speculation, constraints, pace, admission, blocks, settings.block_size, max_len,
        features, info, memory,
    )  # fmt: skip


def _pace(settings: Settings, backend: Backend, blocks: int, max_len: int) -> Pace | None:
    """The measured time of steps, where a setting needs it."""
    if not settings.paced:
        return None
    pacing = _part("pacing")
    times = pacing.measure(backend, blocks, settings.block_size, max_len, settings.max_batch_tokens)
    log.info("a step of %d rows takes %.1f ms, of %d rows %.1f ms, a key %.2f us, a pair of query and key %.2f us",
             times.rows[0], 1e3 * times.seconds[0], times.rows[-1], 1e3 * times.seconds[-1],
             1e6 * times.key_s, 1e6 * times.pair_s)  # fmt: skip
    made: Pace = pacing.Pace(settings, times, max_len)
    return made


def memory_of(config: ModelConfig, settings: Settings, blocks: int, max_len: int, *, compiled: bool) -> dict[str, int]:
    """Bytes by what for: weights, KV cache, the largest step's arrays, small things. All but the step's are taken at the start."""
    element = DTYPES[settings.dtype].itemsize
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = config.hidden_size * (queries + 2 * keys) + queries * config.hidden_size
    layer += 3 * config.hidden_size * config.intermediate_size
    # The kernels pack the head; rows of the embedding are read from the plain one, so a tied matrix is there twice.
    embeddings = 2 if compiled or not config.tied_head else 1
    weights = config.layers * layer + embeddings * config.vocab_size * config.hidden_size
    # Without chunks a prompt of the whole length goes beside all others that decode.
    whole = 0 if settings.chunked_prefill else max_len + settings.max_batch - 1
    rows = max(settings.max_batch_tokens, whole)
    widths = 3 * config.hidden_size + 2 * queries + 2 * keys + 3 * config.intermediate_size
    scored = max(settings.max_batch, settings.draft_rows)
    return {
        **({"swap": settings.swap_memory_bytes} if settings.swap_memory_bytes else {}),
        **({"learned_drafts": LEARNED_BYTES} if settings.learned_drafts else {}),
        "weights": weights * element,
        "kv_cache": blocks * settings.block_size * config.kv_bytes_per_token(element),
        "step": 4 * (rows * widths + 2 * scored * config.vocab_size),
        "runtime": RUNTIME_BYTES,
    }


def _speculation(settings: Settings) -> Speculation | None:
    if not (settings.predicted_outputs or settings.ngram_speculation or settings.learned_drafts):
        return None
    made: Speculation = _part("speculation").Speculation(
        predictions=settings.predicted_outputs,
        lookup=settings.ngram_speculation,
        longest=settings.draft_rows - 1,
        learned=_part("learned_drafts").NextTokens() if settings.learned_drafts else None,
    )
    return made


def swap_space(settings: Settings, backend: Backend, blocks: BlockManager) -> SwapSpace | None:
    """Where requests that give way are set aside; None where they are computed again."""
    if not settings.swap_memory_bytes:
        return None
    made: SwapSpace = _part("swap").SwapSpace(backend, blocks, settings.swap_memory_bytes)
    return made


def prefix_store(model_dir: Path, settings: Settings, backend: Backend, blocks: BlockManager) -> PrefixStore | None:
    """The file of the prefix cache, read where it fits; None where none is named."""
    if not settings.prefix_store:
        return None
    store: PrefixStore = _part("prefix_store").PrefixStore(model_dir, settings, backend, blocks)
    store.load()
    return store


def kv_size(config: ModelConfig, settings: Settings) -> tuple[int, int]:
    """(longest sequence in tokens, KV blocks). Raises SettingsError where the memory holds less than one block."""
    element = DTYPES[settings.dtype].itemsize
    block_bytes = config.kv_bytes_per_token(element) * settings.block_size
    max_len = min(settings.max_model_len or config.max_positions, config.max_positions)
    full = -(-max_len // settings.block_size) * settings.max_batch
    eighth = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    longest = -(-max_len // settings.block_size) * block_bytes
    memory = settings.kv_memory_bytes or min(eighth, max(DEFAULT_KV_BYTES, longest))
    blocks = memory // block_bytes
    if not settings.kv_memory_bytes:
        blocks = min(blocks, full)
    if blocks < 1:
        raise SettingsError(f"kv_memory_bytes {memory} holds no block of {block_bytes} bytes")
    return min(max_len, blocks * settings.block_size), blocks


def _backend(
    model_dir: Path, config: ModelConfig, settings: Settings, blocks: int, max_len: int
) -> tuple[Backend, str]:
    """The back end, and why it is not the one that was hoped for ("" where it is)."""
    note = ""
    arguments: dict[str, Any] = {
        "blocks": blocks,
        "block_size": settings.block_size,
        "max_len": max_len,
        "threads": settings.thread_count,
    }
    if settings.backend in ("compiled", "auto"):
        try:
            module = _part("compiled_backend")
            module.require(config, settings)
        except EngineError as error:
            if settings.backend == "compiled":
                raise
            note = error.message
            log.warning("falling back to the torch back end: %s", note)
        else:
            weights = read_weights(model_dir, config, DTYPES[settings.dtype])
            return module.CompiledBackend(config, weights, **arguments), ""
    weights = read_weights(model_dir, config, DTYPES[settings.dtype])
    backend = _part("torch_backend").TorchBackend(config, weights, compile_dense=settings.compile, **arguments)
    return backend, note


def _part(name: str) -> Any:
    """An engine module that a candidate may have been built without."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{name}":
            raise
        raise MissingPartError(
            f"this copy of the engine has no {name}", "copy the part that parts.toml names, or change the setting"
        ) from None
