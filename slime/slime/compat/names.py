"""What generate functions written for slime call besides the engine: its HTTP helper, its tokenizer, its event loop.

    GenerateState(args).tokenizer ─▶ ids ─▶ await post(url, {"input_ids": …}) ─▶ {"text": …, "meta_info": …}

Such files import these by slime's own module names: see `compat.imports`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp

from slime.compat.hook_engines import addressed, headers_for, relabelled

_T = TypeVar("_T")
_TIMEOUT_S = 600.0
_RETRY_S = 1.0


class GenerateState:
    """What such functions read of the run; made anew as often as they like.

    Attributes:
        tokenizer: the model's, from `args.hf_checkpoint`.
        sampling_params: those of a training rollout.
        processor: None: there are no images.
        aborted: False: nothing is aborted for an update.
    """

    def __init__(self, args: SimpleNamespace) -> None:
        self.args = args
        self.tokenizer = _tokenizer(str(args.hf_checkpoint))
        self.sampling_params: Mapping[str, Any] = getattr(args, "sampling_params", {})
        self.processor = None
        self.aborted = False


@functools.cache
def _tokenizer(model_dir: str) -> Any:
    from transformers import AutoTokenizer  # seconds of imports that most files never need

    return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)


async def post(
    url: str, payload: Mapping[str, Any] | None, max_retries: int = 60, headers: Mapping[str, str] | None = None
) -> Any:
    """The JSON that a POST is answered with; asked again while the server is away or busy.

    In a run that trains an adapter a `/generate` at one of its engines is answered by the newest version of it.

    Raises:
        RuntimeError: it refused, or was away all the time.
    """
    why = ""
    headers = {**headers_for(url), **(headers or {})}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        for attempt in range(max(max_retries, 1)):
            if attempt:
                await asyncio.sleep(_RETRY_S)
            try:
                body, version = await addressed(session, url, payload or {})
                async with session.post(url, json=body, headers=headers) as answer:
                    if answer.status == 200:
                        return relabelled(await answer.json(content_type=None), version)
                    why = f"status {answer.status}: {(await answer.text())[:300]}"
                    if answer.status not in (429, 502, 503, 504):
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                why = str(error) or type(error).__name__
    raise RuntimeError(f"{url}: {why}")


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine, from a plain function; a rollout function runs on a thread that has no loop."""
    return asyncio.run(coroutine)
