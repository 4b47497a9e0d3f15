"""bundle.toml, read strictly: an unknown key, a wrong type or a value out of range names the key, the file and the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vibeserve.base.errors import InputError
from vibeserve.base.files import parse_toml

APIS = (
    "openai-completions", "openai-chat", "openai-images", "openai-transcriptions", "openai-speech", "openai-videos",
    "openai-realtime", "openai-embeddings", "websocket-audio", "http", "in-process", "nki-kernel",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16", "int8", "int4", "float8")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MetricTable(_Table):
    """[metric]: declared once; everything that scores reads it from here."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    unit: str = ""
    direction: Literal["higher", "lower"]


class ServingTable(_Table):
    """[serving]: modality, API and the path that answers 200 when the server is ready."""

    modality: str = Field("text -> text", pattern=r"^.+ -> .+$")
    api: Literal[APIS] = "openai-completions"  # type: ignore[valid-type]
    health: str = Field("/health", pattern=r"^/")


class TargetTable(_Table):
    """[target]: the machine, a name of `vibeserve hardware`; without it, whatever machine runs it."""

    hardware: str | None = None


class AccuracyTable(_Table):
    """[accuracy]: what a candidate may deviate; the default is exact greedy ids in fp32."""

    dtypes: list[Literal[DTYPES]] = Field(["float32"], min_length=1)  # type: ignore[valid-type]
    near_tie_margin: float = Field(0.0, ge=0.0, allow_inf_nan=False)
    min_top1: float = Field(1.0, ge=0.0, le=1.0)


class SloTable(_Table):
    """[slo]: goodput counts the requests within it."""

    ttft_s: float | None = Field(None, gt=0.0, allow_inf_nan=False)
    tpot_s: float | None = Field(None, gt=0.0, allow_inf_nan=False)


class ScriptTable(_Table):
    """[checker] and [benchmark]: the time a run may take, and arguments that every run gets."""

    timeout_s: float = Field(600.0, gt=0.0, allow_inf_nan=False)
    args: list[str] = []


class BundleToml(_Table):
    """The whole file."""

    metric: MetricTable | None = None
    serving: ServingTable = ServingTable()  # type: ignore[call-arg]
    target: TargetTable = TargetTable()
    accuracy: AccuracyTable = AccuracyTable()  # type: ignore[call-arg]
    slo: SloTable | None = None
    checker: ScriptTable = ScriptTable()  # type: ignore[call-arg]
    benchmark: ScriptTable = ScriptTable(timeout_s=900.0)


def read_toml(path: Path) -> BundleToml:
    """Read and check one bundle.toml. Raises InputError that names key, file and line."""
    try:
        text = path.read_text(encoding="utf-8")
        document = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path}: not valid TOML: {error}", hint="docs/bundles.md shows a whole bundle.toml") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", hint="check the path and its rights") from None
    try:
        return BundleToml.model_validate(document)
    except ValidationError as failure:
        # A key that is written wrongly is missing too: the one that is there says more.
        first = min(failure.errors(), key=lambda error: error["type"] != "extra_forbidden")
        keys = [str(part) for part in first["loc"]]
        name, line = ".".join(keys), line_of(text, keys)
        where = f"{path}:{line}" if line else str(path)
        if first["type"] == "extra_forbidden":
            known = ", ".join(_known_keys(keys[:-1]))
            raise InputError(
                f"{where}: unknown key '{name}'", hint=f"known here: {known}", code="unknown-key"
            ) from None
        if first["type"] == "missing":
            raise InputError(
                f"{where}: key '{name}' is missing", hint="docs/bundles.md shows a whole bundle.toml"
            ) from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise InputError(
            f"{where}: key '{name}': {message}, not {first['input']!r}", hint="docs/bundles.md lists the values"
        ) from None


def _known_keys(section: list[str]) -> list[str]:
    tables: dict[str, type[BaseModel]] = {
        "": BundleToml, "metric": MetricTable, "serving": ServingTable, "target": TargetTable,
        "accuracy": AccuracyTable, "slo": SloTable, "checker": ScriptTable, "benchmark": ScriptTable,
    }  # fmt: skip
    return list(tables[section[0] if section else ""].model_fields)


def line_of(text: str, keys: list[str]) -> int | None:
    """The line (from 1) on which a key, or else its table, is written; None where neither is found."""
    table: list[str] = []
    nearest = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = [part.strip("\"' ") for part in header.group(1).split(".")]
            if table == keys:
                return number
            if nearest is None and table == keys[: len(table)]:
                nearest = number
        elif key := re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line):
            full = [*table, *key.group(1).split(".")]
            if full == keys[: len(full)] and len(full) > len(table):
                return number
    return nearest
