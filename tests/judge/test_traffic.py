"""The form of the judge's requests is the benchmark's: learned from the benchmark itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cheats.harness import BUNDLE, OUTPUT_TOKENS, PROMPT_TOKENS, WIDTH
from tests.cheats.llama import MODEL
from tests.cheats.server import Ask, Honest, Tokens, rendered, serving

from vibeserve.judge import probe
from vibeserve.judge.client import CHAT, COMPLETIONS, Answer, Client
from vibeserve.judge.prompts import draw, last_text, other_end, sentinel, shortened, twins_of, with_text
from vibeserve.judge.session import AHEAD, COVER, PAIRS, Forced, stop_of, teacher_forced
from vibeserve.judge.traffic import HEAD, MOST_AT_ONCE, Traffic, _prompt, learn, traffic_of
from vibeserve.judge.traffic import WIDTH as OWN_WIDTH
from vibeserve.measure import run_benchmark

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 24, "top_p": 0.9}
CHAT_PROMPT = (("user", "hello there"),)


class Listens(Honest):
    """Honest, and remembers what it was sent; slow enough for all to be there at once on a busy machine too."""

    step_s = 0.004

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Ask] = []

    def tokens(self, ask: Ask) -> Tokens:
        with self.lock:
            self.heard.append(ask)
        return super().tokens(ask)


def test_the_judge_and_the_benchmark_cannot_be_told_apart_by_form(tmp_path: Path) -> None:
    bench, judged = Listens(), Listens()
    with serving(bench) as url:
        run_benchmark(
            BUNDLE,
            url,
            BUNDLE.reference / "model",
            seed=1,
            window_s=0.5,
            output=tmp_path / "w.json",
            extra_args=("--calibrate", "0"),
        )
    with serving(judged) as url:
        probe(BUNDLE, url, seed=1)
    known = [ask for ask in bench.heard if ask.count == OUTPUT_TOKENS]
    ours = [ask for ask in judged.heard if ask.count == OUTPUT_TOKENS and ask.stream and "stop" not in ask.body]
    assert len(known) > 10
    assert len(ours) > 15

    def form(ask: Ask) -> tuple[Any, ...]:
        heads = [(name, value) for name, value in ask.headers.items() if name not in ("host", "content-length")]
        body = [(name, value) for name, value in ask.body.items() if name != "messages"]
        return heads, body, [message["role"] for message in ask.body["messages"]]

    forms = {repr(form(ask)) for ask in known}
    assert len(forms) == 1
    assert {repr(form(ask)) for ask in ours} == forms
    lengths = [len(ask.prompt) for ask in ours]
    assert lengths.count(PROMPT_TOKENS) >= AHEAD + 2 * PAIRS + COVER
    assert max(ask.running for ask in judged.heard) == WIDTH == max(ask.running for ask in bench.heard)
    assert sum(ask.reused for ask in judged.heard) > len(judged.heard) / 2
    first = [ask.count for ask in (bench.heard[0], judged.heard[0])]
    assert first[0] == first[1]
    assert (bench.looked, judged.looked) == (1, 1)


def test_what_is_learned() -> None:
    # How many are there at once is seen for half a second: a machine that is busy just then is asked again.
    looks = (learn(BUNDLE, CHAT, 3) for _ in range(3))
    found = next((one for one in looks if one.width == WIDTH and len(one.prompts) > 20), None)
    assert found is not None
    assert found.problem == ""
    assert (found.width, found.output_tokens) == (WIDTH, OUTPUT_TOKENS)
    assert {len(rendered({"messages": turns(prompt)})) for prompt in found.prompts} == {PROMPT_TOKENS}
    assert len(found.prompts) >= AHEAD + 2 * PAIRS + COVER + 3
    assert [name for name, _ in found.head] == [name for name, _ in HEAD]
    assert set(learn(BUNDLE, CHAT, 4).prompts).isdisjoint(found.prompts)


def turns(prompt: Any) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in prompt]


def test_where_nothing_can_be_learned_the_reason_is_kept() -> None:
    assert "no benchmark" in learn(replace(BUNDLE, benchmark=Path("/nowhere")), CHAT, 1).problem
    assert f"nothing to {COMPLETIONS}" in learn(BUNDLE, COMPLETIONS, 1).problem


def test_of_recorded_requests() -> None:
    head = (("Host", "127.0.0.1:9"), ("X-Own", "1"), ("content-length", "77"))
    other = {**BODY, "messages": [{"role": "user", "content": "another"}]}
    found = traffic_of([(CHAT, head, BODY), (CHAT, head, other), (CHAT, head, BODY), ("/else", head, BODY)], CHAT, 3)
    assert found == Traffic(
        (("Host", ""), ("X-Own", "1"), ("content-length", "")),
        {"model": "m", "max_tokens": 24, "top_p": 0.9},
        (CHAT_PROMPT, (("user", "another"),)),
        24,
        3,
    )
    assert traffic_of([(CHAT, head, BODY)], CHAT, 0).width == 1
    assert traffic_of([(CHAT, head, BODY)], CHAT, 99).width == MOST_AT_ONCE == 32
    assert traffic_of([(CHAT, head, {**BODY, "max_tokens": "all"})], CHAT, 1).output_tokens is None
    text = traffic_of([(COMPLETIONS, head, {"prompt": "once"})], COMPLETIONS, 1)
    assert (text.prompts, text.output_tokens) == (("once",), None)


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": ["a"]}, {"prompt": ""}, {"messages": "hello"}, {"messages": []}, {"messages": [{"role": "user"}]},
     {"messages": [{"role": 1, "content": "a"}]}, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}],
)  # fmt: skip
def test_what_is_no_prompt_in_text(body: dict[str, Any]) -> None:
    assert _prompt(body) in ("", ())
    found = traffic_of([(CHAT, (), body)], CHAT, 5, "why")
    assert found.problem == f"the benchmark sent nothing to {CHAT}: why"
    assert (found.prompts, found.width) == ((), OWN_WIDTH)
    assert traffic_of([], CHAT, 5).problem == f"the benchmark sent nothing to {CHAT}"


class TestPrompts:
    def test_own_ones(self) -> None:
        prompts = draw(5, 4, 100)
        assert len(set(prompts)) == 4
        assert {len(prompt.split()) for prompt in prompts} == {2 + 68 + 6}
        assert all(prompt[0].isupper() and prompt.endswith(".") for prompt in prompts)
        assert {len(prompt.split()) for prompt in draw(5, 2, 4)} == {2 + 6 + 6}

    @pytest.mark.parametrize("prompt", ["One two three.", (("system", "Desk 1."), ("user", "Bakizu: two three."))])
    def test_twins_differ_at_one_end_of_what_was_said_last(self, prompt: Any) -> None:
        first, last = twins_of(prompt, 3)
        words = [last_text(each).split() for each in (prompt, first, last)]
        assert words[1][1:] == words[0][1:]
        assert words[2][:-1] == words[0][:-1]
        assert len({words[0][0], words[1][0]}) == len({words[0][-1], words[2][-1]}) == 2
        assert words[1][0].endswith(":") == words[0][0].endswith(":")
        assert words[1][0][0].isupper()
        assert twins_of(prompt, 3) == (first, last) != twins_of(prompt, 4)
        if not isinstance(prompt, str):
            assert first[0] == last[0] == prompt[0]
            assert first[1][0] == "user"

    @pytest.mark.parametrize(
        ("text", "kept"),
        [("of the Bakizu.", "of the Bak"), ("ab?!", "a"), ("I", ""), ("go ...", "go "), ("x" * 34 + ":", "x" * 17)],
    )
    def test_another_end_as_long_as_the_one_before(self, text: str, kept: str) -> None:
        for seed in range(20):
            found = other_end(text, Random(seed))
            stem = text.rstrip(".,:;!?")
            assert found.startswith(kept)
            assert found.endswith(text[len(stem) :])
            assert found != text
            assert len(found) == len(text) + (text == "go ...")  # where there is no word, there is one letter now
            changed = found[len(kept) : len(found) - len(text) + len(stem)]
            assert changed.isalpha()
        assert len({other_end(text, Random(seed)) for seed in range(20)}) > 5

    def test_a_sentinel(self) -> None:
        assert {len(sentinel(Random(seed))) for seed in range(5)} == {8}

    def test_shortened(self) -> None:
        text = " ".join(str(number) for number in range(40))
        assert shortened(text, 4) == " ".join(str(number) for number in range(30, 40))
        assert shortened("a b c d e f g h", 4) == "e f g h"
        assert shortened((("system", "s"), ("user", text)), 4) == (("system", "s"), ("user", shortened(text, 4)))
        assert with_text("a", "b") == "b"


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("abcdefghijklmnopqr", "ghijkl"),
        ("abcdefghijklmnopq", ""),
        ("abcdef      mnopqr", ""),
        ("abcdefg\ufffdijklmnopqr", ""),
    ],
)
def test_a_stop_string_out_of_the_middle(text: str, stop: str) -> None:
    assert stop_of(text) == stop


class TestTeacherForced:
    PROMPT = (("user", "Tell me of the sea."),)

    def said(self, oracle: Client, change: int | None = None) -> Answer:
        found = oracle.ask(self.PROMPT, 12, stream=False)
        ids = list(found.token_ids or ())
        if change is not None:
            ids[change] = 33 if ids[change] != 33 else 34
        return replace(found, token_ids=tuple(ids))

    def test_each_token_after_the_very_ones_before_it(self) -> None:
        with serving(Honest()) as url:
            oracle = Client(url, CHAT, 20.0)
            right, wrong = self.said(oracle), self.said(oracle, 5)
            for truths in ([right], []):
                forced = teacher_forced(oracle, [right], truths, 12, Random(1))
                assert sorted(one.place for one in forced) == list(range(12))
                assert all(one.got == one.wanted for one in forced)
            forced = teacher_forced(oracle, [wrong], [right], 12, Random(1))
            assert Forced(5, (wrong.token_ids or ())[5], (right.token_ids or ())[5]) in forced
            after = MODEL.read([*(right.prompt_ids or ()), *(wrong.token_ids or ())[:8]]).logits.argmax()
            assert next(one.wanted for one in forced if one.place == 8) == int(after)
            assert len(teacher_forced(oracle, [right, wrong], [right], 7, Random(1))) == 7
            assert teacher_forced(oracle, [replace(right, error="no")], [right], 7, Random(1)) == ()
            oracle.close()

    def test_an_oracle_that_cannot_says_nothing(self) -> None:
        with serving(Honest()) as url:
            able = Client(url, CHAT, 20.0)
            right = self.said(able)
            able.close()
        with serving(type("Bare", (Honest,), {"with_ids": False})()) as url:
            bare = Client(url, CHAT, 20.0)
            assert teacher_forced(bare, [right], [right], 3, Random(1)) == ()
            assert teacher_forced(bare, [right], [], 3, Random(1)) == ()
            bare.close()
