"""A radix tree over full KV blocks: requests that begin with the same tokens share the blocks of that beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from itertools import islice

Key = tuple[int, ...]
MOST_COMPARED = 64
"""Blocks, newest first, in which a common beginning of a part of a block is looked for."""


@dataclass(eq=False, slots=True)
class Node:
    """One full block. Its path from the root is the token prefix that the block's keys and values belong to."""

    key: Key
    block: int
    parent: Node | None
    children: dict[Key, Node] = field(default_factory=dict)
    refs: int = 0


class PrefixTree:
    """Blocks by prefix, with reference counts; those that nobody holds are kept in least-recently-used order.

    Whoever holds a node holds its ancestors too, and lets them go after it. So the oldest idle node never has
    children, and eviction needs no search.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node((), -1, None, refs=1)
        self.evicted = 0
        self._idle: OrderedDict[int, Node] = OrderedDict()
        self._size = 0

    @property
    def idle_blocks(self) -> int:
        """Blocks that are kept but held by nobody: free for the taking."""
        return len(self._idle)

    @property
    def size(self) -> int:
        """Blocks in the tree."""
        return self._size

    def key(self, tokens: Tokens[int], index: int) -> Key:
        """The tokens of block `index`; shorter than a block where they do not reach."""
        return tuple(tokens[index * self.block_size : (index + 1) * self.block_size])

    def match(self, tokens: Tokens[int], max_blocks: int) -> list[Node]:
        """The longest known prefix of `tokens`, at most `max_blocks` full blocks. Holds nothing."""
        node = self.root
        found: list[Node] = []
        while len(found) < max_blocks:
            child = node.children.get(self.key(tokens, len(found)))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def closest(self, parent: Node, tokens: Tokens[int]) -> tuple[Node | None, int]:
        """The block under `parent` that begins most like `tokens`, and how many tokens they have in common."""
        best, most = None, 0
        for node in islice(reversed(parent.children.values()), MOST_COMPARED):
            if most < len(tokens) and node.key[: most + 1] == tuple(tokens[: most + 1]):
                while most < len(tokens) and node.key[most] == tokens[most]:
                    most += 1
                best = node
        return best, most

    def acquire(self, nodes: list[Node]) -> None:
        """Hold nodes of one path (or its continuation), root side first."""
        for node in nodes:
            if node.refs == 0:
                del self._idle[node.block]
            node.refs += 1

    def release(self, nodes: list[Node]) -> None:
        """Let nodes of one path go; they stay known until their blocks are needed."""
        for node in reversed(nodes):
            node.refs -= 1
            if node.refs == 0:
                self._idle[node.block] = node

    def insert(self, parent: Node, key: Key, block: int) -> Node:
        """Put a block that the caller owns under `parent`, held once. The key must not be there yet."""
        node = Node(key, block, parent, refs=1)
        parent.children[key] = node
        self._size += 1
        return node

    def evict(self) -> int | None:
        """Forget the block that has been idle longest and return it; None where all are held."""
        if not self._idle:
            return None
        _, node = self._idle.popitem(last=False)
        assert node.parent is not None
        del node.parent.children[node.key]
        self._size -= 1
        self.evicted += 1
        return node.block

    def listed(self, most: int) -> tuple[list[int], list[Key], list[int]]:
        """At most `most` nodes, parents first: blocks, keys, and the place of each one's parent in the list (-1: none).

        What was used last comes first, with its ancestors before it.
        """
        places: dict[int, int] = {}
        blocks: list[int] = []
        keys: list[Key] = []
        parents: list[int] = []
        for newest in reversed(self._idle.values()):
            path = []
            node: Node | None = newest
            while node is not None and node is not self.root and node.block not in places:
                path.append(node)
                node = node.parent
            if len(blocks) + len(path) > most:
                continue
            for one in reversed(path):
                assert one.parent is not None
                parents.append(places.get(one.parent.block, -1))
                places[one.block] = len(blocks)
                blocks.append(one.block)
                keys.append(one.key)
        return blocks, keys, parents

    def blocks(self) -> dict[int, int]:
        """Every block in the tree and how many hold it, for the integrity check."""
        found, stack = {}, list(self.root.children.values())
        while stack:
            node = stack.pop()
            found[node.block] = node.refs
            stack.extend(node.children.values())
        return found
