"""Assistants under evaluation: a served model, a memory of corrections in the prompt, and best-of-n sampling.

    messages ─▶ ServedAssistant ─▶ an OpenAI-compatible server                                  ─▶ Reply
             ─▶ StreamedAssistant ─▶ the same, streamed; for turns that may become training data
             ─▶ MemoryAssistant ─ past corrections of this user ─▶ system prompt ─▶ the assistant it wraps
             ─▶ BestOfN ─ n replies of the assistant it wraps ─▶ the highest-scoring one

The last two need no training and are the baselines for it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from openclaw_test.people.personas import Reply
from slime.judging.rules.judge import read_words
from slime.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

REQUEST_S = 120.0


class Assistant(Protocol):
    """Answers conversations. Raises the errors of the OpenAI client."""

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        """Continue a conversation of `user`; deterministic per seed if the server honours seeds."""
        ...


class ScriptedAssistant:
    """Answers by a function of the conversation: for tests, and for the score of a perfect model.

    >>> ScriptedAssistant(lambda messages, seed: Reply("It comes to 7 apples.", 8))
    """

    def __init__(self, answer: Callable[[Sequence[Message], int], Reply]) -> None:
        self._answer = answer

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        return self._answer(messages, seed)


class ServedAssistant:
    """A model behind an OpenAI-compatible server.

    Args:
        is_captured: whether turns may become training data; otherwise requests carry `X-Turn-Type: side`.
        has_user_keys: send each user's name as the API key, by which our server tells users apart; other servers
            require the client's own key.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        is_captured: bool = False,
        has_user_keys: bool = True,
    ) -> None:
        self._client = client
        self._arguments: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
        if not is_captured:
            self._arguments["extra_headers"] = {"X-Turn-Type": "side"}
        self._has_user_keys = has_user_keys

    async def reply(
        self, messages: Sequence[Message], *, user: str, seed: int, tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        client = self._client.with_options(api_key=user) if self._has_user_keys else self._client
        asked: dict[str, Any] = {**self._arguments, "messages": list(messages), "seed": seed}
        if tools:
            asked["tools"] = list(tools)
        completion: ChatCompletion = await client.chat.completions.create(timeout=REQUEST_S, **asked)
        message = completion.choices[0].message
        text = message.content or ""
        calls = tuple(
            (call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type == "function"
        )
        return Reply(text, completion.usage.completion_tokens if completion.usage else len(text.split()), calls)


class StreamedAssistant:
    """A model used as by a chat page: streamed, sampled without a seed, under the client's own key.

    Also raises the errors of a broken stream: `httpx.HTTPError`, or TimeoutError after `REQUEST_S`.
    """

    def __init__(self, client: AsyncOpenAI, model: str, *, max_tokens: int) -> None:
        self._client = client
        self._arguments: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 1.0}
        self._arguments["stream_options"] = {"include_usage": True}

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        began, first_token_s, parts, num_tokens = time.perf_counter(), None, list[str](), 0
        async with asyncio.timeout(REQUEST_S):
            asked: dict[str, Any] = {**self._arguments, "messages": list(messages)}
            async for chunk in await self._client.chat.completions.create(stream=True, **asked):
                if chunk.choices and chunk.choices[0].delta.content:
                    first_token_s = first_token_s or time.perf_counter() - began
                    parts.append(chunk.choices[0].delta.content)
                num_tokens = chunk.usage.completion_tokens if chunk.usage else num_tokens
        return Reply("".join(parts), num_tokens, first_token_s=first_token_s)


class MemoryAssistant:
    """Retrieves a user's past complaints into the system prompt; its model never changes.

    The rule judge detects complaints, which are stored per user with the request they concern. The corrections whose
    requests share the most words with the new one are retrieved, newest first among equals.

    Args:
        num_retrieved: corrections per prompt.
    """

    def __init__(self, inner: Assistant, *, num_retrieved: int = 2) -> None:
        self._inner = inner
        self._num_retrieved = num_retrieved
        self._memory: dict[str, list[tuple[set[str], str]]] = defaultdict(list)

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        asked = [str(message["content"]) for message in messages if message["role"] == "user"]
        if len(asked) > 1:
            self._listen(user, asked)
        return await self._inner.reply(self._reminded(messages, user, asked[0]), user=user, seed=seed)

    def _listen(self, user: str, asked: Sequence[str]) -> None:
        said = asked[-1]
        if any(evidence.score < 0 for evidence in read_words(said, asked[:-1])):
            self._memory[user].append((_words(asked[0]), said))

    def _reminded(self, messages: Sequence[Message], user: str, request: str) -> list[Message]:
        words = _words(request)
        by_likeness = sorted(
            enumerate(self._memory[user]), key=lambda entry: (len(words & entry[1][0]), entry[0]), reverse=True
        )
        recalled = [correction for _, (_, correction) in by_likeness[: self._num_retrieved]]
        if not recalled:
            return list(messages)
        has_system = messages[0]["role"] == "system"
        system = " ".join([str(messages[0]["content"]) if has_system else "", *recalled]).strip()
        return [{"role": "system", "content": system}, *messages[has_system:]]


class BestOfN:
    """Samples n replies and returns the one with the highest score, the first among equals.

    Args:
        score: of a reply in its conversation. `sessions.reaction_score` scores every candidate by the user's own
            reaction, which is an upper bound: no real user reads n replies.
    """

    def __init__(
        self, inner: Assistant, num_replies: int, score: Callable[[Sequence[Message], str, Reply], Awaitable[float]]
    ) -> None:
        self._inner = inner
        self._num_replies = num_replies
        self._score = score

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        tries = (self._inner.reply(messages, user=user, seed=seed + number) for number in range(self._num_replies))
        replies = await asyncio.gather(*tries)
        scores = await asyncio.gather(*(self._score(messages, user, reply) for reply in replies))
        return replies[max(range(len(replies)), key=scores.__getitem__)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
