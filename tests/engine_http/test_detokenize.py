"""Ids to text, piece by piece: never a broken character, and in the end exactly what decoding at once gives."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from vibeserve.engine.detokenize import ByteDetokenizer, WindowDetokenizer
from vibeserve.engine.tokenizer import Tokenizer

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)


def byte_fallback_tokenizer() -> tokenizers.Tokenizer:
    """In the manner of SentencePiece: words with ▁, unknown characters as byte tokens, the first space taken away."""
    words = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁the", "▁fox", "▁", "a", "b", "ing", "▁a", "é"]
    # Merges are not needed: each word of the vocabulary is reached from characters by these few.
    merges = [("▁", "a")]
    model = models.BPE({word: at for at, word in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@pytest.fixture(scope="module")
def byte_level(tiny_model) -> Tokenizer:
    return Tokenizer.load(tiny_model)


@pytest.fixture(scope="module")
def fallback() -> Tokenizer:
    backend = byte_fallback_tokenizer()
    return Tokenizer(backend, frozenset(), frozenset(), backend.get_vocab_size(), None)


def pieces(detokenizer, ids: list[int], sizes: list[int]) -> list[str]:
    found, at, turn = [], 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)] if sizes else 1
        found.append(detokenizer.push(ids[at : at + size]))
        at, turn = at + size, turn + 1
    return [*found, detokenizer.flush()]


@given(text=TEXTS, sizes=st.lists(st.integers(1, 4), max_size=5))
def test_byte_level_gives_any_text_back_in_whole_characters(byte_level, text, sizes):
    shown = pieces(byte_level.detokenizer(), byte_level.encode(text), sizes)
    assert "".join(shown) == text
    if "�" not in text:
        assert all("�" not in piece for piece in shown)


@given(ids=st.lists(st.integers(0, 419), max_size=30), sizes=st.lists(st.integers(1, 4), max_size=5))
def test_byte_level_equals_decoding_at_once_for_any_ids(byte_level, ids, sizes):
    for skip in (True, False):
        shown = pieces(byte_level.detokenizer(skip_special_tokens=skip), ids, sizes)
        assert "".join(shown) == byte_level.decode(ids, skip_special_tokens=skip)


@given(text=TEXTS, sizes=st.lists(st.integers(1, 4), max_size=5))
def test_a_window_gives_any_text_back_in_whole_characters(fallback, text, sizes):
    ids = fallback.encode(text)
    assert not fallback.is_byte_level
    shown = pieces(fallback.detokenizer(), ids, sizes)
    assert "".join(shown) == fallback.decode(ids)
    if "�" not in text:
        assert all("�" not in piece for piece in shown)


@given(ids=st.lists(st.integers(1, 256), max_size=40))
def test_a_window_survives_any_bytes(fallback, ids):
    detokenizer = fallback.detokenizer()
    text = "".join(pieces(detokenizer, [*ids, 257], [1]))
    assert text.endswith(" the") or text == "the"


@given(text=st.text("ab é🙂", min_size=1, max_size=80))
def test_both_ways_say_the_same(byte_level, text):
    ids = byte_level.encode(text)
    window = WindowDetokenizer(byte_level.decode)
    assert "".join(pieces(window, ids, [1])) == "".join(pieces(byte_level.detokenizer(), ids, [1])) == text


def test_a_character_over_tokens_comes_when_it_is_whole(byte_level):
    ids = byte_level.encode("🙂")
    assert len(ids) > 1
    detokenizer = byte_level.detokenizer()
    assert [detokenizer.push([token]) for token in ids] == [""] * (len(ids) - 1) + ["🙂"]


def test_a_character_that_is_never_completed_is_flushed_as_a_replacement(byte_level):
    detokenizer = byte_level.detokenizer()
    assert detokenizer.push(byte_level.encode("🙂")[:-1]) == ""
    assert detokenizer.flush() == "�"


def test_special_tokens_are_hidden_or_shown(byte_level):
    ids = [*byte_level.encode("a"), 2]
    assert byte_level.detokenizer().push(ids) == "a"
    assert byte_level.detokenizer(skip_special_tokens=False).push(ids) == "a<|im_end|>"


def test_ids_between_the_tokenizer_and_the_models_vocabulary_are_silent():
    detokenizer = ByteDetokenizer([b"a", b""])
    assert detokenizer.push([0, 1, 0]) == "aa"
