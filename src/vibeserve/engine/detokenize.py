"""Text from a stream of token ids: only whole characters, each as soon as it is whole.

Two ways, one meaning. Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) have a byte string per token: bytes are
joined and run through an incremental UTF-8 decoder. Any other tokenizer is asked to decode a short window of ids twice,
with and without the new ones; the difference is the new text, unless it ends in the middle of a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "�"
# A window of ids that is decoded again with each token: enough for what decoders do at the start of a text.
WINDOW_TOKENS = 6
# A character has at most four bytes: more ids than this that end in a replacement sign will never become one.
HELD_TOKENS = 8


class Detokenizer(Protocol):
    """Ids in, text out; `flush` at the end gives replacement signs for a character that was never completed."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class ByteDetokenizer:
    """For vocabularies in which every token is a byte string. `table[id]` is that string (empty: not shown)."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: Sequence[bytes]):
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_ids: Sequence[int]) -> str:
        table = self._table
        if len(token_ids) == 1:
            return self._decode(table[token_ids[0]])
        return self._decode(b"".join([table[token] for token in token_ids]))

    def flush(self) -> str:
        return self._decode(b"", True)


class WindowDetokenizer:
    """For any tokenizer: `decode(ids)` gives the text of ids taken together."""

    __slots__ = ("_decode", "_ids", "_shown")

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0  # how many of the window's ids have been shown as text

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push(token) for token in token_ids])

    def _push(self, token: int) -> str:
        before = self._decode(self._ids[: self._shown])
        self._ids.append(token)
        after = self._decode(self._ids)
        if after.endswith(REPLACEMENT) and len(self._ids) - self._shown <= HELD_TOKENS:
            return ""
        text = self._difference(before, after)
        self._shown = len(self._ids)
        if len(self._ids) > 2 * WINDOW_TOKENS:
            self._drop_old()
        return text

    def _difference(self, before: str, after: str) -> str:
        """What the ids after the shown ones add. Broken bytes can spoil good ones before them in some decoders."""
        return after[len(before) :] if after.startswith(before) else self._decode(self._ids[self._shown :])

    def _drop_old(self) -> None:
        """Forget ids whose text no longer bears on what follows: what comes after them must read the same."""
        rest = self._ids[-WINDOW_TOKENS:]
        text = self._decode(rest)
        if text and REPLACEMENT not in text:
            self._ids, self._shown = rest, len(rest)

    def flush(self) -> str:
        before = self._decode(self._ids[: self._shown])
        after = self._decode(self._ids)
        text = self._difference(before, after) if len(self._ids) > self._shown else ""
        self._shown = len(self._ids)
        return text
