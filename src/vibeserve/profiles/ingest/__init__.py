"""Bringing profiles in: what a source is, and who reads it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.paths import expanded
from vibeserve.profiles import schema, store
from vibeserve.profiles.ingest import chrome, explorer, legacy, ncu, nsys
from vibeserve.profiles.profile import Profile, parquet_files

_KINDS = (
    "a folder of the device tool's parquet files, a NEFF with --ntff, its summary JSON, its older one-object JSON (.gz too), "
    "a Chrome or PyTorch trace, an nsys SQLite export, or an ncu CSV"
)


def ingest(
    source: Path | str,
    display_name: str,
    *,
    ntff: Path | str | None = None,
    note: str = "",
    data_path: Path | str | None = None,
) -> Profile:
    """Read `source`, whatever of the known kinds it is, into the store under `display_name`; returns it as stored.

    Raises InputError where the source is none of them or is damaged (the old profile of that name is left as it was), and
    MissingError where a tool is needed that this machine lacks.
    """
    name = store.check_name(display_name)
    path = expanded(source)
    if not path.exists():
        raise InputError(f"no such profile source: {path}", hint=f"give {_KINDS}")
    if path.suffix == ".neff" or ntff is not None:
        return explorer.ingest(path, expanded(ntff) if ntff else None, name, note=note, data_path=data_path)
    profile = read(path, name)
    return store.save(profile, name, data_path, note=note)


def read(path: Path, name: str) -> Profile:
    """A profile from a source that needs no outside tool, in memory or over its own folder."""
    if path.is_dir():
        return _folder(path, name)
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        return nsys.read(path, name)
    if path.suffix == ".csv":
        return ncu.read(path, name)
    document = _json(path, gzipped=head.startswith(b"\x1f\x8b"))
    readers: tuple[tuple[Callable[[Any], bool], Callable[[Any, str], Profile]], ...] = (
        (chrome.recognises, chrome.read),
        (legacy.recognises, legacy.read),
        (_is_summary, _summary),
    )
    for recognises, reader in readers:
        if recognises(document):
            profile = reader(document, name)
            return Profile(
                profile.name, profile.tables, info={**profile.info, "source": f"{profile.info['source']}: {path.name}"}
            )
    raise InputError(f"{path.name} is JSON of no kind that is known here", hint=f"give {_KINDS}")


def _folder(path: Path, name: str) -> Profile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = parquet_files(path)
    if not files:
        raise InputError(f"no parquet file in {path}", hint=f"give {_KINDS}")
    for table, parts in files.items():
        for part in parts:
            try:
                with pq.ParquetFile(part) as file:
                    for index in range(file.num_row_groups):
                        file.read_row_group(index)
            except (pa.ArrowException, OSError) as error:
                reason = " ".join(str(error).split())[:200]
                raise InputError(
                    f"{part.name} (table {table}) cannot be read: {reason}", hint="copy it again"
                ) from None
    simulated = bool(Profile(name, directory=path).first("Metadata").get("is_simulation"))
    provenance = "simulated" if simulated else "measured"
    return Profile(name, directory=path, info={"source": f"parquet folder: {path}", "provenance": provenance})


def _json(path: Path, gzipped: bool) -> Any:
    try:
        data = gzip.decompress(path.read_bytes()) if gzipped else path.read_bytes()
        return json.loads(data)
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path.name} is damaged: {error}", hint="copy it again") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not JSON: {' '.join(str(error).split())}", hint=f"give {_KINDS}") from None


def _is_summary(document: Any) -> bool:
    """The device tool's summary-json: an object of metrics, or of such objects by node."""
    if not isinstance(document, dict):
        return False
    return any("total_time" in item for item in (document, *document.values()) if isinstance(item, dict))


def _summary(document: dict[str, Any], name: str) -> Profile:
    nodes = [item for item in document.values() if isinstance(item, dict) and "total_time" in item] or [document]
    columns = {
        key: [node.get(key) for node in nodes]
        for node in nodes
        for key in node
        if not isinstance(node[key], dict | list)
    }
    return Profile(
        name, {"Summary": schema.build("Summary", columns)}, info={"source": "summary-json", "provenance": "measured"}
    )
