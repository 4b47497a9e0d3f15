"""evaluate, as a user types it: each verdict, and mistakes."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from vibeserve.measure import fake_server
from vibeserve.measure.sandbox import NoSandbox, choose
from vibeserve.search.evaluate import most_pairs, spend

MINI = Path(__file__).parents[1] / "measure" / "data" / "mini"


@pytest.fixture
def evaluate(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("vibeserve.measure.noise.Load.disturbances", lambda *_: [])  # other tests may run beside this
    (tmp_path / "model").mkdir()

    def run(candidate, *more):
        words = ["evaluate", MINI, "--candidate", candidate, "--model-dir", tmp_path / "model", "--seed", 1]
        return cli(*words, "--pairs", 5, "--window", 0.4, "--json", *more)

    return run


@pytest.fixture
def fake(tmp_path):
    def make(name, *settings):
        directory = tmp_path / name
        directory.mkdir()
        shutil.copy(fake_server.__file__, directory / "server.py")
        words = ["python", "-P", "server.py", *settings]
        (directory / "candidate.toml").write_text(f"start = {json.dumps(words)}\nready_timeout_s = 60\n")
        return directory

    return make


def test_a_better_candidate_is_kept(evaluate, fake, tmp_path):
    code, out, err = evaluate(fake("fast", "--ttft-s", "0.0005", "--tpot-s", "0.0001"), "--output", tmp_path / "kept")
    document = json.loads(out)
    assert (code, document["verdict"]) == (0, "kept")
    assert document["improvement"]["ratio"] > document["improvement"]["ci95"][0] > 1
    assert document["improvement"]["pairs"] == 5
    assert document["value"] > 0
    names = ["start", "check", "probe probes", "integrity", "probe probes after the load", "restart", "measure"]
    assert [gate["name"] for gate in document["gates"]] == names
    assert [gate["ok"] for gate in document["gates"]] == [True, True, None, True, None, True, True]
    assert "pair 5 of 5: candidate: " in err
    assert (tmp_path / "kept" / "candidate" / "server.log").exists()
    assert (tmp_path / "kept" / "windows" / "pair-05-b.json").exists()


def test_no_better_than_another(evaluate, fake):
    code, out, _ = evaluate(fake("slow", "--ttft-s", "0.02"), "--against", fake("other", "--ttft-s", "0.001"))
    document = json.loads(out)
    assert (code, document["verdict"]) == (0, "not-better")
    assert document["improvement"]["ratio"] < 1
    assert "times the other" in document["reason"]


@pytest.mark.parametrize(
    ("settings", "verdict", "said"),
    [
        (("--fault", "early-exit"), "failed-start", "cannot load the model"),
        (("--fault", "wrong-tokens"), "rejected-accuracy", "token ids differ"),
        (("--fault", "half-close"), "rejected-accuracy", "IncompleteRead"),
        (("--fault", "die", "--after", "6"), "failed-run", "the server died: exit code 9"),
        (("--fault", "error-500", "--after", "4"), "failed-run", "requests failed"),
    ],
)
def test_every_rejection_has_its_verdict_and_reason(evaluate, fake, settings, verdict, said):
    code, out, err = evaluate(fake("bad", *settings))
    document = json.loads(out)
    assert (code, document["verdict"]) == (1, verdict)
    assert said in document["reason"]
    assert document["value"] is None
    assert document["improvement"] is None
    assert document["value_reason"]
    assert any(gate["ok"] is False for gate in document["gates"])
    assert "Traceback" not in err


def test_one_that_leaks_until_its_memory_is_spent_has_failed(evaluate, fake, monkeypatch):
    launching = sys.modules["vibeserve.measure.launch"]  # the name in the package is the function's
    monkeypatch.setattr(launching, "_memory_limit", lambda: 300 << 20)
    code, out, _ = evaluate(fake("leaky", "--fault", "leak", "--leak-mb", "60"))
    document = json.loads(out)
    assert (code, document["verdict"]) == (1, "failed-run")
    assert "it took more memory than it may" in document["reason"]


@pytest.fixture
def sly(fake):
    """A candidate that overwrites the model's weights where it can."""
    directory = fake("sly")
    (directory / "server.py").rename(directory / "fake_server.py")
    (directory / "server.py").write_text(
        "import contextlib, pathlib, sys\n"
        "sys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
        "from fake_server import main\n"
        "model = pathlib.Path(sys.argv[sys.argv.index('--model-dir') + 1])\n"
        "with contextlib.suppress(OSError):\n"
        "    (model / 'weights.bin').write_bytes(b'mine')\n"
        "sys.exit(main())\n"
    )
    return directory


@pytest.mark.slow
def test_in_the_sandbox_a_candidate_cannot_touch_the_evaluator(evaluate, sly, tmp_path):
    if not choose().isolated:
        pytest.skip("not run: there is no sandbox here")
    _, out, _ = evaluate(sly)
    assert json.loads(out)["verdict"] in ("kept", "not-better")
    assert not (tmp_path / "model" / "weights.bin").exists()


def test_a_candidate_that_touches_the_evaluator_is_caught(evaluate, sly, monkeypatch):
    monkeypatch.setattr("vibeserve.measure.sandbox._detect", lambda: NoSandbox("for a test"))
    code, out, _ = evaluate(sly)
    document = json.loads(out)
    assert (code, document["verdict"]) == (1, "rejected-integrity")
    assert document["sandbox"].startswith("none (for a test)")
    assert "model/weights.bin" in document["reason"]


