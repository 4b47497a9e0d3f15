"""Tries to catch a candidate cheating: probes that it has never seen, and digests of what it may not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vibeserve.judge import audit
from vibeserve.judge.client import ENDPOINTS, Client
from vibeserve.judge.integrity import Integrity
from vibeserve.judge.probes import ALL
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import ask
from vibeserve.judge.traffic import Traffic, learn
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
            restart=restart,
        )
    finally:
        client.close()
        if oracle is not None:
            oracle.close()
    return [*(module.look(session) for module in ALL), seen]
