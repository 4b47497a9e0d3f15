"""From a sentence to figures, offline: `init`, `validate`, then checker and benchmark against a real server.

Text bundles are asked of the reference server of the chat bundle with a tiny random model; what such a model cannot do (mend a
program, tell of a name) is not asked of it there; schemas, speech and pictures need real weights, in the slow ones.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.bundles.test_text_scripts import SERVING, load
from tests.targets.checkpoints import llama

from vibeserve.base.errors import VibeServeError
from vibeserve.targets import Proposal, materialize, propose, read_bundle, validate, write_bundle

torch = pytest.importorskip("torch")

# Goal → the flags that make it small for a tiny model, whose tokens are bytes. Answers below 16 tokens are not asked for names.
TEXT = {
    "chat": ("p95 latency of chat at 20 req/s, 300 tokens in, 12 out", []),
    "chat-slo": ("goodput with TTFT under 5 s and TPOT under 1 s at 20 req/s, 300 tokens in, 12 out", []),
    "prefix-caching": ("p50 TTFT with a 256-token shared prefix, 300 tokens in, 12 out, 2 at once", []),
    "long-context": ("long-context: p50 TTFT of 3900-token prompts, 12-token answers, 2 at once", []),
    "code-edit": ("output tokens/s of code edits with predicted outputs, one user, 12-token answers", ["--min-fixed", "0", "--num-fixes", "2", "--fix-tokens", "24"]),
}  # fmt: skip
BIG = ("Llama-3-8B", "Llama-3-8B-trn2", "olmo-hybrid-prefix-caching", "qwen3-32b-code-edit")
SMALL = (
    "smollm2-135m-cpu-chat", "smollm2-135m-cpu-chat-slo", "smollm2-135m-cpu-prefix-caching", "smollm2-135m-cpu-long-context",
    "smollm2-135m-cpu-code-edit",
)  # fmt: skip
Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that is named like a chat model."""
    return llama(tmp_path_factory.mktemp("models") / "tiny-llama-1m-instruct")


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    """The reference server of the chat bundle on the tiny model."""
    reference = load(SERVING / "smollm2-135m-cpu-chat" / "reference" / "reference.py")
    loaded = reference.Model(model)
    handler = type("Handler", (reference.Handler,), {"model": loaded, "name": "tiny", "started": 0})
    server = reference.Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()
    loaded.turns.shutdown()


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a script of a bundle in this process: exit code, and the JSON that it wrote."""

    def run(script: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        output = tmp_path / "out.json"
        output.unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", [script.name, *arguments, "--seed", "5", "--output-json", str(output)])
        monkeypatch.chdir(script.parent)
        code = load(script).main()
        capsys.readouterr()
        return code, json.loads(output.read_text())

    return run


def small(arguments: tuple[str, ...], *more: str) -> list[str]:
    """The bundle's own arguments, made small: the last of two flags alike counts."""
    return [*arguments, "--num-requests", "4", "--calibrate", "0", "--warmup", "1", *more]


def not_holding(document: dict[str, Any]) -> list[Any]:
    """The cases that do not hold."""
    return [case for case in document["cases"] if case["ok"] is not True]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in ("chat", "long-context") else pytest.mark.slow) for k in TEXT]
)
def test_from_a_sentence_to_figures(kind, model, url, ask, tmp_path):
    goal, more = TEXT[kind]
    proposal: Proposal = propose(str(model), "cpu", goal, dest=tmp_path)
    write_bundle(proposal)
    result = validate(proposal.path)
    assert result.ok, [check for check in result.checks if check.ok is False]
    bundle = read_bundle(proposal.path)
    common = ["--url", url, "--model-dir", str(model)]
    code, document = ask(
        proposal.path / "accuracy_checker" / "checker.py", *bundle.checker_args, *common, "--num-fresh", "2", *more
    )
    assert (code, not_holding(document)) == (0, [])
    names = [case["name"] for case in document["cases"]]
    code, document = ask(
        proposal.path / "benchmark" / "benchmark.py", *small(bundle.benchmark_args), *common, "--max-tokens", "12"
    )
    assert (code, document["completed"]) == (0, 4)
    assert isinstance(document[bundle.metric.name], float)
    if kind == "long-context":
        assert "long/exact" in names
        assert document["workload"]["prompt_tokens"] == 3900


