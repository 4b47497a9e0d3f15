"""Clients as they are: they leave, read slowly, send half a request or garbage; nobody else notices."""

from __future__ import annotations

import concurrent.futures
import json
import random
import socket
import struct
import time

import pytest

from vibeserve.engine.http.server import StallWatch

ENDLESS = {"prompt": "The", "max_tokens": 400, "ignore_eos": True}
GOOD = {"prompt": "say:good", "max_tokens": 20}


@pytest.fixture(scope="module")
def slow(fake_server):
    """A server whose steps take 5 ms, with two places in its batch."""
    with fake_server(core={"step_s": 0.005, "max_batch": 2}) as started:
        yield started


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def post(path: str, body: dict) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(data), data)


def everything(raw: socket.socket, end: bytes) -> bytes:
    """Read until the answer ends so."""
    found = b""
    while not found.endswith(end):
        part = raw.recv(65536)
        assert part, found[-200:]
        found += part
    return found


def served(server) -> bool:
    status, body = server.call("/v1/completions", GOOD)
    print(status, body)  # shown where a test fails
    return status == 200 and json.loads(body)["choices"][0]["text"] == "good"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"prompt": ["a", "b", "c", "d"]}])
def test_a_client_that_leaves_frees_its_slots(slow, stream, how, extra):
    aborted = slow.metric('engine_finished_total{reason="abort"}')
    raw = connect(slow)
    raw.sendall(post("/v1/completions", ENDLESS | {"stream": stream} | extra))
    slow.wait_for(lambda: slow.metric("engine_running") > 0)
    if stream:
        assert raw.recv(100).startswith(b"HTTP/1.1 200")
    if how == "reset":
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-close":
        raw.shutdown(socket.SHUT_WR)
    else:
        raw.close()
    slow.wait_for(slow.idle, 5)
    raw.close()
    choices = 3 if "n" in extra else 4 if extra else 1
    assert slow.metric('engine_finished_total{reason="abort"}') == aborted + choices
    assert served(slow)


def test_a_client_that_leaves_while_it_waits_is_never_admitted(slow):
    holders = [connect(slow) for _ in range(2)]
    for raw in holders:
        raw.sendall(post("/v1/completions", ENDLESS))
    slow.wait_for(lambda: slow.metric("engine_running") == 2)
    admitted = slow.metric("engine_admitted_total")
    third = connect(slow)
    third.sendall(post("/v1/completions", ENDLESS))
    slow.wait_for(lambda: slow.metric("engine_waiting") == 1)
    third.close()
    slow.wait_for(lambda: slow.metric("engine_waiting") == 0)
    for raw in holders:
        raw.close()
    slow.wait_for(slow.idle)
    assert slow.metric("engine_admitted_total") == admitted


def test_a_stop_string_frees_the_slot_at_once(slow):
    before = slow.metric("engine_output_tokens_total")
    status, body = slow.call("/v1/completions", {"prompt": "say:one two", "max_tokens": 400, "stop": "n"})
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, "o")
    slow.wait_for(slow.idle)
    assert slow.metric("engine_output_tokens_total") - before < 20


LONG = {"prompt": "The", "max_tokens": 1000, "ignore_eos": True, "return_token_ids": True, "logprobs": 5}


def test_a_slow_reader_holds_nobody_up(fake_server):
    core = {"max_model_len": 1024, "step_s": 0.0005}
    with fake_server("--send-buffer", "4096", core=core) as server, connect(server) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(post("/v1/completions", LONG | {"stream": True}))
        assert all(served(server) for _ in range(5))
        server.wait_for(lambda: server.metric("engine_running") == 0)
        assert server.metric("http_requests_in_flight") == 2
        body = everything(raw, b"0\r\n\r\n")
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
        ids = [token for event in events for token in json.loads(event)["choices"][0]["token_ids"]]
        assert len(ids) == 1000
        assert len(events) < 1000
        assert b"data: [DONE]" in body


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_reads_nothing_is_cut_off(fake_server, stream):
    core = {"max_model_len": 1024, "step_s": 0.0005}
    with fake_server("--send-buffer", "4096", core=core, http={"write_stall_s": 0.3}) as server:
        with connect(server) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.sendall(post("/v1/completions", LONG | {"stream": stream}))
            server.wait_for(lambda: server.metric("engine_admitted_total") == 1)
            server.wait_for(lambda: server.metric("http_requests_in_flight") == 1)
            time.sleep(2.5)
            with pytest.raises((ConnectionResetError, AssertionError)):
                everything(raw, b"[DONE]\n\n\r\n0\r\n\r\n" if stream else b"}}")
        assert served(server)


