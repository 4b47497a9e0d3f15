"""One request's blocks never reach another's answer; and the comparison that says so does see it when they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.prefix_tree import Node, PrefixTree
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request

SETTINGS = Settings(backend="torch", max_batch=4, max_batch_tokens=64, kv_memory_bytes=1 << 20, threads=1)
SHARED = prompt(1, 32)


def asked() -> dict[str, tuple[int, ...]]:
    """Two families with different beginnings, and suffixes that part in the middle of a block."""
    families = (SHARED, prompt(2, 32))
    return {f"{at}-{n}": (*families[at], *prompt(10 + n, 20 + n)) for n in range(4) for at in range(2)}


def wrong_answers(core: EngineCore, cold: EngineCore) -> list[str]:
    """Requests that a warm engine answers in another way than a cold one, in any order of arrival."""
    for _ in range(2):  # the second time everything that is shared is there
        for name, ids in asked().items():
            core.add(Request(name, ids, replace(GREEDY, max_tokens=16)))
        found = {name: tokens_of(outputs) for name, outputs in finish(core).items()}
    return [name for name, ids in asked().items() if found[name] != answer(cold, ids, max_tokens=16)]


def test_divergent_suffixes_are_answered_as_cold(model_root: Path) -> None:
    model = save_model("llama", model_root)
    core, cold = EngineCore(model, SETTINGS), EngineCore(model, replace(SETTINGS, prefix_cache=False))
    assert wrong_answers(core, cold) == []
    assert core.stats().prefix_hit_tokens > 0


def test_a_leak_would_be_seen(model_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that takes any block of the right length for the right one."""
    model = save_model("llama", model_root)
    core, cold = EngineCore(model, SETTINGS), EngineCore(model, replace(SETTINGS, prefix_cache=False))
    right = PrefixTree.match

    def leaky(self: PrefixTree, tokens: list[int], most: int) -> list[Node]:
        found = right(self, tokens, most)
        others = [node for node in self.root.children.values() if not found or node is not found[0]]
        return others[:1] if others and most else found

    monkeypatch.setattr(PrefixTree, "match", leaky)
    assert wrong_answers(core, cold) != []


def test_two_engines_of_unequal_memory_answer_alike(model_root: Path) -> None:
    """Half of the KV memory, or too little for all at once: requests wait or give way, and nothing else changes."""
    model = save_model("llama", model_root)
    found = []
    for size in (1 << 20, 1 << 19, 120 << 10):
        core = EngineCore(model, replace(SETTINGS, kv_memory_bytes=size))
        for name, ids in asked().items():
            core.add(Request(name, ids, replace(GREEDY, max_tokens=16)))
        found.append({name: tokens_of(outputs) for name, outputs in finish(core).items()})
        assert core.stats().kv_blocks_used == 0
        core.close()
    assert found[0] == found[1] == found[2]
