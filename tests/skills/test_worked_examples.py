"""The figures of the skills' worked examples are those that the simulator gives."""

from __future__ import annotations

import re
from pathlib import Path

from vibeserve.nki import running
from vibeserve.nki.timing import document, timed

ROOT = Path(__file__).parents[2]


def test_the_matmul_ladder() -> None:
    text = (ROOT / "skills" / "neuron-nki-profiling" / "references" / "matmul-ladder.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) µs \| (\d+) % \|", text, re.M)
    assert len(rows) == 4
    latencies = []
    for name, latency, busy in rows:
        kernel, path = running.load_kernel(f"{ROOT / 'examples/kernels/tiled-matmul/kernel.py'}:{name}")
        case = running.default_case(path, name)
        inputs = {key: running.make_input(key, value) for key, value in case.inputs.items()}
        found = document(timed(kernel, kwargs=inputs, target=case.target, lnc=case.lnc, shape_only=True)[1])
        assert abs(found["latency_s"] * 1e6 - float(latency.replace(",", ""))) <= 1
        assert abs(found["engines"]["tensor"]["utilization"] * 100 - float(busy)) <= 1
        latencies.append(found["latency_s"])
    assert latencies[0] > 1.5 * latencies[1] > 4 * latencies[2]
