"""JSON by a schema: an honest server passes checker and benchmark, each kind of cheating or broken one fails."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import itertools
import json
import random
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from tests.examples.test_contracts import failed, run, serving

from vibeserve.base.paths import packaged
from vibeserve.targets.probe_media import _value

JSON = packaged("examples") / "model-serving" / "smollm2-135m-cpu-json"
counter = itertools.count()
Write = Callable[[dict[str, Any]], str]


@pytest.fixture(scope="module")
def contract() -> ModuleType:
    """benchmark/contract.py."""
    path = JSON / "benchmark" / "contract.py"
    spec = importlib.util.spec_from_file_location("json_contract", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def schema_of(body: dict[str, Any]) -> dict[str, Any]:
    """The schema of a request."""
    return dict(body["response_format"]["json_schema"]["schema"])


def words_of(body: dict[str, Any]) -> list[str]:
    """What is asked, in words."""
    return re.findall(r"\w+", body["messages"][0]["content"])


def fill(schema: dict[str, Any], said: list[str], draw: random.Random | None) -> Any:
    """What the sentence says where it says it; what it leaves open is drawn, or the first choice (no `draw`)."""
    if schema.get("type") == "object":
        return {name: fill(inner, said, draw) for name, inner in schema["properties"].items()}
    if schema.get("type") == "array":
        choices = schema["items"]["enum"]
        return [draw.choice(choices) if draw else choices[0] for _ in range(schema["minItems"])]
    if "enum" in schema:
        return next(word for word in schema["enum"] if word in said)
    if schema.get("type") == "integer":
        return next(
            int(word) for word in said if word.isdigit() and schema["minimum"] <= int(word) <= schema["maximum"]
        )
    return _value(draw, schema, said) if draw else _value(random.Random(0), schema, said)


def value_of(body: dict[str, Any], key: str | None = None) -> Any:
    """A valid value with the name; what is open depends on the sentence (or on `key`)."""
    seed = hashlib.sha256((key if key is not None else body["messages"][0]["content"]).encode()).hexdigest()
    return fill(schema_of(body), words_of(body), random.Random(seed))


def honest(body: dict[str, Any]) -> str:
    """The sentence decides."""
    return json.dumps(value_of(body))


def by_rule(body: dict[str, Any]) -> str:
    """Copied from the sentence by a rule; the first choice where it says nothing."""
    return json.dumps(fill(schema_of(body), words_of(body), None))


def without_name(body: dict[str, Any]) -> str:
    """Everything from the schema alone."""
    return json.dumps(_value(random.Random(0), schema_of(body), ["Somebody"]))


def chat(write: Write, *, streamed: Write | None = None, refuses: bool = True) -> list[Any]:
    """A server that says what `write` returns."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if refuses and json.dumps(schema_of(body)).count('"minLength": 9'):
            return web.json_response({"error": {"message": "no answer can keep to this schema"}}, status=400)
        text = (streamed if streamed is not None and body["stream"] else write)(body)
        if not body["stream"]:
            message = {"role": "assistant", "content": text}
            return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for at in range(0, len(text), 7):
            choice = {"index": 0, "delta": {"content": text[at : at + 7]}, "finish_reason": None}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        await response.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())
        return response

    return [web.post("/v1/chat/completions", answer)]


