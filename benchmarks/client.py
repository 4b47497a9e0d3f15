"""The load client: its own overhead at 500 requests a second, and queueing latency against what theory says.

The client is the benchmark of a packaged bundle; its model's directory comes from `vibeserve materialize`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rows import Row

BUNDLE = "smollm2-135m-cpu-chat"
RATE = 500.0
CALIBRATION_S = 5.0
# One server, fixed service time, Poisson arrivals (M/D/1): a request waits rho · D / (2 · (1 - rho)) on average.
SERVICE_S = 0.005
LOAD = 0.5
QUEUE_S = 60.0


def rows() -> list[Row]:
    """Overhead, punctuality, and the M/D/1 queue."""
    from vibeserve.targets import materialize, read_bundle

    bundle = read_bundle(BUNDLE)
    model = materialize(bundle)
    with tempfile.TemporaryDirectory(prefix="vibeserve-bench-") as folder:
        document = _queue(bundle.benchmark_script, Path(model), Path(folder))
    own = document["client_overhead_s"]
    mean = document["latency_s"]["mean"]
    expected = SERVICE_S + LOAD * SERVICE_S / (2 * (1 - LOAD))
    n = document["requests"]
    return [
        Row("overhead p99", 1e-3, own["p99"], "s", note=f"at {RATE:g} requests/s, {own['n']} answers seen"),
        Row("overhead p50", None, own["p50"], "s"),
        Row("arrival p99", 1e-3, own["arrival_p99"], "s", note=f"after the scheduled time, {own['arrivals']} arrivals"),
        Row("M/D/1 error", 0.05, abs(mean / expected - 1), "", note=f"mean {mean:.6f} s of {expected:.6f} s, n = {n}"),
    ]


def _queue(script: Path, model: Path, folder: Path) -> dict[str, Any]:
    """The benchmark's JSON for a fake server whose service time is known."""
    from vibeserve.measure import fake_server, launch

    words = ["python", "-P", fake_server.__file__, "--service-s", str(SERVICE_S), "--slots", "1", "--bare"]
    (folder / "candidate.toml").write_text(f"start = {json.dumps(words)}\n")
    output = folder / "bench.json"
    with launch(folder, model, log_dir=folder / "log") as server:
        command = [sys.executable, str(script), "--url", server.url, "--endpoint", "/v1/completions"]
        command += ["--model-dir", str(model), "--output-json", str(output), "--rate", str(LOAD / SERVICE_S)]
        command += ["--duration", str(QUEUE_S), "--prompt-len", "64", "--max-tokens", "2"]
        command += ["--calibrate", str(CALIBRATION_S), "--calibrate-rate", str(RATE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if not output.exists():
        raise RuntimeError(f"{script.name} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found
