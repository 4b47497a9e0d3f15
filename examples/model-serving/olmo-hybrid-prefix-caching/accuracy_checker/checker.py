"""Prove over the wire that a server says exactly what Hugging Face's greedy decoding says.

    python checker.py --url http://localhost:8000 --model-dir ../reference/model --output-json result.json

It asks the running server, on the very endpoints that are benchmarked, and compares token ids with the reference in
fp32: every id of an answer, its end token included, must be the reference's first choice after prompt and answer so
far. One pass over prompt + answer shows that (equal by induction); a miss is confirmed by generating. Besides: prompts
that nobody has seen before, alike in form to the benchmark's; streamed equals whole; many at once, with some that leave
early, equals alone; lengths, usage, stop strings and seeds are honest.

Exit code 0: all cases passed. 1: at least one failed. 2: could not run (no server, no model, a package missing).
One file; only torch and transformers beyond the standard library, imported when the server has answered.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import random
import secrets
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class CannotRunError(Exception):
    """The check itself cannot be made: exit code 2."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


# ------------------------------------------------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Prompt:
    """One prompt of the suite: text for /v1/completions, or messages for /v1/chat/completions."""

    name: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    max_tokens: int = 24
    fresh: bool = False

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return bool(self.messages)

    def fields(self) -> dict[str, Any]:
        """Its part of the request's JSON."""
        if self.chat:
            return {"messages": [{"role": role, "content": content} for role, content in self.messages]}
        return {"prompt": self.text}


_LONG = (
    "The harbor of the old town had been closed since the storm. Every morning the keeper climbed the tower, counted "
    "the boats that were left, and wrote the number into a book. On the first page stood forty, on the last one nine. "
    "The baker, who needed flour from the other shore, asked each day whether a ship had come. The keeper would shake "
    "his head and point at the water, which was grey and quiet. In the school the children drew maps of the coast and "
    "marked where the rocks were, because their teacher said that a good map is worth more than a good boat. "
)
FIXED = (
    Prompt("raw/short", "The capital of France is"),
    Prompt("raw/one-word", "Once", max_tokens=32),
    Prompt("raw/code", "def fibonacci(n):\n    if n < 2:\n        return n\n", max_tokens=32),
    Prompt("raw/unicode", "Zürich, São Paulo, 東京 and Ελλάδα 🚀 have in common that"),
    Prompt("raw/list", "1. red\n2. green\n3.", max_tokens=16),
    Prompt("raw/long", _LONG * 3 + "In the end"),
    Prompt("chat/question", messages=(("user", "What is the capital of Italy?"),), max_tokens=32),
    Prompt("chat/system", messages=(("system", "Answer in one sentence."), ("user", "Why is the sky blue?")), max_tokens=48),
    Prompt("chat/code", messages=(("user", "Write a Python function that adds two numbers."),), max_tokens=48),
    Prompt("chat/turns", messages=(("user", "My name is Ida."), ("assistant", "Hello Ida!"), ("user", "What is my name?"))),
    Prompt("chat/long", messages=(("user", _LONG * 2 + "Who asked for a ship, and why?"),), max_tokens=32),
    Prompt("chat/emoji", messages=(("user", "Translate to French: good morning ☀️, my friend 👋🏽"),)),
)  # fmt: skip
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak".split()
_PEOPLE = (
    "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard weaver hunter cook".split()
)
_WORDS = "river market harbor lamp rope clock letter basket old small bright heavy quiet found lost carried painted hid".split()


def fresh_prompts(seed: int, count: int) -> list[Prompt]:
    """Prompts with invented names and numbers, in the benchmark's form: stories, and codes to repeat."""
    prompts = []
    for index in range(count):
        generator = random.Random(f"{seed}/{index}")
        name = "".join(generator.sample(_SYLLABLES, 3)).capitalize()
        person, code = generator.choice(_PEOPLE), generator.randrange(1000, 9999)
        words = " ".join(generator.choice(_WORDS) for _ in range(generator.randrange(5, 40)))
        tokens = generator.randrange(20, 40)
        if index % 4 == 3:
            prompts.append(
                Prompt(
                    f"fresh/raw-{index}",
                    f"{code} {name}: {words}. The long story of {name} the {person}.",
                    (),
                    tokens,
                    True,
                )
            )
        elif index % 4 == 2:
            ask = f"Repeat this word and this number: {name} {code}."
            prompts.append(Prompt(f"fresh/repeat-{index}", "", (("user", ask),), 16, True))
        else:
            turns = (
                ("system", f"Desk {code}."),
                ("user", f"{name}: {words}. Write a long story about a {person} named {name}."),
            )
            prompts.append(Prompt(f"fresh/story-{index}", "", turns, tokens, True))
    return prompts


