"""Runs the OpenAI-compatible server that captures every turn: `python -m openclaw.server`.

    python -m openclaw.server --model-path DIR --port 8000 --enable-rl-intercept --rl-buffer-dir ./rl_buffer

    configuration ─▶ chat format, store ─▶ port ─▶ engine (started as a subprocess, or attached by --engine-url)
                                            │         │ on a crash: restarted; requests wait
                                            ▼         ▼
                                 SIGTERM: stop accepting ─▶ drain requests ─▶ close the store ─▶ stop the engine

The port opens while the engine is still loading: `/healthz` returns 200, `/readyz` 503, and chats wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from slime.chat import ChatFormat
from slime.config.gpus import check_gpus
from slime.config.loader import load_config
from slime.config.model_dir import check_model_dir
from slime.config.sections import Config, EngineConfig, ServerConfig
from slime.engines.backends import check_engine
from slime.engines.client import HttpEngine
from slime.engines.launch import free_port, with_token
from slime.engines.serving import Serving
from slime.errors import ConfigError, OpenClawError
from slime.monitor import configure_logging
from slime.private_files import secret
from slime.store import Store

from openclaw.api.app import App
from openclaw.api.connections import BoundedHttp, Connections, room_for
from openclaw.api.exchange import CutStreamFilter
from openclaw.api.gate import Gate
from openclaw.api.generation import ServedModel
from openclaw.capture import Capture, CaptureOff, CaptureOn
from openclaw.engine_pool import EnginePool
from openclaw.own_engine import OwnEngine

log = logging.getLogger("openclaw.server")  # __name__ is __main__ here

PROG = "python -m openclaw.server"
SECTIONS = ("model", "engine", "server", "lora", "output")
ADMIN_KEY_FILE = "admin.key"
SHUTDOWN_S = 30
"""How long running requests may take to finish after SIGTERM; then their streams end with an error event."""
_DEFAULT_CONTEXT = 32_768
_GC_THRESHOLD = (5_000, 2, 10_000)
"""A request allocates thousands of objects and hardly a cycle; the default thresholds cost 6 %. A collection pauses
every request for about a millisecond per thousand objects."""
_SWITCH_S = 0.0001
"""How long another thread, e.g. the one that writes long turns, keeps the GIL while the event loop waits for it."""


def main(argv: Sequence[str] | None = None, *, prog: str = PROG, defaults: Mapping[str, Any] | None = None) -> int:
    """Serve until a stop signal; returns the exit status.

    Args:
        defaults: settings by path that replace the defaults, for programs that wrap this one.
    """
    config = load_config(argv, prog=prog, sections=SECTIONS, defaults=defaults)
    configure_logging("debug" if config.server.debug else config.server.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except OpenClawError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def serve(config: Config) -> None:
    """Run the server described by a configuration until it is stopped.

    Raises:
        ConfigError: the configuration cannot be served.
        EngineUnavailable: the engine does not start or keeps crashing.
    """
    check_exposure(config.server)
    _check_gpus(config)
    check_engine(config.engine)
    model = load_model(config)
    with bind(config.server) as listener:
        capture = open_capture(config.server)
        own_engine: OwnEngine | None = None
        if config.engine.engine_url:
            urls = _listed(config.engine.engine_url)
            if not config.engine.engine_token:
                log.warning(
                    "engines attached without ENGINE_TOKEN: any client that reaches them can replace their weights"
                )
        else:
            config = replace(config, engine=with_token(config.engine))
            port = free_port()
            urls = [f"http://127.0.0.1:{port}"]
            engine_log = config.server.rl_buffer_dir / "logs" / "engine.log"
            own_engine = OwnEngine(config.model, config.engine, port, engine_log)
        engines = [_client(url, config.engine) for url in urls]
        pool = EnginePool(engines, hung_s=config.engine.engine_hung_s, are_starting=own_engine is not None)
        app = App(
            model,
            pool,
            capture,
            gate=gate_of(config.server),
            max_concurrent_requests=config.server.max_concurrent_requests,
            max_body_bytes=config.server.max_body_memory_mb * 2**20,
        )
        try:
            await capture.restore()
            await pool.start()
            if config.server.enable_rl_intercept:
                _say_where(config, listener, urls)
            gc.freeze()  # modules, tokenizer and template are permanent; exclude them from collections
            gc.set_threshold(*_GC_THRESHOLD)
            sys.setswitchinterval(_SWITCH_S)
            await _serve_until_stopped(app, listener, own_engine, room_for(config.server.max_connections))
        finally:
            await pool.close()
            await capture.close()


def _check_gpus(config: Config) -> None:
    """Raise ConfigError when this machine lacks the engine's GPUs."""
    gpus = config.engine.engine_gpus
    if gpus and (config.model.device == "cpu" or config.engine.engine_url):
        where = "an attached engine uses its own GPUs" if config.engine.engine_url else "--device cpu"
        log.warning("--engine-gpus %s has no effect: %s", gpus, where)
    elif gpus:
        check_gpus({"--engine-gpus": gpus}, os.environ)


