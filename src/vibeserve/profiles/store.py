"""The profile store: one immutable folder of parquet files a profile, and a link `<name>@latest` to it.

    <data-path>/profiles/global/<name>@latest  ->  <name>@<time>-<random>/   <Table>.parquet … profile.json

A profile is written whole into a folder of its own, then the link is swapped in one step, so readers and two writers never
see half a profile, and a failed ingest leaves the old one as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, read_json, write_json
from vibeserve.base.paths import expanded, profile_data_path
from vibeserve.profiles import derive, schema, sources
from vibeserve.profiles.profile import Profile

NAMESPACE = "global"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LATEST = "@latest"
_INFO = "profile.json"
_KEEP_S = 60.0


def check_name(name: str) -> str:
    """`name`, if it is a profile name: letters, digits, dot, underscore and hyphen. Raises InputError otherwise."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InputError(
            f"not a profile name: {name!r}",
            hint="use letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def root(data_path: Path | str | None = None) -> Path:
    """The folder that holds the profiles of a data path (by default the user's)."""
    base = expanded(data_path) if data_path is not None else profile_data_path()
    return base / "profiles" / NAMESPACE


def save(
    profile: Profile,
    display_name: str | None = None,
    data_path: Path | str | None = None,
    *,
    source: str = "",
    note: str = "",
    info: Mapping[str, Any] | None = None,
) -> Profile:
    """Write a profile into the store under `display_name`, replacing what was there; returns it as stored.

    Every table is checked against the schema: known columns get its types, unknown ones are kept, and what is missing is
    written down in the profile's info. Tables that follow from others (Summary, ActiveTime, …) are added where they lack.
    The sources that its instructions name are kept with it, where they can be read.
    """
    name = check_name(profile.name if display_name is None else display_name)
    home = root(data_path)
    home.mkdir(parents=True, exist_ok=True)
    created = datetime.now(UTC)
    folder = home / f"{name}@{created:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        missing: dict[str, list[str]] = {}
        extra: dict[str, list[str]] = {}
        for table_name in profile.table_names():
            report = _write(profile, table_name, folder / f"{table_name}.parquet")
            if report.missing_required:
                missing[table_name] = list(report.missing_required)
            if report.extra:
                extra[table_name] = list(report.extra)
        written = Profile(name, directory=folder, info=profile.info)
        sources.keep(folder, sources.found(written))
        derived = derive.missing_tables(written)
        for table_name, table in derived.items():
            _write(Profile(name, {table_name: table}), table_name, folder / f"{table_name}.parquet")
        known = {
            "name": name,
            "created": created.isoformat(timespec="seconds"),
            "source": source or profile.info.get("source", ""),
            "note": note,
            "derived_tables": sorted(derived),
            "missing_columns": missing,
            "extra_columns": extra,
            **{key: value for key, value in profile.info.items() if key not in ("source", "note", "name", "created")},
            **(info or {}),
        }
        write_json(DiskFiles(), folder / _INFO, known)
        _link(home, name, folder.name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _sweep(home, name)
    return Profile(name=name, directory=folder, info=known)


def _write(profile: Profile, table_name: str, path: Path) -> schema.Conformance:
    """Write one table as parquet, a row group at a time where it comes from disk. Raises InputError for a wrong type."""
    import pyarrow.parquet as pq

    writer = report = None
    try:
        for part in profile.parts(table_name):
            table, report = schema.conform(table_name, part)
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=1)
            writer.write_table(table.cast(writer.schema) if table.schema != writer.schema else table)
    except ValueError as error:
        raise InputError(f"profile '{profile.name}': {error}", hint="the old profile, if any, is as it was") from None
    finally:
        if writer is not None:
            writer.close()
    assert report is not None
    return report


def open_profile(name: str, data_path: Path | str | None = None) -> Profile:
    """The profile of that name, as it is now. Raises InputError where there is none."""
    home = root(data_path)
    link = home / f"{check_name(name)}{_LATEST}"
    if not link.is_dir():
        have = ", ".join(sorted(item["name"] for item in list_profiles(data_path))[:10])
        raise InputError(
            f"no profile '{name}' in {home}",
            hint=f"there is {have}" if have else "take one in with 'vibeserve profile ingest'",
        )
    folder = link.resolve()
    return Profile(name=name, directory=folder, info=_info(folder, name))


def list_profiles(data_path: Path | str | None = None) -> list[dict[str, Any]]:
    """Every profile: name, path, source, created, note."""
    home = root(data_path)
    found = []
    for link in sorted(home.glob(f"*{_LATEST}")):
        if not link.is_dir():
            continue
        name = link.name.removesuffix(_LATEST)
        info = _info(link.resolve(), name)
        found.append(
            {
                "name": name,
                "path": str(link),
                "source": info.get("source", ""),
                "created": info.get("created", ""),
                "note": info.get("note", ""),
            }
        )
    return found


def delete(name: str, data_path: Path | str | None = None) -> None:
    """Remove a profile. Raises InputError where there is none."""
    profile = open_profile(name, data_path)
    home = root(data_path)
    link = home / f"{name}{_LATEST}"
    if link.is_symlink():
        link.unlink()
    assert profile.directory is not None
    shutil.rmtree(profile.directory)


def rename(name: str, new_name: str, data_path: Path | str | None = None) -> None:
    """Give a profile another name. Raises InputError where the new one is taken."""
    profile = open_profile(name, data_path)
    home = root(data_path)
    if (home / f"{check_name(new_name)}{_LATEST}").exists():
        raise InputError(f"there is a profile '{new_name}' already", hint="delete it first, or choose another name")
    assert profile.directory is not None
    link = home / f"{name}{_LATEST}"
    if link.is_symlink():
        _link(home, new_name, profile.directory.name)
        link.unlink()
    else:
        os.rename(link, home / f"{new_name}{_LATEST}")


def _info(folder: Path, name: str) -> dict[str, Any]:
    path = folder / _INFO
    if path.is_file():
        try:
            return {**read_json(path), "name": name}
        except (OSError, ValueError, TypeError) as error:
            return {"name": name, "source": f"unknown: {_INFO} cannot be read: {error}"}
    return {"name": name, "source": "neuron-explorer (folder without profile.json)"}


def _link(home: Path, name: str, folder: str) -> None:
    """Point `<name>@latest` at `folder`, in one step."""
    latest = home / f"{name}{_LATEST}"
    if latest.is_dir() and not latest.is_symlink():  # the device tool writes a plain folder: keep it, out of the way
        os.rename(latest, home / f"{name}@device-{secrets.token_hex(4)}")
    temporary = home / f".{name}-{secrets.token_hex(4)}"
    os.symlink(folder, temporary)
    try:
        os.replace(temporary, latest)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _sweep(home: Path, name: str) -> None:
    """Remove older folders of a name, but for the last minute's and the newest beside the present: a reader may be in it."""
    linked = {link.resolve().name for link in home.glob(f"*{_LATEST}")}
    old = sorted(
        path for path in home.glob(f"{name}@2*") if path.is_dir() and not path.is_symlink() and path.name not in linked
    )
    for folder in old[:-1]:
        info = folder / _INFO
        if info.exists() and time.time() - info.stat().st_mtime > _KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)
