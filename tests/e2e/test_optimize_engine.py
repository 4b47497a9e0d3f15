"""The playbook with the real engine: on a tiny model with random weights, and the demo as it stands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vibeserve.measure import free_port

CHAT = Path(__file__).parents[2] / "examples" / "model-serving" / "smollm2-135m-cpu-chat"


def run(*words: str, timeout_s: float = 1500, cwd: Path | None = None) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "vibeserve.cli.main", *words]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The chat bundle over random weights that say only plain words. They cannot tell of what a prompt names, so the
    benchmark's question whether answers belong to their prompts is taken out of this copy."""
    spec = importlib.util.spec_from_file_location(
        "tiny_models", Path(__file__).parents[1] / "engine_http" / "conftest.py"
    )
    assert spec is not None
    assert spec.loader is not None
    models: Any = importlib.util.module_from_spec(spec)
    sys.modules["tiny_models"] = models
    spec.loader.exec_module(models)
    folder = tmp_path / "tiny-chat"
    shutil.copytree(CHAT, folder, ignore=shutil.ignore_patterns("model", "__pycache__"))
    model = models.write_model(folder / "reference" / "model")
    plain_words(model)
    (folder / "reference" / "meta.json").write_text(
        '{"model_id": "local/tiny", "revision": null, "task": "text-generation"}'
    )
    toml = folder / "bundle.toml"
    toml.write_text(
        re.sub(
            r'"--prompt-len", "\d+", "--max-tokens", "\d+"',
            '"--prompt-len", "96", "--max-tokens", "32"',
            toml.read_text(),
        )
    )
    benchmark = folder / "benchmark" / "benchmark.py"
    asked = 'result["plausibility"] = plausibility(ok, level)'
    assert asked in benchmark.read_text()
    benchmark.write_text(benchmark.read_text().replace(asked, 'result["plausibility"] = {"ok": None}'))
    return folder


def plain_words(model: Path) -> None:
    """An output head of its own, in which whatever is not plain text can never win."""
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    weights = load_file(model / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    head = weights["model.embed_tokens.weight"].clone()
    for token in range(head.shape[0]):
        text = tokenizer.decode([token])
        if token < 3 or not text or not text.isascii() or not text.isprintable():
            head[token] = 0
    save_file({**weights, "lm_head.weight": head}, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config |= {"tie_word_embeddings": False, "max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(config))


def answers(directory: Path, model: Path) -> dict[str, Any]:
    """Start an exported server by what its README says, in an environment that knows nothing of us, and ask it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    words = [sys.executable, "server.py", "--model-dir", str(model), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(words, cwd=directory, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=2).close()
                    break
                except OSError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
            body = json.dumps({"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/v1/completions", body, headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        finally:
            server.terminate()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_playbook_builds_a_better_server_that_runs_alone(tiny: Path, tmp_path: Path) -> None:
    words = ("optimize", str(tiny), "--budget", "4m", "--rounds", "1", "--runs-dir", "runs", "--json")
    code, out, err = run(*words, cwd=tmp_path)
    assert code == 0, err[-3000:]
    document = json.loads(out)
    first = document["rounds"][1]
    assert first["verdict"] == "kept", first["reason"]
    assert "continuous-batching" in first["techniques"]
    assert first["evidence"]["batch.rows_per_step"]["value"] > 1.5
    assert {gate["name"]: gate["ok"] for gate in first["gates"]}["check"] is True
    assert document["improvement"]["ci95"][0] > 1
    assert document["floor"][0] | {"reason": ""} == {
        "technique": "continuous-batching, transformers-batching",
        "title": "continuous batching",
        "state": "in place",
        "reason": "",
        "hardware": "cpu",
    }
    page = Path(document["report"]).read_text()
    assert "continuous batching" in page
    code, _, err = run("export", str(tmp_path / "runs" / document["run"]), str(tmp_path / "out"))
    assert code == 0, err
    assert answers(tmp_path / "out", tiny / "reference" / "model")["usage"]["completion_tokens"] == 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo(tmp_path: Path) -> None:
    """`make demo` on the real model: a better server, proved, every round explained."""
    code, out, err = run("optimize", str(CHAT), "--budget", "8m", "--runs-dir", str(tmp_path), "--json")
    assert code == 0, err[-3000:]
    document = json.loads(out)
    assert document["improvement"]["ci95"][0] > 1, document["improvement"]
    assert document["best"]["candidate"] != "c0"
    assert document["limit"]["fraction"] is not None
    for entry in document["rounds"][1:]:
        assert entry["reason"]
        assert entry["why"]
        assert entry["hypothesis"]
