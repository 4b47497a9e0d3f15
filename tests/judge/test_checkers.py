"""Every checker that is shipped rejects zeros, constants, shuffled and stale answers."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import random
import string
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.cheats.llama import FOLDER
from tests.cheats.server import Honest, serving
from tests.cheats.zoo import CannedAnswer, Shuffled, StaleAnswer, Zeros
from tests.examples import test_contracts as contracts

from vibeserve.base.paths import packaged
from vibeserve.targets import read_bundle
from vibeserve.targets.probe import ProbeServer
from vibeserve.targets.probe_media import _value, write_clips

BUNDLES = sorted(path.parent for path in (packaged("examples") / "model-serving").glob("*/bundle.toml"))
DAMAGES = ("zeros", "constants", "shuffled", "stale")
TEXT: dict[str, type[Honest]] = dict(zip(DAMAGES, (Zeros, CannedAnswer, Shuffled, StaleAnswer), strict=True))
QUICK = {"smollm2-135m-cpu-chat", "terrain-diffusion-cpu-image"}


def kind_of(bundle: Path) -> str:
    """What its checker asks for."""
    if not (bundle / "accuracy_checker" / "contract.py").is_file():
        return "text"
    api = read_bundle(bundle).api
    return {"openai-images": "images", "websocket-audio": "speech", "openai-chat": "json"}[api]


def one_of_each() -> list[Path]:
    """Bundles whose checkers differ in more than the defaults of flags; a bundle of each."""
    found: dict[str, Path] = {}
    for bundle in sorted(BUNDLES, key=lambda path: path.name not in QUICK):
        files = sorted((bundle / "accuracy_checker").glob("*.py"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        found.setdefault(digest, bundle)
    return list(found.values())


CASES = [
    pytest.param(bundle, damage, id=f"{bundle.name}-{damage}", marks=[] if bundle.name in QUICK else pytest.mark.slow)
    for bundle in one_of_each()
    for damage in DAMAGES
]


def test_every_bundle_has_a_checker_of_a_kind_that_is_tried() -> None:
    assert len(BUNDLES) >= 12
    assert {kind_of(bundle) for bundle in BUNDLES} == {"text", "images", "speech", "json"}


@pytest.mark.parametrize(("bundle", "damage"), CASES)
def test_it_is_rejected(bundle: Path, damage: str, tmp_path: Path) -> None:
    code, cases = {"text": text, "images": images, "speech": speech, "json": documents}[kind_of(bundle)](
        bundle, damage, tmp_path
    )
    assert code == 1
    assert [case["name"] for case in cases if case["ok"] is False]


@pytest.mark.parametrize("kind", ["images", "json"])
def test_the_honest_one_behind_the_damage_is_not(kind: str, tmp_path: Path) -> None:
    bundle = next(bundle for bundle in BUNDLES if kind_of(bundle) == kind)
    code, cases = {"images": images, "json": documents}[kind](bundle, "", tmp_path)
    assert code == 0, [case for case in cases if case["ok"] is not True]


# ------------------------------------------------------------------------------------------------------- by kind


def text(bundle: Path, damage: str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """In this process: torch is loaded once."""
    import torch

    torch.set_num_threads(1)
    script, output = bundle / "accuracy_checker" / "checker.py", folder / "cases.json"
    spec = importlib.util.spec_from_file_location(f"checker_of_{bundle.name}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.argv, list(sys.path)
    with serving(TEXT[damage]()) as url, contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["checker.py", "--url", url, "--model-dir", str(FOLDER), "--output-json", str(output), "--seed", "3"]
        sys.path.insert(0, str(script.parent))
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            code = int(module.main())
        finally:
            sys.argv, sys.path[:] = before
            del sys.modules[spec.name]
            sys.modules.pop("fixes", None)
    return code, json.loads(output.read_text())["cases"]


def script(bundle: Path, url: str, reference: str, folder: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """As a process of its own."""
    output = folder / "cases.json"
    command = [sys.executable, "-B", str(bundle / "accuracy_checker" / "checker.py"), "--url", url, "--seed", "3"]
    command += ["--reference-url", reference, "--output-json", str(output), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert output.is_file(), done.stdout + done.stderr
    return done.returncode, json.loads(output.read_text())["cases"]


def images(bundle: Path, damage: str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Pictures of noise that depend on the request."""
    count, last = iter(range(10**6)), [""]

    def key(body: dict[str, Any]) -> str:
        own = contracts.honest_image(body)
        if damage == "stale":
            own, last[0] = last[0], own
        return {"constants": "", "shuffled": f"{own}{next(count)}"}.get(damage, own)

    def black(png: bytes) -> bytes:
        return contracts._png(Zero(), 32, 32) if damage == "zeros" else png

    with (
        contracts.serving(contracts.images(contracts.honest_image)) as reference,
        contracts.serving(contracts.images(key, black)) as url,
    ):
        return script(bundle, url, reference, folder, "--size", "32x32")


