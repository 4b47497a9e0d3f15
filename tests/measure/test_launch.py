"""Start, readiness, early death, ports, and an end that leaves nothing."""

import contextlib
import errno
import http.client
import json
import os
import socket
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from vibeserve.base.clock import LogicalClock
from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.files import DiskFiles
from vibeserve.base.scripted import Script, ScriptedRunner
from vibeserve.measure.errors import KilledError, RunError, StartError
from vibeserve.measure.launch import health_status, launch


def nobody_listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_started_ready_and_gone(candidate, tmp_path):
    with launch(candidate(), tmp_path, log_dir=tmp_path / "logs", env={"MINE": "1"}) as server:
        assert health_status(server.host, server.port, "/health", 5) == 200
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert server.ready_s > 0
        environment = psutil.Process(server.pid).environ()
        assert environment["MINE"] == "1"
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert "VIBESERVE_RUNS_DIR" not in environment
        server.require_alive()
        assert server.log.read_text().startswith("$ ")
        assert f"--model-dir {tmp_path}" in server.log.read_text()
    assert nobody_listens(server.port)
    assert server.failure() is not None


def test_ended_also_when_the_block_fails(candidate, tmp_path):
    servers = []

    def fail():
        with launch(candidate(fault="deaf"), tmp_path, log_dir=tmp_path) as server:
            servers.append(server)
            server.stop(0.1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert nobody_listens(servers[0].port)


def test_early_death_is_noticed_at_once_with_its_log(candidate, tmp_path):
    with pytest.raises(StartError) as caught:
        launch(candidate(fault="early-exit", toml="ready_timeout_s = 600"), tmp_path, log_dir=tmp_path)
    assert "exit code 3 (scripted: cannot load the model)" in caught.value.message
    assert "cannot load the model" in caught.value.tail
    assert str(tmp_path / "server.log") in caught.value.hint


@pytest.mark.parametrize(("fault", "said"), [("never-ready", "answers 503"), ("no-listen", "does not answer")])
def test_never_ready(candidate, tmp_path, fault, said):
    with pytest.raises(StartError, match=r"not ready after 1\.5 s") as caught:
        launch(candidate(fault=fault, toml="ready_timeout_s = 1.5"), tmp_path, log_dir=tmp_path)
    assert said in caught.value.message


def test_ready_late_is_ready(candidate, tmp_path):
    with launch(candidate(ready_after_s=0.5), tmp_path, log_dir=tmp_path) as server:
        assert server.ready_s > 0.5


def test_a_program_that_is_not_there(tmp_path):
    (tmp_path / "candidate.toml").write_text('start = ["no-such-program"]')
    with pytest.raises(StartError, match="cannot start 'no-such-program'"):
        launch(tmp_path, tmp_path, log_dir=tmp_path / "logs")


def test_requirements_that_are_not_there(candidate, tmp_path):
    directory = candidate()
    (directory / "requirements.txt").write_text("no-such-package==1\n")
    with pytest.raises(StartError, match="no-such-package==1 \\(not installed\\)") as caught:
        launch(directory, tmp_path, log_dir=tmp_path)
    assert "nothing is installed during a run" in caught.value.hint


def test_a_kernel_has_no_server(tmp_path):
    (tmp_path / "candidate.toml").write_text('kernel = "kernel.py:fused"')
    with pytest.raises(InputError, match="kernel candidate"):
        launch(tmp_path, tmp_path, log_dir=tmp_path)


def test_a_taken_port_is_tried_again_elsewhere(candidate, tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        launching = sys.modules["vibeserve.measure.launch"]  # the name in the package is the function's
        free = launching.free_port
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(launching, "free_port", lambda host: next(ports, None) or free(host))
        with launch(candidate(), tmp_path, log_dir=tmp_path / "logs") as server:
            assert server.port != taken.getsockname()[1]
        assert server.log.name == "server-2.log"


def test_a_port_that_the_user_chose_and_that_is_taken(candidate, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartError, match="taken by another program"):
            launch(candidate(), tmp_path, log_dir=tmp_path, port=taken.getsockname()[1])


def test_somebody_elses_health_is_not_taken_for_ours(candidate, tmp_path):
    with launch(candidate(), tmp_path, log_dir=tmp_path / "other") as other:
        silent = candidate("silent", fault="no-listen")
        with pytest.raises(StartError, match="taken by another program"):
            launch(silent, tmp_path, log_dir=tmp_path, port=other.port)


def test_death_after_readiness(candidate, tmp_path):
    with launch(candidate(), tmp_path, log_dir=tmp_path) as server:
        os.kill(server.pid, 9)
        server.process.wait(10)
        with pytest.raises(KilledError, match="the server died: ended by signal 9"):
            server.require_alive()


def test_too_much_memory(candidate, tmp_path):
    with launch(candidate(fault="leak", leak_mb=200), tmp_path, log_dir=tmp_path, memory_bytes=150 << 20) as server:
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        # The guard may look while the request is still being answered: then there is no answer.
        with contextlib.suppress(OSError, http.client.HTTPException):
            urllib.request.urlopen(server.url + "/v1/completions", body, timeout=60).read()
        assert server.process.wait(20) == -9
        with pytest.raises(RunError, match="more memory than it may") as caught:
            server.require_alive()
        assert not isinstance(caught.value, KilledError), "that was us, and once is enough"


class FullDisk(DiskFiles):
    def append_text(self, path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said(candidate, tmp_path):
    with pytest.raises(MissingError, match=r"cannot write .*server\.log: No space left") as caught:
        launch(candidate(), tmp_path, log_dir=tmp_path, files=FullDisk())
    assert caught.value.exit_code == 3


def test_a_host_that_is_not_here(candidate, tmp_path):
    with pytest.raises(InputError, match=r"cannot listen on .203\.0\.113\.7"):
        launch(candidate(), tmp_path, log_dir=tmp_path, host="203.0.113.7")


def test_on_a_logical_clock(tmp_path):
    (tmp_path / "candidate.toml").write_text('start = ["server"]\nready_timeout_s = 100')
    clock = LogicalClock()
    runner = ScriptedRunner(lambda command: Script(runs_for_s=None), clock)
    with pytest.raises(StartError, match="not ready after 100 s: /health answers 503"):
        launch(tmp_path, tmp_path, log_dir=tmp_path, runner=runner, clock=clock, probe=lambda *_: 503)
    assert 100 <= clock.monotonic_s() < 101
    assert runner.started[0].reason == "ended"
    assert runner.started[0].command.argv[:1] == ("server",)
    assert runner.started[0].command.argv[1:5] == ("--model-dir", str(tmp_path), "--host", "127.0.0.1")


def test_a_log_of_strange_bytes(tmp_path):
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100); sys.exit(5)"
    (tmp_path / "candidate.toml").write_text(f'start = ["{sys.executable}", "-c", "{script}"]')
    with pytest.raises(StartError, match="exit code 5"):
        launch(tmp_path, tmp_path, log_dir=tmp_path / "logs")
