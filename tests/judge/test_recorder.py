"""The recorder that the benchmark is run against: what it answers, and what it keeps."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.judge.test_probes import bundle

from vibeserve.base.randomness import derive_seed
from vibeserve.judge import traffic
from vibeserve.judge.client import CHAT, COMPLETIONS
from vibeserve.judge.traffic import _recording, learn
from vibeserve.measure.gates import BenchResult


class Line:
    """One kept connection to a recorder."""

    def __init__(self, url: str):
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=10)

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.connection.request(method, path, data)
        response = self.connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def document(reply: tuple[int, dict[str, str], bytes]) -> Any:
    status, head, data = reply
    assert head["content-type"] == "application/json"
    assert int(head["content-length"]) == len(data)
    return status, json.loads(data)


def test_what_it_answers() -> None:
    with _recording() as (url, seen):
        line = Line(url)
        kept = line.connection
        status, models = document(line.send("GET", "/v1/models"))
        assert (status, models["data"][0]["id"], models["status"]) == (200, "recorder", "ok")
        status, whole = document(line.send("POST", CHAT, {"messages": [], "max_tokens": 40}))
        choice = whole["choices"][0]
        assert (status, choice["finish_reason"], choice["index"]) == (200, "length", 0)
        assert choice["message"]["content"] == choice["text"] == "x" * 5
        for asked, letters in ((8, 1), (1, 1), (0, 1), (-5, 1), (16, 2), ("many", 2)):
            _, whole = document(line.send("POST", COMPLETIONS, {"prompt": "p", "max_tokens": asked}))
            assert whole["choices"][0]["text"] == "x" * letters
        assert document(line.send("POST", CHAT, b"{"))[0] == 400
        assert document(line.send("POST", CHAT, b"[]"))[0] == 400
        assert document(line.send("POST", CHAT, None))[0] == 400
        assert line.connection is kept
        line.connection.close()
    assert [path for path, _, _ in seen.requests] == [CHAT, *[COMPLETIONS] * 6]
    path, head, body = seen.requests[0]
    assert (path, body) == (CHAT, {"messages": [], "max_tokens": 40})
    assert "Host" in dict(head)
    assert (seen.most, seen.running) == (1, 0)


@pytest.mark.parametrize(("path", "key"), [(CHAT, "delta"), (COMPLETIONS, "text")])
def test_a_stream(path: str, key: str) -> None:
    body = {"stream": True, "max_tokens": 16} | ({"messages": []} if key == "delta" else {"prompt": "p"})
    with _recording() as (url, _):
        line = Line(url)
        status, head, data = line.send("POST", path, body)
        assert (status, head["content-type"], int(head["content-length"])) == (200, "text/event-stream", len(data))
        event, done, rest = data.decode().split("\n\n")
        choice = json.loads(event.removeprefix("data: "))["choices"][0]
        assert choice[key] == ({"content": "xx"} if key == "delta" else "xx")
        assert ("text" in choice) is (key == "text")
        assert (done, rest) == ("data: [DONE]", "")
        line.connection.close()


def test_how_many_at_once() -> None:
    together = threading.Barrier(4)

    def send(url: str) -> None:
        line = Line(url)
        together.wait(20)
        line.send("POST", CHAT, {"messages": []})
        line.connection.close()

    most = 0
    for _ in range(20):  # a busy machine may spread four requests out
        with _recording() as (url, seen):
            threads = [threading.Thread(target=send, args=(url,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert (len(seen.requests), seen.running) == (4, 0)
        most = max(most, seen.most)
        if most == 4:
            break
    assert most == 4


def test_two_at_once_on_free_ports() -> None:
    with _recording() as (one, _), _recording() as (other, _):
        ports = {urllib.parse.urlsplit(url).port or 0 for url in (one, other)}
        assert len(ports) == 2
        assert min(ports) > 1023


def test_a_request_that_does_not_say_how_long_it_is() -> None:
    with _recording() as (url, seen):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=10)
        connection.putrequest("POST", CHAT)
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()
    assert seen.requests == []


def test_nobody_is_there_afterwards() -> None:
    with _recording() as (url, _):
        pass
    with pytest.raises(OSError):
        Line(url).send("GET", "/v1/models")


def test_how_the_benchmark_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmark.py").write_text("")
    target = replace(bundle(), benchmark=tmp_path, reference=tmp_path)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(*arguments: Any, **rest: Any) -> BenchResult:
        calls.append((arguments, rest))
        line = Line(arguments[1])
        line.send("POST", CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9})
        line.connection.close()
        return BenchResult(None, {}, 0, detail="no result")

    monkeypatch.setattr(traffic, "run_benchmark", run)
    found = learn(target, CHAT, 3)
    assert (found.prompts, found.output_tokens, found.width, found.problem) == (((("user", "hello"),),), 9, 1, "")
    assert (
        learn(target, COMPLETIONS, 3, tmp_path / "m").problem
        == f"the benchmark sent nothing to {COMPLETIONS}: no result"
    )
    (first, rest), (second, _) = calls[:2]
    assert (first[0], first[2], second[2]) == (target, tmp_path / "model", tmp_path / "m")
    for seed in range(8):
        learn(target, CHAT, seed)
    seeds = [rest["seed"] for _, rest in calls[2:]]
    assert seeds == [derive_seed(seed, "traffic") % 2**31 for seed in range(8)]
    assert seeds != [derive_seed(seed, "traffic") % 2**32 for seed in range(8)]
    assert 0.2 <= rest["window_s"] <= 1
    assert rest["timeout_s"] == 60.0
    assert rest["output"].name == "traffic.json"
    assert not rest["output"].parent.exists()
