"""Errors as the OpenAI API tells them: `{"error": {"message", "type", "param", "code"}}` with a status code."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ApiError(Exception):
    """An answer that is an error. `param` names the field at fault; `code` is a stable word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The JSON document of the answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def invalid(message: str, param: str | None, code: str | None = "invalid_value") -> ApiError:
    """400: a field has a value that cannot be served."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, what: str | None = None) -> ApiError:
    """400: a field of the API that this server does not have."""
    return invalid(f"{what or f'`{param}`'} is not supported by this server.", param, "unsupported_value")


def too_large(limit_bytes: int) -> ApiError:
    """413: the body is over the limit; the connection ends, since the rest of it is not read."""
    message = f"The request body is larger than {limit_bytes} bytes."
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})


def overloaded(message: str, retry_after_s: int, code: str = "queue_full") -> ApiError:
    """429: more work than the queue takes, or than can be begun in time; try again later."""
    return ApiError(429, message, kind="rate_limit_error", code=code, headers={"retry-after": str(retry_after_s)})


def unavailable(message: str, code: str, retry_after_s: int = 1) -> ApiError:
    """503: not ready yet, ending, or broken."""
    return ApiError(503, message, kind="server_error", code=code, headers={"retry-after": str(retry_after_s)})
