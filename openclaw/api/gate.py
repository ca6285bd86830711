"""Access control: checks a request's host, origin, content type and API key.

    Host ─▶ loopback names, the bound address, --allowed-hosts              else 403: DNS rebinding
    Origin ─▶ none (no browser), same origin, --allowed-origins             else 403: cross-site request
    Content-Type ─▶ application/json                                        else 415: forms need no preflight
    Authorization: Bearer, or x-api-key ─▶ the chat key; for feedback the admin key

A browser sends requests for any page it shows, to loopback too. It sends the page's origin with every request that can
change state, sends a preflight before a cross-site `application/json` body, and keeps the page's host name when DNS
points that name at 127.0.0.1. Each of the three checks closes one of these paths.
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
    """Checks requests; each check raises ApiError for one that is not allowed.

    Args:
        api_key: required for chats; when empty, any key or none is accepted.
        admin_key: required for feedback; when empty, all feedback is refused.
        host: the bound address.
        allowed_hosts, allowed_origins: also accepted; `*` accepts any.

    Attributes:
        has_admin_key: whether feedback is possible at all.
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
        """Refuse unknown hosts and origins; add the CORS headers for an allowed origin."""
        headers = exchange.headers
        host = headers.get("host", "")
        if not self._is_host_allowed(host, exchange):
            raise ApiError(
                403, f"host {_shown(host)} is not allowed; add it with --allowed-hosts", code="host_not_allowed"
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
            return exchange.http_version == "1.0"  # no browser uses it
        name = _without_port(host.lower())
        if name in self._hosts or _ANY in self._hosts:
            return True
        return self._is_bound_to_all and name == exchange.local_address  # DNS rebinding needs a name

    def check_format(self, exchange: Exchange) -> None:
        """Refuse a body that is not declared as JSON: browsers send form types without a preflight."""
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                415, f"send Content-Type: application/json, not {_shown(kind)}", code="unsupported_media_type"
            )

    def check_key(self, exchange: Exchange) -> None:
        """Refuse a chat without the chat key or the admin key."""
        if self._api_keys and not _is_one_of(bearer_of(exchange.headers), (*self._api_keys, *self._admin_keys)):
            raise ApiError(
                401, "missing or invalid API key: send it as a bearer token or as x-api-key", code="invalid_api_key"
            )

    def check_admin_key(self, exchange: Exchange) -> None:
        """Refuse feedback without the admin key: an agent holds the chat key and could reward itself."""
        given = bearer_of(exchange.headers)
        if self._admin_keys and _is_one_of(given, self._admin_keys):
            return
        if self._api_keys and not _is_one_of(given, self._api_keys):
            raise ApiError(401, "missing or invalid key: feedback needs the admin key", code="invalid_api_key")
        raise ApiError(
            403,
            "feedback needs the admin key: OPENCLAW_ADMIN_KEY, or the one in admin.key in the buffer directory",
            code="admin_key_needed",
        )

    def preflight(self) -> list[tuple[bytes, bytes]]:
        """The headers of a CORS preflight response."""
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", _ALLOWED_HEADERS),
            (b"access-control-max-age", _MAX_AGE_S),
        ]


def _foreign(page: str) -> ApiError:
    return ApiError(
        403, f"requests from a page {page} are refused; allow it with --allowed-origins", code="origin_not_allowed"
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
    """The encodings of a key on the wire: most clients send UTF-8, some Latin-1."""
    if not key:
        return ()
    spelt = {key.encode("utf-8")}
    if all(ord(character) < 256 for character in key):
        spelt.add(key.encode("latin-1"))
    return tuple(spelt)


def _is_one_of(given: str, keys: Iterable[bytes]) -> bool:
    """Compares in constant time. Header values are Latin-1 as the server library decodes them."""
    raw = given.encode("latin-1", "replace")
    return any([hmac.compare_digest(raw, key) for key in keys])
