"""parts.toml names every file of the engine once, and a part's files import nothing that the part does not bring."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from pathlib import Path

import vibeserve.engine
from vibeserve.engine.settings import Settings

ROOT = Path(vibeserve.engine.__file__).parent
PARTS = tomllib.loads((ROOT / "parts.toml").read_text(encoding="utf-8"))
# Looked for at run time only where the setting asks for them, with an error that names the part.
LATE = {"core.py", "transformers_core.py"}


def closure(name: str) -> set[str]:
    files = set(PARTS[name]["files"])
    for other in PARTS[name].get("needs", ()):
        files |= closure(other)
    return files


def test_every_file_is_in_a_part() -> None:
    here = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.suffix in {".py", ".h", ".cpp", ".toml"} and path.name != "parts.toml"
    }
    counted = Counter(name for part in PARTS.values() for name in part["files"])
    assert set(counted) == here
    assert [name for name, count in counted.items() if count > 1 and name != "cores.py"] == []


def test_parts_bring_what_their_files_import() -> None:
    for name, part in PARTS.items():
        brought = closure(name)
        for file in part["files"]:
            if file.endswith(".py"):
                assert imports_of(ROOT / file) - LATE <= brought, f"{name}: {file}"


def imports_of(path: Path) -> set[str]:
    """Files of the engine that a file imports when it is imported, types left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parent if node.level == 1 else path.parent.parent
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                target = base / name.replace(".", "/")
                target = target / "__init__.py" if target.is_dir() else target.with_suffix(".py")
                found.add(str(target.relative_to(ROOT)))
    return found


def test_every_setting_belongs_to_a_part() -> None:
    named = {setting for part in PARTS.values() for setting in part.get("settings", ())}
    assert set(Settings().to_dict()) - named == {"backend"}
    assert named <= set(Settings().to_dict())
