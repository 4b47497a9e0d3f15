"""Programs that are started: clean environment, all of it ended, nothing outlives us."""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from vibeserve.base import processes
from vibeserve.base.clock import LogicalClock
from vibeserve.base.processes import Command, ProcessError, SystemRunner, clean_environment, kill_marked, owns_port
from vibeserve.base.scripted import Script, ScriptedRunner

RUNNER = SystemRunner()


def command(tmp_path: Path, code: str, **changes: object) -> Command:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(code))
    values: dict = {
        "argv": (sys.executable, str(script)),
        "cwd": tmp_path,
        "stdout": tmp_path / "log",
        "env": clean_environment(),
    }
    return Command(**(values | changes))


def wait_for(condition, seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it never came")


def pids_in(path: Path, count: int) -> list[int]:
    def read():
        words = path.read_text().split() if path.exists() else []
        return [int(word) for word in words] if len(words) >= count else None

    return wait_for(read)


def gone(pids: list[int]) -> bool:
    return not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_exit_code_output_and_cpu_time(tmp_path):
    process = RUNNER.start(
        command(
            tmp_path,
            """
            import sys, time
            end = time.process_time() + 0.3
            while time.process_time() < end: pass
            print("to stdout"); print("to stderr", file=sys.stderr); sys.exit(7)
            """,
            stderr=tmp_path / "errors",
        )
    )
    assert process.wait(60) == 7
    assert process.poll() == 7
    assert process.reason == "exited"
    assert process.cpu_s() >= 0.3
    assert (tmp_path / "log").read_text() == "to stdout\n"
    assert (tmp_path / "errors").read_text() == "to stderr\n"


def test_environment_is_an_allow_list(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    code = "import os; print('SOME_API_KEY' in os.environ, os.environ['LANG'], os.environ['MINE'])"
    process = RUNNER.start(command(tmp_path, code, env=clean_environment({"MINE": "yes"})))
    assert process.wait(60) == 0
    assert (tmp_path / "log").read_text() == "False C.UTF-8 yes\n"


def test_what_cannot_be_started_is_said(tmp_path):
    with pytest.raises(ProcessError, match="cannot start '/no/such/program'"):
        RUNNER.start(command(tmp_path, "", argv=("/no/such/program",)))
    with pytest.raises(ProcessError, match="No such file"):
        RUNNER.start(command(tmp_path, "", cwd=tmp_path / "nowhere"))


STUBBORN = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    def away():                       # leaves the session and its parent
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 3)
                open("pids", "a").write(f"{os.getpid()} ")
                while True: time.sleep(1)
            os._exit(0)
    away()
    if os.fork() == 0:
        while True: time.sleep(1)
    open("pids", "a").write(f"{os.getpid()} ")
    while True: time.sleep(1)
"""


def test_end_takes_what_forked_left_and_ignores_the_signal(tmp_path):
    process = RUNNER.start(command(tmp_path, STUBBORN))
    pids = pids_in(tmp_path / "pids", 2)
    assert process.memory_bytes() > 0
    assert process.end(grace_s=0.2) == -signal.SIGKILL
    assert process.reason == "ended"
    assert gone(pids)
    assert kill_marked(processes.MARK, process.mark) == 0


def test_end_waits_for_a_graceful_end(tmp_path):
    code = """
        import signal, sys, time
        def stop(*_): time.sleep(0.2); print("drained", flush=True); sys.exit(0)
        signal.signal(signal.SIGTERM, stop); print("up", flush=True)
        while True: time.sleep(1)
    """
    process = RUNNER.start(command(tmp_path, code))
    wait_for(lambda: "up" in (tmp_path / "log").read_text())
    assert process.end(grace_s=10) == 0
    assert (tmp_path / "log").read_text() == "up\ndrained\n"


def test_leftovers_of_a_program_that_ended_by_itself_are_ended(tmp_path):
    process = RUNNER.start(command(tmp_path, STUBBORN.replace("while True: time.sleep(1)\n    open", "pass\n    open")))
    pids = pids_in(tmp_path / "pids", 2)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert gone(pids)


def test_memory_of_the_whole_tree_is_bounded(tmp_path):
    code = """
        import time
        kept = []
        while True:
            kept.append(bytearray(b"x" * (8 << 20))); time.sleep(0.01)
    """
    process = RUNNER.start(command(tmp_path, code, memory_bytes=150 << 20))
    assert process.wait(60) == -signal.SIGKILL
    assert process.reason == "memory"


def test_what_it_prints_is_bounded(tmp_path):
    process = RUNNER.start(command(tmp_path, "while True: print('x' * 100_000)", log_bytes=1 << 20))
    assert process.wait(60) == -signal.SIGKILL
    assert process.reason == "log"


def test_the_guard_knows_no_more_of_us_than_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    with RUNNER.start(command(tmp_path, "import time; time.sleep(600)")) as process:
        assert "SOME_API_KEY" not in psutil.Process(process._guard.pid).environ()


def test_limits_and_cpus(tmp_path):
    code = """
        import os, resource
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        print(cpus, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """
    process = RUNNER.start(command(tmp_path, code, cpus=frozenset({0}), limits={"RLIMIT_NOFILE": 77}))
    assert process.wait(60) == 0
    assert (tmp_path / "log").read_text() == "1 77\n"


def test_paused_processes_do_nothing_and_still_end(tmp_path):
    code = "import time\nwhile True: print('.', end='', flush=True); time.sleep(0.01)"
    process = RUNNER.start(command(tmp_path, code))
    log = tmp_path / "log"
    wait_for(lambda: log.stat().st_size > 0)
    process.pause()
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    size = log.stat().st_size
    time.sleep(0.2)
    assert log.stat().st_size == size
    process.resume()
    wait_for(lambda: log.stat().st_size > size)
    process.pause()
    assert process.end(grace_s=5) == -signal.SIGTERM


def test_a_killed_guard_takes_its_program_along(tmp_path):
    process = RUNNER.start(command(tmp_path, STUBBORN))
    pids = pids_in(tmp_path / "pids", 2)
    process._guard.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert process.reason == "lost"
    assert gone(pids)


def test_sweep_finds_what_a_crash_left(tmp_path):
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env=clean_environment({processes.GROUP_MARK: str(tmp_path)}),
    )
    try:
        wait_for(lambda: processes.guard.marked(processes.GROUP_MARK, str(tmp_path)))
        assert processes.sweep(str(tmp_path)) == 1
        assert orphan.wait(10) == -signal.SIGKILL
        assert processes.sweep(str(tmp_path)) == 0
    finally:
        orphan.kill()
        orphan.wait()


PARENT = """
    import sys
    from pathlib import Path
    from vibeserve.base.processes import Command, SystemRunner, clean_environment
    here = Path(sys.argv[1])
    for n in range(2):
        folder = here / str(n); folder.mkdir()
        SystemRunner().start(Command((sys.executable, str(here / "program.py")), folder, folder / "log",
                                     env=clean_environment({"HERE": str(folder)}), group=str(here)))
    print("started", flush=True)
    import time
    time.sleep(600)
"""

SERVER = """
    import os, signal, socket, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
    if os.fork() == 0:
        os.setsid()
    open(os.environ["HERE"] + "/pids", "a").write(f"{os.getpid()} ")
    open(os.environ["HERE"] + "/port", "w").write(str(s.getsockname()[1]))
    while True: time.sleep(1)
"""


def kill_the_parent(folder: Path, delay_s: float | None) -> None:
    """Start a parent that starts two servers, kill it with -9 (delay None: once all is up), and look around."""
    folder.mkdir()
    (folder / "program.py").write_text(textwrap.dedent(SERVER))
    (folder / "parent.py").write_text(textwrap.dedent(PARENT))
    parent = subprocess.Popen([sys.executable, str(folder / "parent.py"), str(folder)], stdout=subprocess.PIPE)
    try:
        if delay_s is None:
            for n in range(2):
                pids_in(folder / str(n) / "pids", 2)
        else:
            time.sleep(delay_s)
    finally:
        parent.kill()
        parent.communicate()
    wait_for(lambda: not processes.guard.marked(processes.GROUP_MARK, str(folder)), 15)
    for port in folder.glob("*/port"):
        if text := port.read_text():
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", int(text))) != 0


def test_nothing_outlives_a_parent_killed_with_9(tmp_path):
    kill_the_parent(tmp_path / "up", None)
    for number, delay_s in enumerate((0.15, 0.3, 0.45)):
        kill_the_parent(tmp_path / str(number), delay_s)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nothing_outlives_a_parent_killed_at_any_moment(tmp_path):
    moments = random.Random(20)
    for number in range(100):
        kill_the_parent(tmp_path / str(number), moments.uniform(0.0, 1.0))


def test_owner_of_a_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert owns_port([os.getpid()], port) in (True, None)
    assert owns_port([os.getpid()], port) in (False, None)


def test_scripted_processes_run_on_a_logical_clock(tmp_path):
    clock = LogicalClock()
    scripts = iter(
        [Script(exit_code=3, runs_for_s=10, output="hello"), Script(runs_for_s=None, deaf=True), Script(error="broken")]
    )
    runner = ScriptedRunner(lambda _: next(scripts), clock)
    first = runner.start(command(tmp_path, ""))
    assert first.wait(4) is None
    assert first.wait(100) == 3
    assert clock.monotonic_s() == 10
    assert (tmp_path / "log").read_text() == "hello"
    second = runner.start(command(tmp_path, ""))
    assert second.poll() is None
    assert second.end(grace_s=5) == -9
    assert clock.monotonic_s() == 15
    with pytest.raises(ProcessError, match="broken"):
        runner.start(command(tmp_path, ""))
