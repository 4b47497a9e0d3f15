"""reference/meta.json: the model's id, revision, task, and the places its weights may be taken from."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vibeserve.base.errors import InputError
from vibeserve.base.files import read_json
from vibeserve.targets.types import ModelMeta

SOURCE_KINDS = ("hf://", "file:", "pypi://")


class _MetaJson(BaseModel):
    # Other tools put keys of their own beside these; they are left alone. Types are strict.
    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    model_id: str = Field(min_length=1)
    revision: str | None = None
    task: str | None = None
    sources: list[str] = []
    trust_remote_code: bool = False

    @field_validator("sources")
    @classmethod
    def _known_kind(cls, sources: list[str]) -> list[str]:
        for source in sources:
            if not source.startswith(SOURCE_KINDS):
                raise ValueError(f"'{source}' is none of {', '.join(SOURCE_KINDS)}")
        return sources


def read_meta(reference: Path) -> ModelMeta:
    """Read `reference`/meta.json. Raises InputError that names the file and the key."""
    path = reference / "meta.json"
    hint = 'it holds {"model_id": "org/name", "revision": null, "task": "text-generation"}'
    try:
        document = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", hint=hint) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not valid JSON: {error}", hint=hint) from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object", hint=hint)
    try:
        meta = _MetaJson.model_validate(document)
    except ValidationError as failure:
        first = failure.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: key '{name}': {first['msg'].removeprefix('Value error, ')}", hint=hint) from None
    return ModelMeta(meta.model_id, meta.revision, meta.task, tuple(meta.sources), meta.trust_remote_code)
