"""A simulated profile answers the investigations as one from the device does: the right lines and figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vibeserve import profiles
from vibeserve.nki import running
from vibeserve.nki.timing import run, tables

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"


def simulated(where: str, *args, **options):
    kernel, _ = running.load_kernel(where)
    return tables.profile(run.timed(kernel, args, target="trn2", shape_only=True, **options)[1], "simulated")


def one(profile, name):
    [found] = profiles.investigate(profile, [name])
    return found


def line_of(path: Path, text: str) -> int:
    [number] = [n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text in line]
    return number


def test_loads_inside_the_loop_are_reloads_of_both_operands(tmp_path):
    path = EXAMPLES / "tiled-matmul" / "kernel.py"
    lhs_t, rhs = np.zeros((256, 384), np.float32), np.zeros((256, 1024), np.float32)  # K × M, K × N
    profile = simulated(f"{path}:matmul_loads_inside", lhs_t, rhs)
    sides = {(row["source"], row["dest"]) for row in profile.table("DmaPacketAggregated").to_pylist()}
    assert sides == {("[[INPUT]]", "[SB]"), ("[[SB]]", "[OUTPUT]")}

    found = one(profile, "redundant_dma_transfers")
    moved = 2 * lhs_t.nbytes + 3 * rhs.nbytes + 384 * 1024 * 4  # N / 512 and M / 128 times
    assert found.metrics["dma_bytes"] == moved
    assert found.metrics["excess_bytes"] == lhs_t.nbytes + 2 * rhs.nbytes
    assert found.metrics["reload_share"] == 1.0
    lines = {line.details["tensor"]: line for line in found.lines}
    assert {name: line.details["repeat"] for name, line in lines.items()} == {"lhs_t": 2.0, "rhs": 3.0}
    assert {line.line for line in found.lines} == {line_of(path, "nisa.dma_copy(dst=tile, src=source[")}
    assert lines["rhs"].count == 2 * 3 * 2  # tiles of K, M and N
    assert lines["rhs"].details["excess_bytes"] == 2 * rhs.nbytes

    shapes = {
        (line.details["tensor"], line.details["direction"]): (
            line.details["partitions"],
            line.details["descriptor_bytes"],
        )
        for line in one(profile, "dma_efficiency").lines
    }
    assert shapes.pop(("lhs_t", "load")) == (128, 128 * 4)
    assert shapes.pop(("rhs", "load")) == (128, 512 * 4)
    assert [key[1] for key in shapes] == ["store"]
    assert list(shapes.values()) == [(128, 512 * 4)]


def test_a_spill_names_the_line_whose_tile_was_evicted():
    kernels = Path(__file__).parent / "kernels.py"
    profile = simulated(f"{kernels}:too_many_tiles", np.zeros((128, 8192), np.float32), allow_spill=True)
    found = one(profile, "redundant_dma_transfers")
    spills = [line for line in found.lines if line.details["kind"] == "spill"]
    assert found.metrics["spill_reload_bytes"] > 0
    assert sum(line.details["bytes"] for line in spills) == 2 * found.metrics["spill_reload_bytes"]
    assert all(line.file == str(kernels) for line in spills)
