"""The prefix cache over a restart: its blocks in one file, read at the start where all fits, written at the end.

Keys and values are bits of one model under one dtype and one build of the kernels. The file carries a digest of all of that
(weights, configuration, dtype, back end, instruction set, block size) and one of its own contents: a file that is anybody
else's, or damaged, is left aside with a line in the log. The answers are those that a cold cache would give.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from time import perf_counter

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from .batch import Backend
from .blocks import BlockManager
from .settings import Settings

log = logging.getLogger(__name__)
VERSION = "1"
MOST_BYTES = 256 << 20
"""A file has no more blocks than this many bytes; the ones used last are kept."""


class PrefixStore:
    """One file. `restored` blocks were read from it."""

    def __init__(self, model_dir: Path, settings: Settings, backend: Backend, blocks: BlockManager) -> None:
        self._path = Path(settings.prefix_store).absolute()
        self._backend = backend
        self._blocks = blocks
        self._identity = _identity(model_dir, settings, backend)
        self.restored = 0

    def load(self) -> None:
        """Take over the file's blocks, those used last first, as far as there are free ones. A missing file is no fault."""
        if not self._path.exists():
            return
        began = perf_counter()
        try:
            with safe_open(str(self._path), framework="numpy") as file:
                head = file.metadata() or {}
                if head.get("identity") != self._identity:
                    log.warning("%s is of another model, dtype or build: the prefix cache begins empty", self._path)
                    return
                data, tokens, parents = (file.get_tensor(name) for name in ("data", "tokens", "parents"))
        except (SafetensorError, OSError, ValueError) as error:
            log.warning("%s cannot be read: the prefix cache begins empty: %s", self._path, error)
            return
        if head.get("contents") != _digest(data, tokens, parents):
            log.warning("%s is damaged: the prefix cache begins empty", self._path)
            return
        self.restored = self._blocks.adopt(
            [tuple(int(token) for token in row) for row in tokens], [int(parent) for parent in parents],
            lambda blocks: self._backend.write_blocks(blocks, data[: len(blocks)]),
        )  # fmt: skip
        log.info("%d prefix blocks from %s in %.2f s", self.restored, self._path, perf_counter() - began)

    def save(self) -> None:
        """Write what the cache holds. The old file stays where that fails, which is said in the log."""
        blocks, tokens, parents = self._blocks.known(max(1, MOST_BYTES // self._backend.block_bytes))
        if not blocks:
            return
        data = self._backend.read_blocks(blocks)
        arrays: dict[str, np.ndarray] = {
            "data": data,
            "tokens": np.array(tokens, dtype=np.int32),
            "parents": np.array(parents, dtype=np.int32),
        }
        head = {"identity": self._identity, "contents": _digest(*arrays.values())}
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_file(arrays, str(draft), metadata=head)
            os.replace(draft, self._path)
        except (SafetensorError, OSError) as error:
            draft.unlink(missing_ok=True)
            log.warning("the prefix cache was not kept: %s", error)


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _identity(model_dir: Path, settings: Settings, backend: Backend) -> str:
    """Everything that the bits of a block depend on."""
    digest = hashlib.sha256()
    told = {name: value for name, value in backend.info.items() if name != "threads"}
    told |= {"version": VERSION, "dtype": settings.dtype, "block_size": str(settings.block_size)}
    digest.update(json.dumps(told, sort_keys=True).encode())
    for path in sorted([model_dir / "config.json", *model_dir.glob("*.safetensors")]):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
