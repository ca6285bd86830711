"""The chat model that a judge asks, wherever it runs.

messages ─▶ EngineModel ─ render ─▶ ids ─▶ an engine of ours: the policy's, frozen or current, or a judge's own
         └▶ ApiModel    ─ HTTP ──▶ any OpenAI-compatible server (see `api_model`)
                └──▶ Answer: the text, why it ended, who gave it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slime.judging.retry import with_retries
from slime.protocols import Engine, GenerateRequest
from slime.types import Message, SamplingParams

Render = Callable[[list[Message]], tuple[int, ...]]
"""A chat as the model's prompt ids, generation prompt included."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said.

    >>> Answer("They thank for it. \\\\boxed{1}", "stop", "Qwen3-4B", policy_version=7)

    Attributes:
        finish_reason: `stop` when it came to its end; anything else is not to be read.
        policy_version: of the weights that said it; 0 where the model is not one of ours.
    """

    text: str
    finish_reason: str
    model: str
    policy_version: int = 0


class ChatModel(Protocol):
    """A model that answers. Errors: `EngineUnavailable` (try later), `EngineRejected` (do not).

    Attributes:
        name: what is written down beside its answers.
    """

    name: str

    async def answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer: ...


class EngineModel:
    """An engine of ours as a chat model. While it has no room it is asked again; the caller's deadline ends that.

    Where the engine serves adapters, the base beneath them is asked: a judge that learns from its own verdicts drifts.
    """

    def __init__(self, engine: Engine, render: Render, name: str = "policy") -> None:
        self.name = name
        self._engine = engine
        self._render = render
        self._rendered: tuple[list[Message], tuple[int, ...]] | None = None

    async def answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer:
        request = GenerateRequest(request_id, self._prompt_ids(messages), sampling)
        completion = await with_retries(lambda: self._engine.generate(request))
        version = max((span.version for span in completion.spans), default=0)
        return Answer(completion.text, completion.finish_reason, self.name, version)

    def _prompt_ids(self, messages: list[Message]) -> tuple[int, ...]:
        """Every vote on a turn is asked with the same list of messages: it is rendered once."""
        if self._rendered is None or self._rendered[0] is not messages:
            self._rendered = (messages, self._render(messages))
        return self._rendered[1]
