"""check, bench and serve on the smallest bundle, as a user types them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from vibeserve.measure import fake_server, launch

MINI = Path(__file__).parents[1] / "measure" / "data" / "mini"


def start(tmp_path, name, *settings):
    directory = tmp_path / name
    directory.mkdir()
    words = ["python", "-P", fake_server.__file__, *settings]
    (directory / "candidate.toml").write_text(f"start = {json.dumps(words)}\nready_timeout_s = 60\n")
    return launch(directory, tmp_path, log_dir=tmp_path / f"{name}-log")


def test_check(cli, tmp_path):
    with start(tmp_path, "good") as server, start(tmp_path, "bad", "--fault", "wrong-tokens") as wrong:
        code, out, _ = cli("check", MINI, "--url", server.url, "--model-dir", tmp_path, "--seed", 3)
        assert code == 0
        assert "passed: 4 of 4 cases passed" in out
        code, out, _ = cli("check", MINI, "--url", wrong.url, "--model-dir", tmp_path, "--json")
        assert code == 1
        document = json.loads(out)
        assert document["passed"] is False
        assert [case["ok"] for case in document["cases"]] == [False] * 4
        code, out, err = cli(
            "check", MINI, "--url", server.url, "--model-dir", tmp_path, "--json", "--", "--unheard-of"
        )
        assert code == 2
        assert json.loads(out)["error"]["message"].startswith("not run: checker.py could not run")
        assert "hint: " in err


def test_bench(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("vibeserve.measure.noise.Load.disturbances", lambda *_: [])  # other tests may run beside this
    with start(tmp_path, "a") as server, start(tmp_path, "b", "--ttft-s", "0.02") as slower:
        kept = tmp_path / "kept" / "bench.json"
        code, out, _ = cli(
            "bench",
            MINI,
            "--url",
            server.url,
            "--model-dir",
            tmp_path,
            "--json",
            "--output",
            kept,
            "--",
            "--max-tokens",
            4,
        )
        assert code == 0
        document = json.loads(out)
        assert document["metric"] == "output_tokens_per_s"
        assert document["unit"] == "tokens/s"
        assert document["value"] == document["output_tokens_per_s"] > 0
        assert document["ttft_s"] is None
        assert document["ttft_s_reason"] == "benchmark.py does not say"
        assert document["improvement"] is None
        assert document["improvement_reason"]
        assert json.loads(kept.read_text())["output_tokens_per_s"] == document["value"]
        arguments = [
            "--url",
            server.url,
            "--against",
            slower.url,
            "--pairs",
            5,
            "--window",
            0.4,
            "--model-dir",
            tmp_path,
        ]
        code, out, err = cli("bench", MINI, *arguments)
        assert code == 0
        ratio = float(out.partition("improvement: ")[2].partition(" times")[0])
        assert ratio > 1
        assert "5 pairs)" in out
        assert f"pair 5 of 5: {server.url}: " in err


def test_a_server_that_fails_has_no_value(cli, tmp_path):
    with start(tmp_path, "broken", "--fault", "error-500") as server:
        code, out, err = cli("bench", MINI, "--url", server.url, "--model-dir", tmp_path, "--json")
        assert code == 1
        document = json.loads(out)
        assert document["value"] is None
        assert "requests failed" in document["value_reason"]
        code, _, err = cli("bench", MINI, "--url", server.url, "--model-dir", tmp_path)
        assert code == 1
        assert "no value: 2 of 2 requests failed" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["check", MINI, "--url", "http://127.0.0.1:1"], 2, "no server answers at http://127.0.0.1:1"),
        (["bench", MINI, "--url", "http://127.0.0.1:1"], 2, "no server answers at http://127.0.0.1:1"),
        (["check", MINI, "--url", "here:80"], 2, "not the address of a server: 'here:80'"),
        (["check", MINI], 2, "--url"),
        (["bench", MINI, "--url", "http://127.0.0.1:1", "--pairs", 5], 2, "--pairs needs a second server"),
        (["bench", "no-such-bundle", "--url", "http://127.0.0.1:1"], 2, "no-such-bundle"),
        (["serve", "no-such-thing"], 2, "no-such-thing"),
    ],
)
def test_mistakes(cli, arguments, code, said):
    found, _, err = cli(*arguments)
    assert found == code
    assert said in err
    assert "Traceback" not in err


def test_serve_shows_the_log_of_a_server_that_does_not_start(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(MINI, tmp_path / "mini")
    (tmp_path / "mini" / "reference" / "reference.py").write_text(
        "print('reading weights')\nraise SystemExit('boom')\n"
    )
    (tmp_path / "model").mkdir()
    code, _, err = cli("serve", tmp_path / "mini", "--model-dir", tmp_path / "model", "--port", 0)
    assert code == 1
    assert "reading weights" in err
    assert "ended before it was ready: exit code 1 (boom)" in err
    assert "hint: the last lines of its log are above" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_serve_until_it_is_told_to_end(tmp_path, number):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vibeserve.cli.main", "serve", str(MINI), "--port", str(port), "--model-dir"]
    environment = os.environ | {"VIBESERVE_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [*command, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"http://127.0.0.1:{port} is ready after ".encode())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
            assert json.load(answer)["data"][0]["id"] == "fake"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    if number != signal.SIGKILL:
        assert process.returncode == 0
        assert b"ended" in err
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.05)
    raise AssertionError("the port is still held")


def test_serve_says_when_the_port_is_taken(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("serve", MINI, "--port", port, "--model-dir", tmp_path)
    assert code == 1
    assert "error: mini-" in err
    assert f"port {port} on 127.0.0.1: taken by another program" in err
    assert "--port" in err
