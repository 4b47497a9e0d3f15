"""The server's own counts agree with what it sent."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session
from vibeserve.judge.traffic import Prompt

NAME = "usage"


def look(session: Session) -> ProbeResult:
    """`completion_tokens` is the number of ids; one prompt has one `prompt_tokens`, the reference's; sums are sums."""
    answers = [answer for answer in session.all if not answer.error and answer.usage]
    if not answers:
        return ProbeResult(NAME, None, "not run: the server sends no usage")
    prompts: dict[Prompt, int] = {}
    for answer in answers:
        usage = answer.usage or {}
        told, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        if answer.token_ids is not None and told != len(answer.token_ids):
            return ProbeResult(NAME, False, f"usage says {told} completion tokens, {len(answer.token_ids)} ids came")
        if not isinstance(prompt, int) or prompt < 1:
            return ProbeResult(NAME, False, f"usage says {prompt!r} prompt tokens")
        total = usage.get("total_tokens")
        if isinstance(total, int) and isinstance(told, int) and total != prompt + told:
            return ProbeResult(NAME, False, f"usage says {total} tokens in all, which are {prompt} and {told}")
        if prompts.setdefault(answer.prompt, prompt) != prompt:
            return ProbeResult(NAME, False, f"one prompt has {prompts[answer.prompt]} and {prompt} prompt tokens")
    for truth in session.oracle:
        told = (truth.usage or {}).get("prompt_tokens")
        if isinstance(told, int) and prompts.get(truth.prompt, told) != told:
            detail = f"usage says {prompts[truth.prompt]} prompt tokens where the reference says {told}"
            return ProbeResult(NAME, False, detail)
    return ProbeResult(NAME, True, f"{len(answers)} answers count what they brought")
