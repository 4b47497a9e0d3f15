"""A second bundle on the real model, made as a user makes one: the directory copied, model path and metric changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vibeserve.targets import materialize, read_bundle

CHAT = Path(__file__).parents[2] / "examples" / "model-serving" / "smollm2-135m-cpu-chat"
METRIC = '[metric]\nname = "p95_latency_s"\nunit = "s"\ndirection = "lower"\n'


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The copy: its weights come from a path, and less latency is better."""
    weights = materialize(read_bundle(str(CHAT)))
    folder = tmp_path / "my-chat"
    shutil.copytree(CHAT, folder, ignore=shutil.ignore_patterns("model", "__pycache__"))
    meta = folder / "reference" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"sources": [f"file:{weights}"]}))
    toml = folder / "bundle.toml"
    old = '[metric]\nname = "output_tokens_per_s"\nunit = "tokens/s"\ndirection = "higher"\n'
    assert toml.read_text().startswith(old)
    toml.write_text(METRIC + toml.read_text().removeprefix(old))
    return folder


def run(*words: str, cwd: Path) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "vibeserve.cli.main", *words]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=1500, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_copied_bundle_with_another_metric_works_unchanged(copy: Path, tmp_path: Path) -> None:
    code, out, err = run("optimize", str(copy), "--budget", "5m", "--rounds", "1", "--json", cwd=tmp_path)
    assert code == 0, err[-3000:]
    document: dict[str, Any] = json.loads(out)
    print(err[-3000:])
    assert document["metric"] == {"name": "p95_latency_s", "unit": "s", "direction": "lower"}
    first, improvement = document["rounds"][1], document["improvement"]
    assert first["verdict"] == "kept", first["reason"]
    assert first["ratio"] > 1
    assert improvement["ci95"][0] > 1, "above 1 is better, whatever the direction"
    assert document["best"]["value"] < document["baseline"]["value"], "and less is better"
    assert improvement["ratio"] == pytest.approx(document["baseline"]["value"] / document["best"]["value"], rel=1e-6)
    if document["limit"]["fraction"] is not None:
        assert 0 < document["limit"]["fraction"] <= 1.1
    page = Path(document["report"]).read_text()
    assert "P95 latency, best server against the reference" in page
