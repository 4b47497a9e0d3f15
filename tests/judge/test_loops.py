"""Answers that leave a loop: where they do, which of them are asked for, and what a copier is told by."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from tests.cheats.insider import LoopsOfAnyLengthNotComputed
from tests.cheats.llama import MODEL
from tests.cheats.server import Ask, Honest, Tokens, serving
from tests.cheats.zealous import LoopsNotComputed
from tests.judge.test_probe_units import BROKEN, answer

from vibeserve.judge import loops
from vibeserve.judge.client import CHAT, Answer, Client
from vibeserve.judge.traffic import Traffic

LENGTH = 24


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abababax", (7, 2)),
        ("ababx", (4, 2)),
        ("aaaab", (4, 1)),
        ("aaab", None),
        ("abcabcabd", (8, 3)),
        ("abcdefghabcdefghx", (16, 8)),
        ("abcdefghiabcdefghix", None),  # nine
        ("abababab", None),
        ("abcdefg", None),
        ("abx", None),
        ("", None),
        ("xyababz", (6, 2)),
    ],
)
def test_where_a_loop_is_left(text: str, found: tuple[int, int] | None) -> None:
    assert loops.left_at([ord(letter) for letter in text]) == found


class Telling(Honest):
    """Says `abab` and then leaves it, to every prompt that says so; else loops."""

    step_s = 0.0

    def tokens(self, ask: Ask) -> Tokens:
        text = "ababcdefghij" if "leave" in ask.prompt else "abababababab"
        return ((ord(letter), letter) for letter in text[: ask.count])


class Copies(Telling):
    def tokens(self, ask: Ask) -> Tokens:
        return ((ord(letter), letter) for letter in "abababababab"[: ask.count])


def asked(kind: type[Honest], prompts: Iterator[str], truth: type[Honest] = Telling, **more: Any) -> Any:
    server, oracle = kind(), truth()
    with serving(server) as url, serving(oracle) as oracle_url:
        client, reference = Client(url, CHAT, 20.0, traffic=Traffic(width=6)), Client(oracle_url, CHAT, 20.0)
        try:
            return loops.asked(client, reference, prompts, 12, **more), server, oracle
        finally:
            client.close()
            reference.close()


def test_those_that_leave_a_loop_are_asked_and_company() -> None:
    pairs, server, oracle = asked(Telling, (f"{'leave' if number % 3 == 2 else 'stay'} {number}" for number in count()))
    assert oracle.requests == 3 * loops.ENOUGH
    assert server.requests == 6
    assert [pair[0].prompt for pair in pairs] == ["leave 2", "leave 5", "leave 8", "leave 11", "stay 0", "stay 1"]
    assert [one.prompt for one, _ in pairs] == [other.prompt for _, other in pairs]
    assert loops.judged(pairs, exact=True).ok is True
    found = loops.judged(pairs, exact=False)
    assert (found.ok, found.document["staying"]) == (True, 0)


def test_a_copier_is_caught() -> None:
    pairs, _, _ = asked(Copies, (f"{'leave' if number % 3 == 2 else 'stay'} {number}" for number in count()))
    found = loops.judged(pairs, exact=True)
    assert found.ok is False
    assert found.detail == "2 of 6 whole answers are the reference's; 4 of its own leave a loop"
    assert found.document == {"answers": 6, "leaving": 4}
    found = loops.judged(pairs, exact=False)
    assert (found.ok, found.detail) == (False, "4 of 4 answers stay in a loop that the reference leaves")
    assert loops.judged(pairs[:3], exact=False).ok is False  # three are enough
    some = [*pairs[:2], *pairs[4:]]
    assert loops.judged(some, exact=False).ok is None
    assert loops.judged([*pairs[:3], (pairs[3][0], pairs[3][0])], exact=False).ok is True


class Listens(Telling):
    """Keeps what it was asked, and answers so many at once."""

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self.heard: list[Ask] = []
        self.together = threading.Barrier(at_once, timeout=20)

    def tokens(self, ask: Ask) -> Tokens:
        with self.lock:
            self.heard.append(ask)
        self.together.wait()
        time.sleep(0.02)
        return super().tokens(ask)


def test_the_reference_is_asked_without_streaming_and_the_server_two_at_once_at_least() -> None:
    server, oracle = Listens(2), Listens(1)
    with serving(server) as url, serving(oracle) as oracle_url:
        client, reference = Client(url, CHAT, 20.0, traffic=Traffic(width=1)), Client(oracle_url, CHAT, 20.0)
        pairs = loops.asked(client, reference, (f"leave {number}" for number in count()), 12)
        client.close()
        reference.close()
    assert len(pairs) == loops.ENOUGH
    assert {ask.stream for ask in oracle.heard} == {False}
    assert {ask.stream for ask in server.heard} == {True}
    assert max(ask.running for ask in server.heard) == 2


def test_the_reference_has_only_so_much_time() -> None:
    stays = (f"stay {number}" for number in count())
    pairs, _, oracle = asked(Telling, stays)
    assert oracle.requests == loops.MOST
    assert len(pairs) == 6
    ticks = iter((0.0, 0.0, 1.0, loops.MOST_S, 99.0))
    pairs, _, oracle = asked(Telling, stays, clock=lambda: next(ticks))
    assert oracle.requests == 2
    assert len(pairs) == 2


def test_a_reference_that_does_not_answer_is_said() -> None:
    class No(Honest):
        def status(self, prompt: str) -> int:
            return 500

    pairs, server, _ = asked(Telling, (f"stay {number}" for number in count()), truth=No)
    assert pairs == []
    assert server.requests == 0
    found = loops.judged(pairs, exact=True)
    assert (found.name, found.ok, found.detail) == ("loops", None, "not run: the reference could not be asked")


def test_no_answer_is_a_failure() -> None:
    found = loops.judged([(answer(), BROKEN), (answer(), answer())], exact=True)
    assert found.ok is False
    assert found.detail == "1 of 2 requests were not answered: http 500: no"


def ids(text: str) -> Answer:
    return answer("p", text)


@pytest.mark.parametrize(
    ("truth", "said", "stays"),
    [
        ("ababcd", "ababab", True),
        ("ababcd", "ababcd", False),
        ("ababcd", "ababxd", False),
        ("ababcd", "abaxab", None),  # parted before
        ("ababcd", "abab", None),  # not so far
        ("abcdef", "ababab", None),  # nothing is left
    ],
)
def test_who_stays(truth: str, said: str, stays: bool | None) -> None:
    assert loops.stays_in(ids(truth), ids(said)) is stays


@pytest.mark.parametrize("kind", [LoopsNotComputed, LoopsOfAnyLengthNotComputed])
def test_copiers_of_the_zoo_are_wrong_wherever_their_loop_is_left(kind: type[Any]) -> None:
    """Every prompt that the probe would choose shows them, whatever the draw."""
    from vibeserve.judge.prompts import draw

    it, told = kind(), 0
    for prompt in draw(3, 150, 40):
        true = [number for number, _ in MODEL.tokens(prompt, LENGTH)]
        found = loops.left_at(true)
        if found is None or found[1] > 2:
            continue
        told += 1
        request = Ask(prompt, LENGTH, True, True, {}, {}, 1, 1, 0.0, 0, 1, 0)
        assert [number for number, _ in it.other(request)] != true
    assert told
