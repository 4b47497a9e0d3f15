"""What a candidate starts: `python server.py --model-dir DIR --host H --port P`, with `engine.toml` beside server.py."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .cores import Tables, make_core
from .errors import EngineError
from .http.bridge import Engine, OnStep
from .http.plan import ServedModel
from .http.server import listen, serve
from .http.settings import HttpSettings, http_settings_from
from .settings import Settings, read_tables, settings_from
from .tokenizer import Tokenizer
from .types import Limits

log = logging.getLogger(__name__)


def load(
    model_dir: Path, settings: Settings, tables: Tables, http: HttpSettings, on_step: OnStep
) -> tuple[Engine, ServedModel]:
    """Build the engine and read the tokenizer. Raises EngineError, OSError, ValueError."""
    # torch comes with these: `/health` answers before it has been imported.
    from .thread import EngineThread

    tokenizer = Tokenizer.load(model_dir)
    core = make_core(model_dir, settings, tables)
    engine = EngineThread(core, on_step)
    told = settings.to_dict() | {"transformers": tables.get("transformers")}
    model = served_model(model_dir, tokenizer, engine.limits, told, http)
    return engine, replace(model, constraints=getattr(core, "constraints", None))


def served_model(
    model_dir: Path, tokenizer: Tokenizer, limits: Limits, settings: dict[str, Any], http: HttpSettings
) -> ServedModel:
    """The model as the API tells it. The fingerprint changes with the model's configuration and the settings."""
    told = {"settings": settings, "config": json.loads((model_dir / "config.json").read_text(encoding="utf-8"))}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    names = dict.fromkeys(name for name in (http.model_name, model_dir.resolve().name, str(model_dir)) if name)
    return ServedModel(tuple(names), tokenizer, limits, int(time.time()), f"fp_{digest[:12]}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a model directory over the OpenAI API.")
    parser.add_argument("--model-dir", type=Path, required=True, help="safetensors, config.json and tokenizer.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--config", type=Path, help="the settings; the default is engine.toml beside the script")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM; exits 0 after a drain, 1 where the engine failed, 2 for bad settings or a taken port."""
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    config = arguments.config or Path(sys.argv[0]).resolve().parent / "engine.toml"
    try:
        tables = read_tables(config)
        settings = settings_from(tables["engine"], f"{config} [engine]")
        http = http_settings_from(tables["http"], f"{config} [http]")
        if not (arguments.model_dir / "config.json").is_file():
            raise EngineError(f"{arguments.model_dir} has no config.json", "give the directory of a model")
        listener = listen(arguments.host, arguments.port)
    except EngineError as error:
        _say(error.message, error.hint)
        sys.exit(2)
    except OSError as error:
        _say(f"cannot listen on {arguments.host}:{arguments.port}: {error.strerror or error}", "choose another --port")
        sys.exit(2)
    sys.exit(serve(partial(load, arguments.model_dir, settings, tables, http), http, listener))


def _say(message: str, hint: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    main()
