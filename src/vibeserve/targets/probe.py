"""A tiny text server and a tiny tokenizer, so that a bundle's scripts can be tried without weights.

The server runs in a thread of this process and answers OpenAI's completions and chat completions. What it answers is
a function of the prompt: `echo` repeats the prompt's end (every answer is another), `constant` says always the same.
The tokenizer has one token a byte and no specials, so that counts are exact for any ASCII text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Speak = Callable[[str, int], str]


def echo(prompt: str, count: int) -> str:
    """The last `count` characters of the prompt, repeated where it is shorter."""
    text = prompt.replace("assistant:", "").strip().encode("ascii", "replace").decode() or "x"
    return (text * (count // len(text) + 1))[-count:]


def constant(_: str, count: int) -> str:
    """The same text whatever is asked."""
    return ("All is well. " * (count // 13 + 1))[:count]


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins for the 256 bytes, as token → id (id = byte)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and config.json of the byte tokenizer."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": _byte_alphabet(), "merges": [],
    }  # fmt: skip
    document: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    }  # fmt: skip
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "model_max_length": 1 << 20}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 256}), encoding="utf-8")


def _render(body: dict[str, Any]) -> str:
    if "messages" in body:
        return "".join(f"{m['role']}: {m['content']}\n" for m in body["messages"]) + "assistant:"
    prompt = body.get("prompt", "")
    return prompt if isinstance(prompt, str) else bytes(prompt).decode("latin-1")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    speak: Speak

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "probe", "object": "model"}]}
        self._json({"status": "ok"} if self.path == "/health" else models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        prompt, count = _render(body), int(body.get("max_tokens") or 16)
        text = type(self).speak(prompt, count)
        used = {
            "prompt_tokens": len(prompt.encode()),
            "completion_tokens": count,
            "total_tokens": len(prompt.encode()) + count,
        }
        chat = "messages" in body
        if not body.get("stream"):
            part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            self._json(
                {
                    "choices": [{"index": 0, **part, "token_ids": list(text.encode()), "finish_reason": "length"}],
                    "usage": used,
                }
            )
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, count, 4):
            piece = text[at : at + 4]
            part = {"delta": {"content": piece}} if chat else {"text": piece}
            reason = "length" if at + 4 >= count else None
            self._event({"choices": [{"index": 0, **part, "token_ids": list(piece.encode()), "finish_reason": reason}]})
        self._event({"choices": [], "usage": used})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class ProbeServer(ThreadingHTTPServer):
    """A thread a connection; a client that breaks off is no news."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        pass


@contextmanager
def probe_server(speak: Speak) -> Iterator[str]:
    """A server that says what `speak(prompt, tokens)` returns; gives its URL."""
    server = ProbeServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"speak": staticmethod(speak)}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
