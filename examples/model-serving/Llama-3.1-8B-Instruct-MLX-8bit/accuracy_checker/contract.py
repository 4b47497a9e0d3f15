"""What is asked of a server that writes JSON by a schema, and how two answers are compared.

POST /v1/chat/completions with `response_format` of type json_schema, whole or streamed. The same file lies beside checker.py
and beside benchmark.py. A request is a sentence about somebody with an invented name, and a schema made for it: which fields,
in which order, nested or not, which choices. The invented name, the sentinel, stands in the sentence and nowhere in the schema,
so that an answer that is made up from the schema alone lacks it.

An answer is one that parses, keeps to its schema and has the sentinel. Answers are compared as parsed values, not as tokens: a
server that appends what the schema forces (jump-forward) may cut the same text into other tokens than one that chooses each
token under a mask, and what follows may then differ. At most one value of six may differ from the reference's.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import time
from dataclasses import dataclass, field, replace
from typing import Any

ENDPOINT = "/v1/chat/completions"
DISTANCE = "of the values (share that differs)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 0.17, 0.0, 0.05  # one value of six; none; they never share the name
CASES = 6
AMOUNT = "answers_per_s"
TRUTH, MAX_MISSED = "share of the values that the sentence says and the answer does not", 0.6
TIMES: dict[str, Any] = {
    "ttft_s": lambda call: call.reply.first - call.scheduled if call.reply.first is not None else None,
}
MAX_TOKENS_IS = "tokens of each answer, at most (default %(default)s)"
TEMPERATURE_IS = "0 is greedy (default %(default)s)"
PROMPT_LEN_IS = "words of each sentence, about (default %(default)s)"

_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak".split()
_PEOPLE = "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard hunter cook".split()
_PLACES = (
    "river market harbor forest village tower bridge garden station valley island castle desert school lake".split()
)
_THINGS = "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book".split()
_VERBS = "found lost carried painted sold watched opened repaired traded broke borrowed cleaned followed".split()
_TRADES = ("job", "work", "trade", "profession")
_SPOTS = ("place", "location", "where", "site")
_GOODS = ("items", "things", "goods", "objects")


class CannotRunError(Exception):
    """It cannot be asked or measured at all: exit code 2, with a hint."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Case:
    """One request: its JSON, the invented name, and what the sentence says (path of a value → the value)."""

    name: str
    body: dict[str, Any]
    sentinel: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The schema that the answer must keep to."""
        return dict(self.body["response_format"]["json_schema"]["schema"])


@dataclass
class Reply:
    """What came: times in seconds on one clock; `values` is the parsed answer, `ids` its tokens where the server tells them."""

    status: int = 0
    error: str = ""
    first: float | None = None
    done: float = 0.0
    raw: bytes = field(default=b"", repr=False)
    streamed: bool = False
    values: Any = ()
    text: str = ""
    ids: list[int] | None = None

    def shown(self) -> str:
        """As text."""
        return self.text if len(self.text) < 300 else f"{self.text[:260]}… ({len(self.text)} characters)"


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--model", default="", help="the model's name in requests (default: left out)")
    p.add_argument("--way", choices=("whole", "stream"), default="whole", help="of the answers (default %(default)s)")


def choices(generator: random.Random, words: list[str], right: str, count: int = 4) -> dict[str, Any]:
    """An enum of `count` words, the right one among them."""
    found = [right, *generator.sample([word for word in words if word != right], count - 1)]
    generator.shuffle(found)
    return {"type": "string", "enum": found}


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A request that nobody has made before."""
    pick = generator.choice
    who = "".join(generator.sample(_SYLLABLES, 3)).capitalize()
    job, place, things = pick(_PEOPLE), pick(_PLACES), generator.sample(_THINGS, 2)
    age, count = generator.randrange(18, 90), generator.randrange(2, 9)
    sentence = (
        f"{who} is a {job}, {age} years old, and {pick(_VERBS)} {count} {things[0]}s and a {things[1]} near the {place}"
    )
    while len(sentence.split()) < getattr(args, "prompt_len", 16):
        sentence += f", then {pick(_VERBS)} a {pick(_THINGS)}"
    trade, spot, goods = pick(_TRADES), pick(_SPOTS), pick(_GOODS)
    fields: dict[str, tuple[dict[str, Any], Any]] = {
        trade: (choices(generator, _PEOPLE, job), job),
        "age": ({"type": "integer", "minimum": 18, "maximum": 99}, age),
        spot: (choices(generator, _PLACES, place), place),
        goods: (
            {"type": "array", "items": choices(generator, _THINGS, things[0], 5), "minItems": 2, "maxItems": 2},
            None,
        ),
        "count": ({"type": "integer", "minimum": 1, "maximum": 12}, count),
        "verified": ({"type": "boolean"}, None),
        "rating": ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 5}]}, None),
    }
    # What the sentence does not say (a rating, a second thing) only the model knows: these are always asked for.
    rest = generator.sample([f for f in fields if f not in (goods, "rating")], generator.randrange(3, 6))
    order = generator.sample([goods, "rating", *rest], 2 + len(rest))
    inner = set(generator.sample(order, 2)) if generator.random() < 0.5 else set()
    key = pick(("person", "details", "record"))
    said = {"/name": who} | {f"/{key if f in inner else ''}/{f}".replace("//", "/"): fields[f][1] for f in order}
    properties = {"name": {"type": "string", "pattern": "^[A-Z][a-z]{2,11}$"}}
    properties |= {f: fields[f][0] for f in order if f not in inner}
    if inner:
        properties[key] = closed({f: fields[f][0] for f in order if f in inner})
    ask = f"{sentence}.\n\nWrite down what is said about {who}, as JSON with the keys {', '.join(properties)}."
    schema = {"name": "note", "strict": True, "schema": closed(properties)}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": ask}], "max_tokens": getattr(args, "max_tokens", 128),
        "temperature": getattr(args, "temperature", 0.0), "stream": args.way == "stream", "return_token_ids": True,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }  # fmt: skip
    known = {path: value for path, value in said.items() if value is not None}
    return Case(name, {**body, "model": args.model} if args.model else body, who, known)


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def other_seed(case: Case, generator: random.Random) -> None:
    """Greedy answers have no seed."""