def test_long_prompts_out_of_a_local_file(model, url, ask, tmp_path):
    proposal = propose(str(model), "cpu", TEXT["long-context"][0], dest=tmp_path)
    write_bundle(proposal)
    texts = [f"Report {n}. " + f"The {n}th keeper counted the boats and wrote the number down. " * 90 for n in range(3)]
    file = tmp_path / "reports.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = small(read_bundle(proposal.path).benchmark_args, "--dataset", str(file), "--max-tokens", "12")
    code, document = ask(
        proposal.path / "benchmark" / "benchmark.py", *arguments, "--url", url, "--model-dir", str(model)
    )
    assert (code, document["completed"]) == (0, 4)
    assert all(3800 < row["prompt_tokens"] <= 3900 for row in document["per_request"])
    assert document["p50_ttft_s"] > 0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "Llama-3-8B" else pytest.mark.slow) for n in (*BIG, *SMALL)]
)
def test_both_scripts_of_the_examples_run_against_a_real_server_with_the_model_swapped(name, model, url, ask):
    bundle = read_bundle(SERVING / name)
    common = ["--url", url, "--model-dir", str(model)]
    checker = SERVING / name / "accuracy_checker" / "checker.py"
    exact = [
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--near-tie-margin",
        "0",
        "--min-top1",
        "1",
        "--num-fresh",
        "2",
        "--prefix-words",
        "40",
    ]
    few = ["--num-fixes", "2", "--fix-tokens", "24", "--min-fixed", "0"] if "fixes" in checker.read_text() else []
    long = ["--long-tokens", "1500"] if "--long-tokens" in bundle.checker_args else []
    code, document = ask(checker, *bundle.checker_args, *common, *exact, *few, *long)
    assert (code, not_holding(document)) == (0, [])
    load_flags = ["--prompt-len", "300", "--max-tokens", "12", *(["--long-len", "1500"] if long else [])]
    load_flags += ["--shared-prefix", "256"] if "--shared-prefix" in bundle.benchmark_args else []
    code, document = ask(
        SERVING / name / "benchmark" / "benchmark.py", *small(bundle.benchmark_args), *common, *load_flags
    )
    assert document["completed"] == 4
    assert code == 0
    assert isinstance(document[bundle.metric.name], float)


# ------------------------------------------------------------------------------------------- with real weights


def weights_of(name: str) -> Path:
    """The materialised model of an example; skips where its weights are not to be had here."""
    try:
        return Path(materialize(read_bundle(SERVING / name)))
    except VibeServeError as error:
        pytest.skip(f"no weights: {error.message}")


