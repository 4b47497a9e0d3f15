"""The application: routes, readiness, and errors in the API's shape, as plain ASGI.

There are few routes and one hot path, so no web framework stands between: see `docs/engine.md` for what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import msgspec

from ..errors import EngineError
from . import openapi
from .answer import Answering, Job
from .asgi import ClientLeftError, Receive, Scope, Send, read_body, respond
from .bridge import Bridge, Engine, OnStep
from .errors import ApiError, unavailable
from .metrics import CONTENT_TYPE, HttpCounters, render
from .plan import Plan, ServedModel, plan_chat, plan_completion
from .schema import ChatRequest, CompletionRequest, parse
from .settings import HttpSettings
from .tool_wire import chat_wire
from .wire import CompletionWire, Wire

log = logging.getLogger(__name__)
# A longer body, or one with a grammar to compile, is read, checked and tokenised in a thread, so that the stream of others does not stand still.
LONG_BODY_BYTES = 16 * 1024
SWEEP_S = 1.0

Loaded = tuple[Engine, ServedModel]
Load = Callable[[OnStep], Loaded]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


class State(Enum):
    """Where the server is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class App:
    """The server behind the socket. `load` makes the engine (not started) and the model; it runs in a thread.

    `on_failure(message)` is called in the event loop when loading fails or the engine dies.
    """

    def __init__(self, load: Load, settings: HttpSettings, on_failure: Callable[[str], None] | None = None):
        self.settings = settings
        self.state = State.STARTING
        self.failure: str | None = None
        self.counters = HttpCounters()
        self.bridge: Bridge | None = None
        self.engine: Engine | None = None
        self.model: ServedModel | None = None
        self._load = load
        self._on_failure = on_failure
        self._answering = Answering(self.counters)
        self._tasks: list[asyncio.Task[None]] = []
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP exchange, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        loop = asyncio.get_running_loop()
        self.bridge = Bridge(loop)
        self._tasks = [loop.create_task(self._start(self.bridge)), loop.create_task(self._sweep())]
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in self._tasks:
            task.cancel()
        if self.engine is not None:
            await asyncio.to_thread(self.engine.stop)
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self, bridge: Bridge) -> None:
        """Load the model while `/health` says that it is not ready yet."""
        began = time.perf_counter()
        try:
            engine, model = await self._in_daemon_thread(bridge)
        except EngineError as error:
            self._fail(f"the model could not be loaded: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            return
        except (OSError, ValueError) as error:
            self._fail(f"the model could not be loaded: {error}")
            return
        except Exception as error:
            self._fail(f"the model could not be loaded: {type(error).__name__}: {error}", error)
            return
        engine.start()
        self.engine, self.model = engine, model
        if self.state is State.STARTING:
            self.state = State.READY
        log.info("ready: %s after %.1f s", model.name, time.perf_counter() - began)

    def _in_daemon_thread(self, bridge: Bridge) -> asyncio.Future[Loaded]:
        """Load in a thread that does not keep the process: it may be told to end while it loads."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[Loaded] = loop.create_future()

        def settle(result: Loaded | None, error: Exception | None) -> None:
            if loaded.cancelled():
                return
            if error is not None:
                loaded.set_exception(error)
            elif result is not None:
                loaded.set_result(result)

        def work() -> None:
            outcome: tuple[Loaded | None, Exception | None]
            try:
                engine, model = self._load(bridge.on_step)
                model.tokenizer.warm()
                outcome = (engine, model), None
            except Exception as error:
                outcome = None, error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, *outcome)

        threading.Thread(target=work, name="vibeserve-load", daemon=True).start()
        return loaded

    def _fail(self, message: str, error: BaseException | None = None) -> None:
        self.state, self.failure = State.FAILED, message
        log.error("%s", message, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(message)

    async def _sweep(self) -> None:
        """Once a second: notice an engine that died."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if self.engine is not None and self.engine.failure is not None and self.state is not State.FAILED:
                self._fail(self.engine.failure)

    def drain(self) -> None:
        """Take no new work; what is in flight goes on."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        status = 499  # nobody was there to be answered

        async def counted(message: Any) -> None:
            nonlocal started, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
            await send(message)

        route = scope["path"]
        self.counters.in_flight += 1
        try:
            methods = self._methods(route)
            await self._dispatch(methods, scope, receive, counted)
        except ClientLeftError:
            self.counters.disconnects += 1
        except ApiError as error:
            await respond(counted, error.body, status=error.status, headers=error.headers)
        except asyncio.CancelledError:
            self.counters.disconnects += 1
            if not started:
                ended = unavailable("The server is shutting down.", "shutting_down")
                await respond(counted, ended.body, status=ended.status, headers=ended.headers)
            raise
        except Exception:
            log.exception("answering %s failed", route)
            if started:
                raise
            mistake = ApiError(500, "The server failed; its log says why.", kind="server_error", code="internal")
            await respond(counted, mistake.body, status=500)
        finally:
            self.counters.in_flight -= 1
            self.counters.requests[route if route in self._routes else "other", status] += 1

    def _methods(self, path: str) -> dict[str, Handler]:
        if path in self._routes:
            return self._routes[path]
        if path.startswith("/v1/models/"):
            return {"GET": self._one_model}
        raise ApiError(404, f"There is no {path[:200]!r} here.", code="not_found")

    async def _dispatch(self, methods: dict[str, Handler], scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
            message = f"{scope['method']} is not allowed here; use {allowed}."
            raise ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})
        await handler(scope, receive, send)

    def _ready(self) -> tuple[Engine, ServedModel, Bridge]:
        """What answers need. Raises ApiError 503 while it is not there."""
        if self.state is State.READY and self.engine and self.model and self.bridge:
            return self.engine, self.model, self.bridge
        if self.state is State.DRAINING:
            raise unavailable("The server is shutting down.", "shutting_down")
        if self.state is State.FAILED:
            raise unavailable(f"The server cannot answer: {self.failure}.", "engine_failed", 30)
        raise unavailable("The model is still being loaded.", "not_ready")

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        def plan(body: bytes, model: ServedModel) -> Plan:
            return plan_completion(parse(body, CompletionRequest), model)

        await self._generate(scope, receive, send, plan, CompletionWire)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        def plan(body: bytes, model: ServedModel) -> Plan:
            return plan_chat(parse(body, ChatRequest), model)

        await self._generate(scope, receive, send, plan, chat_wire)

    async def _generate(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        make_plan: Callable[[bytes, ServedModel], Plan],
        make_wire: Callable[[str, int, ServedModel, Plan], Wire],
    ) -> None:
        arrival = time.perf_counter()
        settings = self.settings
        body = await read_body(scope, receive, limit_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
        engine, model, bridge = self._ready()
        if len(body) > LONG_BODY_BYTES or b'"response_format"' in body or b'"tools"' in body:
            plan = await asyncio.to_thread(make_plan, body, model)
        else:
            plan = make_plan(body, model)
        job = Job(plan, model, engine, bridge, arrival, settings.stream_interval)
        wire = make_wire(job.id, int(time.time()), model, plan)
        await self._answering.run(job, wire, receive, send, arrival)
        self.counters.request_s.observe(time.perf_counter() - arrival)

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, model, _ = self._ready()
        await respond(send, msgspec.json.encode({"object": "list", "data": [_model_card(model)]}))

    async def _one_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, model, _ = self._ready()
        name = scope["path"].removeprefix("/v1/models/")
        if name not in model.names:
            message = f"The model {name[:200]!r} does not exist; this server has {model.name!r}."
            raise ApiError(404, message, param="model", code="model_not_found")
        await respond(send, msgspec.json.encode(_model_card(model)))

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if self.state is State.READY else 503
        document: dict[str, Any] = {"status": self.state.value}
        if self.failure is not None:
            document["error"] = self.failure
        await respond(send, msgspec.json.encode(document), status=status)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        stats = None if self.engine is None else self.engine.stats()
        body = render(stats, self.counters, ready=self.state is State.READY)
        await respond(send, body, content_type=CONTENT_TYPE)

    async def _openapi(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, openapi.document())


def _model_card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "vibeserve",
        "max_model_len": model.limits.max_model_len,
    }
