"""Bring a bundle's weights onto this disk: from the first source that can be had, into a cache that is verified.

A cache entry is a directory `<cache>/models/<name>-<key>/` with the model's files and `manifest.json` (SHA-256 of each
file, the source, its checksum). It is made under a temporary name and renamed in one step under a lock, so that two
processes at once make it once and a killed one leaves nothing that is taken for a model. `reference/model` is a link to
it, made where the bundle is writable; the cache is the truth.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.files import DiskFiles, Files, read_json, write_json
from vibeserve.base.paths import cache_dir, expanded
from vibeserve.targets.sources import Found, UnavailableError, checkpoint, resolve, sha256_file, whole_checkpoint
from vibeserve.targets.types import Bundle

MANIFEST = "manifest.json"
_FORMAT = 1  # part of the key: raise it when what `convert` writes changes
_CONVERT_LIMIT_S = 3600.0


def _quiet(_: str) -> None:
    pass


def materialize(
    bundle: Bundle,
    *,
    files: Files | None = None,
    trust_remote_code: bool = False,
    fresh: bool = False,
    note: Callable[[str], None] = _quiet,
) -> Path:
    """The directory of `bundle`'s model: safetensors, config, tokenizer, chat template; each file verified.

    `note` is told, once each, what is being done and which source could not be had. `fresh` takes the sources in order
    again instead of a cached entry. `trust_remote_code` is the user's half of the permission, meta.json's the other.
    Raises MissingError (exit 3) where no source can be had, InputError for a model that cannot be used.
    """
    files = files or DiskFiles()
    own = bundle.reference / "model"
    for folder in (own, bundle.reference.parent / "model"):
        if folder.is_dir() and not folder.is_symlink():
            found = _own_model(folder, bundle, trust_remote_code)
            note(f"using the model that lies in {found}")
            return found
    if not (bundle.reference / "meta.json").is_file():
        raise InputError(
            f"{bundle.reference}: neither meta.json nor a model beside it",
            hint=f'write meta.json ({{"model_id": "org/name"}}), or put a checkpoint directory at {own}',
        )
    if not fresh and (cached := _cached(bundle, files, trust_remote_code, note)) is not None:
        return _link(bundle, cached, files)
    reasons, hints = [], []
    for source in bundle.meta.places():
        try:
            base = bundle.path or bundle.reference.parent
            found_files = resolve(source, base=base, revision=bundle.meta.revision, whole=_whole(bundle))
        except UnavailableError as unavailable:
            reasons.append(f"{source}: {unavailable}")
            hints.extend([unavailable.hint] if unavailable.hint else [])
            note(f"{source}: {unavailable}")
            continue
        _refuse_remote_code(found_files, bundle, trust_remote_code)
        note(f"materialising {bundle.meta.model_id} from {source}")
        return _link(bundle, _make(found_files, bundle, files, trust_remote_code, note), files)
    raise MissingError(
        f"no weights for {bundle.meta.model_id}: {'; '.join(reasons)}",
        hint=(f"{' or '.join(hints)}; " if hints else "")
        + f"or put a checkpoint directory at {own} (or its path as file:PATH into meta.json's sources); "
        "validate, roofline, nki and docs work without weights",
        code="no-weights",
    )


def _own_model(own: Path, bundle: Bundle, trusted: bool) -> Path:
    try:
        found = (whole_checkpoint if _whole(bundle) else checkpoint)(f"file:{own}", own.resolve())
    except UnavailableError as reason:
        raise InputError(
            f"{own}: not a model directory: {reason}", hint="remove it, or put a whole checkpoint there"
        ) from None
    _refuse_remote_code(found, bundle, trusted)
    if found.needs_conversion:
        raise InputError(f"{own}: holds no safetensors", hint="move it away and name it in meta.json: file:PATH")
    return own.resolve()


def _refuse_remote_code(found: Found, bundle: Bundle, trusted: bool) -> None:
    config = found.root / "config.json"
    try:
        document = read_json(config) if found.gguf is None and config.is_file() else {}
    except ValueError as error:
        raise InputError(f"{config}: not JSON: {error}", hint="the checkpoint is damaged: bring it again") from None
    if "auto_map" not in document or (trusted and bundle.meta.trust_remote_code):
        return
    lacking = [] if bundle.meta.trust_remote_code else ['"trust_remote_code": true in reference/meta.json']
    lacking += [] if trusted else ["--trust-remote-code"]
    raise InputError(
        f"{found.source}: the model brings code of its own (config.json: auto_map), which is not run",
        hint=f"read that code first; then it needs {' and '.join(lacking)}",
        code="remote-code",
    )


def _whole(bundle: Bundle) -> bool:
    """Whether the model is no text model of transformers: then its directory is taken as it lies."""
    return bundle.meta.task not in (None, "text-generation", "text2text-generation")


def _models() -> Path:
    return cache_dir() / "models"


def _entry(bundle: Bundle, source: str, checksum: str) -> Path:
    import hashlib

    name = re.sub(r"[^A-Za-z0-9.]+", "-", bundle.meta.model_id.split("/")[-1]).strip("-")
    key = hashlib.sha256(f"{_FORMAT}\0{source}\0{checksum}".encode()).hexdigest()[:16]
    return _models() / f"{name}-{key}"


def _cached(bundle: Bundle, files: Files, trusted: bool, note: Callable[[str], None]) -> Path | None:
    """A whole and verified entry for one of the sources, in their order; what is damaged is removed and said."""
    entries: dict[str, list[Path]] = {}
    for path in sorted(_models().glob(f"*/{MANIFEST}")):
        with suppress(OSError, ValueError):
            entries.setdefault(_asked(json.loads(path.read_text(encoding="utf-8"))), []).append(path.parent)
    for source in bundle.meta.places():
        for entry in entries.get(_asked({"source": _absolute(source, bundle), "revision": bundle.meta.revision}), []):
            if source.startswith("file:") and not _unchanged(source, entry, bundle):
                continue
            with _locked(entry):
                problem = verify(entry)
                if problem is None:
                    return entry
                note(f"the cached model {entry.name} is damaged ({problem}); it is made again")
                files.remove(entry)
    return None


def _asked(document: dict[str, Any]) -> str:
    # What was asked for decides which entry answers; a hub source without a pinned revision takes meta.json's.
    pinned = "@" in document["source"] or not document["source"].startswith("hf://")
    return document["source"] if pinned else f"{document['source']}@{document.get('revision')}"


def _absolute(source: str, bundle: Bundle) -> str:
    """A file: source by its whole path, so that two bundles with `file:model` do not share an entry."""
    if not source.startswith("file:"):
        return source
    text = source.removeprefix("file://") if source.startswith("file:///") else source.removeprefix("file:")
    path = expanded(text)
    return f"file:{(path if path.is_absolute() else (bundle.path or bundle.reference.parent) / path).resolve()}"


def _unchanged(source: str, entry: Path, bundle: Bundle) -> bool:
    """Whether a place on this disk still holds what the entry was made from; a place that is gone has not changed."""
    try:
        found = resolve(_absolute(source, bundle), base=Path.cwd(), whole=_whole(bundle))
    except UnavailableError:
        return True
    recorded = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    return bool(recorded["checksum"] == found.checksum)


def verify(entry: Path) -> str | None:
    """None where every file of a cache entry is as its manifest says; else what is wrong with the first that is not."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        recorded: dict[str, dict[str, Any]] = manifest["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"its manifest cannot be read: {error}"
    for name, facts in recorded.items():
        path = entry / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, not {facts['bytes']}"
        if sha256_file(path) != facts["sha256"]:
            return f"{name} does not have its checksum"
    return None


