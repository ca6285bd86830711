"""Runs the suites with exact checks on an assistant and counts solved tasks and failure reasons.

coding_suite, tool_suite ─▶ tasks ─▶ ServedAssistant ─▶ replies ─▶ exact checks ─▶ SuiteScore
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openai import OpenAIError
from openclaw_test.people.personas import Reply
from openclaw_test.people.users import request_seed
from openclaw_test.suites.coding_suite import coding_tasks
from openclaw_test.suites.measures import Interval, share
from openclaw_test.suites.tool_suite import tool_tasks
from slime.types import Message

SUITES = ("coding", "tool-use")
_CONCURRENCY = 8
_RUNS_AT_ONCE = 2
"""Concurrent programs of the coding suite; each may use a core up to its time limit."""


class ToolUser(Protocol):
    """An assistant that accepts tools."""

    async def reply(
        self, messages: Sequence[Message], *, user: str, seed: int, tools: Sequence[dict[str, Any]] = ()
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class SuiteScore:
    """The score of a suite.

    >>> SuiteScore("coding", Interval(0.0, 0.0, 0.16, 20, "wilson"), {"no such function": 20})

    Attributes:
        passed: share of the tasks solved.
        failures: number of unsolved tasks by reason; a failed request counts as unsolved.
    """

    suite: str
    passed: Interval
    failures: Mapping[str, int]

    @property
    def note(self) -> str:
        """A caveat for a score that may be misread; usually empty."""
        if self.passed.mean:
            return ""
        return f"solves none of {self.passed.num}: too hard for this model, so the suite cannot compare methods"


async def run_suite(suite: str, assistant: ToolUser, num_tasks: int, seed: int) -> SuiteScore:
    """Ask every task once, each in its own conversation."""
    check = _check_coding if suite == "coding" else _check_tools
    failures = [failure for failure in await check(assistant, num_tasks, seed) if failure]
    return SuiteScore(suite, share(num_tasks - len(failures), num_tasks), dict(Counter(failures).most_common()))


async def _check_coding(assistant: ToolUser, num_tasks: int, seed: int) -> list[str]:
    tasks = coding_tasks(num_tasks, seed)
    replies = await _ask_all("coding", assistant, [(task.prompt, ()) for task in tasks], seed)
    places = asyncio.Semaphore(_RUNS_AT_ONCE)

    async def check(number: int) -> str:
        reply = replies[number]
        if isinstance(reply, str):
            return reply
        async with places:
            return await asyncio.to_thread(tasks[number].failure, reply.text)

    return list(await asyncio.gather(*map(check, range(num_tasks))))


async def _check_tools(assistant: ToolUser, num_tasks: int, seed: int) -> list[str]:
    tasks = tool_tasks(num_tasks, seed)
    replies = await _ask_all("tool-use", assistant, [(task.prompt, task.tools) for task in tasks], seed)
    return [
        reply if isinstance(reply, str) else task.failure(reply) for task, reply in zip(tasks, replies, strict=True)
    ]


async def _ask_all(
    suite: str, assistant: ToolUser, asked: Sequence[tuple[str, Sequence[dict[str, Any]]]], seed: int
) -> list[Reply | str]:
    """The reply to each prompt, or the reason of a failed request."""
    places = asyncio.Semaphore(_CONCURRENCY)

    async def ask(number: int, prompt: str, tools: Sequence[dict[str, Any]]) -> Reply | str:
        messages = [{"role": "user", "content": prompt}]
        async with places:
            try:
                return await assistant.reply(
                    messages, user=suite, seed=request_seed(seed, suite, number, 0), tools=tools
                )
            except OpenAIError as error:  # the boundary: one request that failed
                return f"request failed: {type(error).__name__}"

    return list(await asyncio.gather(*(ask(number, *what) for number, what in enumerate(asked))))
