"""What has come in: a JSON object, who sent it, and whose adapter answers.

    --use-lora                       everybody ─▶ `policy`
    --use-lora --adapter-per user    credential and user ─▶ `user-9f2c…`, which is also the source of the turn

A user is named by the header `x-openclaw-user`, else by the OpenAI field `user`, under the credential of the request.
The name of an adapter is a hash of both: no client reaches another credential's adapters by naming its users, and
neither stands in a log or a file name. A new user has no adapter yet and is answered by the base.
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
    """A request for a reply, before an endpoint reads it.

    Attributes:
        num_bytes: of the body, as it came.
    """

    body: dict[str, Any]
    caller: Caller
    num_bytes: int = 0


def caller_of(lora: LoraConfig, headers: Mapping[str, str], body: Mapping[str, Any]) -> Caller:
    """Who asks; names of headers in lower case.

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
