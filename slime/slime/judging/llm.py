"""The llm judge: asks an engine, several times, how a reply was received.

    Turn ─▶ prompts.judge_messages ─▶ render ─▶ engine.generate × votes ─▶ prompts.read_score ─▶ voting ─▶ Verdict

The engine may be the policy's own or another one; all that is needed of it is `protocols.Engine`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from slime.config.sections import JudgeConfig
from slime.errors import EngineUnavailable
from slime.judging.prompts import judge_messages, read_score
from slime.judging.voting import Ballot, collect_votes, count_votes
from slime.protocols import Engine, GenerateRequest
from slime.types import Completion, Message, SamplingParams, Turn, Verdict

Render = Callable[[list[Message]], tuple[int, ...]]
"""A chat as the judge model's prompt ids, generation prompt included."""


class LlmJudge:
    """Scores a turn by the majority of `majority_vote_n` answers of a model.

    Its verdict's details hold the prompt and, for each vote, the raw answer and the latency, so that every score
    can be read again from the store.
    """

    def __init__(self, engine: Engine, render: Render, config: JudgeConfig) -> None:
        self._engine = engine
        self._render = render
        self._config = config
        self._sampling = SamplingParams(
            temperature=config.judge_temperature, max_new_tokens=config.judge_max_new_tokens
        )

    async def judge(self, turn: Turn) -> Verdict:
        if not turn.next_state:
            return Verdict(None, judge="llm", reason="nothing followed the reply")
        nonce = secrets.token_hex(8)
        messages = judge_messages(turn, nonce)
        try:
            prompt_ids = self._render(messages)
        except Exception as error:  # the boundary: a chat template is a program of the model's author
            reason = f"the prompt cannot be rendered: {type(error).__name__}: {error}"
            return Verdict(None, judge="llm", reason=reason, details={"prompt": messages})

        async def vote(index: int) -> Ballot:
            return await self._vote(
                GenerateRequest(f"judge-{turn.turn_id}-{index}-{nonce}", prompt_ids, self._sampling)
            )

        config = self._config
        ballots = await collect_votes(vote, config.majority_vote_n, config.judge_timeout_s)
        return count_votes(ballots, config.majority_vote_threshold, "llm", {"prompt": messages})

    async def _vote(self, request: GenerateRequest) -> Ballot:
        start = time.monotonic()
        completion = await self._generate(request)
        details = {
            "answer": completion.text,
            "finish_reason": completion.finish_reason,
            "latency_s": round(time.monotonic() - start, 4),
            "policy_version": max((span.version for span in completion.spans), default=0),
        }
        if completion.finish_reason != "stop":
            return Ballot(None, f"the answer was cut off ({completion.finish_reason})", details)
        score = read_score(completion.text)
        return Ballot(score, "" if score is not None else "no score of 1, 0 or -1 in the last box", details)

    async def _generate(self, request: GenerateRequest) -> Completion:
        """Ask until the engine has room; the vote's deadline ends the asking."""
        while True:
            try:
                return await self._engine.generate(request)
            except EngineUnavailable as error:
                await asyncio.sleep(error.retry_after_s)
