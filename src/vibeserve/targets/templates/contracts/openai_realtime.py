"""What is asked of a server that is spoken to and speaks: a WebSocket at /v1/realtime, audio in, audio out.

A spoken question is appended to the input buffer, committed, and a response asked for; its audio comes back in pieces. Audio is
24 kHz mono int16 PCM both ways. Two answers are compared by their loudness over time (steps of 20 ms); what is said in them is
not listened to. Questions are spoken by espeak-ng, or cut from recordings (--audio-dir).
"""

from __future__ import annotations

import argparse
import array
import base64
import io
import json
import math
import random
import shutil
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import Any

from wire import CannotRunError, Case, Reply, case_of, no_other, sample_of

ENDPOINT = "/v1/realtime"
DISTANCE = "of loudness over time (root mean square difference, as a share of the reference's)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 0.1, 0.1, 0.2
CASES = 4
AMOUNT = "audio_s_per_s"
TRUTH, MAX_MISSED = "", 0.0
TIMES: dict[str, Any] = {
    "ttft_s": lambda call: call.reply.first - call.scheduled if call.reply.first is not None else None,
}
MAX_TOKENS_IS = "of the response, at most (default %(default)s)"
TEMPERATURE_IS = "0 asks for the likeliest answer (default %(default)s)"
PROMPT_LEN_IS = "words of each spoken question, about (default %(default)s)"
RATE = 24000

