"""An incoming request: the JSON body, its caller, and the LoRA adapter that serves it.

    --use-lora                       every caller ─▶ `policy`
    --use-lora --adapter-per user    credential and user ─▶ `user-9f2c…`, which is also the source of the turn

The header `x-openclaw-user`, else the OpenAI field `user`, names a user under the request's credential. The adapter's
name is a hash of both: a client cannot reach another credential's adapters by naming its users, and neither value
appears in a log or a file name. A user without an adapter is served by the base model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime.config.sections import LoraConfig

from openclaw.api.exchange import bearer_of
from openclaw.requests.chat_request import Caller
from openclaw.requests.identity import identify

USER_HEADER = "x-openclaw-user"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request for a reply, before an endpoint parses it.

    Attributes:
        num_bytes: size of the raw body.
    """

    body: dict[str, Any]
    caller: Caller
    num_bytes: int = 0


def caller_of(lora: LoraConfig, headers: Mapping[str, str], body: Mapping[str, Any]) -> Caller:
    """The caller of a request; header names are lower-case.

    >>> caller_of(LoraConfig(use_lora=True, adapter_per="user"), {"authorization": "Bearer k1"}, {"user": "ada"})
    Caller(credential='k1', identity=Identity(name='ada', …), adapter='user-…', source='user-…')

    Raises:
        RequestError: the client names a turn type that does not exist.
    """
    credential, identity = bearer_of(headers), identify(headers, body)
    if lora.served_per != "user":
        return Caller(credential, identity, adapter=lora.shared_adapter)
    user = headers.get(USER_HEADER) or body.get("user")
    named = f"{credential}\0{user if isinstance(user, str) else ''}"
    name = "user-" + hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
    return Caller(credential, identity, adapter=lora.adapter_of(name), source=name)
