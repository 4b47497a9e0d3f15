"""The model in the engine's own C++ kernels: one call runs a whole step on all threads, without the interpreter."""

from __future__ import annotations

import ctypes
from itertools import count
from time import perf_counter

import numpy as np
import torch

from .batch import Bytes, Floats, StepBatch, StepResult
from .errors import EngineError, SettingsError
from .model_config import ModelConfig
from .native import library
from .rope import rope_tables
from .settings import Settings
from .types import SamplingParams
from .weights import DTYPES, LayerWeights, ModelWeights

BLOCK_SIZE = 16

# The kinds of tensors, in the order of the enumeration in native/model.h.
_KINDS = dict(
    zip(
        [
            "input_norm",
            "qkv",
            "qkv_bias",
            "q_norm",
            "k_norm",
            "output",
            "output_bias",
            "mlp_norm",
            "gate_up",
            "gate_up_bias",
            "down",
            "down_bias",
            "final_norm",
            "head",
            "embedding",
            "window",
            "cosines",
            "sines",
        ],
        count(),
        strict=False,
    )
)


_PRECISIONS = {torch.float32: "Float", torch.bfloat16: "Brain"}


class _Config(ctypes.Structure):
    """VsConfig of native/model.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ["layers", "hidden", "inner", "heads", "kv_heads", "dim", "vocab"]),
        *((name, ctypes.c_int32) for name in ["blocks", "max_len", "threads"]),
        ("eps", ctypes.c_float),
    ]


class _Batch(ctypes.Structure):
    """VsBatch of native/model.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ["rows", "sequences", "table_width", "wanted"]),
        *(
            (name, ctypes.c_void_p)
            for name in ["tokens", "positions", "row_starts", "tables", "logit_rows", "best", "logits"]
        ),
        ("seconds", ctypes.c_double * 2),
    ]


class _Draw(ctypes.Structure):
    """VsDraw of native/sample.h."""

    _fields_ = [
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("point", ctypes.c_double),
    ]


def require(config: ModelConfig, settings: Settings) -> None:
    """Raise an EngineError where the kernels cannot be had or cannot run this model; builds them otherwise."""
    if settings.block_size != BLOCK_SIZE:
        raise SettingsError(
            f"the compiled back end has blocks of {BLOCK_SIZE} tokens, block_size is {settings.block_size}"
        )
    if settings.compile:
        raise SettingsError("compile = true is for the torch back end; the compiled one has no use for it")
    if config.vocab_size < 1:
        raise SettingsError("the model has no vocabulary")
    library(_PRECISIONS[DTYPES[settings.dtype]])


