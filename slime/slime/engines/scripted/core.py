"""The scripted engine itself, whatever carries its answers: tokens, pauses, versions, aborts, faults.

    call ─▶ serve ─▶ (wait for a place) ─▶ a token at a time ─▶ the answers, one a token
                                              ▲ pause / continue    ▲ abort    ▲ update_weights

Weights are only a version number here, and so are adapters; loading checks that there is a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime.engines.core import EngineCore, Json
from slime.engines.dialect.answers import Entry, Output, aborted, answer, ran_out, stopped
from slime.engines.dialect.requests import GenerateCall, Limits, LoadAdapterCall, PauseMode, UpdateCall
from slime.engines.dialect.versions import adapter_from_wire
from slime.engines.scripted.faults import Fault, Faults, InjectedFault
from slime.engines.scripted.script import Line, Script, declared_logprob, declared_top
from slime.errors import EngineRejected

UNPUBLISHED_VERSION = "unpublished"  # what a WRONG_VERSION fault reports


@dataclass(slots=True, eq=False)
class _Running:
    """A request under way."""

    call: GenerateCall
    line: Line
    fault: Fault | None
    adapter_version: int | None  # None: the base answers
    output: Output = field(default_factory=Output)
    is_aborted: bool = False


class ScriptedCore(EngineCore[_Running]):
    """State of one scripted engine; lives in one event loop."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        model_path: str = "",
        version: int = 0,
        token_delay_s: float = 0.0,
        first_token_delay_s: float = 0.0,
        **places: Any,
    ) -> None:
        """
        Args:
            token_delay_s, first_token_delay_s: how long a token takes; the first one takes both.
            places: what `EngineCore` takes further.
        """
        self.script = script or Script()
        vocabulary = self.script.vocabulary
        super().__init__(model_path, version, Limits(vocabulary.size, vocabulary.context_len), **places)
        self.token_delay_s = token_delay_s
        self.first_token_delay_s = first_token_delay_s
        self.faults = Faults()
        self._num_running = 0
        self._changed = asyncio.Event()  # set, and replaced, whenever a waiting request should look again
        self._is_paused = False

    # ── generating ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_instant(self) -> bool:
        is_slow = self.token_delay_s or self.first_token_delay_s or self.max_running_requests
        return not (is_slow or self._is_paused or self.faults.are_planned)

    async def stop(self) -> None:
        self.abort_all()

    def serve(self, call: GenerateCall) -> AsyncGenerator[Json]:
        """Raises InjectedFault, as the answers do: what goes wrong is for a transport to show."""
        fault = self.faults.draw()
        if fault in (Fault.HTTP_500, Fault.HTTP_503):
            raise InjectedFault(fault)
        return self._serve(call, fault)

    async def _serve(self, call: GenerateCall, fault: Fault | None) -> AsyncGenerator[Json]:
        line = self.script.line_for(call.input_ids, call.sampling_params.skip_special_tokens)
        _, adapter_version = adapter_from_wire(call.lora_path) or ("", None)
        running = self.requests[call.rid] = _Running(call, line, fault, adapter_version)
        has_place = False
        try:
            if fault is Fault.HANG:
                await asyncio.Event().wait()
            has_place = await self._take_place(running)
            async for said in self._answers(running):
                yield said
        finally:
            del self.requests[call.rid]
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

    async def _answers(self, running: _Running) -> AsyncGenerator[Json]:
        call, output, fault = running.call, running.output, running.fault
        self._score_prompt(running)
        half = (call.max_new_tokens or len(running.line.ids)) // 2
        is_begun = False
        while output.finish_reason is None:
            await self._wait_for_token(running)
            self._step(running)
            is_halfway = len(output.token_ids) > half
            is_cut = fault is Fault.CUT and (is_halfway or not call.stream)
            is_bad = fault is Fault.BAD_JSON and (is_halfway or output.finish_reason is not None)
            if fault is not None and (is_cut or is_bad):
                raise InjectedFault(fault, is_begun=is_begun)
            if call.stream or output.finish_reason is not None:
                yield _spoil(answer(call, output, is_incremental=self.is_incremental), fault)
                is_begun = call.stream

    async def _wait_for_token(self, running: _Running) -> None:
        if running.is_aborted:
            return
        delay = self.token_delay_s + (1.0 if running.fault is Fault.SLOW else 0.0)
        if not running.output.token_ids:
            delay += self.first_token_delay_s
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
            output.finish_reason = aborted()
        elif call.max_new_tokens == 0:
            output.finish_reason = ran_out(0)
        else:
            params = call.sampling_params
            # A request that ignores the end token hears the reply again and again, without that token.
            length = len(line.ids) - 1 if params.ignore_eos and len(line.ids) > 1 else len(line.ids)
            token_id, piece = line.ids[index % length], line.pieces[index % length]
            position = len(call.input_ids) + index
            logprob = declared_logprob(token_id, position, output.version, self.limits.vocab_size)
            output.append(token_id, logprob, output.version)
            self._add_rows(call, position, output.version, output.top, output.chosen)
            is_stop_id = token_id == self.script.vocabulary.eos_id or token_id in params.stop_token_ids
            is_end = is_stop_id and not params.ignore_eos and index >= params.min_new_tokens
            if not is_end or params.no_stop_trim:
                output.text += piece
            output.finish_reason = stopped(token_id) if is_end else self._end(call, output, len(piece))

    def _version(self, running: _Running) -> int:
        """What makes the tokens of a request now: its adapter, which stays what it is, or the base."""
        return self.version if running.adapter_version is None else running.adapter_version

    def _end(self, call: GenerateCall, output: Output, num_new: int) -> Json | None:
        """Why the reply ends with its last `num_new` characters, if it does; a stop string is cut."""
        for stop in call.sampling_params.stop:
            found = output.text.find(stop, max(0, len(output.text) - num_new - len(stop)))
            if found >= 0:
                output.text = output.text[: found + len(stop) if call.sampling_params.no_stop_trim else found]
                return stopped(stop)
        return ran_out(len(output.token_ids)) if len(output.token_ids) >= call.max_new_tokens else None

    def _score_prompt(self, running: _Running) -> None:
        call, output, version = running.call, running.output, self._version(running)
        for position in range(call.score_start + 1, len(call.input_ids)):
            logprob = declared_logprob(call.input_ids[position], position, version, self.limits.vocab_size)
            output.input_logprobs.append(logprob)
            self._add_rows(call, position, version, output.input_top, output.input_chosen)

    def _add_rows(
        self, call: GenerateCall, position: int, version: int, top: list[list[Entry]], chosen: list[list[Entry]]
    ) -> None:
        size = self.limits.vocab_size
        if call.top_logprobs_num:
            likeliest = declared_top(call.top_logprobs_num, position, version, size)
            top.append([(logprob, token_id, None) for logprob, token_id in likeliest])
        if call.token_ids_logprob:
            chosen.append([(declared_logprob(i, position, version, size), i, None) for i in call.token_ids_logprob])

    # ── control ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def abort(self, request_id: str) -> None:
        if request_id in self.requests:
            self.requests[request_id].is_aborted = True
            self._wake()

    async def pause(self, mode: PauseMode) -> None:
        if mode == "abort":
            self.abort_all()
        self._is_paused = True

    async def resume(self) -> None:
        self._is_paused = False
        self._wake()

    async def _exchange(self, call: UpdateCall) -> None:
        _check_directory(call.model_path)
        if call.abort_all_requests:
            self.abort_all()

    async def _load(self, call: LoadAdapterCall) -> None:
        _check_directory(call.lora_path)

    async def figures(self) -> Json:
        return {"version": "scripted", "internal_states": [{"num_requests": len(self.requests)}]}

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _check_directory(path: str) -> None:
    if not Path(path).is_dir():
        raise EngineRejected(f"there is no directory {path}")


def _spoil(payload: Json, fault: Fault | None) -> Json:
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
