"""What a candidate can see and reach behind each wall; nothing of this is taken on trust where bubblewrap runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from vibeserve.base.errors import MissingError
from vibeserve.measure import fake_server, sandbox
from vibeserve.measure.errors import StartError
from vibeserve.measure.launch import launch
from vibeserve.measure.sandbox import Bubblewrap, NoSandbox, Room, Seatbelt, choose, model_paths, try_bubblewrap

WALLS = choose()
needs_bubblewrap = pytest.mark.skipif(not isinstance(WALLS, Bubblewrap), reason=f"not run: {WALLS.name}")

# A server that tries out what it is asked to try: POST {"do": ..., "what": ...}.
TRIES = """
import argparse, glob, http.server, json, os, socket, subprocess, sys
p = argparse.ArgumentParser()
for name in ("--model-dir", "--host"): p.add_argument(name)
p.add_argument("--port", type=int)
a = p.parse_args()
def read(what): return open(what).read()
def write(what): open(what, "w").write("x"); return "written"
def ls(what): return sorted(os.listdir(what))
def connect(what):
    host, _, port = what.rpartition(":")
    socket.create_connection((host, int(port)), 2).close(); return "connected"
def processes(what): return [open(f).read().replace(chr(0), " ") for f in glob.glob("/proc/[0-9]*/cmdline")]
def kill(what): os.kill(int(what), 9); return "killed"
def fork(what): return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # " + what], start_new_session=True).pid
def env(what): return dict(os.environ)
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def answer(self, document):
        data = json.dumps(document).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    def do_GET(self): self.answer({})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try: self.answer({"got": globals()[asked["do"]](asked["what"])})
        except Exception as e: self.answer({"error": type(e).__name__ + ": " + str(e)})
