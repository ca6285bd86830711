"""The engine as the HTTP side sees it: admission, streams of answers, weight updates. One event loop, one model thread.

Every request in flight has a `Ticket`; the model thread announces progress, once a step, and the tickets wake
whoever waits for them. A reader that is slower than the model finds several tokens at once, never a queue that grows.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from slime.config.gpus import compute_device
from slime.engines.dialect import (
    GenerateCall,
    LoadAdapterCall,
    PauseMode,
    UpdateCall,
    adapter_from_wire,
    already_loaded,
    answer,
    not_loaded,
)
from slime.engines.embedded.loop import EngineLoop
from slime.engines.embedded.lora_layers import LiveAdapter
from slime.engines.embedded.model import RaggedModel
from slime.engines.embedded.sequence import Limits, Progress, Sequence
from slime.engines.embedded.slots import KVSlots
from slime.engines.embedded.text import ReplyText, TextDecoder
from slime.errors import EngineRejected, EngineUnavailable, WeightsError
from slime.types import SamplingParams
from slime.weights.adapters import fingerprint, read_adapter, verify_adapter
from slime.weights.directories import read_weights, verify_weights

LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is set up.

    Attributes:
        device: `cpu`, `cuda`, `cuda:1`; auto: cuda where there is one.
        dtype: auto: float32 on a CPU, else the checkpoint's.
        max_context_len: longest prompt plus reply; 0 = the model's own limit.
        kv_cache_bytes: memory for keys and values; 0 = 4 GiB on a CPU, half of what is free on a GPU.
        num_cached_sessions: slots beyond those of running requests, for finished sequences to stay in.
        policy_version: of the weights given; None: the manifest's, else 0.
        is_incremental: streams say only what is new, as SGLang does with --incremental-streaming-output.
        adapters: directories of adapters to begin with, by name.
    """

    model_path: str
    device: str = "auto"
    dtype: str = "auto"
    max_running_requests: int = 64
    max_queued_requests: int = 256
    max_context_len: int = 0
    kv_cache_bytes: int = 0
    num_cached_sessions: int = 64
    policy_version: int | None = None
    is_incremental: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in flight, on the HTTP side."""

    sequence: Sequence
    reply: ReplyText
    num_tokens: int = 0
    finished: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    submitted_at: float = field(default_factory=time.perf_counter)


class EngineService:
    """Owns the loop. All methods are called on one event loop."""

    def __init__(self, options: EngineOptions) -> None:
        device = torch.device(compute_device(options.device))
        dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
        given_version = verify_weights(options.model_path).version
        self.options = options
        self.model = RaggedModel.load(options.model_path, device=device, dtype=dtype)
        self.decoder = TextDecoder.load(options.model_path)
        shape = self.model.cache_shape
        kv = KVSlots(
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=self.model.dtype,
            device=device,
            max_busy=options.max_running_requests + 1,  # one more, so that a health check finds room
            num_slots=options.max_running_requests + 1 + options.num_cached_sessions,
            max_length=min(options.max_context_len or self.model.max_context_len, self.model.max_context_len),
            budget_bytes=options.kv_cache_bytes or _default_budget(device),
        )
        self.limits = Limits(self.model.vocab_size, kv.max_length)
        self.model_path = options.model_path
        self.loop = EngineLoop(
            self.model,
            kv,
            version=given_version if options.policy_version is None else options.policy_version,
            max_running=options.max_running_requests,
            deliver=self._deliver,
            find_stop=lambda sequence: self.decoder.find_stop(sequence.output_ids, sequence.call.sampling.stop),
        )
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._tickets: dict[str, Ticket] = {}
        self._update_lock = asyncio.Lock()
        self._base: str | None = None  # fingerprint of what is served, once somebody wanted to know
        self._adapter_keys = itertools.count(1)
        self._adapters: dict[str, LiveAdapter] = {}
        for name, path in options.adapters.items():
            self._adapters[name] = adapter = self._stage_adapter(LoadAdapterCall(name, path))
            self.model.layers.attach(adapter.pairs)

    def start(self) -> None:
        """Start computing; events go to the event loop that runs now."""
        self._event_loop = asyncio.get_running_loop()
        self.loop.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self.loop.stop)

    @property
    def tokenizer_path(self) -> str:
        return self.options.model_path

    @property
    def version(self) -> int:
        return self.loop.version

    @property
    def vocab_size(self) -> int:
        return self.limits.vocab_size

    @property
    def is_alive(self) -> bool:
        return self.loop.is_alive

    @property
    def is_instant(self) -> bool:
        return False

    def admit(self, call: GenerateCall) -> AsyncGenerator[dict[str, Any]]:
        """The answers to a request, or a refusal; see `slime.engines.http.EngineCore`."""
        return self.answers(self.open(call))

    def open(self, call: GenerateCall) -> Ticket:
        """Admit a request, or refuse it: `EngineUnavailable` when running and waiting places are all taken."""
        if call.rid in self._tickets:
            raise EngineRejected(f"Duplicate request ID detected: {call.rid}")
        if call.adapter and call.adapter not in self._adapters:
            raise not_loaded(call.adapter)
        sequence = Sequence.admit(call, self.limits, self._adapters.get(call.adapter))
        if len(self._tickets) >= self.options.max_running_requests + self.options.max_queued_requests:
            raise EngineUnavailable("The request queue is full.")
        return self._open(sequence)

    def _open(self, sequence: Sequence) -> Ticket:
        call = sequence.call
        reply = ReplyText(self.decoder, call.input_ids, skip_special=call.skip_special_tokens, stops=call.sampling.stop)
        ticket = self._tickets[call.rid] = Ticket(sequence, reply)
        self.loop.submit(sequence)
        return ticket

    async def answers(self, ticket: Ticket) -> AsyncGenerator[dict[str, Any]]:
        """The answers to a request as they become known, the last one with a finish reason. Closing early aborts it."""
        sequence, call = ticket.sequence, ticket.sequence.call
        num_decoded = tokens_sent = chars_sent = 0
        try:
            while True:
                await ticket.news.wait()
                ticket.news.clear()
                num_tokens, finished = ticket.num_tokens, ticket.finished
                new_ids = sequence.output_ids[num_decoded:num_tokens]
                text = self._final_text(ticket, new_ids) if finished else ticket.reply.extend(new_ids)
                num_decoded = num_tokens
                output = sequence.output(num_tokens, text, sequence.version(self.loop.version))
                said = answer(call, output, tokens_sent=tokens_sent, chars_sent=chars_sent)
                said["meta_info"]["num_retractions"] = sequence.num_retractions
                if finished:
                    said["meta_info"]["e2e_latency"] = time.perf_counter() - ticket.submitted_at
                if self.options.is_incremental and call.stream:
                    tokens_sent, chars_sent = num_tokens, len(text)
                yield said
                if finished:
                    return
        finally:
            if not ticket.finished:
                self.abort(call.rid)

    def _final_text(self, ticket: Ticket, new_ids: list[int]) -> str:
        call, matched = ticket.sequence.call, (ticket.sequence.finish_reason or {}).get("matched")
        if isinstance(matched, int) and not call.no_stop_trim:
            new_ids = new_ids[:-1]
        stop = matched if isinstance(matched, str) else None
        return ticket.reply.finish(new_ids, stop=stop, keep_stop=call.no_stop_trim)

    def abort(self, request_id: str) -> None:
        """End a request where it is; its answer says so. Unknown ids are no error: it may just have ended."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            self.loop.call(lambda: self.loop.abort(lambda sequence: sequence is ticket.sequence))

    def abort_all(self) -> None:
        self.loop.call(lambda: self.loop.abort(lambda sequence: True))

    async def pause(self, mode: PauseMode) -> None:
        await asyncio.wrap_future(self.loop.call(lambda: self.loop.pause(mode)))

    async def resume(self) -> None:
        await asyncio.wrap_future(self.loop.call(self.loop.resume))

    async def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Drop the prefix cache; waits up to `timeout_s` for running requests to end."""
        deadline = time.monotonic() + timeout_s
        while not (done := await asyncio.wrap_future(self.loop.call(self.loop.flush_cache))):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.05)
        return done

    async def update_weights(self, call: UpdateCall) -> None:
        """Read, verify and serve the weights in a directory; on a `WeightsError` the old ones stay in service.

        Reading happens beside the running requests; they only wait for the exchange of pointers and the probe.
        """
        async with self._update_lock:
            if self._adapters:
                raise EngineRejected("adapters of the weights being served are loaded: unload them first")
            staged = await asyncio.to_thread(self._stage, call.model_path)
            if call.abort_all_requests:
                self.abort_all()
            exchanged = self.loop.call(lambda: self.loop.exchange_weights(staged, call.version, flush=call.flush_cache))
            await asyncio.wrap_future(exchanged)
            self.model_path, self._base = call.model_path, None

    def _stage(self, weights_dir: str) -> dict[str, torch.Tensor]:
        verify_weights(weights_dir)
        return self.model.stage(read_weights(weights_dir))

    @property
    def adapters(self) -> dict[str, str]:
        """The directories of the adapters that are loaded, by name."""
        return {name: adapter.path for name, adapter in self._adapters.items()}

    async def load_adapter(self, call: LoadAdapterCall) -> None:
        """Serve an adapter beside the base from now on, under a name that is free; nobody waits for it.

        Raises:
            WeightsError: it is corrupt, or was trained on other weights.
        """
        async with self._update_lock:
            if call.wire_name in self._adapters:
                raise already_loaded(call.wire_name)
            adapter = await asyncio.to_thread(self._stage_adapter, call)
            await asyncio.wrap_future(self.loop.call(lambda: self.model.layers.attach(adapter.pairs)))
            self._adapters[call.wire_name] = adapter

    async def unload_adapter(self, wire_name: str) -> None:
        """Refuse new requests for an adapter; those that run go on with it, and its memory goes with the last."""
        adapter = self._adapters.pop(wire_name, None)
        if adapter is None:
            raise not_loaded(wire_name)
        await asyncio.wrap_future(self.loop.call(lambda: self.loop.kv.forget_adapter(adapter.key)))

    def _stage_adapter(self, call: LoadAdapterCall) -> LiveAdapter:
        if self._base is None:
            self._base = fingerprint(self.model_path)
        version = verify_adapter(call.path, self._base).version
        named = adapter_from_wire(call.wire_name)
        if named is not None and named[1] != version:
            raise WeightsError(f"{call.path} holds version {version}, not {named[1]} as the name {call.wire_name} says")
        pairs = self.model.layers.stage(read_adapter(call.path))
        return LiveAdapter(call.wire_name, version, call.path, next(self._adapter_keys), pairs)

    async def is_healthy(self, timeout_s: float) -> bool:
        """Whether a token comes out in time. A pause as short as a weight update's only has to be answered in."""
        if not self.loop.is_alive:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                if self.loop.is_paused:
                    if time.monotonic() - self.loop.paused_at > LONGEST_PAUSE_S:
                        return False  # whoever paused it does not come back
                    await asyncio.wrap_future(self.loop.call(lambda: None))
                    return True
                sampling = SamplingParams(temperature=0.0, max_new_tokens=1)
                call = GenerateCall(f"HEALTH_CHECK_{uuid.uuid4().hex}", (0,), sampling, max_new_tokens=1)
                probe = Sequence(call, max_new_tokens=1, score_start=1, is_probe=True)
                async for said in self.answers(self._open(probe)):
                    return bool(said["meta_info"]["finish_reason"]["type"] != "abort")
        except TimeoutError:
            pass
        return False

    async def state(self) -> dict[str, Any]:
        return await asyncio.wrap_future(self.loop.call(self.loop.state))

    async def info(self) -> dict[str, Any]:
        state, options = await self.state(), self.options
        return {
            "model_path": self.model_path,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "context_length": self.limits.context_len,
            "max_running_requests": options.max_running_requests,
            "max_queued_requests": options.max_queued_requests,
            "incremental_streaming_output": options.is_incremental,
            "weight_version": state["weight_version"],
            "lora_paths": self.adapters,
            "internal_states": [state],
            "version": f"openclaw-embedded transformers-{transformers.__version__}",
        }

    def _deliver(self, events: list[Progress]) -> None:
        """Called on the model thread, once a step."""
        assert self._event_loop is not None
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._take_in, events)

    def _take_in(self, events: list[Progress]) -> None:
        for event in events:
            ticket = self._tickets.get(event.sequence.call.rid)
            if ticket is None or ticket.sequence is not event.sequence:
                continue
            ticket.num_tokens, ticket.finished = event.num_tokens, event.finished
            ticket.news.set()
            if event.finished:
                del self._tickets[event.sequence.call.rid]


def _default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] // 2)
    return 4 << 30