class Zero(random.Random):
    """No noise at all."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


def speech(bundle: Path, damage: str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Words for half seconds of noise."""
    last = [""]

    def final(pcm: bytes) -> str:
        own = contracts.hear(pcm)
        if damage == "stale":
            own, last[0] = last[0], own
        elif damage == "shuffled":
            own = " ".join(random.sample(own.split(), len(own.split())))
        return {"zeros": "", "constants": "all is well with the old river"}.get(damage, own)

    write_clips(folder / "clips")
    words = ("--audio-dir", str(folder / "clips"), "--clip-s", "2.5", "--pace", "6")
    with (
        contracts.serving(contracts.speech(contracts.hear, contracts.hear)) as reference,
        contracts.serving(contracts.speech(final, contracts.hear)) as url,
    ):
        return script(bundle, url, reference, folder, *words)


def documents(bundle: Path, damage: str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """JSON by the schema that is asked for, with what the sentence says."""
    last: list[Any] = [{}]

    def damaged(value: Any) -> Any:
        if damage == "zeros":
            return {name: 0 if isinstance(one, int | float) else "" for name, one in value.items()}
        if damage == "shuffled":
            kept = list(value.values())
            random.shuffle(kept)
            return dict(zip(value, [*kept[1:], kept[0]], strict=True))
        if damage == "stale":
            value, last[0] = last[0], value
        return value

    with documents_server(lambda value: value, "") as reference, documents_server(damaged, damage) as url:
        return script(bundle, url, reference, folder)


@contextlib.contextmanager
def documents_server(damaged: Callable[[Any], Any], damage: str) -> Iterator[str]:
    """Fills in a schema: words of the messages where they fit, else by the messages."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.reply("application/json", b'{"status": "ok", "data": [{"id": "documents"}]}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            wanted = (body.get("response_format") or {}).get("json_schema") or {}
            if not body.get("messages"):
                self.reply("application/json", b'{"error": {"message": "messages are missing"}}', 400)
                return
            name = ((wanted.get("schema") or {}).get("properties") or {}).get("name") or {}
            if name.get("minLength", 0) > name.get("maxLength", 99):
                self.reply("application/json", b'{"error": {"message": "no answer keeps to that"}}', 400)
                return
            said = " ".join(str(message["content"]) for message in body["messages"])
            constant = damage == "constants"
            words = [] if constant else [word.strip(string.punctuation) for word in said.split()]
            chance = random.Random("constant" if constant else said)
            told = json.dumps(damaged(_value(chance, wanted.get("schema") or {"type": "object"}, words)))
            if not body.get("stream"):
                choice = {"message": {"role": "assistant", "content": told}, "finish_reason": "stop"}
                self.reply("application/json", json.dumps({"choices": [choice]}).encode())
                return
            half = len(told) // 2
            parts: list[dict[str, Any]] = [{"delta": {"content": told[:half]}}, {"delta": {"content": told[half:]}}]
            parts.append({"delta": {}, "finish_reason": "stop"})
            events = [*(json.dumps({"choices": [{"index": 0, **part}]}) for part in parts), "[DONE]"]
            self.reply("text/event-stream", "".join(f"data: {event}\n\n" for event in events).encode())

        def reply(self, kind: str, data: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ProbeServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
