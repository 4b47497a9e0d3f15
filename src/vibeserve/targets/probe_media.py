"""A tiny server for every contract that is not text: pictures, transcripts, vectors, speech and video made of a hash.

What it answers depends on the request alone (`varied`), or on nothing (`constant`): enough to see that a benchmark writes
its metric and that a checker sees through a server that answers always alike. It computes no model.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import re
import struct
import threading
import wave
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from vibeserve.targets.probe import ProbeServer

_SAMPLE_RATE = 16000
_WORDS = "river market harbor forest village tower bridge garden station valley island castle desert lake"


def _png(generator: random.Random, width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + generator.randbytes(width) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _size(body: dict[str, Any]) -> tuple[int, int]:
    width, _, height = str(body.get("size", "64x64")).partition("x")
    return int(width), int(height)


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


def _images(generator: random.Random, body: dict[str, Any]) -> tuple[str, bytes]:
    return _json({"data": [{"b64_json": base64.b64encode(_png(generator, *_size(body))).decode()}]})


def _transcript(generator: random.Random, _: dict[str, Any]) -> tuple[str, bytes]:
    return _json({"text": " ".join(generator.choices(_WORDS.split(), k=12))})


def _chat(generator: random.Random, body: dict[str, Any]) -> tuple[str, bytes]:
    wanted = body.get("response_format") or {}
    if wanted.get("type") in ("json_schema", "json_object"):
        schema = (wanted.get("json_schema") or {}).get("schema") or {"type": "object"}
        said = " ".join(str(message.get("content", "")) for message in body.get("messages", ()))
        text = json.dumps(_value(generator, schema, re.findall(r"\w+", said)))
    else:
        text = " ".join(generator.choices(_WORDS.split(), k=12))
    if not body.get("stream"):
        return _json({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})
    half = len(text) // 2
    parts: list[dict[str, Any]] = [{"delta": {"content": text[:half]}}, {"delta": {"content": text[half:]}}]
    parts.append({"delta": {}, "finish_reason": "stop"})
    events = [json.dumps({"choices": [{"index": 0, **part}]}) for part in parts]
    return "text/event-stream", "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def _value(generator: random.Random, schema: dict[str, Any], said: list[str]) -> Any:
    """A value by a plain schema: the first word of `said` that fits where there is one, else by chance."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return next((choice for choice in schema["enum"] if choice in said), generator.choice(schema["enum"]))
    if "anyOf" in schema:
        return _value(generator, generator.choice(schema["anyOf"]), said)
    kind = schema.get("type", "string")
    if kind == "object":
        return {name: _value(generator, inner, said) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        count = generator.randint(schema.get("minItems", 0), schema.get("maxItems", 3))
        return [_value(generator, schema.get("items", {}), []) for _ in range(count)]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
        numbers = [int(word) for word in said if word.isdigit() and low <= int(word) <= high]
        return numbers[0] if numbers else generator.randint(low, high)
    if kind == "string":
        fitting = [word for word in said if re.search(schema.get("pattern", ""), word)]
        return fitting[0] if fitting and "pattern" in schema else generator.choice(_WORDS.split())
    return generator.random() < 0.5 if kind == "boolean" else None


def _vector(generator: random.Random, _: dict[str, Any]) -> tuple[str, bytes]:
    return _json({"data": [{"index": 0, "embedding": [generator.gauss(0, 1) for _ in range(32)]}]})


def _scores(generator: random.Random, _: dict[str, Any]) -> tuple[str, bytes]:
    first = generator.uniform(0.05, 0.95)
    return _json({"data": [{"index": 0, "label": "A", "probs": [first, 1 - first], "num_classes": 2}]})


def _speech(generator: random.Random, body: dict[str, Any]) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SAMPLE_RATE)
        for _ in range(2 * max(1, len(str(body.get("input", "")).split()))):
            loud = generator.randrange(1000, 30000)
            file.writeframes(struct.pack("<h", loud) * (_SAMPLE_RATE // 5))
    return "audio/wav", buffer.getvalue()


def _video(generator: random.Random, body: dict[str, Any]) -> tuple[str, bytes]:
    (width, height), count = _size(body), int(body.get("frames", 4))
    frames = base64.b64encode(generator.randbytes(3 * width * height * count)).decode()
    return _json({"data": [{"frames": frames, "count": count, "height": height, "width": width}]})


ANSWERS: dict[str, Callable[[random.Random, dict[str, Any]], tuple[str, bytes]]] = {
    "/v1/images/generations": _images, "/v1/audio/transcriptions": _transcript, "/v1/chat/completions": _chat,
    "/v1/embeddings": _vector, "/v1/audio/speech": _speech, "/v1/videos": _video, "/classify": _scores,
}  # fmt: skip
MEDIA_APIS = (
    "openai-images", "openai-transcriptions", "websocket-audio", "openai-chat", "openai-embeddings", "openai-speech",
    "openai-videos",
)  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    varied: bool

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send("application/json", b'{"status": "ok", "data": [{"id": "probe"}]}')

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body: dict[str, Any] = json.loads(raw)
            key = raw
        except ValueError:  # a form: its boundary is drawn anew each time, the file is what counts
            body, at = {}, raw.find(b"RIFF")
            key = raw[at:].partition(b"\r\n--")[0] if at >= 0 else b""
        make = ANSWERS.get(self.path)
        if make is None:
            self._send("application/json", b"{}", 404)
            return
        if not type(self).varied:  # a schema is filled in without a look at what is asked
            body = {name: value for name, value in body.items() if name != "messages"}
        seed = hashlib.sha256(key).hexdigest() if type(self).varied else "constant"
        self._send(*make(random.Random(seed), body))

    def _send(self, kind: str, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def media_server(*, varied: bool) -> Iterator[str]:
    """Serve on a free port of this machine; gives the URL."""
    server = ProbeServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"varied": varied}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_clips(folder: Path, count: int = 4) -> None:
    """WAV files of noise, so that a speech bundle can be tried where nothing speaks."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        with wave.open(str(folder / f"{index}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(_SAMPLE_RATE)
            file.writeframes(random.Random(index).randbytes(2 * 3 * _SAMPLE_RATE))
