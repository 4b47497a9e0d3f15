"""What is asked of an image server, and how two images are compared: POST /v1/images/generations, base64 PNG back.

The same file lies beside checker.py and beside benchmark.py, so that both ask in one form.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import random
import struct
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

ENDPOINT = "/v1/images/generations"
DISTANCE = "grey levels (root mean square over all pixels and channels, 0 to 255)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 12.0, 12.0, 16.0
CASES = 4
AMOUNT = "images_per_s"
TRUTH, MAX_MISSED = "", 0.0
TIMES: dict[str, Any] = {}
MAX_TOKENS_IS = "not used by images; here since every benchmark takes it"
TEMPERATURE_IS = "not used by images: the seed decides"
PROMPT_LEN_IS = "words of each prompt, about (default %(default)s); not used by --prompts terrain"

_THINGS = (
    "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel stone".split()
)
_PLACES = "river market harbor forest village tower bridge garden station valley island castle desert lake".split()
_QUALITIES = "old small bright heavy quiet broken golden strange green red blue narrow rare empty soft tall".split()
_STYLES = "a photograph,a watercolour,a pencil drawing,an oil painting,a woodcut".split(",")
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak".split()


class CannotRunError(Exception):
    """It cannot be asked or measured at all: exit code 2, with a hint."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Case:
    """One input: its name, and the request's JSON."""

    name: str
    body: dict[str, Any]


@dataclass
class Reply:
    """What came: times in seconds on one clock; `values` are the pixels (0 to 255), `shape` is (height, width, channels)."""

    status: int = 0
    error: str = ""
    first: float | None = None
    done: float = 0.0
    values: bytes = b""
    shape: tuple[int, ...] = ()
    raw: bytes = field(default=b"", repr=False)

    def shown(self) -> str:
        """In a few words."""
        height, width, channels = self.shape or (0, 0, 0)
        mean = sum(self.values) / max(1, len(self.values))
        return f"{width}x{height}x{channels}, mean {mean:.1f}"


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--size", default="432x432", help="WIDTHxHEIGHT (default %(default)s)")
    p.add_argument("--steps", type=int, default=20, help="denoising steps of each image (default %(default)s)")
    p.add_argument("--guidance-scale", type=float, default=5.0, help="(default %(default)s)")
    p.add_argument(
        "--prompts", default="scene", choices=("scene", "terrain"),
        help="scene: a thing somewhere, with an invented name on a sign; terrain: a roughness (default %(default)s)",
    )  # fmt: skip


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A fresh prompt and a fresh seed."""
    if args.prompts == "terrain":
        prompt = f"terrain of difficulty {generator.randrange(1, 101)}"
    else:
        pick = generator.choice
        invented = "".join(generator.sample(_SYLLABLES, 3)).capitalize()
        prompt = f"{pick(_STYLES)} of a {pick(_QUALITIES)} {pick(_THINGS)} near the {pick(_PLACES)}"
        while len(prompt.split()) < getattr(args, "prompt_len", 16) - 6:
            prompt += f", with a {pick(_QUALITIES)} {pick(_THINGS)}"
        prompt += f" and a sign that says {invented}"
    return Case(name, {
        "prompt": prompt, "n": 1, "size": args.size, "response_format": "b64_json", "seed": generator.randrange(1 << 31),
        "num_inference_steps": args.steps, "guidance_scale": args.guidance_scale,
    })  # fmt: skip


def other_seed(case: Case, generator: random.Random) -> Case:
    """The same prompt with another seed: another image."""
    return Case(
        f"{case.name}/other-seed", {**case.body, "seed": case.body["seed"] ^ (1 + generator.randrange(1 << 30))}
    )


def other_way(case: Case) -> Case | None:
    """There is one way to ask for an image."""
    return None


def broken(case: Case) -> Case:
    """A request that must be refused: no prompt."""
    return Case("broken", {key: value for key, value in case.body.items() if key != "prompt"})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once. What goes wrong is in `error`; the image is opened by `read`, after the clocks have stopped."""
    import aiohttp

    reply = Reply()
    try:
        async with session.post(url.rstrip("/") + endpoint, json=case.body) as response:
            reply.status = response.status
            reply.raw = await response.read()
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.done = time.perf_counter()
    if reply.status != 200 and not reply.error:
        reply.error = f"HTTP {reply.status}: {reply.raw[:200].decode('utf-8', 'replace')}"
    return reply