@pytest.mark.parametrize("verb", ["evaluate", "optimize"])
def test_a_sandbox_that_is_required_and_not_there_is_refused(cli, fake, tmp_path, monkeypatch, verb):
    monkeypatch.setattr("vibeserve.measure.sandbox._detect", lambda: NoSandbox("for a test"))
    more = ["--candidate", fake("good"), "--model-dir", tmp_path] if verb == "evaluate" else ["--runs-dir", tmp_path]
    code, out, _ = cli(verb, MINI, *more, "--require-sandbox", "--json")
    assert code == 3
    assert "for a test" in json.loads(out)["error"]["message"]


def test_another_that_fails_is_no_verdict_on_the_candidate(evaluate, fake):
    code, _, err = evaluate(fake("good"), "--against", fake("broken", "--fault", "early-exit"))
    assert code == 1
    assert "error: the server to compare with did not start" in err


def test_a_program_that_the_sandbox_hides_is_explained(evaluate, fake, tmp_path):
    if not choose().isolated:
        pytest.skip(f"not run: {choose().name}")
    outside = tmp_path / "elsewhere" / "llama-server"
    outside.parent.mkdir()
    outside.write_text("#!/bin/sh\nexit 0\n")
    outside.chmod(0o755)
    directory = fake("wrapper")
    (directory / "serve.sh").write_text(f"#!/bin/sh\nexec {outside}\n")
    (directory / "serve.sh").chmod(0o755)
    (directory / "candidate.toml").write_text('start = ["./serve.sh"]\n')
    code, out, _ = evaluate(directory)
    document = json.loads(out)
    assert (code, document["verdict"]) == (1, "failed-start")
    assert "llama-server: not found" in document["reason"]
    assert "in the sandbox it sees its own directory" in document["reason"]


@pytest.mark.parametrize(
    ("left_s", "pairs", "window_s", "spent"),
    [
        (1000, None, None, (8, 15.0)),
        (200, None, None, (8, 6.8)),
        (112, None, None, (5, 5.2)),
        (100, None, None, (5, 4.1)),
        (-50, None, None, (5, 4.0)),
        (300, 12, None, (12, 7.0)),
        (200, None, 15.0, (5, 15.0)),
        (340, None, 15.0, (8, 15.0)),
        (0, 6, 0.4, (6, 0.4)),
    ],
)
def test_pairs_and_windows_follow_from_what_is_left_of_the_budget(left_s, pairs, window_s, spent):
    assert spend(left_s, pairs, window_s) == spent


@pytest.mark.parametrize(
    ("left_s", "most"), [(None, 20), (10_000, 20), (820, 20), (780, 19), (340, 8), (300, 7), (0, 0)]
)
def test_noise_adds_pairs_as_far_as_the_budget_goes(left_s, most):
    assert max(0, most_pairs(left_s, 15.0)) == most


def test_mistakes(evaluate, fake, tmp_path):
    assert evaluate(tmp_path / "nowhere")[0] == 2
    for wrong in ("soon", "400k tokens"):
        code, out, _ = evaluate(fake(wrong), "--budget", wrong)
        assert code == 2
        assert "--budget" in json.loads(out)["error"]["message"]
    code, out, _ = evaluate(fake("x"), "--pairs", 4)
    assert code == 2
    assert "too few for an interval" in json.loads(out)["error"]["message"]
    (tmp_path / "x" / "candidate.toml").write_text('start = ["python"]\nstrat = 1\n')
    code, out, _ = evaluate(tmp_path / "x")
    assert code == 2
    assert "unknown key 'strat'" in json.loads(out)["error"]["message"]


VERDICTS = dict.fromkeys(fake_server.FAULTS, "rejected-accuracy") | {
    "never-ready": "failed-start",
    "no-listen": "failed-start",
    "early-exit": "failed-start",
    "die": "failed-run",
    "deaf": "not-better",
    "chatty": "not-better",
    "leak": "not-better",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", VERDICTS)
def test_every_fault_ends_in_a_verdict(evaluate, fake, fault):
    directory = fake("bad", "--fault", fault, "--ttft-s", "0.02", "--leak-mb", "1")
    if VERDICTS[fault] == "failed-start":
        toml = directory / "candidate.toml"
        toml.write_text(toml.read_text().replace("ready_timeout_s = 60", "ready_timeout_s = 3"))
    code, out, err = evaluate(directory)
    document = json.loads(out)
    assert document["verdict"] == VERDICTS[fault]
    assert code == (0 if VERDICTS[fault] == "not-better" else 1)
    assert document["reason"]
    assert "Traceback" not in err


def processes_of(folder):
    """Everything alive whose command line names `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_any_moment_it_leaves_nothing(fake, tmp_path):
    moments = random.Random(5)
    command = [sys.executable, "-m", "vibeserve.cli.main", "evaluate", str(MINI), "--model-dir", str(tmp_path)]
    command += ["--candidate", str(fake("candidate")), "--pairs", "5", "--window", "0.3"]
    environment = os.environ | {"VIBESERVE_CACHE_DIR": str(tmp_path / "cache")}
    for _ in range(12):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        time.sleep(moments.uniform(0.3, 8.0))
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
