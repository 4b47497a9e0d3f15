"""Runs a plan: submits its requests, and sends what comes back, whole or as a stream."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Iterator

from ..errors import OverloadedError, QueueFullError, RequestError, StoppedError
from ..types import Output, Request
from .asgi import ClientLeftError, Receive, Send, head, respond
from .bridge import Bridge, Engine, Inbox
from .choices import Choice, Delta
from .errors import ApiError, invalid, overloaded, unavailable
from .metrics import HttpCounters
from .plan import Plan, ServedModel
from .wire import Wire, joined, usage_of

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Job:
    """One HTTP request's work in the engine, from submission to its end or the client's leaving."""

    def __init__(
        self, plan: Plan, model: ServedModel, engine: Engine, bridge: Bridge, arrival: float, stream_interval: int = 1
    ):
        self.plan = plan
        self.id = secrets.token_hex(12)
        self.inbox = Inbox(self._wake_every(stream_interval))
        self._engine = engine
        self._bridge = bridge
        self._arrival = arrival
        self.choices = [
            Choice(at, plan.prompts[at // plan.n], plan, model.tokenizer) for at in range(len(plan.prompts) * plan.n)
        ]
        self._by_id = {f"{self.id}-{choice.index}": choice for choice in self.choices}
        self._open = len(self.choices)

    def _wake_every(self, stream_interval: int) -> int:
        """A stop string must be seen at once, so that its slot is free; else a whole answer is looked at when it ends."""
        if self.plan.stops:
            return 1
        return stream_interval * len(self.plan.prompts) * self.plan.n if self.plan.stream else sys.maxsize

    @property
    def needs_engine(self) -> bool:
        """An answer of no tokens whose prompt is not scored is known at once."""
        return not (self.plan.nothing_to_sample and not self.plan.params.prompt_logprobs)

    @property
    def complete(self) -> bool:
        """Whether every choice has its end."""
        return self._open == 0

    def submit(self) -> None:
        """Queue all choices, or none. Raises ApiError 400, 429 or 503."""
        try:
            for name, choice in self._by_id.items():
                params = self.plan.params_of(choice.index)
                request = Request(
                    name,
                    choice.prompt.ids,
                    params,
                    self._arrival,
                    self.plan.prediction_ids,
                    self.plan.grammar,
                    self.plan.priority,
                )
                self._bridge.submit(self._engine, request, self.inbox)
        except RequestError as error:
            self.give_up()
            raise invalid(f"{error.message}.", self.plan.fields.get(error.field, error.field)) from error
        except OverloadedError as error:
            self.give_up()
            raise overloaded(f"Too much to do: {error.message}.", error.retry_after_s, "overloaded") from error
        except QueueFullError as error:
            self.give_up()
            raise overloaded(f"The queue is full: {error.message}.", self._retry_after_s()) from error
        except StoppedError as error:
            self.give_up()
            raise unavailable(f"{error.message}.", "shutting_down") from error

    def _retry_after_s(self) -> int:
        """A rough guess: the longer the queue for each place, the longer to stay away."""
        stats = self._engine.stats()
        return max(1, min(30, stats.waiting // max(stats.max_batch, 1)))

    def give_up(self) -> None:
        """Abort whatever has not ended; the engine frees it within a step."""
        for name in self._by_id:
            self._bridge.abort(self._engine, name)

    def take(self, outputs: list[Output]) -> Iterator[tuple[Choice, Delta]]:
        """What the outputs add, choice by choice. Raises ApiError where the engine failed."""
        for output in outputs:
            choice = self._by_id[output.request_id]
            delta = choice.push(output)
            if choice.failure is not None:
                self.give_up()
                raise unavailable(f"The answer could not be completed: {choice.failure}.", "engine_failed")
            if delta is None:
                continue
            if delta.finish_reason is not None:
                self._open -= 1
                self._bridge.abort(self._engine, output.request_id)
            yield choice, delta

    def only_prompts(self) -> Iterator[tuple[Choice, Delta]]:
        """The whole answer where the engine is not needed."""
        for choice in self.choices:
            yield choice, choice.only_prompt()
        self._open = 0


def watch(receive: Receive, inbox: Inbox) -> asyncio.Task[None]:
    """A task that tells the inbox when the client has left."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    def left(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            inbox.leave()

    task = asyncio.get_running_loop().create_task(until_gone())
    task.add_done_callback(left)
    return task


class Answering:
    """Sends answers, and counts them."""

    def __init__(self, counters: HttpCounters):
        self._counters = counters

    async def run(self, job: Job, wire: Wire, receive: Receive, send: Send, arrival: float) -> None:
        """Submit and answer. Raises ApiError before anything was sent, ClientLeftError when the client left."""
        if job.needs_engine:
            job.submit()
        watcher = watch(receive, job.inbox)
        try:
            if job.plan.stream:
                await self._stream(job, wire, send, arrival)
            else:
                await self._whole(job, wire, send, arrival)
        finally:
            job.give_up()
            watcher.cancel()

    async def _whole(self, job: Job, wire: Wire, send: Send, arrival: float) -> None:
        deltas: list[list[Delta]] = [[] for _ in job.choices]
        if not job.needs_engine:
            for choice, delta in job.only_prompts():
                deltas[choice.index].append(delta)
        first = True
        while not job.complete:
            outputs = await job.inbox.take()
            if job.inbox.gone:
                raise ClientLeftError
            if first:
                self._counters.first_token_s.observe(time.perf_counter() - arrival)
                first = False
            for choice, delta in job.take(outputs):
                deltas[choice.index].append(delta)
        await respond(send, wire.whole(job.choices, deltas))

    async def _stream(self, job: Job, wire: Wire, send: Send, arrival: float) -> None:
        await send(head(200, "text/event-stream; charset=utf-8", STREAM_HEADERS))
        opened: set[int] = set()
        first = job.needs_engine
        try:
            while True:
                if job.needs_engine:
                    outputs = await job.inbox.take()
                    if job.inbox.gone:
                        raise ClientLeftError
                    if first:
                        self._counters.first_token_s.observe(time.perf_counter() - arrival)
                        first = False
                    new = job.take(outputs)
                else:
                    new = job.only_prompts()
                body = self._events(job, wire, new, opened)
                ended = job.complete
                if body or ended:
                    await send({"type": "http.response.body", "body": body, "more_body": not ended})
                if ended:
                    return
        except ApiError as error:
            # The status has gone out: the stream says what happened, and ends without [DONE].
            await send({"type": "http.response.body", "body": b"data: " + error.body + b"\n\n", "more_body": False})

    def _events(self, job: Job, wire: Wire, new: Iterator[tuple[Choice, Delta]], opened: set[int]) -> bytes:
        """Everything new as one piece of the stream; several deltas of a choice become one event."""
        gathered: dict[int, list[Delta]] = {}
        for choice, delta in new:
            gathered.setdefault(choice.index, []).append(delta)
        parts = []
        for index, deltas in gathered.items():
            choice = job.choices[index]
            event = wire.chunk(
                choice,
                deltas[0] if len(deltas) == 1 else joined(deltas),
                usage_of(job.choices, job.plan) if job.plan.usage_in_chunks else None,
            )
            if event:
                if index not in opened:
                    opened.add(index)
                    parts.append(wire.opening(choice))
                parts.append(event)
        if job.complete:
            parts.append(wire.last(job.choices))
        return b"".join(parts)
