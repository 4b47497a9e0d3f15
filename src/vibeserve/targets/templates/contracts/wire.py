"""What every HTTP contract needs: one input, what came back, and one POST. The same file lies beside both scripts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


class CannotRunError(Exception):
    """It cannot be asked or measured at all: exit code 2, with a hint."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Case:
    """One input: its name, and the request's JSON."""

    name: str
    body: dict[str, Any]


@dataclass
class Reply:
    """What came: times in seconds on one clock; `raw` as it came, `values` opened (what they are says the contract)."""

    status: int = 0
    error: str = ""
    first: float | None = None
    done: float = 0.0
    raw: bytes = field(default=b"", repr=False)
    values: Any = ()
    shape: tuple[int, ...] = ()

    def shown(self) -> str:
        """In a few words."""
        text = repr(self.values)
        return text if len(text) < 200 else f"{text[:160]}… ({len(self.values)} in all)"


async def post(session: Any, url: str, endpoint: str, body: dict[str, Any]) -> Reply:
    """One POST of JSON. What goes wrong is in `error`; nothing is opened yet."""
    import aiohttp

    reply = Reply()
    try:
        async with session.post(url.rstrip("/") + endpoint, json=body) as response:
            reply.status = response.status
            reply.raw = await response.read()
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.done = time.perf_counter()
    if reply.status != 200 and not reply.error:
        reply.error = f"HTTP {reply.status}: {reply.raw[:200].decode('utf-8', 'replace')}"
    return reply


def no_other(*_: Any) -> None:
    """There is no other seed, or no other way to ask."""


def sample_of(case: Case, reply: Reply) -> dict[str, Any]:
    """A whole answer for the benchmark's JSON."""
    import base64

    return {"name": case.name, "body": case.body, "answer": base64.b64encode(reply.raw).decode()}


def case_of(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """The other way round; the reply is not opened yet."""
    import base64

    return Case(sample["name"], sample["body"]), Reply(200, raw=base64.b64decode(sample["answer"]))
