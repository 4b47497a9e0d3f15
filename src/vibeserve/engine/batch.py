"""One step's work as arrays, and the seam behind which a back end computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .scheduler import Work
from .types import SamplingParams

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Rows are tokens; those of one sequence lie together and have consecutive positions.

    `tokens`, `positions` [rows]; `row_starts` [sequences + 1]; `tables` [sequences, blocks]: the KV blocks of each
    sequence, short ones padded with 0; `logit_rows` [wanted]: rows whose next-token logits are asked for.
    """

    tokens: Ints
    positions: Ints
    row_starts: Ints
    tables: Ints
    logit_rows: Ints
    full_logits: bool
    """Whether anybody needs more than the largest logit of each wanted row."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """`best` [wanted]: lowest id among the largest logits. `logits` [wanted, vocabulary] only where asked for."""

    best: Ints
    logits: Floats | None
    linear_s: float
    attention_s: float


class Backend(Protocol):
    """Computes a step. Bits of a row depend on its sequence's tokens alone: not on batch, chunking or cache hits."""

    info: dict[str, str]
    features: dict[str, bool]

    def forward(self, batch: StepBatch) -> StepResult:
        """Write keys and values of all rows into the cache and return the logits that were asked for."""

    def draw(self, logits: Floats, rows: list[int], how: list[SamplingParams], points: list[float]) -> list[int]:
        """Tokens from rows of `logits` [*, vocabulary]; the meaning of one draw is `sampling.draw`."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block: keys and values of all layers."""

    def read_blocks(self, blocks: list[int]) -> Bytes:
        """A copy of KV blocks: [blocks, `block_bytes`], in a layout that only this back end knows."""

    def write_blocks(self, blocks: list[int], data: Bytes) -> None:
        """Put back what `read_blocks` gave, into any blocks."""

    def close(self) -> None:
        """Free memory and threads."""


def build_batch(work: list[Work]) -> StepBatch:
    """The arrays for a step's work, in its order."""
    tokens: list[int] = []
    starts = [0]
    positions: list[npt.NDArray[np.int32]] = []
    logit_rows: list[int] = []
    full = False
    for item in work:
        sequence, first = item.sequence, item.sequence.computed
        tokens += sequence.tokens[first : first + item.count] if item.count > 1 else (sequence.tokens[first],)
        tokens += item.draft
        positions.append(np.arange(first, first + item.rows, dtype=np.int32))
        if sequence.request.params.prompt_logprobs and first < sequence.prompt_tokens:
            logit_rows += range(starts[-1], starts[-1] + item.count)
            full = True
        elif item.samples:
            logit_rows += range(starts[-1] + item.count - 1, starts[-1] + item.rows)
            full = full or not sequence.plain
        starts.append(starts[-1] + item.rows)
    widest = max(len(item.sequence.blocks) for item in work)
    tables = np.zeros((len(work), widest), dtype=np.int32)
    for row, item in enumerate(work):
        tables[row, : len(item.sequence.blocks)] = item.sequence.blocks
    return StepBatch(
        tokens=np.array(tokens, dtype=np.int32),
        positions=np.concatenate(positions),
        row_starts=np.array(starts, dtype=np.int32),
        tables=tables,
        logit_rows=np.array(logit_rows, dtype=np.int32),
        full_logits=full,
    )
