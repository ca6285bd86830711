"""Chat model behind an OpenAI-compatible URL: OpenAI, vLLM, SGLang, llama.cpp, Ollama, a gateway.

    messages ─▶ circuit breaker ─▶ retries ─▶ official client ─▶ /chat/completions ─▶ Answer
                     │ open           │ used up           a request it refuses: EngineRejected, never repeated
                     └─ EngineUnavailable

What is sent there is what the judge is shown: the end of the conversation, the reply, what came next.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Self

import openai

from slime.errors import EngineRejected, EngineUnavailable
from slime.judging.llm.chat_model import Answer
from slime.judging.retry import CircuitBreaker, with_retries
from slime.types import Message, SamplingParams

log = logging.getLogger(__name__)

_CONNECT_S = 5.0
_FIRST_BACKOFF_S, _MAX_RETRY_AFTER_S = 0.5, 60.0
_NEGOTIABLE = ("max_tokens", "temperature")
"""Settings that some models take under another name, or not at all; they say so once and are believed."""


class ApiModel:
    """A chat model at a URL; close it after use.

    >>> async with ApiModel("https://api.openai.com/v1", model="gpt-4.1-mini", api_key=key) as model:
    ...     answer = await model.answer([{"role": "user", "content": "Hi"}], "r1", SamplingParams())

    Args:
        base_url: up to and including `/v1`.
        model: its name there; the first of `/models` when empty.
        api_key: sent as the bearer token; a placeholder when empty, which local servers accept.
        timeout_s: how long an answer may take, retries included.
        retries: attempts after the first, on connection errors, 408, 409, 429, 5xx and unreadable answers.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        api_key: str = "",
        timeout_s: float = 60.0,
        retries: int = 2,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.name = model
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",
            max_retries=0,  # see `retry`
            timeout=openai.Timeout(timeout_s, connect=_CONNECT_S),
        )
        self._client.organization = self._client.project = None  # which it looked up in the environment
        self._timeout_s = timeout_s
        self._retries = retries
        self._breaker = breaker or CircuitBreaker(base_url)
        self._renamed: dict[str, str | None] = {}
        self._naming = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer:
        """One chat completion.

        Raises:
            EngineUnavailable: it is down, overloaded or too slow, after all retries; or it was so just now.
            EngineRejected: it refuses the request: key, model, length.
        """

        async def in_time() -> Answer:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await with_retries(lambda: self._answer(messages, request_id, sampling), self._retries)
            except TimeoutError as error:
                raise EngineUnavailable(f"{self._client.base_url}: no answer within {self._timeout_s:g} s") from error

        return await self._breaker.call(in_time)

    async def _answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer:
        """One attempt."""
        try:
            if not self.name:
                await self._find_name()
            return self._read(await self._complete(messages, request_id, sampling))
        except openai.APIStatusError as error:
            message = f"HTTP {error.status_code} from {self._client.base_url}: {error.message}"
            if error.status_code in (408, 409, 429) or error.status_code >= 500:
                raise EngineUnavailable(message, _retry_after_s(error)) from error
            raise EngineRejected(message, error.status_code) from error
        except openai.APIConnectionError as error:  # time-outs too
            cause = error.__cause__ or error
            message = f"{self._client.base_url}: {type(cause).__name__}: {cause}"
            raise EngineUnavailable(message, _FIRST_BACKOFF_S) from error
        except (openai.OpenAIError, ValueError) as error:  # what came is no chat completion
            message = f"{self._client.base_url}: unreadable answer: {error}"
            raise EngineUnavailable(message, _FIRST_BACKOFF_S) from error

    async def _complete(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Any:
        """Ask; where a setting is refused by its name, ask again without it and remember."""
        while True:
            settings: dict[str, Any] = {"max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
            for name, other in self._renamed.items():
                value = settings.pop(name)
                if other is not None:
                    settings[other] = value
            try:
                return await self._client.chat.completions.create(
                    model=self.name,
                    messages=messages,  # type: ignore[arg-type]
                    extra_headers={"X-Request-Id": request_id},
                    **settings,
                )
            except openai.BadRequestError as error:
                refused = next((n for n in _NEGOTIABLE if n == error.param and n not in self._renamed), None)
                if refused is None:
                    raise
                self._renamed[refused] = "max_completion_tokens" if refused == "max_tokens" else None
                log.warning("judge refuses a setting model=%s setting=%s", self.name, refused)

    async def _find_name(self) -> None:
        async with self._naming:
            if self.name:
                return
            models = (await self._client.models.list()).data
            if not models:
                raise EngineRejected(f"{self._client.base_url} serves no model; name one with --judge-model")
            self.name = models[0].id
            log.info("judge model=%s url=%s", self.name, self._client.base_url)

    def _read(self, reply: Any) -> Answer:
        """The first choice. A body of another shape, which the client does not check, is a server out of order."""
        try:
            choice = reply.choices[0]
            text = choice.message.content or ""
            if not isinstance(text, str):
                raise TypeError(f"content is a {type(text).__name__}")
            return Answer(text, str(choice.finish_reason), str(reply.model or self.name))
        except (AttributeError, IndexError, TypeError) as error:
            raise ValueError("it is no chat completion") from error


def _retry_after_s(error: openai.APIStatusError) -> float:
    """The server's Retry-After in seconds, at most a minute; half a second where it names none, or a date."""
    try:
        said = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return _FIRST_BACKOFF_S
    return min(said, _MAX_RETRY_AFTER_S) if said >= 0 else _FIRST_BACKOFF_S
