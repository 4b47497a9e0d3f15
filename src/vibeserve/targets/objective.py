"""OBJECTIVE.md: what it must say, and the metric that it names where no bundle.toml does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vibeserve.base.errors import InputError
from vibeserve.targets.types import Direction, Metric

_HIGHER = r"higher(?:\s+is)?(?:\s+better)?|maximi[sz]e|max\b|increase|more is better"
_LOWER = r"lower(?:\s+is)?(?:\s+better)?|minimi[sz]e|min\b|reduce|decrease|less is better"
_NAME = r"`([A-Za-z_][A-Za-z0-9_]*)`"

# The unit is the end of the metric's name, as the benchmarks here name their numbers.
_UNITS = (
    (r"tok(en)?s?_per_s(ec)?$|aggregate_throughput$|token_throughput$|tok_per_sec$", "tokens/s"),
    (r"req(uest)?s?_per_s$|request_throughput$|goodput$", "requests/s"),
    (r"audio_s_per_s$", "s/s"),
    (r"images_per_s$", "images/s"),
    (r"embeddings_per_s$", "embeddings/s"),
    (r"videos_per_s$", "videos/s"),
    (r"texts_per_s$", "texts/s"),
    (r"answers_per_s$", "answers/s"),
    (r"_ms$", "ms"),
    (r"_s$|_sec$", "s"),
    (r"_rate$|_share$|_fraction$", ""),
)


@dataclass(frozen=True, slots=True)
class Content:
    """One of the six things that an OBJECTIVE.md says: its name, and the pattern that shows that it is there."""

    name: str
    pattern: str
    hint: str


SIX_CONTENTS = (
    Content("model and modality", r"(?is)\bmodel\b.*(->|→|\bmodality\b)|(->|→|\bmodality\b).*\bmodel\b",
            "name the model, and the modality as 'text -> text'"),
    Content("hardware", r"(?i)(?<![-\w])(hardware|machine|target|gpu|cpu|trainium|trn\d|inf2|h100|a100|l4|macbook|cores?)\b",
            "say which machine the server is for"),
    Content("primary metric with direction",
            r"(?i)\b(higher|lower|more|less|greater|smaller)(\s+is)?\s+better|\b(maximi[sz]|minimi[sz]|increas|reduc|decreas)(e|ing)\b",
            "name the metric in backticks, and 'higher is better' or 'lower is better'"),
    Content("API shape", r"(?i)(/v1/[a-z/]+|\bPOST `?/|websocket|wss?://|openai-compatible|VibeServeModel|@nki\.jit)",
            "name the endpoints, such as /v1/completions"),
    Content("accuracy requirement", r"(?is)(\baccuracy\b|\bpass\w*\b.{0,40}\bchecker|token ids?|\bexact (?:match|greedy|token|equal)\w*|similarity|word error)",
            "say that the accuracy checker must pass, and how strictly it compares"),
    Content("allowed approaches and disallowed shortcuts",
            r"(?is)\ballowed\b.*(\bnot allowed\b|disallowed|forbidden|must not|may not|shortcuts?)",
            "list what a candidate may do, and the shortcuts that it may not"),
)  # fmt: skip


def missing_contents(text: str) -> list[Content]:
    """Which of the six contents an OBJECTIVE.md lacks; the user's own words, in quotation marks, are none of them."""
    stated = re.sub(r'"[^"\n]*"', '""', text)
    return [content for content in SIX_CONTENTS if not re.search(content.pattern, stated)]


def unit_of(name: str) -> str:
    """The unit that a metric's name ends in; empty where it says none."""
    return next((unit for pattern, unit in _UNITS if re.search(pattern, name)), "")


def parse_metric(text: str) -> Metric:
    """`NAME:higher` or `NAME:lower`, as --metric takes it. Raises InputError."""
    name, _, direction = text.partition(":")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name) or direction not in ("higher", "lower"):
        raise InputError(
            f"--metric {text!r}: not NAME:higher or NAME:lower", hint="for instance --metric output_tokens_per_s:higher"
        )
    return Metric(name, unit_of(name), "higher" if direction == "higher" else "lower")


def metric_from_objective(text: str) -> Metric | None:
    """The metric that an objective names in backticks beside its direction; None where it does not, or names several.

    A line or sentence counts where it holds one name in backticks and one direction: "`ttft_p50_ms`, lower is better",
    "Maximise `aggregate_throughput`". "Primary metric" or "headline" in it wins over other lines.
    """
    found: list[tuple[bool, str, Direction]] = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n(?=[-*#|])", text):
        names = re.findall(_NAME, sentence)
        higher, lower = re.search(_HIGHER, sentence, re.I), re.search(_LOWER, sentence, re.I)
        if len(set(names)) != 1 or bool(higher) == bool(lower):
            continue
        primary = bool(re.search(r"(?i)primary|headline|objective|goal|optimi[sz]", sentence))
        found.append((primary, names[0], "higher" if higher else "lower"))
    chosen = {(name, direction) for primary, name, direction in found if primary} or {
        (name, direction) for _, name, direction in found
    }
    if len(chosen) != 1:
        return None
    name, direction = chosen.pop()
    return Metric(name, unit_of(name), direction)


def stated_direction(text: str, metric: str) -> Direction | None:
    """The direction that an objective states for `metric`; None where it states none or both."""
    said: set[Direction] = set()
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n(?=[-*#|])", text):
        if f"`{metric}`" not in sentence:
            continue
        if re.search(_HIGHER, sentence, re.I):
            said.add("higher")
        if re.search(_LOWER, sentence, re.I):
            said.add("lower")
    return said.pop() if len(said) == 1 else None


def lines_to_add(name: str = "output_tokens_per_s", direction: str = "higher") -> str:
    """What to write where nothing says the metric."""
    return (
        f"pass --metric {name}:{direction}, or add to OBJECTIVE.md: 'Primary metric: `{name}`, {direction} is better.'"
    )


def read_objective(path: Path) -> str:
    """The text of an objective. Raises InputError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", hint="an objective is a text file in UTF-8") from None
