"""OpenVINO GenAI's continuous batching behind /v1/chat/completions: its Python package has no server of its own.

Needs only that package and the standard library. One thread steps the pipeline; each request has a thread that waits.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openvino_genai as genai


class Engine:
    """The pipeline, stepped by one thread while there is work."""

    def __init__(self, model: str, threads: int):
        schedule = genai.SchedulerConfig()
        schedule.cache_size = 1
        schedule.max_num_seqs = 16
        schedule.enable_prefix_caching = True
        self.pipe = genai.ContinuousBatchingPipeline(model, schedule, "CPU", {"INFERENCE_NUM_THREADS": threads}, {}, {})
        self.tokenizer = self.pipe.get_tokenizer()
        self.waiting: queue.Queue[tuple[Any, Any, queue.Queue[Any]]] = queue.Queue()
        self.active: dict[int, tuple[Any, queue.Queue[Any]]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, messages: list[dict[str, str]], count: int) -> tuple[int, queue.Queue[Any]]:
        """Hand in a request; the queue gets lists of token ids, then None. Returns the prompt's tokens too."""
        text = self.tokenizer.apply_chat_template(genai.ChatHistory(messages), add_generation_prompt=True)
        ids = self.tokenizer.encode(text, add_special_tokens=False).input_ids
        config = genai.GenerationConfig()
        config.max_new_tokens = count
        config.ignore_eos = True
        config.do_sample = False
        box: queue.Queue[Any] = queue.Queue()
        self.waiting.put((ids, config, box))
        return int(ids.shape[1]), box

    def _run(self) -> None:
        number = 0
        while True:
            while not self.waiting.empty() or not self.active:
                ids, config, box = self.waiting.get()
                self.active[number] = (self.pipe.add_request(number, ids, config), box)
                number += 1
            self.pipe.step()
            for key, (handle, box) in list(self.active.items()):
                while handle.can_read():
                    box.put([int(i) for out in handle.read().values() for i in out.generated_ids])
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    box.put(None)
                    del self.active[key]


class Handler(BaseHTTPRequestHandler):
    """Health, models, and streamed chat."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """Health and the list of models."""
        self._json({"object": "list", "data": [{"id": "model", "object": "model"}]})

    def do_POST(self) -> None:
        """A chat completion; streamed where asked for."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        count = int(body.get("max_tokens") or 16)
        prompt, box = self.engine.ask(body["messages"], count)
        if body.get("stream"):
            self._stream(prompt, box)
            return
        ids = [i for part in iter(box.get, None) for i in part]
        text = self.engine.tokenizer.decode(ids)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        self._json({"object": "chat.completion", "choices": [choice], "usage": _usage(prompt, len(ids))})

    def _stream(self, prompt: int, box: queue.Queue[Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        ids: list[int] = []
        sent = ""
        for part in iter(box.get, None):
            ids += part
            text = self.engine.tokenizer.decode(ids)
            if text.endswith("\N{REPLACEMENT CHARACTER}"):
                continue
            self._event({"choices": [{"index": 0, "delta": {"content": text[len(sent) :]}, "finish_reason": None}]})
            sent = text
        rest = self.engine.tokenizer.decode(ids)[len(sent) :]
        self._event({"choices": [{"index": 0, "delta": {"content": rest}, "finish_reason": "length"}]})
        self._event({"choices": [], "usage": _usage(prompt, len(ids))})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, document: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps({"object": "chat.completion.chunk"} | document).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    Handler.engine = Engine(options.model, options.threads)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
