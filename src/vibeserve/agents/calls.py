"""One task, asked until there is an answer: recorded before it starts, retried where the reply is malformed, paid for.

A reply that was recorded before a kill is taken from the record: it is not paid for twice.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from vibeserve.agents.desk import AgentError, Desk, Driver, Reply, SpentError, Task, Usage

_LOCK = threading.Lock()  # tasks may run at once; the record takes one of them at a time


def ask(driver: Driver, desk: Desk, task: Task, number: int | None = None) -> dict[str, Any]:
    """The document that answers `task`; `number` is the round (default: the desk's).

    Raises AgentError where `desk.limits.tries` calls brought none, and SpentError where nothing is left to spend.
    """
    number = desk.round if number is None else number
    with _LOCK:
        known = desk.records.answered(number, task.name)
    if known is not None:
        return dict(known)
    problem: AgentError | None = None
    for _ in range(desk.limits.tries):
        asked = task if problem is None else _again(task, problem)
        try:
            return _once(driver, desk, asked, number)
        except SpentError:
            raise
        except AgentError as error:
            problem = error
    assert problem is not None
    raise problem


def _again(task: Task, problem: AgentError) -> Task:
    note = (
        f"\n\nYour last answer could not be used: {problem.message}\nAnswer again, with one JSON document as asked.\n"
    )
    return replace(task, prompt=task.prompt + note) if problem.state == "malformed" else task


def _once(driver: Driver, desk: Desk, task: Task, number: int) -> dict[str, Any]:
    records = desk.records
    with _LOCK:
        left_s = may_spend(desk)
        place = task.folder / f"{task.name.replace(' ', '-')}-{records.tries(number, task.name) + 1}"
        sandbox = desk.sandbox.name if driver.confined and desk.sandbox else "runs nothing itself"
        call = records.open(
            number=number, task=task.name, role=task.role, agent=driver.name, sandbox=sandbox, transcript=place
        )
    place.mkdir(parents=True, exist_ok=True)
    (place / "prompt.md").write_text(task.prompt, encoding="utf-8")
    asked = replace(task, folder=place, timeout_s=min(task.timeout_s, left_s))
    state, detail, usage, document = "cancelled", "", Usage(), None
    try:
        reply = driver.call(asked, desk)
        usage = reply.usage
        document = read(reply, task.answer, usage)
        if wrong := task.check(document):
            document = None
            raise AgentError(wrong, state="malformed", usage=usage)
        state = "answered"
        return document
    except AgentError as error:
        state, detail, usage = error.state, error.message, error.usage
        raise
    except Exception as error:
        state, detail = "failed", str(error)
        raise AgentError(f"{driver.name}: {error}") from error
    finally:
        with _LOCK:
            records.close(call, state, usage, detail=detail, reply=document)


def may_spend(desk: Desk) -> float:
    """The seconds that the next call may take. Raises SpentError where tokens, money or time are used up."""
    spent, limits = desk.records.spent(), desk.limits
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        raise SpentError(f"{spent.tokens} of {limits.tokens} tokens are used")
    if limits.cost_usd is not None and spent.cost_usd >= limits.cost_usd:
        raise SpentError(f"{spent.cost_usd:.2f} of {limits.cost_usd:.2f} dollars are spent")
    left_s = min(limits.call_s, desk.time_left_s())
    if left_s <= 0:
        raise SpentError("no time is left for another call")
    return left_s


def read(reply: Reply, answer: type[BaseModel], usage: Usage) -> dict[str, Any]:
    """The document of a reply, checked against its model. Raises AgentError (malformed) with what is wrong."""
    document = reply.document if reply.document is not None else find_json(reply.text)
    if document is None:
        shown = " ".join(reply.text.split())[-200:] or "nothing at all"
        raise AgentError(f"the answer holds no JSON document; it ends: {shown}", state="malformed", usage=usage)
    try:
        return answer.model_validate(document).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(str(part) for part in first["loc"]) or "the document"
        raise AgentError(f"{where}: {first['msg']}"[:500], state="malformed", usage=usage) from error


def find_json(text: str) -> dict[str, Any] | None:
    """The last JSON object in a text: agents like to think aloud before it."""
    decoder, found, position = json.JSONDecoder(parse_constant=_refuse), None, 0
    while (position := text.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        found = value
    return found


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")
