"""Which core runs a model: the engine's own, or transformers' where the engine has no code for its family."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import MissingPartError, UnsupportedModelError
from .settings import Settings

log = logging.getLogger(__name__)
Tables = dict[str, dict[str, Any]]
"""The tables of an `engine.toml` by name."""


def make_core(model_dir: Path, settings: Settings, tables: Tables) -> Any:
    """An `EngineCore`, or a `TransformersCore`: where `engine.toml` has a `[transformers]` table, and where the engine
    has no code for the model's family and this copy has the part. Which one it is stands in the log and in the metrics.

    Raises EngineError.
    """
    if "transformers" in tables:
        return _transformers(model_dir, settings, tables["transformers"])
    from .core import EngineCore

    try:
        return EngineCore(model_dir, settings)
    except UnsupportedModelError as error:
        if find_spec(f"{__package__}.transformers_core") is None:
            raise
        log.warning("%s; transformers runs it instead", error.message)
        return _transformers(model_dir, settings, {})


def _transformers(model_dir: Path, settings: Settings, table: dict[str, Any]) -> Any:
    try:
        from .transformers_core import TransformersCore, transformers_settings_from
    except ModuleNotFoundError as error:
        raise MissingPartError(f"[transformers] needs the engine's part of that name: {error}") from error
    return TransformersCore(model_dir, settings, transformers_settings_from(table))
