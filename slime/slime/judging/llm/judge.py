"""LLM-as-a-judge: asks a model the same question several times in parallel, and aggregates the votes.

Turn ─▶ Question × n ─▶ model.answer, in parallel ─ read ─▶ Vote × n ─▶ quorum? ─▶ one score with its share? ─▶ Verdict

The model may be the policy, another engine or a server elsewhere: anything that is a `chat_model.ChatModel`. A failed
vote has no reading and is never counted as anything: too few valid ones, or valid ones that disagree, leave the turn
unjudged. Where only the model's absence caused that, the verdict says when to ask again.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from slime.config.sections import JudgeConfig
from slime.errors import EngineUnavailable
from slime.judging.llm.chat_model import Answer, ChatModel
from slime.judging.llm.prompts import INSTRUCTIONS, judge_messages, read_score
from slime.types import Judgement, Message, SamplingParams, Turn, Verdict

T = TypeVar("T")

LATE_RETRY_S = 1.0
"""Seconds after which to ask again a model that missed the deadline, and so did not say."""


class Unreadable(ValueError):
    """An answer that breaks its grammar; the message says how."""


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What a vote is asked, and how its answer is read; `read` raises `Unreadable`."""

    messages: list[Message]
    read: Callable[[str], T]


@dataclass(frozen=True, slots=True)
class Vote(Generic[T]):
    """One answer and what was read in it.

    Attributes:
        reading: None when the vote failed.
        said: what was asked and answered, and why it failed.
        retry_after_s: the model was unavailable; when to ask it again.
    """

    reading: T | None
    said: Judgement = Judgement("", None)
    retry_after_s: float | None = None

    def judgement(self, judge: str, score: float | None) -> Judgement:
        """The vote as it is stored, with what was read in it."""
        return replace(self.said, judge=judge, score=score)


async def ask_votes(
    model: ChatModel, questions: Sequence[Question[T]], config: JudgeConfig, request_id: str
) -> list[Vote[T]]:
    """Ask all questions at once, each within `judge_timeout_s`; a vote that raises, is late or is unreadable failed.

    Args:
        request_id: of the votes, which append their numbers.
    """
    sampling = SamplingParams(temperature=config.judge_temperature, max_new_tokens=config.judge_max_new_tokens)

    async def cast(index: int, question: Question[T]) -> Vote[T]:
        start = time.monotonic()
        answer = Answer("", "", model.name)
        reading: T | None = None
        failure, retry_after_s = "", None
        try:
            async with asyncio.timeout(config.judge_timeout_s):
                answer = await model.answer(question.messages, f"{request_id}-{index}", sampling)
            if answer.finish_reason != "stop":
                raise Unreadable(f"the answer was cut off ({answer.finish_reason})")
            reading = question.read(answer.text)
        except TimeoutError:
            failure, retry_after_s = f"no answer within {config.judge_timeout_s:g} s", LATE_RETRY_S
        except Unreadable as error:
            failure = str(error)
        except Exception as error:  # the boundary: whatever goes wrong in a vote is a failed vote
            failure = f"{type(error).__name__}: {error}"
            retry_after_s = error.retry_after_s if isinstance(error, EngineUnavailable) else None
        kept = {"finish_reason": answer.finish_reason, "policy_version": answer.policy_version}
        said = Judgement(
            "",
            None,
            answer.model,
            prompt=tuple(question.messages),
            answer=answer.text,
            failure=failure,
            latency_s=round(time.monotonic() - start, 4),
            created_at=time.time(),
            details=kept if answer.finish_reason else {},
        )
        return Vote(reading, said, retry_after_s)

    return list(await asyncio.gather(*(cast(index, question) for index, question in enumerate(questions))))


def without_quorum(votes: Sequence[Vote[T]], config: JudgeConfig) -> Verdict | None:
    """A verdict without a score where fewer votes are valid than the quorum; None where enough are.

    It says when to ask again if votes for which the model was unavailable would have made the quorum.

    >>> config = JudgeConfig(judge_quorum=2)
    >>> without_quorum([Vote(1.0), Vote(None, retry_after_s=7.0)], config).retry_after_s
    7.0
    """
    quorum = config.judge_quorum or max(1, math.ceil(len(votes) / 2))
    num_valid = sum(vote.reading is not None for vote in votes)
    if num_valid >= quorum:
        return None
    failures = "; ".join(sorted({vote.said.failure for vote in votes if vote.said.failure}))
    waits = [vote.retry_after_s for vote in votes if vote.retry_after_s is not None]
    return Verdict(
        None,
        agreement=0.0,
        reason=f"{num_valid} of {len(votes)} votes are valid, {quorum} are needed: {failures}",
        retry_after_s=max(waits) if quorum <= num_valid + len(waits) else None,
    )


def majority(votes: Sequence[Vote[T]], config: JudgeConfig, judge: str, score_of: Callable[[T], float]) -> Verdict:
    """The score that most valid votes give, if a quorum is valid and `majority_vote_threshold` of those agree.

    >>> majority([Vote(1.0), Vote(1.0), Vote(None)], JudgeConfig(), "llm", float).score
    1.0
    """
    said = tuple(None if vote.reading is None else score_of(vote.reading) for vote in votes)
    judgements = tuple(vote.judgement(judge, score) for vote, score in zip(votes, said, strict=True))
    if (unjudged := without_quorum(votes, config)) is not None:
        return replace(unjudged, votes=said, judge=judge, judgements=judgements)
    valid = [score for score in said if score is not None]
    [(score, count), *others] = Counter(valid).most_common()
    share = count / len(valid)
    listed = ", ".join(f"{vote:g}" for vote in valid)
    if share < config.majority_vote_threshold or (others and others[0][1] == count):
        return Verdict(None, said, share, judge=judge, reason=f"the votes disagree: {listed}", judgements=judgements)
    return Verdict(score, said, share, judge=judge, reason=f"votes: {listed}", judgements=judgements)


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
