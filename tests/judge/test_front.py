"""What the judge's front hands to a session, and what it makes of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.judge.test_probes import bundle

from vibeserve import judge
from vibeserve.judge import ProbeResult, probe
from vibeserve.judge.client import CHAT, COMPLETIONS, Answer, Client
from vibeserve.judge.traffic import Traffic

URL, ORACLE = "http://127.0.0.1:9", "http://127.0.0.1:8"
SEEN = ProbeResult("processes", True, "one")
PACE, LOOPS = ProbeResult("pace", True, "even"), ProbeResult("loops", True, "left")
NO_LOOPS = ProbeResult("loops", None, "not run: there is no reference to ask")


class Asked:
    """A session with one prompt."""

    all = (Answer("used", 1),)

    def __repr__(self) -> str:
        return "the session"


class Module:
    """A probe that says what it was shown."""

    @staticmethod
    def look(session: Any) -> ProbeResult:
        return ProbeResult("shown", True, repr(session))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything that the session was begun with."""
    found: dict[str, Any] = {"closed": []}

    def ask(client: Client, seed: int, **rest: Any) -> Asked:
        found.update(rest, client=client, seed=seed)
        if found.get("fails"):
            raise RuntimeError("no session")
        if rest["restart"] is not None:
            found["life"] = rest["restart"]()
        return Asked()

    def paced(client: Client, prompts: Any, length: int) -> str:
        found.update(paced=(client.url, [next(prompts) for _ in range(3)], length))
        return "pairs"

    def looped(client: Client, oracle: Client, prompts: Any, length: int) -> str:
        found.update(looped=(client.url, oracle.url, next(prompts), length))
        return "answers"

    def learn(*arguments: Any) -> Traffic:
        found["learned"] = arguments
        return Traffic(width=7, fields={"top_p": 0.5}, prompts=("one", "used", "two"))

    monkeypatch.setattr(judge, "ask", ask)
    monkeypatch.setattr(judge, "learn", learn)
    monkeypatch.setattr(judge, "ALL", (Module, Module))
    monkeypatch.setattr(judge.audit, "look", lambda bundle, url: SEEN if url == URL else None)
    monkeypatch.setattr(judge.pace, "asked", paced)
    monkeypatch.setattr(judge.pace, "judged", lambda pairs, session: PACE if pairs == "pairs" else None)
    monkeypatch.setattr(judge.loops, "asked", looped)
    monkeypatch.setattr(
        judge.loops, "judged", lambda pairs, exact: LOOPS if (pairs, exact) == ("answers", True) else None
    )
    monkeypatch.setattr(Client, "close", lambda self: found["closed"].append(self.url))
    return found


def test_what_is_handed_on(asked: dict[str, Any]) -> None:
    target = bundle(api="openai-completions", min_top1=0.7)
    results = probe(target, URL, seed=3, oracle_url=ORACLE, model_dir=Path("/m"))
    assert results == [ProbeResult("shown", True, "the session")] * 2 + [PACE, LOOPS, SEEN]
    assert asked["learned"] == (target, COMPLETIONS, 3, Path("/m"))
    client, oracle = asked["client"], asked["oracle"]
    assert (client.url, client.endpoint, client.timeout_s, client.traffic.width) == (URL, COMPLETIONS, 300.0, 7)
    assert (oracle.url, oracle.endpoint, oracle.timeout_s) == (ORACLE, COMPLETIONS, 300.0)
    assert oracle.traffic == Traffic(fields={"top_p": 0.5})  # what shapes an answer is asked of both
    assert (asked["seed"], asked["prompt_tokens"], asked["output_tokens"]) == (3, 64, 48)
    assert (asked["exact"], asked["min_top1"], asked["restart"]) == (True, 0.7, None)
    assert sorted(set(asked["closed"])) == [ORACLE, URL]
    # Afterwards with prompts that nobody has asked: the benchmark's last ones, then the judge's own.
    assert asked["paced"] == (URL, ["two", "one", asked["paced"][1][2]], 48)
    assert "used" not in asked["paced"][1][2]
    assert asked["looped"][:2] == (URL, ORACLE)
    assert asked["looped"][3] == 48


def test_prompts_never_run_out_and_are_all_others() -> None:
    prompts = judge._others(Traffic(), Asked(), 3, 20)  # type: ignore[arg-type]
    found = [next(prompts) for _ in range(3 * judge.loops.MOST)]
    assert len(set(found)) == len(found)


def test_after_a_restart_the_new_life_is_asked(asked: dict[str, Any]) -> None:
    again = "http://127.0.0.1:7"
    results = probe(bundle(), URL, seed=3, oracle_url=ORACLE, restart=lambda: again, traffic=Traffic(output_tokens=9))
    assert asked["life"] == again
    assert (asked["paced"][0], asked["paced"][2]) == (again, 9)
    assert (asked["looped"][0], asked["looped"][3]) == (again, 9)
    assert results[-3:] == [PACE, LOOPS, SEEN]
    assert {ORACLE, URL, again} == set(asked["closed"])


def test_what_is_given_stands(asked: dict[str, Any]) -> None:
    given = {
        "prompt_tokens": 5,
        "output_tokens": 6,
        "timeout_s": 7.0,
        "restart": lambda: URL,
        "traffic": Traffic(width=2),
    }
    results = probe(bundle(), URL, seed=3, **given)  # type: ignore[arg-type]
    assert results[-2:] == [NO_LOOPS, SEEN]
    assert "looped" not in asked
    assert "learned" not in asked
    assert {name: asked[name] for name in ("prompt_tokens", "output_tokens")} == {
        name: given[name] for name in ("prompt_tokens", "output_tokens")
    }
    assert asked["life"] == URL
    assert asked["paced"][2] == 6
    assert (asked["client"].endpoint, asked["client"].timeout_s, asked["client"].traffic.width) == (CHAT, 7.0, 2)
    assert asked["oracle"] is None
    assert set(asked["closed"]) == {URL}


@pytest.mark.parametrize(
    ("dtypes", "margin", "exact"),
    [
        (("float32",), 0.0, True),
        (("float32",), 0.1, False),
        (("float32", "bfloat16"), 0.0, False),
        (("bfloat16",), 0.0, False),
    ],
)
def test_only_float32_without_a_margin_is_exact(
    asked: dict[str, Any], dtypes: tuple[str, ...], margin: float, exact: bool
) -> None:
    probe(bundle(dtypes=dtypes, near_tie_margin=margin), URL, seed=1)
    assert asked["exact"] is exact


def test_connections_are_closed_whatever_happens(asked: dict[str, Any]) -> None:
    asked["fails"] = True
    with pytest.raises(RuntimeError, match="no session"):
        probe(bundle(), URL, seed=1, oracle_url=ORACLE)
    assert sorted(asked["closed"]) == [ORACLE, URL]


def test_an_api_that_is_not_spoken_is_asked_nothing(asked: dict[str, Any]) -> None:
    (result,) = probe(bundle(api="openai-images"), URL, seed=1)
    assert (result.name, result.ok) == ("probes", None)
    assert result.detail == "not run: the judge does not speak openai-images yet"
    assert "client" not in asked
