"""What the shipped kernels do at their default sizes: legal there, and FLOPs and bytes as counted by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from vibeserve.nki import Observer, running, simulate

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"
ALL = [
    (file.parent.name, name)
    for file in sorted(EXAMPLES.glob("*/inputs.toml"))
    for name in tomllib.loads(file.read_text(encoding="utf-8"))
]
# Loops over a count that is data: their values must be made for them to run.
BY_DATA = {"dynamic_add"}


class Counts(Observer):
    """Matmul FLOPs that are no transposes, and the bytes that DMAs move to and from HBM."""

    def __init__(self) -> None:
        self.flops = self.read = self.written = 0

    def instruction(self, record: Any) -> None:
        by_role = {operand.role: operand for operand in record.operands}
        if record.opcode == "nc_matmul":
            k, m = by_role["stationary"].shape[0], _rest(by_role["stationary"].shape)
            self.flops += 2 * k * m * _rest(by_role["moving"].shape)
        elif record.opcode == "dma_copy":
            for operand in record.operands:
                if operand.region.endswith("hbm"):
                    size = operand.shape[0] * _rest(operand.shape) * operand.itemsize
                    if operand.write:
                        self.written += size
                    else:
                        self.read += size


def _rest(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape[1:]:
        size *= extent
    return size


def counted(slug: str, name: str, *, shape_only: bool = True) -> Counts:
    made, path = running.load_kernel(f"{EXAMPLES / slug / 'kernel.py'}:{name}")
    case = running.default_case(path, name)
    inputs = {key: running.make_input(key, value) for key, value in case.inputs.items()}
    watcher = Counts()
    simulate(made, target=case.target, lnc=case.lnc, shape_only=shape_only, observers=(watcher,))(**inputs)
    return watcher


@pytest.mark.slow
@pytest.mark.parametrize(("slug", "name"), ALL, ids=[name for _, name in ALL])
def test_default_size_is_legal(slug: str, name: str) -> None:
    counted(slug, name, shape_only=name not in BY_DATA)


def test_fused_mlp_as_counted_by_hand() -> None:
    r, d, f, p, cores = 2048, 1024, 4096, 2, 2
    found = counted("vjepa2-mlp", "fused_mlp")
    assert found.flops == 4 * r * d * f == 34_359_738_368
    assert found.read == cores * (2 * d * f + f + d) * p + r * d * p
    assert found.written == r * d * p
    assert 700 <= found.flops / (found.read + found.written) <= 819.2


def test_unfused_mlp_crosses_memory_four_times_more() -> None:
    r, d, f, p, cores = 2048, 1024, 4096, 2, 2
    found = counted("vjepa2-mlp", "unfused_mlp")
    assert found.flops == 4 * r * d * f
    assert found.read == cores * (2 * d * f + f + d) * p + r * d * p + 2 * r * f * p
    assert found.written == r * d * p + 2 * r * f * p


@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("matmul_loads_inside", lambda m, n, k: k * m * (n // 512) + k * n * (m // 128)),
        ("matmul_hoisted", lambda m, n, k: k * m + k * n * (m // 128)),
        ("matmul_blocked_free", lambda m, n, k: k * m + k * n * (m // 512)),
        ("matmul_blocked_all", lambda m, n, k: k * n + k * m * (n // 2048)),
    ],
)
def test_matmul_stages_as_counted_by_hand(name: str, loads: Any) -> None:
    m, n, k = (2048, 2048, 2048) if name == "matmul_blocked_all" else (4096, 2048, 1024)
    found = counted("tiled-matmul", name)
    assert found.flops == 2 * m * n * k
    assert found.read == 2 * loads(m, n, k)
    assert found.written == 2 * m * n
