"""The bundle's reference as a candidate: what a user has on day one, started and measured like every other."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from vibeserve.base.errors import InputError
from vibeserve.base.paths import cache_dir
from vibeserve.measure.candidate import FILE
from vibeserve.targets.types import Bundle

_LEFT_OUT = ("model", "draft_model", "__pycache__", ".git")


def reference_candidate(bundle: Bundle, *, trust_remote_code: bool = False) -> Path:
    """A candidate directory with the files of the bundle's reference; made once for their content, in the cache.

    `trust_remote_code` hands on the user's `--trust-remote-code`; the reference itself asks meta.json for the other half.
    """
    if not bundle.reference_script.is_file():
        raise InputError(f"{bundle.reference_script} does not exist", hint="see 'vibeserve validate'")
    files = _files(bundle.reference)
    start = ["python", "reference.py", *(["--trust-remote-code"] if trust_remote_code else [])]
    toml = f"start = {json.dumps(start)}\nhealth = {json.dumps(bundle.health)}\nready_timeout_s = 900\n"
    digest = hashlib.sha256(toml.encode())
    for name, path in files.items():
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    target = cache_dir() / "reference-candidates" / f"{bundle.slug}-{digest.hexdigest()[:16]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as made:
        draft = Path(made) / "candidate"
        draft.mkdir()
        for name, path in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, draft / name)
        (draft / FILE).write_text(toml, encoding="utf-8")
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise somebody made the same one meanwhile
                raise
    return target


def _files(reference: Path) -> dict[str, Path]:
    """What belongs to the reference, by relative name: not the weights, which every candidate is handed."""
    found = {}
    for path in sorted(reference.rglob("*")):
        parts = path.relative_to(reference).parts
        if path.is_file() and not any(part in _LEFT_OUT for part in parts):
            found["/".join(parts)] = path
    return found
