"""LLM-as-a-judge: majority vote of a chat model on how a reply was received.

    Turn ─▶ prompts.judge_messages ─▶ votes.ask_votes ─ prompts.read_score ─▶ votes.majority ─▶ Verdict

The model may be the policy, another engine or a server elsewhere: anything that is a `chat_model.ChatModel`.
"""

from __future__ import annotations

import secrets

from slime.config.sections import JudgeConfig
from slime.judging.llm.chat_model import ChatModel
from slime.judging.llm.prompts import INSTRUCTIONS, judge_messages, read_score
from slime.judging.llm.votes import Question, Unreadable, ask_votes, majority
from slime.types import Turn, Verdict


class LlmJudge:
    """Scores a turn by the majority of `majority_vote_n` answers of a model.

    Its verdict holds every judgement: what was asked, the raw answer, what was read in it and the latency, so that
    each score can be read again from the store, and asked again of another model.
    """

    def __init__(self, model: ChatModel, config: JudgeConfig, instructions: str = INSTRUCTIONS) -> None:
        self._model = model
        self._instructions = instructions
        self._config = config

    async def judge(self, turn: Turn) -> Verdict:
        if not turn.next_state:
            return Verdict(None, judge="llm", reason="nothing followed the reply")
        nonce = secrets.token_hex(8)
        question = Question(judge_messages(turn, nonce, self._instructions), _read)
        questions = [question] * self._config.majority_vote_n
        votes = await ask_votes(self._model, questions, self._config, f"judge-{turn.turn_id}-{nonce}")
        return majority(votes, self._config, "llm", float)


def _read(answer: str) -> float:
    score = read_score(answer)
    if score is None:
        raise Unreadable("no score of 1, 0 or -1 in the last box")
    return score
