"""What one client may hold of a server: heads, bodies, connections, places; the others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from server_rig import ADMIN_KEY, Rig, StartRig, listening, until

from openclaw.api import admission, connections

BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(url: str) -> Pipe:
    return await asyncio.open_connection(*url.removeprefix("http://").split(":"))


async def begin(rig: Rig, body: bytes = BODY, num_sent: int = 5) -> Pipe:
    """A chat that has sent only the beginning of its body."""
    reader, writer = await connect(rig.url)
    writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:num_sent])
    await writer.drain()
    return reader, writer


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await asyncio.wait_for(reader.readline(), 10)).split()[1])


async def test_slow_bodies_take_no_places(start: StartRig) -> None:
    rig = await start(capture=False, max_concurrent_requests=2)
    slow = [await begin(rig) for _ in range(8)]
    assert [(await rig.chat()).status_code for _ in range(4)] == [200] * 4
    for _, writer in slow[:2]:
        writer.write(BODY[5:])
    assert [await status_of(reader) for reader, _ in slow[:2]] == [200, 200]
    for _, writer in slow:
        writer.close()


async def test_places_are_counted_once_the_body_is_there(start: StartRig) -> None:
    rig = await start(capture=False, max_concurrent_requests=1, token_delay_s=0.3)
    waiting = await begin(rig)
    running = asyncio.create_task(rig.chat())
    await until(lambda: bool(rig.engine.requests))
    assert (await rig.chat()).json()["error"]["code"] == "overloaded"
    waiting[1].write(BODY[5:])
    assert await status_of(waiting[0]) == 503
    assert (await running).status_code == 200
    waiting[1].close()


async def test_a_body_of_a_byte_a_second_ends_in_408(start: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.api.exchange.GRACE_S", 0.3)
    monkeypatch.setattr(admission, "GRACE_S", 0.3)
    rig = await start(capture=False)
    reader, writer = await begin(rig)
    began = time.monotonic()
    status = asyncio.create_task(status_of(reader))
    while not status.done() and time.monotonic() - began < 5:
        writer.write(b" ")
        await asyncio.sleep(0.05)
    assert await status == 408
    assert time.monotonic() - began < 3
    writer.close()


async def test_bodies_share_a_memory_and_the_slowest_gives_way(start: StartRig) -> None:
    mib = 2**20
    rig = await start(capture=False, max_body_bytes=4 * mib)
    large = BODY[:-1] + b" " * (2 * mib) + b"}"
    slow = [await begin(rig, large, len(large) - 1) for _ in range(6)]
    statuses = [asyncio.create_task(status_of(reader)) for reader, _ in slow]
    await until(lambda: sum(status.done() for status in statuses) >= 4)
    assert {await status for status in statuses if status.done()} == {503}
    assert rig.app._bodies.num_bytes <= 4 * mib
    assert (await rig.chat()).status_code == 200
    read = await rig.http.post("/v1/chat/completions", content=large)
    assert read.json()["error"]["code"] == "context_length_exceeded", "there is room for it: it was read to its end"
    for _, writer in slow:
        writer.close()
    await until(lambda: rig.app._bodies.num_bytes == 0)


async def test_feedback_is_bounded_and_has_places_of_its_own(start: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await start()
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    large = await rig.http.post("/v1/feedback", content=b'{"text":"' + b"x" * 300_000 + b'"}', headers=admin)
    assert large.status_code == 413
    rig.app._feedback_places.number = 0
    refused = await rig.http.post("/v1/feedback", content=b"{}", headers=admin)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert (await rig.chat()).status_code == 200


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "one header": (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ", b"a" * 65536),
    "many headers": (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n", b"x-a: b\r\n" * 8192),
    "the path": (b"GET /", b"a" * 65536),
    "empty lines and a head": (b"\r\n" * 1000 + b"GET /healthz HTTP/1.1\r\n", b"x-a: b\r\n" * 8192),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x-a: b\r\n" * 8192),
    "chunk extensions": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;a=", b"a" * 65536),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_a_head_without_end_is_cut_off(start: StartRig, what: str) -> None:
    rig = await start(capture=False)
    reader, writer = await connect(rig.url)
    opening, more = ENDLESS[what]
    writer.write(opening)
    sent = 0
    try:
        for _ in range(1600):  # 100 MB
            writer.write(more)
            sent += len(more)
            await asyncio.wait_for(writer.drain(), 5)
            if reader.at_eof() or writer.transport.is_closing():
                break
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    assert sent < 20 * 2**20, "most of it lies in the kernel's buffers"
    assert (await rig.chat()).status_code == 200
    writer.close()


async def test_a_whole_head_that_is_too_large_is_refused_with_431(start: StartRig) -> None:
    rig = await start(capture=False)
    reader, writer = await connect(rig.url)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 66_000 + b"\r\n\r\n")
    assert await status_of(reader) == 431
    writer.close()
    reader, writer = await connect(rig.url)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 60_000 + b"\r\n\r\n")
    assert await status_of(reader) == 200
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v1/cha", b"GET /healthz HTTP/1.1\r\nhost: loc"])
async def test_a_head_that_never_ends_is_not_waited_for(
    start: StartRig, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    rig = await start(capture=False)
    reader, writer = await connect(rig.url)
    writer.write(sent)
    assert await status_of(reader) == 408
    assert await asyncio.wait_for(reader.read(), 5) == b"connection: close\r\ncontent-length: 0\r\n\r\n"
    writer.close()
    reader, writer = await connect(rig.url)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert await status_of(reader) == 200
    await reader.readuntil(b'{"ok":true}')
    ended = asyncio.create_task(reader.read())
    began = time.monotonic()
    while not ended.done() and time.monotonic() - began < 5:  # a second head, a byte at a time, in the same connection
        writer.write(b"A" if sent else b"\r\n")
        await asyncio.wait([ended], timeout=0.05)
    assert time.monotonic() - began < 2
    with contextlib.suppress(ConnectionError):  # reset, if bytes were on their way
        assert (await ended).split()[1] in (b"408", b"400")
    writer.close()


async def test_of_too_many_connections_the_one_that_waited_longest_is_closed(start: StartRig) -> None:
    rig = await start(capture=False, token_delay_s=0.05)
    async with listening(rig.app, max_connections=20) as url:
        reader, writer = await connect(url)
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)  # a request under way is no waiting one
        idle: list[Any] = [await connect(url) for _ in range(40)]
        closed = 0
        await until(lambda: sum(one.at_eof() for one, _ in idle) >= 20)
        closed = [number for number, (one, _) in enumerate(idle) if one.at_eof()]
        assert closed == list(range(len(closed))), "the oldest first"
        assert await status_of(reader) == 200
        newest = idle[-1]
        newest[1].write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert await status_of(newest[0]) == 200
        for _, one in [*idle, (reader, writer)]:
            one.close()