def test_progress_is_told_from_standing_still():
    class Transport:
        def __init__(self, sizes: list[int]):
            self.sizes, self.aborted = sizes, False

        def get_write_buffer_size(self) -> int:
            return self.sizes.pop(0)

        def abort(self) -> None:
            self.aborted = True

    empty, reading, stuck, growing = (
        Transport(list(sizes)) for sizes in ([0] * 5, [50, 40, 40, 30, 20], [9] * 5, range(5, 10))
    )
    watch = StallWatch(2.5)
    for now in range(5):
        watch.look([t for t in (empty, reading, stuck, growing) if not t.aborted], now)
    assert [t.aborted for t in (empty, reading, stuck, growing)] == [False, False, True, True]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"GET * HTTP/1.1\r\n\r\n",
        b"GET " + b"a" * 100_000, b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b"GET /health HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", random.Random(7).randbytes(1000),
    ],
    ids=lambda data: repr(data[:30]),
)  # fmt: skip
def test_garbage_harms_nobody(slow, garbage):
    with connect(slow) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := raw.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
    assert not answer.startswith(b"HTTP/1.1 5")
    assert served(slow)


def test_requests_on_one_connection_are_answered_in_order(slow):
    with connect(slow) as raw:
        raw.sendall(post("/v1/completions", {"prompt": "say:one"}) + post("/v1/completions", {"prompt": "say:two"}))
        body = b""
        while body.count(b'"finish_reason"') < 2:
            body += raw.recv(65536)
    assert body.index(b'"text":"one"') < body.index(b'"text":"two"')


def test_a_request_in_small_pieces_is_a_request(slow):
    with connect(slow) as raw:
        for byte in post("/v1/completions", {"prompt": "say:a"}):
            raw.sendall(bytes([byte]))
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_client_that_asks_whether_to_go_on_is_told(slow):
    with connect(slow) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 18\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 100")
        raw.sendall(b'{"prompt":"say:a"}')
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")


def test_the_queue_is_bounded_and_says_when_to_come_back(fake_server):
    # 400 steps of the holders must outlast this test on the busiest machine: once two have ended, the queue has room.
    with fake_server(core={"step_s": 0.2, "max_batch": 2, "max_waiting": 4}) as server:
        holders = [connect(server) for _ in range(6)]
        for raw in holders:
            raw.sendall(post("/v1/completions", ENDLESS))
        server.wait_for(lambda: server.metric("engine_running") + server.metric("engine_waiting") == 6)
        with connect(server) as raw:
            raw.sendall(post("/v1/completions", GOOD | {"stream": True}))
            head, body = everything(raw, b"}}").split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 2" in head
        assert json.loads(body)["error"]["code"] == "queue_full"
        # All or nothing: a request with several answers leaves none of them behind.
        holders.pop().close()
        server.wait_for(lambda: server.metric("engine_running") + server.metric("engine_waiting") == 5)
        assert server.call("/v1/completions", GOOD | {"n": 2})[0] == 429
        server.wait_for(lambda: server.metric("engine_running") + server.metric("engine_waiting") == 5)
        for raw in holders:
            raw.close()
        server.wait_for(server.idle)
        assert served(server)


def test_cancels_and_neighbours(slow):
    """Survivors answer the same while others come and go."""

    def survivor(at: int) -> bool:
        status, body = slow.call("/v1/completions", {"prompt": f"say:survivor {at}", "max_tokens": 60})
        return status == 200 and json.loads(body)["choices"][0]["text"] == f"survivor {at}"

    def leaver(at: int) -> None:
        with connect(slow) as raw:
            raw.sendall(post("/v1/completions", ENDLESS | {"stream": at % 2 == 0}))
            time.sleep(0.01 * (at % 5))

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        leavers = [pool.submit(leaver, at) for at in range(45)]
        assert all(pool.map(survivor, range(12)))
        for future in leavers:
            future.result()
    slow.wait_for(slow.idle)


def test_a_stream_may_come_in_packs(fake_server):
    with fake_server(core={"step_s": 0.01}, http={"stream_interval": 4}) as server:
        asked = {"prompt": "The", "max_tokens": 21, "ignore_eos": True, "stream": True, "return_token_ids": True}
        status, body = server.call("/v1/completions", asked)
        assert status == 200
        events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
        sizes = [len(event["choices"][0]["token_ids"]) for event in events]
        assert sizes[0] < 4
        assert all(size >= 4 for size in sizes[1:-1])
        assert sum(sizes) == 21
