"""A session in company: which requests are sent, in which order, and where each answer ends up."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest
from tests.cheats.server import Ask, Honest, Tokens, serving

from vibeserve.judge.client import CHAT, Answer, Client
from vibeserve.judge.prompts import twins_of
from vibeserve.judge.session import (
    AHEAD,
    COVER,
    FEW_TEXTS,
    FIRST_TOKENS,
    FORCED,
    FORCED_INEXACT,
    FORMAL,
    PAIRS,
    SAMPLED,
    SHAPING,
    Session,
    _by_chance,
    _Company,
    _Job,
    _jobs,
    _prompts,
    _revived,
    _sample,
    ask,
)  # fmt: skip
from vibeserve.judge.traffic import MOST_AT_ONCE, Traffic

LENGTH = 24


class Listens(Honest):
    """Honest and quick; keeps what it was asked."""

    step_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Ask] = []

    def tokens(self, ask: Ask) -> Tokens:
        with self.lock:
            self.heard.append(ask)
        return super().tokens(ask)

    def sampled(self, ask: Ask) -> Tokens:
        with self.lock:
            self.heard.append(ask)
        return super().sampled(ask)


def prompts(count: int) -> tuple[str, ...]:
    return tuple(f"Number{place} " + " ".join(f"word{place}{n}" for n in range(20)) for place in range(count))


def asked(**changes: Any) -> tuple[Session, Listens, Listens]:
    """A session with an honest server, what that heard, and what the reference heard."""
    server, truth = Listens(), Listens()
    traffic = Traffic(
        prompts=changes.pop("prompts", prompts(30)), output_tokens=changes.pop("output_tokens", LENGTH), width=3
    )
    with serving(server) as url, serving(truth) as oracle_url:
        client, oracle = Client(url, CHAT, 20.0, traffic=traffic), Client(oracle_url, CHAT, 20.0)
        values: dict[str, Any] = {"prompt_tokens": 30, "output_tokens": 12, "oracle": oracle, "exact": True} | changes
        try:
            return ask(client, 5, **values), server, truth
        finally:
            client.close()
            oracle.close()


@pytest.fixture(scope="module")
def one() -> tuple[Session, Listens, Listens]:
    return asked()


def test_where_each_answer_is(one: Any) -> None:
    session, server, _ = one
    learned = prompts(30)
    assert [answer.prompt for answer in session.cold] == list(learned[: AHEAD + PAIRS])
    assert [answer.prompt for answer in session.warm] == list(learned[:PAIRS])
    assert [answer.prompt for answer in session.cover] == list(learned[AHEAD + PAIRS + 2 :][:COVER])
    lonely = learned[AHEAD + PAIRS]
    assert [answer.prompt for answer in session.alone] == [lonely, learned[0]]
    assert [answer.prompt for answer in session.beside] == [lonely, learned[0]]
    assert session.beside[1] is session.cold[0]
    assert {session.whole.prompt, session.shorter.prompt} == {learned[0]}
    assert session.stopped is not None
    assert session.stopped.prompt == learned[0]
    assert session.stop in session.cold[0].text
    assert [answer.prompt for answer in session.sampled] == [learned[1]] * SAMPLED
    assert [answer.prompt for answer in session.cool] == list(learned[:AHEAD])
    assert session.formal == ()
    assert tuple(answer.prompt for answer in session.twins) == twins_of(learned[0], 5)
    assert session.short.prompt in learned[AHEAD + PAIRS + 2 + COVER]
    assert len(str(session.short.prompt).split()) == 21 // 4
    assert (session.exact, session.min_top1, session.revived) == (True, 1.0, ())
    assert session.fresh == (*session.cold, *session.twins, session.short)
    assert session.asked_for_more == (*session.sampled, session.stopped)
    assert all(not answer.error for answer in (*session.all, *session.asked_for_more))
    assert len(session.all) == len(session.fresh) + PAIRS + COVER + 2 + 4
    assert server.heard[0].prompt != server.heard[1].prompt


def test_lengths_and_fields(one: Any) -> None:
    session, server, truth = one
    assert server.heard[0].count == FIRST_TOKENS
    assert {answer.asked for answer in (*session.fresh, *session.warm, *session.cover, session.whole)} == {LENGTH}
    assert {answer.asked for answer in (session.shorter, *session.sampled, *session.cool)} == {LENGTH // 3}
    assert [ask.stream for ask in server.heard].count(False) == 1
    seeds = [ask.body["seed"] for ask in server.heard if "seed" in ask.body]
    assert len(seeds) == SAMPLED
    assert len(set(seeds)) == SAMPLED - 1
    assert sum(0 < ask.body["temperature"] < 1e-3 for ask in server.heard) == AHEAD
    assert {ask.body["temperature"] for ask in server.heard if "seed" in ask.body} == {1.0}
    assert {answer.asked for answer in session.oracle} == {LENGTH, LENGTH // 3}
    assert [answer.asked == LENGTH for answer in session.oracle] == [True] + [False] * (len(session.oracle) - 1)
    assert [answer.text for answer in session.oracle_sampled] == [answer.text for answer in session.sampled[:2]]
    assert session.sampled[0].text == session.sampled[1].text
    assert sum(ask.stream for ask in truth.heard) == len(session.oracle_sampled) == 2
    assert len(session.forced) == FORCED
    assert all(one.got == one.wanted for one in session.forced)


def test_without_an_oracle_only_the_server_is_asked() -> None:
    session, _, truth = asked(oracle=None, exact=False, min_top1=0.9)
    assert (session.oracle, session.oracle_sampled, session.forced, truth.heard) == ((), (), (), [])
    assert (session.exact, session.min_top1) == (False, 0.9)


def test_where_a_share_may_differ_more_tokens_are_put_to_the_reference() -> None:
    session, _, _ = asked(exact=False)
    assert len(session.forced) == FORCED_INEXACT


def test_every_answer_may_be_put_to_the_reference() -> None:
    session, _, _ = asked(exact=False, output_tokens=2)
    lonely_in_company = session.beside[0]
    said = (*session.fresh, *session.warm, *session.alone, *session.cover, lonely_in_company)
    assert 2 * len(said) < FORCED_INEXACT
    assert sorted(one.place for one in session.forced) == [0] * len(said) + [1] * len(said)
    assert [answer.asked for answer in session.oracle] == [2] + [1] * (len(session.fresh) - 1)


def test_what_the_traffic_does_not_tell() -> None:
    session, server, _ = asked(prompts=prompts(3), output_tokens=None, oracle=None)
    assert {answer.asked for answer in session.cold} == {12}
    assert {answer.asked for answer in session.sampled} == {4}
    assert len({answer.prompt for answer in (*session.cold, *session.cover)}) == AHEAD + PAIRS + COVER
    assert [answer.prompt for answer in session.cold[:3]] == list(prompts(3))
    assert server.heard[0].count == FIRST_TOKENS


def test_very_short_answers() -> None:
    session, _, _ = asked(output_tokens=2, oracle=None)
    assert {answer.asked for answer in (session.shorter, *session.sampled)} == {1}
    assert (session.stopped, session.stop) == (None, "")
    assert session.asked_for_more == session.sampled


def test_a_new_life_is_asked_in_pairs() -> None:
    lives: list[Listens] = []
    server = Listens()
    traffic = Traffic(prompts=prompts(30), output_tokens=LENGTH, width=3)
    second = Listens()
    with serving(server) as url, serving(second) as next_url:
        client = Client(url, CHAT, 20.0, traffic=traffic)

        def restart() -> str:
            lives.append(second)
            return next_url

        session = ask(client, 5, prompt_tokens=30, output_tokens=12, oracle=None, exact=True, restart=restart)
        client.close()
    assert lives == [second]
    assert [again.prompt for _, again in session.revived] == list(prompts(30)[:PAIRS])
    known = {answer.prompt for answer in (*session.all, *session.asked_for_more)}
    assert known.isdisjoint(first.prompt for first, _ in session.revived)
    heard = [ask.prompt for ask in second.heard]
    assert second.heard[0].count == FIRST_TOKENS
    order = [any(old.prompt in prompt for _, old in session.revived) for prompt in heard[1:]]
    assert order == [False, True, True, False] * (PAIRS // 2)
    assert {answer.asked for pair in session.revived for answer in pair} == {LENGTH}
    assert max(ask.running for ask in second.heard) == 1


class _Deaf(Client):
    """Writes down what it would send."""

    def __init__(self) -> None:
        super().__init__("http://nowhere", CHAT)
        self.sent: list[Any] = []

    def ask(self, prompt: Any, max_tokens: int, **fields: Any) -> Answer:  # type: ignore[override]
        self.sent.append((prompt, max_tokens, fields))
        return Answer(prompt, max_tokens, text="abcdefghijklmnopqrstuvwx")


def jobs() -> list[_Job]:
    return _jobs(_Deaf(), Random(1), list(prompts(6)), list(prompts(10)[6:]), "short", LENGTH, 5)


def test_nothing_leans_on_what_comes_later() -> None:
    known: set[str] = set()
    for job in jobs():
        assert set(job.after) <= known, job.name
        known.add(job.name)
    assert len(known) == len(jobs()) == AHEAD + PAIRS + 2 + 1 + 4 + 3 + SAMPLED + AHEAD + PAIRS


def test_repetitions_stand_beside_first_times_in_balanced_order() -> None:
    names = [job.name for job in jobs()]
    second = [name for name in names[names.index(f"cold {AHEAD}") :] if name.startswith(("cold", "warm"))]
    assert second == ["cold 2", "warm 0", "warm 1", "cold 3", "cold 4", "warm 2", "warm 3", "cold 5"]
    ahead = names[: names.index(f"cold {AHEAD}")]
    assert {"cold 0", "cold 1", "short", "cover 0", "cover 3"} == set(ahead) - {"cover 1", "cover 2"}
    assert "cold 5" in names[-5:]


def test_each_waits_for_what_it_leans_on() -> None:
    after = {job.name: job.after for job in jobs()}
    assert {after[name] for name in ("whole", "shorter", "stopped", "twin 0", "twin 1")} == {("cold 0",)}
    assert {after[f"sampled {place}"] for place in range(SAMPLED)} == {("cold 1",)}
    assert [after[f"cool {place}"] for place in range(AHEAD)] == [(f"cold {place}",) for place in range(AHEAD)]
    assert [after[f"warm {place}"] for place in range(PAIRS)] == [(f"cold {place}",) for place in range(PAIRS)]


def test_seeds_of_the_samples() -> None:
    deaf = _Deaf()
    made = {job.name: job for job in _jobs(deaf, Random(1), list(prompts(6)), list(prompts(10)[6:]), "s", LENGTH, 5)}
    for place in range(SAMPLED):
        made[f"sampled {place}"].send({})
    assert [fields["seed"] for _, _, fields in deaf.sent] == [5, 5, 6, 7, 8, 9]
    assert {tokens for _, tokens, _ in deaf.sent} == {LENGTH // 3}


def test_a_seed_has_31_bits() -> None:
    deaf = _Deaf()
    _sample(deaf, "p", 4, 2**31 + 5)
    _sample(deaf, "p", 4, 2**31 - 1)
    assert [fields for _, _, fields in deaf.sent] == [
        {"temperature": 1.0, "seed": 5}, {"temperature": 1.0, "seed": 2**31 - 1}
    ]  # fmt: skip


def test_a_benchmark_that_asks_one_at_a_time_has_company_of_two() -> None:
    server = Listens()
    server.step_s = 0.002
    with serving(server) as url:
        client = Client(url, CHAT, 20.0, traffic=Traffic(prompts=prompts(30), output_tokens=LENGTH, width=1))
        ask(client, 5, prompt_tokens=30, output_tokens=12, oracle=None, exact=True)
        client.close()
    assert max(one.running for one in server.heard) == 2


def test_company_is_so_many_at_once_and_no_more() -> None:
    running = most = 0
    lock, all_there = threading.Lock(), threading.Event()

    def send(_: Any) -> Answer:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                all_there.set()
        assert all_there.wait(20)
        with lock:
            running -= 1
        return Answer("p", 1)

    found = _Company(3).run([_Job(str(place), send) for place in range(7)])
    assert (most, sorted(found)) == (3, [str(place) for place in range(7)])


def test_who_fails_keeps_nobody_waiting() -> None:
    def fails(_: Any) -> Answer:
        raise RuntimeError("broken")

    company = _Company(1)
    with pytest.raises(RuntimeError, match="broken"):
        company.run([_Job("one", fails)])
    assert (company.answers["one"].error, company.answers["one"].asked) == ("not asked", 0)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_who_is_interrupted_waits_for_no_request_and_sends_no_other(failure: type[BaseException]) -> None:
    began, release, sent = threading.Event(), threading.Event(), []

    def slow(_: Any) -> Answer:
        began.set()
        assert release.wait(20)
        return Answer("p", 1)

    def fails(_: Any) -> Answer:
        assert began.wait(20)
        raise failure

    def later(_: Any) -> Answer:
        sent.append("later")
        return Answer("p", 1)

    company = _Company(2)
    with pytest.raises(failure):
        company.run([_Job("slow", slow), _Job("fails", fails), _Job("leans", later, ("slow",)), _Job("later", later)])
    assert "slow" not in company.answers
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("judge"):
            thread.join(20)
    assert company.answers["slow"].text == ""
    assert sent == []


def test_a_job_is_told_the_answers_that_it_leans_on() -> None:
    first = Answer("p", 1, text="a")
    found = _Company(2).run([_Job("one", lambda _: first), _Job("two", lambda known: known["one"], ("one",))])
    assert found["two"] is first


def test_pairs_of_a_new_life() -> None:
    deaf = _Deaf()
    pairs = _revived(deaf, ["n0", "n1", "n2"], ["o0", "o1", "o2"], LENGTH)
    assert [prompt for prompt, _, _ in deaf.sent] == ["n0", "n0", "o0", "o1", "n1", "n2", "o2"]
    assert [(new.prompt, old.prompt) for new, old in pairs] == [("n0", "o0"), ("n1", "o1"), ("n2", "o2")]
    assert [tokens for _, tokens, _ in deaf.sent] == [FIRST_TOKENS, *[LENGTH] * 6]


def test_a_wider_benchmark_has_more_company() -> None:
    server = Listens()
    server.step_s = 0.002
    with serving(server) as url:
        client = Client(url, CHAT, 20.0, traffic=Traffic(prompts=prompts(40), output_tokens=LENGTH, width=9))
        session = ask(client, 5, prompt_tokens=30, output_tokens=12, oracle=None, exact=True)
        client.close()
    assert max(one.running for one in server.heard) == 9
    assert len(session.cover) == 9
    assert session.beside[0].prompt == session.alone[0].prompt
    assert len({answer.prompt for answer in (*session.cold, *session.cover)}) == AHEAD + PAIRS + 9


def in_form(fields: dict[str, Any], reference: bool = True) -> tuple[Session, Listens, Listens]:
    """A session whose benchmark has these fields."""
    server, truth = Listens(), Listens()
    traffic = Traffic(prompts=prompts(30), output_tokens=LENGTH, width=3, fields=fields)
    with serving(server) as url, serving(truth) as oracle_url:
        client = Client(url, CHAT, 20.0, traffic=traffic)
        oracle = Client(oracle_url, CHAT, 20.0, traffic=Traffic(fields=fields)) if reference else None
        found = ask(client, 5, prompt_tokens=30, output_tokens=12, oracle=oracle, exact=True)
        client.close()
        if oracle is not None:
            oracle.close()
    return found, server, truth


def test_some_are_asked_with_the_benchmarks_fields_alone() -> None:
    session, server, truth = in_form({"stream_options": {}, "user": "me"})
    assert len(session.formal) == FORMAL
    known = {answer.prompt for answer in (*session.all, *session.asked_for_more)}
    for answer, wanted in session.formal:
        assert not answer.error
        assert (answer.asked, wanted.asked) == (LENGTH // 3, LENGTH // 3)
        assert (answer.text, answer.token_ids) == (wanted.text, None) or answer.token_ids is not None
        assert answer.prompt == wanted.prompt
        assert answer.prompt not in known
    plain = [ask for ask in server.heard if "return_token_ids" not in ask.body]
    assert len(plain) == FORMAL
    assert all("ignore_eos" not in ask.body and ask.body["stream_options"] == {"include_usage": True} for ask in plain)
    asked_too = [ask for ask in truth.heard if "return_token_ids" not in ask.body and ask.chat]
    assert len(asked_too) == FORMAL
    assert {ask.stream for ask in asked_too} == {False}


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True, "ignore_eos": True, "stream_options": {}}])
def test_where_the_benchmark_asks_for_all_of_it_nothing_is_asked_twice(fields: dict[str, Any]) -> None:
    session, server, _ = in_form(fields)
    assert session.formal == ()
    assert all("return_token_ids" in ask.body for ask in server.heard)


def test_without_a_reference_none_are_asked_so() -> None:
    session, server, _ = in_form({"user": "me"}, reference=False)
    assert session.formal == ()
    assert all("return_token_ids" in ask.body for ask in server.heard)


@pytest.mark.parametrize("name", sorted(SHAPING))
def test_where_fields_shape_an_answer_its_ids_alone_do_not_tell_the_next(name: str) -> None:
    session, _, truth = in_form({name: 0.5 if name.endswith("penalty") else {"a": 1}})
    assert session.forced == ()
    assert session.oracle
    assert all(ask.body[name] for ask in truth.heard)


def test_a_field_that_says_nothing_shapes_nothing() -> None:
    session, _, _ = in_form({"frequency_penalty": 0.0})
    assert len(session.forced) == FORCED


@pytest.mark.parametrize(("texts", "asked"), [("aabcde", 2), ("aabbcc", 2), ("aabbbb", SAMPLED), ("aaabbb", SAMPLED)])
def test_the_reference_is_asked_for_all_samples_where_texts_are_few(texts: str, asked: int) -> None:
    deaf = _Deaf()
    sampled = tuple(Answer("p", 4, text=text) for text in texts)
    assert (len(set(texts[1:])) <= FEW_TEXTS) == (asked == SAMPLED)
    assert len(_by_chance(deaf, sampled, 5)) == asked
    assert [fields["seed"] for _, _, fields in deaf.sent] == [5, 5, 6, 7, 8, 9][:asked]
    assert {tokens for _, tokens, _ in deaf.sent} == {4}


def test_its_own_prompts_are_enough_where_the_benchmark_showed_none() -> None:
    first_times, lonely, pairs = AHEAD + PAIRS, 2, PAIRS
    needed = first_times + lonely + MOST_AT_ONCE + 1 + FORMAL + 1 + pairs  # with one short and one brief
    assert len(set(_prompts((), 5, 30))) == needed
