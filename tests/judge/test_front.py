"""What the judge's front hands to a session, and what it makes of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.judge.test_probes import bundle

from vibeserve import judge
from vibeserve.judge import ProbeResult, probe
from vibeserve.judge.client import CHAT, COMPLETIONS, Client
from vibeserve.judge.traffic import Traffic

URL, ORACLE = "http://127.0.0.1:9", "http://127.0.0.1:8"
SEEN = ProbeResult("processes", True, "one")


class Module:
    """A probe that says what it was shown."""

    @staticmethod
    def look(session: Any) -> ProbeResult:
        return ProbeResult("shown", True, repr(session))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything that the session was begun with."""
    found: dict[str, Any] = {"closed": []}

    def ask(client: Client, seed: int, **rest: Any) -> str:
        found.update(rest, client=client, seed=seed)
        if found.get("fails"):
            raise RuntimeError("no session")
        return "the session"

    def learn(*arguments: Any) -> Traffic:
        found["learned"] = arguments
        return Traffic(width=7, fields={"top_p": 0.5})

    monkeypatch.setattr(judge, "ask", ask)
    monkeypatch.setattr(judge, "learn", learn)
    monkeypatch.setattr(judge, "ALL", (Module, Module))
    monkeypatch.setattr(judge.audit, "look", lambda bundle, url: SEEN if url == URL else None)
    monkeypatch.setattr(Client, "close", lambda self: found["closed"].append(self.url))
    return found


def test_what_is_handed_on(asked: dict[str, Any]) -> None:
    target = bundle(api="openai-completions", min_top1=0.7)
    results = probe(target, URL, seed=3, oracle_url=ORACLE, model_dir=Path("/m"))
    assert results == [ProbeResult("shown", True, "'the session'")] * 2 + [SEEN]
    assert asked["learned"] == (target, COMPLETIONS, 3, Path("/m"))
    client, oracle = asked["client"], asked["oracle"]
    assert (client.url, client.endpoint, client.timeout_s, client.traffic.width) == (URL, COMPLETIONS, 300.0, 7)
    assert (oracle.url, oracle.endpoint, oracle.timeout_s) == (ORACLE, COMPLETIONS, 300.0)
    assert oracle.traffic == Traffic(fields={"top_p": 0.5})  # what shapes an answer is asked of both
    assert (asked["seed"], asked["prompt_tokens"], asked["output_tokens"]) == (3, 64, 48)
    assert (asked["exact"], asked["min_top1"], asked["restart"]) == (True, 0.7, None)
    assert sorted(asked["closed"]) == [ORACLE, URL]


def test_what_is_given_stands(asked: dict[str, Any]) -> None:
    given = {
        "prompt_tokens": 5,
        "output_tokens": 6,
        "timeout_s": 7.0,
        "restart": lambda: URL,
        "traffic": Traffic(width=2),
    }
    probe(bundle(), URL, seed=3, **given)  # type: ignore[arg-type]
    assert "learned" not in asked
    assert {name: asked[name] for name in ("prompt_tokens", "output_tokens", "restart")} == {
        name: given[name] for name in ("prompt_tokens", "output_tokens", "restart")
    }
    assert (asked["client"].endpoint, asked["client"].timeout_s, asked["client"].traffic.width) == (CHAT, 7.0, 2)
    assert asked["oracle"] is None
    assert asked["closed"] == [URL]


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
