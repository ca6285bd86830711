"""Whose adapter answers a request.

    --use-lora                       everybody ─▶ `policy`
    --use-lora --adapter-per user    credential and user ─▶ `user-9f2c…`, which is also the source of the turn

A user is whoever a client says it speaks for (`x-openclaw-user`, else the OpenAI field `user`) under the credential
that it sends. The name of an adapter is a hash of both: nobody reaches another credential's adapters by naming its
users, and neither stands in a log or a file name. Somebody new has no adapter yet and is answered by the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime.config.sections import LoraConfig

from openclaw.api.exchange import bearer_of

USER_HEADER = "x-openclaw-user"


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes.

    Attributes:
        adapter: whose adapter answers; empty = the base.
        source: whose turns are trained together with this one; empty = the credential's.
    """

    adapter: str = ""
    source: str = ""


def route(lora: LoraConfig, headers: Mapping[str, str], body: Mapping[str, Any]) -> Route:
    """The way of one request; names of headers in lower case.

    >>> route(LoraConfig(use_lora=True, adapter_per="user"), {"authorization": "Bearer k1"}, {"user": "ada"})
    Route(adapter='user-…', source='user-…')
    """
    if lora.served_per != "user":
        return Route(adapter=lora.shared_adapter)
    user = headers.get(USER_HEADER) or body.get("user")
    named = f"{bearer_of(headers)}\0{user if isinstance(user, str) else ''}"
    name = "user-" + hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
    return Route(adapter=lora.adapter_of(name), source=name)
