"""Mixed traffic for a while: memory stays flat, no answer is lost or mixed up, everything comes back."""

from __future__ import annotations

import json
import random
import socket
import threading
import time

import pytest

CONFIG = "[engine]\nbackend = 'torch'\nthreads = 1\nmax_batch = 8\nmax_batch_tokens = 64\nkv_memory_bytes = 2000000\n"
SECONDS = 40
WRONG = [b"", b"{", b'{"prompt": 3}', b'{"prompt": "a", "max_tokens": 99999}', b'{"prompt": "a", "tools": [1]}']


def post(server, body: bytes, *, read: int | None) -> bytes:
    """Send a request; read all of the answer, or leave after so many bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        found = b""
        while (read is None or len(found) < read) and (part := raw.recv(65536)):
            found += part
    return found


class Traffic:
    """One client that asks all sorts of things until told to stop."""

    def __init__(self, server, seed: int, ends: threading.Event):
        self.server, self.ends, self.random = server, ends, random.Random(seed)
        self.expected: dict[int, bytes] = {}
        self.served = self.left = self.refused = 0
        self.failures: list[str] = []

    def run(self) -> None:
        try:
            while not self.ends.is_set():
                self.random.choice([self.needle, self.needle, self.leaver, self.wrong, self.many])()
        except Exception as error:
            self.failures.append(repr(error))

    def needle(self) -> None:
        which = self.random.randrange(12)
        asked = {"prompt": [which + 5] * (which * 9 + 1), "max_tokens": 20, "temperature": 0.7, "seed": which}
        answer = post(self.server, json.dumps(asked | {"return_token_ids": True}).encode(), read=None)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        text = answer[answer.index(b'"choices"') :]
        if self.expected.setdefault(which, text).split(b'"usage"')[0] != text.split(b'"usage"')[0]:
            self.failures.append(f"prompt {which} was answered in two ways")
        self.served += 1

    def leaver(self) -> None:
        asked = {"prompt": "The", "max_tokens": 400, "ignore_eos": True, "stream": self.random.random() < 0.5}
        post(self.server, json.dumps(asked).encode(), read=self.random.choice([0, 1, 500]) if asked["stream"] else 0)
        self.left += 1

    def wrong(self) -> None:
        answer = post(self.server, self.random.choice(WRONG), read=None)
        assert answer.startswith(b"HTTP/1.1 400"), answer[:300]
        self.refused += 1

    def many(self) -> None:
        asked = {"prompt": ["one", "two"], "n": 2, "max_tokens": 10, "stream": True, "stop": ["e", "qu"]}
        answer = post(self.server, json.dumps(asked).encode(), read=None)
        assert b"[DONE]" in answer, answer[:300]
        self.served += 1


@pytest.mark.slow
def test_mixed_traffic(tiny_model, start_script):
    with start_script(tiny_model, CONFIG) as server:
        ends = threading.Event()
        clients = [Traffic(server, seed, ends) for seed in range(12)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 4)
        early = server.metric("process_resident_memory_bytes")
        time.sleep(SECONDS * 3 / 4)
        late = server.metric("process_resident_memory_bytes")
        ends.set()
        for thread in threads:
            thread.join()
        assert [client.failures for client in clients] == [[]] * len(clients)
        assert sum(client.served for client in clients) > 20
        assert sum(client.left for client in clients) > 20
        assert sum(client.refused for client in clients) > 20
        server.wait_for(server.idle)
        assert late - early < 32e6
        assert server.end() == 0
