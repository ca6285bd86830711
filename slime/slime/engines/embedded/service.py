"""The engine as the HTTP side sees it: streams of answers and weight updates. One event loop, one model thread.

Every request in flight has a `Ticket`; the model thread announces progress, once a step, which wakes the reader of the
answers. A reader that is slower than the model finds several tokens at once, never a queue that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

import torch
import transformers

from slime.config.gpus import compute_device
from slime.engines.core import EngineCore, Json
from slime.engines.dialect.answers import answer
from slime.engines.dialect.requests import GenerateCall, Limits, LoadAdapterCall, PauseMode, Sampling, UpdateCall
from slime.engines.dialect.versions import adapter_from_wire
from slime.engines.embedded.loop import EngineLoop, Result
from slime.engines.embedded.lora_layers import LiveAdapter
from slime.engines.embedded.model import RaggedModel
from slime.engines.embedded.sequence import Progress, Sequence
from slime.engines.embedded.slots import KVSlots
from slime.engines.embedded.text import ReplyText, TextDecoder
from slime.errors import EngineRejected, WeightsError
from slime.weights.adapters import fingerprint, read_adapter, verify_adapter
from slime.weights.models import read_weights, verify_weights

LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is set up: flags of its process, which `--help` explains.

    Attributes:
        weight_version: 0: the manifest's.
        lora_paths: names and directories of adapters to begin with.
    """

    model_path: str
    device: str = "auto"
    dtype: str = "auto"
    max_running_requests: int = 64
    max_queued_requests: int = 256
    context_length: int = 0
    kv_cache_bytes: int = 0
    num_cached_sessions: int = 64
    weight_version: int = 0
    incremental_streaming_output: bool = False
    lora_paths: Iterable[tuple[str, str]] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in flight, on the HTTP side."""

    sequence: Sequence
    reply: ReplyText
    num_tokens: int = 0
    finished: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class EngineService(EngineCore[Ticket]):
    """Owns the loop."""

    def __init__(self, options: EngineOptions) -> None:
        device = torch.device(compute_device(options.device))
        dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
        given_version = verify_weights(options.model_path).version
        self.model = RaggedModel(options.model_path, device=device, dtype=dtype)
        self.decoder = TextDecoder(options.model_path)
        num_running = options.max_running_requests + 1  # one more, so that a health check finds room
        kv = KVSlots(
            self.model.cache_shape,
            max_busy=num_running,
            num_slots=num_running + options.num_cached_sessions,
            max_length=min(options.context_length or self.model.max_context_len, self.model.max_context_len),
            budget_bytes=options.kv_cache_bytes or _default_budget(device),
        )
        super().__init__(
            options.model_path,
            options.weight_version or given_version,
            Limits(self.model.vocab_size, kv.max_length),
            max_running_requests=options.max_running_requests,
            max_queued_requests=options.max_queued_requests,
            is_incremental=options.incremental_streaming_output,
        )
        self.loop = EngineLoop(
            self.model,
            kv,
            version=self.version,
            max_running=options.max_running_requests,
            deliver=self._deliver,
            decoder=self.decoder,
        )
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._base: str | None = None  # fingerprint of what is served, once an adapter is checked against it
        self._adapter_keys = itertools.count(1)
        self._live: dict[str, LiveAdapter] = {}
        for name, path in options.lora_paths:
            self._live[name] = self._stage_adapter(LoadAdapterCall(lora_name=name, lora_path=path))
            self.adapters[name] = path
            self.model.layers.attach(self._live[name].pairs)

    def start(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self.loop.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self.loop.stop)

    @property
    def is_alive(self) -> bool:
        return self.loop.is_alive

    def serve(self, call: GenerateCall) -> AsyncGenerator[Json]:
        return self._answers(self._open(Sequence(call, self._live.get(call.lora_path))))

    def _open(self, sequence: Sequence) -> Ticket:
        call = sequence.call
        params = call.sampling_params
        reply = ReplyText(self.decoder, call.input_ids, skip_special=params.skip_special_tokens, stops=params.stop)
        ticket = self.requests[call.rid] = Ticket(sequence, reply)
        self.loop.submit(sequence)
        return ticket

    async def _answers(self, ticket: Ticket) -> AsyncGenerator[Json]:
        sequence, call, output = ticket.sequence, ticket.sequence.call, ticket.sequence.output
        num_decoded = 0
        try:
            while True:
                await ticket.news.wait()
                ticket.news.clear()
                num_tokens, finished = ticket.num_tokens, ticket.finished
                new_ids = output.token_ids[num_decoded:num_tokens]
                output.text = self._final_text(ticket, new_ids) if finished else ticket.reply.extend(new_ids)
                num_decoded = num_tokens
                said = answer(call, output, num_tokens, is_incremental=self.is_incremental)
                said["meta_info"]["num_retractions"] = sequence.num_retractions
                yield said
                if finished:
                    return
        finally:
            if not ticket.finished:
                self.abort(call.rid)

    def _final_text(self, ticket: Ticket, new_ids: list[int]) -> str:
        matched = (ticket.sequence.output.finish_reason or {}).get("matched")
        keep_stop = ticket.sequence.call.sampling_params.no_stop_trim
        if isinstance(matched, int) and not keep_stop:
            new_ids = new_ids[:-1]
        return ticket.reply.finish(new_ids, stop=matched if isinstance(matched, str) else None, keep_stop=keep_stop)

    def abort(self, request_id: str) -> None:
        ticket = self.requests.get(request_id)
        if ticket is not None:
            self.loop.call(lambda: self.loop.abort(lambda sequence: sequence is ticket.sequence))

    async def pause(self, mode: PauseMode) -> None:
        await self._on_loop(lambda: self.loop.pause(mode))

    async def resume(self) -> None:
        await self._on_loop(self.loop.resume)

    async def flush_cache(self, timeout_s: float = 0.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while not (done := await self._on_loop(self.loop.flush_cache)):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.05)
        return done

    async def _exchange(self, call: UpdateCall) -> None:
        """Reading happens beside the running requests; they only wait for the exchange of pointers and the probe."""
        if self.adapters:
            raise EngineRejected("adapters of the weights being served are loaded: unload them first")
        staged = await asyncio.to_thread(self._stage, call.model_path)
        if call.abort_all_requests:
            self.abort_all()
        await self._on_loop(lambda: self.loop.exchange_weights(staged, call.version, flush=call.flush_cache))
        self._base = None

    def _stage(self, weights_dir: str) -> dict[str, torch.Tensor]:
        verify_weights(weights_dir)
        return self.model.stage(read_weights(weights_dir))

    async def _load(self, call: LoadAdapterCall) -> None:
        adapter = await asyncio.to_thread(self._stage_adapter, call)
        await self._on_loop(lambda: self.model.layers.attach(adapter.pairs))
        self._live[call.lora_name] = adapter

    async def _unload(self, name: str) -> None:
        """Its memory goes with the last request that runs on it."""
        adapter = self._live.pop(name)
        await self._on_loop(lambda: self.loop.kv.forget(adapter=adapter.key))

    def _stage_adapter(self, call: LoadAdapterCall) -> LiveAdapter:
        path = call.lora_path
        if self._base is None:
            self._base = fingerprint(self.model_path)
        version = verify_adapter(path, self._base).version
        named = adapter_from_wire(call.lora_name)
        if named is not None and named[1] != version:
            raise WeightsError(f"{path} holds version {version}, not {named[1]} as the name {call.lora_name} says")
        return LiveAdapter(version, next(self._adapter_keys), self.model.layers.stage(read_adapter(path)))

    async def is_healthy(self, timeout_s: float) -> bool:
        """A pause as short as a weight update's only has to be answered in."""
        if not self.loop.is_alive:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self.loop.is_paused:
                    if time.monotonic() - self.loop.paused_at > LONGEST_PAUSE_S:
                        return False  # the pausing client does not come back
                    await self._on_loop(lambda: None)
                    return True
                greedy = Sampling(temperature=0.0, max_new_tokens=1)
                call = GenerateCall(rid=f"HEALTH_CHECK_{uuid.uuid4().hex}", input_ids=(0,), sampling_params=greedy)
                async for said in self._answers(self._open(Sequence(call, is_probe=True))):
                    return bool(said["meta_info"]["finish_reason"]["type"] != "abort")
        return False

    async def figures(self) -> Json:
        return {
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "internal_states": [await self._on_loop(self.loop.state)],
            "version": f"openclaw-embedded transformers-{transformers.__version__}",
        }

    async def _on_loop(self, function: Callable[[], Result]) -> Result:
        """Run a function between two steps."""
        return await asyncio.wrap_future(self.loop.call(function))

    def _deliver(self, events: list[Progress]) -> None:
        """Called on the model thread, once a step."""
        assert self._event_loop is not None
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._take_in, events)

    def _take_in(self, events: list[Progress]) -> None:
        for event in events:
            ticket = self.requests.get(event.sequence.call.rid)
            if ticket is None or ticket.sequence is not event.sequence:
                continue
            ticket.num_tokens, ticket.finished = event.num_tokens, event.finished
            ticket.news.set()
            if event.finished:
                del self.requests[event.sequence.call.rid]


def _default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] // 2)
    return 4 << 30
