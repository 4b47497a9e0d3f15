"""What is asked of a speech server, and how two transcripts are compared.

Two ways: a WAV file by POST /v1/audio/transcriptions (multipart), and a WebSocket stream at /v1/audio/stream: 16 kHz mono
int16 PCM in binary messages at the pace of speech, then {"type": "finalize"}; {"type": "partial", "text"} and one
{"type": "final", "text"} come back. The same file lies beside checker.py and beside benchmark.py.

Speech is made when it is asked for: sentences that nobody has said before, spoken by espeak-ng (--audio-dir: pieces of
your own recordings, cut at random places, instead; then the true words are not known).
"""

from __future__ import annotations

import argparse
import array
import asyncio
import io
import json
import random
import re
import shutil
import subprocess
import sys
import time
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENDPOINT = "/v1/audio/transcriptions"
DISTANCE = "word error rate (edits per word)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 0.1, 0.1, 0.3
CASES = 4
AMOUNT = "audio_s_per_s"
TRUTH, MAX_MISSED = "word error rate against what was said", 0.7
TIMES: dict[str, Any] = {
    "ttft_s": lambda call: call.reply.first - call.scheduled if call.reply.first is not None else None,
    "finalize_s": lambda call: call.reply.done - call.reply.sent if call.case.way == "stream" else None,
}
MAX_TOKENS_IS = "not used by transcription; here since every benchmark takes it"
TEMPERATURE_IS = "sent with files; 0 is greedy (default %(default)s)"
PROMPT_LEN_IS = "words of each clip, about (default %(default)s)"
RATE = 16000

_PEOPLE = "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard hunter cook".split()
_PLACES = (
    "river market harbor forest village tower bridge garden station valley island castle desert school lake".split()
)
_THINGS = (
    "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel stone".split()
)
_VERBS = "found lost carried painted sold watched opened repaired traded broke borrowed cleaned followed".split()
_QUALITIES = "old small bright heavy quiet broken golden strange warm green narrow cheap rare empty soft tall".split()
_NUMBERS = "two three four five six seven eight nine ten twelve twenty thirty".split()


class CannotRunError(Exception):
    """It cannot be asked or measured at all: exit code 2, with a hint."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Case:
    """One clip: 16 kHz mono int16 PCM, the words that were said (empty: not known), and the way to ask."""

    name: str
    pcm: bytes = field(repr=False)
    said: tuple[str, ...] = ()
    way: str = "file"


@dataclass
class Reply:
    """What came: times in seconds on one clock; `values` are the transcript's words, `partials` (time, text)."""

    status: int = 0
    error: str = ""
    first: float | None = None
    sent: float = 0.0
    done: float = 0.0
    text: str = ""
    partials: list[tuple[float, str]] = field(default_factory=list)
    values: tuple[str, ...] = ()

    def shown(self) -> str:
        """In a few words."""
        return repr(self.text)


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--way", default="both", choices=("file", "stream", "both"), help="(default %(default)s, in turn)")
    p.add_argument("--stream-endpoint", default="/v1/audio/stream", help="of the WebSocket (default %(default)s)")
    p.add_argument("--chunk-s", type=float, default=0.5, help="seconds of audio in a message (default %(default)s)")
    p.add_argument("--pace", type=float, default=1.0, help="times the pace of speech (default %(default)s)")
    p.add_argument("--audio-dir", type=Path, help="WAV files to cut clips from, instead of synthesised speech")
    p.add_argument(
        "--clip-s", type=float, default=6.0, help="with --audio-dir: seconds of each clip (default %(default)s)"
    )


def words(text: str) -> tuple[str, ...]:
    """Lower-case words and numbers, punctuation left out."""
    return tuple(re.findall(r"[a-z0-9']+", text.lower().replace("-", " ")))


