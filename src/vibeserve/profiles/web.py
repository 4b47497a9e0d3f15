"""What the API and the pages of the profile server share: JSON answers, errors, and who may ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vibeserve.base.errors import InputError, MissingError, VibeServeError
from vibeserve.base.jsonio import plain

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ApiError(Exception):
    """An answer that is no answer: HTTP status, code, message."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def json_response(value: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    return Response(text, status, media_type="application/json", headers={"x-content-type-options": "nosniff"})


def handlers() -> dict[Any, Callable[..., Any]]:
    """Errors as `{"error": {"code", "message"}}`."""
    from starlette.exceptions import HTTPException

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return json_response({"error": {"code": error.code, "message": error.message}}, error.status)

    async def on_own_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, VibeServeError)
        status = 404 if isinstance(error, InputError) else 501 if isinstance(error, MissingError) else 500
        return json_response({"error": {"code": error.code, "message": error.message, "hint": error.hint}}, status)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return json_response({"error": {"code": "http", "message": str(error.detail)}}, error.status_code)

    async def on_any(request: Request, error: Exception) -> Response:
        return json_response({"error": {"code": "internal", "message": f"{type(error).__name__}: {error}"}}, 500)

    return {ApiError: on_api_error, VibeServeError: on_own_error, HTTPException: on_http, Exception: on_any}


def guards() -> list[Any]:
    """Only this machine's own names as Host, and no request from another origin's page."""
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    async def same_origin(request: Request, call_next: Callable[[Request], Any]) -> Any:
        origin = request.headers.get("origin")
        if origin and request.method == "POST" and origin.split("://")[-1].split(":")[0].strip("[]") not in LOOPBACK:
            return json_response(
                {"error": {"code": "cross-origin", "message": "requests of other pages are refused"}}, 403
            )
        return await call_next(request)

    hosts = [*LOOPBACK, "[::1]"]
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
        Middleware(BaseHTTPMiddleware, dispatch=same_origin),
    ]
