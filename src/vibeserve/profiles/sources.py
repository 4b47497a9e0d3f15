"""The kernel's source, kept with its profile: so that a cost stands beside its line, also after the file was edited."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from vibeserve.base.files import DiskFiles, read_json, write_json
from vibeserve.profiles.profile import Profile

_FILE = "sources.json"
_MOST_FILES = 64
_MOST_BYTES = 1 << 20
#: A profile from elsewhere may name any file of this machine: only what a kernel can be is read.
_SUFFIX = ".py"


def found(profile: Profile) -> dict[str, str]:
    """The text of each Python file that a profile's instructions name and that can be read here and now, by its path."""
    if not profile.rows("Instruction"):
        return {}
    with profile.connect(["Instruction"]) as db:
        rows = db.execute(
            """SELECT bir_debug_info_source_location, count(*) FROM Instruction
            WHERE coalesce(bir_debug_info_source_location, '') <> '' GROUP BY 1 ORDER BY 2 DESC, 1"""
        ).fetchall()
    named = dict.fromkeys(re.sub(r":\d+$", "", location) for location, _ in rows)
    out: dict[str, str] = {}
    for name in islice(named, _MOST_FILES):
        path = Path(name)
        with contextlib.suppress(OSError, ValueError):
            if path.suffix == _SUFFIX and path.is_file() and path.stat().st_size <= _MOST_BYTES:
                out[name] = path.read_text(encoding="utf-8")
    return out


def keep(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts beside a profile's tables; nothing where there are none."""
    if texts:
        write_json(DiskFiles(), folder / _FILE, dict(texts))


def kept(profile: Profile) -> dict[str, str]:
    """The texts that were kept with a stored profile; of one in memory, those that can be read now."""
    if profile.directory is None:
        return found(profile)
    try:
        texts = read_json(profile.directory / _FILE)
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in texts.items()} if isinstance(texts, dict) else {}