def _make(found: Found, bundle: Bundle, files: Files, trusted: bool, note: Callable[[str], None]) -> Path:
    source = _absolute(found.source, bundle)
    entry = _entry(bundle, source, found.checksum)
    try:
        files.make_dir(_models())
        with _locked(entry):
            if entry.is_dir():
                problem = verify(entry)
                if problem is None:
                    return entry
                note(f"the cached model {entry.name} is damaged ({problem}); it is made again")
                files.remove(entry)
            for left_over in _models().glob(f".{entry.name}.*.tmp"):
                files.remove(left_over)  # of a process that was killed: we hold its lock
            temporary = _models() / f".{entry.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
            try:
                files.make_dir(temporary)
                _fill(found, temporary, trusted and bundle.meta.trust_remote_code, note)
                write_json(files, temporary / MANIFEST, _manifest(found, source, bundle, temporary))
                files.replace(temporary, entry)
            except BaseException:
                with suppress(OSError):
                    files.remove(temporary)
                raise
    except OSError as error:
        raise MissingError(
            f"{_models()}: the model cannot be written: {error.strerror or error}",
            hint="make room, or set VIBESERVE_CACHE_DIR to a place with room",
            code="disk",
        ) from error
    return entry


def _manifest(found: Found, source: str, bundle: Bundle, folder: Path) -> dict[str, Any]:
    made = {
        str(path.relative_to(folder)): {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        "format": _FORMAT, "model_id": bundle.meta.model_id, "revision": bundle.meta.revision,
        "source": source, "checksum": found.checksum, "files": made,
    }  # fmt: skip


def _fill(found: Found, destination: Path, trusted: bool, note: Callable[[str], None]) -> None:
    if not found.needs_conversion:
        # Safetensors, ONNX and CTranslate2 are used as they lie: a link costs nothing, and the manifest notices when one changes.
        for name in (*found.files, *(found.code if trusted else ())):
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            (destination / name).symlink_to((found.root / name).resolve())
        return
    if found.gguf is not None:
        _check_gguf(found.gguf)
    _require_converter()
    note("converting to fp32 safetensors; once, then it is cached")
    source = found.gguf or found.root
    command = [sys.executable, "-m", "vibeserve.targets.convert", str(source), str(destination)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        done = subprocess.run(
            [*command, *(["--trust-remote-code"] if trusted else [])],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CONVERT_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{source}: not converted within {_CONVERT_LIMIT_S:g} s", hint="give a safetensors checkpoint"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if "No space left" in last:
            raise OSError(28, "no space left on the device")
        raise InputError(
            f"{source}: cannot be read as a model: {last}",
            hint="the file may be damaged: check its origin",
            code="bad-model",
        )


def _check_gguf(path: Path) -> None:
    """Refuse at once what is no GGUF file: magic, version, and at least one tensor (its header's first 24 bytes)."""
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) == 24 and head[:4] == b"GGUF":
        version, tensors, _ = struct.unpack("<IQQ", head[4:])
        if version in (2, 3) and tensors:
            return
    raise InputError(
        f"{path}: not a GGUF file of version 2 or 3 with tensors",
        hint="the file may be damaged: check its origin",
        code="bad-model",
    )


def _require_converter() -> None:
    import importlib.util

    lacking = [name for name in ("torch", "transformers", "gguf") if importlib.util.find_spec(name) is None]
    if lacking:
        raise MissingError(
            f"converting weights needs {', '.join(lacking)}",
            hint="pip install 'vibeserve[engine]'; a safetensors checkpoint needs no conversion",
        )


@contextmanager
def _locked(entry: Path) -> Iterator[None]:
    """Hold the entry's lock; the kernel lets go of it when the holder dies."""
    locks = _models() / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"{entry.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _link(bundle: Bundle, entry: Path, files: Files) -> Path:
    """Point reference/model at the entry, where the bundle is writable; a packaged one may not be."""
    link = bundle.reference / "model"
    if link.is_symlink() and link.resolve() == entry.resolve():
        return entry
    temporary = bundle.reference / f".model.{os.getpid()}-{secrets.token_hex(4)}"
    try:
        temporary.symlink_to(entry.resolve())
        files.replace(temporary, link)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return entry
