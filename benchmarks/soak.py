"""Mixed traffic on one server for a while: memory stays flat, no answer is lost or mixed up, every block comes back.

    python -m benchmarks.soak --seconds 3600 [--clients 8] [--model DIR] [--json FILE]

All kinds at once: answers that are known beforehand (greedy, from each kind's first answer on an idle server), shared
prefixes, predictions, JSON by a schema, calls of tools, priorities, long prompts, streams; clients that leave before or in the
middle of an answer; requests that are wrong. The server has so little KV memory that requests give way all the time; a part of them fits the
swap space, the rest is computed again. That both happened is a claim of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.rows import Row

SECONDS = 120.0
SETTINGS = {
    "max_batch": 8, "max_batch_tokens": 128, "max_model_len": 1024, "kv_memory_bytes": 48 << 20, "backend": "auto",
    "swap_memory_bytes": 12 << 20, "learned_drafts": True,
    "predicted_outputs": True, "ngram_speculation": True, "constrained_decoding": True, "jump_forward": True,
    "prefill_stretch_pct": 150,
}  # fmt: skip
PARTS = (
    "http",
    "torch_backend",
    "compiled_backend",
    "prefix_tree",
    "speculation",
    "learned_drafts",
    "constraints",
    "pacing",
    "swap",
)
SHARED = "The house by the river has a red door, and everybody who lives there knows the way to the market. " * 12
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "find_person", "parameters": SCHEMA}}]
WRONG: tuple[dict[str, Any], ...] = (
    {"messages": []},
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": 99_999},
    {"messages": [{"role": "user", "content": "a"}], "temperature": 9},
    {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
    {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
    {"nonsense": 1},
)  # fmt: skip


def kinds() -> dict[str, dict[str, Any]]:
    """Requests whose answer is the same every time, by name."""

    def chat(text: str, tokens: int = 24, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}

    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    story = "Once there was a baker who sold bread at the market."
    made = {f"plain {number}": chat(f"Tell me about the number {number}.") for number in range(8)}
    made |= {f"seeded {number}": chat("Tell me a story.", temperature=0.8, seed=number) for number in range(4)}
    made |= {f"shared {number}": chat(f"{SHARED} What is number {number}?", 16) for number in range(4)}
    made |= {f"long {number}": chat(f"{number} {SHARED * 2}", 8, priority=number) for number in range(2)}
    made["predicted"] = chat(
        f"Repeat: {story}", 32, prediction={"type": "content", "content": story}, return_token_ids=True
    )
    made["format"] = chat("Ida is 33 years old. Write it as JSON.", 64, response_format=form)
    made["tool"] = chat("Find Ida, who is 33.", 96, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    made["two"] = chat("Say two things.", 12, n=2, seed=5, temperature=0.7)
    return made


@dataclass
class Server:
    """The server under load."""

    url: str

    def post(self, body: dict[str, Any], timeout_s: float = 120) -> tuple[int, dict[str, Any]]:
        """Status and document."""
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def stream(self, body: dict[str, Any], leave_after: int | None = None) -> bytes:
        """What a stream brings; after so many bytes the client leaves."""
        data = json.dumps(body | {"stream": True}).encode()
        place = urlsplit(self.url)
        with socket.create_connection((place.hostname, place.port), timeout=120) as raw:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            raw.sendall(head % len(data) + data)
            found = b""
            while (leave_after is None or len(found) < leave_after) and (part := raw.recv(65536)):
                found += part
        return found

    def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def told(document: dict[str, Any]) -> Any:
    """What an answer says, without what differs from one to the next."""
    shown = []
    for choice in document["choices"]:
        calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        shown.append((choice["message"]["content"], calls, choice["finish_reason"]))
    return shown


@dataclass
class Client:
    """Asks all sorts of things, one after the other, until told to stop."""

    server: Server
    right: dict[str, Any]
    ends: threading.Event
    random: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Until the end; what goes wrong is noted."""
        known = kinds()
        while not self.ends.is_set():
            try:
                self._one(known)
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def _one(self, known: dict[str, dict[str, Any]]) -> None:
        draw = self.random.random()
        name = self.random.choice(list(known))
        if draw < 0.55:
            status, document = self.server.post(known[name])
            if status != 200 or told(document) != self.right[name]:
                self.failures.append(f"{name}: {status} {str(document)[:300]}")
            self.counts["answered"] += 1
        elif draw < 0.7:
            found = self.server.stream(known[name])
            if b"data: [DONE]" not in found or not found.startswith(b"HTTP/1.1 200"):
                self.failures.append(f"{name}: a stream without its end: {found[-200:]!r}")
            self.counts["streamed"] += 1
        elif draw < 0.9:
            body = known[name] | {"max_tokens": 400}
            self.server.stream(body, leave_after=self.random.choice([0, 1, 2000]))
            self.counts["left"] += 1
        else:
            status, document = self.server.post(self.random.choice(WRONG))
            if status != 400 or not document["error"]["message"]:
                self.failures.append(f"a wrong request: {status} {document}")
            self.counts["refused"] += 1


