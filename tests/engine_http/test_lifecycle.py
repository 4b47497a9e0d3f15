"""From the start to the end of a server process: readiness, drain, failures, exit codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from vibeserve.engine.errors import SettingsError
from vibeserve.engine.http.settings import HttpSettings, http_settings_from

SLOW = {"prompt": "say:" + "slow " * 20, "max_tokens": 100}


def test_health_is_503_until_the_model_is_there(fake_server):
    with fake_server("--load-s", "1.0", ready=False) as server:
        assert server.get("/health") == (503, b'{"status":"starting"}')
        status, body = server.call("/v1/completions", {"prompt": "a"})
        assert (status, json.loads(body)["error"]["code"]) == (503, "not_ready")
        assert server.get("/v1/models")[0] == 503
        assert server.metric("http_ready") == 0
        server.wait_for(lambda: server.get("/health") == (200, b'{"status":"ready"}'))
        assert server.metric("http_ready") == 1


def test_a_model_that_cannot_be_loaded_ends_the_process(fake_server):
    with fake_server("--fail-to-load", ready=False) as server:
        assert server.process.wait(20) == 1
        assert "told not to load" in server.log.read_text()


def test_a_server_may_be_ended_while_it_loads(fake_server):
    with fake_server("--load-s", "120", ready=False) as server:
        assert server.get("/health")[0] == 503
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_finishes_what_is_in_flight_and_exits_0(fake_server, number):
    with fake_server(core={"step_s": 0.02}) as server:
        answers: list[tuple[int, bytes]] = []
        asking = threading.Thread(target=lambda: answers.append(server.call("/v1/completions", SLOW)))
        asking.start()
        server.wait_for(lambda: server.metric("engine_running") == 1)
        with socket.create_connection(("127.0.0.1", server.port)) as idle:
            server.process.send_signal(number)
            assert server.process.wait(20) == 0
            assert idle.recv(10) == b""
        asking.join()
        ((status, body),) = answers
        assert status == 200
        assert json.loads(body)["choices"][0]["text"] == "slow " * 20


def test_a_stream_in_flight_is_finished_too(fake_server):
    with fake_server(core={"step_s": 0.02}) as server, socket.create_connection(("127.0.0.1", server.port)) as raw:
        body = json.dumps(SLOW | {"stream": True}).encode()
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        answer = raw.recv(1000)
        server.process.send_signal(signal.SIGTERM)
        while part := raw.recv(65536):
            answer += part
        assert b"data: [DONE]" in answer
        assert server.process.wait(20) == 0


def test_a_drain_has_an_end(fake_server):
    with fake_server(core={"step_s": 0.5}, http={"drain_s": 1}) as server:
        answers: list[tuple[int, bytes]] = []
        asked = {"prompt": "The", "max_tokens": 400, "ignore_eos": True}
        asking = threading.Thread(target=lambda: answers.append(server.call("/v1/completions", asked)))
        asking.start()
        server.wait_for(lambda: server.metric("engine_running") == 1)
        began = time.monotonic()
        assert server.end() == 0
        assert time.monotonic() - began < 10
        asking.join()
        assert answers[0][0] == 503


def test_an_engine_that_dies_is_said_and_ends_the_process(fake_server):
    with fake_server(core={"fail_at_step": 5}) as server:
        status, body = server.call("/v1/completions", SLOW)
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (503, "engine_failed")
        assert "told to fail" in error["message"]
        assert server.process.wait(20) == 1


def test_an_engine_that_dies_ends_streams_with_an_error(fake_server):
    with fake_server(core={"fail_at_step": 5}) as server:
        status, body = server.call("/v1/completions", SLOW | {"stream": True})
        assert status == 200
        assert b'data: {"error":' in body
        assert b"[DONE]" not in body


def serve(*arguments: object, config: str | None = "", folder) -> subprocess.CompletedProcess[str]:
    script = folder / "server.py"
    script.write_text("from vibeserve.engine.serve import main\nmain()\n")
    if config is not None:
        (folder / "engine.toml").write_text(config)
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "engine.toml does not exist"),
        ("x", "is not TOML"),
        ("[other]\n", "unknown key 'other'"),
        ("[engine]\nspeed = 3\n", "unknown key 'speed'"),
        ("[http]\nport = 3\n", "unknown key 'port'"),
        ("[http]\ndrain_s = 'x'\n", "drain_s must be float"),
    ],
)
def test_bad_settings_are_said_and_exit_2(tiny_model, tmp_path, config, said):
    done = serve("--model-dir", tiny_model, config=config, folder=tmp_path)
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert all(line.startswith("hint: ") for line in rest)


def test_a_taken_port_and_a_missing_model_exit_2(tiny_model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = serve("--model-dir", tiny_model, "--port", taken.getsockname()[1], folder=tmp_path)
    assert done.returncode == 2
    assert "cannot listen" in done.stderr
    done = serve("--model-dir", tmp_path / "none", "--port", 0, folder=tmp_path)
    assert done.returncode == 2
    assert "no config.json" in done.stderr


def test_http_settings():
    assert http_settings_from({}) == HttpSettings()
    assert http_settings_from({"drain_s": 5, "model_name": "m"}) == HttpSettings(drain_s=5.0, model_name="m")
    for table in ({"drain_s": -1}, {"max_body_bytes": 1.5}, {"model_name": 3}, {"keep_alive_s": float("nan")}):
        with pytest.raises(SettingsError, match=next(iter(table))):
            http_settings_from(table)
