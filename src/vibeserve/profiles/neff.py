"""The NEFF file: a 1,024-byte header, then a gzip tarball. Fields as the format's offsets say; little endian."""

from __future__ import annotations

import io
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

from vibeserve.base.errors import InputError

HEADER_BYTES = 1024
_FIELDS = struct.Struct("<QQQQQ128sI32s16s256sI64sQI")


@dataclass(frozen=True, slots=True)
class NeffHeader:
    """What the header says."""

    package_version: int
    header_size: int
    data_size: int
    major_version: int
    minor_version: int
    build_version: str
    core_count: int
    hash: str
    uuid: str
    network_name: str
    feature_bits: int
    lnc_size: int


def read_header(path: Path) -> NeffHeader:
    """The header of a NEFF. Raises InputError where the file is too short or no NEFF."""
    with path.open("rb") as file:
        raw = file.read(HEADER_BYTES)
    if len(raw) < HEADER_BYTES:
        raise InputError(f"{path.name} is too short to be a NEFF ({len(raw)} bytes)", hint="run the kernel again")
    held = _FIELDS.unpack_from(raw)
    if held[1] != HEADER_BYTES:
        raise InputError(f"{path.name} is no NEFF: its header says {held[1]} bytes, not {HEADER_BYTES}")
    return NeffHeader(
        package_version=held[0],
        header_size=held[1],
        data_size=held[2],
        major_version=held[3],
        minor_version=held[4],
        build_version=_text(held[5]),
        core_count=held[6],
        hash=held[7].hex() if held[0] >= 2 and any(held[7][16:]) else held[7][:16].hex(),
        uuid=held[8].hex(),
        network_name=_text(held[9]),
        feature_bits=held[12],
        lnc_size=held[13],
    )


def write(path: Path, header: NeffHeader, members: dict[str, bytes]) -> None:
    """Write a NEFF in the real format (used by the simulator's stand-in captures)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    body = packed.getvalue()
    raw = _FIELDS.pack(
        header.package_version,
        HEADER_BYTES,
        len(body),
        header.major_version,
        header.minor_version,
        header.build_version.encode()[:127],
        header.core_count,
        bytes.fromhex(header.hash).ljust(32, b"\0"),
        bytes.fromhex(header.uuid),
        header.network_name.encode()[:255],
        header.core_count,
        b"",
        header.feature_bits,
        header.lnc_size,
    )
    path.write_bytes(raw.ljust(HEADER_BYTES, b"\0") + body)


def members(path: Path) -> dict[str, bytes]:
    """The files inside a NEFF. Raises InputError where the archive is damaged."""
    try:
        with path.open("rb") as file:
            file.seek(HEADER_BYTES)
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                return {
                    entry.name: archive.extractfile(entry).read()  # type: ignore[union-attr]
                    for entry in archive.getmembers()
                    if entry.isfile()
                }
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path.name}: its archive cannot be read: {error}", hint="run the kernel again") from None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
