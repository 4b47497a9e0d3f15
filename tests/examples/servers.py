"""Fake servers for the load client: honest, cheating, broken; all on asyncio in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Ask:
    """One request as a fake server sees it."""

    body: dict[str, Any]
    writer: asyncio.StreamWriter
    number: int

    @property
    def count(self) -> int:
        """Tokens asked for."""
        return int(self.body["max_tokens"])

    @property
    def prompt(self) -> str:
        """The prompt under the byte tokenizer's chat template."""
        if "messages" in self.body:
            return "".join(f"{m['role']}: {m['content']}\n" for m in self.body["messages"]) + "assistant:"
        return str(self.body["prompt"])

    def answer(self, count: int | None = None) -> str:
        """A plausible answer: the end of the prompt, which tells of its sentinel."""
        count = self.count if count is None else count
        text = self.prompt.replace("assistant:", "").strip()
        return (text * (count // len(text) + 1))[-count:] if count else ""

    async def chunk(self, data: bytes) -> None:
        """One piece of a chunked body."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, text: str, ids: list[int] | None = None, reason: str | None = None, **extra: Any) -> None:
        """One event with some text."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        choice |= {"delta": {"content": text}} if "messages" in self.body else {"text": text}
        if ids is not None:
            choice["token_ids"] = ids
        await self.chunk(b"data: " + json.dumps({"choices": [choice], **extra}).encode() + b"\n\n")

    async def end(self, completion: int | None, prompt: int | None = None, done: bool = True) -> None:
        """Usage, [DONE], the end of the body."""
        if completion is not None:
            used = {
                "prompt_tokens": len(self.prompt.encode()) if prompt is None else prompt,
                "completion_tokens": completion,
            }
            await self.chunk(b"data: " + json.dumps({"choices": [], "usage": used}).encode() + b"\n\n")
        if done:
            await self.chunk(b"data: [DONE]\n\n")
        await self.chunk(b"")


Behave = Callable[[Ask], Awaitable[None]]


async def honest(ask: Ask, *, size: int = 4, pause_s: float = 0.0, ids: bool = True, text: str | None = None) -> None:
    """Everything as it should be, `size` tokens an event."""
    text = ask.answer() if text is None else text
    ask.writer.write(HEAD)
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        if pause_s:
            await asyncio.sleep(pause_s)
        await ask.event(piece, list(piece.encode()) if ids else None, "length" if at + size >= len(text) else None)
    await ask.end(len(text))


@contextmanager
def serving(behave: Behave) -> Iterator[str]:
    """Serve with `behave` on a free port; gives the URL."""
    started: list[int] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    numbers = iter(range(1_000_000))

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                if head.startswith(b"GET"):
                    data = b'{"data": [{"id": "fake"}]}'
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                        % (len(data), data)
                    )
                else:
                    await behave(Ask(body, writer, next(numbers)))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        started.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        server.close()
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{started[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
