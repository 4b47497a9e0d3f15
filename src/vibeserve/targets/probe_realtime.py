"""A tiny server of the realtime contract: a WebSocket at /v1/realtime whose answers are noise, drawn from the question or from nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RATE = 24000


@contextmanager
def realtime_server(*, varied: bool) -> Iterator[str]:
    """Serve on a free port of this machine; gives the URL. Needs aiohttp."""
    loop, ready, port = asyncio.new_event_loop(), threading.Event(), [0]
    stop = asyncio.Event()

    async def main() -> None:
        from aiohttp import web

        async def realtime(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse(max_msg_size=1 << 24)
            await socket.prepare(request)
            await _converse(socket, varied)
            return socket

        async def health(_: web.Request) -> web.Response:
            return web.json_response({"status": "ok"})

        app = web.Application()
        app.add_routes([web.get("/v1/realtime", realtime), web.get("/health", health)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port[0] = runner.addresses[0][1]
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


async def _converse(socket: Any, varied: bool) -> None:
    heard = b""
    async for message in socket:
        event = json.loads(message.data)
        if event["type"] == "input_audio_buffer.append":
            heard += event["audio"].encode()
        elif event["type"] == "response.create" and not heard:
            await socket.send_json({"type": "error", "error": {"message": "no audio"}})
        elif event["type"] == "response.create":
            generator = random.Random(hashlib.sha256(heard).hexdigest() if varied else "constant")
            for _ in range(10):
                loud = generator.randrange(1000, 30000).to_bytes(2, "little")
                delta = base64.b64encode(loud * (_RATE // 10)).decode()
                await socket.send_json({"type": "response.audio.delta", "delta": delta})
            await socket.send_json({"type": "response.done"})
            heard = b""
