"""Constrained answers: always valid, ended where they are complete, and refused where nothing can be valid."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.engine.helpers import finish, tokens_of
from tests.engine.schemas import schema
from tests.engine_http.conftest import write_model

from vibeserve.engine.constraints import DEEPEST_SCHEMA, grammar_of
from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import RequestError, SettingsError
from vibeserve.engine.settings import Settings
from vibeserve.engine.tokenizer import Tokenizer
from vibeserve.engine.types import Output, Request, SamplingParams

BASE = Settings(backend="torch", max_batch=8, max_batch_tokens=64, kv_memory_bytes=4 << 20, threads=1)
MASKED = replace(BASE, constrained_decoding=True, prefix_cache=True)
JUMPING = replace(MASKED, jump_forward=True)
HOT = SamplingParams(temperature=1.0, max_tokens=400)


@pytest.fixture(scope="module")
def model(model_root: Path) -> Path:
    return write_model(model_root / "tiny-with-tokenizer")


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


@pytest.fixture(scope="module")
def masked(model: Path) -> EngineCore:
    return EngineCore(model, MASKED)


@pytest.fixture(scope="module")
def jumping(model: Path) -> EngineCore:
    return EngineCore(model, JUMPING)


def text_of(outputs: list[Output], tokenizer: Tokenizer) -> str:
    ids = tokens_of(outputs)
    ends = outputs[-1].finish_reason == "stop" and not outputs[-1].complete
    return tokenizer.decode(ids[:-1] if ends else ids)


def ask_all(core: EngineCore, grammars: list[str], params: SamplingParams, first: int = 0) -> list[list[Output]]:
    for index, grammar in enumerate(grammars):
        seeded = replace(params, seed=first + index)
        core.add(Request(f"g{index}", (5 + index, 9, 11), seeded, grammar=grammar))
    found = finish(core)
    return [found[f"g{index}"] for index in range(len(grammars))]


def check_corpus(core: EngineCore, tokenizer: Tokenizer, seeds: range) -> None:
    for start in range(seeds.start, seeds.stop, 8):
        schemas = [schema(seed) for seed in range(start, min(start + 8, seeds.stop))]
        grammars = [grammar_of("json", one, "response_format") for one in schemas]
        for wanted, grammar, first in zip(schemas, grammars, ask_all(core, grammars, HOT, start), strict=True):
            outputs = first
            for seed in range(1000, 1005):
                # A recursion goes on for as long as the model likes: now and then that is past `max_tokens`.
                if outputs[-1].finish_reason == "length" and "chain" in json.dumps(wanted["properties"]):
                    (outputs,) = ask_all(core, [grammar], HOT, seed)
            shown = text_of(outputs, tokenizer)
            assert outputs[-1].finish_reason == "stop", (wanted, shown, outputs[-1].error)
            jsonschema.Draft202012Validator(wanted).validate(json.loads(shown))


@pytest.mark.parametrize("kind", ["masked", "jumping"])
def test_answers_keep_to_their_schema(kind: str, tokenizer: Tokenizer, request: pytest.FixtureRequest) -> None:
    check_corpus(request.getfixturevalue(kind), tokenizer, range(32))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["masked", "jumping"])
def test_the_whole_corpus(kind: str, tokenizer: Tokenizer, request: pytest.FixtureRequest) -> None:
    check_corpus(request.getfixturevalue(kind), tokenizer, range(300))


@pytest.mark.parametrize("kind", ["masked", "jumping"])
@pytest.mark.parametrize(
    ("form", "value", "wanted"),
    [
        ("regex", "[a-c]{3}-\\d{2}", "[a-c]{3}-\\d{2}"),
        ("regex", "(ja|nein|größe)", "ja|nein|größe"),
        ("grammar", 'start: "x" ("y" | "z") DIGIT\nDIGIT: /[0-9]/', "x[yz][0-9]"),
        ("grammar", 'root ::= "a" ("b" | "c")', "a[bc]"),
    ],
)
def test_regex_and_grammars(
    kind: str, form: str, value: str, wanted: str, tokenizer: Tokenizer, request: pytest.FixtureRequest
) -> None:
    core = request.getfixturevalue(kind)
    for outputs in ask_all(core, [grammar_of(form, value, "f")] * 6, HOT):
        assert outputs[-1].finish_reason == "stop"
        assert re.fullmatch(wanted, text_of(outputs, tokenizer))


def test_a_jump_takes_fewer_steps(masked: EngineCore, jumping: EngineCore, tokenizer: Tokenizer) -> None:
    """What the schema fixes costs no step of its own."""
    wanted = {"const": {"first_name": "Ida", "last_name": "Zwölf", "numbers": [1, 2, 3]}}
    grammar = grammar_of("json", {"type": "object", "properties": {"person": wanted}, "required": ["person"],
                                  "additionalProperties": False}, "f")  # fmt: skip
    steps = []
    for core in (masked, jumping):
        before = core.stats().steps
        (outputs,) = ask_all(core, [grammar], replace(HOT, temperature=0.0))
        steps.append(core.stats().steps - before)
        assert json.loads(text_of(outputs, tokenizer)) == {"person": wanted["const"]}
    assert steps[1] < steps[0] / 3
    assert jumping.stats().forced_tokens > 10
    assert masked.stats().forced_tokens == 0


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
def test_max_tokens_is_kept(jumping: EngineCore, most: int) -> None:
    grammar = grammar_of("json", {"const": "a rather long text that is forced"}, "f")
    (outputs,) = ask_all(jumping, [grammar], replace(HOT, max_tokens=most))
    assert len(tokens_of(outputs)) == most
    assert outputs[-1].finish_reason == "length"


def test_scores_are_told_for_every_token(jumping: EngineCore) -> None:
    grammar = grammar_of("json", {"enum": ["red", "green"]}, "f")
    (outputs,) = ask_all(jumping, [grammar], replace(HOT, logprobs=2))
    assert sum(len(output.logprobs or ()) for output in outputs) == len(tokens_of(outputs))


def test_neighbours_are_not_touched(jumping: EngineCore, masked: EngineCore) -> None:
    """Free answers are the same beside constrained ones, and drafts do not change masked ones."""
    free = replace(HOT, max_tokens=20, seed=3, ignore_eos=True)
    jumping.add(Request("free", (7, 8, 9), free))
    alone = tokens_of(finish(jumping)["free"])
    jumping.add(Request("free", (7, 8, 9), free))
    for index in range(5):
        jumping.add(Request(f"c{index}", (4, 5), HOT, grammar=grammar_of("json", schema(index), "f")))
    found = finish(jumping)
    assert tokens_of(found["free"]) == alone


def test_drafts_do_not_change_masked_answers(model: Path, masked: EngineCore) -> None:
    drafting = EngineCore(model, replace(MASKED, ngram_speculation=True, predicted_outputs=True))
    for index in range(6):
        grammar = grammar_of("json", schema(index), "f")
        params = replace(HOT, seed=index)
        masked.add(Request("a", (4, 5), params, grammar=grammar))
        right = tokens_of(finish(masked)["a"])
        drafting.add(Request("a", (4, 5), params, grammar=grammar, prediction_ids=tuple(right)))
        assert tokens_of(finish(drafting)["a"]) == right
    assert drafting.stats().accepted_tokens > 0


def test_preempted_answers_go_on(model: Path, tokenizer: Tokenizer) -> None:
    tight = EngineCore(model, replace(JUMPING, kv_memory_bytes=20 * 16 * 2 * 2 * 2 * 16 * 4, max_model_len=256))
    params = replace(HOT, max_tokens=150)
    schemas = [{"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "minItems": 12,
                "maxItems": 14}] * 6  # fmt: skip
    answers = ask_all(tight, [grammar_of("json", one, "f") for one in schemas], params)
    for wanted, outputs in zip(schemas, answers, strict=True):
        jsonschema.validate(json.loads(text_of(outputs, tokenizer)), wanted)
    assert tight.stats().preemptions > 0


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        made = {"type": "object", "properties": {"a": made}, "required": ["a"]}
    return made


@pytest.mark.parametrize(
    ("form", "value", "message"),
    [
        ("json", {"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ("json", {"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable"),
        ("json", False, "Unsatisfiable"),
        ("json", {"type": "strin"}, "Invalid type"),
        ("json", {"$ref": "#/nope"}, "does not exist"),
        ("json", {"$ref": "#"}, "without an end"),
        ("json", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "without an end"),
        ("json", nested(DEEPEST_SCHEMA + 1), "nested deeper"),
        ("json", nested(5000), "nested deeper"),
        ("regex", "([", "regex"),
        ("grammar", "start: nowhere", "unknown name"),
    ],
)
def test_what_cannot_be_kept_is_refused(masked: EngineCore, form: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        masked.check(Request("x", (4,), HOT, grammar=grammar_of(form, value, "f")))


def test_grammars_are_compiled_once(masked: EngineCore) -> None:
    assert masked.constraints is not None
    grammar = grammar_of("json", {"enum": ["only", "once"]}, "f")
    before = masked.constraints.compiled
    ask_all(masked, [grammar] * 4, HOT)
    assert masked.constraints.compiled == before + 1


def test_an_engine_without_it_says_so(model: Path) -> None:
    with pytest.raises(RequestError, match="does not keep"):
        EngineCore(model, BASE).check(Request("x", (4,), HOT, grammar=grammar_of("regex", "a", "f")))
    with pytest.raises(SettingsError, match="jump_forward needs"):
        replace(BASE, jump_forward=True)
