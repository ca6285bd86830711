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


def behind_token(application: ASGIApp, token: str) -> ASGIApp:
    """The application, for requests that bring the token."""
    expected = f"Bearer {token}".encode()

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope.get("headers", ()) if name == b"authorization"), b"")
        if scope["type"] == "http" and scope["path"] != "/health" and not hmac.compare_digest(given, expected):
            return await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
        await application(scope, receive, send)

    return door


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
        behind_token(application, token) if token else application,
        host=args.host,
        port=args.port,
        log_level=log_level,
        access_log=False,
        timeout_graceful_shutdown=grace_s,
    )
