"""Renders and tokenizes prompts: short ones on the event loop, long ones in a worker process.

    ChatRequest, prior turn ─▶ short ─▶ ChatFormat.render ──────────────────────▶ prompt ids
                               long  ─▶ worker process: its own ChatFormat ─▶ ids ──▲

Template and tokenizer hold the GIL: in a thread they would delay the chunks of every other stream; in a worker process
they take one core at most. The number of workers is bounded; the first starts with the first long request, which waits
about a second for it.
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
"""Larger bodies are rendered in a worker process; a smaller one takes a few milliseconds."""
TIMEOUT_S = 60.0
"""Deadline of queueing and of rendering; the longest prompt for a context of 262,144 tokens takes seconds."""
_NICENESS = 10
"""Workers yield to the engine and the server, which serve all requests."""

Rendering = tuple[Sequence[Message], Sequence[Mapping[str, Any]], Turn | None, Mapping[str, Any], int]
"""The inputs of a prompt: messages, tools, prior turn, template options, token limit."""


class Renderer:
    """Renders prompts with a model's chat format.

    Args:
        chat: the format; loaded from a directory, which workers load it from too.
        max_workers: concurrent worker processes; default: all cores but one, at most four.

    >>> renderer = Renderer(ChatFormat.load(model_dir))
    >>> await renderer.render(([{"role": "user", "content": "Hi"}], (), None, {}, 40_959), num_bytes=73)
    (151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198)
    """

    def __init__(self, chat: ChatFormat, max_workers: int = max(1, min(4, (os.cpu_count() or 2) - 1))) -> None:
        self._chat = chat
        self._free = asyncio.Semaphore(max_workers)
        self._processes = CapacityLimiter(max_workers)

    async def render(self, rendering: Rendering, num_bytes: int) -> tuple[int, ...]:
        """Render and tokenize a prompt.

        Args:
            num_bytes: size of the request body.

        Raises:
            RenderError: as `ChatFormat.render`.
            EngineUnavailable: no worker became free, or rendering did not end, within `TIMEOUT_S`.
            EngineFailed: two workers died on this request.
        """
        if num_bytes <= LONG_BYTES:
            return _render(self._chat, rendering)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._free.acquire()
        except TimeoutError:
            raise EngineUnavailable(f"no worker was free to render the prompt within {TIMEOUT_S:.0f} s") from None
        # A disconnect while queueing frees the place; rendering in progress is finished, so that disconnects cannot
        # force process restarts.
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
                    log.warning("render worker died, retrying in a new one")
                    return await attempt()
        except BrokenWorkerProcess as error:
            raise EngineFailed("the process that renders long prompts died twice on this request") from error
        except TimeoutError:
            raise EngineUnavailable(f"rendering the prompt took longer than {TIMEOUT_S:.0f} s") from None

    def _ended(self, work: asyncio.Task[tuple[int, ...]]) -> None:
        self._free.release()
        if not work.cancelled():
            work.exception()  # after a disconnect nothing else retrieves it


def _render(chat: ChatFormat, rendering: Rendering) -> tuple[int, ...]:
    messages, tools, prior, options, max_tokens = rendering
    return chat.render(messages, tools, prior, options=options, max_tokens=max_tokens)


@lru_cache(maxsize=1)
def _format(directory: Path) -> ChatFormat:
    os.nice(_NICENESS)
    return ChatFormat.load(directory)


def _render_from(directory: Path, rendering: Rendering) -> tuple[int, ...]:
    return _render(_format(directory), rendering)
