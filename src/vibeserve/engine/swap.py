"""Preemption by swap: what a request that gives way has computed is set aside, and put back when its turn comes again.

Setting aside and putting back are two copies of its keys and values; computing them again is a prefill of all its tokens.
Where the space is full (or off, at 0 bytes) a request that gives way is computed again, or found in the prefix tree.
"""

from __future__ import annotations

from .batch import Backend, Bytes
from .blocks import BlockManager
from .sequence import Sequence


class SwapSpace:
    """Keys and values of requests that wait for their blocks, at most `capacity_bytes` of them."""

    def __init__(self, backend: Backend, blocks: BlockManager, capacity_bytes: int) -> None:
        self._backend = backend
        self._blocks = blocks
        self._capacity = capacity_bytes // backend.block_bytes
        self._kept: dict[str, tuple[Bytes, int]] = {}
        self.blocks_held = 0
        self.swapped_out = 0
        """Requests that were set aside, in all."""

    def put(self, sequence: Sequence) -> bool:
        """Set aside what a running sequence has computed. False (nothing kept) where there is no room for it."""
        count = self._blocks.blocks_for(sequence.computed)
        if not count or self.blocks_held + count > self._capacity:
            return False
        self._kept[sequence.id] = self._backend.read_blocks(sequence.blocks[:count]), sequence.computed
        self.blocks_held += count
        self.swapped_out += 1
        return True

    def computed(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that need not be computed again; 0 where it is not here."""
        kept = self._kept.get(sequence.id)
        return kept[1] if kept is not None else 0

    def restore(self, sequence: Sequence) -> None:
        """Put back what an admitted sequence had, where that is more than what it shares with others now."""
        kept, computed = self._kept[sequence.id]
        if computed > sequence.computed:
            first, last = len(sequence.nodes), len(kept)
            self._backend.write_blocks(sequence.blocks[first:last], kept[first:])
            sequence.computed = computed
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence; one that is not here is ignored."""
        kept = self._kept.pop(sequence.id, None)
        if kept is not None:
            self.blocks_held -= len(kept[0])
