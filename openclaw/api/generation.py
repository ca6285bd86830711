"""The request pipeline of every endpoint: place in the conversation, render, generate, commit.

    ChatRequest ─▶ Capture.begin ─▶ prompt ids ─▶ engine ─▶ parser ─▶ Placed, Part, Part, … Reply
                     │ place in the tree            │                                        ▲ after the commit
                     ▼                              ▼                                        │
                  prior turn ─ ids to reuse ─▶  Completion ─▶ OpenTurn.commit (fsync) ───────┘

`Reply` is yielded after the commit, so the last frame never acknowledges a turn that is not on disk. A store failure
costs the capture, never the reply. A disconnect stops the generation; what was sent is kept as an aborted turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from slime.chat import ChatFormat, ReplyParser
from slime.chat import Delta as MessageDelta
from slime.config.sections import LoraConfig
from slime.engines.dialect.reading import join_deltas
from slime.errors import PromptTooLong, RequestError
from slime.protocols import Delta, GenerateRequest
from slime.types import Completion, Message, SamplingParams

from openclaw.capture import Capture, Generated, OpenTurn
from openclaw.engine_pool import EnginePool
from openclaw.rendering import Renderer
from openclaw.requests.chat_request import ChatRequest
from openclaw.requests.turn_ids import tool_call_id

log = logging.getLogger(__name__)

_BYTES_PER_TOKEN, _SPARE_BYTES = 32, 262_144
"""A token is about four characters of English, up to six bytes each when JSON-escaped; spare is for other fields."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model and its limits.

    Attributes:
        max_context: prompt plus reply, in tokens.
        default_max_tokens: limit of a reply when the client sets none.
        lora: whether adapters are served, shared or per user.
    """

    name: str
    chat: ChatFormat
    max_context: int
    default_max_tokens: int
    lora: LoraConfig = LoraConfig()


@dataclass(frozen=True, slots=True)
class Placed:
    """The request is placed in the tree and rendered; nothing is sampled yet."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class Part:
    """Newly sampled tokens.

    Attributes:
        deltas: pieces of the assistant message; empty when not streaming, or while the text may still become a tag.
        token_ids, logprobs: of the tokens that have text.
    """

    deltas: list[MessageDelta]
    token_ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Reply:
    """The complete reply, after its turn was committed.

    Attributes:
        message: the assistant message.
        finish_reason: `stop`, `length` or `tool_calls`.
        capture: the outcome of the commit: `stored`, `pending`, `failed` or `off`.
    """

    turn_id: str
    message: Message
    finish_reason: str
    num_prompt_tokens: int
    num_reply_tokens: int
    capture: str


Event = Placed | Part | Reply


@dataclass(frozen=True, slots=True)
class _Job:
    """A placed and rendered request; `sampled` holds the deltas so far."""

    request: ChatRequest
    turn: OpenTurn
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    parser: ReplyParser
    sampled: list[Delta] = field(default_factory=list)

    def engine_request(self) -> GenerateRequest:
        return GenerateRequest(self.turn.turn_id, self.prompt_ids, self.sampling, self.request.caller.adapter)

    def read(self, delta: Delta) -> Part:
        """The part to send for one delta of a stream."""
        self.sampled.append(delta)
        deltas = self.parser.feed(delta.text)
        if delta.finish_reason is not None:
            deltas += self.parser.finish()
        return self.part(deltas, delta.token_ids, delta.logprobs)

    def read_whole(self, completion: Completion) -> Part:
        """The part to send for a reply that is not streamed."""
        self.parser.feed(completion.text)
        self.parser.finish()
        return self.part([], completion.token_ids, completion.logprobs)

    def part(self, deltas: list[MessageDelta], token_ids: Sequence[int], logprobs: Sequence[float]) -> Part:
        """A part without the stop token: clients get log-probs only for tokens that have text."""
        if token_ids and token_ids[-1] in self.sampling.stop_token_ids:
            token_ids, logprobs = token_ids[:-1], logprobs[:-1]
        return Part(deltas, token_ids, logprobs)

    def generated(self, completion: Completion) -> Generated:
        return Generated(self.prompt_ids, completion, self.sampling, self.parser.message())

    def reply(self, generated: Generated, outcome: str) -> Reply:
        completion, finish_reason = generated.completion, generated.completion.finish_reason
        log.debug(
            "served turn=%s session=%s messages=%d prompt=%d reply=%d finish=%s capture=%s",
            *(self.turn.turn_id, self.turn.session_id, len(self.request.messages), len(self.prompt_ids)),
            *(len(completion.token_ids), finish_reason, outcome),
        )
        if finish_reason == "stop" and self.parser.num_tool_calls > 0:
            finish_reason = "tool_calls"
        num_tokens = len(self.prompt_ids), len(completion.token_ids)
        return Reply(self.turn.turn_id, generated.reply, finish_reason, *num_tokens, outcome)