_PEOPLE = [
    "baker",
    "sailor",
    "doctor",
    "teacher",
    "farmer",
    "painter",
    "miller",
    "driver",
    "singer",
    "judge",
    "nurse",
    "pilot",
    "guard",
    "hunter",
    "cook",
]
_PLACES = [
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
_THINGS = [
    "lamp",
    "rope",
    "clock",
    "letter",
    "basket",
    "hammer",
    "mirror",
    "candle",
    "ring",
    "map",
    "bottle",
    "drum",
    "coat",
    "key",
    "bell",
    "book",
    "wheel",
]

__all__ = ["CannotRunError", "Case", "Reply"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--model", default="", help="the model's name in the address (default: left out)")
    p.add_argument("--chunk-s", type=float, default=0.1, help="seconds of audio in a message (default %(default)s)")
    p.add_argument("--audio-dir", type=Path, help="WAV files to cut questions from, instead of synthesised speech")
    p.add_argument(
        "--clip-s", type=float, default=4.0, help="with --audio-dir: seconds of each question (default %(default)s)"
    )


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A question that nobody has heard before. Raises CannotRunError where nothing can speak."""
    if args.audio_dir is not None:
        pcm = piece(generator, args.audio_dir, args.clip_s)
    elif shutil.which("espeak-ng") is None:
        raise CannotRunError(
            "espeak-ng is not installed: there is no speech", "apt-get install espeak-ng, or --audio-dir"
        )
    else:
        pick = generator.choice
        text = f"Where did the {pick(_PEOPLE)} leave {generator.randrange(2, 90)} {pick(_THINGS)}s?"
        while len(text.split()) < getattr(args, "prompt_len", 12):
            text += f" Was it near the {pick(_PLACES)} of the {pick(_PEOPLE)}?"
        voice = ["-s", str(generator.randrange(130, 160)), "-p", str(generator.randrange(35, 65))]
        done = subprocess.run(["espeak-ng", *voice, "--stdout", text], capture_output=True, check=False, timeout=60)
        if done.returncode != 0:
            raise CannotRunError(f"espeak-ng fails: {done.stderr.decode('utf-8', 'replace').strip()[-200:]}")
        pcm = pcm_of(done.stdout)
    body = {
        "audio": base64.b64encode(pcm).decode(), "model": args.model, "temperature": getattr(args, "temperature", 0.0),
        "max_output_tokens": getattr(args, "max_tokens", 128),
    }  # fmt: skip
    return Case(name, body)


def piece(generator: random.Random, folder: Path, seconds: float) -> bytes:
    """A piece of one of the recordings, cut at a random place."""
    files = sorted(folder.glob("*.wav"))
    if not files:
        raise CannotRunError(f"--audio-dir {folder}: holds no .wav files")
    pcm = pcm_of(generator.choice(files).read_bytes())
    length = min(len(pcm), 2 * int(seconds * RATE))
    start = 2 * generator.randrange((len(pcm) - length) // 2 + 1)
    return pcm[start : start + length]


def pcm_of(data: bytes) -> bytes:
    """24 kHz mono int16 PCM of a 16-bit mono WAV file, other rates by linear interpolation."""
    try:
        # A WAV that was written to a pipe says a length that is too long: what is there counts.
        with wave.open(io.BytesIO(data)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            raw = file.readframes(min(file.getnframes(), len(data)))
        if width != 2 or channels != 1:
            raise ValueError(f"{8 * width} bits a sample, {channels} channels")
    except (wave.Error, EOFError, ValueError) as error:
        raise CannotRunError(f"not a 16-bit mono WAV file: {error}") from None
    samples = sound(raw)
    count, last = int(len(samples) * RATE / rate), len(samples) - 1
    places = (i * rate / RATE for i in range(count))
    moved = array.array("h", (
        int(samples[int(at)] + (samples[min(int(at) + 1, last)] - samples[int(at)]) * (at - int(at))) for at in places
    ))  # fmt: skip
    if sys.byteorder == "big":
        moved.byteswap()
    return moved.tobytes()


def sound(pcm: bytes) -> Any:
    """Samples of little-endian int16 PCM."""
    samples = array.array("h", pcm[: len(pcm) // 2 * 2])
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


other_seed = no_other
other_way = no_other


def broken(case: Case) -> Case:
    """A request that must be refused: a commit without audio."""
    return Case("broken", {**case.body, "audio": ""})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once; what came is opened by `read`, after the clocks have stopped. An `error` event counts as a refusal (400)."""
    import aiohttp

    reply = Reply()
    address = url.rstrip("/") + endpoint + (f"?model={case.body['model']}" if case.body["model"] else "")
    try:
        async with session.ws_connect(address, max_msg_size=1 << 24) as socket:
            reply.status = 101
            await speak(socket, case, args.chunk_s)
            await listen(socket, reply)
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
        reply.error = reply.error or f"{type(error).__name__}: {error}"
    reply.done = time.perf_counter()
    return reply


async def speak(socket: Any, case: Case, chunk_s: float) -> None:
    """Send the question and ask for the answer."""
    pcm, size = base64.b64decode(case.body["audio"]), 2 * max(1, int(chunk_s * RATE))
    for at in range(0, len(pcm), size):
        part = base64.b64encode(pcm[at : at + size]).decode()
        await socket.send_json({"type": "input_audio_buffer.append", "audio": part})
    await socket.send_json({"type": "input_audio_buffer.commit"})
    wanted = {name: case.body[name] for name in ("temperature", "max_output_tokens")}
    await socket.send_json({"type": "response.create", "response": {"modalities": ["audio", "text"], **wanted}})


async def listen(socket: Any, reply: Reply) -> None:
    """Take what comes until the response is done."""
    pieces = []
    async for message in socket:
        event = json.loads(message.data)
        if event["type"] in ("response.audio.delta", "response.output_audio.delta"):
            pieces.append(base64.b64decode(event["delta"]))
            if reply.first is None and pieces[-1]:
                reply.first = time.perf_counter()
        elif event["type"] == "error":
            reply.status = 400
            raise ValueError(f"the server says: {event.get('error')}")
        elif event["type"] == "response.done":
            reply.raw = b"".join(pieces)
            return
    raise ValueError("the connection ended before the response was done")


def read(case: Case, reply: Reply) -> None:
    """Loudness in steps of 20 ms."""
    if reply.error or len(reply.values):
        return
    samples, step = sound(reply.raw), RATE // 50
    reply.values = [
        math.sqrt(sum(x * x for x in samples[at : at + step]) / step) for at in range(0, len(samples), step)
    ]
    reply.shape = (len(samples), RATE)


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    if not reply.values:
        return "no audio came"
    return "" if max(reply.values) > 50 else "silence"


def distance(a: Reply, b: Reply) -> float:
    """Root mean square difference of loudness over time, the shorter one filled with silence, over the second one's."""
    count = max(len(a.values), len(b.values))
    x, y = ([*r.values, *[0.0] * (count - len(r.values))] for r in (a, b))
    whole = math.sqrt(sum(v * v for v in y)) or 1.0
    return math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y, strict=True))) / whole


def truth(case: Case, reply: Reply) -> float | None:
    """Nothing is known of an answer but the reference's."""
    return None


def amount(case: Case, reply: Reply) -> float:
    """Seconds of audio."""
    return reply.shape[0] / reply.shape[1]


to_sample = sample_of


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """An answer out of the benchmark's JSON."""
    case, reply = case_of(sample)
    read(case, reply)
    return case, reply
