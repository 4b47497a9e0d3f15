"""Write the files of a new kernel: kernel, reference, inputs, test, device script, README."""

from __future__ import annotations

import importlib.util
import inspect
import keyword
import re
import textwrap
import tomllib
from pathlib import Path
from string import Template
from typing import Any

from vibeserve.base.errors import InputError

_HERE = Path(__file__).parent
_TABLE: dict[str, dict[str, Any]] = tomllib.loads((_HERE / "kinds.toml").read_text(encoding="utf-8"))
KINDS = tuple(_TABLE)
_TAKEN = ("nki", "nl", "nisa", "np", "range", "min", "max", "len")  # what the templates use by these names
_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PASTED = '''

class Tile(nl.NKIObject):
    """`size` elements from `start_offset` to `end_offset` (exclusive), the `index`-th tile of its range."""

    def __init__(self, size, index, start_offset):
        self.size = size
        self.index = index
        self.start_offset = start_offset
        self.end_offset = start_offset + size


def TiledRange(total, tile_size):
    """The tiles of a dimension; the last one may be short."""
    tiles = []
    for index in range(-(-total // tile_size)):
        tiles.append(Tile(min(tile_size, total - index * tile_size), index, index * tile_size))
    return tuple(tiles)


def kernel_assert(condition, message):
    """Stop the kernel with `message` where `condition` does not hold."""
    assert condition, f"[NCC_INKI016] Kernel validation exception: {message}"
'''
_IMPORTED = """
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.tiled_range import TiledRange
"""


def new(slug: str, kind: str, destination: Path, *, utilities: str | None = None) -> list[Path]:
    """Make the directory `destination`/`slug` with a kernel that starts from `kind`; returns the files written.

    `utilities` is "paste" (into the kernel file) or "import" (from nkilib); None imports where nkilib is installed. Raises
    InputError for an unknown kind, a slug that is no hyphenated name or is taken, or a directory that exists.
    """
    if kind not in _TABLE:
        raise InputError(f"there is no kind {kind!r} to start from", hint=f"one of {', '.join(KINDS)}")
    if not _SLUG.fullmatch(slug):
        raise InputError(f"{slug!r} is no name for a kernel", hint="lower-case words with hyphens, as my-kernel")
    if keyword.iskeyword(slug) or slug in _TAKEN:
        raise InputError(f"{slug!r} is a word of Python or of the kernel's own imports", hint=f"my-{slug}")
    if utilities not in (None, "paste", "import"):
        raise InputError(f"utilities {utilities!r}", hint="paste or import")
    folder = destination / slug
    if folder.exists():
        raise InputError(f"{folder} exists", hint="nothing is overwritten: choose another name or --dest")
    files = _files(slug, kind, utilities or ("import" if _nkilib_installed() else "paste"))
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _nkilib_installed() -> bool:
    """Whether nkilib itself is there (the simulator's stand-in does not count)."""
    spec = importlib.util.find_spec("nkilib")
    return spec is not None and spec.origin != "vibeserve.nki.shim"


def kernel_text(slug: str, kind: str, utilities: str) -> str:
    """The kernel file of a kind, with its utilities pasted or imported."""
    return _files(slug, kind, utilities)["kernel.py"]


def _files(slug: str, kind: str, utilities: str) -> dict[str, str]:
    from vibeserve.nki import doctor

    table = _TABLE[kind]
    name = slug.replace("-", "_")
    words = {
        "name": name, "slug": slug, "free": table["free"], "title": slug.replace("-", " ").capitalize(),
        "about": table["about"].capitalize(), "complexity": table["complexity"], "header": doctor.HEADER.rstrip(),
        "shapes": {key: tuple(shape) for key, shape in table["inputs"].items()},
        "remainder": {key: _entry(table, key, shape) for key, shape in table["remainder"].items()},
    }  # fmt: skip

    def filled(template: str) -> str:
        return Template((_HERE / "templates" / f"{template}.txt").read_text(encoding="utf-8")).substitute(words)

    first = inspect.cleandoc(
        f'"""{words["about"]}."""\n\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl'
    )
    helpers = _PASTED if utilities == "paste" else _IMPORTED
    constants = f"\nP = 128\nF = {table['free']}\n"
    body = f"\n\n{filled(f'{kind}.kernel')}"
    kernel = first + "\n" + (constants + helpers if utilities == "paste" else helpers + constants) + body
    return {
        "kernel.py": kernel,
        "reference.py": f'"""What the kernel computes, in NumPy."""\n\nimport numpy as np\n\n\n{filled(f"{kind}.reference")}',
        "inputs.toml": _inputs(name, table),
        f"test_{name}.py": filled("test"),
        "device.py": filled("device"),
        "README.md": filled("readme"),
    }


def _entry(table: dict[str, Any], key: str, shape: list[int]) -> dict[str, Any]:
    scale = table.get("scale", {}).get(key)
    return {"shape": shape, "scale": scale} if scale else {"shape": shape}


def _inputs(name: str, table: dict[str, Any]) -> str:
    lines = [f"[{name}]", 'target = "trn2"', "lnc = 1"]
    for key, shape in table["inputs"].items():
        scale = table.get("scale", {}).get(key)
        extra = f", scale = {scale}" if scale else ""
        lines.append(f'{key} = {{ shape = {shape}, dtype = "bfloat16"{extra} }}')
    return textwrap.dedent("\n".join(lines)) + "\n"
