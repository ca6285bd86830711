"""A client and a server in a few lines: what the capture tests talk with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from slime.types import Completion, Message, SamplingParams, Turn, TurnState, VersionSpan

from openclaw.conversations.index import ConversationIndex, Placement
from openclaw.replay import as_recorded
from openclaw.requests.turn_ids import tool_call_id

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def calling(placement: Placement, *arguments: str, text: str = "") -> Message:
    """A reply that calls `run` once for each argument string, with ids that encode its turn."""
    calls = [
        {
            "id": tool_call_id(placement.turn_id, number),
            "type": "function",
            "function": {"name": "run", "arguments": written},
        }
        for number, written in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


class Server:
    """An index with a clock and a memory of the turns that would be in the store."""

    def __init__(self, index: ConversationIndex | None = None) -> None:
        self.index = index or ConversationIndex()
        self.stored: list[Turn] = []
        self._requests: dict[str, tuple[tuple[Message, ...], float]] = {}
        self._clock = itertools.count(1_800_000_000)

    def begin(
        self,
        messages: Sequence[Message],
        *,
        headers: Mapping[str, str] | None = None,
        credential: str = "key",
        tools: bool = True,
        endpoint: str = CHAT,
        **body: Any,
    ) -> Placement:
        body = {"model": "m", "messages": list(messages), **({"tools": TOOLS} if tools else {}), **body}
        request = as_recorded(endpoint, headers or {}, body, credential, float(next(self._clock)))
        placement = self.index.begin(request)
        self._requests[placement.turn_id] = tuple(body.get("messages") or ()), request.arrived_at
        return placement

    def finish(self, placement: Placement, reply: Message, *, delivered: bool = True) -> None:
        messages, arrived_at = self._requests.pop(placement.turn_id)
        self.index.finish(placement, reply, delivered=delivered, ended_at=float(next(self._clock)))
        self.stored.append(
            Turn(
                turn_id=placement.turn_id,
                session_id=placement.session_id,
                parent_id=placement.parent_id,
                kind=placement.kind,
                messages=messages,
                prompt_ids=(1,),
                completion=Completion((2,), (-0.5,), "x", "stop", (VersionSpan(0, 0, 1),)),
                sampling=SamplingParams(),
                reply=reply,
                state=TurnState.SERVED if delivered else TurnState.ABORTED,
                retry_of=placement.retry_of,
                created_at=arrived_at,
                matching=placement.matching,
            )
        )

    def fail(self, placement: Placement) -> None:
        self._requests.pop(placement.turn_id)
        self.index.fail(placement, ended_at=float(next(self._clock)))

    def answer(self, messages: Sequence[Message], reply: str, **about: Any) -> Placement:
        """A request that is answered at once with a text."""
        placement = self.begin(messages, **about)
        self.finish(placement, assistant(reply))
        return placement

    def restart(self) -> None:
        """Forget everything and read the stored turns back."""
        self.index = ConversationIndex()
        self.index.restore(self.stored)
