"""The engine's settings: one frozen value, read strictly from the `[engine]` table of `engine.toml`."""

from __future__ import annotations

import os
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from .errors import SettingsError

DTYPES = ("float32", "bfloat16")
BACKENDS = ("torch", "compiled", "auto")
TABLES = ("engine", "http", "transformers")
"""`engine.toml` has these tables; `[http]` is read by the HTTP front, `[transformers]` chooses transformers' own models."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine runs. Every field is a knob of `engine.toml`.

    - `dtype`: weights and KV cache; sums are always float32.
    - `backend`: `torch` runs everywhere; `compiled` builds the engine's C++ kernels at start and is an error where no
      compiler is found; `auto` is `compiled` with `torch` as its fall-back, said in the log and in the metrics.
    - `max_batch`: sequences that decode together.
    - `max_batch_tokens`: tokens of one step, decode and prefill together; a longer prompt is cut into chunks.
    - `chunked_prefill`: off means that a prompt is computed whole, in one step, whatever the budget.
    - `block_size`: tokens in a KV block (16 with the compiled back end).
    - `kv_memory_bytes`: 0 means 1 GiB (or one sequence of `max_model_len`, whichever is more), but
      no more than `max_batch` such sequences need, nor than an eighth of the memory. All of it is taken at start.
    - `max_model_len`: 0 means the model's own limit.
    - `prefix_cache`: keep full blocks of finished requests and share them by radix tree.
    - `threads`: 0 means the cores that this process may run on.
    - `compile`: run the torch back end's dense parts through `torch.compile`, warmed up before the engine is ready.
    - `max_waiting`: requests that may wait for a place.
    - `predicted_outputs`: verify the tokens of a request's `prediction` many at a time.
    - `ngram_speculation`: verify what followed the last few tokens where they stood before.
    - `constrained_decoding`: answers may be asked to keep to a JSON schema, a regular expression or a grammar.
    - `jump_forward`: tokens that a grammar forces are appended without being chosen.
    - `ttft_target_ms`: a request whose first token would come later than this is refused at once; 0 refuses none so.
    - `tpot_target_ms`: what one token of an answer may take: it bounds the prompt rows of a step, and the sequences that
      decode together; 0 bounds neither.
    - `prefill_stretch_pct`: a step with prompt rows may take this much of the time of one without, in percent; 0 bounds
      nothing.
    - `swap_memory_bytes`: under memory pressure, up to so much of the keys and values of requests that give way is set aside
      and put back later, instead of being computed again; 0 computes all of it again.
    - `prefix_store`: a file in which the prefix cache is kept over a restart; "" keeps none. A file of other weights,
      settings or kernels is not used, nor one that is damaged.
    - `learned_drafts`: while few requests decode, verify what a small model of the answers so far expects next.
    - `draft_rows`: drafted tokens fill a step up to this many rows; a batch that has as many has no drafts.
    """

    dtype: str = "float32"
    backend: str = "auto"
    max_batch: int = 16
    max_batch_tokens: int = 512
    chunked_prefill: bool = True
    block_size: int = 16
    kv_memory_bytes: int = 0
    max_model_len: int = 0
    prefix_cache: bool = True
    threads: int = 0
    compile: bool = False
    max_waiting: int = 1024
    predicted_outputs: bool = False
    ngram_speculation: bool = False
    draft_rows: int = 16
    constrained_decoding: bool = False
    jump_forward: bool = False
    ttft_target_ms: int = 0
    tpot_target_ms: int = 0
    prefill_stretch_pct: int = 0
    swap_memory_bytes: int = 0
    prefix_store: str = ""
    learned_drafts: bool = False

    def __post_init__(self) -> None:
        _member("dtype", self.dtype, DTYPES)
        _member("backend", self.backend, BACKENDS)
        for name, low in (
            ("max_batch", 1),
            ("max_batch_tokens", 1),
            ("block_size", 1),
            ("max_waiting", 1),
            ("draft_rows", 2),
        ):
            _at_least(name, getattr(self, name), low)
        for name in (
            "kv_memory_bytes",
            "max_model_len",
            "threads",
            "ttft_target_ms",
            "tpot_target_ms",
            "prefill_stretch_pct",
            "swap_memory_bytes",
        ):
            _at_least(name, getattr(self, name), 0)
        if self.jump_forward and not self.constrained_decoding:
            raise SettingsError("jump_forward needs constrained_decoding", "set both, or neither")
        if self.prefix_store and not self.prefix_cache:
            raise SettingsError("prefix_store needs prefix_cache", "set prefix_cache = true")
        if 0 < self.prefill_stretch_pct <= 100:
            raise SettingsError(f"prefill_stretch_pct must be 0 or above 100, is {self.prefill_stretch_pct}")
        if self.paced and not self.chunked_prefill:
            raise SettingsError("latency targets need chunked_prefill", "set chunked_prefill = true")
        if self.max_batch_tokens < self.max_batch:
            raise SettingsError(
                f"max_batch_tokens {self.max_batch_tokens} is below max_batch {self.max_batch}",
                "every decoding sequence needs one token of a step",
            )

    @property
    def paced(self) -> bool:
        """Whether any setting needs to know how long steps take."""
        return bool(self.ttft_target_ms or self.tpot_target_ms or self.prefill_stretch_pct)

    @property
    def thread_count(self) -> int:
        """The threads to run on."""
        return self.threads or len(os.sched_getaffinity(0))

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a log or a metrics page."""
        return asdict(self)


def _member(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, is {value!r}")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise SettingsError(f"{name} must be at least {low}, is {value}")


def settings_from(table: dict[str, Any], where: str = "[engine]") -> Settings:
    """Settings from a plain dictionary. Raises SettingsError on an unknown key or a wrong type, naming it."""
    hints = get_type_hints(Settings)
    known = {entry.name for entry in fields(Settings)}
    for key, value in table.items():
        if key not in known:
            raise SettingsError(f"{where} has an unknown key {key!r}", f"known keys: {', '.join(sorted(known))}")
        expected = get_args(hints[key]) or (hints[key],)
        if type(value) not in expected:
            names = " or ".join(kind.__name__ for kind in expected)
            raise SettingsError(f"{where} {key} must be {names}, is {type(value).__name__} {value!r}")
    return Settings(**table)


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of an `engine.toml`, each as a dictionary ({} where absent). Raises SettingsError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    for key, value in document.items():
        if key not in TABLES or not isinstance(value, dict):
            raise SettingsError(f"{path} has an unknown key {key!r}", f"known tables: {', '.join(TABLES)}")
    return {name: dict(document[name]) for name in TABLES if name in document} | {
        name: {} for name in ("engine", "http") if name not in document
    }


def read_settings(path: Path) -> Settings:
    """The `[engine]` table of an `engine.toml`. Raises SettingsError."""
    return settings_from(read_tables(path)["engine"], f"{path} [engine]")