def prefix_prompts(seed: int, words: int) -> list[Prompt]:
    """A long prefix that nobody has seen before, with tails that part: a cached prefix must give what a cold one gives."""
    generator = random.Random(f"{seed}/prefix")
    shared = f"Notes {generator.randrange(1000, 9999)}: " + " ".join(generator.choice(_WORDS) for _ in range(words))
    names = ["".join(generator.sample(_SYLLABLES, 3)).capitalize() for _ in range(4)]
    chat = [
        Prompt(
            f"prefix/chat-{name}",
            "",
            (("system", shared), ("user", f"Write a story about {name} and these notes.")),
            20,
            True,
        )
        for name in names[:2]
    ]
    return [
        *chat,
        *(Prompt(f"prefix/raw-{name}", f"{shared}. The story of {name} begins", (), 20, True) for name in names[2:]),
    ]


def long_prompt(seed: int, tokenizer: Any, tokens: int) -> Prompt:
    """A prompt of about so many tokens that nobody has seen before."""
    generator = random.Random(f"{seed}/long")
    name, code = "".join(generator.sample(_SYLLABLES, 3)).capitalize(), generator.randrange(1000, 9999)
    head, tail = f"Notes {code}:", f". The long story of {name} begins"
    words = " ".join(generator.choice(_WORDS) for _ in range(tokens))
    room = tokens - len(tokenizer(head + tail)["input_ids"])
    body = tokenizer.decode(tokenizer(" " + words, add_special_tokens=False)["input_ids"][:room])
    return Prompt("long", head + body + tail, (), 16, True)