@contextlib.contextmanager
def serving(model: Path) -> Iterator[tuple[Server, Any]]:
    """A candidate as the playbook builds it, started."""
    from vibeserve.agents.agent import Proposal
    from vibeserve.agents.playbook.builder import build
    from vibeserve.measure import launch

    with tempfile.TemporaryDirectory(prefix="vibeserve-soak-") as folder:
        directory = Path(folder) / "candidate"
        directory.mkdir()
        build(directory, Proposal((), "soak", "", "", "", None, "", settings=dict(SETTINGS), parts=PARTS))
        with launch(directory, model, log_dir=Path(folder) / "log") as running:
            yield Server(running.url), running


def soak(model: Path, seconds: float, clients: int = 8, seed: int = 0) -> dict[str, Any]:
    """What came of it: counts, failures, memory over time, what is left at the end."""
    with serving(model) as (server, running):
        right = {name: told(server.post(body)[1]) for name, body in kinds().items()}
        ends = threading.Event()
        crowd = [Client(server, right, ends, random.Random(f"{seed}/{at}")) for at in range(clients)]
        threads = [threading.Thread(target=client.run) for client in crowd]
        for thread in threads:
            thread.start()
        began, memory = time.monotonic(), []
        while (now := time.monotonic() - began) < seconds:
            memory.append((now, server.metrics()["process_resident_memory_bytes"]))
            time.sleep(min(5.0, max(0.1, seconds - now)))
        ends.set()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + 60
        while (last := server.metrics())["engine_running"] + last["engine_waiting"] and time.monotonic() < deadline:
            time.sleep(0.2)
        running.require_alive()
        again = {name: told(server.post(body)[1]) for name, body in kinds().items()}
    counts: Counter[str] = sum((client.counts for client in crowd), Counter())
    return {
        "seconds": seconds,
        "counts": dict(counts),
        "failures": [failure for client in crowd for failure in client.failures],
        "changed": sorted(name for name in right if right[name] != again[name]),
        "memory_bytes": memory,
        "growth_bytes": growth(memory),
        "left": {name: last[name] for name in ("engine_running", "engine_waiting", "engine_kv_blocks_used")},
        "preemptions": last["engine_preemptions_total"],
        "swapped": last["engine_swapped_total"],
        "evicted_blocks": last["engine_evicted_blocks_total"],
    }


def growth(memory: list[tuple[float, float]]) -> float:
    """Bytes that the last quarter has more than the second, by their medians: the first one fills caches."""
    from statistics import median

    sizes = [size for _, size in memory]
    quarter = max(1, len(sizes) // 4)
    return median(sizes[-quarter:]) - median(sizes[quarter : 2 * quarter] or sizes[:1])


def rows(seconds: float = SECONDS, clients: int = 8, model: Path | None = None) -> list[Row]:
    """One row a claim."""
    from vibeserve.base.errors import VibeServeError

    try:
        found = soak(model or _model(), seconds, clients)
    except VibeServeError as error:
        return [Row("soak", 0, None, "", note=f"not run: {error}")]
    return judged(found)


def judged(found: dict[str, Any]) -> list[Row]:
    """The claims on what came of it."""
    counts = found["counts"]
    note = f"{found['seconds']:.0f} s: " + ", ".join(f"{number} {what}" for what, number in counts.items())
    first = f"; the first: {found['failures'][0]}" if found["failures"] else ""
    note += first
    last = found["memory_bytes"][-1][1] / 1e6
    again = found["preemptions"] - found["swapped"]
    return [
        Row("answers lost, mixed up or wrong", 0, len(found["failures"]), "", note=note),
        Row("answers that differ afterwards", 0, len(found["changed"]), "", note=", ".join(found["changed"])),
        Row("KV blocks and requests left", 0, sum(found["left"].values()), ""),
        Row("requests put back for want of memory", 1, found["preemptions"], "", "higher"),
        Row("of them set aside", 1, found["swapped"], "", "higher", f"{again} were computed again"),
        Row("blocks evicted from the prefix cache", 1, found["evicted_blocks"], "", "higher"),
        Row(
            "growth of memory",
            16e6,
            found["growth_bytes"],
            "B",
            note=f"last quarter over the second; {last:.0f} MB at the end",
        ),
    ]


def _model() -> Path:
    from benchmarks._engine import model_dir

    return model_dir()


def main() -> int:
    """Run for a while; exits 1 where a claim does not hold."""
    from benchmarks.__main__ import show

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", type=Path, help="a model directory (default: the chat bundle's)")
    parser.add_argument("--json", type=Path, help="write everything that was seen here")
    options = parser.parse_args()
    found = soak(options.model or _model(), options.seconds, options.clients)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    claims = judged(found)
    show("soak", claims)
    return 1 if any(row.passed is False for row in claims) else 0


if __name__ == "__main__":
    sys.exit(main())
