"""When text is sent: which pairs are asked for, and where a server that holds its text back is told from one that does not."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tests.cheats.insider import ComputesAllThenPaces
from tests.cheats.server import Honest, serving
from tests.judge.test_probe_units import BROKEN, answer, session
from tests.judge.test_session import Listens

from vibeserve.judge import pace
from vibeserve.judge.client import CHAT, Client
from vibeserve.judge.session import FIRST_TOKENS


def brief(total_s: float = 0.03, **more: Any) -> Any:
    return answer("brief", "abcd", total_s=total_s, **more)


def whole(first_s: float = 0.02, total_s: float = 0.12, **more: Any) -> Any:
    return answer("whole", span_s=total_s - first_s, first_s=first_s, **({"total_s": total_s} | more))


def looked(pairs: list[Any], **changes: Any) -> Any:
    return pace.judged(pairs, session(**changes))


def test_pairs_are_of_fresh_prompts_in_balanced_order() -> None:
    server = Listens()
    with serving(server) as url:
        client = Client(url, CHAT, 20.0)
        names = (f"prompt {number} of many" for number in count())
        pairs = pace.asked(client, names, 12)
        client.close()
    counts = [ask.count for ask in server.heard]
    assert counts == [FIRST_TOKENS, 12, 12, FIRST_TOKENS, FIRST_TOKENS, 12, 12, FIRST_TOKENS]
    assert len({ask.prompt for ask in server.heard}) == 2 * pace.PAIRS
    assert [(first.asked, other.asked) for first, other in pairs] == [(FIRST_TOKENS, 12)] * pace.PAIRS
    assert all(ask.running == 1 for ask in server.heard)


def test_an_honest_server_begins_before_a_short_answer_ends() -> None:
    found = looked([(brief(), whole())] * 4)
    assert (found.name, found.ok) == ("pace", True)
    assert found.document["shares"] == pytest.approx([(0.02 - 0.03) / 0.09] * 4)


def test_held_back_in_each_pair_is_held_back() -> None:
    late = (brief(), whole(first_s=0.10))
    assert looked([late] * 4).ok is False
    assert looked([late] * 3 + [(brief(), whole())]).ok is True
    at_the_line = (brief(0.25), whole(first_s=0.5, total_s=0.75))
    assert looked([at_the_line] * 4).ok is True


@pytest.mark.parametrize(
    "pair",
    [
        (brief(), answer("whole", "abcdefg")),  # seven tokens
        (brief(), whole(arrivals=())),
        (brief(0.11), whole(first_s=0.10)),  # the tokens cost 10 ms
        (brief(0.99), whole(first_s=0.99, total_s=1.05)),  # 60 ms of 1.05 s
    ],
)
def test_what_cannot_be_told_is_not_run(pair: Any) -> None:
    found = looked([pair] * 4)
    assert found.ok is None
    assert found.detail.startswith("not run")


def test_just_enough_to_be_told() -> None:
    assert looked([(brief(), answer("whole", "abcdefgh"))] * 4).ok is True  # eight tokens
    assert pace.held(brief(0.0), whole(first_s=0.01, total_s=0.02)) == 0.5  # the tokens cost 20 ms
    ends = answer("whole", arrivals=((0.5, "a", 1), (0.75, "b", 1)), total_s=0.5)  # over half of its own time
    steady = answer("alone", arrivals=((0.0, "a", 1), (1.0, "b", 1)))
    assert pace._beside([(brief(), steady)], session(alone=(), cold=(ends,), cover=())) == 0.0
    least = answer("alone", arrivals=((0.0, "a", 1), (0.02, "b", 1)))
    assert pace._beside([(brief(), least)], session(alone=())) == 0.0


def test_one_pair_that_cannot_be_told_leaves_it_open() -> None:
    assert looked([(brief(), whole(first_s=0.10))] * 3 + [(brief(0.115), whole())]).ok is None


def test_no_answer_is_a_failure() -> None:
    found = looked([(BROKEN, whole())] * 4)
    assert found.ok is False
    assert found.detail.startswith("4 requests were not answered: http 500")
    assert looked([(brief(), BROKEN)] * 4).ok is False


def company(*quick_s: float, first_s: float = 0.3) -> dict[str, Any]:
    """Answers in company, each with its text over so many seconds after the first."""
    return {"cold": tuple(answer(span_s=span_s, first_s=first_s) for span_s in quick_s), "cover": ()}


def test_company_is_not_made_to_wait() -> None:
    pairs = [(brief(), whole())] * 4  # alone text comes over 0.1 s
    assert looked(pairs).document["beside"] == 0.0
    found = looked(pairs, **company(*[0.06] * 6))
    assert (found.ok, found.document) == (False, {"beside": 1.0})
    assert found.detail == "alone text comes as it is computed, in company 100% of the answers were held back"
    # Queued, but then as slow as alone; or quicker than alone, but from the beginning on.
    assert looked(pairs, **company(*[0.08] * 6)).ok is True
    assert looked(pairs, **company(*[0.06] * 6, first_s=0.02)).ok is True
    assert looked(pairs, **company(0.06, 0.06, 0.08, 0.08)).document["beside"] == 0.5
    assert looked(pairs, **company(0.06, 0.06, 0.08, 0.08)).ok is True
    assert looked(pairs, **company(0.06, 0.06, 0.06, 0.08)).ok is False
    # The company of the session is everybody there but the repetitions.
    found = looked(pairs, cold=company(0.06)["cold"], cover=company(0.06, 0.06)["cold"])
    assert found.document["beside"] == 1.0


def test_the_least_of_all_alone_is_what_company_is_held_against() -> None:
    pairs = [(brief(), whole())] * 4
    quick = answer("alone", span_s=0.05)
    assert looked(pairs, alone=(quick, BROKEN), **company(*[0.06] * 6)).document["beside"] == 0.0
    assert looked(pairs, alone=(BROKEN, BROKEN), **company(*[0.06] * 6)).ok is False
    short = [(brief(0.001), whole(first_s=0.05, total_s=0.065))] * 4
    assert looked(short, **company(*[0.001] * 6)).document["beside"] is None
    assert looked(pairs, cold=(BROKEN,), cover=()).document["beside"] is None


@pytest.mark.parametrize(("kind", "ok"), [(Honest, True), (ComputesAllThenPaces, False)])
def test_servers(kind: type[Honest], ok: bool) -> None:
    patient = type("Patient", (kind,), {"step_s": 0.004})
    with serving(patient()) as url:
        client = Client(url, CHAT, 20.0)
        pairs = pace.asked(client, (f"prompt {number} of many" for number in count()), 24)
        client.close()
    shares = [pace.held(*pair) for pair in pairs]
    assert all(share is not None for share in shares)
    assert (min(share for share in shares if share is not None) <= pace.MOST_HELD) is ok
