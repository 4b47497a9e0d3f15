"""From the engine's thread to the handlers: one wake a step, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vibeserve.engine.errors import QueueFullError
from vibeserve.engine.http.bridge import Bridge, Inbox
from vibeserve.engine.types import Output, Request


def output(name: str, token: int, reason: str | None = None) -> Output:
    return Output(name, (token,), None, reason, 1, 0)  # type: ignore[arg-type]


class Engine:
    """Notes what it is told; refuses when told to."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.aborted: list[str] = []
        self.full = False

    def submit(self, request: Request) -> None:
        if self.full:
            raise QueueFullError("full")
        self.submitted.append(request.id)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


async def taken(inbox: Inbox) -> list[int] | None:
    """What can be taken now; None where the handler would sleep."""
    try:
        async with asyncio.timeout(0.01):
            return [one.token_ids[0] for one in await inbox.take()]
    except TimeoutError:
        return None


def test_outputs_come_at_once_or_in_packs():
    async def check() -> None:
        one = Inbox()
        assert await taken(one) is None
        one.put(output("a", 1))
        one.put(output("a", 2))
        assert await taken(one) == [1, 2]
        four = Inbox(4)
        four.put(output("a", 1))
        assert await taken(four) == [1]
        for token in (2, 3, 4):
            four.put(output("a", token))
            assert await taken(four) is None
        four.put(output("a", 5))
        assert await taken(four) == [2, 3, 4, 5]
        four.put(output("a", 6))
        four.put(output("a", 7, "length"))
        assert await taken(four) == [6, 7]

    asyncio.run(check())


def test_a_sleeping_handler_is_woken_by_outputs_and_by_the_client_leaving():
    async def check() -> None:
        inbox = Inbox()
        sleeping = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        inbox.put(output("a", 1))
        assert len(await sleeping) == 1
        sleeping = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        inbox.leave()
        assert await sleeping == []
        assert inbox.gone

    asyncio.run(check())


def test_steps_from_another_thread_arrive_in_order_and_complete():
    async def check() -> None:
        bridge, engine = Bridge(asyncio.get_running_loop()), Engine()
        inboxes = {name: Inbox() for name in "abc"}
        for name, inbox in inboxes.items():
            bridge.submit(engine, Request(name, (1,)), inbox)  # type: ignore[arg-type]

        def steps() -> None:
            for at in range(2000):
                bridge.on_step([output(name, at, "length" if at == 1999 else None) for name in "abc"])

        thread = threading.Thread(target=steps)
        thread.start()
        for inbox in inboxes.values():
            seen: list[int] = []
            while len(seen) < 2000:
                seen += [one.token_ids[0] for one in await inbox.take()]
            assert seen == list(range(2000))
        thread.join()
        assert bridge.open_requests == 0
        bridge.abort(engine, "a")  # type: ignore[arg-type]
        assert engine.aborted == []

    asyncio.run(check())


def test_a_refused_request_leaves_nothing_behind_and_a_given_up_one_is_aborted():
    async def check() -> None:
        bridge, engine = Bridge(asyncio.get_running_loop()), Engine()
        engine.full = True
        with pytest.raises(QueueFullError):
            bridge.submit(engine, Request("a", (1,)), Inbox())  # type: ignore[arg-type]
        assert bridge.open_requests == 0
        engine.full = False
        inbox = Inbox()
        bridge.submit(engine, Request("b", (1,)), inbox)  # type: ignore[arg-type]
        bridge.abort(engine, "b")  # type: ignore[arg-type]
        bridge.on_step([output("b", 1)])
        await asyncio.sleep(0)
        assert engine.aborted == ["b"]
        assert await taken(inbox) is None

    asyncio.run(check())


def test_a_step_after_the_loop_has_closed_is_dropped():
    loop = asyncio.new_event_loop()
    bridge = Bridge(loop)
    loop.close()
    bridge.on_step([output("a", 1)])
