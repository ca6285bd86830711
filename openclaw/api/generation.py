"""`POST /v1/chat/completions`: from the request's bytes to the last frame, whole or token by token.

    body ─▶ ChatRequest ─▶ capture.begin ─▶ prompt ids ─▶ engine ─▶ parser ─▶ chunks ─▶ client
                               │  place in the tree            │                          ▲
                               ▼                               ▼                          │ the last one
                            prior turn ── ids to reuse ──▶  Completion ─▶ turn.commit (fsync)

The last frame (the whole answer, or finish_reason, usage and [DONE] of a stream) leaves after the commit. A store that
fails costs the capture, never the reply. A client that leaves ends the generation, and what it had got is kept as an
aborted turn; a stream that fails ends in an error event and a cut connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from slime.chat import ChatFormat, ReplyParser
from slime.config.sections import LoraConfig
from slime.engines.dialect import join_deltas
from slime.errors import PromptTooLong
from slime.protocols import Delta, GenerateRequest
from slime.types import Completion, SamplingParams

from openclaw.api.chat_reply import ChatReply, error_event, usage_of
from openclaw.api.chat_request import ChatRequest, parse_chat_request
from openclaw.api.errors import as_api_error, bad_request
from openclaw.api.exchange import ClientGone, Exchange, json_object
from openclaw.api.routing import Route, route
from openclaw.capture import Capture, Generated, OpenTurn
from openclaw.engine_pool import EnginePool
from openclaw.requests.turn_ids import tool_call_id

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0
_LONG_BODY_BYTES = 48_000
"""From here on rendering leaves the event loop: it would hold up the chunks of everybody else."""
_BYTES_PER_TOKEN, _SPARE_BYTES = 32, 262_144
"""A token is four characters of English and six bytes where JSON escapes them; the rest is room for other fields."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served.

    Attributes:
        max_context: longest prompt plus reply in tokens.
        default_max_tokens: length limit of a reply whose client names none.
        lora: whether adapters are served, and whose.
    """

    name: str
    chat: ChatFormat
    max_context: int
    default_max_tokens: int
    lora: LoraConfig = LoraConfig()


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has its place in the tree and its prompt; `deltas` is what was sampled so far."""

    request: ChatRequest
    turn: OpenTurn
    route: Route
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    parser: ReplyParser
    reply: ChatReply
    deltas: list[Delta] = field(default_factory=list)

    def engine_request(self) -> GenerateRequest:
        return GenerateRequest(self.turn.turn_id, self.prompt_ids, self.sampling, self.route.adapter)

    def generated(self, completion: Completion) -> Generated:
        return Generated(self.prompt_ids, completion, self.sampling, self.parser.message(), self.route.source)

    def last_words(self, completion: Completion, outcome: str) -> tuple[str, dict[str, int], dict[str, str]]:
        """finish_reason, usage, and what became of the turn."""
        calls_tools = completion.finish_reason == "stop" and self.parser.num_tool_calls > 0
        usage = usage_of(len(self.prompt_ids), len(completion.token_ids))
        log.debug(
            "served turn=%s session=%s messages=%d prompt=%d reply=%d finish=%s capture=%s",
            *(self.turn.turn_id, self.turn.session_id, len(self.request.messages), len(self.prompt_ids)),
            *(len(completion.token_ids), completion.finish_reason, outcome),
        )
        note = {"turn": self.turn.turn_id, "capture": outcome}
        return "tool_calls" if calls_tools else completion.finish_reason, usage, note


