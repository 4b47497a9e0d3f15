"""The checker passes the reference server, and fails every server that says something else."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.examples.servers import honest, serving

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model(reference, tiny):
    """The tiny model, as the reference server loads it."""
    loaded = reference.Model(tiny)
    yield loaded
    loaded.turns.shutdown()


@contextmanager
def running(reference: Any, model: Any, **changes: Callable[..., Any]) -> Iterator[str]:
    """The reference server with some of its handler's methods replaced; gives its URL."""
    names = {"model": model, "name": "tiny", "started": 0, **changes}
    server = reference.Server(("127.0.0.1", 0), type("Changed", (reference.Handler,), names))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def check(checker, tiny, tmp_path, monkeypatch, capsys):
    """Run the checker in this process: (exit code, cases by name, stdout and stderr)."""

    def run(url: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
        output = tmp_path / "cases.json"
        output.unlink(missing_ok=True)
        command = [
            "checker.py",
            "--url",
            url,
            "--model-dir",
            str(tiny),
            "--output-json",
            str(output),
            "--seed",
            "5",
            *arguments,
        ]
        monkeypatch.setattr(sys, "argv", command)
        code = checker.main()
        document = json.loads(output.read_text()) if output.is_file() else {"cases": []}
        text = capsys.readouterr()
        return code, {case["name"]: case for case in document["cases"]}, text.out + text.err

    return run


def test_the_reference_server_passes(check, reference, model):
    with running(reference, model) as url:
        code, cases, text = check(url)
    failed = [c for c in cases.values() if c["ok"] is not True]
    assert (code, failed) == (0, []), text
    assert "seed 5" in text
    kinds = {name.split("/")[0] for name in cases}
    assert {
        "exact",
        "streamed-equals-whole",
        "together-equals-alone",
        "length",
        "stop",
        "seed",
        "top1-agreement",
    } <= kinds
    assert len([name for name in cases if name.startswith("stop/")]) == 3


@pytest.mark.slow
def test_proven_answers_are_known_again(check, checker, reference, model, tmp_path, monkeypatch):
    with running(reference, model) as url:
        assert check(url, "--cache-dir", str(tmp_path / "known"))[0] == 0
        monkeypatch.setattr(checker.Reference, "choices", lambda *_: pytest.fail("the model was asked"))
        assert check(url, "--cache-dir", str(tmp_path / "known"))[0] == 0


def _generate(model: Any, change: Callable[..., Any]) -> Any:
    """The model with `change(answer, reason, request)` between it and the server; streams are made of the changed answer."""

    class Changed:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def generate(self, request: Any, seed: Any, emit: Any, gone: Any) -> Any:
            answer, reason = model.generate(request, seed, lambda *_: None, gone)
            answer, reason = change(answer, reason, request)
            emit(answer.text, answer.ids)
            return answer, reason

    return Changed()


def _other_token(answer, reason, request):
    if request.temperature == 0 and len(answer.ids) > 12:
        answer.ids[9] = 65 if answer.ids[9] != 65 else 66
        answer.text = bytes(answer.ids).decode().rstrip("\n")
    return answer, reason


def _only_long_prompts(answer, reason, request):
    return _other_token(answer, reason, request) if len(request.prompt_ids) > 800 else (answer, reason)


def _only_fresh_prompts(answer, reason, request):
    return _other_token(answer, reason, request) if b"Desk" in bytes(request.prompt_ids) else (answer, reason)


def _one_short(answer, reason, request):
    if len(answer.ids) > 1 and not request.stop:
        answer.ids, answer.text = answer.ids[:-1], answer.text[:-1]
    return answer, reason


def _text_beside_ids(answer, reason, request):
    answer.text = answer.text.replace("a", "b") + "!"
    return answer, reason


def _streamed_other(answer, reason, request):
    return _other_token(answer, reason, request) if request.stream else (answer, reason)


def _stop_kept(answer, reason, request):
    if request.stop:
        answer.text += request.stop[0]
    return answer, reason


def _stop_early(answer, reason, request):
    if request.stop:
        answer.ids = answer.ids[:-1]
    return answer, reason


def _wrong_reason(answer, reason, request):
    return answer, "stop" if reason == "length" else reason


def _always_greedy(model):
    class Greedy:
        def __getattr__(self, name):
            return getattr(model, name)

        def generate(self, request, seed, emit, gone):
            request.temperature = 0.0
            return model.generate(request, seed, emit, gone)

    return Greedy()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (_only_fresh_prompts, "exact"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            (_streamed_other, "together-equals-alone"), (_stop_early, "stop"), (_other_token, "exact"), (_only_long_prompts, "exact"), (_one_short, "exact"), (_text_beside_ids, "exact"),
            (_streamed_other, "streamed-equals-whole"), (_stop_kept, "stop"), (_wrong_reason, "exact"),
        )),
    ],
)  # fmt: skip
def test_a_server_that_says_something_else_fails(check, reference, model, change, kind):
    with running(reference, _generate(model, change)) as url:
        code, cases, text = check(url)
    assert code == 1, text
    assert any(c["ok"] is False and c["name"].split("/")[0] == kind for c in cases.values()), text


@pytest.mark.slow
def test_the_first_differing_token_and_both_texts_are_shown(check, reference, model):
    with running(reference, _generate(model, _other_token)) as url:
        _, cases, _ = check(url)
    detail = next(c["detail"] for c in cases.values() if c["name"].startswith("exact/raw") and c["ok"] is False)
    assert "first differing token 9" in detail
    assert detail.count("reference") >= 2
    assert "gap of logits" in detail


