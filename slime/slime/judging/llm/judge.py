"""The llm judge: asks a chat model, several times, how a reply was received.

    Turn ─▶ prompts.judge_messages ─▶ model.answer × votes ─▶ prompts.read_score ─▶ voting ─▶ Verdict

The model may be the policy, another engine or a server elsewhere; all that is needed of it is `chat_model.ChatModel`.
"""

from __future__ import annotations

import secrets
import time

from slime.config.sections import JudgeConfig
from slime.judging.llm.chat_model import ChatModel
from slime.judging.llm.prompts import INSTRUCTIONS, judge_messages, read_score
from slime.judging.llm.voting import Ballot, collect_votes, count_votes
from slime.types import Message, SamplingParams, Turn, Verdict


class LlmJudge:
    """Scores a turn by the majority of `majority_vote_n` answers of a model.

    Its verdict's details hold every judgement: what was asked, the raw answer, what was read in it and the latency,
    so that each score can be read again from the store, and asked again of another model.
    """

    def __init__(self, model: ChatModel, config: JudgeConfig, instructions: str = INSTRUCTIONS) -> None:
        self._model = model
        self._instructions = instructions
        self._config = config
        self._sampling = SamplingParams(
            temperature=config.judge_temperature, max_new_tokens=config.judge_max_new_tokens
        )

    async def judge(self, turn: Turn) -> Verdict:
        if not turn.next_state:
            return Verdict(None, judge="llm", reason="nothing followed the reply")
        nonce = secrets.token_hex(8)
        messages = judge_messages(turn, nonce, self._instructions)

        async def vote(index: int) -> Ballot:
            return await self._vote(messages, f"judge-{turn.turn_id}-{index}-{nonce}")

        config = self._config
        ballots = await collect_votes(vote, config.majority_vote_n, config.judge_timeout_s)
        asked = {"prompt": messages, "model": self._model.name}
        return count_votes(ballots, config.majority_vote_threshold, "llm", asked, quorum=config.judge_quorum)

    async def _vote(self, messages: list[Message], request_id: str) -> Ballot:
        start = time.monotonic()
        answer = await self._model.answer(messages, request_id, self._sampling)
        details = {
            "answer": answer.text,
            "model": answer.model,
            "finish_reason": answer.finish_reason,
            "latency_s": round(time.monotonic() - start, 4),
            "policy_version": answer.policy_version,
        }
        if answer.finish_reason != "stop":
            return Ballot(None, f"the answer was cut off ({answer.finish_reason})", details)
        score = read_score(answer.text)
        return Ballot(score, "" if score is not None else "no score of 1, 0 or -1 in the last box", details)