def other_way(case: Case) -> Case:
    """Streamed where it was whole, and the other way round."""
    return replace(case, body={**case.body, "stream": not case.body["stream"]})


def broken(case: Case) -> Case:
    """A schema that no answer can keep to."""
    hopeless = closed({"name": {"type": "string", "minLength": 9, "maxLength": 3}})
    wanted = {"type": "json_schema", "json_schema": {"name": "hopeless", "strict": True, "schema": hopeless}}
    return Case("impossible-schema", {**case.body, "response_format": wanted})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once; what came is opened by `read`, after the clocks have stopped."""
    import aiohttp

    reply = Reply(streamed=bool(case.body.get("stream")))
    try:
        async with session.post(url.rstrip("/") + endpoint, json=case.body) as response:
            reply.status = response.status
            pieces = []
            async for piece in response.content.iter_any():
                pieces.append(piece)
                if reply.first is None and reply.streamed and b'"content"' in piece:
                    reply.first = time.perf_counter()
            reply.raw = b"".join(pieces)
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.done = time.perf_counter()
    if reply.status != 200 and not reply.error:
        reply.error = f"HTTP {reply.status}: {reply.raw[:200].decode('utf-8', 'replace')}"
    return reply


def read(case: Case, reply: Reply) -> None:
    """Open what came; an answer that is none gets an error."""
    if reply.error or reply.text:
        return
    try:
        reason = None
        for event in events(reply):
            for choice in event["choices"]:
                part = choice.get("message") or choice.get("delta") or {}
                reply.text += part.get("content") or ""
                if (ids := choice.get("token_ids")) is not None:
                    reply.ids = [*(reply.ids or []), *ids]
                reason = choice.get("finish_reason") or reason
        if reason != "stop":
            raise ValueError(f"finish_reason {reason!r} after {reply.text[-60:]!r}")
        reply.values = json.loads(reply.text)
    except (ValueError, KeyError, TypeError, LookupError, AttributeError) as error:
        reply.error = f"no answer: {type(error).__name__}: {error}"


def events(reply: Reply) -> list[dict[str, Any]]:
    """The JSON documents of an answer: one where it is whole, one an event where it is a stream that ends with [DONE]."""
    if not reply.streamed:
        return [json.loads(reply.raw)]
    lines = [line[5:].strip() for line in reply.raw.decode("utf-8").splitlines() if line.startswith("data:")]
    if not lines or lines[-1] != "[DONE]":
        raise ValueError("the stream has no [DONE]")
    return [json.loads(line) for line in lines[:-1]]


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        raise CannotRunError("the package jsonschema is not installed", "pip install -r requirements.txt") from None
    for error in Draft202012Validator(case.schema).iter_errors(reply.values):
        return f"schema: {error.json_path}: {error.message}"[:300]
    if case.sentinel not in leaves(reply.values).values():
        return f"sentinel: no value is {case.sentinel!r} in {reply.shown()}"
    return ""


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every value that holds no other one, by its path."""
    if isinstance(value, dict) and value:
        return {p: v for key, inner in value.items() for p, v in leaves(inner, f"{path}/{key}").items()}
    if isinstance(value, list) and value:
        return {p: v for index, inner in enumerate(value) for p, v in leaves(inner, f"{path}/{index}").items()}
    return {path: value}


def distance(a: Reply, b: Reply) -> float:
    """The share of values that the two do not have alike, 0 to 1. The same tokens are the same values."""
    if a.ids is not None and a.ids == b.ids:
        return 0.0
    one, two = leaves(a.values), leaves(b.values)
    paths = one.keys() | two.keys()
    same = sum(p in one and p in two and type(one[p]) is type(two[p]) and one[p] == two[p] for p in paths)
    return 1 - same / len(paths)


def truth(case: Case, reply: Reply) -> float | None:
    """The share of what the sentence says that the answer says otherwise."""
    if reply.error or not case.said:
        return None
    found = leaves(reply.values)
    return sum(found.get(path) != value for path, value in case.said.items()) / len(case.said)


def amount(case: Case, reply: Reply) -> float:
    """One answer."""
    return 1.0


def to_sample(case: Case, reply: Reply) -> dict[str, Any]:
    """A whole answer for the benchmark's JSON."""
    kept = base64.b64encode(reply.raw).decode()
    return {"name": case.name, "body": case.body, "sentinel": case.sentinel, "said": case.said, "answer": kept}


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """The other way round."""
    case = Case(*(sample[key] for key in ("name", "body", "sentinel", "said")))
    reply = Reply(200, raw=base64.b64decode(sample["answer"]), streamed=bool(case.body.get("stream")))
    read(case, reply)
    return case, reply
