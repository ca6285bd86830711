"""The model behind a `--judge-url`: an OpenAI-compatible server, or an engine of our dialect.

https://api.openai.com/v1      a path with a version is the OpenAI API's
http://127.0.0.1:30000         asked: /model_info ─▶ an engine; else /v1/models ─▶ the OpenAI API; else an engine
                               that is not up yet
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp

from slime.chat import ChatFormat
from slime.config.sections import JudgeConfig
from slime.engines.client import HttpEngine
from slime.errors import ConfigError
from slime.judging.llm.chat_model import ChatModel, EngineModel

log = logging.getLogger(__name__)

_PROBE_S = 5.0
_SHARE_OF_DEADLINE = 0.95
"""Of a vote's time: a server that hangs is then known to be out, not merely late for one vote."""
_VERSION = re.compile(r"v\d+\w*")


@contextlib.asynccontextmanager
async def judge_model_at(judge: JudgeConfig, tokenizer_dir: str) -> AsyncIterator[ChatModel]:
    """The model at `judge.judge_url`, for as long as it is needed.

    Args:
        tokenizer_dir: model directory of an engine there, whose chat template renders what it is shown.

    Raises:
        ConfigError: it is an engine, and no directory says how it is spoken to.
    """
    if base_url := await openai_base(judge.judge_url):
        from slime.judging.llm.api_model import ApiModel  # the client's package takes a second to import

        log.info("judge asks an OpenAI-compatible server url=%s: turns are sent there", base_url)
        async with ApiModel(
            base_url,
            model=judge.judge_model,
            api_key=judge.judge_api_key,
            timeout_s=_SHARE_OF_DEADLINE * judge.judge_timeout_s,
            retries=judge.judge_retries,
        ) as model:
            yield model
        return
    if not tokenizer_dir:
        raise ConfigError(
            f"--judge-url {judge.judge_url} is an engine; --judge-model-path must name its model directory"
        )
    async with HttpEngine(judge.judge_url, token=judge.judge_api_key, timeout_s=judge.judge_timeout_s) as engine:
        yield EngineModel(engine, ChatFormat.load(tokenizer_dir).render, judge.judge_url)


async def openai_base(url: str) -> str | None:
    """The base URL of the OpenAI API there; None where an engine of our dialect answers, or nothing does yet.

    >>> await openai_base("https://api.openai.com/v1/")
    'https://api.openai.com/v1'
    """
    url = url.rstrip("/")
    if any(_VERSION.fullmatch(part) for part in urlsplit(url).path.split("/")):
        return url
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PROBE_S)) as session:
        if await _answers(session, f"{url}/model_info"):
            return None
        return f"{url}/v1" if await _answers(session, f"{url}/v1/models") else None


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status in (200, 401, 403)  # there, though it wants a key
    except (TimeoutError, aiohttp.ClientError) as error:
        log.debug("no answer url=%s error=%s", url, error)
        return False
