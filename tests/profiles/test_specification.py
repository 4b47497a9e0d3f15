"""The specification's profiling snippets, read from its folder and run unchanged but for port and data path."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from tests.profiles import made

from vibeserve import profiles

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def text():
    folder = os.environ.get("VIBESERVE_SPEC")
    if not folder:
        pytest.skip("not run: VIBESERVE_SPEC is unset")
    from pathlib import Path

    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.txt")))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A home whose default data path holds `my-kernel`, and a server on it: (home, port)."""
    home = tmp_path_factory.mktemp("home")
    profiles.save(made.matmul_profile(), "my-kernel", home / ".local" / "share" / "neuron-profile")
    environment = {key: value for key, value in os.environ.items() if key != "VIBESERVE_DATA_PATH"} | {
        "HOME": str(home)
    }
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "vibeserve.cli.main",
            "profile",
            "serve",
            "--disable-ui",
            "--api-server-port",
            "0",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            told = json.loads("".join(itertools.takewhile(lambda line: line != "}\n", process.stdout)) + "}")
            found = re.search(r"http://localhost:(\d+)/", process.stderr.readline())
            assert found
            assert told == {"api": f"http://localhost:{found.group(1)}", "ui": None}
            yield home, int(found.group(1))
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()  # nothing where it has ended


def shell(script, home, port):
    """Run shell lines as typed, the port and the profile's name put in."""
    script = script.replace("localhost:3002", f"localhost:{port}")
    environment = {
        "HOME": str(home),
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "PROFILE_NAME": "my-kernel",
    }
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=90
    )


def test_every_curl_line_returns_rows(text, served):
    if shutil.which("curl") is None:
        pytest.skip("not run: no curl here")
    commands = re.findall(r"^curl -s -X POST .*\\\n(?:.*\\\n)*.*-d '.*'.*$", text, flags=re.M)
    assert len(commands) >= 7
    for command in commands:
        done = shell(command, *served)
        assert done.returncode == 0, command
        document = json.loads(done.stdout)
        assert "error" not in document, (command, document)
        assert len(document["data"]) > 0, command


def test_the_health_and_wait_lines(text, served):
    if shutil.which("curl") is None:
        pytest.skip("not run: no curl here")
    assert "curl -s http://localhost:3002/api/v1/health" in text
    assert "healthy" in shell("curl -s http://localhost:3002/api/v1/health", *served).stdout
    loop = re.search(r"^for i in \$\(seq 1 60\); do\n.*?^done$", text, flags=re.M | re.S)
    assert loop
    assert "API server ready" in shell(loop.group(0), *served).stdout


def test_the_duckdb_snippet(text, served):
    snippet = text[text.index("import duckdb\n") :]
    snippet = snippet[: snippet.index("print(result)") + len("print(result)")]
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(served[0])},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"overlap\s+2", done.stdout)
    assert re.search(r"lw_before\s+2", done.stdout)


def test_the_pandas_snippet(text, served):
    snippet = text[text.index("import pandas as pd, numpy as np, os\n") :]
    snippet = snippet[: snippet.index('/Flow.parquet")') + len('/Flow.parquet")')]
    snippet += "\nprint(len(inst), len(active), len(dma_pkts), len(dma_agg), len(tensors), len(flow), summary.total_time, metadata.tensor_engine_num_rows)"
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(served[0])},
    )
    assert done.returncode == 0, done.stderr
    counts = done.stdout.split()
    assert [int(count) for count in counts[:6]] == [
        16,
        len(profiles.open("my-kernel", served[0] / ".local/share/neuron-profile").table("ActiveTime")),
        8,
        8,
        3,
        8,
    ]
    assert float(counts[6]) == 4e-6


def test_the_jq_lines(text, served):
    if shutil.which("jq") is None:
        pytest.skip("not run: no jq here")
    filters = re.findall(r"^jq '(.*)'$", text, flags=re.M)
    assert len(filters) >= 4
    for expression in filters:
        done = shell(f"python -m vibeserve.cli.main profile summary my-kernel --json | jq '{expression}'", *served)
        assert done.returncode == 0, done.stderr
        value = json.loads(done.stdout)
        values = value.values() if isinstance(value, dict) else [value]
        assert all(isinstance(item, int | float) for item in values), (expression, value)
