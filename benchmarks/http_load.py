"""A load generator on bare sockets, which keeps its own CPU use low, and the server processes under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Request = Callable[[int], bytes]
"""The n-th request, as it goes over the wire."""


def post(path: str, body: bytes) -> bytes:
    """A whole HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer local\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """One keep-alive connection that sends a request and waits for its whole answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))

    async def ask(self, request: bytes) -> bytes:
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in head.split(b"\r\n", 1)[0], head + await self._reader.read(2000)
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return await self._reader.readexactly(length)

    async def stream(self, request: bytes) -> list[float]:
        """When each piece of a chunked answer arrived, in seconds after the request left."""
        began = time.perf_counter()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n", 1)[0], head
        arrivals = []
        while size := int(await self._reader.readline(), 16):
            await self._reader.readexactly(size + 2)
            arrivals.append(time.perf_counter() - began)
        await self._reader.readline()
        return arrivals

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class Load:
    """A measurement: latencies in ms at one connection, requests a second at sixteen."""

    p50_ms: float
    p99_ms: float
    requests_per_s: float


async def measure(port: int, request: Request, seconds: float) -> Load:
    numbers = iter(range(10**9))
    await drive(port, 2, request, numbers, seconds / 4)  # warm up
    alone = await drive(port, 1, request, numbers, seconds)
    began = time.perf_counter()
    together = await drive(port, 16, request, numbers, seconds)
    rate = len(together) / (time.perf_counter() - began)
    return Load(statistics.median(alone) * 1e3, statistics.quantiles(alone, n=100)[98] * 1e3, rate)


async def drive(
    port: int, num_connections: int, request: Request, numbers: Iterator[int], seconds: float
) -> list[float]:
    """Latencies of what `num_connections` ask one after the other for some seconds."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        connection = await Connection.open(port)
        while time.perf_counter() < end:
            raw = request(next(numbers))
            began = time.perf_counter()
            await connection.ask(raw)
            latencies.append(time.perf_counter() - began)
        connection.close()

    await asyncio.gather(*(client() for _ in range(num_connections)))
    return latencies


async def measure_stream(port: int, request: Request, count: int) -> tuple[float, float, int]:
    """Median time to the first chunk and between chunks in ms, and the median number of chunks that came alone."""
    first, gaps, chunks = [], [], []
    connection = await Connection.open(port)
    for number in range(count):
        arrivals = await connection.stream(request(10**6 + number))
        first.append(arrivals[0] * 1e3)
        gaps += [(b - a) * 1e3 for a, b in itertools.pairwise(arrivals)]
        chunks.append(len(arrivals))
    connection.close()
    return statistics.median(first), statistics.median(gaps), int(statistics.median(chunks))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def process(
    command: Sequence[str], port: int, log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens on a port, ended afterwards."""
    with log.open("wb") as out:
        variables = {"OMP_NUM_THREADS": "1"} | os.environ | (environment or {})
        child = subprocess.Popen(command, stdout=out, stderr=out, env=variables, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not _listens(port):
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.005)
        yield child
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(10)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
