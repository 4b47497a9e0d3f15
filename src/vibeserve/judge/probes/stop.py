"""An answer ends where its stop string begins."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "stop"


def look(session: Session) -> ProbeResult:
    """The text ends before the stop string; in float32 it is the beginning of the answer without one, ids likewise."""
    answer, whole, stop = session.stopped, session.cold[0], session.stop
    if answer is None or not stop or whole.error:
        return ProbeResult(NAME, None, "not run: no answer is long enough to be stopped in its middle")
    if answer.refused:
        return ProbeResult(NAME, None, "not run: the server does not know stop")
    if answer.error:
        return ProbeResult(NAME, False, f"a request with a stop string was not answered: {answer.error}")
    if stop in answer.text:
        return ProbeResult(NAME, False, f"the text goes on at its stop string {stop!r}")
    if not session.exact:
        return ProbeResult(NAME, True, f"the text does not hold its stop string {stop!r}")
    wanted = whole.text[: whole.text.find(stop)]
    if answer.text != wanted or answer.finish_reason != "stop":
        told = f"{answer.text[-20:]!r} ({answer.finish_reason}) instead of {wanted[-20:]!r} (stop)"
        return ProbeResult(NAME, False, f"stopped at {stop!r}, the answer ends in {told}")
    ids, all_ids = answer.token_ids, whole.token_ids
    if ids is not None and all_ids is not None and (len(ids) >= len(all_ids) or ids != all_ids[: len(ids)]):
        return ProbeResult(
            NAME, False, f"{len(ids)} ids came of an answer that was stopped; they are not its beginning"
        )
    told_tokens = (answer.usage or {}).get("completion_tokens")
    if ids is not None and told_tokens not in (None, len(ids)):
        return ProbeResult(NAME, False, f"usage says {told_tokens} tokens of a stopped answer, {len(ids)} ids came")
    return ProbeResult(NAME, True, f"stopped before {stop!r}")
