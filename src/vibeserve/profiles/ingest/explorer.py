"""NEFF + NTFF, by the device tool `neuron-explorer` where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from vibeserve.base.errors import InputError, MissingError
from vibeserve.profiles import store
from vibeserve.profiles.profile import Profile, parquet_files

_ELSEWHERE = Path("/opt/aws/neuron/bin/neuron-explorer")
_DONE = "Processing for"
_LIMIT_S = 3600


def find() -> str | None:
    """Path of `neuron-explorer`, or None."""
    return shutil.which("neuron-explorer") or (str(_ELSEWHERE) if _ELSEWHERE.exists() else None)


def session_file(ntff: Path) -> Path:
    """The trace to read: `ntff`, or, where only that exists, the `_exec_<n>` form that capture writes with the highest n."""
    if ntff.exists():
        return ntff
    numbered = [
        (int(number), path)
        for path in ntff.parent.glob(f"{ntff.stem}_exec_*.ntff")
        if (number := path.stem.rpartition("_")[2]).isdecimal()
    ]
    if not numbered:
        raise InputError(f"no trace {ntff}", hint="capture one with 'vibeserve nki capture NEFF'")
    return max(numbered)[1]


def command(tool: str, neff: Path, ntff: Path, name: str, data_path: Path) -> list[str]:
    """The ingest command."""
    return [
        tool, "view", "-n", str(neff), "-s", str(ntff), "--data-path", str(data_path), "--display-name", name, "--ingest-only",
    ]  # fmt: skip


def ingest(neff: Path, ntff: Path | None, name: str, *, note: str, data_path: Path | str | None) -> Profile:
    """Let the device tool write its parquet into a folder of its own, then take that into the store.

    Its messages are kept in the profile's info. Where it fails to bind a port after the work was done ("Processing for …
    is complete"), the ingest counts. Raises MissingError (with the commands to run on the device's machine) without the tool.
    """
    if ntff is None:
        raise InputError(f"{neff.name} alone is no profile", hint="give its trace: --ntff profile.ntff")
    tool = find()
    trace = session_file(ntff)
    if tool is None:
        shown = " ".join(command("neuron-explorer", neff, trace, name, Path("~/.local/share/neuron-profile")))
        raise MissingError(
            "neuron-explorer is not installed here, and only it reads NEFF and NTFF",
            hint=f"on the device's machine run: {shown} — then ingest the folder of parquet files that it wrote",
        )
    with tempfile.TemporaryDirectory(prefix="vibeserve-ingest-") as held:
        folder = Path(held)
        try:
            done = subprocess.run(
                command(tool, neff, trace, name, folder), capture_output=True, text=True, timeout=_LIMIT_S, check=False,
                env={**os.environ, "HOME": held},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(
                f"neuron-explorer took longer than {_LIMIT_S} s", hint="the old profile is as it was"
            ) from None
        written = folder / "profiles" / store.NAMESPACE / f"{name}@latest"
        messages = (done.stdout + done.stderr).strip()
        complete = done.returncode == 0 or (_DONE in messages and "is complete" in messages)
        if not complete or not written.is_dir() or not parquet_files(written):
            raise InputError(
                f"neuron-explorer failed (exit {done.returncode}): {messages[-400:] or 'it said nothing'}",
                hint="the old profile, if any, is as it was",
            )
        info = {
            "source": f"neuron-explorer: {neff.name} + {trace.name}",
            "provenance": "measured",
            "messages": messages,
        }
        return store.save(Profile(name, directory=written, info=info), name, data_path, note=note)
