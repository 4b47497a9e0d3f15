"""`VibeServeModel`: the engine in the caller's own process, with the two calls of an in-process target.

    model = VibeServeModel.from_pretrained("model-dir")
    output = model.generate(input_ids, max_new_tokens=64)   # [rows, prompt] in, [rows, prompt + new] out

Rows are answered together; a row that ends early is filled with the end token, as `generate` of transformers fills it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .cores import make_core
from .errors import EngineError, RequestError
from .settings import Settings, read_tables, settings_from
from .types import Request, SamplingParams


class VibeServeModel:
    """A loaded model. Not thread-safe: one call at a time, which may hold many rows."""

    def __init__(self, core: Any) -> None:
        """Around an engine core; `from_pretrained` makes one."""
        self._core = core
        self._names = itertools.count()

    @classmethod
    def from_pretrained(
        cls, model_dir: str | Path, *, config: str | Path | None = None, **settings: Any
    ) -> VibeServeModel:
        """Load a model directory. `config` is an `engine.toml`; `settings` are fields of its `[engine]` table.

        Raises EngineError (bad settings, an unknown family, corrupt files).
        """
        tables = {"engine": {}} if config is None else read_tables(Path(config))
        chosen: Settings = settings_from(tables["engine"] | settings)
        return cls(make_core(Path(model_dir), chosen, tables))

    def generate(
        self,
        input_ids: Any,
        max_new_tokens: int = 16,
        *,
        attention_mask: Any = None,
        temperature: float = 0.0,
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> Any:
        """Continue each row of `input_ids` ([rows, tokens], or one row of [tokens]) by up to `max_new_tokens`.

        Greedy by default; `sampling` are further fields of SamplingParams (`top_p`, `seed`, …). Rows of unequal length
        are given as lists, or padded on either side with an `attention_mask` that is 0 there. Returns a tensor where a
        tensor came in, else lists: the input followed by the new ids, the end token included, shorter rows filled with
        it. Raises RequestError.
        """
        rows, single = _rows(input_ids)
        kept = _unpadded(rows, attention_mask)
        params = SamplingParams(temperature=temperature, max_tokens=max_new_tokens, ignore_eos=ignore_eos, **sampling)
        new = self._run([Request(f"generate-{next(self._names)}", tuple(row), params) for row in kept])
        longest = max(map(len, new))
        fill = self._core.limits.eos_token_ids[0] if self._core.limits.eos_token_ids else 0
        filled = [row + answer + [fill] * (longest - len(answer)) for row, answer in zip(rows, new, strict=True)]
        if not hasattr(input_ids, "new_tensor"):
            return filled[0] if single else filled
        return input_ids.new_tensor(filled[0] if single else filled)

    def _run(self, requests: Sequence[Request]) -> list[list[int]]:
        """The new ids of each request."""
        found: dict[str, list[int]] = {request.id: [] for request in requests}
        for request in requests:
            self._core.check(request)
        for request in requests:
            self._core.add(request)
        while self._core.has_work():
            for output in self._core.step():
                found[output.request_id] += output.token_ids
                if output.finish_reason == "error":
                    raise EngineError(output.error or "the engine failed")
        self._core.rest()
        return list(found.values())

    def close(self) -> None:
        """Free the model."""
        self._core.close()


def _rows(input_ids: Any) -> tuple[list[list[int]], bool]:
    """The rows as lists, and whether it was a single one without its own dimension."""
    values = input_ids.tolist() if hasattr(input_ids, "tolist") else [_listed(item) for item in input_ids]
    single = bool(values) and not isinstance(values[0], list)
    rows = [values] if single else values
    if not rows or not all(rows):
        raise RequestError("input_ids", "input_ids has an empty row")
    for row in rows:
        for token in row:
            if type(token) is not int:
                raise RequestError("input_ids", f"input_ids must hold whole numbers, has {token!r}")
    return rows, single


def _listed(item: Any) -> Any:
    if hasattr(item, "tolist"):
        return item.tolist()
    return list(item) if isinstance(item, Iterable) and not isinstance(item, str) else item


def _unpadded(rows: list[list[int]], attention_mask: Any) -> list[list[int]]:
    """The rows without what the mask leaves out."""
    if attention_mask is None:
        return rows
    masks, _ = _rows(attention_mask)
    if [len(mask) for mask in masks] != [len(row) for row in rows]:
        raise RequestError("attention_mask", "attention_mask has another shape than input_ids")
    return [
        [token for token, keep in zip(row, mask, strict=True) if keep] for row, mask in zip(rows, masks, strict=True)
    ]