CHEATS = {
    "made up from the schema alone": (chat(without_name), "answer"),
    "always the same": (chat(lambda _: '{"name": "Bavero"}'), "answer"),
    "cut off": (chat(lambda body: honest(body)[:-1]), "answer"),
    "a text around it": (chat(lambda body: f"Here it is: {honest(body)}"), "answer"),
    "a field too many": (chat(lambda body: json.dumps(value_of(body) | {"note": 1})), "answer"),
    "a field too few": (chat(lambda body: json.dumps(dict(list(value_of(body).items())[:-1]))), "answer"),
    "copied by a rule": (chat(by_rule), "reference"),
    "never the same twice": (chat(lambda body: json.dumps(value_of(body, str(next(counter))))), "same-again"),
    "streamed answers of their own": (chat(honest, streamed=by_rule), "other-way-equals"),
    "an impossible schema is answered": (chat(lambda b: honest(b) if "minLength" not in json.dumps(schema_of(b)) else "{}", refuses=False), "bad-request-is-refused"),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> Any:
    """The honest server."""
    with serving(chat(honest)) as url:
        yield url


def test_an_honest_server_passes_and_its_samples_are_proven(reference, tmp_path):
    output, bench = tmp_path / "c.json", tmp_path / "b.json"
    arguments = ("--url", reference, "--reference-url", reference, "--output-json", str(output))
    done = run(JSON / "accuracy_checker" / "checker.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = {case["name"].split("/")[0] for case in json.loads(output.read_text())["cases"]}
    assert {
        "answer",
        "same-again",
        "other-way-equals",
        "together-equals-alone",
        "reference",
        "against-the-truth",
    } <= kinds
    for way in ("whole", "stream"):
        load = (
            "--way",
            way,
            "--concurrency",
            "2",
            "--num-requests",
            "8",
            "--output-json",
            str(bench),
            "--calibrate",
            "0",
        )
        done = run(JSON / "benchmark" / "benchmark.py", "--url", reference, *load)
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(bench.read_text())
        assert (document["completed"], document["failed"]) == (8, 0)
        assert document["p50_latency_s"] > 0
        assert (document["p50_ttft_s"] is None) == (way == "whole")
    done = run(JSON / "accuracy_checker" / "checker.py", "--answers", str(bench), "--reference-url", reference)
    assert done.returncode == 0, done.stdout + done.stderr


def one_value_otherwise(body: dict[str, Any], count: int = 1) -> str:
    """What an honest engine may do that appends forced text in other tokens: the last `count` values that are open differ."""
    value, schema = value_of(body), schema_of(body)
    said = set(words_of(body))
    holders = [value, *(inner for inner in value.values() if isinstance(inner, dict))]
    changed = 0
    for holder in holders:
        for name in holder:
            if name == "rating" and changed < count:
                holder[name] = 1 if holder[name] != 1 else 2
                changed += 1
            elif isinstance(holder[name], list) and changed < count:
                words = next(p for p in _properties(schema) if name in p)[name]["items"]["enum"]
                holder[name][1] = next(word for word in words if word not in holder[name] and word not in said)
                changed += 1
    return json.dumps(value)


def _properties(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The properties of an object, and of those in it."""
    own = schema["properties"]
    return [own, *(p for inner in own.values() if inner.get("type") == "object" for p in _properties(inner))]


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 1)])
def test_one_value_of_six_may_differ_as_under_other_tokens_and_two_may_not(count, code, reference, tmp_path):
    """An engine that appends what the schema forces is not accused for one value; who makes up two is."""
    with serving(chat(lambda body: one_value_otherwise(body, count))) as url:
        arguments = ("--url", url, "--reference-url", reference, "--output-json", str(tmp_path / "c.json"))
        done = run(JSON / "accuracy_checker" / "checker.py", *arguments)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_server_that_cheats_fails(cheat, reference, tmp_path):
    routes, kind = CHEATS[cheat]
    output = tmp_path / "c.json"
    with serving(routes) as url:
        arguments = ("--url", url, "--reference-url", reference, "--output-json", str(output))
        done = run(JSON / "accuracy_checker" / "checker.py", *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert kind in failed(output)


def test_an_invalid_answer_is_never_a_fast_one(tmp_path):
    numbers, output = itertools.count(), tmp_path / "b.json"
    load = ("--concurrency", "1", "--num-requests", "9", "--output-json", str(output), "--calibrate", "0")

    def one_in_three_is_invalid(body: dict[str, Any]) -> str:
        return "{}" if next(numbers) % 3 == 0 else honest(body)

    with serving(chat(one_in_three_is_invalid)) as url:
        run(JSON / "benchmark" / "benchmark.py", "--url", url, *load)
    document = json.loads(output.read_text())
    assert (document["completed"], document["failed"]) == (6, 3)
    assert document["latency_s"]["n"] == 6
    valid = sorted(row["latency_s"] for row in document["per_request"] if row["latency_s"] is not None)
    assert document["p50_latency_s"] == valid[4]  # the fifth of nine, with the three invalid ones behind all valid ones
    assert document["p95_latency_s"] is None
    assert "3 of 9" in document["p95_latency_s_reason"]


def test_the_benchmark_gives_no_number_for_answers_without_the_name(tmp_path):
    output = tmp_path / "b.json"
    with serving(chat(without_name)) as url:
        load = ("--num-requests", "3", "--concurrency", "1", "--output-json", str(output), "--calibrate", "0")
        done = run(JSON / "benchmark" / "benchmark.py", "--url", url, *load)
    assert done.returncode == 1
    assert json.loads(output.read_text())["p50_latency_s"] is None


def test_requests_of_checker_and_benchmark_are_alike_and_new(contract):
    args = argparse.Namespace(prompt_len=16, max_tokens=128, temperature=0.0, way="whole", model="")
    made = [contract.make(random.Random(n), f"input-{n}", args) for n in range(200)]
    schemas = {json.dumps(case.schema) for case in made}
    assert len(schemas) == 200
    assert len({case.sentinel for case in made}) > 190
    for case in made:
        assert case.sentinel in case.body["messages"][0]["content"]
        assert case.sentinel not in json.dumps(case.schema)
        # Something that only the model knows is in each of them: a rule that copies from the sentence has no answer for it.
        assert len(contract.leaves(value_of(case.body))) - len(case.said) >= 2
        assert all(str(value) in case.body["messages"][0]["content"] for value in case.said.values())


def test_values_are_compared_by_their_places(contract):
    one, two = (
        contract.Reply(values={"a": 1, "b": [1, 2], "c": None}),
        contract.Reply(values={"a": True, "b": [1, 3], "c": None}),
    )
    assert contract.distance(one, one) == 0
    assert contract.distance(one, two) == 0.5  # true is not 1
