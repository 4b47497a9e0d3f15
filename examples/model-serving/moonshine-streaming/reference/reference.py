"""The reference server: a speech model behind OpenAI's transcription API and a WebSocket, one clip at a time.

    python reference.py --model-dir model --host 127.0.0.1 --port 8000
    python reference.py --prompt clip.wav

Whisper in CTranslate2's format (a model.bin) runs in faster-whisper; any other checkpoint in transformers' own classes.
Both are greedy. A stream is transcribed anew, from its beginning, whenever another second of audio has come: that is
what a user has on day one, and where a streaming engine can do better.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RATE = 16000
PARTIAL_EVERY_S = 1.0


class Whisper:
    """faster-whisper, greedy, fp32 on a CPU."""

    def __init__(self, folder: Path, device: str, dtype: str):
        from faster_whisper import WhisperModel

        self.model = WhisperModel(str(folder), device="cpu" if device == "mps" else device, compute_type=dtype)

    def text(self, audio: Any) -> str:
        """The words of 16 kHz float samples."""
        pieces, _ = self.model.transcribe(
            audio, language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False
        )
        return "".join(piece.text for piece in pieces).strip()


class Seq2Seq:
    """A speech model of transformers (Moonshine, Whisper …), greedy."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

        self.torch, self.dtype = torch, getattr(torch, dtype)
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        model: Any = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=self.dtype)
        self.model = model.eval().to(self.device)

    def text(self, audio: Any) -> str:
        """The words of 16 kHz float samples; at most about seven tokens a second of speech."""
        inputs = self.processor(audio, sampling_rate=RATE, return_tensors="pt").to(self.device)
        inputs = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        with self.torch.inference_mode():
            ids = self.model.generate(**inputs, do_sample=False, max_new_tokens=max(8, int(7 * len(audio) / RATE)))
        return str(self.processor.batch_decode(ids, skip_special_tokens=True)[0]).strip()


def load(folder: Path, device: str, dtype: str) -> Whisper | Seq2Seq:
    """The model in a folder."""
    return (Whisper if (folder / "model.bin").is_file() else Seq2Seq)(folder, device, dtype)


def samples_of(pcm: bytes) -> Any:
    """int16 PCM as float samples from -1 to 1."""
    import numpy as np

    return np.frombuffer(pcm[: len(pcm) // 2 * 2], dtype="<i2").astype(np.float32) / 32768


def pcm_of(data: bytes) -> bytes:
    """The PCM of a 16 kHz mono 16-bit WAV file. Raises ValueError for anything else."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise ValueError("not 16 kHz, mono, 16 bits")
            return file.readframes(min(file.getnframes(), len(data)))
    except (wave.Error, EOFError) as error:
        raise ValueError(str(error)) from None


def application(model: Whisper | Seq2Seq, name: str) -> Any:
    """The web application; the model works in a thread of its own, in the order in which clips came."""
    from aiohttp import WSMsgType, web

    turn = ThreadPoolExecutor(1)

    async def transcribe(pcm: bytes) -> str:
        return await asyncio.get_running_loop().run_in_executor(turn, lambda: model.text(samples_of(pcm)))

    def refused(message: str, param: str) -> Any:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
        return web.json_response({"error": error}, status=400)

    async def health(_: Any) -> Any:
        return web.json_response({"status": "ok"})

    async def models(_: Any) -> Any:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"}]})

    async def file(request: Any) -> Any:
        form = await request.post() if request.content_type == "multipart/form-data" else {}
        part = form.get("file")
        if not hasattr(part, "file"):
            return refused("file is missing", "file")
        kind = form.get("response_format", "json")
        if kind not in ("json", "text"):
            return refused("response_format must be json or text", "response_format")
        try:
            pcm = pcm_of(part.file.read())
        except ValueError as error:
            return refused(f"file is not a WAV file that this server reads: {error}", "file")
        text = await transcribe(pcm) if pcm else ""
        return web.json_response({"text": text}) if kind == "json" else web.Response(text=text)

    async def stream(request: Any) -> Any:
        socket = web.WebSocketResponse(max_msg_size=1 << 22)
        await socket.prepare(request)
        pcm, told = bytearray(), 0
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                pcm += message.data
                if len(pcm) - told >= 2 * RATE * PARTIAL_EVERY_S:
                    told = len(pcm)
                    await socket.send_json({"type": "partial", "text": await transcribe(bytes(pcm))})
            elif message.type == WSMsgType.TEXT:
                try:
                    wanted = json.loads(message.data).get("type")
                except (ValueError, AttributeError):
                    wanted = None
                if wanted != "finalize":
                    await socket.send_json({"type": "error", "message": "only finalize is known"})
                    break
                await socket.send_json({"type": "final", "text": await transcribe(bytes(pcm)) if pcm else ""})
                break
        await socket.close()
        return socket

    app = web.Application(client_max_size=1 << 28)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/audio/transcriptions", file)
    app.router.add_get("/v1/audio/stream", stream)
    return app


def main() -> int:
    """Serve, or transcribe one file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--model-dir", type=Path, default=HERE / "model", help="the weights (default: model beside this file)"
    )
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--device", default="auto", help="cpu, cuda, mps, or auto (default %(default)s)")
    p.add_argument("--dtype", default="bfloat16", help="(default %(default)s)")
    p.add_argument("--prompt", type=Path, metavar="WAV", help="transcribe this file instead of serving")
    args = p.parse_args()
    model = load(args.model_dir, args.device, args.dtype)
    if args.prompt is not None:
        try:
            print(model.text(samples_of(pcm_of(args.prompt.read_bytes()))))
        except (OSError, ValueError) as error:
            print(f"error: {args.prompt}: {error}", file=sys.stderr)
            return 2
        return 0
    from aiohttp import web

    meta = json.loads((HERE / "meta.json").read_text(encoding="utf-8")) if (HERE / "meta.json").is_file() else {}
    app = application(model, meta.get("model_id", args.model_dir.name))
    web.run_app(app, host=args.host, port=args.port, access_log=None, shutdown_timeout=2.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
