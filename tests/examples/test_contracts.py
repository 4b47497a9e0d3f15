"""Image and speech bundles: an honest server passes checker and benchmark, each kind of cheating or broken one fails."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from vibeserve.base.paths import packaged
from vibeserve.targets.probe_media import _png, write_clips

SERVING = packaged("examples") / "model-serving"
IMAGE, SPEECH = SERVING / "terrain-diffusion-cpu-image", SERVING / "whisper-tiny-en-cpu-speech"
NAMES = [
    "river",
    "market",
    "harbor",
    "forest",
    "village",
    "tower",
    "bridge",
    "garden",
    "station",
    "valley",
    "island",
    "castle",
    "desert",
    "lake",
]
Speak = Callable[[bytes], str]
counter = itertools.count()


@contextmanager
def serving(routes: list[Any]) -> Iterator[str]:
    """An aiohttp server in a thread; gives its URL."""
    loop, ready, port = asyncio.new_event_loop(), threading.Event(), [0]
    stop = asyncio.Event()

    async def main() -> None:
        app = web.Application()
        app.add_routes([*routes, web.get("/health", health)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port[0] = runner.addresses[0][1]
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


async def health(_: web.Request) -> web.Response:
    """Ready."""
    return web.json_response({"status": "ok"})


def images(key: Callable[[dict[str, Any]], str], damage: Callable[[bytes], bytes] = bytes) -> list[Any]:
    """Pictures that depend on `key` of the request."""

    async def draw(request: web.Request) -> web.Response:
        body = await request.json()
        if "prompt" not in body:
            return web.json_response({"error": {"message": "prompt is missing"}}, status=400)
        width, height = map(int, body["size"].split("x"))
        seed = hashlib.sha256(key(body).encode()).hexdigest()
        png = damage(_png(random.Random(seed), width, height))
        return web.json_response({"data": [{"b64_json": base64.b64encode(png).decode()}]})

    return [web.post("/v1/images/generations", draw)]


def honest_image(body: dict[str, Any]) -> str:
    """Prompt, seed and steps decide."""
    return json.dumps([body["prompt"], body["seed"], body["num_inference_steps"]])


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One of a bundle's scripts."""
    return subprocess.run(
        [sys.executable, "-B", str(script), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def failed(output: Path) -> set[str]:
    """The kinds of cases that do not hold."""
    cases = json.loads(output.read_text())["cases"]
    return {case["name"].split("/")[0] for case in cases if case["ok"] is not True}


IMAGE_CHEATS = {
    "one image for all": (images(lambda body: ""), "answers-depend-on-input"),
    "prompt ignored": (images(lambda body: str(body["seed"] % 1)), "answers-depend-on-input"),
    "seed ignored": (images(lambda body: body["prompt"]), "other-seed"),
    "never the same twice": (images(lambda body: str(next(counter))), "same-again"),
    "steps left out": (images(lambda body: body["prompt"] + str(body["seed"])), "reference"),
    "a file that is cut off": (images(honest_image, lambda png: png[: len(png) // 2]), "answer"),
    "the first bytes of a PNG": (images(honest_image, lambda png: png[:8] + b"nothing"), "answer"),
}


@pytest.fixture(scope="module")
def image_reference() -> Iterator[str]:
    """The honest server."""
    with serving(images(honest_image)) as url:
        yield url


def test_an_honest_image_server_passes_and_its_samples_are_proven(image_reference, tmp_path):
    output, bench = tmp_path / "c.json", tmp_path / "b.json"
    done = run(
        IMAGE / "accuracy_checker" / "checker.py",
        *(
            "--url",
            image_reference,
            "--reference-url",
            image_reference,
            "--size",
            "32x32",
            "--output-json",
            str(output),
        ),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(
        IMAGE / "benchmark" / "benchmark.py",
        *("--url", image_reference, "--size", "32x32", "--num-requests", "8", "--concurrency", "2"),
        *("--output-json", str(bench), "--calibrate", "0"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(bench.read_text())
    assert (document["requests"], document["completed"], document["failed"]) == (8, 8, 0)
    assert document["warmup_requests"] == 2
    assert document["images_per_s"] > 0
    assert document["fresh_inputs"] == 2
    proof = ("--answers", str(bench), "--reference-url", image_reference, "--output-json", str(output))
    assert run(IMAGE / "accuracy_checker" / "checker.py", *proof).returncode == 0
    document["samples"][0]["body"]["seed"] ^= 1
    bench.write_text(json.dumps(document))
    assert run(IMAGE / "accuracy_checker" / "checker.py", *proof).returncode == 1


@pytest.mark.parametrize("cheat", IMAGE_CHEATS)
def test_an_image_server_that_cheats_fails(cheat, image_reference, tmp_path):
    routes, case = IMAGE_CHEATS[cheat]
    with serving(routes) as url:
        output = tmp_path / "c.json"
        done = run(
            IMAGE / "accuracy_checker" / "checker.py",
            *("--url", url, "--reference-url", image_reference, "--size", "32x32", "--output-json", str(output)),
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert case in failed(output)


def test_the_benchmark_gives_no_number_for_one_image_for_all(tmp_path):
    with serving(images(lambda body: "")) as url:
        bench = tmp_path / "b.json"
        done = run(
            IMAGE / "benchmark" / "benchmark.py",
            *(
                "--url",
                url,
                "--size",
                "32x32",
                "--num-requests",
                "6",
                "--concurrency",
                "2",
                "--output-json",
                str(bench),
            ),
        )
    assert done.returncode == 1
    document = json.loads(bench.read_text())
    assert document["images_per_s"] is None
    assert "do not belong" in document["images_per_s_reason"]


def hear(pcm: bytes) -> str:
    """A word for every whole half second, by its samples: a partial is the beginning of the final text."""
    size = 16000
    pieces = [pcm[at : at + size] for at in range(0, len(pcm) - size + 1, size)]
    return " ".join(NAMES[int(hashlib.sha256(piece).hexdigest(), 16) % len(NAMES)] for piece in pieces)


def speech(final: Speak, partial: Speak | None) -> list[Any]:
    """A speech server that hears `final` in a clip and tells `partial` on the way."""

    async def file(request: web.Request) -> web.Response:
        form = await request.post()
        if "file" not in form:
            return web.json_response({"error": {"message": "file is missing"}}, status=400)
        return web.json_response({"text": final(form["file"].file.read()[44:])})  # type: ignore[union-attr]

    async def stream(request: web.Request) -> web.WebSocketResponse:
        socket, pcm = web.WebSocketResponse(), bytearray()
        await socket.prepare(request)
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                pcm += message.data
                if partial is not None:
                    await socket.send_json({"type": "partial", "text": partial(bytes(pcm))})
            else:
                await socket.send_json({"type": "final", "text": final(bytes(pcm))})
                break
        await socket.close()
        return socket

    return [web.post("/v1/audio/transcriptions", file), web.get("/v1/audio/stream", stream)]


SPEECH_CHEATS = {
    "one text for all": (speech(lambda _: "all is well with the old river", hear), "answers-depend-on-input"),
    "empty partials": (speech(hear, lambda _: ""), "answer"),
    "invented partials": (speech(hear, lambda _: "well well well"), "answer"),
    "no partials": (speech(hear, None), "answer"),
    "words left out": (speech(lambda pcm: " ".join(hear(pcm).split()[:-2]), hear), "reference"),
    "order lost": (speech(lambda pcm: " ".join(reversed(hear(pcm).split())), hear), "reference"),
}


def ask_speech(name: str, url: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A script of the speech bundle, over clips of noise at many times the pace of speech."""
    write_clips(folder / "clips")
    clips = ("--audio-dir", str(folder / "clips"), "--clip-s", "2.5", "--pace", "6")
    return run(SPEECH / name, "--url", url, *clips, *more, "--output-json", str(folder / "o.json"))


@pytest.fixture(scope="module")
def speech_reference() -> Iterator[str]:
    """The honest server."""
    with serving(speech(hear, hear)) as url:
        yield url


def test_an_honest_speech_server_passes(speech_reference, tmp_path):
    done = ask_speech("accuracy_checker/checker.py", speech_reference, tmp_path, "--reference-url", speech_reference)
    assert done.returncode == 0, done.stdout + done.stderr
    done = ask_speech(
        "benchmark/benchmark.py",
        speech_reference,
        tmp_path,
        "--way",
        "stream",
        "--num-requests",
        "4",
        "--concurrency",
        "2",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["completed"] == 4
    assert 0 < document["p50_ttft_s"] <= document["p50_latency_s"]


@pytest.mark.parametrize("cheat", SPEECH_CHEATS)
def test_a_speech_server_that_cheats_fails(cheat, speech_reference, tmp_path):
    routes, case = SPEECH_CHEATS[cheat]
    with serving(routes) as url:
        done = ask_speech("accuracy_checker/checker.py", url, tmp_path, "--reference-url", speech_reference)
    assert done.returncode == 1, done.stdout + done.stderr
    assert case in failed(tmp_path / "o.json") or "answer" in failed(tmp_path / "o.json")


def test_empty_partials_are_no_first_token(tmp_path):
    with serving(speech(hear, lambda _: "")) as url:
        done = ask_speech("benchmark/benchmark.py", url, tmp_path, "--way", "stream", "--num-requests", "3")
    document = json.loads((tmp_path / "o.json").read_text())
    assert done.returncode == 1
    assert document["completed"] == 0
    assert document["p50_ttft_s"] is None


def test_the_generic_scripts_are_the_same_in_every_bundle():
    bundles = [path.parent.parent for path in SERVING.glob("*/benchmark/contract.py")]
    assert len(bundles) >= 5
    for name in ("accuracy_checker/checker.py", "benchmark/benchmark.py"):
        # The defaults of flags are the bundle's own.
        texts = {re.sub(r"(?s)def parser\(.*?\ndef ", "", (bundle / name).read_text()) for bundle in bundles}
        assert len(texts) == 1, name
    for bundle in bundles:
        pair = {(bundle / place / "contract.py").read_bytes() for place in ("accuracy_checker", "benchmark")}
        assert len(pair) == 1, bundle