def sentence(generator: random.Random, count: int) -> str:
    """About `count` words that make sense to a speech model."""
    pick, parts = generator.choice, []
    while sum(len(part.split()) for part in parts) < count:
        who = f"the {pick(_QUALITIES)} {pick(_PEOPLE)} {pick(_VERBS)} {pick(_NUMBERS)} {pick(_QUALITIES)} {pick(_THINGS)}s"
        parts.append(f"{who} near the {pick(_PLACES)}")
    return ". ".join(part.capitalize() for part in parts) + "."


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A clip that nobody has heard before. Raises CannotRunError where nothing can speak."""
    number = re.search(r"\d+$", name)
    both = ("stream", "file")[int(number.group(0)) % 2 if number else 0]
    way = both if args.way == "both" else args.way
    if args.audio_dir is not None:
        return Case(name, piece(generator, args.audio_dir, args.clip_s), (), way)
    if shutil.which("espeak-ng") is None:
        raise CannotRunError(
            "espeak-ng is not installed: there is no speech", "apt-get install espeak-ng, or --audio-dir"
        )
    text = sentence(generator, getattr(args, "prompt_len", 12))
    voice = ["-v", generator.choice(("en-us", "en-gb"))]
    voice += ["-s", str(generator.randrange(130, 160)), "-p", str(generator.randrange(35, 65))]
    done = subprocess.run(["espeak-ng", *voice, "--stdout", text], capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise CannotRunError(f"espeak-ng fails: {done.stderr.decode('utf-8', 'replace').strip()[-200:]}")
    return Case(name, pcm_of(done.stdout), words(text), way)


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
    """16 kHz mono int16 PCM of a 16-bit WAV file (other rates by linear interpolation, channels averaged)."""
    try:
        samples = array.array("h")
        # A WAV that was written to a pipe says a length that is too long: what is there counts.
        with wave.open(io.BytesIO(data)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            raw = file.readframes(min(file.getnframes(), len(data)))
        if width != 2:
            raise ValueError(f"{8 * width} bits a sample instead of 16")
        samples.frombytes(raw[: len(raw) // (2 * channels) * 2 * channels])
    except (wave.Error, EOFError, ValueError) as error:
        raise CannotRunError(f"not a 16-bit WAV file: {error}") from None
    if sys.byteorder == "big":
        samples.byteswap()
    if channels > 1:
        samples = array.array(
            "h", (sum(samples[i : i + channels]) // channels for i in range(0, len(samples), channels))
        )
    if rate != RATE:
        count, last = int(len(samples) * RATE / rate), len(samples) - 1
        places = (i * rate / RATE for i in range(count))
        samples = array.array("h", (
            int(samples[int(at)] + (samples[min(int(at) + 1, last)] - samples[int(at)]) * (at - int(at))) for at in places
        ))  # fmt: skip
    return samples.tobytes()


def wav_of(pcm: bytes) -> bytes:
    """A WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm)
    return buffer.getvalue()


def other_seed(case: Case, generator: random.Random) -> Case | None:
    """A transcript has no seed."""
    return None


def other_way(case: Case) -> Case | None:
    """The same clip as a file where it was streamed: the same words."""
    return Case(f"{case.name}/as-file", case.pcm, case.said, "file") if case.way == "stream" else None


