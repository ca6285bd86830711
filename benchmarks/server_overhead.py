"""Measures the latency that the server adds to its engine, and compares it with LiteLLM's proxy, in one run.

    python benchmarks/server_overhead.py [--quick] [--equal] [--litellm VENV/bin/litellm]
    python benchmarks/server_overhead.py [--quick] [--equal] --against DIRECTORY

    load generator ─▶ engine                       the engine alone: the floor
    load generator ─▶ openclaw.server ─▶ engine    capture on, every turn committed with fsync
    load generator ─▶ LiteLLM proxy ─▶ upstream    the same requests; nothing captured

Requests: 10 messages, 2.8 kB, of 16 conversations, each with a new last message. Replies: 64 tokens with log-probs,
from a scripted engine of negligible cost. With `--equal` all connections repeat one request. All processes share the
machine's cores. LiteLLM needs its own environment:

    python -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]'

`--against` compares with another checkout of this repository, whose server runs beside ours on the same engine; engine,
that server and ours are measured in turn, round by round, start by start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
import uvloop
from http_load import Load, Request, drive, free_port, measure, measure_stream, post, process

NUM_MESSAGES, PROMPT_BYTES, NUM_TOKENS = 10, 2_800, 64
STARTS, SEGMENT_S = 8, 0.5
"""A process is up to 5 % faster or slower than the next of the same program, and a shared machine than a second ago."""
TEXT = "the weather in the north is cold and clear today so we walk to the old harbour and look at ships "


def messages(number: int) -> list[dict[str, str]]:
    """The conversation of the `number % 16`-th user so far, and a new message of theirs: no two requests are alike."""
    share = PROMPT_BYTES // NUM_MESSAGES
    text = TEXT * 4
    chat = [{"role": "system", "content": text[:share]}]
    for index in range(1, NUM_MESSAGES):
        who = f"user {number % 16}" if index < NUM_MESSAGES - 1 else f"message {number}"
        role = "user" if index % 2 else "assistant"
        chat.append({"role": role, "content": f"{who}: {text[index : index + share - 12]}"})
    return chat


def chat_body(number: int, *, stream: bool = False) -> bytes:
    fields: dict[str, Any] = {"model": "scripted", "messages": messages(number), "max_tokens": NUM_TOKENS}
    return orjson.dumps(fields | {"logprobs": True} | ({"stream": True} if stream else {}))


def build_model_dir(directory: Path) -> Path:
    """A model directory with a real tokenizer and chat template; its weights are never loaded."""
    import torch
    from openclaw_test.tiny.tokenizer import learn_tokenizer
    from safetensors.torch import save_file

    tokenizer = learn_tokenizer([message["content"] for message in messages(0)] * 4)
    tokenizer.save_pretrained(directory)
    config = {"model_type": "qwen3", "max_position_embeddings": 40_960}
    (directory / "config.json").write_text(
        json.dumps(config | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id})
    )
    save_file({"unused": torch.zeros(1)}, directory / "model.safetensors")
    return directory


def reply_text(model_dir: Path) -> str:
    """A text of `NUM_TOKENS` tokens and more."""
    from slime.chat import ChatFormat

    chat, text = ChatFormat.load(model_dir), "Hello "
    while len(chat.encode(text)) <= NUM_TOKENS:
        text += TEXT[:40]
    return text


def upstream_command(port: int, reply: str) -> list[str]:
    return [sys.executable, __file__, "--upstream", str(port), "--reply", reply]


async def serve_upstream(port: int, reply: str) -> None:
    """An OpenAI-compatible server with one fixed reply, the upstream of LiteLLM."""
    import uvicorn

    entries = [
        {"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}
        for word in (TEXT.split() * NUM_TOKENS)[:NUM_TOKENS]
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

    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off", access_log=False)).serve()


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def chat_request(number: int) -> bytes:
    return post("/v1/chat/completions", chat_body(number))


def chat_stream_request(number: int) -> bytes:
    return post("/v1/chat/completions", chat_body(number, stream=True))


def equal_request(number: int) -> bytes:
    return chat_request(0)


async def run_against(work: Path, seconds: float, other: Path, request: Request) -> dict[str, Any]:
    """Added p50 of ours and of another checkout's server: the medians over `STARTS` starts of all processes."""
    model_dir = build_model_dir(work / "model")
    engine = [sys.executable, "-m", "slime.engines.scripted", "--model-path", str(model_dir)]
    engine += ["--reply", reply_text(model_dir)]
    starts = []
    for number in range(STARTS):
        starts.append(await _interleaved(work / str(number), seconds, other, request, model_dir, engine))
        print("  ".join(f"{name} {p50:.2f} ms" for name, p50 in starts[-1].items()), flush=True)
    p50 = {name: statistics.median(start[name] for start in starts) for name in starts[0]}
    ratios = [(start["ours"] - start["engine"]) / (start["other"] - start["engine"]) for start in starts]
    added = {name: p50[name] - p50["engine"] for name in ("other", "ours")}
    print(f"added p50 {added['ours']:.2f} ms, of {other} {added['other']:.2f} ms: ", end="")
    print(f"{statistics.median(ratios):.3f} × ({min(ratios):.3f} to {max(ratios):.3f}), over {STARTS} starts")
    return {"p50_ms": p50, "added_p50_ms": added, "ratio": statistics.median(ratios), "ratios": ratios}


