"""Answers that keep to a grammar: JSON, JSON schemas, regular expressions, Lark and GBNF grammars, by llguidance.

A grammar is compiled once and kept; each request walks a copy of it. Before a token is chosen, those that the grammar
does not allow are masked. What the grammar leaves no choice about need not be chosen at all: such tokens are appended
as they are, and computed together with the next step (jump-forward). An answer ends when its grammar is complete.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence as Tokens
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from .errors import RequestError
from .schema_ends import comes_to_an_end

KEPT_GRAMMARS = 256
LONGEST_GRAMMAR = 256 * 1024
DEEPEST_SCHEMA = 64
_LAYOUT: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write a value, so that its fixed parts are forced."""


class Constraint:
    """Where one answer is in its grammar."""

    __slots__ = ("_bits", "_matcher", "_pending", "_vocabulary")

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._bits = np.zeros(-(-vocabulary // 32), dtype=np.int32)
        self._pending: Future[None] | None = None

    def start_mask(self, pool: ThreadPoolExecutor) -> None:
        """Work the next mask out in a thread, while the model computes."""
        self._pending = pool.submit(self._fill)

    def _fill(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)

    def mask(self, row: npt.NDArray[np.float32]) -> None:
        """Set what is not allowed to minus infinity, in place. `row` [vocabulary]."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None
        else:
            self._fill()
        allowed = np.unpackbits(self._bits.view(np.uint8), count=self._vocabulary, bitorder="little")
        row[allowed == 0] = -np.inf

    def accept(self, token: int) -> None:
        """The answer went on with this token."""
        self._matcher.consume_token(token)

    def jump(self, most: int) -> list[int]:
        """Take the tokens that the grammar forces now, at most so many."""
        if most < 1 or self._matcher.is_stopped():
            return []
        forced = self._matcher.compute_ff_tokens()[:most]
        return forced[: self._matcher.try_consume_tokens(forced)] if forced else []

    @property
    def complete(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str:
        """What went wrong with the grammar; empty where nothing did."""
        return str(self._matcher.get_error()).splitlines()[0] if self._matcher.is_error() else ""


class Constraints:
    """The model's vocabulary as llguidance sees it, and the grammars that were compiled. Safe from any thread."""

    def __init__(self, model_dir: Path, vocabulary: int, eos_token_ids: Tokens[int]) -> None:
        """Read `tokenizer.json`; takes about a second. `vocabulary` is the number of logits."""
        ends = [token for token in eos_token_ids if token < vocabulary]
        self._tokenizer = LLTokenizer(
            (model_dir / "tokenizer.json").read_text(encoding="utf-8"), n_vocab=vocabulary, eos_token=ends or None
        )
        self._vocabulary = vocabulary
        self._known: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "vibeserve-masks")
        self.compiled = 0

    def check(self, grammar: str, field: str = "response_format") -> None:
        """Compile a grammar, or find that it is known. Raises RequestError where no answer can keep to it."""
        with self._lock:
            if grammar in self._known:
                self._known.move_to_end(grammar)
                return
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        found = Constraint(matcher, self._vocabulary)
        if not found.error:
            row = np.zeros(self._vocabulary, dtype=np.float32)
            found.mask(row)
            if not found.error and not np.isfinite(row).any():
                raise RequestError(field, "no answer can keep to this grammar")
        if found.error:
            raise RequestError(field, f"the grammar cannot be used: {found.error}")
        matcher.reset()
        with self._lock:
            self.compiled += 1
            self._known[grammar] = matcher
            while len(self._known) > KEPT_GRAMMARS:
                self._known.popitem(last=False)

    def start(self, grammar: str) -> Constraint:
        """A grammar at its beginning. Raises RequestError."""
        self.check(grammar)
        with self._lock:
            known = self._known.get(grammar)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0) if known is None else known.deep_copy()
        return Constraint(matcher, self._vocabulary)

    def start_masks(self, waiting: Tokens[Constraint]) -> None:
        """Begin with the masks of a step."""
        for constraint in waiting:
            constraint.start_mask(self._pool)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def grammar_of(kind: str, value: Any, field: str) -> str:
    """llguidance's form of what a request asks: `json` (a schema), `regex` or `grammar` (Lark, or GBNF with `::=`).

    Raises RequestError.
    """
    if kind == "json":
        return LLMatcher.grammar_from_json_schema(checked_schema(value, field))
    if len(value) > LONGEST_GRAMMAR:
        raise RequestError(field, f"the grammar is longer than {LONGEST_GRAMMAR} characters")
    if kind == "regex":
        return LLMatcher.grammar_from_regex(value)
    if "::=" in value:
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            value = any_to_lark(value)
        except Exception as error:  # the converter raises what its steps raise
            raise RequestError(field, f"the grammar cannot be read: {error}") from error
    return LLMatcher.grammar_from_lark(value)


def checked_schema(value: Any, field: str) -> dict[str, Any]:
    """A schema that can be compiled, with one layout for its values. Raises RequestError."""
    if _depth(value) > DEEPEST_SCHEMA:
        raise RequestError(field, f"the schema is nested deeper than {DEEPEST_SCHEMA} levels")
    if len(json.dumps(value)) > LONGEST_GRAMMAR:
        raise RequestError(field, f"the schema is longer than {LONGEST_GRAMMAR} characters")
    if not comes_to_an_end(value):
        raise RequestError(field, "the schema refers to itself without an end: no finite answer keeps to it")
    # Options can be given to an object only; `true` and `false` are schemas too.
    wanted: dict[str, Any] = {"allOf": [value]} if isinstance(value, bool) else value
    return wanted | {"x-guidance": _LAYOUT}


def _depth(value: Any) -> int:
    """Levels of nesting, counted without recursion."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        deepest = max(deepest, level)
        if level <= DEEPEST_SCHEMA * 4:
            inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            waiting += [(one, level + 1) for one in inner]
    # An object's properties take two levels.
    return -(-deepest // 2)
