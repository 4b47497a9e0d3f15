"""What the command lines print, one JSON object a line, read into a reply: one reader for each agent.

A reader takes the objects in order and never raises for one that it does not know: agents add events. It raises
AgentError where the agent itself says that it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vibeserve.agents.desk import AgentError, Reply, Usage

Event = Mapping[str, Any]


@dataclass
class _Found:
    """What has been read so far; tokens and cost add up."""

    text: str = ""
    document: Mapping[str, Any] | None = None
    ended: bool = False
    error: str = ""
    model: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    def used(self, input_tokens: Any, output_tokens: Any, cost: Any = None) -> None:
        """Add what one event says; what is no number says nothing."""
        if _count(input_tokens):
            self.input_tokens = (self.input_tokens or 0) + input_tokens
        if _count(output_tokens):
            self.output_tokens = (self.output_tokens or 0) + output_tokens
        if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e9:
            self.cost_usd = (self.cost_usd or 0.0) + cost

    def reply(self) -> Reply:
        usage = Usage(self.input_tokens, self.output_tokens, self.cost_usd, self.model)
        if self.error:
            raise AgentError(self.error[:500], usage=usage)
        if not self.ended:
            raise AgentError("it stopped before it had answered", state="malformed", usage=usage)
        return Reply(self.text, self.document, usage)


def claude(events: Iterable[Event]) -> Reply:
    """`--output-format stream-json`: a `result` event ends it, with `structured_output`, usage and cost."""
    found = _Found()
    for event in events:
        if event.get("type") == "system" and event.get("subtype") == "init":
            found.model = str(event.get("model") or "")
        if event.get("type") != "result":
            continue
        found.ended = True
        found.text = str(event.get("result") or "")
        found.document = _mapping(event.get("structured_output")) or None
        usage = _mapping(event.get("usage"))
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        found.used(_sum(usage, kinds), usage.get("output_tokens"), event.get("total_cost_usd"))
        if event.get("is_error") or event.get("subtype") != "success":
            found.error = found.text or str(event.get("subtype") or "it failed without a reason")
    return found.reply()


def codex(events: Iterable[Event]) -> Reply:
    """`exec --json`: the last `agent_message` is the answer, `turn.completed` has the usage (cached input included)."""
    found = _Found()
    for event in events:
        kind, item = event.get("type"), _mapping(event.get("item"))
        if kind == "item.completed" and item.get("type") == "agent_message":
            found.text = str(item.get("text") or "")
        elif kind == "turn.completed":
            usage = _mapping(event.get("usage"))
            found.used(usage.get("input_tokens"), usage.get("output_tokens"))
            found.ended, found.error = True, ""
        elif kind == "turn.failed":
            found.error = str(_mapping(event.get("error")).get("message") or "its turn failed")
        elif kind == "error":
            found.error = str(event.get("message") or "it failed without a reason")
    return found.reply()


def gemini(events: Iterable[Event]) -> Reply:
    """`-o stream-json`: the assistant's `message` pieces are the answer; `result` ends it, with `stats`."""
    found = _Found()
    for event in events:
        kind = event.get("type")
        if kind == "init":
            found.model = str(event.get("model") or "")
        elif kind == "tool_use":
            found.text = ""  # what was said before a tool ran was no answer yet
        elif kind == "message" and event.get("role") == "assistant":
            found.text = (found.text if event.get("delta") else "") + str(event.get("content") or "")
        elif kind == "result":
            found.ended = True
            stats = _mapping(event.get("stats"))
            found.used(stats.get("input_tokens"), stats.get("output_tokens"))
            if event.get("status") != "success":
                found.error = str(_mapping(event.get("error")).get("message") or "it failed without a reason")
    return found.reply()


def opencode(events: Iterable[Event]) -> Reply:
    """`--format=json`: `text` parts, and a `step_finish` with tokens and cost after each step."""
    found = _Found()
    for event in events:
        kind, part = event.get("type"), _mapping(event.get("part"))
        if kind == "text":
            found.text = str(part.get("text") or "")
        elif kind == "step_finish":
            tokens = _mapping(part.get("tokens"))
            cache = _mapping(tokens.get("cache"))
            given = [value for value in (_sum(tokens, ("input",)), _sum(cache, ("read", "write"))) if value is not None]
            found.used(sum(given) if given else None, _sum(tokens, ("output", "reasoning")), part.get("cost"))
            found.ended = part.get("reason") == "stop"
        elif kind == "error":
            error = _mapping(event.get("error"))
            found.error = str(_mapping(error.get("data")).get("message") or error.get("name") or "it failed")
    return found.reply()


READERS: dict[str, Callable[[Iterable[Event]], Reply]] = {
    "claude": claude,
    "codex": codex,
    "gemini": gemini,
    "opencode": opencode,
}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60


def _sum(values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    known = [values[name] for name in names if _count(values.get(name))]
    return sum(known) if known else None