class ChatCompletions:
    """The endpoint."""

    def __init__(self, model: ServedModel, engines: EnginePool, capture: Capture) -> None:
        self._model = model
        self._engines = engines
        self._capture = capture

    async def serve(self, exchange: Exchange, raw: bytes) -> None:
        """Answer one request. What it raises, it raises before anything was sent, or for a client that is gone."""
        self._refuse_hopeless(raw)
        body = await json_object(raw)
        request = parse_chat_request(body, self._model.default_max_tokens)
        turn = await self._capture.begin(exchange.headers, body, request)
        job: _Job | None = None
        try:
            async with exchange.until_client_leaves():
                way = route(self._model.lora, exchange.headers, body)
                job = await self._prepare(request, turn, way, len(raw))
                await (self._stream(exchange, job) if request.stream else self._answer(exchange, job))
        except (Exception, asyncio.CancelledError) as error:
            reason = "the client left" if isinstance(error, ClientGone) else f"{error or type(error).__name__}"
            sent = job.generated(join_deltas(job.deltas, "abort")) if job is not None and job.deltas else None
            turn.abandon(reason, sent)
            if exchange.is_started and not isinstance(error, ClientGone):
                log.warning("stream failed turn=%s error=%s", turn.turn_id, reason)
                await exchange.push(error_event(as_api_error(error).body()))
            elif not exchange.is_started:
                raise

    def _refuse_hopeless(self, raw: bytes) -> None:
        """Refuse a body that cannot fit the context window, before it is parsed, placed and tokenised."""
        if len(raw) > _SPARE_BYTES + _BYTES_PER_TOKEN * self._model.max_context:
            raise bad_request(
                f"This model's maximum context length is {self._model.max_context} tokens, but the request has "
                f"{len(raw)} bytes. Please shorten the messages.",
                "messages",
                "context_length_exceeded",
            )

    async def _prepare(self, request: ChatRequest, turn: OpenTurn, way: Route, num_bytes: int) -> _Job:
        chat = self._model.chat
        tools = request.tools if request.offers_tools else ()
        prior = await turn.prior()
        longest = self._model.max_context - 1
        render = partial(
            chat.render, request.messages, tools, prior, options=request.template_options, max_tokens=longest
        )
        try:
            prompt_ids = await asyncio.to_thread(render) if num_bytes > _LONG_BODY_BYTES else render()
        except PromptTooLong:
            raise bad_request(
                f"This model's maximum context length is {self._model.max_context} tokens, but the messages have "
                "more. Please shorten them.",
                "messages",
                "context_length_exceeded",
            ) from None
        limit = min(request.sampling.max_new_tokens, self._model.max_context - len(prompt_ids))
        parser = chat.parser(
            prompt_ids,
            with_tools=request.offers_tools,
            tool_call_id=partial(tool_call_id, turn.turn_id),
            streams_arguments=request.stream,
        )
        reply = ChatReply(
            f"chatcmpl-{turn.turn_id}",
            self._model.name,
            include_usage=request.include_usage,
            token_text=chat.token_text if request.wants_logprobs else None,
        )
        sampling = replace(request.sampling, max_new_tokens=limit, stop_token_ids=chat.stop_token_ids)
        return _Job(request, turn, way, prompt_ids, sampling, parser, reply)

    async def _answer(self, exchange: Exchange, job: _Job) -> None:
        completion = await self._engines.generate(job.engine_request(), job.turn.session_id)
        job.parser.feed(completion.text)
        job.parser.finish()
        self._note_logprobs(job, completion.token_ids, completion.logprobs)
        generated = job.generated(completion)
        outcome = await job.turn.commit(generated)
        body = job.reply.whole(generated.reply, *job.last_words(completion, outcome))
        job.turn.delivered()
        await exchange.answer(200, body, [*_headers(job), (b"x-openclaw-capture", outcome.encode())])

    async def _stream(self, exchange: Exchange, job: _Job) -> None:
        async with _kept_alive(exchange, job):
            stream = self._engines.stream(job.engine_request(), job.turn.session_id)
            async with contextlib.aclosing(stream):
                async for delta in stream:
                    job.deltas.append(delta)
                    if chunks := self._chunks(job, delta):
                        await _open(exchange, job)
                        await exchange.push(chunks)
            completion = join_deltas(job.deltas)
            outcome = await job.turn.commit(job.generated(completion))
        await _open(exchange, job)
        job.turn.delivered()
        await exchange.end(job.reply.last_chunks(*job.last_words(completion, outcome)))

    def _chunks(self, job: _Job, delta: Delta) -> bytes:
        """What leaves for a delta; nothing while its text may still turn out to be a tag."""
        self._note_logprobs(job, delta.token_ids, delta.logprobs)
        pieces = job.parser.feed(delta.text)
        if delta.finish_reason is not None:
            pieces += job.parser.finish()
        return b"".join([job.reply.chunk(piece) for piece in pieces])

    def _note_logprobs(self, job: _Job, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Log-probs go with the text: that of the token that ended the reply, which has none, does not."""
        if token_ids and token_ids[-1] in self._model.chat.stop_token_ids:
            token_ids, logprobs = token_ids[:-1], logprobs[:-1]
        job.reply.tokens(token_ids, logprobs)


async def _open(exchange: Exchange, job: _Job) -> None:
    if not exchange.is_started:
        await exchange.start_stream(_headers(job))


@contextlib.asynccontextmanager
async def _kept_alive(exchange: Exchange, job: _Job) -> AsyncIterator[None]:
    """Comments go out while no chunk does, so that nobody on the way takes a slow reply for a dead one."""

    async def comment() -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if exchange.idle_s() >= KEEP_ALIVE_S:
                with contextlib.suppress(ClientGone):  # the reply itself will find out
                    await _open(exchange, job)
                    await exchange.push(b": keep-alive\n\n")

    task = asyncio.get_running_loop().create_task(comment())
    try:
        yield
    finally:
        task.cancel()


def _headers(job: _Job) -> list[tuple[bytes, bytes]]:
    return [(b"x-openclaw-turn", job.turn.turn_id.encode())]