async def _interleaved(
    work: Path, seconds: float, other: Path, request: Request, model_dir: Path, engine: list[str]
) -> dict[str, float]:
    """The p50 in ms of the engine alone and through each server, measured in turn."""
    work.mkdir()  # noqa: ASYNC240
    ports = {name: free_port() for name in ("engine", "other", "ours")}
    engine = [*engine, "--port", str(ports["engine"])]
    commands = {
        name: server(model_dir, ports[name], ports["engine"], work / f"{name}_buffer") for name in ("other", "ours")
    }
    commands["other"].insert(1, "-P")  # imports from where this was started would come first
    imports = {"PYTHONPATH": f"{other}:{other / 'slime'}"}
    with (
        process(engine, ports["engine"], work / "engine.log"),
        process(commands["other"], ports["other"], work / "other.log", imports),
        process(commands["ours"], ports["ours"], work / "ours.log"),
    ):
        asked = {"engine": engine_request(model_dir), "other": request, "ours": request}
        numbers = iter(range(10**9))
        latencies: dict[str, list[float]] = {name: [] for name in ports}
        for name, port in ports.items():
            await drive(port, 2, asked[name], numbers, seconds / 4)  # warm up
        for number in range(round(seconds / (4 * SEGMENT_S)) * 2):
            # Whoever comes second meets what the first has left to the kernel to write: they take turns.
            for name in ("engine", *(("other", "ours") if number % 2 else ("ours", "other"))):
                latencies[name] += await drive(ports[name], 1, asked[name], numbers, SEGMENT_S)
    return {name: statistics.median(taken) * 1e3 for name, taken in latencies.items()}


async def run(work: Path, seconds: float, litellm: str | None, request: Request) -> dict[str, Any]:
    model_dir = build_model_dir(work / "model")
    reply = reply_text(model_dir)
    engine = [sys.executable, "-m", "slime.engines.scripted", "--model-path", str(model_dir), "--reply", reply]
    engine += ["--incremental-streaming-output", "--port"]

    engine_port, server_port = free_port(), free_port()
    with process([*engine, str(engine_port)], engine_port, work / "engine.log"):
        floor = await measure(engine_port, engine_request(model_dir), seconds)
        show("engine alone", floor)
        command = server(model_dir, server_port, engine_port, work / "buffer")
        with process(command, server_port, work / "server.log"):
            ours = await measure(server_port, request, seconds)
        show("openclaw.server", ours, floor)

    engine_port, server_port = free_port(), free_port()
    command = server(model_dir, server_port, engine_port, work / "slow_buffer")
    slow = [*engine, str(engine_port), "--token-delay-s", "0.005"]
    with process(slow, engine_port, work / "slow.log"), process(command, server_port, work / "slow_server.log"):
        direct = await measure_stream(engine_port, engine_request(model_dir, stream=True), 10)
        through = await measure_stream(server_port, chat_stream_request, 10)
    print(
        f"first chunk {through[0]:.2f} ms (engine {direct[0]:.2f})   apart {through[1]:.2f} ms ({direct[1]:.2f})",
        end="   ",
    )
    print(f"chunks {through[2]} (engine {direct[2]})")

    results = {"engine": vars(floor), "openclaw": vars(ours), "added_p50_ms": ours.p50_ms - floor.p50_ms}
    results |= {"first_chunk_engine_ms": direct[0], "first_chunk_server_ms": through[0], "chunks": through[2]}
    return results | (await run_litellm(litellm, reply, work, seconds, ours, request) if litellm else {})


async def run_litellm(
    litellm: str, reply: str, work: Path, seconds: float, ours: Load, request: Request
) -> dict[str, Any]:
    upstream_port, proxy_port = free_port(), free_port()
    model = {"model": "openai/scripted", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "local"}
    config = {"model_list": [{"model_name": "scripted", "litellm_params": model}]}
    (work / "litellm.json").write_text(json.dumps(config))  # JSON is YAML
    command = [litellm, "--config", str(work / "litellm.json"), "--port", str(proxy_port), "--host", "127.0.0.1"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # nor does ours ask for a key here
    with (
        process(upstream_command(upstream_port, reply), upstream_port, work / "upstream.log"),
        process(command, proxy_port, work / "litellm.log", quiet),
    ):
        floor = await measure(upstream_port, request, seconds / 2)
        proxy = await measure(proxy_port, request, seconds)
    show("LiteLLM's upstream alone", floor)
    show("LiteLLM proxy", proxy, floor)
    ratio = ours.requests_per_s / proxy.requests_per_s
    print(f"openclaw.server / LiteLLM: {ratio:.1f} × the requests a second")
    return {"litellm": vars(proxy), "litellm_added_p50_ms": proxy.p50_ms - floor.p50_ms, "ratio": ratio}


def engine_request(model_dir: Path, *, stream: bool = False) -> Request:
    """The same prompts as ids, as the server would ask for them."""
    from slime.chat import ChatFormat
    from slime.engines.dialect.requests import generate_body
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
    print(f"{name:26} p50 {load.p50_ms:6.2f} ms   p99 {load.p99_ms:6.2f} ms", end="   ")
    print(f"{load.requests_per_s:7.0f} requests/s   {added}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 s a measurement instead of 8")
    parser.add_argument("--equal", action="store_true", help="one request, again and again, on all connections")
    parser.add_argument("--against", type=Path, help="another checkout of this repository, in place of LiteLLM")
    parser.add_argument("--litellm", default=shutil.which("litellm"), help="the litellm command of its own environment")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--reply", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.upstream:
            return runner.run(serve_upstream(options.upstream, options.reply))
        seconds = 2.0 if options.quick else 8.0
        with tempfile.TemporaryDirectory(prefix="server_overhead") as work:
            request = equal_request if options.equal else chat_request
            if options.against:
                results = runner.run(run_against(Path(work), seconds, options.against.resolve(), request))
            else:
                results = runner.run(run(Path(work), seconds, options.litellm, request))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results | {"cores": os.cpu_count(), "seconds": seconds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
