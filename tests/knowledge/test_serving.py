"""The notes on serving systems: their form, what they point to, and that they are found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vibeserve import knowledge

ROOT = Path(__file__).parents[2]
NOTES = knowledge.serving_notes()
SECTIONS = ["When to use", "How it works", "Numbers that matter", "Pitfalls", "Is it active?", "Here"]
# Words in code style that are no places in this project: APIs of a bundle and settings.
WORDS = ("openai-", "websocket-audio", "chunked_prefill", "vibeserve", "accuracy_checker/", "benchmark/")
PLACES = ("src/vibeserve", "", "examples/kernels", "examples/model-serving", "skills")


@pytest.mark.parametrize("path", NOTES, ids=[path.stem for path in NOTES])
def test_form_and_pointers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert all(section.strip() for section in re.split(r"^## .*$", text, flags=re.M))
    for name in re.findall(r"`([\w/.-]+)`", text[text.index("## Here") :]):
        if name.startswith(WORDS):
            continue
        technique = ROOT / "src/vibeserve/agents/playbook/techniques" / f"{name}.toml"
        assert technique.exists() or any((ROOT / place / name).exists() for place in PLACES), name


def test_there_are_fifty_and_the_specification_names_no_other(spec_dir: Path) -> None:
    [file] = spec_dir.glob("001_*.txt")
    groups = "models|algorithms|backends|frameworks|hardware|engines|tooling"
    named = set(re.findall(rf"references/((?:{groups})/[\w-]+)\.md", file.read_text(encoding="utf-8")))
    assert named == {f"{path.parent.name}/{path.stem}" for path in NOTES}
    assert len(NOTES) == 50


FOLLOW_UPS = knowledge.follow_ups()


@pytest.mark.parametrize("path", FOLLOW_UPS, ids=lambda path: path.stem)
def test_follow_ups_and_their_topics_name_one_another(path: Path) -> None:
    topic = FOLLOW_UPS[path]
    text = path.read_text(encoding="utf-8")
    assert topic in NOTES
    assert f"Follow-up of [{topic.stem}]({topic.name}). Read it when: " in text
    assert f"[{path.stem}]({path.name})" in topic.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[1:] == ["Numbers that matter", "Pitfalls", "How to verify", "Sources"]
    assert all(section.strip() for section in re.split(r"^## .*$", text, flags=re.M))
    assert len(text) > len(topic.read_text(encoding="utf-8"))


def test_there_are_follow_ups() -> None:
    assert len(FOLLOW_UPS) >= 10


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("stream freezes in the middle, preempted", "paged-attention-preemption"),
        ("how many tokens fit in the kv cache", "paged-attention-sizing"),
        ("expected speedup from draft acceptance rate", "speculative-decoding-acceptance"),
        ("prefix cache hit rate is zero", "radix-prefix-caching-hashing"),
        ("sglang retract requests", "sglang-tuning"),
        ("fp8 kv cache", "quantization-schemes-kv-cache"),
        ("online softmax rescale", "flashattention-algorithm"),
        ("continuous batching", "continuous-batching"),
        ("reuse the kv cache of a shared system prompt", "radix-prefix-caching"),
        ("long prompt stalls decoding", "chunked-prefill"),
        ("draft model verify tokens", "speculative-decoding"),
        ("json schema constrained decoding", "structured-output"),
        ("where is the scheduler in vllm", "vllm"),
        ("word error rate speech recognition", "speech-language"),
        ("cuda graph capture replay", "cuda-graph"),
    ],
)
def test_notes_are_found(words: str, wanted: str, cli) -> None:
    code, out, _ = cli("docs", "search", words, "--json")
    assert code == 0
    assert any(f"/{wanted}.md" in row["source"] for row in json.loads(out)["results"][:3]), out


def test_the_skill_lists_every_note() -> None:
    text = (ROOT / "skills/serving-systems/SKILL.md").read_text(encoding="utf-8")
    assert all(f"`{path.stem}`" in text for path in NOTES)


def test_paths_in_clones_are_resolved_and_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vibeserve.knowledge.index import Index

    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SERVE_REPOS", raising=False)
    index = Index.standard()
    words = "where is the scheduler in vllm"
    unset = knowledge.answer(words, index)
    assert unset.results[0].id == "note/engines/vllm"
    assert any("set SERVE_REPOS" in text for text in unset.warnings)
    scheduler = tmp_path / "repos/vllm/vllm/v1/core/sched"
    scheduler.mkdir(parents=True)
    monkeypatch.setenv("SERVE_REPOS", str(tmp_path / "repos"))
    found = knowledge.answer(words, index)
    assert str(scheduler) in found.references
    assert str(scheduler) in found.summary
    [warning] = [text for text in found.warnings if "not in" in text]
    assert "vllm/vllm/entrypoints/openai" in warning
    assert "vllm/vllm/v1/core/sched," not in warning
    assert knowledge.answer("nisa.nc_matmul", index).document()["references"]


@pytest.mark.parametrize("path", [path for path in NOTES if path.parent.name == "engines"], ids=lambda path: path.stem)
def test_engine_maps_cite_paths_of_clones(path: Path) -> None:
    assert len(set(re.findall(r"\$SERVE_REPOS/[\w/.-]+", path.read_text(encoding="utf-8")))) >= 3
