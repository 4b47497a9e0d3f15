"""The model in plain torch: the reference meaning of every other back end, and the one that runs everywhere.

torch's products change their bits with the number of rows, so every product here has a fixed shape: dense layers see
`ROW_TILE` rows at a time, attention `QUERY_TILE` queries against `KEY_TILE` keys, partial tiles padded. Sums over keys
run tile after tile. So a row's bits depend on its own sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from torch.nn import functional

from .batch import Bytes, Floats, StepBatch, StepResult
from .model_config import ModelConfig
from .rope import rope_tables
from .sampling import draw
from .types import SamplingParams
from .weights import LayerWeights, ModelWeights

ROW_TILE = 16
QUERY_TILE = 4
KEY_TILE = 64

Dense = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class TorchBackend:
    """Weights, paged KV cache and forward pass."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        blocks: int,
        block_size: int,
        max_len: int,
        threads: int,
        compile_dense: bool = False,
    ) -> None:
        torch.set_num_threads(threads)
        self._config = config
        self._weights = weights
        self._block_size = block_size
        self._dtype = weights.norm.dtype
        self._cos, self._sin = rope_tables(config, max_len)
        shape = (config.layers, blocks, config.kv_heads, block_size, config.head_dim)
        self._keys = torch.zeros(shape, dtype=self._dtype)
        self._values = torch.zeros(shape, dtype=self._dtype)
        self._dense = self._compiled_dense() if compile_dense else _dense_tile
        self._attention_s = 0.0
        self.info = {"backend": "torch", "isa": torch.backends.cpu.get_cpu_capability(), "threads": str(threads)}
        self.features = {"compiled_kernels": False, "torch_compile": compile_dense, "grouped_attention": True}

    def close(self) -> None:
        """Let the tensors go."""
        self._keys = self._values = torch.empty(0)

    def draw(self, logits: Floats, rows: list[int], how: list[SamplingParams], points: list[float]) -> list[int]:
        """See `Backend.draw`."""
        return [draw(logits[row], one, point) for row, one, point in zip(rows, how, points, strict=True)]

    @property
    def block_bytes(self) -> int:
        """See `Backend.block_bytes`."""
        one = self._keys[:, :1]
        return 2 * one.numel() * one.element_size()

    def read_blocks(self, blocks: list[int]) -> Bytes:
        """See `Backend.read_blocks`."""
        both = torch.stack([self._keys[:, blocks], self._values[:, blocks]]).movedim(2, 0).contiguous()
        raw: Bytes = both.view(torch.uint8).reshape(len(blocks), -1).numpy()
        return raw

    def write_blocks(self, blocks: list[int], data: Bytes) -> None:
        """See `Backend.write_blocks`."""
        layers, _, *rest = self._keys.shape
        flat = torch.from_numpy(np.array(data)).view(self._dtype)
        both = flat.view(len(blocks), 2, layers, *rest).movedim(0, 2)
        self._keys[:, blocks], self._values[:, blocks] = both[0], both[1]

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> StepResult:
        """See `Backend.forward`."""
        began = perf_counter()
        self._attention_s = 0.0
        rows = len(batch.tokens)
        plan = _Plan(batch, self._config, self._block_size)
        x = functional.embedding(_pad(torch.from_numpy(batch.tokens).long(), ROW_TILE), self._weights.embedding)
        cos, sin = (_pad(table[plan.positions], ROW_TILE)[:, None] for table in (self._cos, self._sin))
        for index, layer in enumerate(self._weights.layers):
            x = x + self._attend(index, layer, x, cos, sin, plan, rows)
            hidden = self._linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = hidden.chunk(2, dim=-1)
            x = x + self._linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        best, logits = self._logits(x, batch)
        total = perf_counter() - began
        return StepResult(best, logits, total - self._attention_s, self._attention_s)

    def _logits(self, x: torch.Tensor, batch: StepBatch) -> tuple[np.ndarray, np.ndarray | None]:
        wanted = len(batch.logit_rows)
        if not wanted:
            return np.empty(0, dtype=np.int32), None
        last = _pad(x[torch.from_numpy(batch.logit_rows).long()], ROW_TILE)
        logits = self._linear(self._norm(last, self._weights.norm), self._weights.head, None)[:wanted].float().numpy()
        return logits.argmax(axis=-1).astype(np.int32), logits if batch.full_logits else None

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if len(x) == ROW_TILE:
            return self._dense(x, weight, bias)
        return torch.cat([self._dense(tile, weight, bias) for tile in x.split(ROW_TILE)])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._config.rms_norm_eps)
        return weight * (wide * scale).to(self._dtype)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        plan: _Plan,
        rows: int,
    ) -> torch.Tensor:
        config = self._config
        qkv = self._linear(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = qkv.view(len(x), config.heads + 2 * config.kv_heads, config.head_dim)
        q, k, v = heads.split((config.heads, config.kv_heads, config.kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        self._keys[index][plan.blocks, :, plan.slots] = k[:rows]
        self._values[index][plan.blocks, :, plan.slots] = v[:rows]
        began = perf_counter()
        mixed = self._mix(index, q, plan, config.windows[index])
        self._attention_s += perf_counter() - began
        return self._linear(_pad(mixed, ROW_TILE), layer.output, layer.output_bias)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        low, high = x.float().chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(self._dtype)

    def _mix(self, index: int, q: torch.Tensor, plan: _Plan, window: int) -> torch.Tensor:
        """Softmax over the paged keys, tile by tile: [rows, heads * head_dim]. Queries of a KV head are its rows."""
        config = self._config
        tiles, queries = plan.query_rows.shape
        grouped = q[plan.query_rows].view(tiles, queries, config.kv_heads, config.group, config.head_dim)
        grouped = grouped.transpose(1, 2).reshape(tiles, config.kv_heads, queries * config.group, config.head_dim)
        scores = [self._scores(index, grouped, plan, tile, window) for tile in range(plan.key_tiles)]
        peak = torch.stack([part.amax(-1) for part in scores]).amax(0)[..., None]
        total = torch.zeros_like(peak)
        mixed = torch.zeros(grouped.shape, dtype=torch.float32)
        for tile, part in enumerate(scores):
            weight = (part - peak).exp()
            total = total + weight.sum(-1, keepdim=True)
            values = self._gather(self._values[index], plan, tile)
            mixed = mixed + (weight.to(self._dtype) @ values).float()
        mixed = (mixed / total).view(tiles, config.kv_heads, queries, config.group, config.head_dim)
        flat = mixed.transpose(1, 2).reshape(tiles * queries, config.heads * config.head_dim)
        return flat[plan.answer_rows].to(self._dtype)

    def _scores(self, index: int, q: torch.Tensor, plan: _Plan, tile: int, window: int) -> torch.Tensor:
        keys = self._gather(self._keys[index], plan, tile)
        scores = (q @ keys.transpose(-1, -2)).float() * self._config.head_dim**-0.5
        position = torch.arange(tile * KEY_TILE, (tile + 1) * KEY_TILE)
        limit = plan.query_positions[:, :, None, None]
        seen = position <= limit
        if window:
            seen = seen & (position > limit - window)
        hidden = ~seen.expand(-1, -1, self._config.group, -1).reshape(len(q), 1, -1, KEY_TILE)
        return scores.masked_fill(hidden, float("-inf"))

    def _gather(self, cache: torch.Tensor, plan: _Plan, tile: int) -> torch.Tensor:
        """[query tiles, KV heads, KEY_TILE, head_dim] of one key tile."""
        position = torch.arange(tile * KEY_TILE, (tile + 1) * KEY_TILE)
        blocks = plan.tables[:, position // self._block_size]
        return cache[blocks, :, position % self._block_size].transpose(1, 2)

    def _compiled_dense(self) -> Dense:
        """torch.compile's version, warmed on every shape so that no request pays for it."""
        dense: Dense = torch.compile(_dense_tile, dynamic=False)
        sample = self._weights.layers[0]
        for weight, bias in (
            (sample.qkv, sample.qkv_bias),
            (sample.output, sample.output_bias),
            (sample.gate_up, sample.gate_up_bias),
            (sample.down, sample.down_bias),
            (self._weights.head, None),
        ):
            with torch.inference_mode():
                dense(torch.zeros(ROW_TILE, weight.shape[1], dtype=self._dtype), weight, bias)
        return dense


class _Plan:
    """Where rows come from and go to in a step: the same for every layer."""

    def __init__(self, batch: StepBatch, config: ModelConfig, block_size: int) -> None:
        counts = np.diff(batch.row_starts)
        owner = np.repeat(np.arange(len(counts)), counts)
        self.positions = torch.from_numpy(batch.positions).long()
        self.blocks = torch.from_numpy(batch.tables[owner, batch.positions // block_size]).long()
        self.slots = self.positions % block_size
        tiles = -(-counts // QUERY_TILE)
        tile_owner = np.repeat(np.arange(len(counts)), tiles)
        first = np.concatenate([np.arange(count) for count in tiles]) * QUERY_TILE
        offsets = first[:, None] + np.arange(QUERY_TILE)
        alive = offsets < counts[tile_owner][:, None]
        rows = np.where(alive, batch.row_starts[tile_owner][:, None] + offsets, 0)
        self.query_rows = torch.from_numpy(rows).long()
        self.query_positions = torch.from_numpy(np.where(alive, batch.positions[rows], 0)).long()
        self.answer_rows = torch.from_numpy(np.flatnonzero(alive)).long()
        self.key_tiles = int(batch.positions.max()) // KEY_TILE + 1
        needed = -(-self.key_tiles * KEY_TILE // block_size)
        tables = np.zeros((len(counts), max(needed, batch.tables.shape[1])), dtype=np.int64)
        tables[:, : batch.tables.shape[1]] = batch.tables
        self.tables = torch.from_numpy(tables[tile_owner])


def _dense_tile(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.linear(x, weight, bias)


def _pad(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Rows of zeros up to the next multiple."""
    missing = -len(x) % multiple
    return torch.cat((x, x.new_zeros((missing, *x.shape[1:])))) if missing else x