def read(case: Case, reply: Reply) -> None:
    """Open what came: `raw` into `values` and `shape`. An answer that is no image gets an error."""
    if reply.error or reply.values:
        return
    try:
        data = json.loads(reply.raw)["data"]
        if len(data) != 1:
            raise ValueError(f"{len(data)} images instead of one")
        reply.shape, reply.values = decode_png(base64.b64decode(data[0]["b64_json"], validate=True))
    except (ValueError, KeyError, TypeError, LookupError, zlib.error, struct.error) as error:
        reply.error = f"no image: {type(error).__name__}: {error}"


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an image by itself; empty where nothing is."""
    width, height = (int(part) for part in case.body["size"].split("x"))
    if reply.shape[:2] != (height, width):
        return f"wrong size: {reply.shape[1]}x{reply.shape[0]} instead of {width}x{height}"
    if max(reply.values) - min(reply.values) < 8:
        return f"flat image: all pixels between {min(reply.values)} and {max(reply.values)}"
    return ""


def distance(a: Reply, b: Reply) -> float:
    """Root mean square difference of two images in grey levels; infinite where their shapes differ."""
    if a.shape != b.shape or not a.values:
        return math.inf
    if a.values == b.values:
        return 0.0
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a.values, b.values, strict=True)) / len(a.values))


def truth(case: Case, reply: Reply) -> float | None:
    """Nothing is known of an image but the reference's."""
    return None


def amount(case: Case, reply: Reply) -> float:
    """One image."""
    return 1.0


def to_sample(case: Case, reply: Reply) -> dict[str, Any]:
    """A whole answer for the benchmark's JSON."""
    return {"name": case.name, "body": case.body, "answer": json.loads(reply.raw)}


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """The other way round."""
    reply = Reply(200, raw=json.dumps(sample["answer"]).encode())
    case = Case(sample["name"], sample["body"])
    read(case, reply)
    return case, reply


# ------------------------------------------------------------------------------------------------------------ PNG


def decode_png(data: bytes) -> tuple[tuple[int, int, int], bytes]:
    """(height, width, channels) and the pixels of an 8-bit PNG without interlacing. Raises ValueError for anything else."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"not a PNG: it begins with {data[:8]!r}")
    at, packed, head = 8, b"", None
    while at + 12 <= len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        if zlib.crc32(kind + body) != struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]:
            raise ValueError(f"damaged PNG: chunk {kind!r} has a wrong checksum")
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
        if kind == b"IEND":
            break
    else:
        raise ValueError("the PNG is cut off")
    if head is None or head[2] != 8 or head[3] not in (0, 2, 6) or head[6] != 0:
        raise ValueError("not an 8-bit grey, RGB or RGBA PNG without interlacing")
    width, height, channels = head[0], head[1], {0: 1, 2: 3, 6: 4}[head[3]]
    rows = zlib.decompress(packed)
    if len(rows) != height * (1 + width * channels):
        raise ValueError(f"{len(rows)} bytes of pixels instead of {height * (1 + width * channels)}")
    return (height, width, channels), unfilter(rows, width * channels, channels)


def unfilter(rows: bytes, stride: int, channels: int) -> bytes:
    """Undo the five filters of PNG."""
    out, above = bytearray(), bytearray(stride)
    for start in range(0, len(rows), stride + 1):
        kind, line = rows[start], bytearray(rows[start + 1 : start + 1 + stride])
        if kind == 2:
            line = bytearray((x + up) & 255 for x, up in zip(line, above, strict=True))
        elif kind in (1, 3, 4):
            for i in range(stride):
                left = line[i - channels] if i >= channels else 0
                corner = above[i - channels] if i >= channels else 0
                guess = left if kind == 1 else (left + above[i]) // 2 if kind == 3 else paeth(left, above[i], corner)
                line[i] = (line[i] + guess) & 255
        elif kind:
            raise ValueError(f"unknown PNG filter {kind}")
        out += line
        above = line
    return bytes(out)


def paeth(left: int, up: int, corner: int) -> int:
    """PNG's fourth predictor."""
    guess = left + up - corner
    a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
    return left if a <= b and a <= c else up if b <= c else corner
