"""What our engines' processes share: their flags, their HTTP server, and the door, a token that every path but /health
wants, as SGLang's with `--api-key`.

Without one any local user, and any page in a browser, could pause the engine or have it load other weights.
"""

from __future__ import annotations

import hmac
import sys
from argparse import ArgumentParser, Namespace

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from slime.engines.dialect.versions import version_from_wire


class Door:
    """An ASGI application behind a token.

    >>> application = Door(application, token)
    """

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application = application
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health" and not self._is_known(scope):
            return await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
        await self._application(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected)


def engine_parser(prog: str, description: str | None) -> ArgumentParser:
    """The flags that `launch.prepare` gives to every engine of ours, and where it listens."""
    parser = ArgumentParser(prog, description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to bind")
    add("--port", type=int, default=30000, help="port to bind")
    add("--weight-version", type=version_from_wire, default=0, help="policy version of the weights given")
    add("--max-running-requests", type=int, default=0, help="sequences decoded together; 0: as many as come")
    add("--max-queued-requests", type=int, default=256, help="more than these are refused")
    add("--incremental-streaming-output", action="store_true", help="streams hold only what is new")
    add("--token-from-stdin", action="store_true", help="want the token that is the first line of it")
    return parser


def listen(application: ASGIApp, args: Namespace, *, log_level: str, grace_s: int) -> None:
    """Serve until told to stop, then let requests finish for `grace_s`.

    Neither `ps` nor the environment of the process shows a token that comes by standard input.
    """
    token = sys.stdin.readline().strip() if args.token_from_stdin else ""
    uvicorn.run(
        Door(application, token) if token else application,
        host=args.host,
        port=args.port,
        log_level=log_level,
        access_log=False,
        timeout_graceful_shutdown=grace_s,
    )
