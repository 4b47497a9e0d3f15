"""Build the kernels with the system's compiler, once for a source, a compiler and a CPU, and load them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ..errors import EngineError

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
# Every fused multiply-add is written in the source; elsewhere the compiler must not make any, or bits would depend on
# how it vectorised a loop.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
BUILD_TIMEOUT_S = 300


@cache
def compiler() -> str | None:
    """The C++ compiler to use: $CXX, else g++, c++ or clang++ from the path; None where there is none."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return shutil.which(name)
    return None


@cache
def library(precision: str, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The kernels of one precision ("Float" or "Brain"), built where they are not in the cache.

    Raises EngineError where they cannot be built.

    The cache is `$VIBESERVE_KERNEL_CACHE`, else the user's cache directory; files in it are written whole or not at all.
    """
    flags = (*flags, f"-DVS_PRECISION={precision}")
    path = _cache_dir() / f"kernels-{precision.lower()}-{_key(flags)}.so"
    if not path.exists():
        _build(path, flags)
    try:
        return _declare(ctypes.CDLL(str(path)))
    except OSError as error:
        raise EngineError(f"the engine's kernels do not load: {error}", f"delete {path}") from None


def _build(path: Path, flags: tuple[str, ...]) -> None:
    tool = compiler()
    if tool is None:
        raise EngineError("no C++ compiler is on this machine", 'install g++, or set backend = "torch"')
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    command = [tool, *flags, "-o", temporary, str(SOURCES / "kernels.cpp")]
    log.info("building the engine's kernels: %s", " ".join(command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        if done.returncode:
            raise EngineError(f"{tool} cannot build the engine's kernels: {done.stderr.strip()[-2000:]}")
        os.replace(temporary, path)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{tool} took more than {BUILD_TIMEOUT_S} s over the engine's kernels") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def _cache_dir() -> Path:
    given = os.environ.get("VIBESERVE_KERNEL_CACHE")
    if given:
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vibeserve" / "kernels"


def _key(flags: tuple[str, ...]) -> str:
    """Names the sources, the flags, the compiler and the CPU's instruction set."""
    digest = hashlib.sha256()
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update("\0".join([*flags, compiler() or "", platform.machine(), _cpu_flags()]).encode())
    return digest.hexdigest()[:24]


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _declare(kernels: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    kernels.vs_isa.restype = ctypes.c_char_p
    kernels.vs_create.restype, kernels.vs_create.argtypes = pointer, [pointer]
    kernels.vs_load.restype, kernels.vs_load.argtypes = None, [pointer, integer, integer, pointer, integer]
    kernels.vs_forward.restype, kernels.vs_forward.argtypes = integer, [pointer, pointer]
    kernels.vs_draw.restype = integer
    kernels.vs_draw.argtypes = [pointer, pointer, integer, pointer, pointer, pointer]
    kernels.vs_block_bytes.restype, kernels.vs_block_bytes.argtypes = ctypes.c_int64, [pointer]
    kernels.vs_copy_blocks.restype = None
    kernels.vs_copy_blocks.argtypes = [pointer, integer, pointer, pointer, integer]
    kernels.vs_destroy.restype, kernels.vs_destroy.argtypes = None, [pointer]
    return kernels
