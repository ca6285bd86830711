"""Who may ask: by which name the server is addressed, from which web page, in which format, with which key.

    Host ─▶ loopback names, the address that is bound, --allowed-hosts      else 403: DNS rebinding
    Origin ─▶ none (no browser), this very server, --allowed-origins        else 403: a page of another site
    Content-Type ─▶ application/json                                        else 415: a form needs no permission
    Authorization: Bearer, or x-api-key ─▶ the chat key; for feedback the admin key

A browser sends requests for any page it shows, to loopback too. It names the page's origin in every request that can
change something, asks before it sends `application/json` elsewhere, and keeps the page's own host name when that name
is made to point at 127.0.0.1. Each of the three checks closes one of these ways.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from openclaw.api.errors import ApiError
from openclaw.api.exchange import Exchange, bearer_of

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_ANY = "*"
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_MAX_AGE_S = b"600"
_ALLOWED_HEADERS = b"authorization, content-type, x-api-key, x-session-id, x-turn-type, x-session-done, x-openclaw-user"
_READABLE_HEADERS = b"x-openclaw-turn, x-openclaw-capture, retry-after"


class Gate:
    """Raises ApiError for what may not come in.

    Args:
        api_key: what chats need; any key, or none, does when empty.
        admin_key: what feedback needs; nobody may give any when empty.
        host: the address that is bound.
        allowed_hosts, allowed_origins: what is allowed besides; `*` is any.

    Attributes:
        has_admin_key: whether anybody may give feedback.
    """

    def __init__(
        self,
        *,
        api_key: str = "",
        admin_key: str = "",
        host: str = "127.0.0.1",
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        self._api_keys = _spellings(api_key)
        self._admin_keys = _spellings(admin_key)
        own = LOOPBACK_NAMES if host in LOOPBACK_NAMES else (*LOOPBACK_NAMES, host, socket.gethostname())
        self.has_admin_key = bool(admin_key)
        self._hosts = frozenset(name.strip().strip("[]").lower() for name in (*own, *allowed_hosts))
        self._origins = frozenset(origin.strip().rstrip("/").lower() for origin in allowed_origins)
        self._is_bound_to_all = host in _ANY_ADDRESS

    def check_source(self, exchange: Exchange) -> None:
        """Refuse a foreign name and a foreign page; let the browser show the answer to an allowed one."""
        headers = exchange.headers
        host = headers.get("host", "")
        if not self._is_host_allowed(host, exchange):
            raise ApiError(
                403, f"host {_shown(host)} is not served here; --allowed-hosts widens the list", code="host_not_allowed"
            )
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
                raise _foreign("of another site")
            return
        origin = origin.lower()
        if _ANY not in self._origins and origin not in self._origins and urlsplit(origin).netloc != host.lower():
            raise _foreign(_shown(origin))
        exchange.fixed_headers += [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _READABLE_HEADERS),
            (b"vary", b"origin"),
        ]

    def _is_host_allowed(self, host: str, exchange: Exchange) -> bool:
        if exchange.num_hosts > 1:
            return False
        if not host:
            return exchange.http_version == "1.0"  # no browser speaks it
        name = _without_port(host.lower())
        if name in self._hosts or _ANY in self._hosts:
            return True
        return self._is_bound_to_all and name == exchange.local_address  # an address, and no name, cannot be rebound

    def check_format(self, exchange: Exchange) -> None:
        """Refuse a body that is not said to be JSON: the formats of forms are sent without asking."""
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                415, f"send Content-Type: application/json, not {_shown(kind)}", code="unsupported_media_type"
            )

    def check_key(self, exchange: Exchange) -> None:
        """Refuse a chat without the chat key; the admin key does as well."""
        if self._api_keys and not _is_one_of(bearer_of(exchange.headers), (*self._api_keys, *self._admin_keys)):
            raise ApiError(
                401, "missing or wrong API key: send it as a bearer token or as x-api-key", code="invalid_api_key"
            )

    def check_admin_key(self, exchange: Exchange) -> None:
        """Refuse whoever has not the admin key: with the chat key, an agent would praise itself."""
        given = bearer_of(exchange.headers)
        if self._admin_keys and _is_one_of(given, self._admin_keys):
            return
        if self._api_keys and not _is_one_of(given, self._api_keys):
            raise ApiError(401, "missing or wrong key: feedback needs the admin key", code="invalid_api_key")
        raise ApiError(
            403,
            "feedback needs the admin key: OPENCLAW_ADMIN_KEY, else the one in admin.key beside the captured turns",
            code="admin_key_needed",
        )

    def preflight(self) -> list[tuple[bytes, bytes]]:
        """What an allowed page is told that asks what it may send."""
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", _ALLOWED_HEADERS),
            (b"access-control-max-age", _MAX_AGE_S),
        ]


def _foreign(page: str) -> ApiError:
    return ApiError(
        403, f"a page {page} may not use this server; --allowed-origins widens the list", code="origin_not_allowed"
    )


def _without_port(host: str) -> str:
    """`[::1]:8000` → `::1`; `localhost:8000` → `localhost`."""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name if not port or port.startswith(":") else host
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _shown(text: str) -> str:
    return repr(text[:80])


def _spellings(key: str) -> tuple[bytes, ...]:
    """A key as clients put it on the wire: most send UTF-8, some Latin-1."""
    if not key:
        return ()
    spelt = {key.encode("utf-8")}
    if all(ord(character) < 256 for character in key):
        spelt.add(key.encode("latin-1"))
    return tuple(spelt)


def _is_one_of(given: str, keys: Iterable[bytes]) -> bool:
    """Compared in a time that says nothing of the keys. Header values are Latin-1 as the server library reads them."""
    raw = given.encode("latin-1", "replace")
    return any([hmac.compare_digest(raw, key) for key in keys])
