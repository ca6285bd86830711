"""What a client asks for, in the one form that generation and capture know, whichever wire format it was written in.

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
    """Who asks.

    Attributes:
        credential: the API key as it was sent; only a hash of it is kept.
        identity: what the client says about itself: which session it is in, what kind of turn this is.
        adapter: whose adapter answers; empty is the base.
        source: whose turns are trained together with this one; empty is the credential's.
    """

    credential: str = ""
    identity: Identity = Identity()
    adapter: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation that the model is to continue.

    Attributes:
        messages: OpenAI chat messages, checked by `slime.messages.read_message`.
        conversation: the same as matching reads it.
        tools: OpenAI tool definitions.
        offers_tools: whether the model may call them; not with `tool_choice: "none"`.
        sampling: its `max_new_tokens` is the client's wish or the default, not yet cut to the context window.
        stream: the reply is wanted as it is sampled.
        template_options: variables for the chat template, e.g. `{"enable_thinking": False}`.
        num_bytes: of the body, as it came; 0 where that is not known.
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
