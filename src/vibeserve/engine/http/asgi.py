"""The little of ASGI that the front needs: read a body within limits, send a whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from .errors import ApiError, invalid, too_large

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientLeftError(Exception):
    """The connection ended before there was an answer: nobody is left to be told anything."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A request header, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, *, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises ApiError 413 (too long, also when only declared so), 408 (too slow), ClientLeftError."""
    declared = header(scope, b"content-length")
    if declared is not None and (not declared.isdigit() or int(declared) > limit_bytes):
        raise too_large(limit_bytes)
    encoding = header(scope, b"content-encoding")
    if encoding not in (None, b"identity"):
        raise invalid("The request body is compressed; send it plain.", None, "unsupported_encoding")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit_bytes:
                    raise too_large(limit_bytes)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        text = f"The request body did not arrive within {timeout_s:g} s."
        raise ApiError(408, text, code="request_timeout", headers={"connection": "close"}) from error


def head(status: int, content_type: str, headers: Mapping[str, str], length: int | None = None) -> Message:
    """The start of an answer."""
    pairs = [(b"content-type", content_type.encode())]
    if length is not None:
        pairs.append((b"content-length", str(length).encode()))
    pairs += [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


async def respond(
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send an answer in one piece."""
    await send(head(status, content_type, headers or {}, len(body)))
    await send({"type": "http.response.body", "body": body, "more_body": False})
