"""The engine loop, continuous batching with chunked prefill: one thread that schedules, computes and samples.

    commands ──▶ inbox ──▶ waiting ──admit──▶ running ──step──▶ events ──▶ deliver(list of Progress), once a step
                              ▲                  │
                              └──── preempt ─────┘   (only when a long sequence needs the memory of a young one)

A step is one forward over all decoding rows and the chunks of waiting prompts that fit a time budget, so that a long
prompt does not stall other streams. Sequences join and leave between two steps. With nothing to do the thread sleeps in
the inbox. Everything that changes its state (submit, abort, pause, new weights) is a command that runs on this thread
between two steps.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from slime.engines.dialect.answers import Json, aborted, ran_out, stopped
from slime.engines.dialect.requests import PauseMode
from slime.engines.embedded.model import PROBE_LENGTH, RaggedModel, first_line
from slime.engines.embedded.planning import ChunkBudget, StepPlan, plan_step
from slime.engines.embedded.sampling import sample
from slime.engines.embedded.scoring import score_outputs, score_prompts
from slime.engines.embedded.sequence import Progress, Sequence
from slime.engines.embedded.slots import KVSlots
from slime.engines.embedded.text import TextDecoder
from slime.errors import EngineRejected, WeightsError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class EngineLoop:
    """Owns model, cache and sequences. `call` runs a method of its own thread's; all others may be called anywhere."""

    def __init__(
        self,
        model: RaggedModel,
        kv: KVSlots,
        *,
        version: int,
        max_running: int,
        deliver: Callable[[list[Progress]], None],
        decoder: TextDecoder,
    ) -> None:
        self.model, self.kv = model, kv
        self.version = version
        self.max_running = max_running
        self.num_steps = 0
        self.num_generated = 0
        self.is_paused = False
        self.paused_at = 0.0
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._deliver, self._decoder = deliver, decoder
        self._budget = ChunkBudget()
        # On a CPU, what a step costs and not what it waits for processes that share the cores.
        self._clock = time.thread_time if model.device.type == "cpu" else time.perf_counter
        self._events: list[Progress] = []
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Abort everything and end the thread after the step it is in."""

        def stop() -> None:
            self.abort(lambda sequence: True)
            self._is_stopping = True

        self._inbox.put(stop)
        self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Run a function on the loop's thread, between two steps."""
        future: Future[Result] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:  # the boundary of the thread: the caller gets the error
                future.set_exception(error)

        self._inbox.put(command)
        return future

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence, a probe before all others. From any thread; order is kept."""
        queue_up = self.waiting.appendleft if sequence.is_probe else self.waiting.append
        self._inbox.put(lambda: queue_up(sequence))

    # What follows runs on the loop's thread only.

    def abort(self, doomed: Callable[[Sequence], bool]) -> None:
        """End these sequences where they are."""
        for sequence in list(filter(doomed, self.running)):
            self._finish(sequence, aborted())
        for sequence in list(filter(doomed, self.waiting)):
            self.waiting.remove(sequence)
            is_begun = bool(sequence.output.token_ids)
            self._announce_end(sequence, aborted() if is_begun else aborted("Abort in waiting queue"))
        self._flush_events()

    def pause(self, mode: PauseMode) -> None:
        """Stop stepping. retract: give up the running sequences' keys and values, to be computed anew."""
        self.is_paused, self.paused_at = True, time.monotonic()
        if mode == "abort":
            self.abort(lambda sequence: True)
        elif mode == "retract":
            self._retract()

    def resume(self) -> None:
        self.is_paused = False

    def flush_cache(self) -> bool:
        """Drop all cached keys and values; refused (False) while sequences hold some."""
        if any(sequence.computed for sequence in self.running) or (self.waiting and not self.is_paused):
            return False
        self.kv.forget()
        return True

    def exchange_weights(self, staged: dict[str, torch.Tensor], version: int, *, flush: bool) -> None:
        """Serve staged weights from the next step on.

        With `flush`, running sequences go on under the new weights with keys and values computed anew, and the
        prefix cache is dropped; without, everything computed so far is kept as it is. A `WeightsError` leaves the old
        weights in place: the new ones gave no finite logits for a probe.
        """
        if flush and self.is_paused and any(sequence.computed for sequence in self.running):
            raise EngineRejected(
                "requests are paused in place and hold cache: pause with mode retract, or update with flush_cache false"
            )
        replaced = self.model.exchange(staged)
        if not bool(torch.isfinite(self.model.probe(self.kv)).all()):
            self.model.exchange(replaced)
            raise WeightsError("the new weights give non-finite logits; the old ones stay in service")
        if flush:
            self._retract()
            self.kv.forget()
        self.version = version

    def state(self) -> Json:
        """Figures for /server_info."""
        return {
            "num_running_reqs": len(self.running),
            "num_waiting_reqs": len(self.waiting),
            "is_paused": self.is_paused,
            "num_steps": self.num_steps,
            "num_generated_tokens": self.num_generated,
            "num_cached_tokens": self.kv.cached_tokens(),
            "num_slots": len(self.kv.slots),
            "slot_capacity": self.kv.capacity,
        }

    @torch.inference_mode()
    def _run(self) -> None:
        self._warm_up()
        while not self._is_stopping:
            has_work = not self.is_paused and (self.running or self.waiting)
            try:
                self._inbox.get(block=not has_work)()
                continue
            except queue.Empty:
                pass
            try:
                self._admit()
                self._step()
            except (RuntimeError, MemoryError, ValueError, IndexError) as error:
                # One bad step (out of memory, say) must not end the service: those in it are told, the rest go on.
                logger.exception("engine step failed sequences=%d", len(self.running))
                self._fail_running(first_line(error))

    def _warm_up(self) -> None:
        """Let kernels and allocators settle, and learn what a token of a prompt costs at most."""
        self.model.probe(self.kv)
        started = self._clock()
        self.model.probe(self.kv)
        self._budget = ChunkBudget((self._clock() - started) / PROBE_LENGTH)

    def _admit(self) -> None:
        while self.waiting:
            sequence = self.waiting[0]
            if len(self.running) >= self.max_running and not sequence.is_probe:
                return
            adapter = sequence.adapter.key if sequence.adapter is not None else 0
            slot = self.kv.acquire(sequence.tokens, sequence, reuse_limit=sequence.reuse_limit, adapter=adapter)
            if slot is None:
                return
            self.waiting.popleft()
            sequence.slot, output = slot, sequence.output
            output.cached_tokens = max(output.cached_tokens, min(slot.length, len(sequence.call.input_ids)))
            self.running.append(sequence)

    def _step(self) -> None:
        self._make_room()
        plan = plan_step(self.running, self.kv, self._budget.num_tokens(self.running), self.model.device.type)
        teaches = self._budget.would_learn(len(plan.ids), plan.num_chunk_tokens)
        started = self._clock() if teaches else 0.0  # the clock is a system call
        logits = self.model.compute(plan.ids, plan.positions, plan.step, plan.keep, plan.adapted)
        for sequence, count in plan.computed:
            assert sequence.slot is not None
            sequence.slot.length += count
        score_prompts(plan, logits)
        self._sample(plan, logits[: len(plan.sampled)])
        for sequence in plan.scored_out:
            self._finish(sequence, ran_out(0))
        if teaches:
            self._budget.learn(len(plan.ids), self._clock() - started)
        self.num_steps += 1
        self._flush_events()

    def _sample(self, plan: StepPlan, logits: torch.Tensor) -> None:
        if not plan.sampled:
            return
        self._hold_off_ends(plan.sampled, logits)
        ids, logprobs = sample(logits, [sequence.sampling for sequence in plan.sampled])
        score_outputs(plan.sampled, logprobs)
        chosen = logprobs.gather(1, ids[:, None])[:, 0].tolist()
        finished: list[tuple[Sequence, Json]] = []
        for sequence, token_id, logprob in zip(plan.sampled, ids.tolist(), chosen, strict=True):
            if not logprob > float("-inf"):  # NaN included
                finished.append((sequence, aborted("the model gave non-finite logits", 500)))
                continue
            sequence.tokens.append(token_id)
            sequence.output.append(token_id, logprob, sequence.version(self.version))
            reason = self._finish_reason(sequence, token_id)
            if reason is not None:
                finished.append((sequence, reason))
            elif sequence.call.stream:
                self._events.append(Progress(sequence, len(sequence.output.token_ids), finished=False))
        self.num_generated += len(plan.sampled)
        for sequence, reason in finished:
            self._finish(sequence, reason)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> Json | None:
        params = sequence.call.sampling_params
        if params.stop:
            matched = self._decoder.find_stop(sequence.output.token_ids, params.stop)
            if matched is not None:
                return stopped(matched)
        # As in SGLang, ignore_eos ignores stop_token_ids too.
        is_end = token_id in self.model.eos_token_ids or token_id in params.stop_token_ids
        if is_end and not params.ignore_eos:
            return stopped(token_id)
        if len(sequence.output.token_ids) >= sequence.max_new_tokens:
            return ran_out(sequence.max_new_tokens)
        return None

    def _hold_off_ends(self, sampled: list[Sequence], logits: torch.Tensor) -> None:
        """No end before `min_new_tokens`."""
        for row, sequence in enumerate(sampled):
            params = sequence.call.sampling_params
            if len(sequence.output.token_ids) < params.min_new_tokens:
                ends = self.model.eos_token_ids.union(params.stop_token_ids)
                logits[row, sorted(ends)] = float("-inf")

    def _finish(self, sequence: Sequence, reason: Json) -> None:
        self.running.remove(sequence)
        if sequence.slot is not None:
            self.kv.release(sequence.slot)
            sequence.slot = None
        self._announce_end(sequence, reason)

    def _announce_end(self, sequence: Sequence, reason: Json) -> None:
        output = sequence.output
        output.version, output.finish_reason = sequence.version(self.version), reason
        self._events.append(Progress(sequence, len(output.token_ids), finished=True))

    def _fail_running(self, message: str) -> None:
        if not self.running and self.waiting:  # it failed where it was to be admitted
            self._announce_end(self.waiting.popleft(), aborted(message, 500))
        for sequence in list(self.running):
            self._finish(sequence, aborted(message, 500))
        self.kv.forget()
        self._flush_events()

    def _retract(self) -> None:
        self.kv.forget(idle=False, busy=True)
        for sequence in self.running:
            sequence.restart()

    def _make_room(self) -> None:
        """Let slots grow with their sequences; the youngest goes back to the queue where memory does not suffice."""
        while not self.kv.ensure(max(len(sequence.tokens) for sequence in self.running)):
            youngest = self.running.pop()
            assert youngest.slot is not None
            self.kv.release(youngest.slot)
            youngest.slot = None
            youngest.restart()
            self.waiting.appendleft(youngest)
        self.kv.gather()

    def _flush_events(self) -> None:
        if self._events:
            self._deliver(self._events)
            self._events = []
