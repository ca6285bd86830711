"""The prompt of a request: a short one is rendered on the event loop, a long one in another process.

    ChatRequest, prior turn ─▶ short ─▶ ChatFormat.render ──────────────────────▶ prompt ids
                               long  ─▶ worker process: its own ChatFormat ─▶ ids ──▲

Template and tokenizer hold the interpreter while they work. In a thread they would hold up the chunks of every other
stream; in a process of their own they take a core at most. The number of workers is bounded; the first starts with the
first long request, which waits a second for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process
from slime.chat import ChatFormat
from slime.errors import EngineFailed, EngineUnavailable
from slime.types import Message, Turn

log = logging.getLogger(__name__)

LONG_BYTES = 48_000
"""Bodies from here on are rendered in another process: a shorter one takes a few milliseconds."""
TIMEOUT_S = 60.0
"""For the wait for a worker and its work; the longest prompt that fits a context of 262,144 tokens takes seconds."""
_NICENESS = 5
"""A worker shares its core with the engine and the server, which answer many."""

Rendering = tuple[Sequence[Message], Sequence[Mapping[str, Any]], Turn | None, Mapping[str, Any], int]
"""What a prompt is made of: messages, tools, prior turn, template options, the most tokens that fit."""


class Renderer:
    """Renders prompts with a model's chat format.

    Args:
        chat: the format; one that was loaded from a directory, which workers load it from too.
        max_workers: processes at a time; by default all cores but one, at most four.

    >>> renderer = Renderer(ChatFormat.load(model_dir))
    >>> await renderer.render(([{"role": "user", "content": "Hi"}], (), None, {}, 40_959), num_bytes=73)
    (151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198)
    """

    def __init__(self, chat: ChatFormat, max_workers: int = max(1, min(4, (os.cpu_count() or 2) - 1))) -> None:
        self._chat = chat
        self._free = asyncio.Semaphore(max_workers)
        self._processes = CapacityLimiter(max_workers)

    async def render(self, rendering: Rendering, num_bytes: int) -> tuple[int, ...]:
        """The prompt ids.

        Args:
            num_bytes: of the request's body.

        Raises:
            RenderError: as `ChatFormat.render`.
            EngineUnavailable: no worker was free for `TIMEOUT_S`, or the work itself took that long.
            EngineFailed: two workers ended at this request.
        """
        if num_bytes <= LONG_BYTES:
            return _render(self._chat, rendering)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._free.acquire()
        except TimeoutError:
            raise EngineUnavailable(f"no process was free to render the prompt within {TIMEOUT_S:.0f} s") from None
        # A client that leaves frees its place in the queue; work that has begun is finished, so that no client can have
        # processes started and ended again and again.
        work = asyncio.get_running_loop().create_task(self._elsewhere(rendering))
        work.add_done_callback(self._ended)
        return await asyncio.shield(work)

    async def _elsewhere(self, rendering: Rendering) -> tuple[int, ...]:
        async def attempt() -> tuple[int, ...]:
            arguments = self._chat.model_dir, rendering
            return await to_process.run_sync(_render_from, *arguments, cancellable=True, limiter=self._processes)

        try:
            async with asyncio.timeout(TIMEOUT_S):
                try:
                    return await attempt()
                except BrokenWorkerProcess:
                    log.warning("rendering process ended, starting another")
                    return await attempt()
        except BrokenWorkerProcess as error:
            raise EngineFailed("the process that renders long prompts ended twice at this request") from error
        except TimeoutError:
            raise EngineUnavailable(f"the prompt was not rendered within {TIMEOUT_S:.0f} s") from None

    def _ended(self, work: asyncio.Task[tuple[int, ...]]) -> None:
        self._free.release()
        if not work.cancelled():
            work.exception()  # where the client has left, nothing else asks for it


def _render(chat: ChatFormat, rendering: Rendering) -> tuple[int, ...]:
    messages, tools, prior, options, max_tokens = rendering
    return chat.render(messages, tools, prior, options=options, max_tokens=max_tokens)


@lru_cache(maxsize=1)
def _format(directory: Path) -> ChatFormat:
    os.nice(_NICENESS)
    return ChatFormat.load(directory)


def _render_from(directory: Path, rendering: Rendering) -> tuple[int, ...]:
    return _render(_format(directory), rendering)
