"""Both scripts of the big bundles for JSON, speech and pictures, against an honest server of their API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.bundles.test_json import chat
from tests.bundles.test_json import honest as honest_json
from tests.examples.test_contracts import hear, honest_image, images, run, serving, speech

from vibeserve.base.paths import packaged
from vibeserve.targets import read_bundle
from vibeserve.targets.probe_media import write_clips

SERVING = packaged("examples") / "model-serving"
BIG: dict[str, tuple[Any, list[str]]] = {
    "Llama-3.1-8B-Instruct-MLX-8bit": (lambda: chat(honest_json), []),
    "moonshine-streaming": (lambda: speech(hear, hear), ["--clip-s", "2.5", "--pace", "6"]),
    "show-o2-1.5B-HQ-h100": (lambda: images(honest_image), ["--size", "64x64"]),
    "show-o2-1.5B-HQ-macbook": (lambda: images(honest_image), ["--size", "64x64"]),
}


@pytest.mark.parametrize("name", BIG)
def test_both_scripts_run_and_pass_an_honest_server(name, tmp_path):
    routes, flags = BIG[name]
    bundle, output = read_bundle(SERVING / name), tmp_path / "o.json"
    if "--clip-s" in flags:
        write_clips(tmp_path / "clips")
        flags = [*flags, "--audio-dir", str(tmp_path / "clips")]
    with serving(routes()) as url:
        common = ["--url", url, "--output-json", str(output), *flags]
        few = ["--num-cases", "2", "--reference-url", url]
        done = run(SERVING / name / "accuracy_checker" / "checker.py", *bundle.checker_args, *common, *few)
        assert done.returncode == 0, done.stdout + done.stderr
        load = ["--num-requests", "4", "--concurrency", "2", "--calibrate", "0"]
        done = run(SERVING / name / "benchmark" / "benchmark.py", *bundle.benchmark_args, *common, *load)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(output.read_text())
    assert document["completed"] == 4
    assert isinstance(document[bundle.metric.name], float)
