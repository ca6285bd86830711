"""What the server adds to its engine, and how it compares with LiteLLM's proxy, in one run.

    python benchmarks/server_overhead.py [--quick] [--litellm VENV/bin/litellm]

    load generator ─▶ engine                  the engine alone: the floor
    load generator ─▶ openclaw.server ─▶ engine      capture on, every turn committed with fsync
    load generator ─▶ LiteLLM proxy ─▶ upstream      the same requests; nothing captured

Requests: 10 messages, 2.8 kB, of 16 conversations, each time with another last message; replies: 64 tokens with log-probs, from a scripted engine that costs next to
nothing. Everything shares the machine's cores. LiteLLM wants an environment of its own:

    python -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import orjson
import uvloop

NUM_MESSAGES, PROMPT_BYTES, NUM_TOKENS = 10, 2_800, 64
WORDS = "the weather in the north is cold and clear today so we walk to the old harbour and look at ships".split()


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


def messages(number: int) -> list[dict[str, str]]:
    """The conversation of the `number % 16`-th user so far, and a new message of theirs: no two requests are alike."""
    share = PROMPT_BYTES // NUM_MESSAGES
    text = (" ".join(WORDS) + " ") * 4
    chat = [{"role": "system", "content": text[:share]}]
    for index in range(1, NUM_MESSAGES):
        who = f"user {number % 16}" if index < NUM_MESSAGES - 1 else f"message {number}"
        chat.append({"role": "user" if index % 2 else "assistant", "content": f"{who}: {text[index : index + share - 12]}"})
    return chat


def chat_body(number: int, *, stream: bool = False) -> bytes:
    fields: dict[str, Any] = {"model": "scripted", "messages": messages(number), "max_tokens": NUM_TOKENS}
    return orjson.dumps(fields | {"logprobs": True} | ({"stream": True} if stream else {}))


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer local\r\ncontent-type: application/json\r\n"
    return head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body


# ── the load generator: bare sockets, so that it takes little of the machine ─────────────────────────────────────────


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


async def measure(port: int, request: Callable[[int], bytes], seconds: float) -> Load:
    numbers = iter(range(10**9))
    await drive(port, 2, request, numbers, seconds / 4)  # warm up
    alone = await drive(port, 1, request, numbers, seconds)
    began = time.perf_counter()
    together = await drive(port, 16, request, numbers, seconds)
    rate = len(together) / (time.perf_counter() - began)
    return Load(statistics.median(alone) * 1e3, statistics.quantiles(alone, n=100)[98] * 1e3, rate)


async def drive(
    port: int, num_connections: int, request: Callable[[int], bytes], numbers: Iterator[int], seconds: float
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


async def measure_stream(port: int, request: Callable[[int], bytes], count: int) -> tuple[float, float, int]:
    """Median time to the first chunk and between chunks in ms, and the median number of chunks that came alone."""
    first, gaps, chunks = [], [], []
    connection = await Connection.open(port)
    for number in range(count):
        arrivals = await connection.stream(request(10**6 + number))
        first.append(arrivals[0] * 1e3)
        gaps += [(b - a) * 1e3 for a, b in zip(arrivals, arrivals[1:], strict=False)]
        chunks.append(len(arrivals))
    connection.close()
    return statistics.median(first), statistics.median(gaps), int(statistics.median(chunks))


# ── the processes ────────────────────────────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def process(command: Sequence[str], port: int, log: Path, env: dict[str, str] | None = None) -> AsyncIterator[int]:
    """A process that listens on a port, ended afterwards."""
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | (env or {}), start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                if child.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-3000:]}") from None
                await asyncio.sleep(0.1)
        yield port
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(10)


def build_model_dir(directory: Path) -> Path:
    """A model directory with a real tokenizer and chat template; its weights are never loaded."""
    import torch
    from openclaw_test.tiny_tokenizer import learn_tokenizer
    from safetensors.torch import save_file

    texts = [message["content"] for message in messages(0)]
    learn_tokenizer([*texts, "Hello, the old harbour is clear and cold today"] * 4).save_pretrained(directory)
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40_960}
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": 1024}))
    save_file({"unused": torch.zeros(1)}, directory / "model.safetensors")
    return directory


def reply_text(model_dir: Path) -> str:
    """A text of `NUM_TOKENS` tokens and more."""
    from slime.chat import ChatFormat

    chat, text = ChatFormat.load(model_dir), "Hello "
    while len(chat.encode(text)) <= NUM_TOKENS:
        text += WORDS[len(text) % len(WORDS)] + " "
    return text


def upstream_command(port: int, reply: str) -> list[str]:
    return [sys.executable, __file__, "--upstream", str(port), "--reply", reply]


async def serve_upstream(port: int, reply: str) -> None:
    """An OpenAI-compatible server that says one thing, for LiteLLM to stand in front of."""
    import uvicorn

    entries = [
        {"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}
        for word in (reply.split() * NUM_TOKENS)[:NUM_TOKENS]
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 700, "completion_tokens": NUM_TOKENS, "total_tokens": 700 + NUM_TOKENS}
    fixed = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted"}
    body = orjson.dumps(fixed | {"choices": [choice], "usage": usage})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    await uvicorn.Server(
        uvicorn.Config(app, port=port, log_level="error", lifespan="off", access_log=False)  # type: ignore[arg-type]
    ).serve()


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def run(seconds: float, litellm: str | None, out: Path | None) -> None:
    work = Path(tempfile.mkdtemp(prefix="server_overhead"))
    model_dir = build_model_dir(work / "model")
    reply = reply_text(model_dir)
    results: dict[str, Any] = {}
    try:
        engine_port, slow_port, server_port, slow_server_port = (free_port() for _ in range(4))
        engine = [sys.executable, "-m", "slime.engines.scripted", "--model-path", str(model_dir), "--reply", reply]
        engine += ["--incremental-streaming-output", "--port"]
        async with process([*engine, str(engine_port)], engine_port, work / "engine.log"):
            floor = await measure(engine_port, engine_request(model_dir), seconds)
            show("engine alone", floor)
            async with process(server(model_dir, server_port, engine_port, work / "buffer"), server_port, work / "s.log"):
                ours = await measure(server_port, lambda n: post("/v1/chat/completions", chat_body(n)), seconds)
            show("openclaw.server", ours, floor)
        results |= {"engine": vars(floor), "openclaw": vars(ours), "added_p50_ms": ours.p50_ms - floor.p50_ms}
        slow = [*engine, str(slow_port), "--token-delay-s", "0.005"]
        command = server(model_dir, slow_server_port, slow_port, work / "slow_buffer")
        async with (
            process(slow, slow_port, work / "slow.log"),
            process(command, slow_server_port, work / "slow_server.log"),
        ):
            direct = await measure_stream(slow_port, engine_request(model_dir, stream=True), 10)
            through = await measure_stream(
                slow_server_port, lambda n: post("/v1/chat/completions", chat_body(n, stream=True)), 10
            )
        print(f"time to first chunk   engine {direct[0]:.2f} ms   server {through[0]:.2f} ms", end="   ")
        print(f"chunks apart {through[1]:.2f} ms (engine {direct[1]:.2f})   chunks {through[2]} (engine {direct[2]})")
        results |= {"ttft_engine_ms": direct[0], "ttft_server_ms": through[0], "chunks": through[2]}
        if litellm:
            results |= await run_litellm(litellm, reply, work, seconds, ours)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(results | {"cores": os.cpu_count(), "seconds": seconds}, indent=2) + "\n")
    finally:
        shutil.rmtree(work)


async def run_litellm(litellm: str, reply: str, work: Path, seconds: float, ours: Load) -> dict[str, Any]:
    upstream_port, proxy_port = free_port(), free_port()
    model = {"model": "openai/scripted", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "local"}
    config = {"model_list": [{"model_name": "scripted", "litellm_params": model}]}
    (work / "litellm.json").write_text(json.dumps(config))  # JSON is YAML
    command = [litellm, "--config", str(work / "litellm.json"), "--port", str(proxy_port), "--host", "127.0.0.1"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # nor does ours ask for a key here
    async with (
        process(upstream_command(upstream_port, reply), upstream_port, work / "upstream.log"),
        process(command, proxy_port, work / "litellm.log", quiet),
    ):
        chat: Callable[[int], bytes] = lambda n: post("/v1/chat/completions", chat_body(n))
        floor = await measure(upstream_port, chat, seconds / 2)
        proxy = await measure(proxy_port, chat, seconds)
    show("LiteLLM's upstream alone", floor)
    show("LiteLLM proxy", proxy, floor)
    ratio = ours.requests_per_s / proxy.requests_per_s
    print(f"openclaw.server / LiteLLM: {ratio:.1f} × the requests a second")
    return {"litellm": vars(proxy), "litellm_added_p50_ms": proxy.p50_ms - floor.p50_ms, "ratio": ratio}


def engine_request(model_dir: Path, *, stream: bool = False) -> Callable[[int], bytes]:
    """The same prompts as ids, as the server would ask for them."""
    from slime.chat import ChatFormat
    from slime.engines.dialect import generate_body
    from slime.protocols import GenerateRequest
    from slime.types import SamplingParams

    chat = ChatFormat.load(model_dir)
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS)

    prompts = [chat.render(messages(number)) for number in range(50)]

    def request(number: int) -> bytes:
        asked = GenerateRequest(f"direct-{number}", prompts[number % len(prompts)], sampling)
        return post("/generate", generate_body(asked, stream=stream))

    return request


def server(model_dir: Path, port: int, engine_port: int, buffer: Path) -> list[str]:
    command = [sys.executable, "-m", "openclaw.server", "--model-path", str(model_dir), "--port", str(port)]
    command += ["--engine-url", f"http://127.0.0.1:{engine_port}", "--log-level", "error"]
    return [*command, "--enable-rl-intercept", "--rl-buffer-dir", str(buffer)]


def show(name: str, load: Load, floor: Load | None = None) -> None:
    added = f"added p50 {load.p50_ms - floor.p50_ms:.2f} ms" if floor else ""
    print(
        f"{name:26} p50 {load.p50_ms:6.2f} ms   p99 {load.p99_ms:6.2f} ms   {load.requests_per_s:7.0f} requests/s   {added}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 s a measurement instead of 8")
    parser.add_argument("--litellm", default=shutil.which("litellm"), help="the litellm command of its own environment")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--reply", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.upstream:
            runner.run(serve_upstream(options.upstream, options.reply))
        else:
            runner.run(run(2.0 if options.quick else 8.0, options.litellm, options.out))


if __name__ == "__main__":
    main()
