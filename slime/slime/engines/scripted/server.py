"""The scripted engine over HTTP: the application that all our engines have, and faults that only a transport can show.

Besides the dialect there is /faults: POST {"fault": "cut", "times": 2, "after": 1} plans some, GET tells which fired.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slime.engines.dialect.answers import DONE, error_body
from slime.engines.dialect.requests import Call
from slime.engines.http import EngineApp, posted, reply, respond
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.faults import Fault, Faults, InjectedFault

UNFINISHED = b'{"text": "unfini'
"""What BAD_JSON answers."""
_STATUS = {Fault.HTTP_500: 500, Fault.HTTP_503: 503}


class ScriptedApp(EngineApp):
    """The ASGI application of a scripted engine."""

    def __init__(self, core: ScriptedCore) -> None:
        super().__init__(core, _fault_routes(core.faults))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except InjectedFault as error:
            await _show(error.fault, send, is_begun=error.is_begun)


async def _show(fault: Fault, send: Send, *, is_begun: bool) -> None:
    if fault in _STATUS:
        await respond(send, error_body(f"injected HTTP {_STATUS[fault]}"), _STATUS[fault])
    elif fault is Fault.BAD_JSON and is_begun:
        await send({"type": "http.response.body", "body": b"data: " + UNFINISHED + b"\n\n" + DONE})
    elif fault is Fault.BAD_JSON:
        await respond(send, UNFINISHED)
    elif not is_begun:
        # More is promised than comes; the server closes the connection when the application leaves like this.
        headers = [(b"content-type", b"application/json"), (b"content-length", b"1000000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"text": "', "more_body": True})


class PlanCall(Call):
    """A POST /faults."""

    fault: Fault
    times: int = 1
    after: int = 0


def _fault_routes(plans: Faults) -> list[Route]:
    async def faults(call: PlanCall) -> Response:
        plans.plan(call.fault, call.times, call.after)
        return reply({})

    async def fired(request: Request) -> Response:
        return reply({"fired": {str(fault): times for fault, times in plans.fired.items()}})

    return [Route("/faults", fired), posted(PlanCall, faults)]
