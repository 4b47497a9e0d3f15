"""The reference server: a trained consistency model (ONNX) that draws height maps, behind OpenAI's image API.

    python reference.py --model-dir model --host 127.0.0.1 --port 8000
    python reference.py --prompt "terrain of difficulty 40" --output map.png

One image at a time, in the order in which requests came. The prompt holds a number from 1 to 100, the roughness of the
terrain, which is the network's condition; the seed decides the noise. The height maps are 128x128 and grey.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import signal
import struct
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIDE = 128  # what the network was trained on
SIGMA_MAX, SIGMA_MIN, CLASSES = 80.0, 0.002, 100
MAX_BODY_BYTES = 1 << 20


class ApiError(Exception):
    """An error in OpenAI's shape; `param` is the field that it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": None}}


class Model:
    """The denoiser: noisy image, noise level and roughness in; image out."""

    def __init__(self, folder: Path):
        import onnxruntime

        files = sorted(folder.glob("*.onnx"))
        if len(files) != 1:
            raise SystemExit(f"error: {folder} holds {len(files)} .onnx files, one is expected")
        self.session = onnxruntime.InferenceSession(str(files[0]), providers=["CPUExecutionProvider"])
        self.name = files[0].stem

    def draw(self, roughness: int, seed: int, steps: int) -> bytes:
        """SIDE x SIDE grey levels. Multistep consistency sampling: denoise, add less noise, denoise again."""
        import numpy as np

        generator = np.random.default_rng(seed)
        condition = np.array([(roughness - 1) / (CLASSES - 1)], dtype=np.float32)
        image = np.zeros((1, 1, SIDE, SIDE), dtype=np.float32)
        for step in range(steps):
            sigma = np.float32(SIGMA_MAX * (SIGMA_MIN / SIGMA_MAX) ** (step / (2 * steps)))
            noise = generator.standard_normal(image.shape, dtype=np.float32)
            feeds = {"noisy": image + sigma * noise, "sigma": np.array([sigma]), "difficulty": condition}
            image = self.session.run(["denoised"], feeds)[0]
        levels = np.clip((image[0, 0] + 1.0) * 127.5, 0, 255).round().astype(np.uint8)
        return bytes(levels.tobytes())


def png(levels: bytes, side: int) -> bytes:
    """A grey 8-bit PNG."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + levels[at : at + side] for at in range(0, len(levels), side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def whole(body: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A whole number of the request, within its bounds."""
    value = body.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ApiError(f"{name} must be a whole number from {low} to {high}", name)
    return value


def parse(body: Any) -> tuple[int, int, int, int]:
    """(roughness, seed, steps, images) of a request."""
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise ApiError("prompt is missing", "prompt")
    number = re.search(r"\b(\d+)\b", prompt)
    if number is None or not 1 <= int(number.group(1)) <= CLASSES:
        raise ApiError(f"the prompt names no roughness from 1 to {CLASSES}", "prompt")
    if body.get("size", f"{SIDE}x{SIDE}") != f"{SIDE}x{SIDE}":
        raise ApiError(f"size must be {SIDE}x{SIDE}", "size")
    if body.get("response_format", "b64_json") != "b64_json":
        raise ApiError("response_format must be b64_json", "response_format")
    fresh = int(time.time_ns() & 0x7FFFFFFF)
    seed, steps = whole(body, "seed", fresh, 0, (1 << 32) - 1), whole(body, "num_inference_steps", 2, 1, 64)
    return int(number.group(1)), seed, steps, whole(body, "n", 1, 1, 8)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    model: Model
    turn = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """No access log."""

    def do_GET(self) -> None:
        """Health and the list of models."""
        if self.path == "/health":
            self.send_json(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.send_json(200, {"object": "list", "data": [{"id": self.model.name, "object": "model"}]})
        else:
            self.send_json(404, {"error": {"message": f"no such path: {self.path}", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        """Draw."""
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if size > MAX_BODY_BYTES:
                self.close_connection = True
                raise ApiError("the body is too large", status=413)
            try:
                body = json.loads(self.rfile.read(size))
            except ValueError:
                raise ApiError("the body is not JSON") from None
            if self.path != "/v1/images/generations":
                raise ApiError(f"no such path: {self.path}", status=404)
            roughness, seed, steps, count = parse(body)
            with self.turn:
                images = [png(self.model.draw(roughness, seed + i, steps), SIDE) for i in range(count)]
            data = [{"b64_json": base64.b64encode(image).decode()} for image in images]
            self.send_json(200, {"created": int(time.time()), "data": data})
        except ApiError as error:
            self.send_json(error.status, error.body)

    def send_json(self, status: int, value: Any) -> None:
        """Send a JSON body."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that breaks off is no news."""


def main() -> int:
    """Serve, or draw once."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model-dir", type=Path, default=HERE / "model", help="the folder with the .onnx file")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--prompt", help="draw once instead of serving")
    p.add_argument("--seed", type=int, default=0, help="with --prompt (default 0)")
    p.add_argument("--output", type=Path, default=Path("image.png"), help="with --prompt (default image.png)")
    args = p.parse_args()
    model = Model(args.model_dir)
    if args.prompt:
        try:
            roughness, seed, steps, _ = parse({"prompt": args.prompt, "seed": args.seed})
        except ApiError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        args.output.write_bytes(png(model.draw(roughness, seed, steps), SIDE))
        print(args.output)
        return 0
    server = Server((args.host, args.port), type("Bound", (Handler,), {"model": model}))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving {model.name} on http://{args.host}:{server.server_address[1]}", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
