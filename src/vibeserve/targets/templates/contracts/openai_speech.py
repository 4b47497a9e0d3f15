"""What is asked of a server that speaks: POST /v1/audio/speech, a WAV file back.

Two recordings are compared by their loudness over time (steps of 20 ms), which differs from sentence to sentence; what is said
in them is not listened to.
"""

from __future__ import annotations

import argparse
import array
import io
import math
import random
import sys
import wave
from typing import Any

from wire import CannotRunError, Case, Reply, case_of, no_other, post, sample_of

ENDPOINT = "/v1/audio/speech"
DISTANCE = "of loudness over time (root mean square difference, as a share of the reference's)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 0.1, 0.1, 0.2
CASES = 4
AMOUNT = "audio_s_per_s"
TRUTH, MAX_MISSED = "", 0.0
TIMES: dict[str, Any] = {}
MAX_TOKENS_IS = "not used by this API; here since every benchmark takes it"
TEMPERATURE_IS = "not used by this API"
PROMPT_LEN_IS = "words of each input, about (default %(default)s)"

_PEOPLE = "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard hunter cook"
_PLACES = "river market harbor forest village tower bridge garden station valley island castle desert lake"
_THINGS = "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel"
_VERBS = "found lost carried painted sold watched opened repaired traded broke borrowed cleaned followed"
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak"

__all__ = ["CannotRunError", "Case", "Reply"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--model", default="", help="the model's name in requests (default: left out)")
    p.add_argument("--voice", default="default", help="(default %(default)s)")


def sentence(generator: random.Random, count: int) -> str:
    """About `count` words about an invented name that nobody has used before."""
    pick, name = generator.choice, "".join(generator.sample(_SYLLABLES.split(), 3)).capitalize()
    text = f"{name} the {pick(_PEOPLE.split())} {pick(_VERBS.split())} a {pick(_THINGS.split())} near the {pick(_PLACES.split())}"
    while len(text.split()) < count:
        text += f" and {pick(_VERBS.split())} the {pick(_THINGS.split())} of a {pick(_PEOPLE.split())}"
    return text + "."


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A fresh input."""
    body = {
        "input": sentence(generator, getattr(args, "prompt_len", 16)),
        "voice": args.voice,
        "response_format": "wav",
        "seed": 0,
    }
    return Case(name, {**body, "model": args.model} if args.model else body)


other_seed = no_other
other_way = no_other


def broken(case: Case) -> Case:
    """A request that must be refused: no input."""
    return Case("broken", {key: value for key, value in case.body.items() if key != "input"})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once; what came is opened by `read`, after the clocks have stopped."""
    return await post(session, url, endpoint, case.body)


def read(case: Case, reply: Reply) -> None:
    """Open what came; an answer that is none gets an error."""
    if reply.error or len(reply.values):
        return
    try:
        with wave.open(io.BytesIO(reply.raw)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            data = file.readframes(min(file.getnframes(), len(reply.raw)))
        if width != 2:
            raise ValueError(f"{8 * width} bits a sample instead of 16")
        samples = array.array("h", data[: len(data) // (2 * channels) * 2 * channels])
        if sys.byteorder == "big":
            samples.byteswap()
        samples, step = samples[::channels], max(1, rate // 50)
        reply.values = [
            math.sqrt(sum(x * x for x in samples[at : at + step]) / step) for at in range(0, len(samples), step)
        ]
        reply.shape = (len(samples), rate)
    except (wave.Error, EOFError, ValueError) as error:
        reply.error = f"no WAV file: {type(error).__name__}: {error}"


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    seconds, words = reply.shape[0] / reply.shape[1], len(case.body["input"].split())
    if not 0.1 * words <= seconds <= 2.0 * words:
        return f"{seconds:.2f} s of audio for {words} words"
    return "" if max(reply.values, default=0.0) > 50 else "silence"


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
