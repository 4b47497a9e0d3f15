"""The tokenizer of a model directory: the `tokenizers` library on `tokenizer.json`, without transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from .chat import ChatTemplate
from .detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's scheme).

    Printable Latin-1 bytes stand for themselves; the others, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet.values()]
    return alphabet | {chr(0x100 + at): byte for at, byte in enumerate(others)}


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where the file is missing."""
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return value


def _ids(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else [item for item in value or [] if isinstance(item, int)]


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back. `eos_ids` end an answer; `special_ids` are not shown; `size` counts all ids."""

    backend: tokenizers.Tokenizer
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    size: int
    template: ChatTemplate | None

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read `tokenizer.json` with its configuration files beside it.

        Raises FileNotFoundError without a tokenizer, ValueError for one that cannot be read.
        """
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: the model directory needs a tokenizer")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise ValueError(f"{path} cannot be read: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        settings = _read_json(model_dir / "tokenizer_config.json")
        model = _read_json(model_dir / "config.json")
        generation = _read_json(model_dir / "generation_config.json")
        template = ChatTemplate.load(model_dir, settings)
        eos = {*_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))}
        if template is not None and template.tokens.get("eos_token"):
            eos |= {*_ids(backend.token_to_id(template.tokens["eos_token"]))}
        special = frozenset(at for at, token in backend.get_added_tokens_decoder().items() if token.special)
        size = max(backend.get_vocab_size(with_added_tokens=True), model.get("vocab_size") or 0)
        return cls(backend, frozenset(eos), special, size, template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; special tokens (a begin-of-text) are added as the tokenizer file says."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids taken together."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether every token is a byte string (so that text can be put together from bytes)."""
        decoder = json.loads(self.backend.to_str()).get("decoder") or {}
        steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
        return [step.get("type") for step in steps] == ["ByteLevel"]

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """For each id the bytes that it stands for, special tokens by their name."""
        alphabet = byte_alphabet()
        table = []
        for token_id in range(self.size):
            token = self.backend.id_to_token(token_id)
            if token is None:
                table.append(b"")
            elif not self.is_byte_level:
                table.append(self.backend.decode([token_id], skip_special_tokens=False).encode())
            else:
                known = [alphabet.get(char, -1) for char in token]
                table.append(token.encode() if -1 in known else bytes(known))
        return table

    @cached_property
    def _shown_bytes(self) -> list[bytes]:
        return [b"" if at in self.special_ids else shown for at, shown in enumerate(self.token_bytes)]

    @cached_property
    def longest_token_chars(self) -> int:
        """No token covers more characters than this: a text that is longer by far need not be encoded to be refused."""
        return max((len(token) for token in self.backend.get_vocab()), default=1)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental detokeniser for one answer."""
        if self.is_byte_level:
            return ByteDetokenizer(self._shown_bytes if skip_special_tokens else self.token_bytes)
        return WindowDetokenizer(lambda ids: self.decode(ids, skip_special_tokens=skip_special_tokens))

    def warm(self) -> None:
        """Build the tables now rather than at the first request."""
        _ = self._shown_bytes, self.longest_token_chars
