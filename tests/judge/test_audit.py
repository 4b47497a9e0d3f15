"""What a server is made of, as /proc tells it: processes, ports, files, and whom it talks to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.judge.test_probes import bundle

from vibeserve.judge import audit
from vibeserve.judge.audit import Seen
from vibeserve.measure import fake_server, launch
from vibeserve.measure.sandbox import choose

SEEN = Seen(7, "python", 5_000_000, (8000,), (), ("/candidate/server.py",))
# A server in two processes; the child has the file open that it is given.
PROGRAM = """
import http.server, subprocess, sys, os
child = subprocess.Popen([sys.executable, "-c", "import sys, time; kept = open(sys.argv[1]); print('on', flush=True); time.sleep(60)", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), H)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def evaluator(tmp_path: Path) -> Any:
    for name in ("checker", "benchmark", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.py").write_text("answers")
    return replace(bundle(), checker=tmp_path / "checker", benchmark=tmp_path / "benchmark")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(file: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / file)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{int(process.stdout.readline())}"

    yield start
    for process in started:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            one.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("file", "ok"), [("other/file.py", True), ("checker/file.py", False), ("benchmark/file.py", False)]
)
def test_a_file_of_the_evaluator_that_a_child_has_open(evaluator: Any, running: Any, file: str, ok: bool) -> None:
    result = audit.look(evaluator, running(file))
    assert result.ok is ok, result
    assert result.document["processes"] == 2
    assert result.document["memory_bytes"] > 1e6
    assert result.document["files"] >= 1
    assert len(result.document["ports"]) == 1
    assert (file in result.detail) is not ok


def test_nobody_and_ourselves_are_not_judged(evaluator: Any) -> None:
    assert audit.look(evaluator, "http://127.0.0.1:9").ok is None
    with socket.create_server(("127.0.0.1", 0)) as ours:
        result = audit.look(evaluator, f"http://127.0.0.1:{ours.getsockname()[1]}")
    assert result.ok is None
    assert "this very process" in result.detail


def test_behind_the_walls_it_is_seen_all_the_same(
    evaluator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walls = choose()
    if not walls.isolated:
        pytest.skip(f"not run: {walls.name}")
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "candidate"
    place.mkdir()
    (place / "server.py").write_bytes(Path(fake_server.__file__).read_bytes())
    (place / "candidate.toml").write_text('start = ["python", "server.py"]\nready_timeout_s = 20\n')
    with launch(place, tmp_path, log_dir=tmp_path / "logs", sandbox=walls) as server:
        result = audit.look(evaluator, server.url)
        assert result.ok is True, result
        assert server.port in result.document["ports"]
        assert result.document["processes"] >= 2


def test_judgement() -> None:
    guarded = [Path("/evaluator")]
    good = audit.judged([SEEN, replace(SEEN, pid=8, listens=(9000, 8000), files=("/evaluators/x", "/a"))], guarded)
    assert good.ok is True
    assert good.document == {"processes": 2, "memory_bytes": 10_000_000, "ports": [8000, 9000], "files": 3}
    assert good.detail == "2 processes, 10 MB, 3 files open, listening on 8000, 9000"
    assert "listening on nothing" in audit.judged([replace(SEEN, listens=())], guarded).detail
    opened = audit.judged([SEEN, replace(SEEN, pid=8, files=("/a", "/evaluator/checker.py"))], guarded)
    assert (opened.ok, opened.detail) == (False, "process 8 (python) has /evaluator/checker.py open")
    talks = audit.judged([replace(SEEN, talks_to=("192.0.2.1",))], guarded)
    assert (talks.ok, talks.detail) == (False, "process 7 (python) talks to 192.0.2.1")


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::2", False),
    ],
)
def test_what_is_this_machine(address: str, here: bool) -> None:
    assert audit._here(address) is here


def test_a_process_that_is_gone_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    known = psutil.Process(process.pid)
    process.wait()
    assert audit.seen_of(known) is None
    assert audit.family([known]) == []


def test_one_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken: list[socket.socket] = []
        thread = threading.Thread(target=lambda: taken.append(server.accept()[0]))
        thread.start()
        seen = audit.seen_of(psutil.Process())
        assert seen is not None
        assert seen.pid == os.getpid()
        assert port in seen.listens
        assert seen.talks_to == ()
        assert [one.pid for one in audit.holders(port)] == [os.getpid()]
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        taken[0].close()


def test_where_the_system_does_not_tell(evaluator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(kind: str) -> Any:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuses)
    assert audit.holders(80) == []
    result = audit.look(evaluator, "http://127.0.0.1:9")
    assert (result.ok, result.name) == (None, "processes")


def test_an_address_without_a_port_is_that_of_http(evaluator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(audit, "holders", lambda port: asked.append(port) or [])
    audit.look(evaluator, "http://127.0.0.1")
    audit.look(evaluator, "http://127.0.0.1:8123")
    assert asked == [80, 8123]


def test_all_that_came_of_a_process() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "/bin/sh -c 'sleep 60 & wait' & wait"]) as process:
        head = psutil.Process(process.pid)
        try:
            while len(head.children(recursive=True)) < 2:
                assert process.poll() is None
                time.sleep(0.01)
            found = audit.family([head])
            assert len(found) == 3
            assert {one.pid for one in found} == {process.pid, *(one.pid for one in head.children(recursive=True))}
        finally:
            for one in [*head.children(recursive=True), head]:
                one.kill()


def test_whom_a_process_talks_to() -> None:
    """No test reaches another machine: the process is one that tells of such connections."""
    here, there, port = ("127.0.0.1", 5), ("192.0.2.7", 443), ("127.0.0.1", 8000)
    rows = [
        SimpleNamespace(laddr=here, raddr=there, status="ESTABLISHED"),
        SimpleNamespace(laddr=here, raddr=("192.0.2.3", 9), status="ESTABLISHED"),
        SimpleNamespace(laddr=here, raddr=("127.0.0.1", 77), status="ESTABLISHED"),
        SimpleNamespace(laddr=port, raddr=(), status=psutil.CONN_LISTEN),
        SimpleNamespace(laddr=(), raddr=(), status=psutil.CONN_LISTEN),
    ]
    process: Any = SimpleNamespace(
        pid=7,
        name=lambda: "python",
        memory_info=lambda: SimpleNamespace(rss=5),
        net_connections=lambda kind: rows,
        open_files=lambda: [SimpleNamespace(path="/b"), SimpleNamespace(path="/a")],
    )
    assert audit.seen_of(process) == Seen(7, "python", 5, (0, 8000), ("192.0.2.3", "192.0.2.7"), ("/a", "/b"))