def suite(args: argparse.Namespace) -> list[Prompt]:
    """All prompts; conversations only where the model has a chat template."""
    prompts = [*FIXED, *fresh_prompts(args.seed, args.num_fresh), *prefix_prompts(args.seed, args.prefix_words)]
    suffix = getattr(args, "ask_suffix", "")
    if suffix:
        prompts = [
            replace(p, messages=(*p.messages[:-1], (p.messages[-1][0], f"{p.messages[-1][1]} {suffix}"))) if p.chat else p
            for p in prompts
        ]  # fmt: skip
    config = json.loads((args.model_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
    if (args.model_dir / "chat_template.jinja").is_file() or config.get("chat_template"):
        return prompts
    print("the model has no chat template: conversations are left out", flush=True)
    return [prompt for prompt in prompts if not prompt.chat]


# ------------------------------------------------------------------------------------------------------ the wire


@dataclass
class Answer:
    """What a server answered, as it came."""

    text: str = ""
    ids: list[int] | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None
    pieces: int = 0
    done: bool = False


class Wire:
    """The server's API, over plain HTTP connections, one a request."""

    def __init__(self, url: str, timeout_s: float):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise CannotRunError(f"--url {url!r}: not http://HOST:PORT", "for instance http://localhost:8000")
        self.host, self.port, self.base = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self.timeout_s = timeout_s
        self.model = ""
        self.ids, self.answered = True, False  # whether token ids are asked for, and whether anything was answered yet

    def get(self, path: str) -> tuple[int, Any]:
        """GET a path: status and JSON (None where it is none)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request("GET", self.base + path)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(data)
        except ValueError:
            return response.status, None

    def ask(self, prompt: Prompt, *, stream: bool = False, leave_after: int | None = None, **fields: Any) -> Answer:
        """Send one prompt; with `leave_after`, close the connection after so many pieces of the stream."""
        answer = Answer()
        body = {**({"model": self.model} if self.model else {}), **prompt.fields()}
        body |= {"max_tokens": prompt.max_tokens, "temperature": 0, "stream": stream}
        body |= {"return_token_ids": True} if self.ids else {}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            path = "/v1/chat/completions" if prompt.chat else "/v1/completions"
            data = json.dumps({**body, **fields}).encode()
            connection.request("POST", self.base + path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {response.read()[:300].decode('utf-8', 'replace')}"
            elif stream:
                self._read_stream(response, answer, leave_after)
            else:
                self._take(json.loads(response.read()), answer)
                answer.done = True
        except (OSError, http.client.HTTPException, ValueError, TypeError, LookupError, AttributeError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        if self.ids and not self.answered and (answer.error or "").startswith(("HTTP 400", "HTTP 422")):
            self.ids = False
            print(
                f"the server refuses a request with return_token_ids ({answer.error}); it is asked without, and answers are "
                "compared by their text. With the field (ids of the tokens in each choice's `token_ids`) they are compared by ids.",
                flush=True,
            )
            return self.ask(prompt, stream=stream, leave_after=leave_after, **fields)
        self.answered = self.answered or answer.error is None
        return answer

    def _read_stream(self, response: http.client.HTTPResponse, answer: Answer, leave_after: int | None) -> None:
        kind = response.getheader("Content-Type") or "none"
        if "text/event-stream" not in kind:
            answer.error = f"content type {kind!r} instead of text/event-stream"
            return
        for raw in response:
            line = raw.decode("utf-8").strip()
            if not line.startswith("data:"):
                continue
            if (data := line[5:].strip()) == "[DONE]":
                answer.done = True
                return
            self._take(json.loads(data), answer)
            if leave_after is not None and answer.pieces >= leave_after:
                return
        answer.error = "the stream ended without [DONE]"

    @staticmethod
    def _take(event: dict[str, Any], answer: Answer) -> None:
        if event.get("error"):
            raise ValueError(f"error in the answer: {event['error']}")
        answer.usage = event.get("usage") or answer.usage
        for choice in event.get("choices") or []:
            part = choice.get("message") or choice.get("delta") or {}
            text = choice.get("text") or part.get("content") or ""
            ids = choice.get("token_ids")
            answer.text += text
            if ids is not None:
                answer.ids = [*(answer.ids or []), *ids]
            answer.pieces += bool(text or ids)
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def all_at_once(jobs: list[Callable[[], Answer]]) -> list[Answer]:
    """Run jobs at the same time, a thread each."""
    results: list[Answer] = [Answer(error="not run") for _ in jobs]

    def work(index: int) -> None:
        results[index] = jobs[index]()

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# ----------------------------------------------------------------------------------------------------- the cases


@dataclass
class Report:
    """The cases, as they are decided."""

    cases: list[dict[str, Any]] = field(default_factory=list)
    ties: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, ok: bool | None, detail: str = "") -> None:
        """Record one case; `ok` None means that it was not run, which never counts as passed."""
        self.cases.append({"name": name, "ok": ok, "detail": detail})
        mark = {True: "ok", False: "FAIL", None: "not run"}[ok]
        print(f"{mark:8} {name}" + (f": {detail}" if detail and ok is not True else ""), flush=True)

    @property
    def passed(self) -> bool:
        """Whether every case that was run holds, and at least one was."""
        return any(case["ok"] for case in self.cases) and all(case["ok"] is True for case in self.cases)


@dataclass
class Asked:
    """Everything that was asked of the server, before the reference is loaded."""

    alone: dict[str, Answer] = field(default_factory=dict)
    together: dict[str, Answer] = field(default_factory=dict)
    streamed_alone: dict[str, Answer] = field(default_factory=dict)
    lengths: list[tuple[Prompt, int, Answer]] = field(default_factory=list)
    stops: list[tuple[Prompt, str, bool, Answer]] = field(default_factory=list)
    seeded: list[Answer] = field(default_factory=list)
    long: tuple[Prompt, Answer] | None = None
    long_s: float = 0.0
    beside: list[tuple[str, Answer]] = field(default_factory=list)


def ask_all(wire: Wire, prompts: list[Prompt], seed: int) -> Asked:
    """Ask the server everything."""
    asked = Asked()
    for prompt in prompts:
        asked.alone[prompt.name] = wire.ask(prompt)
    streamed = [p for p in prompts if p.name in ("raw/unicode", "chat/question", "chat/emoji")]
    for prompt in streamed:
        asked.streamed_alone[prompt.name] = wire.ask(prompt, stream=True)
    leavers = [p for p in fresh_prompts(seed + 1, 16) if not p.chat or any(q.chat for q in prompts)][:4]
    order = [*prompts]
    random.Random(seed).shuffle(order)
    jobs: list[Callable[[], Answer]] = [lambda p=p: wire.ask(p, stream=True) for p in order]
    jobs += [lambda p=p: wire.ask(p, stream=True, leave_after=2, max_tokens=200) for p in leavers]
    for prompt, answer in zip(order, all_at_once(jobs), strict=False):
        asked.together[prompt.name] = answer
    again = [p for p in prompts if p.fresh][:2]  # those who left free their place: ask once more after the storm
    for prompt in again:
        asked.streamed_alone[prompt.name] = wire.ask(prompt, stream=True)
    by_name = {p.name: p for p in prompts}
    story = by_name.get("chat/code", by_name["raw/code"])
    for length in (1, 7):
        asked.lengths.append((story, length, wire.ask(story, max_tokens=length)))
    short = by_name.get("chat/question", by_name["raw/short"])
    asked.lengths.append((short, 40, wire.ask(short, max_tokens=40, ignore_eos=True)))
    for prompt, stream in ((story, False), (story, True), (by_name["raw/long"], True)):
        stop = a_stop(asked.alone[prompt.name].text)
        if stop:
            asked.stops.append((prompt, stop, stream, wire.ask(prompt, stream=stream, stop=[stop])))
    tale = next(p for p in prompts if p.name == "raw/one-word")
    for sampling_seed in (seed % 10_000, seed % 10_000, *(seed % 10_000 + i for i in range(1, 5))):
        asked.seeded.append(wire.ask(tale, temperature=1.0, seed=sampling_seed, max_tokens=16))
    return asked


def ask_long(wire: Wire, prompt: Prompt, prompts: list[Prompt], limit_s: float, asked: Asked) -> None:
    """Ask the long prompt while two others keep asking short ones, without a pause, until it is answered or the time is up."""
    short = [p for p in prompts if p.fresh and not p.name.startswith("prefix/")]
    done = threading.Event()
    beside: list[tuple[str, Answer]] = []

    def keep_asking(offset: int) -> Answer:
        at, answer = offset, Answer()
        while not done.is_set():
            answer = wire.ask(short[at % len(short)], stream=True)
            beside.append((short[at % len(short)].name, answer))
            at += 1
        return answer

    def ask() -> Answer:
        start = time.monotonic()
        answer = wire.ask(prompt, stream=True)
        asked.long_s = time.monotonic() - start
        done.set()
        return answer

    timer = threading.Timer(limit_s, done.set)
    timer.daemon = True
    timer.start()
    asked.long = (prompt, all_at_once([ask, lambda: keep_asking(0), lambda: keep_asking(1)])[0])
    asked.beside = beside[:32]


def a_stop(text: str) -> str | None:
    """A stop string out of the middle of an answer, cut across words so that it spans tokens."""
    middle = text[len(text) // 3 : len(text) // 3 + 9]
    return middle if len(text) >= 24 and middle.strip() and "\ufffd" not in middle else None


def judge_wire(asked: Asked, prompts: list[Prompt], report: Report) -> bool:
    """The cases that need no reference; False where nothing further is worth a look."""
    failed = {name: a.error for name, a in asked.alone.items() if a.error}
    report.add("answers", not failed, "; ".join(f"{name}: {error}" for name, error in list(failed.items())[:3]))
    texts = [asked.alone[p.name].text for p in prompts]
    alike = len(set(texts)) < 0.8 * len(texts)
    report.add("answers-depend-on-prompt", not alike, f"{len(set(texts))} different answers to {len(texts)} prompts")
    if failed or alike:
        return False
    judge_equal("streamed-equals-whole", asked.alone, asked.streamed_alone, report)
    judge_equal("together-equals-alone", asked.alone, asked.together, report)
    first, same, *others = asked.seeded
    errors = [a.error for a in asked.seeded if a.error]
    report.add(
        "seed/same-seed-same-text",
        not errors and first.text == same.text,
        errors[0] if errors else f"{first.text!r} and {same.text!r}",
    )
    drawn = {a.text for a in (first, *others)}
    report.add(
        "seed/temperature-is-honoured",
        not errors and len(drawn) >= 3,
        f"{len(drawn)} different texts of 5 seeds at temperature 1",
    )
    return True


def judge_equal(name: str, alone: dict[str, Answer], other: dict[str, Answer], report: Report) -> None:
    """Every answer in `other` must be the one that was given alone."""
    for key, answer in other.items():
        want = alone[key]
        same_ids = answer.ids == want.ids or answer.ids is None or want.ids is None
        same = (
            answer.error is None
            and answer.text == want.text
            and same_ids
            and answer.finish_reason == want.finish_reason
        )
        detail = (
            answer.error or f"{answer.text!r} ({answer.finish_reason}) instead of {want.text!r} ({want.finish_reason})"
        )
        report.add(f"{name}/{key}", same, "" if same else detail)


# ------------------------------------------------------------------------------------------------- the reference


class Reference:
    """Hugging Face's model in fp32; loaded once, and only where an answer is not known already."""

    def __init__(
        self,
        folder: Path,
        cache: Path | None,
        margin: float,
        trust_remote_code: bool,
        device: str = "cpu",
        dtype: str = "float32",
    ):
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise CannotRunError("transformers is not installed", "pip install -r requirements.txt") from None
        self.folder, self.margin, self.trust = folder, margin, trust_remote_code
        self.device, self.dtype = device, dtype
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        self._model: Any = None
        self.cache = cache
        self.weights = weights_hash(folder) if cache else ""
        self.agreeing = self.compared = 0
        self.ends = self._end_ids()

    def _end_ids(self) -> set[int]:
        for name in ("generation_config.json", "config.json"):
            path = self.folder / name
            ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
            if ends is not None:
                return set(ends if isinstance(ends, list) else [ends])
        return {self.tokenizer.eos_token_id} - {None}

    @property
    def model(self) -> Any:
        """The model, loaded at the first use."""
        if self._model is None:
            try:
                import torch
                from transformers import AutoModelForCausalLM
                from transformers.utils import logging
            except ImportError:
                raise CannotRunError("torch is not installed", "pip install -r requirements.txt") from None
            logging.disable_progress_bar()
            try:
                self._model = AutoModelForCausalLM.from_pretrained(
                    self.folder, dtype=getattr(torch, self.dtype), trust_remote_code=self.trust
                ).eval()
                if self.device == "auto":
                    mps = torch.backends.mps.is_available()
                    self.device = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
                self._model.to(self.device)
            except (OSError, ValueError) as error:
                raise CannotRunError(
                    f"the reference cannot be loaded from {self.folder}: {error}", "materialise the model"
                ) from None
        return self._model

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids that the server must have seen."""
        if prompt.chat:
            text = self.tokenizer.apply_chat_template(
                prompt.fields()["messages"], tokenize=False, add_generation_prompt=True
            )
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer(prompt.text)["input_ids"])

    def text(self, ids: list[int]) -> str:
        """The text of ids, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def choices(self, prompt: list[int], answer: list[int]) -> list[tuple[int, float]]:
        """For each token of the answer: the reference's first choice there, and its logit less the answer's."""
        import torch

        # Of a long prompt only the answer's logits: a row of them is a vocabulary long.
        keep = {"logits_to_keep": len(answer) + 1} if len(prompt) > 1024 else {}
        with torch.inference_mode():
            logits = self.model(torch.tensor([prompt + answer], device=self.device), **keep).logits[0]
            logits = logits[-len(answer) - 1 : -1].float().cpu()
        best = logits.max(dim=-1)
        taken = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        return list(zip(best.indices.tolist(), (best.values - taken).tolist(), strict=True))

    def generate(self, prompt: list[int], count: int, ignore_eos: bool) -> list[int]:
        """The reference's own greedy answer."""
        import torch

        ids = torch.tensor([prompt], device=self.device)
        options = {"eos_token_id": None} if ignore_eos else {}
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=pad,
                **options,
            )
        return [int(item) for item in out[0, len(prompt) :]]

    def explain(
        self, prompt: list[int], answer: list[int], limit: int, ignore_eos: bool, report: Report, name: str
    ) -> str | None:
        """None where the answer is the reference's; else the first token that differs, and both texts."""
        key = hashlib.sha256(json.dumps([self.weights, self.dtype, prompt, limit, ignore_eos]).encode()).hexdigest()
        known = self.cache / f"{key}.json" if self.cache else None
        if known is not None and known.is_file() and json.loads(known.read_text()) == answer:
            self.compared += len(answer)
            self.agreeing += len(answer)
            return None
        choices = self.choices(prompt, answer)
        misses = [i for i, (best, _) in enumerate(choices) if best != answer[i]]
        self.compared += len(answer)
        self.agreeing += len(answer) - len(misses)
        if not misses:
            if known is not None:
                known.parent.mkdir(parents=True, exist_ok=True)
                known.write_text(json.dumps(answer))
            return None
        if all(choices[i][1] < self.margin for i in misses):
            report.ties += [
                {"case": name, "token": i, "gap": choices[i][1], "reference": choices[i][0], "server": answer[i]}
                for i in misses
            ]
            return None
        own = self.generate(prompt, limit, ignore_eos)
        if own == answer:
            self.agreeing += len(misses)
            return None
        at = next((i for i, (a, b) in enumerate(zip(own, answer, strict=False)) if a != b), min(len(own), len(answer)))
        gap = f", gap of logits {choices[at][1]:.3g}" if at < len(choices) else ""
        return (
            f"first differing token {at}: reference {own[at : at + 1]}, server {answer[at : at + 1]}{gap}; "
            f"reference {self.text(own)!r}, server {self.text(answer)!r}; "
            f"ids from there: reference {own[at : at + 10]}, server {answer[at : at + 10]}"
        )


def weights_hash(folder: Path) -> str:
    """A checksum of the weights: the manifest's where one lies beside them, else of the files."""
    manifest = folder / "manifest.json"
    if manifest.is_file():
        return hashlib.sha256(manifest.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def exact(
    reference: Reference,
    name: str,
    prompt: Prompt,
    answer: Answer,
    limit: int,
    report: Report,
    ignore_eos: bool = False,
) -> None:
    """One answer against the reference: ids, text, length, finish reason and usage."""
    ids = reference.prompt_ids(prompt)
    if answer.error:
        report.add(name, False, answer.error)
        return
    got = answer.ids
    if got is None:
        compare_text(reference, name, ids, answer, limit, report, ignore_eos)
        return
    if not got or not all(isinstance(item, int) for item in got):
        report.add(name, False, f"token_ids are {str(got)[:80]}")
        return
    ended = got[-1] in reference.ends and not ignore_eos
    problems = [
        f"{len(got)} tokens, at most {limit} were asked for" if len(got) > limit else "",
        f"finish_reason {answer.finish_reason!r}" if answer.finish_reason != ("stop" if ended else "length") else "",
        f"{len(got)} tokens, but finish_reason 'length' at {limit}" if not ended and len(got) != limit else "",
        f"the text {answer.text!r} is not that of the ids: {reference.text(got)!r}" if not same_text(reference.text(got), answer.text) else "",
        wrong_usage(answer, len(ids), len(got)),
        "token ids outside the vocabulary" if not all(0 <= item < len(reference.tokenizer) for item in got) else "",
    ]  # fmt: skip
    problem = next((p for p in problems if p), "") or reference.explain(ids, got, limit, ignore_eos, report, name)
    report.add(name, not problem, problem or "")


def compare_text(
    reference: Reference, name: str, ids: list[int], answer: Answer, limit: int, report: Report, ignore_eos: bool
) -> None:
    """A server without ids: its text must be the reference's, character for character."""
    own = reference.generate(ids, limit, ignore_eos)
    want = reference.text(own)
    at = next(
        (i for i, (a, b) in enumerate(zip(want, answer.text, strict=False)) if a != b), min(len(want), len(answer.text))
    )
    same = same_text(want, answer.text)
    reference.compared += len(own)
    reference.agreeing += len(own) if same else 0
    report.add(
        name, same, "" if same else f"text differs at character {at}: reference {want!r}, server {answer.text!r}"
    )


def same_text(whole: str, sent: str) -> bool:
    """Equal but for an incomplete character at the end, which a server may leave out."""
    return whole == sent or whole.rstrip("\ufffd") == sent.rstrip("\ufffd")


def wrong_usage(answer: Answer, prompt: int, completion: int) -> str:
    """What is wrong with the usage; empty where it is right."""
    if answer.usage is None:
        return "no usage in the answer"
    want = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    wrong = [f"{k} {answer.usage.get(k)} instead of {v}" for k, v in want.items() if answer.usage.get(k) != v]
    return f"usage: {', '.join(wrong)}" if wrong else ""


def judge_stops(reference: Reference, asked: Asked, report: Report) -> None:
    """Text ends before the stop string; the tokens go up to and including the one that completes it."""
    for prompt, stop, stream, answer in asked.stops:
        name = f"stop/{prompt.name}{'/streamed' if stream else ''}"
        whole = asked.alone[prompt.name]
        want = whole.text[: whole.text.find(stop)]
        problem = answer.error or ""
        if not problem and (answer.text != want or answer.finish_reason != "stop"):
            problem = f"stop {stop!r}: {answer.text!r} ({answer.finish_reason}) instead of {want!r} (stop)"
        if not problem and whole.ids is not None and answer.ids is not None:
            ends = (n for n in range(1, len(whole.ids) + 1) if stop in reference.text(whole.ids[:n]))
            count = next(ends, None)
            if count is None:
                problem = f"stop {stop!r} is in the text of the answer without it, but not in the text of its ids"
            elif answer.ids != whole.ids[:count]:
                problem = (
                    f"stop {stop!r}: {len(answer.ids)} ids, the first {count} of the answer without it were expected"
                )
            else:
                problem = wrong_usage(answer, len(reference.prompt_ids(prompt)), count)
        report.add(name, not problem, problem)


def judge_long(reference: Reference, asked: Asked, limit_s: float, report: Report) -> None:
    """The long prompt is answered in time although short ones keep coming, exactly; and they are answered as alone."""
    if asked.long is None:
        return
    prompt, answer = asked.long
    took = f"{asked.long_s:.1f} s beside short requests that keep coming, at most {limit_s:g} s"
    report.add("long/in-time", answer.error is None and asked.long_s <= limit_s, answer.error or took)
    exact(reference, "long/exact", prompt, answer, prompt.max_tokens, report)
    wrong = [
        f"{name}: {beside.error or repr(beside.text)}"
        for name, beside in asked.beside
        if beside.error or beside.text != asked.alone[name].text
    ]
    report.add("long/short-ones-beside", bool(asked.beside) and not wrong, wrong[0] if wrong else "none was answered")


def judge_reference(reference: Reference, asked: Asked, prompts: list[Prompt], report: Report, min_top1: float) -> None:
    """The cases that lean on the reference."""
    for prompt in prompts:
        exact(reference, f"exact/{prompt.name}", prompt, asked.alone[prompt.name], prompt.max_tokens, report)
    for prompt, length, answer in asked.lengths:
        ignore = length == 40
        exact(
            reference,
            f"length/{prompt.name}/{length}{'-ignore-eos' if ignore else ''}",
            prompt,
            answer,
            length,
            report,
            ignore,
        )
    judge_stops(reference, asked, report)
    share = reference.agreeing / max(1, reference.compared)
    report.add(
        "top1-agreement", share >= min_top1, f"{share:.4f} of {reference.compared} tokens, {min_top1:g} is asked for"
    )


def judge_answers(reference: Reference, path: Path, report: Report) -> None:
    """Prove the sampled answers of a benchmark's JSON."""
    document = json.loads(path.read_text(encoding="utf-8"))
    samples = [s for s in document.get("samples", []) if s.get("temperature") == 0 and s.get("token_ids")]
    if not samples:
        report.add("benchmark-answers", None, "no greedy answers with token ids in the file")
    for index, sample in enumerate(samples):
        problem = reference.explain(
            sample["prompt_ids"],
            sample["token_ids"],
            len(sample["token_ids"]),
            sample["ignore_eos"],
            report,
            f"benchmark-answers/{index}",
        )
        report.add(f"benchmark-answers/{index}", problem is None, problem or "")


# ---------------------------------------------------------------------------------------------------------- main


def allowance_of_bundle() -> dict[str, Any]:
    """[accuracy] of the bundle.toml above, where there is one."""
    try:
        import tomllib

        return dict(tomllib.loads((HERE.parent / "bundle.toml").read_text(encoding="utf-8")).get("accuracy", {}))
    except (ImportError, OSError, ValueError):
        return {}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    allowed = allowance_of_bundle()
    above = HERE.parent / "model"
    default_model = above if above.is_dir() else HERE.parent / "reference" / "model"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://localhost:8000", help="the server (default %(default)s)")
    p.add_argument(
        "--model-dir", type=Path, default=default_model, help="the reference's weights (default: the bundle's)"
    )
    p.add_argument("--device", default="auto", help="of the reference: cpu, cuda, mps, or auto (default %(default)s)")
    p.add_argument(
        "--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"), help="(default %(default)s)"
    )
    p.add_argument("--model", default="", help="the model's name in requests (default: the first of /v1/models)")
    p.add_argument("--output-json", type=Path, help="write the cases here")
    p.add_argument(
        "--near-tie-margin",
        type=float,
        default=allowed.get("near_tie_margin", 0.0),
        help="gap of logits under which a divergence is listed, not failed (default: bundle.toml, else 0)",
    )
    p.add_argument(
        "--min-top1",
        type=float,
        default=allowed.get("min_top1", 1.0),
        help="share of tokens that must be the reference's first choice (default: bundle.toml, else 1)",
    )
    p.add_argument("--num-fresh", type=int, default=6, help="prompts that nobody has seen before (default 6)")
    p.add_argument(
        "--prefix-words", type=int, default=150, help="words that three prompts begin with alike (default 150)"
    )
    p.add_argument(
        "--long-tokens",
        type=int,
        default=0,
        help="ask one prompt of about so many tokens beside short ones (default: none)",
    )
    p.add_argument(
        "--long-limit",
        type=float,
        default=300.0,
        help="seconds within which the long prompt must be answered (default 300)",
    )
    p.add_argument("--seed", type=int, help="of the fresh prompts (default: drawn now, and printed)")
    p.add_argument(
        "--ask-suffix", default="", help="ends each conversation's question, such as /no_think (default: nothing)"
    )
    p.add_argument("--timeout", type=float, default=300.0, help="seconds that one request may take (default 300)")
    p.add_argument("--cache-dir", type=Path, help="keep proven answers here, keyed by weights, prompt and settings")
    p.add_argument("--answers", type=Path, help="instead: prove the sampled answers in a benchmark's JSON")
    p.add_argument("--trust-remote-code", action="store_true", help="run code that the model brings along")
    return p


def run(args: argparse.Namespace, report: Report) -> None:
    """Ask, then judge."""
    if not (args.model_dir / "tokenizer_config.json").is_file():
        raise CannotRunError(f"no model in {args.model_dir}", "vibeserve materialize BUNDLE, or pass --model-dir")

    def reference() -> Reference:
        return Reference(
            args.model_dir, args.cache_dir, args.near_tie_margin, args.trust_remote_code, args.device, args.dtype
        )

    if args.answers is not None:
        judge_answers(reference(), args.answers, report)
        return
    wire = Wire(args.url, args.timeout)
    try:
        status, _ = wire.get("/health")
        _, models = wire.get("/v1/models")
    except OSError as error:
        raise CannotRunError(f"no server at {args.url}: {error}", "start it first") from None
    report.add("health", status == 200, f"/health answers {status}")
    listed = [m.get("id") for m in (models or {}).get("data", [])] if isinstance(models, dict) else []
    wire.model = args.model or (listed[0] if listed else "")
    report.add("models", bool(listed), "/v1/models lists no model")
    prompts = suite(args)
    asked = ask_all(wire, prompts, args.seed)
    if not judge_wire(asked, prompts, report):
        report.add("exact", None, "not run: the answers are no answers")
        return
    known = reference()
    if args.long_tokens:
        wire.timeout_s = max(wire.timeout_s, args.long_limit)
        ask_long(wire, long_prompt(args.seed, known.tokenizer, args.long_tokens), prompts, args.long_limit, asked)
        judge_long(known, asked, args.long_limit, report)
    judge_reference(known, asked, prompts, report, args.min_top1)


def main() -> int:
    """Exit 0: passed; 1: failed; 2: could not run."""
    args = parser().parse_args()
    args.seed = secrets.randbits(40) if args.seed is None else args.seed
    report = Report()
    print(f"seed {args.seed}", flush=True)
    try:
        run(args, report)
    except CannotRunError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    document = {
        "passed": report.passed, "cases": report.cases, "near_ties": report.ties, "seed": args.seed,
        "near_tie_margin": args.near_tie_margin, "min_top1": args.min_top1,
    }  # fmt: skip
    if args.output_json:
        args.output_json.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    for tie in report.ties:
        print(f"near tie  {tie}")
    bad = sum(case["ok"] is not True for case in report.cases)
    print(f"{'passed' if report.passed else 'FAILED'}: {len(report.cases) - bad} of {len(report.cases)} cases hold")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
