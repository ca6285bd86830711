"""The scripted engine itself, whatever carries its answers: admission, tokens, pauses, versions, aborts, faults.

    call ─▶ admit ─▶ (wait for a place) ─▶ a token at a time ─▶ the answers, one a token
                                              ▲ pause / continue    ▲ abort    ▲ update_weights

Weights are only a version number here, and so are adapters; loading checks that there is a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.engines import dialect
from slime.engines.dialect import Entry, GenerateCall, LoadAdapterCall, Output, PauseMode, UpdateCall
from slime.engines.scripted.faults import Fault, Faults, InjectedFault
from slime.engines.scripted.script import Line, Script, declared_logprob, declared_top
from slime.errors import EngineRejected, EngineUnavailable

UNPUBLISHED_VERSION = "unpublished"  # what a WRONG_VERSION fault reports


@dataclass(slots=True, eq=False)
class _Running:
    """A request under way."""

    call: GenerateCall
    line: Line
    output: Output
    fault: Fault | None
    adapter_version: int | None = None  # None: the base answers
    is_aborted: bool = False
    num_searched: int = 0  # characters of the text in which no stop string begins


class ScriptedCore:
    """State of one scripted engine; lives in one event loop."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        model_path: str = "",
        version: int = 0,
        token_delay_s: float = 0.0,
        first_token_delay_s: float = 0.0,
        max_running_requests: int = 0,
        max_queued_requests: int = 256,
        is_incremental: bool = False,
    ) -> None:
        """
        Args:
            token_delay_s, first_token_delay_s: how long a token takes; the first one takes both.
            max_running_requests: 0 = as many as come.
            is_incremental: events of a stream hold only what is new.
        """
        self.script = script or Script()
        self.model_path = self._model_dir = model_path
        self.is_alive = True
        self.version = version
        self.token_delay_s = token_delay_s
        self.first_token_delay_s = first_token_delay_s
        self.max_running_requests = max_running_requests
        self.max_queued_requests = max_queued_requests
        self.is_incremental = is_incremental
        self.adapters: dict[str, str] = {}
        self.faults = Faults()
        self._requests: dict[str, _Running] = {}
        self._num_running = 0
        self._changed = asyncio.Event()  # set, and replaced, whenever a waiting request should look again
        self._is_paused = False

    # ── generating ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def tokenizer_path(self) -> str:
        return self._model_dir

    @property
    def vocab_size(self) -> int:
        return self.script.vocabulary.size

    @property
    def is_instant(self) -> bool:
        is_slow = self.token_delay_s or self.first_token_delay_s or self.max_running_requests
        return not (is_slow or self._is_paused or self.faults.are_planned)

    def start(self) -> None:
        """It computes nothing by itself."""

    async def stop(self) -> None:
        self.abort_all()

    def admit(self, call: GenerateCall) -> AsyncGenerator[dict[str, Any], None]:
        """The answers to a request. Closing them early ends it.

        Raises:
            EngineRejected: it is wrong.
            EngineUnavailable: the queue is full.
            InjectedFault: what goes wrong is for a transport to show; from the answers too.
        """
        vocabulary = self.script.vocabulary
        if len(call.input_ids) + (call.max_new_tokens or 0) > vocabulary.context_len:
            raise EngineRejected(
                f"{len(call.input_ids)} tokens of prompt and {call.max_new_tokens} of reply exceed the context length "
                f"of {vocabulary.context_len} tokens."
            )
        if call.adapter and call.adapter not in self.adapters:
            raise dialect.not_loaded(call.adapter)
        if call.rid in self._requests:
            raise EngineRejected(f"Duplicate request ID detected: {call.rid}")
        fault = self.faults.draw()
        if fault in (Fault.HTTP_500, Fault.HTTP_503):
            raise InjectedFault(fault)
        if self.max_running_requests and len(self._requests) >= self.max_running_requests + self.max_queued_requests:
            raise EngineUnavailable("The request queue is full.")
        return self._serve(call, fault)

    async def _serve(self, call: GenerateCall, fault: Fault | None) -> AsyncGenerator[dict[str, Any], None]:
        line = self.script.line_for(call.input_ids, call.skip_special_tokens)
        named = dialect.adapter_from_wire(call.adapter)
        adapter_version = named[1] if named is not None else None
        running = _Running(call, line, Output(len(call.input_ids), self.version), fault, adapter_version)
        running.output.version = self._version(running)
        self._requests[call.rid] = running
        has_place = False
        try:
            if fault is Fault.HANG:
                await asyncio.Event().wait()
            has_place = await self._take_place(running)
            async for answer in self._answers(running):
                yield answer
        finally:
            del self._requests[call.rid]
            if has_place:
                self._num_running -= 1
                self._wake()

    async def _take_place(self, running: _Running) -> bool:
        while self.max_running_requests and self._num_running >= self.max_running_requests:
            if running.is_aborted:
                return False
            await self._changed.wait()
        self._num_running += 1
        return True

    async def _answers(self, running: _Running) -> AsyncGenerator[dict[str, Any], None]:
        call, output = running.call, running.output
        if call.return_logprob and call.logprob_start_len >= 0:
            self._score_prompt(call, output, self._version(running))
        num_sent = num_chars = num_answers = 0
        while output.finish_reason is None:
            await self._wait_for_token(running)
            self._step(running)
            half = (call.max_new_tokens or len(running.line.ids)) // 2
            if running.fault is Fault.CUT and (not call.stream or len(output.token_ids) > half):
                raise InjectedFault(Fault.CUT, is_begun=call.stream and bool(num_answers))
            if call.stream or output.finish_reason is not None:
                if running.fault is Fault.BAD_JSON and (output.finish_reason or len(output.token_ids) > half):
                    raise InjectedFault(Fault.BAD_JSON, is_begun=call.stream and bool(num_answers))
                answer = dialect.answer(call, output, tokens_sent=num_sent, chars_sent=num_chars)
                yield _spoil(answer, running.fault)
                num_answers += 1
                if self.is_incremental:
                    num_sent, num_chars = len(output.token_ids), len(output.text)

    async def _wait_for_token(self, running: _Running) -> None:
        delay = self.token_delay_s
        if running.is_aborted:
            return
        if not running.output.token_ids:
            delay += self.first_token_delay_s
        if running.fault is Fault.SLOW:
            delay += 1.0
        if delay:
            await asyncio.sleep(delay)
        while self._is_paused and not running.is_aborted:
            await self._changed.wait()

    def _step(self, running: _Running) -> None:
        """One more token, or the end."""
        call, output, line = running.call, running.output, running.line
        output.version = self._version(running)
        index = len(output.token_ids)
        if running.is_aborted:
            output.finish_reason = dialect.aborted()
        elif call.max_new_tokens == 0:
            output.finish_reason = dialect.ran_out(0)
        else:
            # A request that ignores the end token hears the reply again and again, without that token.
            length = len(line.ids) - 1 if call.ignore_eos and len(line.ids) > 1 else len(line.ids)
            token_id, piece = line.ids[index % length], line.pieces[index % length]
            self._emit(output, token_id, len(call.input_ids) + index, call)
            is_end = not call.ignore_eos and self._is_end(call, token_id) and index >= call.min_new_tokens
            if not is_end or call.no_stop_trim:
                output.text += piece
            if is_end:
                output.finish_reason = dialect.stopped(token_id)
            else:
                self._finish_if_due(running)

    def _version(self, running: _Running) -> int:
        """What makes the tokens of a request now: its adapter, which stays what it is, or the base."""
        return self.version if running.adapter_version is None else running.adapter_version

    def _is_end(self, call: GenerateCall, token_id: int) -> bool:
        return token_id == self.script.vocabulary.eos_id or token_id in call.sampling.stop_token_ids

    def _emit(self, output: Output, token_id: int, position: int, call: GenerateCall) -> None:
        size, version = self.script.vocabulary.size, output.version
        index = len(output.token_ids)
        output.token_ids.append(token_id)
        output.logprobs.append(declared_logprob(token_id, position, version, size))
        dialect.extend_spans(output.spans, version, index, index + 1)
        if call.top_logprobs_num:
            output.output_top = output.output_top or []
            output.output_top.append(self._top(call, position, version))
        if call.token_ids_logprob:
            output.output_ids_logprobs = output.output_ids_logprobs or []
            output.output_ids_logprobs.append(
                [(declared_logprob(i, position, version, size), i, None) for i in call.token_ids_logprob]
            )

    def _finish_if_due(self, running: _Running) -> None:
        call, output = running.call, running.output
        for stop in call.sampling.stop:
            found = output.text.find(stop, max(0, running.num_searched - len(stop)))
            if found >= 0:
                output.finish_reason = dialect.stopped(stop)
                output.text = output.text[: found + len(stop) if call.no_stop_trim else found]
                return
        running.num_searched = len(output.text)
        room = self.script.vocabulary.context_len - len(call.input_ids)
        if len(output.token_ids) >= (room if call.max_new_tokens is None else call.max_new_tokens):
            output.finish_reason = dialect.ran_out(len(output.token_ids))

    def _score_prompt(self, call: GenerateCall, output: Output, version: int) -> None:
        size = self.script.vocabulary.size
        first, *scored = range(call.logprob_start_len, len(call.input_ids)) or [len(call.input_ids)]
        if first == len(call.input_ids):
            return

        def entry(position: int, token_id: int) -> Entry:
            return declared_logprob(token_id, position, version, size), token_id, None

        output.input_logprobs = [
            (None, call.input_ids[first], None),
            *(entry(position, call.input_ids[position]) for position in scored),
        ]
        if call.top_logprobs_num:
            output.input_top = [None, *(self._top(call, position, version) for position in scored)]
        if call.token_ids_logprob:
            output.input_ids_logprobs = [None, *([entry(p, i) for i in call.token_ids_logprob] for p in scored)]

    def _top(self, call: GenerateCall, position: int, version: int) -> list[Entry]:
        likeliest = declared_top(call.top_logprobs_num, position, version, self.script.vocabulary.size)
        return [(logprob, token_id, None) for logprob, token_id in likeliest]

    # ── control ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def abort(self, request_id: str) -> None:
        self._abort(lambda running: running.call.rid == request_id)

    def abort_all(self) -> None:
        self._abort(lambda running: True)

    def _abort(self, is_meant: Callable[[_Running], bool]) -> None:
        for running in filter(is_meant, self._requests.values()):
            running.is_aborted = True
        self._wake()

    async def pause(self, mode: PauseMode) -> None:
        if mode == "abort":
            self.abort_all()
        self._is_paused = True

    async def resume(self) -> None:
        self._is_paused = False
        self._wake()

    async def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Nothing is cached."""
        return True

    async def update_weights(self, call: UpdateCall) -> None:
        _check_directory(call.model_path)
        if call.abort_all_requests:
            self.abort_all()
        self.version = call.version
        self.model_path = call.model_path

    async def load_adapter(self, call: LoadAdapterCall) -> None:
        if call.wire_name in self.adapters:
            raise dialect.already_loaded(call.wire_name)
        _check_directory(call.path)
        self.adapters[call.wire_name] = call.path

    async def unload_adapter(self, wire_name: str) -> None:
        """Requests that run go on with it."""
        if self.adapters.pop(wire_name, None) is None:
            raise dialect.not_loaded(wire_name)

    async def is_healthy(self, timeout_s: float) -> bool:
        """A scripted engine is always well; its faults are those of requests."""
        return True

    async def info(self) -> dict[str, Any]:
        return {
            "model_path": self.model_path,
            "max_running_requests": self.max_running_requests,
            "max_queued_requests": self.max_queued_requests,
            "incremental_streaming_output": self.is_incremental,
            "context_length": self.script.vocabulary.context_len,
            "version": "scripted",
            "internal_states": [{"num_requests": len(self._requests)}],
        }

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _check_directory(path: str) -> None:
    if not Path(path).is_dir():
        raise EngineRejected(f"there is no directory {path}")


def _spoil(payload: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    meta = payload["meta_info"]
    entries = meta.get("output_token_logprobs")
    if fault is Fault.NAN_LOGPROB and entries:
        entries[0] = (float("nan"), entries[0][1], None)
    elif fault is Fault.WRONG_COUNT and entries:
        entries.pop()
    elif fault is Fault.WRONG_VERSION:
        meta["weight_version"] = UNPUBLISHED_VERSION
        for span in meta.get("weight_versions", []):
            span["version"] = UNPUBLISHED_VERSION
    return payload