@contextmanager
def reference_of(bundle: Path, weights: Path, folder: Path) -> Iterator[str]:
    """A bundle's reference.py as a process; gives its URL when it is healthy."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-B",
        str(bundle / "reference" / "reference.py"),
        "--model-dir",
        str(weights),
        "--port",
        str(port),
    ]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(600):
                assert process.poll() is None, (folder / "server.log").read_text()
                try:
                    if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status == 200:
                        break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


# Terrain is alike from one seed to the next: the small example's own bounds.
BOUNDS = ["--max-distance", "2", "--max-repeat", "2", "--min-distance", "4"]
MEDIA = {
    "smollm2-135m-cpu-json": ("p50 latency of JSON answers by schema, one user", ["--num-cases", "2"], [], ("Llama-3.1-8B-Instruct-MLX-8bit",)),
    "whisper-tiny-en-cpu-speech": ("real-time factor of transcription, 2 at once", ["--num-cases", "2"], [], ("moonshine-streaming",)),
    "terrain-diffusion-cpu-image": (
        "p50 latency of 128x128 images with 2 steps, one at a time", ["--num-cases", "2", "--size", "128x128", "--steps", "2", "--prompts", "terrain", *BOUNDS],
        ["--size", "128x128", "--steps", "2", "--prompts", "terrain"], ("show-o2-1.5B-HQ-h100", "show-o2-1.5B-HQ-macbook"),
    ),
}  # fmt: skip
NEEDS = {
    "smollm2-135m-cpu-json": "llguidance",
    "whisper-tiny-en-cpu-speech": "faster_whisper",
    "terrain-diffusion-cpu-image": "onnxruntime",
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "other"), [(n, other) for n, (*_, big) in MEDIA.items() for other in ("", *big)])
def test_json_speech_and_images_with_real_weights(name, other, tmp_path):
    """A bundle that init makes from the small example, and each big one of its kind, against the small one's server."""
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    goal, few, size, _ = MEDIA[name]
    weights = weights_of(name)
    bundle = SERVING / other
    if not other:
        proposal = propose(read_bundle(SERVING / name).meta.model_id, "cpu", goal, dest=tmp_path, source=name,
                           modality={"w": "speech-to-text", "t": "text-to-image", "s": "json"}[name[0]])  # fmt: skip
        write_bundle(proposal)
        bundle = proposal.path
    result = validate(bundle)
    assert result.ok, [check for check in result.checks if check.ok is False]
    with reference_of(SERVING / name, weights, tmp_path) as url:
        output, metric = tmp_path / "o.json", read_bundle(bundle).metric.name
        common = ["--url", url, "--output-json", str(output), "--seed", "5"]
        asked = [*read_bundle(bundle).checker_args, *common, "--reference-url", url, *few]
        done = _python(bundle / "accuracy_checker" / "checker.py", *asked)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
        load_flags = ["--num-requests", "3", "--warmup", "1", "--calibrate", "0", *size]
        done = _python(bundle / "benchmark" / "benchmark.py", *read_bundle(bundle).benchmark_args, *common, *load_flags)
        document = json.loads(output.read_text())
        assert document["completed"] == 3, done.stdout + done.stderr
        assert document[metric] is not None, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_long_context_bundle_with_real_weights(ask, tmp_path):
    weights = weights_of("smollm2-135m-cpu-chat")
    goal = "long-context: p50 TTFT of 1500-token prompts, 16-token answers, one at a time"
    proposal = propose("HuggingFaceTB/SmolLM2-135M-Instruct", "cpu", goal, dest=tmp_path)
    write_bundle(proposal)
    bundle = read_bundle(proposal.path)
    arguments = small(bundle.benchmark_args, "--num-requests", "3", "--model-dir", str(weights))
    file = tmp_path / "reports.txt"
    file.write_text(
        "\n\n".join(
            f"Report {n}. " + "The keeper counted the boats and wrote the number down. " * 220 for n in range(3)
        )
    )
    with reference_of(proposal.path, weights, tmp_path) as url:
        for more in ([], ["--dataset", str(file)]):
            code, document = ask(proposal.path / "benchmark" / "benchmark.py", *arguments, "--url", url, *more)
            assert (code, document["completed"]) == (0, 3)
            assert all(1400 < row["prompt_tokens"] <= 1500 for row in document["per_request"])
            assert document["p50_ttft_s"] > 0


def _python(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(script), *arguments],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("smollm2-135m-cpu-prefix-caching", []),
        ("smollm2-135m-cpu-chat", []),
        ("smollm2-135m-cpu-chat", ["--endpoint", "/v1/completions"]),
    ],
)
def test_answers_of_real_weights_belong_to_their_prompts(name, more, tmp_path):
    """A benchmark gives no figure where answers don't name what was asked: even the small model has to, behind long prompts."""
    weights, bundle = weights_of(name), read_bundle(SERVING / name)
    with reference_of(bundle.path, weights, tmp_path) as url:
        output = tmp_path / "o.json"
        common = ["--url", url, "--model-dir", str(weights), "--output-json", str(output), "--seed", "5"]
        few = ["--num-requests", "8", "--concurrency", "2", "--max-tokens", "32", "--warmup", "1", "--calibrate", "0"]
        done = _python(bundle.benchmark_script, *bundle.benchmark_args, *common, *few, *more)
    document = json.loads(output.read_text())
    assert document["plausibility"]["n"] == 8, done.stderr
    assert document["plausibility"]["names_own"] >= 0.6
    assert document["plausibility"]["ok"] is True
    assert document["output_tokens_per_s"] > 0
