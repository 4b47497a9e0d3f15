"""The worked examples of the skills, run: their figures are those that the simulator gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vibeserve.nki import lint, running, simulate
from vibeserve.nki.timing import document, timed

ROOT = Path(__file__).parents[2]
SKILLS = ROOT / "skills"
CLOSE = 0.05  # how far a simulated figure may move before the text is brought up to date


def page(skill: str, name: str) -> str:
    return (SKILLS / skill / "references" / name).read_text(encoding="utf-8")


def rows(text: str, columns: int) -> list[list[str]]:
    """The rows of the tables with so many columns, headings left out."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row for row in found if len(row) == columns and not set(row[-1]) <= set("-")]


def measured(kernel: Any, **inputs: Any) -> dict[str, Any]:
    arrays = {
        name: running.make_input(name, {"shape": list(value[0]), "dtype": value[1]})
        if isinstance(value, tuple)
        else value
        for name, value in inputs.items()
    }
    return document(timed(kernel, kwargs=arrays, target="trn2", lnc=1, shape_only=True)[1])


def number(text: str) -> float:
    return float(re.sub(r"[^\d.e+-]", "", text.replace(",", "")))


def edited(text: str, diff: str) -> str:
    """A text with the blocks of removed lines replaced by the added ones that follow them."""
    for removed, added in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", diff, re.M):
        before, after = ("".join(f"{line[1:]}\n" for line in part.splitlines()) for part in (removed, added))
        pieces = [before] if before in text else before.splitlines(keepends=True)
        for piece in pieces[:-1]:
            assert text.count(piece) == 1, piece
            text = text.replace(piece, "")
        assert text.count(pieces[-1]) == 1, pieces[-1]
        text = text.replace(pieces[-1], after)
    return text


def test_the_matmul_ladder() -> None:
    text = page("neuron-nki-profiling", "matmul-ladder.md")
    found = re.findall(r"^\| `(\w+)` \| ([\d,]+) µs \| (\d+) % \|", text, re.M)
    assert len(found) == 4
    latencies = []
    for name, latency, busy in found:
        kernel, path = running.load_kernel(f"{ROOT / 'examples/kernels/tiled-matmul/kernel.py'}:{name}")
        case = running.default_case(path, name)
        inputs = {key: running.make_input(key, value) for key, value in case.inputs.items()}
        report = document(timed(kernel, kwargs=inputs, target=case.target, lnc=case.lnc, shape_only=True)[1])
        assert report["latency_s"] * 1e6 == pytest.approx(number(latency), rel=CLOSE)
        assert report["engines"]["tensor"]["utilization"] * 100 == pytest.approx(float(busy), abs=3)
        latencies.append(report["latency_s"])
    assert latencies[0] > 1.5 * latencies[1] > 4 * latencies[2]


def test_a_fault_of_flash_attention_is_found_by_bisection(capsys: pytest.CaptureFixture[str]) -> None:
    file = SKILLS / "neuron-nki-debugging/examples/bisect_stages.py"
    text = page("neuron-nki-debugging", "stage-bisection.md")
    kernel, _ = running.load_kernel(f"{file}:attention")
    module = kernel.func.__globals__
    module["main"]()
    out = capsys.readouterr().out
    for keys, stage, error in [row for row in rows(text, 3) if row[0].isdigit()]:
        assert f"{keys} keys: {stage}: " in out
        printed = float(out.split(f"{keys} keys: {stage}: ")[1].split()[0])
        assert printed == pytest.approx(number(error), rel=0.1, abs=2e-5)
    assert "1024 keys: first wrong stage: sums over blocks" in out
    assert "512 keys: first wrong stage: None" in out
    before, after = (float(out.split(f"error {word}: ")[1].split()[0]) for word in ("before", "after"))
    [claimed] = [row for row in rows(text, 3) if row[0] == "largest difference"]
    assert before == pytest.approx(number(claimed[1]), rel=0.1)
    assert after < 1e-4
    assert before > 1
    shapes = {"q": ([32, 128], "float32"), "k": ([32, 1024], "float32"), "v": ([1024, 32], "float32")}
    reports = [measured(kernel, **shapes, repaired=True, debug=debug) for debug in (True, False)]
    [latency] = [row for row in rows(text, 3) if row[0] == "latency"]
    [written] = [row for row in rows(text, 3) if row[0] == "bytes written"]
    for report, time_us, size in zip(reports, latency[1:], written[1:], strict=True):
        assert report["latency_s"] * 1e6 == pytest.approx(number(time_us), rel=CLOSE)
        assert report["hbm_write_bytes"] == number(size)
    assert reports[1]["latency_s"] < reports[0]["latency_s"]


