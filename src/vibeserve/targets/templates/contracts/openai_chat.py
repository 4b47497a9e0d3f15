"""What is asked of a server that answers questions about pictures: POST /v1/chat/completions with an image_url part.

The pictures are drawn when they are asked for: coloured squares on a ground, other ones each time.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import struct
import zlib
from typing import Any

from wire import CannotRunError, Case, Reply, case_of, no_other, post, sample_of

ENDPOINT = "/v1/chat/completions"
DISTANCE = "word error rate (edits per word of the reference's answer)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 0.0, 0.0, 0.05
CASES = 4
AMOUNT = "answers_per_s"
TRUTH, MAX_MISSED = "", 0.0
TIMES: dict[str, Any] = {}
MAX_TOKENS_IS = "tokens of each answer, at most (default %(default)s)"
TEMPERATURE_IS = "0 is greedy (default %(default)s)"
PROMPT_LEN_IS = "words of each question, about (default %(default)s)"

_PEOPLE = "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard hunter cook"
_PLACES = "river market harbor forest village tower bridge garden station valley island castle desert lake"
_THINGS = "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel"
_VERBS = "found lost carried painted sold watched opened repaired traded broke borrowed cleaned followed"
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak"

__all__ = ["CannotRunError", "Case", "Reply"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--model", default="", help="the model's name in requests (default: left out)")
    p.add_argument("--side", type=int, default=224, help="pixels of each picture's side (default %(default)s)")


_COLOURS = {
    "red": (200, 30, 30), "green": (30, 160, 60), "blue": (30, 60, 200), "yellow": (230, 220, 40), "black": (10, 10, 10),
    "white": (250, 250, 250), "orange": (240, 140, 20), "purple": (130, 40, 160),
}  # fmt: skip


def sentence(generator: random.Random, count: int) -> str:
    """About `count` words about an invented name that nobody has used before."""
    pick, name = generator.choice, "".join(generator.sample(_SYLLABLES.split(), 3)).capitalize()
    text = f"{name} the {pick(_PEOPLE.split())} {pick(_VERBS.split())} a {pick(_THINGS.split())} near the {pick(_PLACES.split())}"
    while len(text.split()) < count:
        text += f" and {pick(_VERBS.split())} the {pick(_THINGS.split())} of a {pick(_PEOPLE.split())}"
    return text + "."


def picture(colours: list[tuple[int, int, int]], side: int) -> bytes:
    """A PNG of four squares."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    half = side // 2
    top, bottom = (bytes(a) * half + bytes(b) * (side - half) for a, b in (colours[:2], colours[2:]))
    rows = b"".join(b"\0" + (top if y < half else bottom) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A fresh input."""
    places = ("top left", "top right", "bottom left", "bottom right")
    colours = [generator.choice(list(_COLOURS)) for _ in places]
    ask = f"{sentence(generator, getattr(args, 'prompt_len', 16))} List the colours of the picture's four squares, and begin with that name."
    url = "data:image/png;base64," + base64.b64encode(picture([_COLOURS[c] for c in colours], args.side)).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ask}]
    body = {
        "messages": [{"role": "user", "content": parts}], "max_tokens": getattr(args, "max_tokens", 48),
        "temperature": getattr(args, "temperature", 0.0),
    }  # fmt: skip
    return Case(name, {**body, "model": args.model} if args.model else body)


other_seed = no_other
other_way = no_other


def broken(case: Case) -> Case:
    """A request that must be refused: no messages."""
    return Case("broken", {key: value for key, value in case.body.items() if key != "messages"})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once; what came is opened by `read`, after the clocks have stopped."""
    return await post(session, url, endpoint, case.body)


def read(case: Case, reply: Reply) -> None:
    """Open what came; an answer that is none gets an error."""
    if reply.error or len(reply.values):
        return
    try:
        choice = json.loads(reply.raw)["choices"][0]
        reply.values = str(choice["message"]["content"]).split()
        if choice.get("finish_reason") not in ("stop", "length"):
            raise ValueError(f"finish_reason {choice.get('finish_reason')!r}")
    except (ValueError, KeyError, TypeError, LookupError) as error:
        reply.error = f"no answer: {type(error).__name__}: {error}"


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    return "" if reply.values else "no words in the answer"


def edits(a: list[str], b: list[str]) -> int:
    """The fewest insertions, deletions and replacements of words between two texts."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def distance(a: Reply, b: Reply) -> float:
    """Edits between the words of two answers, over those of the second."""
    return edits(a.values, b.values) / max(1, len(b.values))


def truth(case: Case, reply: Reply) -> float | None:
    """Nothing is known of an answer but the reference's."""
    return None


def amount(case: Case, reply: Reply) -> float:
    """One answer."""
    return 1.0


to_sample = sample_of


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """An answer out of the benchmark's JSON."""
    case, reply = case_of(sample)
    read(case, reply)
    return case, reply
