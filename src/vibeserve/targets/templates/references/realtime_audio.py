# requires: torch>=2.6
# requires: transformers>=5.0
# requires: numpy>=2.0
"""The reference server: a model of transformers that hears and speaks, behind a WebSocket at /v1/realtime, one answer at a time.

python reference.py --model-dir model --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

from server import best_device, model_name

HERE = Path(__file__).resolve().parent
RATE = 24000
PIECE = RATE // 2  # bytes of a delta: a quarter of a second


class Model:
    """The class that config.json names, with its processor; audio in, audio out, greedily."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        import transformers

        self.torch, self.device = torch, device
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = getattr(transformers, config["architectures"][0])
        self.processor: Any = transformers.AutoProcessor.from_pretrained(folder)
        self.model: Any = kind.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()

    def answer(self, pcm: bytes, max_tokens: int) -> bytes:
        """24 kHz int16 PCM that answers 24 kHz int16 PCM."""
        import numpy as np

        heard = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
        rate = int(self.processor.feature_extractor.sampling_rate)
        heard = np.interp(np.arange(int(len(heard) * rate / RATE)) * RATE / rate, np.arange(len(heard)), heard)
        turns = [{"role": "user", "content": [{"type": "audio", "audio": "question"}]}]
        text = self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        inputs = self.processor(text=text, audio=[heard.astype(np.float32)], return_tensors="pt").to(self.device)
        with self.torch.inference_mode():
            _, audio = self.model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
        samples = np.asarray(audio.float().cpu(), dtype=np.float32).reshape(-1)
        return bytes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


async def converse(socket: Any, model: Model, turn: asyncio.Lock) -> None:
    """One connection: an input buffer, and a response for each time that one is asked for."""
    buffer, question = bytearray(), b""
    async for message in socket:
        event = json.loads(message.data)
        if event.get("type") == "input_audio_buffer.append":
            buffer += base64.b64decode(event["audio"])
        elif event.get("type") == "input_audio_buffer.commit":
            question = bytes(buffer)
            buffer.clear()
        elif event.get("type") == "response.create":
            if not question:
                error = {"type": "invalid_request_error", "message": "there is no audio to answer"}
                await socket.send_json({"type": "error", "error": error})
                continue
            limit = int((event.get("response") or {}).get("max_output_tokens") or 256)
            async with turn:
                audio = await asyncio.to_thread(model.answer, question, limit)
            for at in range(0, len(audio), PIECE):
                delta = base64.b64encode(audio[at : at + PIECE]).decode()
                await socket.send_json({"type": "response.audio.delta", "delta": delta})
            await socket.send_json({"type": "response.done", "response": {"status": "completed"}})


def serve(model: Model, name: str, host: str, port: int) -> None:
    """Serve until SIGTERM."""
    from aiohttp import web

    turn = asyncio.Lock()

    async def realtime(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=1 << 24)
        await socket.prepare(request)
        await converse(socket, model, turn)
        return socket

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"}]})

    app = web.Application()
    app.add_routes([web.get("/v1/realtime", realtime), web.get("/health", health), web.get("/v1/models", models)])
    web.run_app(app, host=host, port=port, print=None)


def main() -> int:
    """Serve, or answer once."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--model-dir", type=Path, default=HERE / "model", help="the weights (default: model beside this file)"
    )
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--device", default="cpu", help="cuda, mps, cpu or auto (default %(default)s)")
    p.add_argument("--dtype", default="float32", help="(default %(default)s)")
    p.add_argument("--prompt", type=Path, help="a file of 24 kHz int16 PCM: answer it once (PCM on stdout)")
    args = p.parse_args()
    model = Model(args.model_dir, best_device(args.device), args.dtype)
    if args.prompt:
        sys.stdout.buffer.write(model.answer(args.prompt.read_bytes(), 256))
        return 0
    serve(model, model_name(HERE), args.host, args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