@pytest.mark.slow
def test_a_divergence_within_a_declared_margin_is_listed_not_failed(check, reference, model, tmp_path):
    with running(reference, _generate(model, _only_fresh_prompts)) as url:
        code, cases, text = check(url, "--near-tie-margin", "1000", "--min-top1", "0.5")
    assert code == 0, text
    assert "near tie" in text
    assert cases["top1-agreement"]["ok"] is True
    with running(reference, _generate(model, _only_fresh_prompts)) as url:
        code, cases, _ = check(url, "--near-tie-margin", "1000", "--min-top1", "0.999999")
    assert code == 1
    assert cases["top1-agreement"]["ok"] is False


@pytest.mark.slow
def test_usage_that_lies_fails(check, reference, model):
    def lying(self, status, value):
        if "usage" in value:
            value["usage"]["completion_tokens"] += 1
        reference.Handler.send_json(self, status, value)

    with running(reference, model, send_json=lying) as url:
        code, cases, _ = check(url)
    assert code == 1
    assert any("usage" in c["detail"] for c in cases.values() if c["ok"] is False)


@pytest.mark.slow
def test_a_server_that_ignores_temperature_fails(check, reference, model):
    with running(reference, _always_greedy(model)) as url:
        code, cases, _ = check(url)
    assert code == 1
    assert cases["seed/temperature-is-honoured"]["ok"] is False


@pytest.mark.slow
def test_company_that_changes_answers_fails(check, reference, model):
    """A server whose answers depend on who else is there."""
    here = 0

    class Company:
        def __getattr__(self, name):
            return getattr(model, name)

    def do_post(self):
        nonlocal here
        here += 1
        try:
            reference.Handler.do_POST(self)
        finally:
            here -= 1

    def change(answer, reason, request):
        return _other_token(answer, reason, request) if here > 4 else (answer, reason)

    with running(reference, _generate(model, change), do_POST=do_post) as url:
        code, cases, _ = check(url)
    assert code == 1
    assert any(c["ok"] is False for c in cases.values() if c["name"].startswith("together-equals-alone"))
    assert all(c["ok"] for c in cases.values() if c["name"].startswith("exact"))


def test_a_constant_server_fails_before_the_reference_is_loaded(check, checker, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("the reference was loaded")

    monkeypatch.setattr(checker, "Reference", refuse)

    def body(ask):
        return "x" * ask.count

    async def constant(ask):
        if ask.body.get("stream"):
            await honest(ask, text=body(ask))
            return
        part = {"message": {"content": "x"}} if "messages" in ask.body else {"text": "x"}
        data = json.dumps({"choices": [{"index": 0, **part, "finish_reason": "stop"}]}).encode()
        ask.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
        )

    with serving(constant) as url:
        code, cases, text = check(url)
    assert code == 1
    assert cases["answers-depend-on-prompt"]["ok"] is False
    assert cases["exact"]["ok"] is None
    assert "not run" in text


def test_what_cannot_run_is_exit_2(check, tmp_path):
    code, cases, text = check("http://127.0.0.1:9")
    assert (code, cases) == (2, {})
    assert "no server" in text
    code, _, text = check("http://127.0.0.1:9", "--model-dir", str(tmp_path / "nothing"))
    assert code == 2
    assert "no model" in text


def test_sampled_answers_of_a_benchmark_are_proven(check, reference, model, tmp_path):
    request = reference.Request(list(b"user: hello\nassistant:"), 12, temperature=0.0, ignore_eos=True)
    answer, _ = model.generate(request, None, lambda *_: None, lambda: False)
    sample = {"prompt_ids": request.prompt_ids, "token_ids": answer.ids, "temperature": 0, "ignore_eos": True}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"samples": [sample]}))
    code, cases, _ = check("unused", "--answers", str(path))
    assert code == 0
    assert cases["benchmark-answers/0"]["ok"] is True
    sample["token_ids"] = [*answer.ids[:-1], answer.ids[-1] ^ 1]
    path.write_text(json.dumps({"samples": [sample]}))
    code, cases, _ = check("unused", "--answers", str(path))
    assert code == 1
    assert "first differing token 11" in cases["benchmark-answers/0"]["detail"]
    path.write_text("{}")
    code, _, _ = check("unused", "--answers", str(path))
    assert code == 1


@pytest.mark.slow
def test_a_server_without_ids_is_compared_by_text(check, reference, model):
    def without_ids(self, index, answer, reason, request, chat):
        request.return_token_ids = False
        return reference.Handler.choice(self, index, answer, reason, request, chat)

    with running(reference, model, choice=without_ids) as url:
        code, cases, text = check(url)
    assert [c for c in cases.values() if c["ok"] is not True and c["name"].startswith("exact")] == [], text
    assert code == 0, text
    with running(reference, _generate(model, _other_token), choice=without_ids) as url:
        code, cases, _ = check(url)
    assert code == 1
    assert any("text differs at character" in c["detail"] for c in cases.values())


@pytest.mark.slow
def test_a_model_without_a_chat_template_is_asked_for_completions_only(check, reference, tiny, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(tiny, plain)
    config = json.loads((plain / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = reference.Model(plain)
    try:
        with running(reference, loaded) as url:
            code, cases, text = check(url, "--model-dir", str(plain))
    finally:
        loaded.turns.shutdown()
    assert code == 0, text
    assert "no chat template" in text
    assert not any("chat" in name for name in cases)
    assert any(name.startswith("exact/prefix/raw") for name in cases)