def test_a_kernel_of_the_first_beta_is_brought_to_0_4(tmp_path: Path) -> None:
    text = page("neuron-nki-writing", "beta-kernel-to-0.4.md")
    source = (SKILLS / "neuron-nki-writing/examples/beta_row_softmax.py").read_text(encoding="utf-8")

    def bad(code: str) -> list[str]:
        return [item.rule for item in lint.lint_text(code) if item.severity in ("error", "warn")]

    assert f"finds {len(bad(source))} errors and warnings" in text
    fixed = lint.fix_text(source).text
    assert bad(fixed) == [row[0] for row in rows(text, 2) if row[0].startswith("B1-")]
    by_hand, fused = re.findall(r"```diff\n(.*?)```", text, re.S)
    carried = lint.fix_text(edited(fixed, by_hand)).text
    assert bad(carried) == []
    assert "P-FUSE" in {item.rule for item in lint.lint_text(carried)}
    faster = edited(carried, fused)
    assert "P-FUSE" not in {item.rule for item in lint.lint_text(faster)}
    x = np.random.default_rng(0).standard_normal((300, 1024), np.float32)
    powers = np.exp(2 * x)
    latencies = []
    for name, code in (("carried over", carried), ("fused", faster)):
        file = tmp_path / f"{name.split()[0]}.py"
        file.write_text(code, encoding="utf-8")
        kernel, _ = running.load_kernel(f"{file}:row_softmax")
        np.testing.assert_allclose(simulate(kernel)(x), powers / powers.sum(1, keepdims=True), atol=1e-6)
        report = measured(kernel, x=([2000, 1024], "float32"))
        [claimed] = [row for row in rows(text, 3) if row[0] == name]
        assert report["latency_s"] * 1e6 == pytest.approx(number(claimed[1]), rel=CLOSE)
        engine, busy, _ = claimed[2].split()
        assert report["engines"][engine]["utilization"] * 100 == pytest.approx(float(busy), abs=3)
        latencies.append(report["latency_s"])
    assert latencies[1] < 0.8 * latencies[0]


def test_a_product_is_made_compute_bound_by_its_blocks() -> None:
    file = SKILLS / "neuron-nki-profile-querying/examples/tile_sizes.py"
    text = page("neuron-nki-profile-querying", "tile-sizes.md")
    kernel, _ = running.load_kernel(f"{file}:matmul")
    module = kernel.func.__globals__
    ridge = module["PEAK_FLOPS_PER_S"] / module["BANDWIDTH_BYTES_PER_S"]
    counted = {row[0]: row[1:] for row in rows(text, 3) if "×" in row[0]}
    profiled = {row[0]: row[1:] for row in rows(text, 5) if "×" in row[0]}
    assert len(counted) == 3
    assert set(counted) == set(profiled)
    latencies = []
    for blocks, (by_hand, bound) in counted.items():
        m_block, n_block = (int(size) for size in blocks.split(" × "))
        assert module["intensity"](m_block, n_block) == pytest.approx(number(by_hand), abs=0.5)
        assert bound == ("compute" if module["intensity"](m_block, n_block) > ridge else "memory")
        shapes = {"lhs_t": ([1024, 2048], "bfloat16"), "rhs": ([1024, 2048], "bfloat16")}
        report = measured(kernel, **shapes, m_block=m_block, n_block=n_block)
        latency, read, transfers, products = profiled[blocks]
        engines = {name: value["utilization"] for name, value in report["engines"].items()}
        assert report["latency_s"] * 1e6 == pytest.approx(number(latency), rel=CLOSE)
        assert report["hbm_read_bytes"] / 1e6 == pytest.approx(number(read), abs=0.1)
        assert engines["dma"] * 100 == pytest.approx(number(transfers), abs=3)
        assert engines["tensor"] * 100 == pytest.approx(number(products), abs=3)
        assert (engines["tensor"] > engines["dma"]) == (bound == "compute")
        latencies.append(report["latency_s"])
    assert latencies[0] > 2 * latencies[1] > 2 * latencies[2] * 1.1
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((128, 512), np.float32), draw.standard_normal((128, 1024), np.float32)
    np.testing.assert_allclose(simulate(kernel)(a, b, m_block=256, n_block=512), a.T @ b, rtol=1e-3, atol=1e-3)