http.server.ThreadingHTTPServer((a.host, a.port), H).serve_forever()
"""


@pytest.fixture
def tries(tmp_path: Path) -> Path:
    directory = tmp_path / "runs" / "mine"
    directory.mkdir(parents=True)
    (directory / "server.py").write_text(TRIES)
    (directory / "candidate.toml").write_text('start = ["python", "server.py"]\nready_timeout_s = 60\n')
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "secret").write_text("of another run")
    (tmp_path / "evaluator").mkdir()
    (tmp_path / "evaluator" / "checker.py").write_text("the answers")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_text("weights")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "weights" / "model.safetensors")
    return directory


def ask(url: str, do: str, what: object = "") -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps({"do": do, "what": str(what)}).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


@needs_bubblewrap
def test_files_of_others_are_not_there(tries: Path, tmp_path: Path) -> None:
    with launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS) as server:
        for path in (
            tmp_path / "runs" / "other" / "secret",
            tmp_path / "evaluator" / "checker.py",
            tmp_path / "logs" / "server.log",
            Path.home() / ".bashrc",
            Path(fake_server.__file__),
            "/etc/shadow",
        ):
            assert "FileNotFoundError" in ask(server.url, "read", path)["error"]
        assert ask(server.url, "read", tmp_path / "model" / "model.safetensors") == {"got": "weights"}
        for path in (
            tmp_path / "model" / "model.safetensors",
            tmp_path / "weights" / "model.safetensors",
            Path(sys.prefix) / "lib" / "sitecustomize.py",
            os.path.realpath(sys.executable),
        ):
            assert "Read-only" in ask(server.url, "write", path)["error"]
        assert ask(server.url, "write", "kept.txt") == {"got": "written"}
        assert ask(server.url, "write", "/tmp/gone.txt") == {"got": "written"}
        assert ask(server.url, "env")["got"]["HOME"] == "/tmp"
    assert (tries / "kept.txt").read_text() == "x"
    assert not Path("/tmp/gone.txt").exists()


@needs_bubblewrap
def test_no_network_and_no_other_process(tries: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS) as server:
            assert "error" in ask(server.url, "connect", f"127.0.0.1:{port}")
            assert "error" in ask(server.url, "connect", "192.0.2.1:80")
            assert ask(server.url, "connect", f"127.0.0.1:{server.port}") == {"got": "connected"}
            seen = ask(server.url, "processes")["got"]
            assert 0 < len(seen) <= 3
            assert all("server.py" in command for command in seen)
            assert "ProcessLookupError" in ask(server.url, "kill", os.getpid() + 100_000)["error"]


@needs_bubblewrap
def test_everything_ends_with_it(tries: Path, tmp_path: Path) -> None:
    word = f"left-behind-{os.getpid()}"
    with launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS) as server:
        assert "got" in ask(server.url, "fork", word)
        port = server.port
    assert not [p for p in psutil.process_iter(["cmdline"]) if word in " ".join(p.info["cmdline"] or [])]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@needs_bubblewrap
def test_everything_ends_with_us_killed(tries: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from vibeserve.measure.launch import launch\n"
        "from vibeserve.measure.sandbox import choose\n"
        f"s = launch(Path({str(tries)!r}), Path({str(tmp_path / 'model')!r}), log_dir=Path({str(tmp_path)!r}), sandbox=choose())\n"
        "print(s.port, s.pid, flush=True); time.sleep(60)"
    )
    us = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert us.stdout is not None
    pid = int(us.stdout.readline().split()[1])
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(family) >= 3
    us.kill()
    us.wait()
    us.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive


@needs_bubblewrap
def test_the_fake_server_streams_through_the_relay(candidate: Callable[..., Path], tmp_path: Path) -> None:
    directory = candidate()
    (directory / "server.py").write_bytes(Path(fake_server.__file__).read_bytes())
    (directory / "candidate.toml").write_text('start = ["python", "server.py"]\nready_timeout_s = 60\n')
    body = json.dumps({"prompt": "a", "max_tokens": 200, "stream": True}).encode()
    with launch(directory, tmp_path, log_dir=tmp_path / "logs", sandbox=WALLS) as server:
        answers: list[bytes] = []

        def send() -> None:
            request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                answers.append(response.read())

        threads = [threading.Thread(target=send) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 24
        assert all(answer.endswith(b"data: [DONE]\n\n") and answer.count(b"data: {") >= 200 for answer in answers)


@needs_bubblewrap
def test_the_end_is_told_as_without_walls(tries: Path, tmp_path: Path) -> None:
    (tries / "server.py").write_text("import sys; print('cannot load the model'); sys.exit(3)")
    with pytest.raises(StartError, match=r"exit code 3 \(cannot load the model\)"):
        launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS)
    (tries / "server.py").write_text("import os; os.kill(os.getpid(), 11)")
    with pytest.raises(StartError, match="ended by signal 11"):
        launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS)
    (tries / "candidate.toml").write_text('start = ["no-such-program"]')
    with pytest.raises(StartError, match="cannot start 'no-such-program'"):
        launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS)


@needs_bubblewrap
def test_a_port_that_is_taken_is_said(tries: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(StartError, match="taken by another"):
        launch(tries, tmp_path / "model", log_dir=tmp_path / "logs", sandbox=WALLS, port=listening.getsockname()[1])


def test_where_bubblewrap_cannot_run_the_reason_is_said(tmp_path: Path) -> None:
    refuses = tmp_path / "bwrap"
    refuses.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refuses.chmod(0o755)
    found = try_bubblewrap(str(refuses))
    assert isinstance(found, NoSandbox)
    assert "No permissions to create new namespace" in found.name
    assert not found.isolated
    assert isinstance(try_bubblewrap(str(tmp_path / "nothing")), NoSandbox)


def test_required_and_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_detect", lambda: NoSandbox("bubblewrap is not installed"))
    assert not choose().isolated
    with pytest.raises(MissingError, match="bubblewrap is not installed") as caught:
        choose(require=True)
    assert caught.value.exit_code == 3


def test_the_profile_of_macos(tmp_path: Path) -> None:
    room = Room(tmp_path / 'a "quoted" name', tmp_path / "model", "127.0.0.1", 8123)
    room.candidate_dir.mkdir()
    room.model_dir.mkdir()
    argv = (sys.executable, "server.py")
    profile = Seatbelt().profile(argv, room)
    lines = profile.splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    assert profile.count("(") == profile.count(")")
    assert f'(subpath "{tmp_path}/a \\"quoted\\" name")' in profile
    (writes,) = [line for line in lines if line.startswith("(allow file-write* (subpath")]
    assert str(tmp_path / "model") not in writes
    network = [line for line in lines if "network" in line]
    assert network
    assert all('"localhost:8123"' in line for line in network)
    assert not any("network-outbound" in line for line in lines)
    assert f'"{Path.home()}"' not in profile
    assert Seatbelt().wrap(argv, room) == ("/usr/bin/sandbox-exec", "-p", profile, *argv)


def test_links_of_a_model_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "one").write_text("x")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to("../blobs/one")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert set(model_paths(tmp_path / "link")) == {
        tmp_path / "link",
        tmp_path / "model",
        tmp_path / "blobs" / "one",
    }
