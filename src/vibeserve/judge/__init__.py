"""Tries to catch a candidate cheating: probes that it has never seen, and digests of what it may not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from vibeserve.base.randomness import derive_seed
from vibeserve.judge import audit, loops, pace
from vibeserve.judge.client import ENDPOINTS, Client
from vibeserve.judge.integrity import Integrity
from vibeserve.judge.probes import ALL
from vibeserve.judge.prompts import draw
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session, ask
from vibeserve.judge.traffic import Prompt, Traffic, learn
from vibeserve.targets.types import Bundle

__all__ = ["Integrity", "ProbeResult", "probe"]


def probe(
    bundle: Bundle,
    url: str,
    *,
    seed: int,
    oracle_url: str | None = None,
    prompt_tokens: int = 64,
    output_tokens: int = 48,
    timeout_s: float = 300.0,
    restart: Callable[[], str] | None = None,
    model_dir: Path | None = None,
    traffic: Traffic | None = None,
) -> list[ProbeResult]:
    """Every probe on the server at `url`, with fresh prompts drawn from `seed`.

    The form of the requests is learned from the bundle's own benchmark; where that cannot be, prompts have about
    `prompt_tokens` and answers `output_tokens`. `oracle_url` is where the bundle's reference answers, for what only it can
    say. `traffic`: what `learn` has given, for a server that has not been sent it yet. `restart` ends the server, starts it anew and returns where it answers now. A bundle whose API the judge does not
    speak is not judged, and says so.
    """
    endpoint = ENDPOINTS.get(bundle.api)
    if endpoint is None:
        return [ProbeResult("probes", None, f"not run: the judge does not speak {bundle.api} yet")]
    client = Client(url, endpoint, timeout_s, traffic=traffic or learn(bundle, endpoint, seed, model_dir))
    # What the benchmark asks beside its prompts may shape the answer: the reference is asked for the same.
    same = Traffic(fields=client.traffic.fields)
    oracle = Client(oracle_url, endpoint, timeout_s, traffic=same) if oracle_url else None
    exact = tuple(bundle.dtypes) == ("float32",) and bundle.near_tie_margin == 0.0
    urls = [url]

    def restarted() -> str:
        urls.append(restart() if restart is not None else url)
        return urls[-1]

    try:
        seen = audit.look(bundle, url)
        session = ask(
            client,
            seed,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            oracle=oracle,
            exact=exact,
            min_top1=bundle.min_top1,
            restart=None if restart is None else restarted,
        )
        # In the life that there is now.
        client.close()
        client.url = urls[-1]
        length = client.traffic.output_tokens or output_tokens
        prompts = _others(client.traffic, session, seed, prompt_tokens)
        later = [pace.judged(pace.asked(client, prompts, length), session)]
        if oracle is None:
            later.append(ProbeResult(loops.NAME, None, "not run: there is no reference to ask"))
        else:
            later.append(loops.judged(loops.asked(client, oracle, prompts, length), exact))
    finally:
        client.close()
        if oracle is not None:
            oracle.close()
    return [*(module.look(session) for module in ALL), *later, seen]


def _others(traffic: Traffic, session: Session, seed: int, tokens: int) -> Iterator[Prompt]:
    """Prompts that the session has not asked: the benchmark's from the end, and then the judge's own without end."""
    used = {answer.prompt for answer in session.all}
    yield from (prompt for prompt in reversed(traffic.prompts) if prompt not in used)
    more = 0
    while True:
        more += 1
        yield from draw(derive_seed(seed, f"others {more}"), loops.MOST, tokens)
