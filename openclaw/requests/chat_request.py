"""Defines the chat request, the one form that generation and capture work on, independent of the wire format.

body ─ an endpoint of openclaw/api ─▶ ChatRequest ─▶ prompt ─▶ engine ─▶ stored turn
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.types import Message, SamplingParams

from openclaw.requests.canonical import CanonicalRequest
from openclaw.requests.identity import Identity


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes:
        credential: the API key as sent; only a hash of it is kept.
        identity: the client's claims: its session and the kind of turn.
        adapter: the LoRA adapter that serves it; empty for the base model.
        source: turns of one source are trained together; empty for the credential's.
    """

    credential: str = ""
    identity: Identity = Identity()
    adapter: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation for the model to continue.

    Attributes:
        messages: OpenAI chat messages, validated by `slime.messages.read_message`.
        conversation: the same in canonical form.
        tools: OpenAI tool definitions.
        offers_tools: whether the model may call them; False with `tool_choice: "none"`.
        sampling: its `max_new_tokens` is the client's value or the default, not yet capped by the context window.
        stream: whether the client requested a stream.
        template_options: variables for the chat template, e.g. `{"enable_thinking": False}`.
        num_bytes: size of the raw body; 0 if unknown.
    """

    messages: Sequence[Message]
    conversation: CanonicalRequest
    sampling: SamplingParams
    caller: Caller = Caller()
    tools: Sequence[dict[str, Any]] = ()
    offers_tools: bool = False
    stream: bool = False
    template_options: Mapping[str, Any] = field(default_factory=dict)
    num_bytes: int = 0