class CompiledBackend:
    """Packed weights, paged KV cache and worker threads, all on the C++ side."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        blocks: int,
        block_size: int,
        max_len: int,
        threads: int,
    ) -> None:
        assert block_size == BLOCK_SIZE
        self._kernels = library(_PRECISIONS[weights.norm.dtype])
        self._shape = _Config(
            layers=config.layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            vocab=config.vocab_size,
            blocks=blocks,
            max_len=max_len,
            threads=threads,
            eps=config.rms_norm_eps,
        )
        self._vocab = config.vocab_size
        self._model: int | None = self._kernels.vs_create(ctypes.byref(self._shape))
        if not self._model:
            raise EngineError(f"no memory for the weights and {blocks} KV blocks", "set a smaller kv_memory_bytes")
        self._embedding = weights.embedding
        self._fill(config, weights, max_len)
        isa = self._kernels.vs_isa().decode()
        self.info = {"backend": "compiled", "isa": isa, "threads": str(threads)}
        self.features = {
            "compiled_kernels": True,
            "torch_compile": False,
            "grouped_attention": True,
            "packed_weights": True,
        }

    def _fill(self, config: ModelConfig, weights: ModelWeights, max_len: int) -> None:
        cosines, sines = rope_tables(config, max_len)
        self._set(-1, "cosines", cosines)
        self._set(-1, "sines", sines)
        self._set(-1, "embedding", weights.embedding)
        self._set(-1, "head", weights.head)
        self._set(-1, "final_norm", weights.norm)
        for index, layer in enumerate(weights.layers):
            for name in LayerWeights.__slots__:
                tensor = getattr(layer, name)
                if tensor is not None:
                    self._set(index, name, tensor)
            self._set(index, "window", torch.tensor([config.windows[index]], dtype=torch.int32))
        # Packed: the plain matrices are no longer needed. The embedding stays, rows are read from it.
        weights.layers.clear()

    def _set(self, layer: int, kind: str, tensor: torch.Tensor) -> None:
        tensor = tensor.contiguous()
        self._kernels.vs_load(self._model, layer, _KINDS[kind], tensor.data_ptr(), int(tensor.dtype == torch.bfloat16))

    def forward(self, batch: StepBatch) -> StepResult:
        """See `Backend.forward`. Releases the interpreter's lock while it runs."""
        began = perf_counter()
        wanted = len(batch.logit_rows)
        best = np.empty(wanted, dtype=np.int32)
        logits = np.empty((wanted, self._vocab), dtype=np.float32) if batch.full_logits else None
        step = _Batch(
            rows=len(batch.tokens),
            sequences=len(batch.row_starts) - 1,
            table_width=batch.tables.shape[1],
            wanted=wanted,
            tokens=batch.tokens.ctypes.data,
            positions=batch.positions.ctypes.data,
            row_starts=batch.row_starts.ctypes.data,
            tables=batch.tables.ctypes.data,
            logit_rows=batch.logit_rows.ctypes.data,
            best=best.ctypes.data,
            logits=None if logits is None else logits.ctypes.data,
        )
        if self._kernels.vs_forward(self._model, ctypes.byref(step)):
            raise EngineError(f"the kernels refused a step of {len(batch.tokens)} rows; the reason is on stderr")
        dense_s, attention_s = step.seconds
        # What preparing the call and waking the threads took counts with the dense layers.
        return StepResult(best, logits, dense_s + max(0.0, perf_counter() - began - dense_s - attention_s), attention_s)

    def draw(self, logits: Floats, rows: list[int], how: list[SamplingParams], points: list[float]) -> list[int]:
        """See `Backend.draw`: all rows in one call, shared out over the threads."""
        count = len(rows)
        params = (_Draw * count)(
            *(
                _Draw(one.temperature, one.top_p, one.min_p, one.top_k, point)
                for one, point in zip(how, points, strict=True)
            )
        )
        wanted = np.array(rows, dtype=np.int32)
        ids = np.empty(count, dtype=np.int32)
        if self._kernels.vs_draw(
            self._model, logits.ctypes.data, count, wanted.ctypes.data, ctypes.byref(params), ids.ctypes.data
        ):
            raise EngineError(f"no memory to draw {count} tokens")
        return [int(token) for token in ids]

    @property
    def block_bytes(self) -> int:
        """See `Backend.block_bytes`."""
        return int(self._kernels.vs_block_bytes(self._model))

    def read_blocks(self, blocks: list[int]) -> Bytes:
        """See `Backend.read_blocks`."""
        data = np.empty((len(blocks), self.block_bytes), dtype=np.uint8)
        self._copy_blocks(blocks, data, out=True)
        return data

    def write_blocks(self, blocks: list[int], data: Bytes) -> None:
        """See `Backend.write_blocks`."""
        self._copy_blocks(blocks, np.ascontiguousarray(data), out=False)

    def _copy_blocks(self, blocks: list[int], data: Bytes, *, out: bool) -> None:
        assert data.shape == (len(blocks), self.block_bytes)
        which = np.array(blocks, dtype=np.int32)
        self._kernels.vs_copy_blocks(self._model, len(blocks), which.ctypes.data, data.ctypes.data, int(out))

    def close(self) -> None:
        """End the threads and free the memory."""
        if self._model:
            self._kernels.vs_destroy(self._model)
            self._model = None
