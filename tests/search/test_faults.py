"""Faults of the machine around a whole run: each ends in a clear error that says how to go on, never in a hang."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_optimize import DRIVER, bundle

__all__ = ["bundle"]  # the fixture
#: A small file system: the run begins, the disk fills up, something is removed, and the run goes on.
FULL = """
set -u
runs=$1
go() { "$PYTHON" -c "$DRIVER" "$BUNDLE" "$runs" '[0.002]'; }
: > "$OUT/ready"
dd if=/dev/zero of="$runs/filler" bs=64k 2>/dev/null
dd if=/dev/zero of="$runs/rest" bs=512 2>/dev/null
rm "$runs/rest"
truncate --size=-300000 "$runs/filler"
go > "$OUT/1.json" 2> "$OUT/1.err"
echo $? > "$OUT/1.code"
rm "$runs/filler"
go > "$OUT/2.json" 2> "$OUT/2.err"
echo $? > "$OUT/2.code"
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="not run: bubblewrap makes the small file system")
@pytest.mark.slow
def test_a_disk_that_is_really_full_is_told_and_the_run_goes_on(bundle: Path, tmp_path: Path) -> None:
    out, runs = tmp_path / "out", tmp_path / "runs"
    out.mkdir()
    runs.mkdir()
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "DRIVER": DRIVER,
        "BUNDLE": str(bundle),
        "OUT": str(out),
        "VIBESERVE_CACHE_DIR": str(tmp_path / "cache"),
    }
    words = ["bwrap", "--dev-bind", "/", "/", "--size", str(24 << 20), "--tmpfs", str(runs), "/bin/sh", "-c", FULL]
    subprocess.run([*words, "sh", str(runs)], env=environment, timeout=250, check=False)
    if not (out / "ready").exists():
        pytest.skip("not run: bubblewrap does not run here")
    first = (out / "1.err").read_text()
    assert (out / "1.code").read_text() == "3\n", first[-3000:]
    assert "No space left" in first or "disk is full" in first or "full" in first, first[-3000:]
    assert "Traceback" not in first
    assert (out / "2.code").read_text() == "0\n", (out / "2.err").read_text()[-3000:]
    assert json.loads((out / "2.json").read_text())["state"] == "finished"
