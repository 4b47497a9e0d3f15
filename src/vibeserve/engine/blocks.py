"""Who owns which KV block: a free list, the blocks of running sequences, and those that the prefix tree keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import EngineError
from .sequence import Sequence

if TYPE_CHECKING:
    from .prefix_tree import Key, Node, PrefixTree


LEAST_PART = 4
"""Tokens of a block that must be known before it is worth a copy."""


class BlockManager:
    """Hands blocks to sequences and takes them back. `tree` is None where the prefix cache is off.

    `copy` (from, to) copies one block's keys and values: with it a block that is known in part is shared in part.
    """

    def __init__(
        self, total: int, block_size: int, tree: PrefixTree | None, copy: Callable[[int, int], None] | None = None
    ) -> None:
        self.total = total
        self.block_size = block_size
        self.tree = tree
        self._copy = copy
        # A stack: blocks that were used last are warm in the CPU's caches, and untouched memory stays untouched.
        self._free = list(range(total - 1, -1, -1))

    @property
    def available(self) -> int:
        """Blocks that could be had now: free ones, and cached ones that nobody holds."""
        return len(self._free) + (self.tree.idle_blocks if self.tree else 0)

    @property
    def cached(self) -> int:
        """Blocks that the prefix tree keeps without a holder."""
        return self.tree.idle_blocks if self.tree else 0

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.available

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[Node]:
        """The known prefix of a sequence, short of its last token: that one must be computed to have logits."""
        if self.tree is None or sequence.request.params.prompt_logprobs:
            return []
        return self.tree.match(sequence.tokens, (len(sequence.tokens) - 1) // self.block_size)

    def next_key(self, sequence: Sequence, nodes: list[Node]) -> tuple[int, Key] | None:
        """Names the first block after `nodes` that this sequence would compute, if the prompt fills it."""
        if self.tree is None:
            return None
        key = self.tree.key(sequence.tokens, len(nodes))
        if len(key) < self.block_size:
            return None
        parent = nodes[-1] if nodes else self.tree.root
        return parent.block, key

    def admit(self, sequence: Sequence, nodes: list[Node], tokens: int) -> bool:
        """Give a sequence its known prefix and room for `tokens` in all. False (nothing taken) where that is too much."""
        if self.tree is not None:
            self.tree.acquire(nodes)
        if self.blocks_for(tokens) - len(nodes) > self.available:
            if self.tree is not None:
                self.tree.release(nodes)
            return False
        sequence.nodes = list(nodes)
        sequence.blocks = [node.block for node in nodes]
        sequence.computed = len(nodes) * self.block_size
        self.grow(sequence, tokens)
        self._share_part(sequence)
        return True

    def _share_part(self, sequence: Sequence) -> None:
        """The first block that is not known whole may begin as another does: that much of it is copied.

        (The last token is always computed, for its logits.)
        """
        if self.tree is None or self._copy is None or sequence.request.params.prompt_logprobs:
            return
        at = len(sequence.nodes)
        wanted = sequence.tokens[at * self.block_size : min((at + 1) * self.block_size, len(sequence.tokens) - 1)]
        if len(wanted) < LEAST_PART:
            return
        node, count = self.tree.closest(sequence.nodes[-1] if sequence.nodes else self.tree.root, wanted)
        if node is not None and count >= LEAST_PART:
            self._copy(node.block, sequence.blocks[at])
            sequence.computed += count

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for `tokens` in all. False where blocks ran out; what was taken stays with the sequence."""
        while len(sequence.blocks) < self.blocks_for(tokens):
            block = self._take()
            if block is None:
                return False
            sequence.blocks.append(block)
        return True

    def trim(self, sequence: Sequence) -> None:
        """Take back what a sequence does not need for the tokens that it has."""
        while len(sequence.blocks) > self.blocks_for(len(sequence.tokens)):
            self._free.append(sequence.blocks.pop())

    def commit(self, sequence: Sequence) -> None:
        """After a step: full blocks become known to others. One that another put there first replaces our own copy.

        (The two hold the same bits: keys and values of a token do not depend on batch or chunking.)
        """
        if self.tree is None:
            return
        while (len(sequence.nodes) + 1) * self.block_size <= sequence.computed:
            index = len(sequence.nodes)
            parent = sequence.nodes[-1] if sequence.nodes else self.tree.root
            key = self.tree.key(sequence.tokens, index)
            known = parent.children.get(key)
            if known is None:
                known = self.tree.insert(parent, key, sequence.blocks[index])
            else:
                self.tree.acquire([known])
                self._free.append(sequence.blocks[index])
                sequence.blocks[index] = known.block
                sequence.table_changed = True
            sequence.nodes.append(known)

    def free(self, sequence: Sequence) -> None:
        """Take everything back from a sequence that ended or was preempted."""
        own = sequence.blocks[len(sequence.nodes) :]
        self._free.extend(reversed(own))
        if self.tree is not None:
            self.tree.release(sequence.nodes)
        sequence.nodes, sequence.blocks, sequence.computed = [], [], 0

    def known(self, most: int) -> tuple[list[int], list[Key], list[int]]:
        """What the prefix tree keeps, parents first: blocks, their tokens, and each one's parent by its place (-1: none).

        At most `most`: those that were used last, each with all that comes before it.
        """
        return self.tree.listed(most) if self.tree is not None else ([], [], [])

    def adopt(self, tokens: list[Key], parents: list[int], fill: Callable[[list[int]], None]) -> int:
        """Put blocks that `known` told into an empty tree, as far as there is room; `fill` is given their places."""
        if self.tree is None or self.tree.size:
            return 0
        blocks = [self._free.pop() for _ in range(min(len(tokens), len(self._free)))]
        fill(blocks)
        nodes: list[Node] = []
        for block, key, parent in zip(blocks, tokens, parents, strict=False):
            nodes.append(self.tree.insert(nodes[parent] if parent >= 0 else self.tree.root, key, block))
        self.tree.release(nodes)
        return len(nodes)

    def check(self, sequences: list[Sequence]) -> None:
        """Raise EngineError unless every block is in exactly one place and every reference is counted."""
        refs = self.tree.blocks() if self.tree else {}
        places = [*self._free, *refs]
        held: dict[int, int] = dict.fromkeys(refs, 0)
        for sequence in sequences:
            places += sequence.blocks[len(sequence.nodes) :]
            for node in sequence.nodes:
                held[node.block] = held.get(node.block, 0) + 1
        if len(places) != self.total or len(set(places)) != self.total:
            raise EngineError(f"KV blocks went astray: {len(set(places))} of {self.total} found, {len(places)} claims")
        if held != refs:
            wrong = sorted(block for block in refs if held.get(block) != refs[block])
            raise EngineError(f"KV blocks are miscounted in the prefix tree: {wrong[:8]}")
        if self.tree is not None and self.tree.idle_blocks != sum(count == 0 for count in refs.values()):
            raise EngineError("the prefix tree's idle list is out of step with its counts")

    def _take(self) -> int | None:
        if self._free:
            return self._free.pop()
        return self.tree.evict() if self.tree is not None else None
