"""Bundles of contracts that no example has, written by init: reference, checker and benchmark run against each other with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vibeserve.targets import propose, read_bundle, write_bundle
from vibeserve.targets.probe import write_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# modality → the goal, and the model's outputs (0: no classifier on top)
KINDS = {
    "embeddings": ("p90 latency of embeddings, 2 at once", 0),
    "text-scores": ("texts classified per second, 2 at once", 3),
    "text-scores of a reward model": ("mean latency of rewards, 2 at once", 1),
}


def encoder(folder: Path, outputs: int) -> Path:
    """A tiny BERT with random weights and a token a byte."""
    write_tokenizer(folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=1024, initializer_range=0.4, num_labels=max(outputs, 1),
    )  # fmt: skip
    kind = transformers.BertForSequenceClassification if outputs else transformers.BertModel
    kind(config).save_pretrained(folder)
    return folder


@contextmanager
def served(script: Path, model: Path) -> Iterator[str]:
    """reference.py as a process, on a port that it takes itself."""
    command = [sys.executable, "-B", str(script), "--model-dir", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if line.startswith("serving ")), "")
            assert said, "the reference does not start"
            yield said.split(" on ")[1].strip()
        finally:
            process.terminate()
            process.wait(20)


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of the bundle."""
    command = [sys.executable, "-B", str(script), *arguments]
    return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=120, check=False)


def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One POST."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        document: dict[str, Any] = json.loads(response.read())
    return document


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow if k != "embeddings" else ()) for k in KINDS])
def test_from_a_sentence_to_figures(kind, tmp_path):
    goal, outputs = KINDS[kind]
    modality = kind.split(" ")[0]
    model = encoder(tmp_path / "model", outputs)
    proposal = propose(str(model), "cpu", goal, modality=modality, dest=tmp_path / "bundles", slug="tiny")
    write_bundle(proposal)
    bundle, output = read_bundle(proposal.path), tmp_path / "o.json"
    with served(bundle.reference_script, model) as url:
        common = ["--url", url, "--output-json", str(output), "--seed", "5"]
        done = run(bundle.checker_script, *bundle.checker_args, *common, "--model-dir", str(model))
        assert done.returncode == 0, done.stdout + done.stderr
        done = run(bundle.benchmark_script, *bundle.benchmark_args, *common, "--num-requests", "8", "--calibrate", "0")
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(output.read_text())
        assert (document["completed"], document["failed"]) == (8, 0)
        assert document[bundle.metric.name] > 0
        if outputs:
            answer = ask(url, "/classify", {"input": ["a good day", "a bad day"]})["data"]
            assert [entry["num_classes"] for entry in answer] == [outputs, outputs]
            assert outputs == 1 or sum(answer[0]["probs"]) == pytest.approx(1)
            assert answer[0]["probs"] != answer[1]["probs"]


def test_a_checkpoint_without_a_classifier_is_no_reference_of_scores(tmp_path):
    model = encoder(tmp_path / "model", 0)
    proposal = propose(str(model), "cpu", "p50 latency", modality="text-scores", dest=tmp_path / "bundles", slug="tiny")
    write_bundle(proposal)
    script = read_bundle(proposal.path).reference_script
    done = run(script, "--model-dir", str(model), "--prompt", "a good day")
    assert done.returncode == 1
    assert "classifier.weight" in done.stderr
    assert "Traceback" not in done.stderr
