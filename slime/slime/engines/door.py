"""An engine's door: every path but /health wants the token that its owner drew for it, as SGLang's `--api-key` does.

Without one any local user, and any page in a browser, could pause the engine or have it load other weights.
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_OPEN = ("/health",)
_REFUSAL = b'{"error":"Unauthorized"}'


class Door:
    """An ASGI application behind a token.

    >>> application = Door(application, token)
    """

    def __init__(self, application: Application, token: str) -> None:
        self._application = application
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN and not self._is_known(scope):
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_REFUSAL)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
            return
        await self._application(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected)


def behind_door(application: Any, *, token_from_stdin: bool) -> Any:
    """The application behind the token that is the first line of standard input, or as it is.

    Neither `ps` nor the environment of the process shows what comes that way.
    """
    token = sys.stdin.readline().strip() if token_from_stdin else ""
    return Door(application, token) if token else application