def _say_where(config: Config, listener: socket.socket, engine_urls: Sequence[str]) -> None:
    """Write the endpoint file that collectors and trainers of the same user on this machine read."""
    host, port = listener.getsockname()[:2]
    buffer_dir = config.server.rl_buffer_dir.resolve()
    Serving(
        api_endpoint=f"http://{f'[{host}]' if ':' in host else host}:{port}",
        model_path=str(Path(config.model.model_path).expanduser().resolve()),
        rl_buffer_dir=str(buffer_dir),
        engine_urls=tuple(engine_urls),
        engine_token=config.engine.engine_token,
        adapter_per=config.lora.served_per,
    ).write(buffer_dir)


async def _serve_until_stopped(
    app: App, listener: socket.socket, own_engine: OwnEngine | None, max_connections: int
) -> None:
    host, port = listener.getsockname()[:2]
    server = _Server(
        uvicorn.Config(
            app,
            http=cast(Any, partial(BoundedHttp, open_connections=Connections(max_connections))),
            loop="none",
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            backlog=2048,
            timeout_keep_alive=75,  # longer than clients keep idle connections, so that the client closes first
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )
    logging.getLogger("uvicorn.error").addFilter(CutStreamFilter())
    log.info("serving url=http://%s:%d/v1", host, port)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    if own_engine is None:
        await serving
        return
    supervising = asyncio.ensure_future(own_engine.run())
    try:
        await asyncio.wait([serving, supervising], return_when=asyncio.FIRST_COMPLETED)
        if supervising.done():
            server.should_exit = True
            await serving
            supervising.result()
    finally:
        supervising.cancel()
        await asyncio.wait([supervising], timeout=SHUTDOWN_S)


def _client(url: str, engine: EngineConfig) -> HttpEngine:
    return HttpEngine(
        url, token=engine.engine_token, timeout_s=engine.engine_timeout_s, stall_s=engine.generation_stall_s
    )


class _Server(uvicorn.Server):
    """uvicorn that exits with status 0 on SIGTERM or SIGINT; a second signal stops without draining requests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        log.info("stopping at_once=%s", self.should_exit)
        self.force_exit = self.should_exit
        self.should_exit = True


# ---- the parts


def check_exposure(server: ServerConfig) -> None:
    """Refuse to serve other machines without a key."""
    if not server.api_key and not _is_loopback(server.host):
        raise ConfigError(
            f"--host {server.host} is reachable from other machines: set OPENCLAW_API_KEY, or use 127.0.0.1"
        )


def gate_of(server: ServerConfig) -> Gate:
    """The gate of a server. Raises ConfigError when both keys are equal or other users can read the admin key file."""
    admin_key = server.admin_key
    if server.enable_rl_intercept and not admin_key:
        file = server.rl_buffer_dir / ADMIN_KEY_FILE
        admin_key = secret(file)
        log.info("feedback requires the admin key file=%s", file)
    if admin_key and admin_key == server.api_key:
        raise ConfigError(
            "OPENCLAW_ADMIN_KEY equals OPENCLAW_API_KEY, so an agent could rate its own replies; use different keys"
        )
    return Gate(
        api_key=server.api_key,
        admin_key=admin_key,
        host=server.host,
        allowed_hosts=_listed(server.allowed_hosts),
        allowed_origins=_listed(server.allowed_origins),
    )


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_model(config: Config) -> ServedModel:
    """The configured model with its chat format."""
    model_dir = check_model_dir(config.model.model_path)
    own_limit = context_length(model_dir)
    limit = config.engine.max_context_len
    return ServedModel(
        name=config.model.served_model_name or model_dir.resolve().name,
        chat=ChatFormat.load(model_dir),
        max_context=min(limit, own_limit) if limit else own_limit,
        default_max_tokens=config.server.default_max_tokens,
        lora=config.lora,
    )


def context_length(model_dir: Path) -> int:
    """The model's maximum sequence length, e.g. 40960; that of its text part if it has several."""
    settings = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    settings = settings.get("text_config", settings)
    return int(settings.get("max_position_embeddings", _DEFAULT_CONTEXT))


def open_capture(server: ServerConfig) -> Capture:
    if not server.enable_rl_intercept:
        log.info("capture is off; enable it with --enable-rl-intercept")
        return CaptureOff()
    log.info("capture on dir=%s", server.rl_buffer_dir)
    return CaptureOn(Store.open(server.rl_buffer_dir))


@contextlib.contextmanager
def bind(server: ServerConfig) -> Iterator[socket.socket]:
    """The listening socket. Raises ConfigError when the address cannot be bound."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((server.host, server.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}: {error.strerror}; choose another --port"
        ) from None
    with listener:
        yield listener


if __name__ == "__main__":
    sys.exit(main())
