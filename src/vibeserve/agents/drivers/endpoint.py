"""An agent on any OpenAI-compatible endpoint: a small loop of streamed chat completions with tools.

The endpoint is where OPENAI_BASE_URL says (else OpenAI's own), the key OPENAI_API_KEY; a local server needs no key. The
model answers by calling the tool `answer`, whose parameters are the schema of the task.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vibeserve.agents.desk import AgentError, Desk, Reply, Task, Usage
from vibeserve.agents.drivers.tools import Tools
from vibeserve.base.errors import MissingError

#: Turns of one task, and characters of one answer of the endpoint: beyond either, the call has failed.
TURNS = 100
CHARACTERS = 4_000_000
_ANSWER = "answer"


@dataclass
class _Turn:
    """What one streamed completion came to."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str = ""
    size: int = 0

    def add(self, delta: Any) -> None:
        """One delta of the stream."""
        self.text += delta.content or ""
        for piece in delta.tool_calls or ():
            call = self.calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
            call["id"] = piece.id or call["id"]
            if piece.function is not None:
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
                self.size += len(piece.function.arguments or "")
        self.size += len(delta.content or "")
        if self.size > CHARACTERS:
            raise AgentError(f"the endpoint sent more than {CHARACTERS} characters in one answer")

    def message(self) -> dict[str, Any]:
        """As it goes back to the endpoint."""
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in self.calls.values()
        ]
        return {"role": "assistant", "content": self.text or None, **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True)
class EndpointDriver:
    """The loop on one model. Its tools change nothing outside of the task's directory."""

    model: str
    confined: bool = False
    tells_cost: bool = False

    @property
    def name(self) -> str:
        """As it is recorded."""
        return f"openai:{self.model}"

    def ready(self) -> None:
        """The client library is there, and a key or an endpoint of one's own. Raises MissingError."""
        try:
            import openai  # noqa: F401
        except ImportError as error:
            raise MissingError("the openai client is not installed", hint="pip install 'vibeserve[agents]'") from error
        if not os.environ.get("OPENAI_API_KEY") and not os.environ.get("OPENAI_BASE_URL"):
            hint = "set OPENAI_API_KEY, or OPENAI_BASE_URL for an endpoint of your own"
            raise MissingError("there is no endpoint to ask", hint=hint)

    def call(self, task: Task, desk: Desk) -> Reply:
        """Turns until the model answers. Raises AgentError."""
        import openai

        deadline = time.monotonic() + task.timeout_s
        usage = {"input_tokens": None, "output_tokens": None}
        key = os.environ.get("OPENAI_API_KEY") or "none"
        with openai.OpenAI(api_key=key, timeout=min(task.timeout_s, 300.0), max_retries=2) as client:
            try:
                return self._turns(client, task, desk, deadline, usage)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error.message}", state=error.state, usage=self._used(usage)) from error
            except openai.APITimeoutError as error:
                message = f"{self.name}: the endpoint did not answer in time"
                raise AgentError(message, state="timed out", usage=self._used(usage)) from error
            except (openai.OpenAIError, ValueError) as error:
                raise AgentError(f"{self.name}: {error}"[:500], usage=self._used(usage)) from error
            except Exception as error:  # a stream that breaks off raises what the transport raises
                raise AgentError(
                    f"{self.name}: the stream broke off: {error}"[:500], usage=self._used(usage)
                ) from error

    def _turns(self, client: Any, task: Task, desk: Desk, deadline: float, usage: dict[str, Any]) -> Reply:
        tools = Tools(task, desk)
        form = {"name": _ANSWER, "description": "Your answer; it ends the task.", "parameters": task.schema()}
        offered = [*tools.specifications(), {"type": "function", "function": form}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
        before = desk.records.spent().tokens
        with (task.folder / "output.jsonl").open("a", encoding="utf-8") as transcript:
            for _ in range(TURNS):
                turn = self._turn(client, messages, offered, deadline, usage, desk)
                messages.append(turn.message())
                transcript.write(json.dumps(messages[-1]) + "\n")
                answers = [call["arguments"] for call in turn.calls.values() if call["name"] == _ANSWER]
                if answers:
                    return Reply(answers[-1], _document(answers[-1]), self._used(usage))
                if not turn.calls:
                    return Reply(turn.text, None, self._used(usage))
                used = sum(value or 0 for value in usage.values())
                if desk.limits.tokens is not None and before + used >= desk.limits.tokens:
                    raise AgentError(f"the budget of {desk.limits.tokens} tokens is used up")
                for call in turn.calls.values():
                    said = tools.use(call["name"], call["arguments"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
                    transcript.write(json.dumps(messages[-1]) + "\n")
        raise AgentError(f"no answer after {TURNS} turns")

    def _turn(
        self,
        client: Any,
        messages: list[dict[str, Any]],
        offered: Any,
        deadline: float,
        usage: dict[str, Any],
        desk: Desk,
    ) -> _Turn:
        turn = _Turn()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise AgentError("no answer in time", state="timed out")
        stream = client.chat.completions.create(
            model=self.model,
            messages=messages,
            tools=offered,
            stream=True,
            stream_options={"include_usage": True},
            timeout=left_s,
        )
        with contextlib.closing(stream):
            for chunk in stream:
                if time.monotonic() > deadline or desk.cancelled.is_set():
                    raise AgentError("no answer in time", state="timed out")
                if chunk.usage is not None:
                    usage["input_tokens"] = (usage["input_tokens"] or 0) + chunk.usage.prompt_tokens
                    usage["output_tokens"] = (usage["output_tokens"] or 0) + chunk.usage.completion_tokens
                for choice in chunk.choices:
                    turn.add(choice.delta)
                    turn.finish = choice.finish_reason or turn.finish
        if not turn.finish:
            raise AgentError("the stream ended before the answer did", state="malformed")
        return turn

    def _used(self, usage: Mapping[str, Any]) -> Usage:
        return Usage(usage["input_tokens"], usage["output_tokens"], None, self.model)


def _document(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AgentError(f"the arguments of `answer` are no JSON: {error}", state="malformed") from error
    if not isinstance(value, dict):
        raise AgentError("the arguments of `answer` are no JSON object", state="malformed")
    return value
