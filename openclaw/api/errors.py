"""Error responses: maps every exception of a request to the OpenAI API's error object.

    {"error": {"message": "…", "type": "invalid_request_error", "param": "messages[2].content", "code": null}}

Exceptions become an `ApiError` at the HTTP boundary, and only there.
"""

from __future__ import annotations

import asyncio
import math

import orjson
from slime.errors import (
    CaptureIsOff,
    EngineRejected,
    EngineUnavailable,
    OpenClawError,
    RenderError,
    RequestError,
    StoreError,
    UnknownTurn,
)

_MAX_MESSAGE_CHARS = 1_000
INVALID = "invalid_request_error"
SERVER = "server_error"
ENGINE_ERROR = "engine_error"
_STATUS: dict[type[RequestError], int] = {UnknownTurn: 404, CaptureIsOff: 409}


class ApiError(OpenClawError):
    """An error response.

    Attributes:
        status: HTTP status.
        code: machine-readable, e.g. `context_length_exceeded`.
        param: the invalid field of the request, e.g. `tools[0].function.name`.
        retry_after_s: delay after which a retry may succeed; rounded up to whole seconds on the wire.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}…")
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after_s))).encode()))
        if self.code == ENGINE_ERROR:  # OpenAI clients honour it: a retry would make engines fail again
            headers.append((b"x-should-retry", b"false"))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 that names the invalid field."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_s: float = 1.0) -> ApiError:
    return ApiError(503, message, type=SERVER, code="overloaded", retry_after_s=retry_after_s)


def as_api_error(error: BaseException) -> ApiError:
    """The error response for a request that raised `error`."""
    match error:
        case asyncio.CancelledError():  # requests are cancelled only when the shutdown grace period ends
            return ApiError(503, "the server is shutting down", type=SERVER, code="shutting_down")
        case ApiError():
            return error
        case RequestError():
            status = _STATUS.get(type(error), 400)
            return ApiError(status, str(error), param=error.field or None, code=error.code or None)
        case RenderError():
            return bad_request(str(error), "messages")
        case EngineUnavailable():
            return ApiError(503, str(error), type=SERVER, code="engine_unavailable", retry_after_s=error.retry_after_s)
        case EngineRejected():
            code = "context_length_exceeded" if "context length" in str(error).lower() else None
            return ApiError(error.status if 400 <= error.status < 500 else 400, str(error), code=code)
        case StoreError():
            return ApiError(503, str(error), type=SERVER, code="store_unavailable", retry_after_s=2.0)
        case OpenClawError():
            return ApiError(502, str(error), type=SERVER, code=ENGINE_ERROR)
        case _:
            return ApiError(500, "internal error while handling the request; see the server log", type=SERVER)