class Generation:
    """Generates replies and captures them."""

    def __init__(self, model: ServedModel, engines: EnginePool, capture: Capture) -> None:
        self.model = model
        self._engines = engines
        self._capture = capture
        self._renderer = Renderer(model.chat)

    def check_size(self, num_bytes: int) -> None:
        """Refuse a body that cannot fit the context window before parsing, placing and tokenizing it.

        Raises: RequestError.
        """
        if num_bytes > _SPARE_BYTES + _BYTES_PER_TOKEN * self.model.max_context:
            raise _too_long(self.model, f"the request has {num_bytes} bytes. Please shorten the messages")

    async def run(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """Serve a request, event by event; closing the iterator early aborts the turn.

        Raises:
            RequestError: the messages do not fit the context window.
            RenderError: the model's chat template cannot express them.
            EngineError: no engine generates the reply; a stream may fail after its first parts.
        """
        turn = await self._capture.begin(request)
        job: _Job | None = None
        try:
            job = await self._prepare(request, turn)
            yield Placed(turn.turn_id)
            if request.stream:
                async with aclosing(self._engines.stream(job.engine_request(), turn.session_id)) as stream:
                    async for delta in stream:
                        yield job.read(delta)
                completion = join_deltas(job.sampled)
            else:
                completion = await self._engines.generate(job.engine_request(), turn.session_id)
                yield job.read_whole(completion)
            generated = job.generated(completion)
            yield job.reply(generated, await turn.commit(generated))
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:
            reason = "client disconnected" if isinstance(error, GeneratorExit) else f"{error or type(error).__name__}"
            sent = job.generated(join_deltas(job.sampled, "abort")) if job is not None and job.sampled else None
            turn.abandon(reason, sent)
            log.info("reply aborted turn=%s error=%s", turn.turn_id, reason)
            raise

    async def _prepare(self, request: ChatRequest, turn: OpenTurn) -> _Job:
        chat = self.model.chat
        tools = request.tools if request.offers_tools else ()
        longest = self.model.max_context - 1
        rendering = (request.messages, tools, turn.prior, request.template_options, longest)
        try:
            prompt_ids = await self._renderer.render(rendering, request.num_bytes)
        except PromptTooLong:
            raise _too_long(self.model, "the messages have more. Please shorten them") from None
        limit = min(request.sampling.max_new_tokens, self.model.max_context - len(prompt_ids))
        parser = chat.parser(
            prompt_ids,
            with_tools=request.offers_tools,
            tool_call_id=partial(tool_call_id, turn.turn_id),
            streams_arguments=request.stream,
        )
        sampling = replace(request.sampling, max_new_tokens=limit, stop_token_ids=chat.stop_token_ids)
        return _Job(request, turn, prompt_ids, sampling, parser)


def _too_long(model: ServedModel, what: str) -> RequestError:
    message = f"This model's maximum context length is {model.max_context} tokens, but {what}."
    return RequestError(message, "messages", "context_length_exceeded")