def broken(case: Case) -> Case:
    """A request that must be refused: no file."""
    return Case("broken", b"", (), "file")


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once. What goes wrong is in `error`."""
    import aiohttp

    reply = Reply()
    try:
        if case.way == "stream":
            await stream(session, url.rstrip("/") + args.stream_endpoint, case, args, reply)
        else:
            form = aiohttp.FormData({"model": "whisper-1", "response_format": "json"})
            form.add_field("temperature", str(getattr(args, "temperature", 0.0)))
            if case.pcm:
                form.add_field("file", wav_of(case.pcm), filename="clip.wav", content_type="audio/wav")
            async with session.post(url.rstrip("/") + endpoint, data=form) as response:
                reply.status, raw = response.status, await response.read()
            if reply.status != 200:
                raise ValueError(f"HTTP {reply.status}: {raw[:200].decode('utf-8', 'replace')}")
            reply.text = str(json.loads(raw)["text"])
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.done = reply.done or time.perf_counter()
    return reply


async def stream(session: Any, url: str, case: Case, args: argparse.Namespace, reply: Reply) -> None:
    """Send a clip at the pace of speech, and take what comes meanwhile."""
    async with session.ws_connect(url, max_msg_size=1 << 22) as socket:
        reply.status = 101

        async def take() -> None:
            async for message in socket:
                event = json.loads(message.data)
                if event.get("type") == "partial":
                    reply.partials.append((time.perf_counter(), str(event["text"])))
                elif event.get("type") == "final":
                    reply.text, reply.done = str(event["text"]), time.perf_counter()
                    return
                elif event.get("type") == "error":
                    raise ValueError(f"the server says: {event.get('message')}")
            raise ValueError("the stream ended without a final text")

        taking = asyncio.ensure_future(take())
        try:
            size, start = 2 * max(1, int(args.chunk_s * RATE)), time.perf_counter()
            for at in range(0, len(case.pcm), size):
                # A chunk can be sent when its last sample has been spoken.
                spoken = min(at + size, len(case.pcm)) / 2 / RATE / args.pace
                await asyncio.sleep(max(0.0, start + spoken - time.perf_counter()))
                if taking.done():
                    break
                await socket.send_bytes(case.pcm[at : at + size])
            await socket.send_str(json.dumps({"type": "finalize"}))
            reply.sent = time.perf_counter()
            await asyncio.wait_for(taking, getattr(args, "timeout", 600.0))
        finally:
            taking.cancel()


def read(case: Case, reply: Reply) -> None:
    """Open what came: the words, and when the first partial came that has some of them. Empty or invented ones are none."""
    reply.values = words(reply.text)
    belonging = [at for at, text in reply.partials if (said := words(text)) and begins(said, reply.values)]
    reply.first = belonging[0] if belonging else None


def begins(partial: tuple[str, ...], final: tuple[str, ...]) -> bool:
    """Whether the words of a partial are, by half at least, the first words of the final text."""
    nearest = min(edits(partial, final[:n]) for n in range(max(0, len(partial) - 1), len(partial) + 2))
    return nearest <= len(partial) // 2


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    if not reply.values:
        return "no words in the answer"
    if case.way == "file" or len(case.pcm) / 2 / RATE < 2.0:
        return ""
    before = [text for at, text in reply.partials if at <= reply.sent]
    if not any(words(text) for text in before):
        return f"no partial with words before the end of the clip ({len(reply.partials)} partials came)"
    if reply.first is None:
        return f"no partial begins as the final text does: {before[-1]!r} and {reply.text!r}"
    return ""


def edits(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The fewest insertions, deletions and replacements of words between two texts."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def distance(a: Reply, b: Reply) -> float:
    """Word error rate of `a` where `b` is right (edits over the words of b)."""
    return edits(a.values, b.values) / max(1, len(b.values))


def truth(case: Case, reply: Reply) -> float | None:
    """Word error rate against what was said; None where that is not known."""
    return edits(reply.values, case.said) / len(case.said) if case.said else None


def amount(case: Case, reply: Reply) -> float:
    """Seconds of audio."""
    return len(case.pcm) / 2 / RATE


def to_sample(case: Case, reply: Reply) -> dict[str, Any]:
    """A whole answer, with its clip, for the benchmark's JSON."""
    import base64

    clip = base64.b64encode(case.pcm).decode()
    return {"name": case.name, "pcm": clip, "said": list(case.said), "way": case.way, "text": reply.text}


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """The other way round."""
    import base64

    case = Case(sample["name"], base64.b64decode(sample["pcm"]), tuple(sample["said"]), sample["way"])
    reply = Reply(200, text=sample["text"])
    read(case, reply)
    return case, reply
