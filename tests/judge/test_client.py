"""The judge's client on the wire: what it sends, what it reads, and what it says of a server that does otherwise."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from vibeserve.judge.client import CHAT, COMPLETIONS, ENDPOINTS, Answer, Client, first_model
from vibeserve.judge.traffic import HEAD, Traffic

#: A reply: bytes as they lie on the wire, in several parts with a pause between them. None closes the connection without one.
Reply = bytes | tuple[bytes, ...] | None
PAUSE_S = 0.3
ASKING: list[Client] = []
CLOSE = b"Connection: close\r\n"


def whole(document: Any, status: str = "200 OK", more: bytes = b"") -> bytes:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n" % (status.encode(), len(data), more) + data


def told(*events: Any, done: bool = True, end: bytes = b"\n\n") -> bytes:
    """Server-sent events."""
    lines = [b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + end for event in events]
    return b"".join([*lines, b"data: [DONE]" + end] if done else lines)


def stream(*events: Any, more: bytes = b"", **how: Any) -> bytes:
    """The same as a response, in one chunk."""
    data = told(*events, **how)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    return head + more + b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)


def piece(text: str | None, ids: Sequence[int] | None = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"delta": {} if text is None else {"content": text}, "finish_reason": reason}
    return {"choices": [choice | ({} if ids is None else {"token_ids": list(ids)})], **more}


class Wire:
    """A server on a socket: each request is answered by the next of `replies`; what came is kept."""

    def __init__(self, replies: Sequence[Reply] | Callable[[dict[str, Any]], Reply]):
        self.replies = replies
        self.requests: list[tuple[str, list[tuple[str, str]], dict[str, Any]]] = []
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: list[socket.socket] = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                self.open.append(connection)
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as line:
            while first := line.readline():
                head = []
                while (text := line.readline().decode().strip()) != "":
                    name, _, value = text.partition(": ")
                    head.append((name, value))
                length = next((int(value) for name, value in head if name.lower() == "content-length"), 0)
                body = json.loads(line.read(length)) if length else {}
                self.requests.append((first.decode().strip(), head, body))
                if callable(self.replies):
                    reply = self.replies(body)
                else:
                    reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
                if reply is None:
                    return
                for place, part in enumerate(reply if isinstance(reply, tuple) else (reply,)):
                    time.sleep(PAUSE_S if place else 0.0)
                    connection.sendall(part)
                if CLOSE in reply:
                    return

    def close(self) -> None:
        self.listener.close()
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(*replies: Reply) -> Wire:
        made.append(Wire(replies[0] if len(replies) == 1 and callable(replies[0]) else replies))
        return made[-1]

    yield make
    while ASKING:
        ASKING.pop().close()
    for one in made:
        one.close()


def client(server: Wire, endpoint: str = CHAT, model: str | None = "m", **more: Any) -> Client:
    ASKING.append(Client(server.url, endpoint, 5.0, model=model, **more))
    return ASKING[-1]


ANSWER = stream(piece("a", [1]), piece("b", [2], "length"), {"choices": [], "usage": {"completion_tokens": 2}})


UNSTREAMED = {"choices": [{"message": {"content": "x"}}]}


class TestWhatIsSent:
    def test_the_head_is_the_benchmarks(self, wire: Any) -> None:
        server = wire(ANSWER)
        head = (("host", ""), ("X-Own", "1"), ("Content-Length", ""), ("Accept", "text/event-stream"))
        client(server, traffic=Traffic(head, {"top_p": 0.5, "model": "other", "return_token_ids": False})).ask("p", 2)
        request, sent, body = server.requests[0]
        assert request == f"POST {CHAT} HTTP/1.1"
        assert [name for name, _ in sent] == [name for name, _ in head]
        assert dict(sent)["host"] == server.url.removeprefix("http://")
        assert int(dict(sent)["Content-Length"]) > 100
        assert list(body.items()) == [
            ("model", "m"), ("messages", [{"role": "user", "content": "p"}]), ("max_tokens", 2), ("temperature", 0.0),
            ("stream", True), ("stream_options", {"include_usage": True}), ("return_token_ids", True),
            ("ignore_eos", True), ("top_p", 0.5),
        ]  # fmt: skip

    def test_of_text_and_turns(self, wire: Any) -> None:
        server = wire(ANSWER, whole({"choices": [{"text": "x"}]}), ANSWER)
        client(server, COMPLETIONS, model="").ask("p", 2, stream=False, stop=["s"])
        request, sent, body = server.requests[0]
        assert request == f"POST {COMPLETIONS} HTTP/1.1"
        assert [name for name, _ in sent] == [name for name, _ in HEAD]
        assert body == {
            "prompt": "p", "max_tokens": 2, "temperature": 0.0, "stream": False, "return_token_ids": True,
            "ignore_eos": True, "stop": ["s"],
        }  # fmt: skip
        client(server).ask((("system", "s"), ("user", "u")), 2)
        assert server.requests[1][2]["messages"] == [
            {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("fields", "more"),
        [({}, False), ({"user": "me"}, True), ({"return_token_ids": True, "ignore_eos": True}, True),
         ({"return_token_ids": True, "ignore_eos": True, "stream_options": {}}, False)],
    )  # fmt: skip
    def test_as_the_benchmark_asks(self, wire: Any, fields: dict[str, Any], more: bool) -> None:
        server = wire(whole({"error": "no"}, "400 no"))
        asks = client(server, traffic=Traffic(fields=fields))
        assert asks.says_more is more
        assert asks.ask("p", 2, as_benchmark=True).refused
        assert asks.left_out == []  # nothing of ours was refused
        ((_, _, body),) = server.requests
        known = {"return_token_ids", "ignore_eos", "stream_options"}
        assert known & set(body) == known & set(fields)
        assert set(body) - known == {"model", "messages", "max_tokens", "temperature", "stream", *fields} - known

    def test_the_model_is_asked_for_once(self, wire: Any) -> None:
        server = wire(whole({"data": [{"id": "first"}, {"id": "second"}]}, more=CLOSE), ANSWER, ANSWER)
        asks = client(server, model=None)
        assert [asks.ask("p", 2).error for _ in range(2)] == ["", ""]
        assert [request.split()[1] for request, _, _ in server.requests] == ["/v1/models", CHAT, CHAT]
        assert {body["model"] for _, _, body in server.requests[1:]} == {"first"}

    @pytest.mark.parametrize("reply", [whole({"data": []}), whole({}), whole(b"no"), whole({}, "404 no"), None])
    def test_a_server_that_names_no_model(self, wire: Any, reply: Reply) -> None:
        assert first_model(wire(reply).url) == ""

    def test_a_server_that_names_one(self, wire: Any) -> None:
        server = wire(whole({"data": [{"id": 7}]}))
        assert first_model(f"{server.url}/") == "7"
        assert server.requests[0][0] == "GET /v1/models HTTP/1.1"
        assert sorted(ENDPOINTS) == ["openai-chat", "openai-completions"]


class TestRefusals:
    def test_what_is_not_known_is_left_out_in_order(self, wire: Any) -> None:
        def reply(body: dict[str, Any]) -> Reply:
            return whole({"error": "no"}, "400 no") if "ignore_eos" in body else ANSWER

        server = wire(reply)
        asks = client(server)
        answer = asks.ask("p", 2)
        assert (answer.error, answer.left_out) == ("", ("return_token_ids", "ignore_eos"))
        assert len(server.requests) == 3
        assert {"stream_options"} == {"return_token_ids", "ignore_eos", "stream_options"} & set(server.requests[-1][2])
        assert asks.ask("p", 2).error == ""
        assert len(server.requests) == 4

    def test_whoever_refuses_all_is_not_asked_for_ever(self, wire: Any) -> None:
        server = wire(whole({"error": "never"}, "422 no"))
        answer = client(server).ask("p", 2)
        assert (answer.refused, answer.prompt, answer.asked) == (True, "p", 2)
        assert answer.error == 'http 422: {"error": "never"}'
        assert len(server.requests) == 4

    def test_further_fields_are_not_what_is_left_out(self, wire: Any) -> None:
        server = wire(whole({"error": "no"}, "400 no"))
        asks = client(server)
        assert asks.ask("p", 2, seed=1).refused
        assert (len(server.requests), asks.left_out) == (1, [])

    @pytest.mark.parametrize(("status", "refused"), [("400", True), ("422", True), ("500", False), ("404", False)])
    def test_only_some_errors_refuse(self, wire: Any, status: str, refused: bool) -> None:
        assert client(wire(whole(b"a \n b", f"{status} no"))).ask("p", 1, seed=1).refused is refused
        assert client(wire(whole(b"a \n b", f"{status} no"))).ask("p", 1, seed=1).error == f"http {status}: a b"


class TestConnections:
    def test_one_is_kept_and_used_again(self, wire: Any) -> None:
        server = wire(ANSWER, whole(UNSTREAMED), whole(b"no", "500 no"), ANSWER)
        asks = client(server)
        errors = [asks.ask("p", 2, stream=place != 1).error for place in range(4)]
        assert errors == ["", "", "http 500: no", ""]
        assert server.connections == 1
        assert len(asks.idle) == 1
        asks.close()
        assert asks.idle == []

    def test_one_that_the_server_closes_is_not_kept(self, wire: Any) -> None:
        server = wire(stream(piece("a", [1], "stop"), more=CLOSE))
        asks = client(server)
        assert [asks.ask("p", 2).text for _ in range(2)] == ["a", "a"]
        assert server.connections == 2
        assert asks.idle == []

    def test_one_that_was_closed_meanwhile_is_opened_anew(self, wire: Any) -> None:
        server = wire(whole(UNSTREAMED), None, whole(UNSTREAMED))
        asks = client(server)
        assert [asks.ask("p", 2, stream=False).error for _ in range(2)] == ["", ""]
        assert (server.connections, len(server.requests)) == (2, 3)

    def test_a_new_one_that_is_closed_is_an_error(self, wire: Any) -> None:
        server = wire(None)
        answer = client(server).ask("p", 2)
        assert answer.error.startswith("RemoteDisconnected: ")
        assert (answer.prompt, answer.asked, len(server.requests)) == ("p", 2, 1)

    def test_nobody_there(self) -> None:
        answer = Client("http://127.0.0.1:9", CHAT, 1.0, model="m").ask("p", 2)
        assert answer.error.startswith("ConnectionRefusedError: ")

    @pytest.mark.parametrize(
        "reply",
        [b"rubbish\r\n\r\n", whole(b"}{"), whole({}), whole({"choices": [{}]}), whole([]), whole({"choices": {}})],
    )
    def test_what_is_no_answer(self, wire: Any, reply: bytes) -> None:
        server = wire(reply)
        asks = client(server)
        assert asks.ask("p", 2, stream=False).error
        assert asks.idle == []
        assert len(server.requests) == 1


class TestAWholeAnswer:
    def test_what_is_read(self, wire: Any) -> None:
        choice = {"message": {"content": "ab"}, "finish_reason": "length", "token_ids": [1, 2], "prompt_token_ids": [9]}
        server = wire(
            whole(
                {
                    "choices": [choice],
                    "usage": {"total_tokens": 3},
                    "created": 5,
                    "id": "x",
                    "model": "m",
                    "object": "o",
                }
            )
        )
        answer = client(server).ask("p", 2, stream=False)
        assert (answer.text, answer.token_ids, answer.prompt_ids) == ("ab", (1, 2), (9,))
        assert (answer.finish_reason, answer.usage) == ("length", {"total_tokens": 3})
        assert answer.said == {"usage": {"total_tokens": 3}, "created": 5}
        assert answer.total_s > 0
        assert answer.at_s > 1e9
        assert (answer.first_s, answer.last_s, answer.arrivals) == (None, None, ())

    @pytest.mark.parametrize("streamed", [True, False])
    def test_times_count_from_the_send(self, wire: Any, streamed: bool) -> None:
        asks = client(wire(ANSWER if streamed else whole(UNSTREAMED)))
        begin_s = time.perf_counter()
        answer = asks.ask("p", 2, stream=streamed)
        took_s = time.perf_counter() - begin_s
        assert 0 < answer.total_s < took_s
        assert all(0 < at_s < took_s for at_s, _, _ in answer.arrivals)

    def test_what_is_not_told(self, wire: Any) -> None:
        answer = client(wire(whole({"choices": [{"text": None}]})), COMPLETIONS).ask("p", 2, stream=False)
        assert (answer.text, answer.token_ids, answer.prompt_ids, answer.finish_reason) == ("", None, None, None)


class TestAStream:
    def test_what_is_read(self, wire: Any) -> None:
        server = wire(stream(
            piece("", []), piece("a", [1]), piece(None, [2, 3]), piece("b", [4], "length", created=8),
            {"choices": [], "usage": {"completion_tokens": 4}, "timings": {"a": 1}}, {"choices": None}, {},
        ))  # fmt: skip
        answer = client(server).ask("p", 4)
        assert (answer.text, answer.token_ids, answer.finish_reason) == ("ab", (1, 2, 3, 4), "length")
        assert answer.usage == {"completion_tokens": 4}
        assert answer.said == {"created": 8, "usage": {"completion_tokens": 4}, "timings": {"a": 1}}
        assert [(text, count) for _, text, count in answer.arrivals] == [("", 0), ("a", 1), ("", 2), ("b", 1)]
        assert answer.first_s is not None
        assert answer.last_s is not None
        assert 0 < answer.first_s <= answer.last_s <= answer.total_s
        assert answer.at_s > 1e9

    def test_text_alone(self, wire: Any) -> None:
        plain = [{"choices": [{"text": text}]} for text in "ab"]
        answer = client(wire(stream(*plain)), COMPLETIONS).ask("p", 4)
        assert (answer.text, answer.token_ids, answer.usage) == ("ab", None, None)

    @pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
    def test_the_ends_of_events(self, wire: Any, end: bytes) -> None:
        assert client(wire(stream(piece("a", [1]), piece("b", [2]), end=end))).ask("p", 2).text == "ab"

    def test_comments_and_further_lines_say_nothing(self, wire: Any) -> None:
        data = json.dumps(piece("a", [1])).encode()
        lines = b": a comment\n\nevent: message\ndata:" + data + b"\nid: 1\n\ndata:\n\ndata: [DONE]\n\n"
        assert client(wire(whole(lines))).ask("p", 2).text == "a"

    def test_empty_events_say_nothing(self, wire: Any) -> None:
        parts = b"\n\n" + told(piece("a", [1]), end=b"\n\n\n\n") + b"\n\n"
        assert client(wire(whole(parts))).ask("p", 2).text == "a"

    def test_what_comes_after_the_end_is_read_and_the_connection_kept(self, wire: Any) -> None:
        chunks = (told(piece("a", [1], "stop")), b": goodbye\n\n", b": and again\n\n")
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        server = wire(head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n")
        asks = client(server)
        assert [asks.ask("p", 2).text for _ in range(2)] == ["a", "a"]
        assert server.connections == 1

    def test_an_event_in_two_lines(self, wire: Any) -> None:
        head, tail = b'{"choices": [{"delta":', b'{"content": "a"}}]}'
        assert (
            client(wire(whole(b"data: " + head + b"\ndata: " + tail + b"\n\ndata: [DONE]\n\n"))).ask("p", 2).text == "a"
        )

    def test_one_that_is_cut_or_wrong(self, wire: Any) -> None:
        cut = client(wire(stream(piece("a", [1]), done=False))).ask("p", 2)
        assert (cut.error, cut.text) == ("ValueError: the stream ended without [DONE]", "")
        said = client(wire(stream(piece("a", [1]), {"error": "full"}))).ask("p", 2)
        assert said.error == "ValueError: the stream brought an error: full"
        assert "JSONDecodeError" in client(wire(stream(b"{"))).ask("p", 2).error

    def test_one_without_end(self, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vibeserve.judge.client._LIMIT_BYTES", 100)
        long = client(wire(stream(*[piece("a", [1])] * 9))).ask("p", 2)
        assert long.error == "ValueError: the stream does not end"
        monkeypatch.setattr("vibeserve.judge.client._LIMIT_BYTES", 16_000)
        assert client(wire(stream(*[piece("a", [1])] * 9))).ask("p", 2).error == ""

    def test_exactly_as_long_as_may_be(self, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vibeserve.judge.client._LIMIT_BYTES", len(told(piece("a", [1]))))
        assert client(wire(stream(piece("a", [1])))).ask("p", 2).error == ""

    def test_who_says_done_and_does_not_end_is_not_waited_for(self, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vibeserve.judge.client._END_S", 0.05)
        data = b"data: " + json.dumps(piece("a", [1])).encode() + b"\n\ndata: [DONE]\n\n"
        server = wire(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(data), data))
        asks = client(server)
        answer = asks.ask("p", 2)
        assert (answer.error, answer.text) == ("", "a")
        assert answer.total_s < 4
        assert asks.idle == []

    def test_a_pause_is_waited_for_until_all_is_said(self, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vibeserve.judge.client._END_S", PAUSE_S / 6)
        parts = stream(piece("a", [1]), piece("b", [2], "length"))
        at = parts.index(b"data: ") + 20
        server = wire(parts, (parts[:at], parts[at:]), (b"", parts))
        asks = client(server)
        assert [asks.ask("p", 2).text for _ in range(3)] == ["ab"] * 3
        assert server.connections == 1

    def test_one_that_says_nothing(self, wire: Any) -> None:
        answer = client(wire(stream())).ask("p", 2)
        assert (answer.error, answer.text, answer.token_ids, answer.total_s) == ("", "", None, 0.0)

    def test_usage_comes_once_and_stays(self, wire: Any) -> None:
        counted = {"choices": [], "usage": {"completion_tokens": 1}}
        answer = client(wire(stream(piece("a", [1], "stop"), counted, {"choices": [], "usage": None}))).ask("p", 2)
        assert answer.usage == {"completion_tokens": 1}
        assert answer.finish_reason == "stop"


class TestTheNextId:
    def test_it_is_asked_for_at_completions(self, wire: Any) -> None:
        server = wire(whole({"choices": [{"text": "a", "token_ids": [5]}]}), whole({"choices": [{"text": "a"}]}))
        asks = client(server)
        assert asks.next_id((1, 2)) == 5
        request, _, body = server.requests[0]
        assert request == f"POST {COMPLETIONS} HTTP/1.1"
        assert body == {
            "model": "m", "prompt": [1, 2], "max_tokens": 1, "temperature": 0.0, "return_token_ids": True,
            "ignore_eos": True,
        }  # fmt: skip
        assert asks.next_id((1,)) is None
        assert server.connections == 1


def test_of_what_arrived() -> None:
    answer = Answer("p", 3, arrivals=((0.1, "", 0), (0.2, "a", 1), (0.3, "b", 1), (0.4, "", 1)))
    assert (answer.first_s, answer.last_s) == (0.2, 0.3)
    assert not answer.refused
