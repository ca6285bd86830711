"""Who may ask: pages of other sites, names that DNS points at us, forms, keys; by the raw requests of a browser."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from server_rig import ADMIN_KEY, Rig, StartRig
from slime.types import Turn

BODY = json.dumps({"messages": [{"role": "user", "content": "planted"}], "max_tokens": 4}).encode()
PRAISE = json.dumps({"kind": "thumbs", "value": "up", "session_id": "s1"}).encode()
CHAT, FEEDBACK = "POST /v1/chat/completions", "POST /v1/feedback"


async def raw(rig: Rig, request: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to exactly these bytes; `{port}` in a header is the server's."""
    port = rig.url.rpartition(":")[2]
    given = {"host": "127.0.0.1:{port}", "content-length": str(len(body)), "connection": "close"}
    given |= {"content-type": "application/json"} if body else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{request} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value)]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write("\r\n".join([*lines, "", ""]).replace("{port}", port).encode() + body)
    head, _, answer = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), {name.lower(): value for name, value in (f.split(": ", 1) for f in fields)}, answer


async def turns(rig: Rig) -> list[Turn]:
    assert rig.store is not None
    return await rig.store.recent(10)


FOREIGN: list[dict[str, str]] = [
    {"host": "evil.example"},  # DNS rebinding: the page's own name, now at 127.0.0.1
    {"host": "evil.example:{port}", "origin": "http://evil.example:{port}"},
    {"host": "localhost.evil.example"},
    {"host": "127.0.0.1.evil.example:{port}"},
    {"host": "[::1].evil.example"},
    {"host": "10.0.0.1:{port}"},
    {"host": ""},
    {"origin": "http://evil.example"},
    {"origin": "null"},  # a sandboxed frame, a file
    {"origin": "http://localhost:3000"},  # another port is another site
    {"origin": "http://127.0.0.1:{port}.evil.example"},
    {"origin": "http://evil.example", "content-type": "text/plain"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize("api_key", ["", "k"])
async def test_a_foreign_page_or_name_changes_and_reads_nothing(start: StartRig, api_key: str) -> None:
    rig = await start(api_key=api_key)
    key = {"authorization": f"Bearer {ADMIN_KEY}"}  # whatever the page may know
    for headers in FOREIGN:
        for request, body in (
            (CHAT, BODY),
            (FEEDBACK, PRAISE),
            ("GET /v1/models", b""),
            ("GET /readyz", b""),
            ("OPTIONS /v1/chat/completions", b""),
        ):
            status, answered, answer = await raw(rig, request, body, **(key | headers))
            assert status == 403, (headers, request, answer)
            assert "access-control-allow-origin" not in answered
            assert b"tiny" not in answer
    assert await turns(rig) == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_what_a_form_can_send_is_not_taken_for_json(start: StartRig, kind: str) -> None:
    rig = await start()
    key = {"authorization": f"Bearer {ADMIN_KEY}"}
    for request, body in ((CHAT, BODY), (FEEDBACK, PRAISE)):
        status, _, answer = await raw(rig, request, body, **{"content-type": kind}, **key)
        assert (status, json.loads(answer)["error"]["code"]) == (415, "unsupported_media_type")
    assert await turns(rig) == []
    assert (await raw(rig, CHAT, BODY, **{"content-type": "Application/JSON; charset=utf-8"}))[0] == 200


async def test_loopback_names_and_the_very_page_of_the_server_are_let_in(start: StartRig) -> None:
    rig = await start()
    for headers in (
        {"host": "localhost"},
        {"host": "LOCALHOST:{port}"},
        {"host": "[::1]:{port}"},
        {"host": "127.0.0.1"},
        {"origin": "http://127.0.0.1:{port}"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin"},
    ):
        assert (await raw(rig, "GET /v1/models", **headers))[0] == 200, headers


async def test_two_host_headers_are_refused_and_a_client_of_http_1_0_needs_none(start: StartRig) -> None:
    rig = await start(capture=False)
    reader, writer = await asyncio.open_connection(*rig.url.removeprefix("http://").split(":"))
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert b" 403 " in await reader.readline()
    writer.close()
    reader, writer = await asyncio.open_connection(*rig.url.removeprefix("http://").split(":"))
    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()


async def test_allowed_hosts_and_origins_widen_the_lists(start: StartRig) -> None:
    rig = await start(
        gate_options={"allowed_hosts": ["chat.example.org"], "allowed_origins": ["http://localhost:3000"]}
    )
    page = {"host": "chat.example.org", "origin": "http://localhost:3000"}
    status, headers, _ = await raw(rig, "OPTIONS /v1/chat/completions", **page)
    assert (status, headers["access-control-allow-origin"]) == (204, "http://localhost:3000")
    assert {"authorization", "content-type"} <= set(headers["access-control-allow-headers"].split(", "))
    status, headers, _ = await raw(rig, CHAT, BODY, **page)
    assert (status, headers["access-control-allow-origin"]) == (200, "http://localhost:3000")
    assert headers["vary"] == "origin"
    assert (await raw(rig, CHAT, BODY, **page | {"origin": "http://localhost:3001"}))[0] == 403
    assert (await raw(rig, CHAT, BODY, **page | {"host": "other.example.org"}))[0] == 403
    assert len(await turns(rig)) == 1


async def test_a_server_bound_to_all_addresses_answers_to_the_one_it_was_reached_at(start: StartRig) -> None:
    rig = await start(capture=False, gate_options={"host": "0.0.0.0"})
    for host, status in (("127.0.0.1", 200), ("127.0.0.2", 403), ("evil.example", 403)):
        assert (await raw(rig, "GET /v1/models", host=host))[0] == status


@pytest.mark.parametrize("spelling", ["utf-8", "latin-1"])
async def test_a_key_that_is_not_ascii_opens(start: StartRig, spelling: Any) -> None:
    rig = await start(capture=False, api_key="schlüssel")
    reader, writer = await asyncio.open_connection(*rig.url.removeprefix("http://").split(":"))
    key = "Bearer schlüssel".encode(spelling)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: %s\r\n\r\n" % key)
    assert b" 200 " in await reader.readline()
    writer.close()


async def test_the_key_may_come_as_x_api_key(start: StartRig) -> None:
    rig = await start(api_key="k")
    assert (await rig.chat(headers={"x-api-key": "k"})).status_code == 200
    assert (await rig.chat(headers={"x-api-key": "wrong"})).status_code == 401
    assert (await rig.chat(headers={"authorization": "Bearer k"})).status_code == 200
    first, second = await turns(rig)
    assert first.source == second.source


async def test_models_tells_clients_nothing_of_where_things_lie(start: StartRig, tmp_path: Any) -> None:
    rig = await start()
    answer = await rig.http.get("/v1/models")
    [model] = answer.json()["data"]
    assert set(model) == {"id", "object", "created", "owned_by", "max_model_len"}
    for hidden in (str(tmp_path), *rig.engine_urls, "rl_buffer"):
        assert hidden not in answer.text
